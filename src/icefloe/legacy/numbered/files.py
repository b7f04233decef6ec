"""Metadata files in all encodings, which are detected from the first bytes of a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.envelope import (
    MAGIC,
    FileType,
    decode_any_envelope,
    encode_envelope,
    encode_header,
)
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.legacy.numbered import (
    msgpack_attributes,
    msgpack_log,
    msgpack_manifest,
    msgpack_snapshot,
)
from icefloe.legacy.numbered.model import OldSnapshot
from icefloe.legacy.numbered.refs import DecodedManifest
from icefloe.legacy.numbered.wide_ids import IdMap
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    from icefloe.legacy.numbered import json_manifest, json_refs, json_snapshot, json_values
else:
    json_manifest = on_demand("icefloe.legacy.numbered.json_manifest")
    json_refs = on_demand("icefloe.legacy.numbered.json_refs")
    json_snapshot = on_demand("icefloe.legacy.numbered.json_snapshot")
    json_values = on_demand("icefloe.legacy.numbered.json_values")

SPEC_VERSION = 1
"""The file types of document 004, byte 36."""


class Form(StrEnum):
    """The encoding of the metadata files of a repository. Document 000 does not define it."""

    JSON = "json"
    """JSON that is valid against the schemas of document 000."""
    MSGPACK = "msgpack"
    """MessagePack without a header, as early programs wrote it."""
    BINARY = "binary"
    """MessagePack, compressed with zstd, after the header of document 004."""
    UNCOMPRESSED = "binary-uncompressed"
    """The same with the compression byte 0."""


class Body(NamedTuple):
    """The content of a file without its envelope."""

    form: Form
    data: bytes | memoryview


def form_of(data: bytes | memoryview) -> Form:
    """The encoding of a file, from its first bytes."""
    start = bytes(data[: len(MAGIC)])
    if start == MAGIC:
        return Form.UNCOMPRESSED if bytes(data[38:39]) == b"\0" else Form.BINARY
    return Form.JSON if start.lstrip()[:1] == b"{" else Form.MSGPACK


def open_file(data: bytes | memoryview, file_type: FileType, name: str) -> Body:
    """The content of a file without its header, if it has one.

    Raises:
        FormatError: it has another type, is damaged, or is of a later generation.
    """
    form = form_of(data)
    if form not in (Form.BINARY, Form.UNCOMPRESSED):
        return Body(form, data)
    _, payload, size = decode_any_envelope(data, file_type, name)
    if payload[4:8].tobytes() == b"Ichk":
        raise FormatError(
            f"{name}: the payload is a flatbuffer, as files of spec versions 1 and 2 hold it, "
            "expected MessagePack",
            ErrorKind.INVALID_FILE_FORMAT,
        )
    return Body(form, memoryview(payload)[:size])


def decode_snapshot(data: bytes | memoryview, name: str) -> OldSnapshot:
    """Decode a snapshot in any encoding. `name` is the name of the file in errors."""
    form, body = open_file(data, FileType.SNAPSHOT, name)
    codec: Any = json_snapshot if form is Form.JSON else msgpack_snapshot
    snapshot: OldSnapshot = codec.decode_snapshot(body, name)
    return snapshot


def decode_manifest(data: bytes | memoryview, name: str, ids: IdMap) -> DecodedManifest:
    """Decode a manifest in any encoding."""
    form, body = open_file(data, FileType.MANIFEST, name)
    codec: Any = json_manifest if form is Form.JSON else msgpack_manifest
    manifest: DecodedManifest = codec.decode_manifest(body, name, ids)
    return manifest


def decode_attributes(data: bytes | memoryview, name: str) -> list[Mapping[str, Any]]:
    """Decode an attributes file in any encoding."""
    form, body = open_file(data, FileType.ATTRIBUTES, name)
    codec: Any = json_refs if form is Form.JSON else msgpack_attributes
    sets: list[Mapping[str, Any]] = codec.decode_attributes(body, name)
    return sets


def decode_log(
    data: bytes | memoryview, name: str, snapshot_id: SnapshotId, arrays: Collection[NodeId]
) -> TransactionLog:
    """Decode a transaction log, which is never JSON."""
    _, body = open_file(data, FileType.TRANSACTION_LOG, name)
    return msgpack_log.decode_log(body, name, snapshot_id, arrays)


# -- writing, by documents 000 and 004


def encode_snapshot(snapshot: OldSnapshot, form: Form, level: int) -> bytes:
    """A snapshot file."""
    if form is Form.JSON:
        return json_snapshot.encode_snapshot(snapshot)
    return _enclosed(msgpack_snapshot.encode_snapshot(snapshot), FileType.SNAPSHOT, form, level)


def encode_manifest(
    arrays: Mapping[NodeId, ChunkRefs], ids: IdMap, form: Form, level: int
) -> bytes:
    """A manifest file."""
    if form is Form.JSON:
        return json_manifest.encode_manifest(arrays, ids)
    data = msgpack_manifest.encode_manifest(arrays, ids)
    return _enclosed(data, FileType.MANIFEST, form, level)


def encode_attributes(sets: Sequence[Mapping[str, Any]], form: Form, level: int) -> bytes:
    """An attributes file."""
    if form is Form.JSON:
        return json_refs.encode_attributes(sets)
    data = msgpack_attributes.encode_attributes(sets)
    return _enclosed(data, FileType.ATTRIBUTES, form, level)


def attributes_json(attributes: Mapping[str, Any]) -> bytes:
    """A set of attributes as canonical JSON, to measure its size and to find equal sets."""
    return json_values.dump(attributes)


def encode_log(log: TransactionLog, form: Form, level: int) -> bytes | None:
    """A transaction log; None if the generation cannot store it.

    Document 000 has no logs, and those of document 004 cannot record moves. The changes of such a
    commit are computed by comparing snapshots.
    """
    if form in (Form.JSON, Form.MSGPACK) or log.moved_nodes:
        return None
    return _enclosed(msgpack_log.encode_log(log), FileType.TRANSACTION_LOG, form, level)


def _enclosed(data: bytes, file_type: FileType, form: Form, level: int) -> bytes:
    if form is Form.MSGPACK:
        return data
    if form is Form.UNCOMPRESSED:
        return encode_header(SPEC_VERSION, file_type, is_compressed=False) + data
    return encode_envelope([data], SPEC_VERSION, file_type, level)
