"""Writing dask arrays into sessions."""

from icefloe.interop.dask_arrays import session_merge_reduction, store_dask
from icefloe.interop.merging import extract_session, merge_sessions

__all__ = ["extract_session", "merge_sessions", "session_merge_reduction", "store_dask"]
