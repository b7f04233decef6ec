"""Every argument of the public interface is explained, and every callable has an example.

By name, in the docstring of its function, of its class (for what many methods share), or of a
function that the docstring refers to in backticks ("other arguments as in `s3_storage`").
tests/docs and tests/spark run the examples.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

import icefloe
from icefloe.testing.wrapping import WrappingDriver

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


# --- examples ----------------------------------------------------------------------------------

WITH_EXAMPLES = [
    *MODULES,
    "icefloe.distributed",
    "icefloe.spark.maintenance",
    "icefloe.testing.faults",
    "icefloe.testing.latency",
    "icefloe.testing.schedule",
]
# Ids, and what methods return: nobody makes or calls them.
PLAIN_VALUES = {
    "ChunkId",
    "ManifestId",
    "NodeId",
    "ObjectId",
    "SnapshotId",
    "AncestryGraph",
    "ChunkMap",
    "Diff",
    "Conflict",
    "FeatureFlag",
    "ManifestFileInfo",
    "RepoStatus",
    "SnapshotInfo",
    "Update",
    "UpdateType",
    "VersionChange",
    "RequiredAccess",
    "Progress",
    "ChunkStorageStats",
    "GCSummary",
    "ExportReport",
    "MaterializeReport",
    "MigrationReport",
    "IngestReport",
    "DatasetReport",
    "TableReport",
    "WriteReport",
    "BlocksReport",
    "RefreshReport",
    "Outcome",
    "Recovery",
    "Request",
}
FOR_CODE_INSIDE = {
    "Attribution": ("header",),
    "ObjectId": ("of_rows", "parse"),
    "ManifestFileInfo": ("of",),
    "RepoStatus": ("of", "stored"),
    "SnapshotInfo": ("of", "along", "along_async"),
    "Update": ("all_of",),
    "VersionChange": ("of",),
    "ChunkStorageStats": ("non_virtual_bytes", "total_bytes"),  # Icechunk's names of properties
    "NewGeneration": ("format_version",),
    "NumberedRefs": ("format_version",),
    "StateFileDataset": ("format_version",),
    # A rebase calls it; the example is that of the class.
    "ConflictSolver": ("choose",),
    "ConflictDetector": ("choose",),
    "BasicConflictSolver": ("choose",),
    "AppendSolver": ("choose", "bring_over"),
    "LineSolver": ("bring_over",),
    "RepositoryMaintenance": ("total_chunks_storage",),  # deprecated, with a warning
    "Storage": (
        *("attributed", "bound", "require_directory", "disk_cache"),
        *("driver", "is_same_place", "is_within", "describe"),
    ),
    "LatencyStorage": ("bound", "driver"),
    "FaultyDriver": ("put_if_losing_answers",),
    "IcechunkStore": ("set_partial_values",),  # Zarr 3.0 had it; refused
    "Recovery": ("write_once", "find", "sleep"),
}
"""Methods without an underscore that users do not call."""


def callables(module: Any) -> Iterator[tuple[str, Any]]:
    """The public classes, functions and methods that users call, each once."""
    own = module.__name__ if module.__name__.startswith("icefloe.testing") else "icefloe"
    for name in getattr(module, "__all__", None) or [key for key in vars(module) if key[0] != "_"]:
        value = getattr(module, name)
        home = getattr(value, "__module__", None) or ""
        if not home.startswith(own):
            continue
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value) and not issubclass(value, BaseException | Enum):
            if value.__name__ not in PLAIN_VALUES:
                yield name, value
            yield from methods(value)


def methods(owner: type) -> Iterator[tuple[str, Any]]:
    """The methods of a class and of its bases, without twins and what another class explains."""
    ours = [base for base in owner.__mro__ if base.__module__.startswith("icefloe")]
    known = set(dir(WrappingDriver)) if issubclass(owner, WrappingDriver) else set()
    known.update(*(dir(base) for base in owner.__mro__ if base not in ours))
    for base in ours:
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if name[0] == "_" or not inspect.isfunction(plain) or name in known:
                continue
            is_twin = name.endswith("_async") or name == "async_ancestry"
            if not is_twin and name not in FOR_CODE_INSIDE.get(base.__name__, ()):
                yield f"{base.__name__}.{name}", plain


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_every_callable_has_an_example(name: str) -> None:
    if name != "icefloe":
        package = {"spark": "pyspark", "dask": "dask", "xarray": "xarray"}.get(name.split(".")[1])
        if package is not None:
            pytest.importorskip(package, reason=f"{name} needs {package}")
    found = dict(callables(importlib.import_module(name)))
    assert found
    missing = [label for label, value in found.items() if ">>> " not in (value.__doc__ or "")]
    assert missing == []


# --- help(icefloe) -----------------------------------------------------------------------------


def test_help_of_the_package_is_a_guide() -> None:
    """It begins with what icefloe is, and names the entry points; tests/docs run its example."""
    guide = inspect.getdoc(icefloe) or ""
    assert guide.startswith("Version control for Zarr")
    for name in ("Repository", "Session", "RepositoryConfig", "ingest", "IcefloeError"):
        assert f"`{name}`" in guide
    names = set(re.findall(r"`(\w+)`", guide))
    assert {name for name in names if not hasattr(icefloe, name)} == set()
    methods = set(re.findall(r"`(?:repo)\.(\w+)", guide))
    assert methods
    assert {name for name in methods if not hasattr(icefloe.Repository, name)} == set()
    for extra in ("xarray", "dask", "spark"):
        assert f"`icefloe.{extra}`" in guide
    assert "icefloe --help" in guide
