"""What the package says about itself."""

from __future__ import annotations

import platform
from importlib import import_module

from icefloe.api.enums import SpecVersion

__version__ = "2.3.0"
"""The release of the original whose names and behaviour are offered here."""


def spec_version() -> SpecVersion:
    """The version of the format that new repositories get."""
    return SpecVersion.current()


def supported_spec_versions() -> list[SpecVersion]:
    """The versions of the format that can be created and written, newest first."""
    return [SpecVersion.v2, SpecVersion.v1]


def user_agent() -> str:
    """What requests to a storage say about the program that makes them."""
    agent: str = import_module("icefloe.storage.client").user_agent()
    return agent


def print_debug_info() -> None:
    """Print versions, for reports of problems."""
    lines = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "icechunk": f"{__version__} (icefloe {import_module('icefloe').__version__})",
    }
    for package in ("zarr", "numcodecs", "xarray", "virtualizarr"):
        try:
            lines[package] = import_module(package).__version__
        except ModuleNotFoundError:
            continue
    for name, value in lines.items():
        print(f"{name}:  {value}")  # noqa: T201 - printing is what it is for
