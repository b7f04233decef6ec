"""Forks that come back from the tasks of a distributed computation."""

from icefloe.interop.dask_arrays import extract_session, merge_sessions

__all__ = ["extract_session", "merge_sessions"]
