"""Prints what official Icechunk offers and `icefloe.as_icechunk` does not, one line each.

A process of its own: importing `icefloe.as_icechunk` changes how objects show themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

MODULES = (
    "",
    ".config",
    ".conflicts",
    ".credentials",
    ".dask",
    ".distributed",
    ".ops",
    ".repository",
    ".session",
    ".snapshots",
    ".storage",
    ".store",
    ".testing",
    ".types",
    ".virtual",
    ".xarray",
)
SHOWN = ("__repr__", "__str__", "_repr_html_", "_repr_svg_")


def differences() -> Iterator[str]:
    seen: set[int] = set()
    for module in MODULES:
        original, ours = import_module(f"icechunk{module}"), import_module(f"{OURS}{module}")
        for name in sorted(offered(original)):
            path = f"{module}.{name}".removeprefix(".")
            if not hasattr(ours, name):
                yield f"{path}: missing"
                continue
            if id(getattr(original, name)) not in seen:
                seen.add(id(getattr(original, name)))
                yield from compare(path, getattr(original, name), getattr(ours, name))


OURS = "icefloe.as_icechunk"


def offered(module: Any) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    here = (module.__name__, "icechunk._icechunk_python")
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) in here
    ]


def compare(path: str, original: Any, ours: Any, depth: int = 0) -> Iterator[str]:
    if inspect.isclass(original) and inspect.isclass(ours):
        yield from arguments(path, original, ours)
        if depth < 2:
            yield from members(path, original, ours, depth)
    elif callable(original):
        yield from arguments(path, original, ours)


def members(path: str, original: Any, ours: Any, depth: int) -> Iterator[str]:
    fields = {*getattr(ours, "__match_args__", ()), *getattr(ours, "__record_names__", ())}
    for name in dir(original):
        value = getattr(original, name)
        is_shown = name in SHOWN and value not in (object.__repr__, object.__str__)
        if name.startswith("_") and not is_shown:
            continue
        if not hasattr(ours, name):
            if name not in fields and not issubclass(ours, BaseException):
                yield f"{path}.{name}: missing"
            continue
        found = getattr(ours, name)
        if is_shown and found == object.__repr__:
            yield f"{path}.{name}: nothing of its own"
        elif is_number(value) and value is not found and int(value) != int(found):
            yield f"{path}.{name}: {int(found)}, expected {int(value)}"
        elif not name.startswith("_") and not (inspect.isclass(value) and depth):
            yield from compare(f"{path}.{name}", value, found, depth + 1)


def is_number(value: Any) -> bool:
    return not inspect.isclass(value) and not callable(value) and hasattr(value, "__int__")


def arguments(path: str, original: Any, ours: Any) -> Iterator[str]:
    try:
        wanted = inspect.signature(original).parameters
    except (TypeError, ValueError):
        return  # compiled, and says nothing
    found = inspect.signature(ours).parameters
    if any(each.kind is each.VAR_KEYWORD for each in found.values()):
        return
    by_position = list(found.values())
    for at, (name, argument) in enumerate(wanted.items()):
        if name.startswith("_") and at < len(by_position):
            continue  # a variant's value, only ever given by position
        if name not in found:
            yield f"{path}({name}): missing"
        elif not same_default(argument.default, found[name].default):
            yield f"{path}({name}): {found[name].default!r}, expected {argument.default!r}"
    for name, argument in found.items():
        needs = argument.default is argument.empty and name not in wanted and name != "self"
        if needs and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            is_by_position = list(found).index(name) < len(wanted)
            if not is_by_position:
                yield f"{path}({name}): needed, unknown to the original"


def same_default(original: Any, ours: Any) -> bool:
    if original is ... or original is inspect.Parameter.empty or original == ours:
        return True
    return original is None and (ours is inspect.Parameter.empty or callable(ours))


if __name__ == "__main__":
    print(*differences(), sep="\n")  # noqa: T201
