"""Writing xarray objects into sessions."""

from icefloe.interop.xarray_objects import Region, ZarrWriteModes, to_icechunk

__all__ = ["Region", "ZarrWriteModes", "to_icechunk"]
