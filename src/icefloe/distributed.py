"""For array frameworks that write in many tasks: find the fork of an array, merge forks."""

from icefloe.interop.dask_arrays import extract_session, merge_sessions

__all__ = ["extract_session", "merge_sessions"]
