"""The front door: every public name of icefloe, and nothing but names.

Names are looked up when they are first used: a program that opens a repository in a directory
need not wait for the clients of three clouds. Code inside the package never imports from here; it
imports the module that defines the name.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe import credentials
    from icefloe import dask as dask
    from icefloe import distributed as distributed
    from icefloe import spark as spark
    from icefloe import testing as testing
    from icefloe import xarray as xarray
    from icefloe.api.ancestry_graph import AncestryGraph
    from icefloe.api.chunk_map import ChunkMap
    from icefloe.api.generations import NumberedRefs, StateFileDataset
    from icefloe.api.migration import migrate_repository
    from icefloe.api.named_numbers import ChunkType, SpecVersion
    from icefloe.api.open_store import open_store
    from icefloe.api.repository import Repository
    from icefloe.api.session import ForkSession, Session
    from icefloe.api.upgrade_call import upgrade_icechunk_repository
    from icefloe.api.values import (
        ManifestFileInfo,
        RepoAvailability,
        RepoStatus,
        SnapshotInfo,
        Update,
        UpdateType,
    )
    from icefloe.api.version_values import VersionChange
    from icefloe.changes.conflicts import Conflict, ConflictType
    from icefloe.changes.diff import Diff
    from icefloe.changes.solvers import (
        BasicConflictSolver,
        ConflictDetector,
        ConflictSolver,
        VersionSelection,
    )
    from icefloe.config import (
        CachingConfig,
        ChecksumAlgorithm,
        CompressionAlgorithm,
        CompressionConfig,
        ManifestConfig,
        ManifestPreloadCondition,
        ManifestPreloadConfig,
        ManifestSplitCondition,
        ManifestSplitDimCondition,
        ManifestSplittingConfig,
        ManifestVirtualChunkLocationCompressionConfig,
        ObjectStoreConfig,
        PackingConfig,
        RepositoryConfig,
        RepoUpdateRetryConfig,
        S3Options,
        StorageConcurrencySettings,
        StorageRetriesSettings,
        StorageSettings,
        StorageTimeoutSettings,
        VirtualChunkContainer,
        azure_store,
        gcs_store,
        http_store,
        local_filesystem_store,
        s3_store,
    )
    from icefloe.errors import (
        AlreadyExistsError,
        ConflictError,
        ErrorKind,
        FormatError,
        IcechunkError,
        IcefloeError,
        InternalError,
        InvalidInputError,
        NodeNotFoundError,
        NotFoundError,
        ReadOnlyError,
        RebaseFailedError,
        RefNotFoundError,
        RepositoryNotFoundError,
        SessionStateError,
        SnapshotNotFoundError,
        StorageError,
        UnknownOutcomeError,
    )
    from icefloe.exports.objects import ExportReport
    from icefloe.exports.parquet_files import export_parquet
    from icefloe.exports.plain_zarr import export_zarr
    from icefloe.exports.repository_copy import export_repository
    from icefloe.exports.virtual_to_native import MaterializeReport, materialize
    from icefloe.ids import FIRST_SNAPSHOT_ID, ChunkId, ManifestId, NodeId, ObjectId, SnapshotId
    from icefloe.ingests import ingest
    from icefloe.legacy.generation import Generation
    from icefloe.logs import log_to_stderr
    from icefloe.maintenance.garbage import GarbagePlan
    from icefloe.maintenance.migration.migrate import MigrationReport
    from icefloe.maintenance.progress import Progress
    from icefloe.maintenance.retention import Keep
    from icefloe.maintenance.summary import ChunkStorageStats, GCSummary
    from icefloe.repo.families.spec2.flags import FeatureFlag
    from icefloe.repo.rewrite import CommitMethod
    from icefloe.repo.sessions import SessionMode
    from icefloe.storage.constructors.cloud import azure_storage, gcs_storage
    from icefloe.storage.constructors.common import (
        http_storage,
        in_memory_storage,
        local_filesystem_storage,
        redirect_storage,
    )
    from icefloe.storage.constructors.s3 import (
        hf_storage,
        r2_storage,
        s3_storage,
        tigris_storage,
    )
    from icefloe.storage.constructors.urls import storage_from_url
    from icefloe.storage.identity.attribution import Attribution
    from icefloe.storage.identity.containers import Credentials, containers_credentials
    from icefloe.storage.identity.credentials import (
        AzureCredentials,
        AzureRefreshableCredential,
        AzureStaticCredentials,
        GcsBearerCredential,
        GcsCredentials,
        GcsStaticCredentials,
        S3Credentials,
        S3StaticCredentials,
    )
    from icefloe.storage.identity.functions import (
        azure_anonymous_credentials,
        azure_credentials,
        azure_from_env_credentials,
        azure_refreshable_credentials,
        azure_static_credentials,
        gcs_anonymous_credentials,
        gcs_credentials,
        gcs_from_env_credentials,
        gcs_refreshable_credentials,
        gcs_static_credentials,
        s3_anonymous_credentials,
        s3_credentials,
        s3_from_env_credentials,
        s3_refreshable_credentials,
        s3_static_credentials,
    )
    from icefloe.storage.spec import Storage
    from icefloe.store.bulk_pipeline import use_bulk_pipeline
    from icefloe.store.required_access import RequiredAccess
    from icefloe.store.virtual_refs import VirtualChunkSpec
    from icefloe.store.zarr_store import IcechunkStore
    from icefloe.virtual.ingest.recipe import load_recipe
    from icefloe.virtual.ingest.report import IngestReport

__version__ = "0.1.0"

__all__ = [
    "VersionSelection",
    "ConflictType",
    "ConflictSolver",
    "ConflictDetector",
    "Conflict",
    "BasicConflictSolver",
    "__version__",
    # repositories
    "Repository",
    "ingest",
    "load_recipe",
    "IngestReport",
    "migrate_repository",
    "upgrade_icechunk_repository",
    "MigrationReport",
    "Session",
    "ForkSession",
    "IcechunkStore",
    "use_bulk_pipeline",
    "ChunkType",
    "ManifestFileInfo",
    "RepoAvailability",
    "RepoStatus",
    "SnapshotInfo",
    "SpecVersion",
    "Generation",
    "NumberedRefs",
    "Update",
    "UpdateType",
    "AncestryGraph",
    "ChunkMap",
    "Diff",
    "VersionChange",
    "FeatureFlag",
    "SessionMode",
    "CommitMethod",
    "StateFileDataset",
    # keeping them healthy
    "ChunkStorageStats",
    "GCSummary",
    "GarbagePlan",
    "Keep",
    "Progress",
    # seeing what it does
    "log_to_stderr",
    # copies
    "ExportReport",
    "MaterializeReport",
    "export_parquet",
    "export_repository",
    "export_zarr",
    "materialize",
    # storage
    "Storage",
    "http_storage",
    "in_memory_storage",
    "local_filesystem_storage",
    "redirect_storage",
    "hf_storage",
    "r2_storage",
    "s3_storage",
    "tigris_storage",
    "azure_storage",
    "gcs_storage",
    "storage_from_url",
    "open_store",
    "Attribution",
    # credentials
    "credentials",
    "AzureCredentials",
    "AzureRefreshableCredential",
    "AzureStaticCredentials",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "S3Credentials",
    "S3StaticCredentials",
    "Credentials",
    "containers_credentials",
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
    # configuration
    "RepositoryConfig",
    "CachingConfig",
    "ChecksumAlgorithm",
    "CompressionAlgorithm",
    "CompressionConfig",
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "ObjectStoreConfig",
    "PackingConfig",
    "RepoUpdateRetryConfig",
    "S3Options",
    "StorageConcurrencySettings",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "VirtualChunkContainer",
    "VirtualChunkSpec",
    "RequiredAccess",
    "azure_store",
    "gcs_store",
    "http_store",
    "local_filesystem_store",
    "s3_store",
    # errors
    "ErrorKind",
    "IcechunkError",
    "IcefloeError",
    "ConflictError",
    "RebaseFailedError",
    "NotFoundError",
    "NodeNotFoundError",
    "SnapshotNotFoundError",
    "RefNotFoundError",
    "RepositoryNotFoundError",
    "AlreadyExistsError",
    "ReadOnlyError",
    "InvalidInputError",
    "SessionStateError",
    "StorageError",
    "UnknownOutcomeError",
    "FormatError",
    "InternalError",
    # ids
    "ObjectId",
    "SnapshotId",
    "ManifestId",
    "ChunkId",
    "NodeId",
    "FIRST_SNAPSHOT_ID",
]

_NAMES_OF = {
    "api.ancestry_graph": ("AncestryGraph",),
    "api.chunk_map": ("ChunkMap",),
    "api.generations": ("NumberedRefs", "StateFileDataset"),
    "api.named_numbers": ("ChunkType", "SpecVersion"),
    "api.open_store": ("open_store",),
    "api.migration": ("migrate_repository",),
    "api.upgrade_call": ("upgrade_icechunk_repository",),
    "api.repository": ("Repository",),
    "api.session": ("ForkSession", "Session"),
    "api.values": (
        "ManifestFileInfo",
        "RepoAvailability",
        "RepoStatus",
        "SnapshotInfo",
        "Update",
        "UpdateType",
    ),
    "api.version_values": ("VersionChange",),
    "changes.conflicts": ("Conflict", "ConflictType"),
    "changes.diff": ("Diff",),
    "changes.solvers": (
        "BasicConflictSolver",
        "ConflictDetector",
        "ConflictSolver",
        "VersionSelection",
    ),
    "config": (
        "CachingConfig",
        "ChecksumAlgorithm",
        "CompressionAlgorithm",
        "CompressionConfig",
        "ManifestConfig",
        "ManifestPreloadCondition",
        "ManifestPreloadConfig",
        "ManifestSplitCondition",
        "ManifestSplitDimCondition",
        "ManifestSplittingConfig",
        "ManifestVirtualChunkLocationCompressionConfig",
        "ObjectStoreConfig",
        "PackingConfig",
        "RepositoryConfig",
        "RepoUpdateRetryConfig",
        "S3Options",
        "StorageConcurrencySettings",
        "StorageRetriesSettings",
        "StorageSettings",
        "StorageTimeoutSettings",
        "VirtualChunkContainer",
        "azure_store",
        "gcs_store",
        "http_store",
        "local_filesystem_store",
        "s3_store",
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
    "exports.virtual_to_native": ("MaterializeReport", "materialize"),
    "exports.objects": ("ExportReport",),
    "exports.parquet_files": ("export_parquet",),
    "exports.repository_copy": ("export_repository",),
    "exports.plain_zarr": ("export_zarr",),
    "ids": ("FIRST_SNAPSHOT_ID", "ChunkId", "ManifestId", "NodeId", "ObjectId", "SnapshotId"),
    "ingests": ("ingest",),
    "legacy.generation": ("Generation",),
    "logs": ("log_to_stderr",),
    "maintenance.garbage": ("GarbagePlan",),
    "maintenance.migration.migrate": ("MigrationReport",),
    "maintenance.progress": ("Progress",),
    "maintenance.retention": ("Keep",),
    "maintenance.summary": ("ChunkStorageStats", "GCSummary"),
    "repo.families.spec2.flags": ("FeatureFlag",),
    "repo.rewrite": ("CommitMethod",),
    "repo.sessions": ("SessionMode",),
    "storage.constructors.cloud": ("azure_storage", "gcs_storage"),
    "storage.constructors.common": (
        "http_storage",
        "in_memory_storage",
        "local_filesystem_storage",
        "redirect_storage",
    ),
    "storage.identity.attribution": ("Attribution",),
    "storage.identity.containers": ("Credentials", "containers_credentials"),
    "storage.identity.functions": (
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
    "storage.identity.credentials": (
        "AzureCredentials",
        "AzureRefreshableCredential",
        "AzureStaticCredentials",
        "GcsBearerCredential",
        "GcsCredentials",
        "GcsStaticCredentials",
        "S3Credentials",
        "S3StaticCredentials",
    ),
    "storage.constructors.s3": ("hf_storage", "r2_storage", "s3_storage", "tigris_storage"),
    "storage.spec": ("Storage",),
    "storage.constructors.urls": ("storage_from_url",),
    "store.bulk_pipeline": ("use_bulk_pipeline",),
    "store.required_access": ("RequiredAccess",),
    "store.virtual_refs": ("VirtualChunkSpec",),
    "store.zarr_store": ("IcechunkStore",),
    "virtual.ingest.recipe": ("load_recipe",),
    "virtual.ingest.report": ("IngestReport",),
}
"""By module of this package; a test compares them with the imports above."""

_HOME = {name: module for module, names in _NAMES_OF.items() for name in names}
_MODULES = ("dask", "distributed", "spark", "testing", "xarray")
"""Public modules, some of which need an extra."""
_SUBMODULES = {
    *(module.partition(".")[0] for module in _NAMES_OF),
    *_MODULES,
    "credentials",
    "paths",
}


def __getattr__(name: str) -> Any:
    """Import what a name stands for; from then on it is an ordinary attribute."""
    if name not in _HOME and name not in _SUBMODULES:
        raise AttributeError(f"module 'icefloe' has no attribute {name!r}")
    from icefloe.on_demand import import_quickly  # noqa: PLC0415 - `import icefloe` has only names

    try:
        value = import_quickly(f"icefloe.{_HOME.get(name, name)}")
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
    import_module("icefloe.logs").log_as_environment_says()
