"""The configuration of a repository: plain data with checks, no I/O and no credentials.

`RepositoryConfig` is what users fill in and repositories persist; an option that is None is not
set. `ResolvedConfig` is what the rest of icefloe works with. Names, option names and constructor
order are Icechunk's. How a config is written to bytes is in `icefloe.format.config.file`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.config.conditions import (
        ManifestPreloadCondition,
        ManifestSplitCondition,
        ManifestSplitDimCondition,
    )
    from icefloe.config.containers import VirtualChunkContainer, usable_containers
    from icefloe.config.manifest import (
        ManifestConfig,
        ManifestPreloadConfig,
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
    )
    from icefloe.config.resolved import ResolvedConfig, ResolvedRetries, ResolvedStorage
    from icefloe.config.section import OutOfRangeError
    from icefloe.config.storage import (
        StorageConcurrencySettings,
        StorageRetriesSettings,
        StorageSettings,
        StorageTimeoutSettings,
    )
    from icefloe.config.stores import (
        AnyObjectStoreConfig,
        ChecksumAlgorithm,
        ObjectStoreConfig,
        S3Options,
        azure_store,
        gcs_store,
        http_store,
        local_filesystem_store,
        s3_store,
    )

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
    "AnyObjectStoreConfig",
    "ChecksumAlgorithm",
    "ObjectStoreConfig",
    "S3Options",
    "VirtualChunkContainer",
    "azure_store",
    "gcs_store",
    "http_store",
    "local_filesystem_store",
    "s3_store",
    "usable_containers",
    # what is in force
    "OutOfRangeError",
    "ResolvedConfig",
    "ResolvedRetries",
    "ResolvedStorage",
]

_NAMES_OF = {
    "conditions": (
        "ManifestPreloadCondition",
        "ManifestSplitCondition",
        "ManifestSplitDimCondition",
    ),
    "containers": (
        "VirtualChunkContainer",
        "usable_containers",
    ),
    "manifest": (
        "ManifestConfig",
        "ManifestPreloadConfig",
        "ManifestSplittingConfig",
        "ManifestVirtualChunkLocationCompressionConfig",
        "SplitRule",
        "SplitSize",
    ),
    "repository": (
        "CachingConfig",
        "CompressionAlgorithm",
        "CompressionConfig",
        "PackingConfig",
        "RepositoryConfig",
        "RepoUpdateRetryConfig",
    ),
    "resolved": (
        "ResolvedConfig",
        "ResolvedRetries",
        "ResolvedStorage",
    ),
    "section": ("OutOfRangeError",),
    "storage": (
        "StorageConcurrencySettings",
        "StorageRetriesSettings",
        "StorageSettings",
        "StorageTimeoutSettings",
    ),
    "stores": (
        "AnyObjectStoreConfig",
        "ChecksumAlgorithm",
        "ObjectStoreConfig",
        "S3Options",
        "azure_store",
        "gcs_store",
        "http_store",
        "local_filesystem_store",
        "s3_store",
    ),
}
"""By module of this package. A program that only opens a repository needs few of them."""

_HOME = {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what a name stands for; from then on it is an ordinary attribute."""
    if name not in _HOME:
        raise AttributeError(f"module 'icefloe.config' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"icefloe.config.{_HOME[name]}"), name)
    return value
