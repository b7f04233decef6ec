"""The saved config: bytes of Icechunk releases, round trips, and files nobody should write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

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
    RepositoryConfig,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    VirtualChunkContainer,
    usable_containers,
)
from icefloe.config.stores import (
    Azure,
    Gcs,
    LocalFileSystem,
    S3Options,
    Tigris,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format import flexbuffers
from icefloe.format.config import (
    MAX_YAML_BYTES,
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)
from tests.unit.config_strategies import CONFIGS
from tests.unit.test_values import mutations

Split, Axis, Preload = ManifestSplitCondition, ManifestSplitDimCondition, ManifestPreloadCondition

CODECS = [
    (encode_config_yaml, decode_config_yaml),
    (encode_config_flexbuffer, decode_config_flexbuffer),
]

# A repository on a local directory, created by icechunk 2.3.0 with these options.
SAVED = RepositoryConfig(
    inline_chunk_threshold_bytes=5,
    compression=CompressionConfig(CompressionAlgorithm.Zstd, 4),
    storage=StorageSettings(
        concurrency=StorageConcurrencySettings(5, 4096),
        retries=StorageRetriesSettings(1, 0, 0),
        unsafe_use_conditional_update=False,
        unsafe_use_metadata=False,
    ),
    virtual_chunk_containers={
        "s3://a/": VirtualChunkContainer("s3://a/", s3_store(region="eu-west-1"), "archive")
    },
    manifest=ManifestConfig(
        preload=ManifestPreloadConfig(
            preload_if=(Preload.name_matches("a") | Preload.true()) & Preload.num_refs(1, None)
        ),
        splitting=ManifestSplittingConfig.from_dict(
            {
                Split.any_array(): {Axis.Axis(0): 2, Axis.DimensionName("x"): 70_000},
                Split.name_matches("q") & Split.path_matches("z"): {Axis.Any(): 1},
            }
        ),
    ),
)

SAVED_YAML = """\
inline_chunk_threshold_bytes: 5
get_partial_values_concurrency: null
compression:
  algorithm: zstd
  level: 4
max_concurrent_requests: null
max_concurrent_decodes: null
caching: null
storage:
  concurrency:
    max_concurrent_requests_for_object: 5
    ideal_concurrent_request_size: 4096
  retries:
    max_tries: 1
    initial_backoff_ms: 0
    max_backoff_ms: 0
  timeouts: null
  unsafe_use_conditional_update: false
  unsafe_use_conditional_create: null
  unsafe_use_metadata: false
  storage_class: null
  metadata_storage_class: null
  chunks_storage_class: null
  minimum_size_for_multipart_upload: null
virtual_chunk_containers:
  s3://a/:
    name: archive
    url_prefix: s3://a/
    store: !s3
      region: eu-west-1
      endpoint_url: null
      anonymous: false
      allow_http: false
      force_path_style: false
      network_stream_timeout_seconds: 60
      requester_pays: false
      checksum_algorithm: null
manifest:
  preload:
    max_total_refs: null
    preload_if: !and
    - !or
      - !name_matches
        regex: a
      - 'true'
    - !num_refs
      from: !Included 1
      to: Unbounded
    max_arrays_to_scan: null
  splitting:
    split_sizes:
    - - any_array
      - - condition: !Axis 0
          num_chunks: 2
        - condition: !DimensionName x
          num_chunks: 70000
    - - !and
        - !name_matches
          regex: q
        - !path_matches
          regex: z
      - - condition: Any
          num_chunks: 1
  virtual_chunk_location_compression: null
  max_concurrent_manifest_fetches_during_commit: null
previous_file: null
repo_update_retries: null
num_updates_per_repo_info_file: null
"""

SAVED_FLEXBUFFER = bytes.fromhex(
    """
    696e6c696e655f6368756e6b5f7468726573686f6c645f6279746573006765745f7061727469616c5f76616c7565
    735f636f6e63757272656e637900636f6d7072657373696f6e00616c676f726974686d00047a737464006c657665
    6c00021708020102110414086d61785f636f6e63757272656e745f7265717565737473006d61785f636f6e637572
    72656e745f6465636f6465730063616368696e670073746f7261676500636f6e63757272656e6379006d61785f63
    6f6e63757272656e745f72657175657374735f666f725f6f626a65637400696465616c5f636f6e63757272656e74
    5f726571756573745f73697a6500021f430003000100020000100500090972657472696573006d61785f74726965
    7300696e697469616c5f6261636b6f66665f6d73006d61785f6261636b6f66665f6d73000323112f030103000001
    08080874696d656f75747300756e736166655f7573655f636f6e646974696f6e616c5f75706461746500756e7361
    66655f7573655f636f6e646974696f6e616c5f63726561746500756e736166655f7573655f6d6574616461746100
    73746f726167655f636c617373006d657461646174615f73746f726167655f636c617373006368756e6b735f7374
    6f726167655f636c617373006d696e696d756d5f73697a655f666f725f6d756c7469706172745f75706c6f616400
    0a003900570154002a0000016800c3009e00be008400140002000a0000001a0100000000df000000000000000000
    0000012501012401010169697669727475616c5f6368756e6b5f636f6e7461696e6572730073333a2f2f612f006e
    616d650007617263686976650075726c5f707265666978000773333a2f2f612f0073746f72650073330072656769
    6f6e000965752d776573742d3100656e64706f696e745f75726c00616e6f6e796d6f757300616c6c6f775f687474
    7000666f7263655f706174685f7374796c65006e6574776f726b5f73747265616d5f74696d656f75745f7365636f
    6e6473007265717565737465725f7061797300636865636b73756d5f616c676f726974686d00085e69167857478d
    2a08010800000000003c9000686800006808146801a6010101152403d5b4c9030103d50ac314241401ea0101010b
    246d616e6966657374007072656c6f6164006d61785f746f74616c5f72656673007072656c6f61645f696600616e
    64006f72006e616d655f6d61746368657300726567657800016100010a0101010714011e01010107240474727565
    000209072414013301010109286e756d5f726566730066726f6d00496e636c7564656400010a0101010108746f00
    09556e626f756e6465640002241002010216112414013701010109240240042424018001010109286d61785f6172
    726179735f746f5f7363616e000314b5a703010300001e00002473706c697474696e670073706c69745f73697a65
    730009616e795f617272617900636f6e646974696f6e004178697300010601010100086e756d5f6368756e6b7300
    02220d0201021302240844696d656e73696f6e4e616d65000178000112010101071402442f000000050000000100
    0000020000001400000070110100240a02390c2426026f06142801710000010022010202010a1400010039010202
    010a24706174685f6d61746368657300017a0000010046010202010a14011b010101072402240424240001007001
    0202010c2803416e790002b6a10201020a0114080105240215042428026306282801e40101010928766972747561
    6c5f6368756e6b5f6c6f636174696f6e5f636f6d7072657373696f6e006d61785f636f6e63757272656e745f6d61
    6e69666573745f666574636865735f647572696e675f636f6d6d697400000400310012024c015a00080002000400
    00005e01680000000124240170726576696f75735f66696c65007265706f5f7570646174655f7265747269657300
    6e756d5f757064617465735f7065725f7265706f5f696e666f5f66696c6500000c001d057a059b05ba057f023e05
    580530005400480029059603180002000c000000700500000500760000000000000000000000d003ad0201240109
    2501010101012524242501
    """
)

# The same, as written by the releases before it. Version 0.2 added five containers of its own.
YAML_0_2_0 = """\
inline_chunk_threshold_bytes: 7
get_partial_values_concurrency: null
compression: null
caching: null
storage: null
virtual_chunk_containers:
  x:
    name: x
    url_prefix: s3://x/
    store: !s3
      region: us-east-1
      endpoint_url: null
      anonymous: false
      allow_http: false
  tigris:
    name: tigris
    url_prefix: tigris
    store: !tigris
      region: null
      endpoint_url: https://fly.storage.tigris.dev
      anonymous: false
      allow_http: false
  az:
    name: az
    url_prefix: az
    store: !azure {}
  gcs:
    name: gcs
    url_prefix: gcs
    store: !gcs {}
  file:
    name: file
    url_prefix: file
    store: !local_file_system ''
manifest:
  preload:
    max_total_refs: 3
    preload_if: !or
    - !name_matches
      regex: a
    - !num_refs
      from: !Included 1
      to: !Excluded 2
"""

YAML_1_0_0 = """\
inline_chunk_threshold_bytes: 7
get_partial_values_concurrency: null
compression: null
caching: null
storage: null
virtual_chunk_containers:
  s3://x/:
    url_prefix: s3://x/
    store: !s3
      region: us-east-1
      endpoint_url: null
      anonymous: false
      allow_http: false
      force_path_style: false
manifest:
  preload:
    max_total_refs: 3
    preload_if: !or
    - !name_matches
      regex: a
    - !num_refs
      from: !Included 1
      to: !Excluded 2
  splitting: null
"""


# --- the bytes -------------------------------------------------------------------------------


def test_a_config_has_the_bytes_that_icechunk_gives_it() -> None:
    assert encode_config_yaml(SAVED).decode() == SAVED_YAML
    assert encode_config_flexbuffer(SAVED) == SAVED_FLEXBUFFER


def test_configs_of_icechunk_2_are_read_from_both_encodings() -> None:
    assert decode_config_yaml(SAVED_YAML.encode()) == SAVED
    assert decode_config_flexbuffer(SAVED_FLEXBUFFER) == SAVED


def test_a_config_of_version_1_is_read() -> None:
    config = decode_config_yaml(YAML_1_0_0.encode())
    store = s3_store(region="us-east-1")
    store.options.network_stream_timeout_seconds = None
    assert config == RepositoryConfig(
        inline_chunk_threshold_bytes=7,
        virtual_chunk_containers={"s3://x/": VirtualChunkContainer("s3://x/", store)},
        manifest=ManifestConfig(
            preload=ManifestPreloadConfig(3, Preload.name_matches("a") | Preload.num_refs(1, 2))
        ),
    )


def test_the_containers_that_version_0_2_added_are_kept_but_not_usable() -> None:
    config = decode_config_yaml(YAML_0_2_0.encode())
    containers = config.virtual_chunk_containers
    assert containers is not None
    assert containers["az"] == VirtualChunkContainer("az", Azure({}), "az")
    assert containers["gcs"].store == Gcs({})
    assert containers["file"].store == LocalFileSystem("")
    assert containers["tigris"].store == Tigris(
        S3Options(endpoint_url="https://fly.storage.tigris.dev")
    )
    usable, problems = usable_containers(containers.values())
    assert [container.url_prefix for container in usable] == ["s3://x/"]
    assert len(problems) == 4
    assert decode_config_yaml(encode_config_yaml(config)) == config


@pytest.mark.parametrize(("encode", "decode"), CODECS)
@given(CONFIGS)
def test_every_config_comes_back_as_it_was(
    encode: Callable[[RepositoryConfig], bytes],
    decode: Callable[[bytes], RepositoryConfig],
    config: RepositoryConfig,
) -> None:
    assert decode(encode(config)) == config


@pytest.mark.parametrize("encode", [encode_config_yaml, encode_config_flexbuffer])
def test_the_order_of_containers_makes_no_difference(
    encode: Callable[[RepositoryConfig], bytes],
) -> None:
    a = VirtualChunkContainer("gs://a/", gcs_store({"k": "v", "a": "b"}))
    b = VirtualChunkContainer("http://b/", http_store({"timeout": "5s"}, {"x": "y"}))
    one = RepositoryConfig(virtual_chunk_containers={"gs://a/": a, "http://b/": b})
    other = RepositoryConfig(virtual_chunk_containers={"http://b/": b, "gs://a/": a})
    assert encode(one) == encode(other)


def test_a_very_long_prefix_is_a_key_that_yaml_can_read() -> None:
    prefix = "file:///" + "d" * 3000 + "/"
    container = VirtualChunkContainer(prefix, local_filesystem_store("/d"))
    config = RepositoryConfig(virtual_chunk_containers={prefix: container})
    assert decode_config_yaml(encode_config_yaml(config)) == config


# --- lenient reading -------------------------------------------------------------------------


def rule(text: str) -> str:
    return f"manifest: {{splitting: {{split_sizes: [[{text}]]}}}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", RepositoryConfig()),
        ("# nothing but a comment\n", RepositoryConfig()),
        ("{}", RepositoryConfig()),
        ("future: [1, {a: b}]\ncompression: {level: 4, colour: red}",
         RepositoryConfig(compression=CompressionConfig(level=4))),
        ("max_concurrent_requests: ~\ncaching:\n", RepositoryConfig()),
        ("max_concurrent_requests: 0x10", RepositoryConfig(max_concurrent_requests=16)),
        ("max_concurrent_requests: 0o10", RepositoryConfig(max_concurrent_requests=8)),
        ("max_concurrent_requests: +1", RepositoryConfig(max_concurrent_requests=1)),
        ("storage: {storage_class: yes, metadata_storage_class: 12, chunks_storage_class: true}",
         RepositoryConfig(storage=StorageSettings(
             storage_class="yes", metadata_storage_class="12", chunks_storage_class="true"))),
        ("storage: {unsafe_use_metadata: True}",
         RepositoryConfig(storage=StorageSettings(unsafe_use_metadata=True))),
        ("manifest: {preload: {preload_if: true}}",
         RepositoryConfig(manifest=ManifestConfig(
             preload=ManifestPreloadConfig(preload_if=Preload.true())))),
        (rule("!any_array , [{condition: !Any , num_chunks: 3}]"),
         RepositoryConfig(manifest=ManifestConfig(
             splitting=ManifestSplittingConfig(((Split.any_array(), ((Axis.Any(), 3),)),))))),
        ("caching: !!map {num_chunk_refs: !!str 4}",
         RepositoryConfig(caching=CachingConfig(num_chunk_refs=4))),
    ],
)  # fmt: skip
def test_yaml_that_icechunk_reads_means_the_same_here(
    text: str, expected: RepositoryConfig
) -> None:
    assert decode_config_yaml(text.encode()) == expected


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("!Included 3", "!Excluded 7", Preload.num_refs(3, 7)),
        ("!Excluded 3", "!Included 7", Preload.num_refs(4, 8)),
        ("Unbounded", "Unbounded", Preload.num_refs(None, None)),
        ("!Included 4294967295", "!Included 4294967295", Preload.num_refs(2**32 - 1, None)),
        ("!Excluded 4294967295", "Unbounded", Preload.false()),
    ],
)
def test_bounds_of_reference_counts_become_a_half_open_range(
    start: str, end: str, expected: ManifestPreloadCondition
) -> None:
    text = f"manifest: {{preload: {{preload_if: !num_refs {{from: {start}, to: {end}}}}}}}"
    manifest = decode_config_yaml(text.encode()).manifest
    assert manifest == ManifestConfig(preload=ManifestPreloadConfig(preload_if=expected))


def test_a_container_without_options_for_its_store_is_read() -> None:
    text = "virtual_chunk_containers: {'gs://b/': {url_prefix: gs://b/, store: !gcs }}"
    containers = decode_config_yaml(text.encode()).virtual_chunk_containers
    assert containers == {"gs://b/": VirtualChunkContainer("gs://b/", gcs_store())}


# --- what is refused -------------------------------------------------------------------------


def bad_container(text: str) -> str:
    return f"virtual_chunk_containers: {{'s3://b/': {{{text}}}}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("null", "its root: found None, expected a mapping"),
        ("[]", "its root: found [], expected a mapping"),
        ("{{{", "config YAML"),
        ("a: b: c", "config YAML"),
        ("{}\n---\n{}", "config YAML: expected a single document"),
        ("\x01", "config YAML"),
        ("? [a]\n: 1", "line 1: a key must be text"),
        ("caching: &a {num_chunk_refs: 4}\nfoo: *a", "aliases are not supported"),
        ("a: 1\nb: 2\na: 3", "line 3: key 'a' occurs twice"),
        ("a: !!python/object/apply:os.system ['ls']", "python/object/apply:os.system"),
        ("a: !!binary aGk=", "has no meaning in settings"),
        ("compression: 3", "config at compression: found '3', expected a mapping"),
        ("compression: {algorithm: gzip}", "compression.algorithm: found 'gzip', expected zstd"),
        ("compression: {level: 300}", "compression.level: it is 300, expected 0 to 255 (u8)"),
        ("max_concurrent_requests: -1", "max_concurrent_requests: it is -1, expected 0 to 65535"),
        ("max_concurrent_requests: 1.0", "must be an integer (u16), found '1.0'"),
        ("max_concurrent_requests: '1'", "must be an integer (u16), found '1'"),
        ("max_concurrent_requests: 010", "must be an integer (u16), found '010'"),
        ("max_concurrent_requests: 1_0", "must be an integer (u16), found '1_0'"),
        (f"max_concurrent_requests: {'9' * 9999}", "must be an integer"),
        ("max_concurrent_requests: [1]", "must be an integer"),
        ("storage: {retries: {max_tries: 0}}", "storage.retries.max_tries: it is 0, expected 1"),
        ("storage: {unsafe_use_metadata: yes}", "storage.unsafe_use_metadata: it must be bool"),
        ("storage: {storage_class: [a]}", "storage.storage_class: it must be str"),
        ("virtual_chunk_containers: []", "virtual_chunk_containers: found [], expected a mapping"),
        (bad_container("store: in_memory"), "['s3://b/'].url_prefix: it is missing"),
        (bad_container("url_prefix: s3://b/"), "['s3://b/'].store: it is missing"),
        (bad_container("url_prefix: s3://b/, store: !foo {}"), "found 'foo', expected in_memory"),
        (bad_container("url_prefix: s3://b/, store: !s3 3"), "found '3', expected a mapping"),
        (bad_container("url_prefix: s3://b/, store: {s3: {}, gcs: {}}"), "expected in_memory or"),
        (bad_container("url_prefix: s3://b/, store: !gcs {a: [1]}"), "store.a: it must be str"),
        (bad_container("url_prefix: a, store: !http {headers: 3}"), "store.headers: found '3'"),
        (bad_container("url_prefix: a, store: !s3 {checksum_algorithm: md5}"),
         "store.checksum_algorithm: found 'md5', expected crc32 or"),
        ("manifest: {preload: {preload_if: maybe}}", "preload_if: found 'maybe', expected or"),
        ("manifest: {preload: {preload_if: !or 3}}", "preload_if.or: found '3', expected a list"),
        ("manifest: {preload: {preload_if: !name_matches {}}}", "name_matches.regex: it must be"),
        ("manifest: {preload: {preload_if: !num_refs {from: Unbounded}}}",
         "num_refs.to: found None"),
        ("manifest: {splitting: {split_sizes: [any_array]}}", "split_sizes[0]: found 'any_array'"),
        (rule("any_array, [{condition: Any}]"),
         "split_sizes[0][1][0].num_chunks: it must be an integer"),
        (rule("any_array, [{condition: !Axis x, num_chunks: 1}]"),
         "condition: it must be an integer"),
    ],
)  # fmt: skip
def test_a_bad_config_file_is_refused_with_the_key_and_what_was_found(
    text: str, message: str
) -> None:
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        decode_config_yaml(text.encode())
    assert caught.value.kind == ErrorKind.CONFIG_DESERIALIZATION
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff\xfe\x00", id="not UTF-8"),
        pytest.param(b"#" * (MAX_YAML_BYTES + 1), id="too long"),
        pytest.param(b"[" * 100_000, id="too deep"),
        pytest.param(b"a: " + b"!or [" * 1000 + b"]" * 1000, id="too deep in tags"),
        pytest.param(b"- " * 5000, id="too deep in a block"),
        pytest.param(b"%YAML 9.9\n---\n{}", id="another YAML"),
    ],
)
def test_a_hostile_config_file_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="config YAML") as caught:
        decode_config_yaml(data)
    assert caught.value.kind == ErrorKind.CONFIG_DESERIALIZATION


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"inline_chunk_threshold_bytes": 70_000},
        {"inline_chunk_threshold_bytes": "1"},
        {"inline_chunk_threshold_bytes": 1.0},
        {"storage": {"storage_class": 3}},
        {"storage": {"unsafe_use_metadata": 1}},
        {"manifest": {"preload": {"preload_if": {"or": [], "and": []}}}},
        {"manifest": {"preload": {"preload_if": {"num_refs": {"from": {"Included": -1}}}}}},
        {"virtual_chunk_containers": {"a": {"url_prefix": "a", "store": {"s3": None}}}},
    ],
)
def test_a_bad_config_in_a_repo_object_is_refused(document: Any) -> None:
    with pytest.raises(FormatError, match="config at") as caught:
        decode_config_flexbuffer(flexbuffers.encode(document))
    assert caught.value.kind == ErrorKind.CONFIG_DESERIALIZATION


def test_bytes_that_are_no_flexbuffer_are_refused_as_a_config() -> None:
    with pytest.raises(FormatError, match="config: FlexBuffer") as caught:
        decode_config_flexbuffer(b"\x28\x01")
    assert caught.value.kind == ErrorKind.CONFIG_DESERIALIZATION


@pytest.mark.parametrize("encode", [encode_config_yaml, encode_config_flexbuffer])
def test_a_config_that_no_reader_could_read_is_not_written(
    encode: Callable[[RepositoryConfig], bytes],
) -> None:
    condition = Preload.true()
    for _ in range(500):
        condition = condition | Preload.false()
    deep = RepositoryConfig(manifest=ManifestConfig(preload=ManifestPreloadConfig(None, condition)))
    with pytest.raises(InvalidInputError, match="one flat list"):
        encode(deep)
    for text in ("half \ud800", "zero \0"):
        with pytest.raises(InvalidInputError, match="zero byte or half"):
            encode(RepositoryConfig(storage=StorageSettings(storage_class=text)))


def test_a_saved_split_size_of_zero_splits_nothing() -> None:
    """Official saves what it then panics on; the rule still decides about its axis."""
    config = decode_config_yaml(rule("any_array, [{condition: Any, num_chunks: 0}]").encode())
    assert config.manifest is not None
    assert config.manifest.splitting is not None
    assert config.manifest.splitting.to_dict() == {Split.any_array(): {Axis.Any(): 2**32 - 1}}


@pytest.mark.parametrize(("encode", "decode"), CODECS)
def test_the_deepest_condition_that_is_written_can_be_read(
    encode: Callable[[RepositoryConfig], bytes], decode: Callable[[bytes], RepositoryConfig]
) -> None:
    arrays, manifests = Split.any_array(), Preload.true()
    for _ in range(89):
        arrays, manifests = arrays & Split.any_array(), manifests & Preload.true()
    splitting = ManifestSplittingConfig(((arrays, ((Axis.Any(), 1),)),))
    config = RepositoryConfig(
        manifest=ManifestConfig(ManifestPreloadConfig(preload_if=manifests), splitting)
    )
    assert decode(encode(config)) == config


@pytest.mark.parametrize(
    ("data", "decode"),
    [(SAVED_YAML.encode(), decode_config_yaml), (SAVED_FLEXBUFFER, decode_config_flexbuffer)],
    ids=["yaml", "flexbuffer"],
)
def test_damaged_configs_are_refused_or_read(
    data: bytes, decode: Callable[[bytes], RepositoryConfig]
) -> None:
    refusals = []
    for damaged in mutations(data, seed=7, count=1500):
        try:
            config = decode(damaged)
        except FormatError as error:
            refusals.append(error.kind)
        else:
            assert isinstance(config, RepositoryConfig)
            config.resolved()
    assert set(refusals) == {ErrorKind.CONFIG_DESERIALIZATION}
    assert len(refusals) < 1500
