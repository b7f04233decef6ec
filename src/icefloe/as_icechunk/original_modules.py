"""The modules of the original, made of one table: the names that each of them offers.

Modules that need an extra, and `testing`, are files: they are imported when they are needed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import icefloe
from icefloe import config, credentials
from icefloe.as_icechunk import logs
from icefloe.config import stores
from icefloe.storage.constructors import s3_object_store_storage


def _defined_in(*modules: str) -> tuple[str, ...]:
    """The public names that some modules of icefloe define."""
    return tuple(name for module in modules for name in icefloe.NAMES_OF[module])


_OWN = {"IcefloeError", "UnknownOutcomeError", "PackingConfig"}
"""Names that the original does not have."""
_OF_STORAGE = tuple(name for name in _defined_in("config.repository") if "Storage" in name)
_SHARED = ("Diff", "ManifestFileInfo", "SnapshotInfo")

NAMES: dict[str, tuple[str, ...]] = {
    "_exceptions": _defined_in("errors"),
    "config": (
        *(name for name in _defined_in("config.repository") if name not in _OF_STORAGE),
        *_defined_in("config.manifest", "storage.locations", "repo.spec2_publish"),
        "ObjectStoreConfig",
    ),
    "conflicts": _defined_in("changes.conflicts"),
    "ops": ("GCSummary", "Update", "UpdateType"),
    "repository": (
        *_SHARED,
        *_defined_in("maintenance.summary", "repo.spec2_publish"),
        "RepoAvailability",
        "RepoStatus",
        "Repository",
        "RepositoryConfig",
        "SpecVersion",
        "Storage",
        "StorageSettings",
        "Update",
    ),
    "session": ("ForkSession", "Session", "SessionMode"),
    "snapshots": ("AncestryGraph", *_SHARED),
    "storage": (
        "ChunkType",
        *_OF_STORAGE,
        *_defined_in("config.stores", "storage.constructors", "storage.spec"),
    ),
    "store": ("IcechunkStore",),
    "types": ("CommitMethod",),
    "virtual": ("VirtualChunkContainer", "VirtualChunkSpec"),
}
"""Public names of icefloe, by the module in which the original has them."""

_MORE: dict[str, dict[str, Any]] = {
    "config": {
        "initialize_logs": logs.initialize_logs,
        "set_logs_filter": logs.set_logs_filter,
        "shutdown_telemetry": logs.shutdown_telemetry,
    },
    "credentials": {name: getattr(credentials, name) for name in credentials.__all__},
    "storage": {
        "AnyObjectStoreConfig": stores.AnyObjectStoreConfig,
        "s3_object_store_storage": s3_object_store_storage,
    },
}
"""Names that icefloe has elsewhere, or not at all."""

_UNLISTED: dict[str, dict[str, Any]] = {
    "config": {
        "ManifestSplitValues": dict[config.ManifestSplitDimCondition, int],
        "SplitSizesDict": dict[
            config.ManifestSplitCondition, dict[config.ManifestSplitDimCondition, int]
        ],
        "from_dict": config.ManifestSplittingConfig.from_dict,
        "to_dict": config.ManifestSplittingConfig.to_dict,
    },
}
"""Names that the original has in a module and not in its `__all__`."""


def make_modules(package: str) -> Mapping[str, ModuleType]:
    """Make the modules of `package`, so that an import finds them."""
    modules = {}
    for name in sorted({*NAMES, *_MORE}):
        names = set(NAMES.get(name, ())) - _OWN
        offered = {each: getattr(icefloe, each) for each in names}
        offered |= _MORE.get(name, {})
        module = ModuleType(f"{package}.{name}", f"The names of `icechunk.{name}`.")
        module.__spec__ = ModuleSpec(module.__name__, None, origin=__file__)
        module.__package__ = package
        vars(module).update(offered, __all__=sorted(offered), **_UNLISTED.get(name, {}))
        modules[name] = sys.modules[module.__name__] = module
    return modules
