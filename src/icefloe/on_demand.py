"""Modules that are imported when something of them is first used.

A program that opens a repository and reads a chunk should not wait for Arrow, HTTP or the code of
operations that it never calls. Such modules are written down where imports are, in two halves:

    if TYPE_CHECKING:
        import pyarrow as pa
    else:
        pa = on_demand("pyarrow")

Type checkers and the check of layers read the first half; the second one runs.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

_STARTS: dict[str, Callable[[], None]] = {}


class _Module:
    """Stands for a module. What was looked up once is kept, so that it costs nothing later."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        start = _STARTS.pop(self.__name__.partition(".")[0], None)
        if start is not None:
            start()
        value = getattr(import_quickly(self.__name__), attribute)
        setattr(self, attribute, value)
        return value

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, imported on demand>"


def on_demand(name: str) -> Any:
    """The module of that name, imported when an attribute of it is first asked for."""
    return _Module(name)


def start_with(package: str, start: Callable[[], None]) -> None:
    """Call `start` before the first import of a package on demand."""
    _STARTS[package] = start


def import_quickly(name: str) -> ModuleType:
    """Import a module without looking for garbage on the way.

    Modules are tens of thousands of objects that stay. Python would look at all of them several
    times, which takes a tenth of the time of `import zarr`. Here they count as old objects at once.
    Collections that are switched off stay off.
    """
    if name in sys.modules or not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        if not gc.get_freeze_count():  # otherwise the program has frozen objects of its own
            gc.freeze()
            gc.unfreeze()
        gc.enable()
