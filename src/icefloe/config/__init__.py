"""The configuration of a repository: plain data with checks, no I/O and no credentials.

`RepositoryConfig` is what users fill in and repositories persist; an option that is None is not
set. `ResolvedConfig` is what the rest of icefloe works with. Names, option names and constructor
order are Icechunk's. How a config is written to bytes is in `icefloe.format.config`.
"""

from __future__ import annotations

from icefloe.config.containers import (
    ObjectStoreConfig,
    VirtualChunkContainer,
    usable_containers,
)
from icefloe.config.manifest import (
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    SplitRule,
    SplitSize,
)
from icefloe.config.repository import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    PackingConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    ResolvedConfig,
    ResolvedRetries,
    ResolvedStorage,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.config.section import OutOfRangeError

__all__ = [
    # the root and its sections
    "RepositoryConfig",
    "CachingConfig",
    "CompressionAlgorithm",
    "CompressionConfig",
    "PackingConfig",
    "RepoUpdateRetryConfig",
    # manifests
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "SplitRule",
    "SplitSize",
    # storage
    "StorageConcurrencySettings",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    # virtual chunks
    "ObjectStoreConfig",
    "VirtualChunkContainer",
    "usable_containers",
    # what is in force
    "OutOfRangeError",
    "ResolvedConfig",
    "ResolvedRetries",
    "ResolvedStorage",
]
