"""`Repository`, and what its methods take and return."""

from icefloe.api.named_numbers import SpecVersion
from icefloe.api.repository import Repository
from icefloe.api.values import (
    ManifestFileInfo,
    RepoAvailability,
    RepoStatus,
    SnapshotInfo,
    Update,
)
from icefloe.changes.diff import Diff
from icefloe.config import RepositoryConfig, StorageSettings
from icefloe.maintenance.summary import ChunkStorageStats, GCSummary
from icefloe.repo.families.spec2.flags import FeatureFlag
from icefloe.storage.spec import Storage

__all__ = [
    "ChunkStorageStats",
    "GCSummary",
    "Diff",
    "FeatureFlag",
    "ManifestFileInfo",
    "RepoAvailability",
    "RepoStatus",
    "Repository",
    "RepositoryConfig",
    "SnapshotInfo",
    "SpecVersion",
    "Storage",
    "StorageSettings",
    "Update",
]
