"""Versions of a repository as xarray objects. Needs the extra `xarray`."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def engine() -> Any:
    """The module of the xarray engine.

    It is in a layer above this one. So it is imported by name, by those who call for it.
    """
    try:
        return import_module("icefloe.interop.xarray_engine")
    except ModuleNotFoundError as error:
        if error.name != "xarray":
            raise
        raise ImportError(
            "to_xarray needs xarray: pip install 'icefloe[xarray]'", name="xarray"
        ) from None
