"""Writing xarray objects into sessions: `to_icechunk`. Needs the extra `xarray`.

`virtual_to_icechunk` writes the virtual datasets of VirtualiZarr and needs the extra `virtual`.
"""

try:
    import xarray as _  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "icefloe.xarray needs xarray: pip install 'icefloe[xarray]'", name="xarray"
    ) from error

from icefloe.interop.virtual_datasets import virtual_to_icechunk
from icefloe.interop.xarray_objects import to_icechunk

__all__ = ["to_icechunk", "virtual_to_icechunk"]
