"""Writing dask arrays into sessions: `store_dask`. Needs the extra `dask`."""

from icefloe.interop.dask_arrays import store_dask

__all__ = ["store_dask"]
