"""Every argument of the public interface is explained.

By name, in the docstring of its function, of its class (for what many methods share), or of a
function that the docstring refers to in backticks ("other arguments as in `s3_storage`").
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import icefloe

MODULES = ["icefloe", "icefloe.spark", "icefloe.xarray", "icefloe.dask"]
# Zarr's own interface, which Zarr explains.
ZARR = {"IcechunkStore"}


def functions(module: Any) -> Iterator[tuple[str, Any, type | None]]:
    names = getattr(module, "__all__", None) or [name for name in vars(module) if name[0] != "_"]
    for name in names:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield name, value, None
        elif inspect.isclass(value) and value.__module__.startswith("icefloe"):
            for base in value.__mro__:
                if not base.__module__.startswith("icefloe") or base.__name__ in ZARR:
                    continue
                for method, found in vars(base).items():
                    plain = (
                        found.__func__ if isinstance(found, classmethod | staticmethod) else found
                    )
                    if method[0] != "_" and inspect.isfunction(plain):
                        yield f"{base.__name__}.{method}", plain, value


def named(argument: str, text: str) -> bool:
    return re.search(rf"`{argument}\b|^\s*{argument}: ", text, re.MULTILINE) is not None


def texts(function: Any, owner: type | None) -> str:
    own = inspect.getdoc(function) or ""
    bases = owner.__mro__ if owner is not None else ()
    found: list[Any] = [base for base in bases if base.__module__.startswith("icefloe")]
    for name in re.findall(r"`(?:icefloe\.)?(\w+)`", own):
        places = (owner, inspect.getmodule(function), icefloe)
        found += filter(inspect.isroutine, (getattr(place, name, None) for place in places))
    return "\n".join([own, *(inspect.getdoc(each) or "" for each in found)])


@pytest.mark.parametrize("name", MODULES)
def test_every_argument_is_explained(name: str) -> None:
    if name != "icefloe":
        package = {"icefloe.spark": "pyspark"}.get(name, name.rpartition(".")[2])
        pytest.importorskip(package, reason=f"{name} needs {package}")
    missing = []
    for label, function, owner in functions(importlib.import_module(name)):
        if label.endswith("_async"):
            continue  # generated, "like" the other one
        text = texts(function, owner)
        missing += [
            f"{label}({parameter.name})"
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name not in ("self", "cls")
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            and parameter.name[0] != "_"
            and not named(parameter.name, text)
        ]
    assert sorted(set(missing)) == []
