"""The configuration, and logs."""

from __future__ import annotations

from typing import TypeAlias

from icefloe.as_icechunk.logs import initialize_logs, set_logs_filter, shutdown_telemetry
from icefloe.config import (
    CachingConfig,
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
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.repo.families.spec2.flags import FeatureFlag
from icefloe.storage.identity.attribution import Attribution

__all__ = [
    "Attribution",
    "CachingConfig",
    "CompressionAlgorithm",
    "CompressionConfig",
    "FeatureFlag",
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "ObjectStoreConfig",
    "RepoUpdateRetryConfig",
    "RepositoryConfig",
    "initialize_logs",
    "set_logs_filter",
    "shutdown_telemetry",
]

ManifestSplitValues: TypeAlias = dict[ManifestSplitDimCondition, int]
SplitSizesDict: TypeAlias = dict[ManifestSplitCondition, ManifestSplitValues]

from_dict = ManifestSplittingConfig.from_dict
to_dict = ManifestSplittingConfig.to_dict
