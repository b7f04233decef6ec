"""Configs and metadata values, compared with the official library.

What it writes is read here, what is written here is read by it, and both mean the same.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import zstandard
from flatbuffers.table import Table
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import icefloe as floe
from icefloe.errors import InvalidInputError
from icefloe.format.config import (
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)
from icefloe.format.flexbuffers import decode as decode_flexbuffer
from icefloe.format.metadata import (
    decode_msgpack,
    encode_flexbuffer,
    encode_msgpack,
)
from tests.unit.config_strategies import CONFIGS
from tests.unit.test_config import INTEGER_OPTIONS
from tests.unit.test_values import OFFICIAL, VALUES

icechunk: Any = pytest.importorskip(
    "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
)

HEADER_SIZE = 39
REPO_CONFIG_SLOT = 9
SNAPSHOT_METADATA_SLOT = 5


# --- getting at the bytes --------------------------------------------------------------------


def root_table(file: Path) -> Table:
    frame = file.read_bytes()[HEADER_SIZE:]
    data = zstandard.ZstdDecompressor().decompressobj().decompress(frame)
    return Table(bytearray(data), struct.unpack_from("<I", data)[0])


def byte_vector(table: Table, slot: int) -> bytes | None:
    offset = table.Offset(4 + 2 * slot)
    if not offset:
        return None
    start = table.Vector(offset)
    return bytes(table.Bytes[start : start + table.VectorLen(offset)])


def metadata_bytes(snapshot: Path) -> dict[str, bytes]:
    table = root_table(snapshot)
    offset = table.Offset(4 + 2 * SNAPSHOT_METADATA_SLOT)
    start = table.Vector(offset)
    found = {}
    for index in range(table.VectorLen(offset)):
        item = Table(table.Bytes, table.Indirect(start + 4 * index))
        value = byte_vector(item, 1)
        assert value is not None
        found[item.String(item.Offset(4) + item.Pos).decode()] = value
    return found


def replace_repo_config(repo: Path, config: bytes) -> None:
    """Put `config` where the repo object has a config of the same number of bytes or more.

    FlexBuffers are read from their end, so a shorter one is moved to the end of its vector.
    """
    raw = repo.read_bytes()
    data = bytearray(zstandard.ZstdDecompressor().decompressobj().decompress(raw[HEADER_SIZE:]))
    table = Table(data, struct.unpack_from("<I", data)[0])
    offset = table.Offset(4 + 2 * REPO_CONFIG_SLOT)
    start, length = table.Vector(offset), table.VectorLen(offset)
    assert len(config) <= length
    data[start : start + length] = bytes(length - len(config)) + config
    repo.write_bytes(raw[:HEADER_SIZE] + zstandard.compress(bytes(data)))


def saved_config(root: Path, spec_version: int) -> floe.RepositoryConfig | None:
    if spec_version == 1:
        file = root / "config.yaml"
        return decode_config_yaml(file.read_bytes()) if file.exists() else None
    data = byte_vector(root_table(root / "repo"), REPO_CONFIG_SLOT)
    return None if data is None else decode_config_flexbuffer(data)


# --- the same config in both libraries -------------------------------------------------------


def configs(library: Any, retry_config: Any) -> dict[str, Any]:
    """The same configs, made by the same program with either library."""
    split, axis = library.ManifestSplitCondition, library.ManifestSplitDimCondition
    preload, s3 = library.ManifestPreloadCondition, library.S3Options
    stores = library.ObjectStoreConfig
    containers = [
        library.VirtualChunkContainer("s3://a/", library.s3_store(region="eu"), "n"),
        library.VirtualChunkContainer(
            "s3://b/", stores.S3Compatible(s3(checksum_algorithm=library.ChecksumAlgorithm.Sha256))
        ),
        library.VirtualChunkContainer("tigris://c/", stores.Tigris(s3(anonymous=True))),
        library.VirtualChunkContainer("gs://g/", library.gcs_store({"k": "v", "a": "b"})),
        library.VirtualChunkContainer("az://g/", stores.Azure({"account": "q"})),
        library.VirtualChunkContainer(
            "http://h/", library.http_store({"timeout": "5s"}, {"x": "y"})
        ),
        library.VirtualChunkContainer("file:///x/", library.local_filesystem_store("/x")),
    ]
    return {
        "scalars": library.RepositoryConfig(1, 2, None, 300, num_updates_per_repo_info_file=65535),
        "zeros": library.RepositoryConfig(inline_chunk_threshold_bytes=0, max_concurrent_decodes=0),
        "sections": library.RepositoryConfig(
            compression=library.CompressionConfig(library.CompressionAlgorithm.Zstd, 22),
            caching=library.CachingConfig(1, 2**16, 2**32, 2**64 - 1, 0),
            repo_update_retries=retry_config(library.StorageRetriesSettings(1, 2, 3)),
            storage=library.StorageSettings(
                concurrency=library.StorageConcurrencySettings(1, 2),
                unsafe_use_conditional_create=True,
                storage_class="STANDARD_IA",
                chunks_storage_class="GLACIER",
                minimum_size_for_multipart_upload=2**33,
                timeouts=library.StorageTimeoutSettings(1, 2, 3, 4),
            ),
        ),
        "containers": library.RepositoryConfig(
            virtual_chunk_containers={each.url_prefix: each for each in containers}
        ),
        "no containers": library.RepositoryConfig(virtual_chunk_containers={}),
        "manifest": library.RepositoryConfig(
            manifest=library.ManifestConfig(
                library.ManifestPreloadConfig(
                    1,
                    (preload.name_matches("a") | preload.path_matches("'b': \\ \""))
                    & preload.true()
                    | preload.num_refs(None, None)
                    | preload.num_refs(1, 5)
                    | preload.false(),
                    3,
                ),
                library.ManifestSplittingConfig.from_dict(
                    {
                        split.AnyArray(): {
                            axis.Any(): 1,
                            axis.Axis(3): 2,
                            axis.DimensionName("x"): 3,
                        },
                        split.name_matches("q") | split.path_matches("z") & split.AnyArray(): {
                            axis.Any(): 70_000
                        },
                    }
                ),
                library.ManifestVirtualChunkLocationCompressionConfig(
                    1,
                    dictionary_max_training_samples=2,
                    dictionary_max_size_bytes=3,
                    compression_level=-4,
                ),
                6,
            )
        ),
        "empty sections": library.RepositoryConfig(
            compression=library.CompressionConfig(),
            caching=library.CachingConfig(),
            manifest=library.ManifestConfig(splitting=library.ManifestSplittingConfig(())),
        ),
    }


OURS = configs(floe, floe.RepoUpdateRetryConfig)


def theirs() -> dict[str, Any]:
    return configs(icechunk, icechunk._icechunk_python.RepoUpdateRetryConfig)


# A local directory has settings of its own, which the official library saves along.
LOCAL_DEFAULTS = floe.RepositoryConfig(
    storage=floe.StorageSettings(
        concurrency=floe.StorageConcurrencySettings(5, 4096),
        retries=floe.StorageRetriesSettings(1, 0, 0),
        unsafe_use_conditional_update=False,
        unsafe_use_metadata=False,
    )
)


def create(root: Path, spec_version: int, config: Any = None) -> Any:
    storage = icechunk.local_filesystem_storage(str(root))
    return icechunk.Repository.create(storage, config=config, spec_version=spec_version)


def save(root: Path, spec_version: int, config: floe.RepositoryConfig) -> Any:
    """A repository of the official library with our bytes for a config; returns its storage."""
    filler = icechunk.RepositoryConfig(storage=icechunk.StorageSettings(storage_class="x" * 20_000))
    create(root, spec_version, filler)
    if spec_version == 1:
        (root / "config.yaml").write_bytes(encode_config_yaml(config))
    else:
        replace_repo_config(root / "repo", encode_config_flexbuffer(config))
    return icechunk.local_filesystem_storage(str(root))


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("name", OURS)
def test_a_config_the_official_library_saves_is_read_as_it_was_meant(
    tmp_path: Path, name: str, spec_version: int
) -> None:
    create(tmp_path, spec_version, theirs()[name])
    assert saved_config(tmp_path, spec_version) == LOCAL_DEFAULTS.merge(OURS[name])


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("name", OURS)
def test_a_config_saved_here_is_read_by_the_official_library_as_it_was_meant(
    tmp_path: Path, name: str, spec_version: int
) -> None:
    storage = save(tmp_path, spec_version, OURS[name])
    assert icechunk.Repository.fetch_config(storage) == theirs()[name]


@pytest.mark.parametrize("name", [name for name in OURS if name != "containers"])
def test_a_saved_config_has_the_bytes_of_the_official_library(tmp_path: Path, name: str) -> None:
    # Containers are left out: the official library saves them in random order.
    config = LOCAL_DEFAULTS.merge(OURS[name])
    create(tmp_path / "1", 1, theirs()[name])
    create(tmp_path / "2", 2, theirs()[name])
    repo = root_table(tmp_path / "2" / "repo")
    assert encode_config_flexbuffer(config) == byte_vector(repo, REPO_CONFIG_SLOT)
    assert encode_config_yaml(config) == (tmp_path / "1" / "config.yaml").read_bytes()


def without_limits(config: floe.RepositoryConfig) -> floe.RepositoryConfig:
    """The config without options that would stop the official library when it is opened."""
    config.max_concurrent_requests = config.max_concurrent_decodes = None
    config.caching = config.num_updates_per_repo_info_file = None
    if config.storage is not None:  # a local directory can do neither
        config.storage.unsafe_use_metadata = config.storage.unsafe_use_conditional_update = None
    return config


@pytest.mark.parametrize("spec_version", [1, 2])
@given(config=CONFIGS.map(without_limits))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_config_survives_being_saved_again_by_the_official_library(
    tmp_path_factory: pytest.TempPathFactory, spec_version: int, config: floe.RepositoryConfig
) -> None:
    root = tmp_path_factory.mktemp("repo")
    storage = save(root, spec_version, config)
    icechunk.Repository.open(storage).save_config()
    config.packing = None  # an option of ours, which official skips when it reads
    assert saved_config(root, spec_version) == LOCAL_DEFAULTS.merge(config)


@pytest.mark.parametrize("first", OURS)
@pytest.mark.parametrize("second", OURS)
def test_merging_means_the_same_in_both_libraries(tmp_path: Path, first: str, second: str) -> None:
    merged = OURS[first].merge(OURS[second])
    create(tmp_path / "merged", 1, theirs()[first].merge(theirs()[second]))
    assert saved_config(tmp_path / "merged", 1) == LOCAL_DEFAULTS.merge(merged)
    # ... and so does passing the second when opening a repository that has saved the first
    create(tmp_path / "opened", 1, theirs()[first])
    storage = icechunk.local_filesystem_storage(str(tmp_path / "opened"))
    config = theirs()[second]
    config.max_concurrent_decodes = None
    merged.max_concurrent_decodes = OURS[first].max_concurrent_decodes
    if merged.max_concurrent_decodes != 0:  # it would wait forever
        icechunk.Repository.open(storage, config=config).save_config()
        assert saved_config(tmp_path / "opened", 1) == LOCAL_DEFAULTS.merge(merged)


def accepts(make: Any) -> bool:
    try:
        make()
    except (OverflowError, ValueError):
        return False
    return True


@pytest.mark.parametrize(("section", "name", "lowest", "highest"), INTEGER_OPTIONS)
def test_integer_options_have_the_range_of_the_official_library(
    section: Any, name: str, lowest: int, highest: int
) -> None:
    official = getattr(icechunk, section.__name__)
    for value in (lowest - 1, lowest, highest, highest + 1):
        expected = lowest <= value <= highest
        assert accepts(lambda value=value: official(**{name: value})) is expected
        assert accepts(lambda value=value: section(**{name: value})) is expected


PREFIXES = [
    "s3://b/",
    "s3://b/p/",
    "s3://b",
    "s3://",
    "s3:///",
    "S3://B/",
    "tigris://b/",
    "gs://b/",
    "gcs://b/",
    "az://c/",
    "azure://c/",
    "abfs://c/",
    "abfss://c/",
    "http://h/",
    "https://h:1/p/",
    "https:///",
    "file:///a/",
    "file:///",
    "file://",
    "file:///a",
    "memory://a/",
    "ftp://a/",
    "foo",
    "s3/",
    "s3:/b/",
    "/a/",
    "vcc://x/",
    "s3://b/é/",
]
# A reader authorises a prefix by its text, so it has to be one that says where it leads.
REFUSED = ["file:///a/../b/", "file://host/a/", "http://u:p@h/", "s3://b/?q/", "s3://b/../"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_containers_are_accepted_where_the_official_library_does(prefix: str) -> None:
    def accepting(library: Any) -> list[bool]:
        kinds, options = library.ObjectStoreConfig, library.S3Options()
        stores = [kinds.S3(options), kinds.S3Compatible(options), kinds.Tigris(options)]
        stores += [kinds.Gcs({}), kinds.Azure({"account": "a"}), kinds.Http({}, {})]
        stores += [kinds.LocalFileSystem("/a"), kinds.InMemory()]
        config = library.RepositoryConfig()
        return [
            accepts(
                lambda store=store: config.set_virtual_chunk_container(
                    library.VirtualChunkContainer(prefix, store)
                )
            )
            for store in stores
        ]

    assert accepting(floe) == accepting(icechunk)


@pytest.mark.parametrize("prefix", REFUSED)
def test_containers_that_only_the_official_library_accepts(prefix: str) -> None:
    store = {"f": "LocalFileSystem", "h": "Http", "s": "S3"}[prefix[0]]
    for library, expected in ((icechunk, True), (floe, False)):
        kinds = library.ObjectStoreConfig
        made = {"f": ("/",), "h": ({}, {}), "s": (library.S3Options(),)}[prefix[0]]
        container = library.VirtualChunkContainer
        config = library.RepositoryConfig()
        assert expected is accepts(
            lambda kinds=kinds, made=made, container=container, config=config: (
                config.set_virtual_chunk_container(container(prefix, getattr(kinds, store)(*made)))
            )
        )


# --- metadata values -------------------------------------------------------------------------


def commit(repo: Any, metadata: dict[str, Any]) -> str:
    return str(repo.writable_session("main").commit("m", metadata=metadata, allow_empty=True))


@pytest.mark.parametrize(
    ("spec_version", "encode", "decode"),
    [(1, encode_msgpack, decode_msgpack), (2, encode_flexbuffer, decode_flexbuffer)],
)
@given(values=st.lists(VALUES, max_size=5))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(values=[value for value, _, _ in OFFICIAL])
def test_metadata_values_have_the_bytes_of_the_official_library(
    tmp_path_factory: pytest.TempPathFactory,
    spec_version: int,
    encode: Any,
    decode: Any,
    values: list[Any],
) -> None:
    root = tmp_path_factory.mktemp("repo")
    metadata = {f"key{index}": value for index, value in enumerate(values)}
    snapshot = commit(create(root, spec_version), metadata)
    found = metadata_bytes(root / "snapshots" / snapshot)
    assert found == {key: encode(value) for key, value in metadata.items()}
    assert {key: decode(data) for key, data in found.items()} == metadata


@pytest.mark.parametrize("value", [float("nan"), 2**64, -(2**63) - 1, b"bytes"])
def test_values_the_official_library_would_change_are_refused_here(
    tmp_path: Path, value: Any
) -> None:
    repo = create(tmp_path, 2)
    snapshot = commit(repo, {"key": value})
    assert repo.lookup_snapshot(snapshot).metadata["key"] is not value
    assert type(repo.lookup_snapshot(snapshot).metadata["key"]) is not type(value)
    with pytest.raises(InvalidInputError):
        encode_flexbuffer(value)
