"""Writing xarray objects into sessions: `to_icechunk`. Needs the extra `xarray`."""

from icefloe.interop.xarray_objects import to_icechunk

__all__ = ["to_icechunk"]
