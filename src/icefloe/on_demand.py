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

from importlib import import_module
from typing import Any


class _Module:
    """Stands for a module. What was looked up once is kept, so that it costs nothing later."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, imported on demand>"


def on_demand(name: str) -> Any:
    """The module of that name, imported when an attribute of it is first asked for."""
    return _Module(name)
