"""Writing dask arrays into sessions: `store_dask`. Needs the extra `dask`."""

try:
    import dask.array as _  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "icefloe.dask needs dask: pip install 'icefloe[dask]'", name="dask"
    ) from error

from icefloe.interop.dask_arrays import store_dask

__all__ = ["store_dask"]
