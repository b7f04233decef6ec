"""Configs of every shape for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

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
    PackingConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    VirtualChunkContainer,
)
from icefloe.config.stores import ChecksumAlgorithm, S3Options


def unsigned(bits: int, lowest: int = 0) -> st.SearchStrategy[int]:
    return st.integers(lowest, 2**bits - 1)


# What a file can hold: no zero byte, no half of a surrogate pair.
AWKWARD = ["true", "null", "no", "~", "", "1", "0x10", "- a", "a: b", "# c", "'", '"', "\\", "🧊"]
TEXT = st.sampled_from(AWKWARD) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12
)
TEXTS = st.dictionaries(TEXT, TEXT, max_size=3)


def section(kind: Any, **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Sections with any subset of their options set."""
    return st.builds(kind, **{name: st.none() | values for name, values in options.items()})


S3_OPTIONS = st.builds(
    S3Options,
    region=st.none() | TEXT,
    endpoint_url=st.none() | TEXT,
    allow_http=st.booleans(),
    anonymous=st.booleans(),
    force_path_style=st.booleans(),
    network_stream_timeout_seconds=st.none() | unsigned(32),
    requester_pays=st.booleans(),
    checksum_algorithm=st.none() | st.sampled_from(ChecksumAlgorithm),
)

STORES = st.one_of(
    st.builds(ObjectStoreConfig.InMemory),
    st.builds(ObjectStoreConfig.LocalFileSystem, TEXT),
    # "headers" among the options would be read back as the headers.
    st.builds(
        ObjectStoreConfig.Http,
        TEXTS.filter(lambda opts: "headers" not in opts),
        TEXTS,
    ),
    st.builds(ObjectStoreConfig.S3, S3_OPTIONS),
    st.builds(ObjectStoreConfig.S3Compatible, S3_OPTIONS),
    st.builds(ObjectStoreConfig.Tigris, S3_OPTIONS),
    st.builds(ObjectStoreConfig.Gcs, TEXTS),
    st.builds(ObjectStoreConfig.Azure, TEXTS),
)

CONTAINERS = st.builds(VirtualChunkContainer, TEXT, STORES, st.none() | TEXT)

SPLIT_CONDITIONS: st.SearchStrategy[ManifestSplitCondition] = st.recursive(
    st.one_of(
        st.builds(ManifestSplitCondition.path_matches, TEXT),
        st.builds(ManifestSplitCondition.name_matches, TEXT),
        st.builds(ManifestSplitCondition.any_array),
    ),
    lambda inner: (
        st.builds(ManifestSplitCondition.or_conditions, st.lists(inner, max_size=3))
        | st.builds(ManifestSplitCondition.and_conditions, st.lists(inner, max_size=3))
    ),
    max_leaves=5,
)

AXES = st.one_of(
    st.builds(ManifestSplitDimCondition.Axis, unsigned(64)),
    st.builds(ManifestSplitDimCondition.DimensionName, TEXT),
    st.builds(ManifestSplitDimCondition.Any),
)

PRELOAD_CONDITIONS: st.SearchStrategy[ManifestPreloadCondition] = st.recursive(
    st.one_of(
        st.builds(ManifestPreloadCondition.path_matches, TEXT),
        st.builds(ManifestPreloadCondition.name_matches, TEXT),
        st.builds(
            ManifestPreloadCondition.num_refs, st.none() | unsigned(32), st.none() | unsigned(32)
        ),
        st.builds(ManifestPreloadCondition.true),
        st.builds(ManifestPreloadCondition.false),
    ),
    lambda inner: (
        st.builds(ManifestPreloadCondition.or_conditions, st.lists(inner, max_size=3))
        | st.builds(ManifestPreloadCondition.and_conditions, st.lists(inner, max_size=3))
    ),
    max_leaves=5,
)

RETRIES = section(
    StorageRetriesSettings,
    max_tries=unsigned(16, lowest=1),
    initial_backoff_ms=unsigned(32),
    max_backoff_ms=unsigned(32),
)

STORAGE = section(
    StorageSettings,
    concurrency=section(
        StorageConcurrencySettings,
        max_concurrent_requests_for_object=unsigned(16, lowest=1),
        ideal_concurrent_request_size=unsigned(64, lowest=1),
    ),
    retries=RETRIES,
    unsafe_use_conditional_create=st.booleans(),
    unsafe_use_conditional_update=st.booleans(),
    unsafe_use_metadata=st.booleans(),
    storage_class=TEXT,
    metadata_storage_class=TEXT,
    chunks_storage_class=TEXT,
    minimum_size_for_multipart_upload=unsigned(64),
    timeouts=section(
        StorageTimeoutSettings,
        connect_timeout_ms=unsigned(32),
        read_timeout_ms=unsigned(32),
        operation_timeout_ms=unsigned(32),
        operation_attempt_timeout_ms=unsigned(32),
    ),
)

MANIFEST = section(
    ManifestConfig,
    preload=section(
        ManifestPreloadConfig,
        max_total_refs=unsigned(32),
        preload_if=PRELOAD_CONDITIONS,
        max_arrays_to_scan=unsigned(32),
    ),
    splitting=section(
        ManifestSplittingConfig,
        split_sizes=st.lists(
            st.tuples(
                SPLIT_CONDITIONS, st.lists(st.tuples(AXES, unsigned(32, lowest=1)), max_size=3)
            ),
            max_size=3,
        ),
    ),
    virtual_chunk_location_compression=section(
        ManifestVirtualChunkLocationCompressionConfig,
        min_num_chunks=unsigned(16),
        dictionary_max_training_samples=unsigned(16),
        dictionary_max_size_bytes=unsigned(32),
        compression_level=st.integers(-(2**31), 2**31 - 1),
    ),
    max_concurrent_manifest_fetches_during_commit=unsigned(16),
)

CONFIGS: st.SearchStrategy[RepositoryConfig] = section(
    RepositoryConfig,
    inline_chunk_threshold_bytes=unsigned(16),
    get_partial_values_concurrency=unsigned(16),
    compression=section(
        CompressionConfig, algorithm=st.sampled_from(CompressionAlgorithm), level=unsigned(8)
    ),
    max_concurrent_requests=unsigned(16),
    caching=section(
        CachingConfig,
        num_snapshot_nodes=unsigned(64),
        num_chunk_refs=unsigned(64),
        num_transaction_changes=unsigned(64),
        num_bytes_attributes=unsigned(64),
        num_bytes_chunks=unsigned(64),
    ),
    storage=STORAGE,
    virtual_chunk_containers=st.dictionaries(TEXT, CONTAINERS, max_size=2),
    manifest=MANIFEST,
    repo_update_retries=section(RepoUpdateRetryConfig, default=RETRIES),
    num_updates_per_repo_info_file=unsigned(16),
    max_concurrent_decodes=unsigned(16),
    previous_file=TEXT,
    packing=section(
        PackingConfig, target_size_bytes=unsigned(64), max_chunk_size_bytes=unsigned(64)
    ),
)
