"""Version control for Zarr: commits, branches, tags and time travel for array data.

icefloe reads and writes Icechunk repositories on S3, GCS, Azure or a local directory. First use:

    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.local_filesystem_storage("first"))
    >>> with repo.transaction("main", message="Add four days") as store:
    ...     t2m = zarr.create_array(store, name="t2m", shape=(4,), dtype="f4")
    ...     t2m[:] = 280
    >>> repo.create_tag("v1", repo.lookup_branch("main"))
    >>> reader = repo.readonly_session(tag="v1")
    >>> float(zarr.open_array(reader.store, path="t2m", mode="r")[0])
    280.0

Where things are:

- `Repository`: create, open, branches, tags, history, diff, merge, expire, collect garbage
- `Session`: `repo.writable_session(branch)` to change and commit, `repo.readonly_session(...)` to
  read a branch, a tag, a snapshot or a moment; `session.store` is a Zarr store
- storage: `local_filesystem_storage`, `in_memory_storage`, `s3_storage`, `gcs_storage`,
  `azure_storage`, or a URL with `storage_from_url`
- `RepositoryConfig`: settings, virtual chunk containers among them
- `ingest`: files (NetCDF, HDF5, GRIB, Zarr, Parquet references) into a repository
- `icefloe.xarray`, `icefloe.dask`, `icefloe.spark`: each needs the extra of its name
- `IcefloeError`: the parent of all errors; `error.kind` is a stable code

In a shell, `icefloe --help` lists the commands and `icefloe ui REPOSITORY` opens the web page.
"""

# Names are looked up when they are first used: a program that opens a repository in a directory
# need not wait for the clients of three clouds. Type checkers and editors see them in the generated
# `__init__.pyi`. Code inside the package never imports from here; it imports the module that
# defines the name.

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

NAMES_OF = {
    "api.ancestry_graph": ("AncestryGraph",),
    "api.chunk_map": ("ChunkMap",),
    "api.enums": (
        "ChunkType",
        "NumberedRefs",
        "SpecVersion",
        "StateFileDataset",
    ),
    "api.migration": (
        "migrate_repository",
        "upgrade_icechunk_repository",
    ),
    "api.open_store": ("open_store",),
    "api.repository": ("Repository",),
    "api.session": (
        "ForkSession",
        "Session",
    ),
    "api.values": (
        "ManifestFileInfo",
        "RepoAvailability",
        "RepoStatus",
        "SnapshotInfo",
        "Update",
        "UpdateType",
        "VersionChange",
    ),
    "changes.conflicts": (
        "Conflict",
        "ConflictType",
        "BasicConflictSolver",
        "ConflictDetector",
        "ConflictSolver",
        "VersionSelection",
    ),
    "changes.diff": ("Diff",),
    "config.repository": (
        "CachingConfig",
        "CompressionAlgorithm",
        "CompressionConfig",
        "PackingConfig",
        "RepoUpdateRetryConfig",
        "RepositoryConfig",
        "StorageConcurrencySettings",
        "StorageRetriesSettings",
        "StorageSettings",
        "StorageTimeoutSettings",
    ),
    "config.containers": ("VirtualChunkContainer",),
    "config.stores": (
        "ChecksumAlgorithm",
        "ObjectStoreConfig",
        "S3Options",
        "azure_store",
        "gcs_store",
        "http_store",
        "local_filesystem_store",
        "s3_store",
    ),
    "config.manifest": (
        "ManifestConfig",
        "ManifestPreloadCondition",
        "ManifestPreloadConfig",
        "ManifestSplitCondition",
        "ManifestSplitDimCondition",
        "ManifestSplittingConfig",
        "ManifestVirtualChunkLocationCompressionConfig",
    ),
    "errors": (
        "AlreadyExistsError",
        "ConflictError",
        "ErrorKind",
        "FormatError",
        "IcechunkError",
        "IcefloeError",
        "InternalError",
        "InvalidInputError",
        "NodeNotFoundError",
        "NotFoundError",
        "ReadOnlyError",
        "RebaseFailedError",
        "RefNotFoundError",
        "RepositoryNotFoundError",
        "SessionStateError",
        "SnapshotNotFoundError",
        "StorageError",
        "UnknownOutcomeError",
    ),
    "exports.objects": ("ExportReport",),
    "exports.parquet_files": ("export_parquet",),
    "exports.plain_zarr": ("export_zarr",),
    "exports.repository_copy": ("export_repository",),
    "exports.virtual_to_native": (
        "MaterializeReport",
        "materialize",
    ),
    "ids": (
        "ChunkId",
        "FIRST_SNAPSHOT_ID",
        "ManifestId",
        "NodeId",
        "ObjectId",
        "SnapshotId",
    ),
    "ingests": ("ingest",),
    "format.layout": ("Generation",),
    "observe": ("log_to_stderr",),
    "maintenance.gc": ("GarbagePlan",),
    "legacy.migrate": ("MigrationReport",),
    "maintenance.progress": ("Progress",),
    "maintenance.expire": ("Keep",),
    "maintenance.summary": (
        "ChunkStorageStats",
        "GCSummary",
    ),
    "repo.spec2_publish": ("FeatureFlag",),
    "repo.session": (
        "CommitMethod",
        "SessionMode",
    ),
    "storage.constructors": (
        "azure_storage",
        "gcs_storage",
        "hf_storage",
        "r2_storage",
        "s3_storage",
        "tigris_storage",
    ),
    "storage.spec": (
        "http_storage",
        "in_memory_storage",
        "local_filesystem_storage",
        "redirect_storage",
        "Storage",
    ),
    "storage.urls": ("storage_from_url",),
    "storage.locations": ("Attribution",),
    "credentials": (
        "Credentials",
        "containers_credentials",
        "AzureCredentials",
        "AzureRefreshableCredential",
        "AzureStaticCredentials",
        "GcsBearerCredential",
        "GcsCredentials",
        "GcsStaticCredentials",
        "S3Credentials",
        "S3StaticCredentials",
        "azure_anonymous_credentials",
        "azure_credentials",
        "azure_from_env_credentials",
        "azure_refreshable_credentials",
        "azure_static_credentials",
        "gcs_anonymous_credentials",
        "gcs_credentials",
        "gcs_from_env_credentials",
        "gcs_refreshable_credentials",
        "gcs_static_credentials",
        "s3_anonymous_credentials",
        "s3_credentials",
        "s3_from_env_credentials",
        "s3_refreshable_credentials",
        "s3_static_credentials",
    ),
    "store.appends": ("AppendSolver",),
    "store.pipeline": ("use_bulk_pipeline",),
    "store.virtual": (
        "RequiredAccess",
        "VirtualChunkSpec",
    ),
    "store.zarr_store": ("IcechunkStore",),
    "virtual.ingest.request": ("load_recipe",),
    "virtual.ingest.run_ingest": ("IngestReport",),
}
"""The public names, by the module of this package that defines them."""

_MODULES = ("credentials", "dask", "distributed", "spark", "testing", "xarray")
"""Public modules, some of which need an extra."""

_HOME = {name: module for module, names in NAMES_OF.items() for name in names}
_SUBMODULES = {*_MODULES, "paths", *(module.partition(".")[0] for module in NAMES_OF)}

__all__ = ["__version__", "credentials", *_HOME]  # noqa: PLE0604 - computed from strings


def __getattr__(name: str) -> Any:
    """Import what a name stands for; from then on it is an ordinary attribute."""
    if name not in _HOME and name not in _SUBMODULES:
        raise AttributeError(f"module 'icefloe' has no attribute {name!r}")
    try:
        value = import_module(f"icefloe.{_HOME.get(name, name)}")
    except ImportError as error:
        if name not in _MODULES:
            raise
        raise AttributeError(str(error)) from error  # as `hasattr` and `inspect` expect it
    if name in _HOME:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})


if os.environ.get("ICEFLOE_LOG"):
    import_module("icefloe.observe").log_as_environment_says()
