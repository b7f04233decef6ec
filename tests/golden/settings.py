"""The scenario about stored configuration: every setting has a value other than its default.

The same configuration is written by both spec versions, once as YAML and once inside the
repo object, so the two encodings can be compared.
"""

from pathlib import Path
from typing import Any

from tests.golden.official import container, create_repository, icechunk, open_repository
from tests.golden.recorder import Recorder


def write_settings(root: Path, spec: int, record: Recorder) -> None:
    """Save a small configuration at creation, then twice a larger one over it."""
    small = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0)
    create_repository(root, spec=spec, config=small)
    simple = icechunk.ManifestPreloadConfig(preload_if=icechunk.ManifestPreloadCondition.true())
    config = icechunk.RepositoryConfig(manifest=icechunk.ManifestConfig(preload=simple))
    open_repository(root, config=config).save_config()
    open_repository(root, config=_everything()).save_config()
    repo = open_repository(root)
    record.labels["main"] = repo.lookup_branch("main")


def _everything() -> Any:
    retries = icechunk.StorageRetriesSettings(
        max_tries=7, initial_backoff_ms=11, max_backoff_ms=70000
    )
    config = icechunk.RepositoryConfig(
        inline_chunk_threshold_bytes=300,
        get_partial_values_concurrency=9,
        compression=icechunk.CompressionConfig(
            algorithm=icechunk.CompressionAlgorithm.Zstd, level=5
        ),
        max_concurrent_requests=100,
        max_concurrent_decodes=3,
        caching=icechunk.CachingConfig(
            num_snapshot_nodes=1,
            num_chunk_refs=300,
            num_transaction_changes=70_000,
            num_bytes_attributes=5_000_000_000,
            num_bytes_chunks=0,
        ),
        storage=icechunk.StorageSettings(
            concurrency=icechunk.StorageConcurrencySettings(
                max_concurrent_requests_for_object=4, ideal_concurrent_request_size=1_000_000
            ),
            retries=retries,
            unsafe_use_conditional_create=False,
            # A local folder cannot do conditional updates.
            unsafe_use_conditional_update=False,
            unsafe_use_metadata=False,
            storage_class="STANDARD_IA",
            metadata_storage_class="STANDARD",
            chunks_storage_class="GLACIER_IR",
            minimum_size_for_multipart_upload=6_000_000_000,
            timeouts=icechunk.StorageTimeoutSettings(
                connect_timeout_ms=1,
                read_timeout_ms=300,
                operation_timeout_ms=70_000,
                operation_attempt_timeout_ms=60_000,
            ),
        ),
        manifest=icechunk.ManifestConfig(
            preload=_preload(),
            splitting=_splitting(),
            virtual_chunk_location_compression=(
                icechunk.ManifestVirtualChunkLocationCompressionConfig(
                    min_num_chunks=500,
                    dictionary_max_training_samples=50,
                    dictionary_max_size_bytes=4096,
                    compression_level=-2,
                )
            ),
            max_concurrent_manifest_fetches_during_commit=2,
        ),
        repo_update_retries=icechunk._icechunk_python.RepoUpdateRetryConfig(default=retries),
        num_updates_per_repo_info_file=500,
    )
    for url_prefix, store, name in _containers():
        config.set_virtual_chunk_container(container(url_prefix, store, name=name))
    return config


def _containers() -> list[tuple[str, Any, str | None]]:
    stores = icechunk.ObjectStoreConfig
    options = icechunk.S3Options(
        region="eu-west-1",
        endpoint_url="https://storage.example.org:9000",
        allow_http=True,
        anonymous=True,
        force_path_style=True,
        network_stream_timeout_seconds=17,
        requester_pays=True,
        checksum_algorithm=icechunk.ChecksumAlgorithm.Crc64Nvme,
    )
    plain = icechunk.S3Options()
    return [
        ("s3://bucket-one/", stores.S3(plain), None),
        ("s3://bucket-two/with/prefix/", stores.S3Compatible(options), "two"),
        ("tigris://bucket-three/", stores.Tigris(options), "größe"),
        ("gs://bucket-four/", stores.Gcs({"google_skip_signature": "true"}), None),
        ("az://container-five/", stores.Azure({"account": "example"}), None),
        ("https://data.example.org/", stores.Http({"timeout": "5s"}, {"x-key": "v"}), "http"),
        ("file:///example/data/", stores.LocalFileSystem("/example/data"), "local"),
    ]


def _splitting() -> Any:
    array = icechunk.ManifestSplitCondition
    dimension = icechunk.ManifestSplitDimCondition
    rules = (
        (
            array.or_conditions([array.path_matches("^/größe"), array.name_matches("x$")]),
            ((dimension.Axis(0), 10), (dimension.DimensionName("lon.*"), 300)),
        ),
        (
            array.and_conditions([array.AnyArray(), array.name_matches("y")]),
            ((dimension.Any(), 70_000),),
        ),
        (array.AnyArray(), ((dimension.Any(), 4_000_000_000),)),
    )
    return icechunk.ManifestSplittingConfig(rules)


def _preload() -> Any:
    condition = icechunk.ManifestPreloadCondition
    return icechunk.ManifestPreloadConfig(
        max_total_refs=123_456,
        max_arrays_to_scan=12,
        preload_if=condition.or_conditions(
            [
                condition.and_conditions(
                    [condition.name_matches("^lat$"), condition.num_refs(1, 1000)]
                ),
                condition.and_conditions(
                    [condition.path_matches("größe"), condition.num_refs(None, 70_000)]
                ),
                condition.num_refs(5, None),
                condition.true(),
                condition.false(),
            ]
        ),
    )
