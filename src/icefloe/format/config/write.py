"""A `RepositoryConfig` as the document both encodings of it hold, and the names used there.

The order of keys is that of Icechunk's files. Options that only icefloe has come behind them and
are left out when not set; Icechunk skips what it does not know. Reading is in `read.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from icefloe.config import (
    ChecksumAlgorithm,
    CompressionAlgorithm,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    SplitRule,
    StorageSettings,
    VirtualChunkContainer,
)
from icefloe.config.conditions import DimensionKind, PreloadKind, SplitKind
from icefloe.config.section import Section, options
from icefloe.config.stores import (
    S3,
    Azure,
    Gcs,
    Http,
    InMemory,
    LocalFileSystem,
    S3Compatible,
    Tigris,
)
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.config.document import Document, Variant

ALGORITHM_NAMES = {CompressionAlgorithm.Zstd: "zstd"}

CHECKSUM_NAMES = {
    ChecksumAlgorithm.Crc32: "crc32",
    ChecksumAlgorithm.Crc32c: "crc32c",
    ChecksumAlgorithm.Crc64Nvme: "crc64_nvme",
    ChecksumAlgorithm.Sha1: "sha1",
    ChecksumAlgorithm.Sha256: "sha256",
}

STORE_NAMES: dict[type[ObjectStoreConfig], str] = {
    InMemory: "in_memory",
    LocalFileSystem: "local_file_system",
    Http: "http",
    S3Compatible: "s3_compatible",
    S3: "s3",
    Gcs: "gcs",
    Azure: "azure",
    Tigris: "tigris",
}

MAX_CONDITION_DEPTH = 90
"""Conditions inside each other that both encodings, and Icechunk, can read back."""

# Where the order on disk is not that of the constructor.
_KEY_ORDER: dict[type[Section], tuple[str, ...]] = {
    RepositoryConfig: (
        "inline_chunk_threshold_bytes",
        "get_partial_values_concurrency",
        "compression",
        "max_concurrent_requests",
        "max_concurrent_decodes",
        "caching",
        "storage",
        "virtual_chunk_containers",
        "manifest",
        "previous_file",
        "repo_update_retries",
        "num_updates_per_repo_info_file",
    ),
    StorageSettings: (
        "concurrency",
        "retries",
        "timeouts",
        "unsafe_use_conditional_update",
        "unsafe_use_conditional_create",
        "unsafe_use_metadata",
        "storage_class",
        "metadata_storage_class",
        "chunks_storage_class",
        "minimum_size_for_multipart_upload",
    ),
    S3Options: (
        "region",
        "endpoint_url",
        "anonymous",
        "allow_http",
        "force_path_style",
        "network_stream_timeout_seconds",
        "requester_pays",
        "checksum_algorithm",
    ),
    ManifestConfig: (
        "preload",
        "splitting",
        "virtual_chunk_location_compression",
        "max_concurrent_manifest_fetches_during_commit",
    ),
    VirtualChunkContainer: ("name", "url_prefix", "store"),
}


def config_document(config: RepositoryConfig) -> dict[str, Document]:
    """Every option of `config` by name, those not set as None.

    Raises:
        InvalidInputError: text that no file can hold, or conditions nested too deep.
    """
    return _section_document(config)


def _section_document(section: Section) -> dict[str, Document]:
    names = _KEY_ORDER.get(type(section)) or tuple(options(type(section)))
    document = {name: _value_document(getattr(section, name)) for name in names}
    for name in options(type(section)):
        if name not in document and getattr(section, name) is not None:
            document[name] = _value_document(getattr(section, name))
    return document


def _value_document(value: Any) -> Document:
    match value:
        case CompressionAlgorithm():
            return ALGORITHM_NAMES[value]
        case ChecksumAlgorithm():
            return CHECKSUM_NAMES[value]
        case None | bool() | int():
            return value
        case str():
            return _checked_text(value)
        case Section():
            return _section_document(value)
        case ObjectStoreConfig():
            return _store_document(value)
        case ManifestPreloadCondition() | ManifestSplitCondition():
            return _condition_document(value, 0)
        case dict():
            return {_checked_text(key): _value_document(value[key]) for key in sorted(value)}
        case _:
            return [_rule_document(rule) for rule in value]


def _store_document(store: ObjectStoreConfig) -> Document:
    name = STORE_NAMES[type(store)]
    match store:
        case LocalFileSystem(path):
            return Variant(name, _checked_text(path))
        case S3(s3_options) | S3Compatible(s3_options) | Tigris(s3_options):
            return Variant(name, _section_document(s3_options))
        case Gcs(opts) | Azure(opts):
            return Variant(name, _texts_document(opts))
        case Http(opts, headers):
            entries = _texts_document(opts)
            if headers:  # they share the map of the client options
                entries["headers"] = _texts_document(headers)
            return Variant(name, entries)
        case _:
            return name


def _texts_document(texts: Mapping[str, str]) -> dict[str, Document]:
    return {_checked_text(key): _checked_text(texts[key]) for key in sorted(texts)}


def _rule_document(rule: SplitRule) -> Document:
    arrays, sizes = rule
    return [
        _condition_document(arrays, 0),
        [{"condition": _axis_document(axis), "num_chunks": size} for axis, size in sizes],
    ]


def _condition_document(
    condition: ManifestPreloadCondition | ManifestSplitCondition, depth: int
) -> Document:
    if depth >= MAX_CONDITION_DEPTH:
        raise InvalidInputError(
            f"config: more than {MAX_CONDITION_DEPTH} conditions inside each other; "
            "give or_conditions or and_conditions one flat list",
            ErrorKind.SERIALIZATION,
        )
    match condition.kind:
        case SplitKind.OR | SplitKind.AND | PreloadKind.OR | PreloadKind.AND:
            parts = [_condition_document(part, depth + 1) for part in condition.conditions]
            return Variant(condition.kind.value, parts)
        case PreloadKind.NUM_REFS if isinstance(condition, ManifestPreloadCondition):
            start, end = condition.from_refs, condition.to_refs
            bounds: dict[str, Document] = {
                "from": "Unbounded" if start is None else Variant("Included", start),
                "to": "Unbounded" if end is None else Variant("Excluded", end),
            }
            return Variant(condition.kind.value, bounds)
        case SplitKind.ANY_ARRAY | PreloadKind.TRUE | PreloadKind.FALSE:
            return condition.kind.value
        case _:
            return Variant(condition.kind.value, {"regex": _checked_text(condition.regex)})


def _axis_document(axis: ManifestSplitDimCondition) -> Document:
    match axis.kind:
        case DimensionKind.AXIS:
            return Variant(axis.kind.value, axis.axis)
        case DimensionKind.DIMENSION_NAME:
            return Variant(axis.kind.value, _checked_text(axis.regex))
        case DimensionKind.ANY:
            return axis.kind.value


def _checked_text(text: str) -> str:
    # FlexBuffers end keys with a zero byte, and none of the settings has a use for one.
    if re.search("[\0\ud800-\udfff]", text):
        raise InvalidInputError(
            f"config: text {text!r} has a zero byte or half a surrogate pair",
            ErrorKind.SERIALIZATION,
        )
    return text
