"""The settings in force: every option with its value, and the only place defaults are written.

A `Resolved...` class has the option names of the section it is made from, so that the rest of
icefloe never asks whether an option was set. Storage backends have other defaults for some
options of `storage`: merge those below the config before resolving it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from icefloe.config.conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.section import Section
from icefloe.records import record

if TYPE_CHECKING:
    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.config.manifest import SplitRule

# Names of coordinate variables after the CF conventions: small arrays that most readers want.
COORDINATE_NAMES = (
    r"^\bt\b$|^(time|min|hour|day|week|month|year)[0-9]*$",
    (
        r"^(z|nav_lev|gdep|lv_|[o]*lev|bottom_top|sigma|h(ei)?ght|altitude|depth|isobaric|pres|"
        r"isotherm)[a-z_]*[0-9]*$"
    ),
    r"^(y|j|nlat|rlat|nj)$",
    r"^y?(nav_lat|lat|gphi)[a-z0-9]*$",
    r"^x?(nav_lon|lon|glam)[a-z0-9]*$",
    r"^(x|i|nlon|rlon|ni)$",
)

SMALL_COORDINATES = ManifestPreloadCondition.and_conditions(
    (
        ManifestPreloadCondition.or_conditions(
            map(ManifestPreloadCondition.name_matches, COORDINATE_NAMES)
        ),
        ManifestPreloadCondition.num_refs(None, 1001),
    )
)
"""Preloaded by default: coordinate variables whose manifest has at most 1000 references."""

MAX_REFS_PER_MANIFEST = 2**17
"""Of arrays that no splitting rule is about. Measured: a commit then rewrites about a megabyte for
each place it touches, and a reader fetches as much for its first chunk."""

ONE_MANIFEST_PER_ARRAY: tuple[SplitRule, ...] = (
    (
        ManifestSplitCondition.path_matches(".*"),
        ((ManifestSplitDimCondition.Any(), 2**32 - 1),),
    ),
)


def _raise_to_one(resolved: object, *names: str) -> None:
    for name in names:
        if getattr(resolved, name) == 0:
            object.__setattr__(resolved, name, 1)


@record(frozen=True)
class ResolvedConcurrency:
    """See `StorageConcurrencySettings`."""

    max_concurrent_requests_for_object: int = 18
    ideal_concurrent_request_size: int = 12 * 1024 * 1024


@record(frozen=True)
class ResolvedRetries:
    """See `StorageRetriesSettings`."""

    max_tries: int = 10
    initial_backoff_ms: int = 100
    max_backoff_ms: int = 180_000


@record(frozen=True)
class ResolvedTimeouts:
    """See `StorageTimeoutSettings`; None leaves the choice to the storage client."""

    connect_timeout_ms: int | None = None
    read_timeout_ms: int | None = None
    operation_timeout_ms: int | None = None
    operation_attempt_timeout_ms: int | None = None


@record(frozen=True)
class ResolvedStorage:
    """See `StorageSettings`; a storage class of None is the storage's own default."""

    concurrency: ResolvedConcurrency = ResolvedConcurrency()
    retries: ResolvedRetries = ResolvedRetries()
    timeouts: ResolvedTimeouts = ResolvedTimeouts()
    unsafe_use_conditional_create: bool = True
    unsafe_use_conditional_update: bool = True
    unsafe_use_metadata: bool = True
    storage_class: str | None = None
    metadata_storage_class: str | None = None
    chunks_storage_class: str | None = None
    minimum_size_for_multipart_upload: int = 100 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("metadata_storage_class", "chunks_storage_class"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.storage_class)


@record(frozen=True)
class ResolvedCompression:
    """See `CompressionConfig`; the algorithm is always zstd."""

    level: int = 3


@record(frozen=True)
class ResolvedCaching:
    """See `CachingConfig`."""

    num_snapshot_nodes: int = 500_000
    num_chunk_refs: int = 15_000_000
    num_transaction_changes: int = 0
    num_bytes_attributes: int = 0
    num_bytes_chunks: int = 0


@record(frozen=True)
class ResolvedPreload:
    """See `ManifestPreloadConfig`."""

    max_total_refs: int = 10_000
    preload_if: ManifestPreloadCondition = SMALL_COORDINATES
    max_arrays_to_scan: int = 50


@record(frozen=True)
class ResolvedSplitting:
    """See `ManifestSplittingConfig`; arrays no rule is about are split by their size."""

    split_sizes: tuple[SplitRule, ...] = ()


@record(frozen=True)
class ResolvedLocationCompression:
    """See `ManifestVirtualChunkLocationCompressionConfig`."""

    min_num_chunks: int = 1000
    dictionary_max_training_samples: int = 100
    dictionary_max_size_bytes: int = 2048
    compression_level: int = 3


@record(frozen=True)
class ResolvedManifest:
    """See `ManifestConfig`."""

    preload: ResolvedPreload = ResolvedPreload()
    splitting: ResolvedSplitting = ResolvedSplitting()
    virtual_chunk_location_compression: ResolvedLocationCompression | None = None
    """None is not at all, unless the configuration has a section about it."""
    max_concurrent_manifest_fetches_during_commit: int | None = None
    """None is as many as memory allows."""
    max_refs_per_manifest: int = MAX_REFS_PER_MANIFEST

    def __post_init__(self) -> None:
        _raise_to_one(self, "max_concurrent_manifest_fetches_during_commit")


@record(frozen=True)
class ResolvedRepoUpdateRetries:
    """See `RepoUpdateRetryConfig`."""

    default: ResolvedRetries = ResolvedRetries(100, 50, 30_000)


@record(frozen=True)
class ResolvedPacking:
    """See `PackingConfig`."""

    target_size_bytes: int = 8 * 1024 * 1024
    max_chunk_size_bytes: int = 256 * 1024
    is_one_array_each: bool = False


NO_PACKING = ResolvedPacking(max_chunk_size_bytes=0)
"""In force unless the configuration has a section about packing."""


@record(frozen=True)
class ResolvedConfig:
    """See `RepositoryConfig`. Limits that would let nothing through at 0 are at least 1."""

    inline_chunk_threshold_bytes: int = 512
    get_partial_values_concurrency: int = 10
    compression: ResolvedCompression = ResolvedCompression()
    max_concurrent_requests: int = 256
    max_concurrent_decodes: int | None = None
    """None is one per processor, which this layer does not count."""
    caching: ResolvedCaching = ResolvedCaching()
    storage: ResolvedStorage = ResolvedStorage()
    virtual_chunk_containers: Mapping[str, VirtualChunkContainer] = field(default_factory=dict)
    manifest: ResolvedManifest = ResolvedManifest()
    repo_update_retries: ResolvedRepoUpdateRetries = ResolvedRepoUpdateRetries()
    num_updates_per_repo_info_file: int = 1000
    packing: ResolvedPacking = NO_PACKING

    def __post_init__(self) -> None:
        _raise_to_one(
            self,
            "get_partial_values_concurrency",
            "max_concurrent_requests",
            "max_concurrent_decodes",
            "num_updates_per_repo_info_file",
        )


_WHERE_ASKED_FOR = {"virtual_chunk_location_compression": ResolvedLocationCompression()}
"""Defaults inside sections that are off unless they are there."""

Resolved = TypeVar("Resolved", bound=Any)


def resolve(defaults: Resolved, section: Section | None) -> Resolved:
    """`defaults` with everything that `section` sets, and so on in the sections inside."""
    if section is None:
        return defaults
    found = {name: getattr(section, name) for name in vars(defaults)}
    values = {
        name: resolve(getattr(defaults, name) or _WHERE_ASKED_FOR[name], value)
        if isinstance(value, Section)
        else value
        for name, value in found.items()
        if value is not None
    }
    resolved: Resolved = type(defaults)(**{**vars(defaults), **values})
    return resolved
