"""Writing dask arrays into sessions."""

from icefloe.interop.dask_arrays import (
    extract_session,
    merge_sessions,
    session_merge_reduction,
    store_dask,
)

__all__ = ["extract_session", "merge_sessions", "session_merge_reduction", "store_dask"]
