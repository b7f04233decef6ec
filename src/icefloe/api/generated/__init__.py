"""Asynchronous twins of the blocking methods, written by `tools/make_async_twins.py`."""
