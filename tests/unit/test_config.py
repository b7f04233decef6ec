"""Config sections: checks, merging, containers, conditions, and the defaults in force."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from icefloe import config as icechunk  # what a program written for Icechunk would import
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
    usable_containers,
)
from icefloe.config.repository import set_program_defaults
from icefloe.config.stores import (
    ChecksumAlgorithm,
    S3Options,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.errors import ErrorKind, InvalidInputError
from tests.unit.config_strategies import CONFIGS

S3 = s3_store()


def container(prefix: str, name: str | None = None, store: Any = S3) -> VirtualChunkContainer:
    return VirtualChunkContainer(prefix, store, name)


# --- options ---------------------------------------------------------------------------------

INTEGER_OPTIONS = [
    (RepositoryConfig, "inline_chunk_threshold_bytes", 0, 2**16 - 1),
    (RepositoryConfig, "get_partial_values_concurrency", 0, 2**16 - 1),
    (RepositoryConfig, "max_concurrent_requests", 0, 2**16 - 1),
    (RepositoryConfig, "num_updates_per_repo_info_file", 0, 2**16 - 1),
    (RepositoryConfig, "max_concurrent_decodes", 0, 2**16 - 1),
    (CachingConfig, "num_snapshot_nodes", 0, 2**64 - 1),
    (CachingConfig, "num_bytes_chunks", 0, 2**64 - 1),
    (CompressionConfig, "level", 0, 2**8 - 1),
    (ManifestPreloadConfig, "max_total_refs", 0, 2**32 - 1),
    (ManifestPreloadConfig, "max_arrays_to_scan", 0, 2**32 - 1),
    (ManifestConfig, "max_concurrent_manifest_fetches_during_commit", 0, 2**16 - 1),
    (ManifestVirtualChunkLocationCompressionConfig, "min_num_chunks", 0, 2**16 - 1),
    (ManifestVirtualChunkLocationCompressionConfig, "dictionary_max_size_bytes", 0, 2**32 - 1),
    (ManifestVirtualChunkLocationCompressionConfig, "compression_level", -(2**31), 2**31 - 1),
    (StorageRetriesSettings, "max_tries", 1, 2**16 - 1),
    (StorageRetriesSettings, "max_backoff_ms", 0, 2**32 - 1),
    (StorageTimeoutSettings, "connect_timeout_ms", 0, 2**32 - 1),
    (StorageConcurrencySettings, "max_concurrent_requests_for_object", 1, 2**16 - 1),
    (StorageConcurrencySettings, "ideal_concurrent_request_size", 1, 2**64 - 1),
    (StorageSettings, "minimum_size_for_multipart_upload", 0, 2**64 - 1),
    (S3Options, "network_stream_timeout_seconds", 0, 2**32 - 1),
]
OWN_INTEGER_OPTIONS = [
    (PackingConfig, "target_size_bytes", 0, 2**64 - 1),
    (PackingConfig, "max_chunk_size_bytes", 0, 2**64 - 1),
]
"""Options that Icechunk does not have."""


@pytest.mark.parametrize(
    ("section", "name", "lowest", "highest"), [*INTEGER_OPTIONS, *OWN_INTEGER_OPTIONS]
)
def test_an_integer_option_takes_its_range_and_nothing_beyond(
    section: Any, name: str, lowest: int, highest: int
) -> None:
    for value in (lowest, highest):
        assert getattr(section(**{name: value}), name) == value
    made = section(**{name: highest})
    for value in (lowest - 1, highest + 1):
        with pytest.raises(OverflowError, match=f"{name} is {value}, expected {lowest}"):
            section(**{name: value})
        with pytest.raises(ValueError, match=name):
            setattr(made, name, value)
    for wrong in (1.0, "1", [1]):
        with pytest.raises(TypeError, match=f"{name} must be an integer"):
            setattr(made, name, wrong)
    assert getattr(made, name) == highest
    setattr(made, name, None)
    assert made == section()


def test_any_kind_of_integer_is_stored_as_a_plain_one() -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=np.int64(3))  # type: ignore[arg-type]
    assert type(config.inline_chunk_threshold_bytes) is int


@pytest.mark.parametrize(
    ("section", "name", "wrong"),
    [
        (RepositoryConfig, "compression", 3),
        (RepositoryConfig, "storage", CachingConfig()),
        (RepositoryConfig, "virtual_chunk_containers", ["s3://a/"]),
        (RepositoryConfig, "virtual_chunk_containers", {"s3://a/": "s3"}),
        (StorageSettings, "unsafe_use_metadata", 1),
        (StorageSettings, "storage_class", 1),
        (S3Options, "allow_http", None),
        (S3Options, "region", b"eu"),
        (ManifestPreloadConfig, "preload_if", ManifestSplitCondition.any_array()),
    ],
)
def test_an_option_of_the_wrong_type_is_a_type_error(section: Any, name: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=name):
        section(**{name: wrong})


def test_a_misspelled_option_is_an_error_that_lists_the_options() -> None:
    with pytest.raises(AttributeError, match="no option 'levle'; options are algorithm, level"):
        CompressionConfig().levle = 3


def test_the_constructor_takes_the_options_in_the_order_of_icechunk() -> None:
    caching, storage, manifest = CachingConfig(), StorageSettings(), ManifestConfig()
    retries = RepoUpdateRetryConfig()
    config = RepositoryConfig(
        1, 2, CompressionConfig(), 3, caching, storage, {}, manifest, retries, 4, 5
    )
    assert config.caching is caching
    assert (config.num_updates_per_repo_info_file, config.max_concurrent_decodes) == (4, 5)
    with pytest.raises(TypeError):
        ManifestVirtualChunkLocationCompressionConfig(1, 2)  # type: ignore[call-arg]


def test_a_section_is_changed_in_place_through_its_parent() -> None:
    config = RepositoryConfig(caching=CachingConfig())
    assert config.caching is not None
    config.caching.num_chunk_refs = 5
    assert config == RepositoryConfig(caching=CachingConfig(num_chunk_refs=5))
    assert config != RepositoryConfig.default()


@given(CONFIGS)
def test_configs_survive_pickle_and_deep_copies(config: RepositoryConfig) -> None:
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config


# --- merging ---------------------------------------------------------------------------------


def test_merging_goes_option_by_option_also_inside_sections() -> None:
    ours = RepositoryConfig(
        inline_chunk_threshold_bytes=1,
        compression=CompressionConfig(level=5),
        storage=StorageSettings(
            storage_class="a",
            retries=StorageRetriesSettings(max_tries=3),
            timeouts=StorageTimeoutSettings(1),
        ),
        repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(1, 2, 3)),
        manifest=ManifestConfig(
            virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(1)
        ),
    )
    theirs = RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        max_concurrent_decodes=3,
        compression=CompressionConfig(CompressionAlgorithm.Zstd),
        storage=StorageSettings(retries=StorageRetriesSettings(max_backoff_ms=9)),
        repo_update_retries=RepoUpdateRetryConfig(),
        manifest=ManifestConfig(
            virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(
                compression_level=9
            )
        ),
    )
    assert ours.merge(theirs) == RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        max_concurrent_decodes=3,
        compression=CompressionConfig(CompressionAlgorithm.Zstd, 5),
        storage=StorageSettings(
            storage_class="a",
            retries=StorageRetriesSettings(max_tries=3, max_backoff_ms=9),
            timeouts=StorageTimeoutSettings(1),
        ),
        repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(1, 2, 3)),
        manifest=ManifestConfig(
            virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(
                1, compression_level=9
            )
        ),
    )


def test_merging_takes_preload_and_splitting_whole() -> None:
    rules = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.any_array(): {ManifestSplitDimCondition.Any(): 1}}
    )
    ours = RepositoryConfig(
        manifest=ManifestConfig(preload=ManifestPreloadConfig(max_total_refs=5), splitting=rules)
    )
    theirs = RepositoryConfig(
        manifest=ManifestConfig(
            preload=ManifestPreloadConfig(max_arrays_to_scan=1),
            splitting=ManifestSplittingConfig(),
        )
    )
    assert ours.merge(theirs).manifest == theirs.manifest
    assert ours.merge(RepositoryConfig(manifest=ManifestConfig())).manifest == ours.manifest


def test_merging_takes_the_map_of_containers_whole() -> None:
    ours = RepositoryConfig(virtual_chunk_containers={"s3://a/": container("s3://a/")})
    theirs = RepositoryConfig(virtual_chunk_containers={"s3://b/": container("s3://b/")})
    assert list(ours.merge(theirs).virtual_chunk_containers or ()) == ["s3://b/"]
    assert list(ours.merge(RepositoryConfig()).virtual_chunk_containers or ()) == ["s3://a/"]
    assert ours.merge(RepositoryConfig(virtual_chunk_containers={})).virtual_chunk_containers == {}


def test_the_merged_config_shares_nothing_with_its_parents() -> None:
    ours = RepositoryConfig(caching=CachingConfig(num_chunk_refs=5))
    theirs = RepositoryConfig(storage=StorageSettings(storage_class="a"))
    merged = ours.merge(theirs)
    assert merged.caching is not None
    assert merged.storage is not None
    merged.caching.num_chunk_refs = 6
    merged.storage.storage_class = "b"
    assert ours == RepositoryConfig(caching=CachingConfig(num_chunk_refs=5))
    assert theirs == RepositoryConfig(storage=StorageSettings(storage_class="a"))


@given(CONFIGS, CONFIGS, CONFIGS)
def test_merging_three_configs_does_not_depend_on_where_one_starts(
    first: RepositoryConfig, second: RepositoryConfig, third: RepositoryConfig
) -> None:
    assert first.merge(second).merge(third) == first.merge(second.merge(third))
    assert first.merge(RepositoryConfig()) == first == RepositoryConfig().merge(first)


# --- containers ------------------------------------------------------------------------------

LOCAL, WEB, GOOGLE = local_filesystem_store("/x"), http_store(), gcs_store()
AZURE, MEMORY = azure_store(account="x"), ObjectStoreConfig.InMemory()
TIGRIS, COMPATIBLE = ObjectStoreConfig.Tigris(S3Options()), s3_store(s3_compatible=True)


@pytest.mark.parametrize(
    ("prefix", "stores"),
    [
        ("s3://bucket/", [S3, COMPATIBLE, TIGRIS]),
        ("S3://bucket/some/prefix/", [S3, COMPATIBLE, TIGRIS]),
        ("tigris://bucket/", [TIGRIS]),
        ("gs://bucket/", [GOOGLE]),
        ("gcs://bucket/", [GOOGLE]),
        ("az://container/", [AZURE]),
        ("azure://container/", [AZURE]),
        ("abfs://container/", [AZURE]),
        ("http://server:80/", [WEB]),
        ("https://server/path/", [WEB]),
        ("file:///data/", [LOCAL]),
        # nothing fits these
        ("file:///data/../other/", []),
        ("file:///data/%2e%2e/", []),
        ("s3://bucket//key/", []),
        ("s3://bucket/?query/", []),
        ("https://user:password@server/", []),
        ("https://server:99999/", []),
        ("https://server\\other/", []),
        ("file://server/data/", []),
        ("s3://bucket", []),
        ("s3://", []),
        ("s3:///key/", []),
        ("s3:/bucket/", []),
        ("s3://two words/", []),
        ("gs:///", []),
        ("https:///", []),
        ("file:///", []),
        ("file://", []),
        ("memory://a/", []),
        ("abfss://container/", []),
        ("vcc://name/", []),
        ("s3/", []),
        ("/data/", []),
        ("", []),
    ],
)
def test_a_container_needs_a_prefix_that_its_store_can_serve(
    prefix: str, stores: list[ObjectStoreConfig]
) -> None:
    for store in (S3, COMPATIBLE, TIGRIS, GOOGLE, AZURE, WEB, LOCAL, MEMORY):
        config = RepositoryConfig()
        if store in stores:
            config.set_virtual_chunk_container(container(prefix, store=store))
            assert list(config.virtual_chunk_containers or ()) == [prefix]
        else:
            with pytest.raises(ValueError, match="virtual chunk container") as caught:
                config.set_virtual_chunk_container(container(prefix, store=store))
            assert isinstance(caught.value, InvalidInputError)
            assert caught.value.kind == ErrorKind.BAD_PREFIX
            assert config == RepositoryConfig()


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_container_name_is_part_of_urls_so_it_has_no_slash(name: str) -> None:
    with pytest.raises(InvalidInputError, match="non-empty name without '/'"):
        container("s3://a/", name).validate()


def test_a_named_container_replaces_the_one_of_the_same_name() -> None:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(container("s3://a/", "n"))
    config.set_virtual_chunk_container(container("s3://b/", "n"))
    assert config.virtual_chunk_containers == {"s3://b/": container("s3://b/", "n")}
    config.set_virtual_chunk_container(container("s3://b/"))
    config.set_virtual_chunk_container(container("s3://c/"))
    assert list(config.virtual_chunk_containers) == ["s3://b/", "s3://c/"]
    config.clear_virtual_chunk_containers()
    assert config.virtual_chunk_containers == {}


def test_a_container_is_found_by_prefix_and_by_name_and_given_as_a_copy() -> None:
    config = RepositoryConfig()
    assert config.get_virtual_chunk_container("n") is None
    config.set_virtual_chunk_container(container("s3://a/", "n"))
    for key in ("n", "s3://a/"):
        found = config.get_virtual_chunk_container(key)
        assert found == container("s3://a/", "n")
        found.name = "other"
    assert config.get_virtual_chunk_container("other") is None


def test_a_container_changed_after_it_was_set_does_not_change_the_config() -> None:
    config, given_container = RepositoryConfig(), container("s3://a/", "n")
    config.set_virtual_chunk_container(given_container)
    given_container.url_prefix = "nonsense"
    config.validate()


def test_a_config_made_with_an_unusable_container_fails_when_validated() -> None:
    config = RepositoryConfig(virtual_chunk_containers={"foo": container("foo")})
    with pytest.raises(InvalidInputError, match="'foo': the prefix must end with '/'"):
        config.validate()


def test_of_persisted_containers_the_usable_ones_are_kept_and_the_others_explained() -> None:
    usable, problems = usable_containers(
        [container("s3://a"), container("s3", "s3"), container("gs://b/"), container("s3://c/")]
    )
    assert [each.url_prefix for each in usable] == ["s3://a/", "s3://c/"]
    assert [problem.split(":")[0] for problem in problems] == [
        "virtual chunk container 's3'",
        "virtual chunk container 'gs",
    ]


def test_stores_are_variants_of_one_class_and_compare_by_value() -> None:
    for store in (S3, COMPATIBLE, TIGRIS, GOOGLE, AZURE, WEB, LOCAL, MEMORY):
        assert isinstance(store, ObjectStoreConfig)
        assert pickle.loads(pickle.dumps(store)) == store == copy.deepcopy(store)
    assert isinstance(S3, ObjectStoreConfig.S3)
    assert ObjectStoreConfig.Gcs(None) == gcs_store() != gcs_store({"a": "b"})  # type: ignore[arg-type]
    assert azure_store(account="q", config={"a": "b"}).opts == {"account": "q", "a": "b"}
    options = s3_store(region="eu", checksum_algorithm=ChecksumAlgorithm.Sha1).options
    assert options.network_stream_timeout_seconds == 60
    assert options.checksum_algorithm == ChecksumAlgorithm.Sha1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ObjectStoreConfig.S3(None),  # type: ignore[arg-type]
        lambda: ObjectStoreConfig.Tigris({"region": "eu"}),  # type: ignore[arg-type]
        lambda: ObjectStoreConfig.LocalFileSystem(3),  # type: ignore[arg-type]
        lambda: ObjectStoreConfig.Gcs({"a": 1}),  # type: ignore[dict-item]
        lambda: ObjectStoreConfig.Http([]),  # type: ignore[arg-type]
    ],
)
def test_a_store_with_options_of_the_wrong_type_is_a_type_error(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


def test_request_headers_are_not_shown_with_the_store() -> None:
    assert "secret" not in repr(http_store(headers={"authorization": "secret"}))


# --- conditions ------------------------------------------------------------------------------

Split, Axis, Preload = ManifestSplitCondition, ManifestSplitDimCondition, ManifestPreloadCondition


def test_code_written_for_icechunk_makes_the_same_rules() -> None:
    splitting = icechunk.ManifestSplittingConfig.from_dict(
        {
            icechunk.ManifestSplitCondition.any_array(): {
                icechunk.ManifestSplitDimCondition.Any(): 10
            }
        }
    )
    rules = ((Split.AnyArray(), ((Axis.Any(), 10),)),)
    assert splitting.split_sizes == rules
    assert splitting == ManifestSplittingConfig(rules)
    assert splitting.to_dict() == {Split.any_array(): {Axis.Any(): 10}}
    assert ManifestSplittingConfig().to_dict() == {}


@pytest.mark.parametrize(
    ("size", "error"),
    [(0, ValueError), (-1, OverflowError), (2**32, OverflowError), ("1", TypeError)],
)
def test_a_split_size_must_be_a_positive_u32(size: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="split size"):
        ManifestSplittingConfig(((Split.any_array(), ((Axis.Any(), size),)),))


@pytest.mark.parametrize(
    "wrong", [3, "ab", [Split.any_array()], [("a", [])], [(Split.any_array(), [(0, 1)])]]
)
def test_split_sizes_of_another_shape_are_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError):
        ManifestSplittingConfig(wrong)


def test_split_conditions_search_the_path_or_the_name() -> None:
    assert Split.path_matches("model/").matches("/model/wind")
    assert not Split.name_matches("model").matches("/model/wind")
    assert Split.name_matches("^wi").matches("/model/wind")
    assert (Split.name_matches("x") | Split.any_array()).matches("/a")
    assert not (Split.name_matches("x") & Split.any_array()).matches("/a")
    assert not Split.or_conditions([]).matches("/a")
    assert Split.and_conditions([]).matches("/a")


def test_a_regular_expression_that_does_not_compile_matches_nothing() -> None:
    assert not Split.path_matches("(").matches("/(")
    assert not Preload.name_matches("*").matches("/*", 1)


def test_axes_are_chosen_by_position_or_dimension_name() -> None:
    assert Axis.Axis(1).matches(1, None)
    assert not Axis.Axis(1).matches(0, "1")
    assert Axis.DimensionName("lon").matches(0, "longitude")
    assert not Axis.DimensionName(".*").matches(0, None)
    assert Axis.Any().matches(7, None)
    with pytest.raises(OverflowError):
        Axis.Axis(-1)


def test_num_refs_includes_its_start_and_excludes_its_end() -> None:
    between = Preload.num_refs(2, 4)
    assert [n for n in range(6) if between.matches("/a", n)] == [2, 3]
    assert Preload.num_refs(None, None).matches("/a", 10**9)
    with pytest.raises(OverflowError):
        Preload.num_refs(0, 2**32)


def test_conditions_nest_as_they_are_written_and_work_as_dictionary_keys() -> None:
    a, b, c = map(Split.name_matches, "abc")
    assert a | b | c == Split.or_conditions([Split.or_conditions([a, b]), c])
    assert {a & b: 1}[Split.and_conditions((a, b))] == 1
    assert repr(a | b) == (
        "icefloe.ManifestSplitCondition.or_conditions([icefloe.ManifestSplitCondition.name_matches("
        '"a"), icefloe.ManifestSplitCondition.name_matches("b")])'
    )
    with pytest.raises(TypeError):
        a | Preload.true()  # type: ignore[operator]
    with pytest.raises(TypeError):
        Preload.or_conditions([a])  # type: ignore[list-item]


# --- defaults --------------------------------------------------------------------------------


def test_an_empty_config_resolves_to_the_documented_defaults() -> None:
    config = RepositoryConfig().resolved()
    assert config.inline_chunk_threshold_bytes == 512
    assert config.get_partial_values_concurrency == 10
    assert config.max_concurrent_requests == 256
    assert config.compression.level == 3
    assert config.caching.num_chunk_refs == 15_000_000
    assert config.storage.retries.max_backoff_ms == 180_000
    assert config.storage.concurrency.ideal_concurrent_request_size == 12_582_912
    assert config.storage.unsafe_use_conditional_update is True
    assert config.storage.minimum_size_for_multipart_upload == 104_857_600
    assert config.manifest.virtual_chunk_location_compression is None
    assert config.manifest.max_concurrent_manifest_fetches_during_commit is None
    assert config.repo_update_retries.default.max_tries == 100
    assert config.repo_update_retries.default.initial_backoff_ms == 50
    assert config.num_updates_per_repo_info_file == 1000
    assert config.virtual_chunk_containers == {}
    assert config.manifest.splitting.split_sizes == ()
    assert config.manifest.max_refs_per_manifest == 131_072


@pytest.mark.parametrize(
    "name", ["time", "time2", "t", "level", "olev", "height", "lat", "x", "ni"]
)
def test_small_coordinate_arrays_are_preloaded_by_default(name: str) -> None:
    condition = RepositoryConfig().resolved().manifest.preload.preload_if
    assert condition.matches(f"/group/{name}", 1000)
    assert not condition.matches(f"/group/{name}", 1001)
    assert not condition.matches(f"/{name}/temperature", 1)


def test_resolving_keeps_what_is_set_and_defaults_the_rest_of_a_section() -> None:
    config = RepositoryConfig(
        compression=CompressionConfig(level=0),
        repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(max_tries=3)),
        manifest=ManifestConfig(splitting=ManifestSplittingConfig(())),
    ).resolved()
    assert config.compression.level == 0
    retries = config.repo_update_retries.default
    assert (retries.max_tries, retries.initial_backoff_ms) == (3, 50)
    assert config.manifest.splitting.split_sizes == ()


def test_storage_classes_fall_back_to_the_common_one() -> None:
    storage = StorageSettings(storage_class="a", chunks_storage_class="c").resolved()
    assert (storage.metadata_storage_class, storage.chunks_storage_class) == ("a", "c")
    assert StorageSettings().resolved().metadata_storage_class is None


def test_a_limit_of_zero_would_stop_everything_so_it_means_one() -> None:
    config = RepositoryConfig(
        max_concurrent_requests=0,
        max_concurrent_decodes=0,
        manifest=ManifestConfig(max_concurrent_manifest_fetches_during_commit=0),
        inline_chunk_threshold_bytes=0,
    ).resolved()
    assert (config.max_concurrent_requests, config.max_concurrent_decodes) == (1, 1)
    assert config.manifest.max_concurrent_manifest_fetches_during_commit == 1
    assert config.inline_chunk_threshold_bytes == 0


@given(CONFIGS)
def test_every_config_resolves_and_the_result_survives_pickle(config: RepositoryConfig) -> None:
    resolved = config.resolved()
    assert pickle.loads(pickle.dumps(resolved)) == resolved


def test_a_program_has_defaults_of_its_own() -> None:
    given = RepositoryConfig(manifest=ManifestConfig(max_refs_per_manifest=10))
    own = RepositoryConfig(manifest=ManifestConfig(max_shared_refs_per_array=0))
    set_program_defaults(own)
    try:
        for config, refs in ((RepositoryConfig(), 2**17), (given, 10)):
            found = config.resolved().manifest
            assert (found.max_shared_refs_per_array, found.max_refs_per_manifest) == (0, refs)
        own_choice = RepositoryConfig(manifest=ManifestConfig(max_shared_refs_per_array=7))
        assert own_choice.resolved().manifest.max_shared_refs_per_array == 7
    finally:
        set_program_defaults(None)
    assert given.resolved().manifest.max_shared_refs_per_array == 64
    assert given.manifest == ManifestConfig(max_refs_per_manifest=10)
