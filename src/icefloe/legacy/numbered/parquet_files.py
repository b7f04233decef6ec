"""Snapshots and manifests as Parquet: the program of 2024-09-03 to 2024-09-16.

Its refs are those of the program that followed. Snapshot files have neither id, time, message nor
parent: the refs have them.
"""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.errors import IcechunkError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.columns import BlobColumn, mask_from_arrow, numbers_from_arrow
from icefloe.ids import NodeId
from icefloe.legacy.checked import Checked, column, read_parquet
from icefloe.legacy.numbered.encodings import JsonReader
from icefloe.legacy.numbered.model import (
    Ancestor,
    ArrayMetadata,
    DecodedManifest,
    NamedConfiguration,
    OldManifestRef,
    OldNode,
    OldSnapshot,
    node_id,
)
from icefloe.legacy.numbered.names import PROTOTYPE, WIDE, IdMap, Names
from icefloe.legacy.numbered.zarr_documents import data_type_of_document, fill_value_of_document
from icefloe.legacy.state_file.structure import decode_fill_value

_NODE_COLUMNS = (
    "id",
    "type",
    "path",
    "shape",
    "data_type",
    "chunk_shape",
    "fill_value",
    "codecs",
    "storage_transformers",
    "dimension_names",
    "user_attributes",
    "user_attributes_ref",
    "manifest_references",
)
_REF_COLUMNS = (
    "array_id",
    "coords",
    "offset",
    "length",
    "inline_data",
    "chunk_id",
    "virtual_path",
)
_INDEX_BYTES = 8
_MAX_INDEX = 2**32 - 1


class ParquetNames(Names):
    """The names of that program. Files are named by base64, with padding."""

    def key(self, folder: str, wide_id: bytes) -> str:
        return folder + _file_name(wide_id)


PARQUET_PROTOTYPE = ParquetNames(*PROTOTYPE)


_SUFFIX = ".parquet"


def _file_name(wide_id: bytes) -> str:
    return base64.urlsafe_b64encode(wide_id).decode("ascii") + _SUFFIX


def id_of_file(name: bytes) -> bytes | None:
    """The id that a file is named by, or None."""
    try:
        raw = base64.urlsafe_b64decode(name.removesuffix(_SUFFIX.encode()))
    except ValueError:
        return None
    return raw if len(raw) == WIDE and _file_name(raw).encode() == name else None


class RefFile(NamedTuple):
    """A branch or tag file."""

    snapshot_id: bytes
    written_at: int
    message: str
    properties: dict[str, Any]
    parent_id: bytes | None = None


def decode_ref_file(data: bytes | memoryview, name: str) -> RefFile:
    """A branch or tag file, which describes the commit of its snapshot."""
    reader = JsonReader(name)
    snapshot, timestamp, noted = reader.record(
        reader.load(data), "the ref", ["snapshot", "timestamp", "properties"]
    )
    properties = dict(reader.mapping(noted, "properties"))
    message = reader.text(properties.pop("message", ""), "message")
    return RefFile(
        reader.object_id(snapshot, "snapshot"),
        reader.instant(timestamp, "timestamp"),
        message,
        properties,
    )


def decode_snapshot(
    data: bytes | memoryview, name: str, ref: RefFile, history: tuple[Ancestor, ...]
) -> OldSnapshot:
    """A snapshot file, and the commit and its ancestors that ref files describe."""
    checked = Checked(name)
    table = read_parquet(data, _NODE_COLUMNS, checked)
    nodes = [_node(row, checked) for row in table.to_pylist()]
    return OldSnapshot(
        ref.snapshot_id,
        ref.written_at,
        ref.message,
        nodes,
        ref.properties,
        history,
        len(history),
    )


def _node(row: dict[str, Any], checked: Checked) -> OldNode:
    number = node_id(checked.whole(row["id"], "node id", 2**32 - 1))
    path = checked.text(row["path"], "path")
    if row["user_attributes_ref"] is not None:
        raise checked.fail(
            f"the attributes of node {path!r} are in a file, which that program never wrote"
        )
    attributes = None
    if row["user_attributes"] is not None:
        attributes = checked.mapping(_json(row["user_attributes"], checked), "user_attributes")
    if row["type"] == "group":
        return OldNode(number, path, attributes)
    if row["type"] != "array":
        raise checked.unexpected(f"type of node {path!r}", row["type"], "'array' or 'group'")
    return OldNode(
        number, path, attributes, _metadata(row, path, checked), _manifests(row, checked)
    )


def _metadata(row: dict[str, Any], path: str, checked: Checked) -> ArrayMetadata:
    shape, chunk_shape = (
        tuple(checked.whole(n, what) for n in checked.items(row[what], what))
        for what in ("shape", "chunk_shape")
    )
    if len(shape) != len(chunk_shape):
        raise checked.fail(f"node {path!r} has shape {shape} and chunk shape {chunk_shape}")
    fill = row["fill_value"]
    name = checked.text(row["data_type"], "data_type")
    if fill is not None and not isinstance(fill, bytes):
        raise checked.unexpected("fill_value", fill, "bytes")
    try:
        data_type = data_type_of_document(name, path)
        value = decode_fill_value(name, fill, checked.name)
        fill_value = fill_value_of_document(value, data_type, path)
    except IcechunkError as error:
        raise checked.fail(error.message) from None
    names = row["dimension_names"]
    transformers = row["storage_transformers"]
    return ArrayMetadata(
        shape,
        data_type,
        chunk_shape,
        "Slash",
        fill_value,
        _named(row["codecs"], "codecs", checked),
        None if transformers is None else _named(transformers, "storage_transformers", checked),
        None
        if names is None
        else tuple(None if each is None else checked.text(each, "a dimension") for each in names),
    )


def _named(value: Any, what: str, checked: Checked) -> tuple[NamedConfiguration, ...]:
    """Codecs: a list of JSON objects, or before 2024-09 one JSON list."""
    listed = _json(value, checked) if isinstance(value, str) else value
    found = []
    for item in checked.items(listed, what):
        each = checked.mapping(item if isinstance(item, dict) else _json(item, checked), what)
        configuration = each.get("configuration")
        found.append(
            NamedConfiguration(
                checked.text(checked.member(each, "name", what), "name"),
                None
                if configuration is None
                else checked.mapping(configuration, f"configuration of {what}"),
            )
        )
    return tuple(found)


def _manifests(row: dict[str, Any], checked: Checked) -> tuple[OldManifestRef, ...]:
    """The manifests of an array. Their rows have its number, so row ranges are not needed."""
    references = row["manifest_references"]
    if references is None or references.get("reference") is None:
        return ()
    found = []
    for raw in checked.items(references["reference"], "manifest_references"):
        if not isinstance(raw, bytes) or len(raw) != WIDE:
            raise checked.unexpected("manifest reference", raw, f"{WIDE} bytes")
        found.append(OldManifestRef(raw))
    return tuple(found)


def _json(value: Any, checked: Checked) -> Any:
    try:
        return json.loads(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise checked.fail(f"{value!r:.80} is not JSON ({error})") from None


def decode_manifest(data: bytes | memoryview, name: str, ids: IdMap) -> DecodedManifest:
    """A manifest file with the references of several arrays."""
    checked = Checked(name)
    table = read_parquet(data, _REF_COLUMNS, checked)
    array_id = numbers_from_arrow(column(table, "array_id", pa.uint32(), checked, nulls=False))
    order = np.argsort(array_id, kind="stable")
    table, array_id = table.take(pa.array(order)), array_id[order]
    borders = [0, *(np.flatnonzero(np.diff(array_id)) + 1).tolist(), len(array_id)]
    arrays: dict[NodeId, ChunkRefs] = {}
    for first, last in pairwise(borders):
        if first < last:
            part = table.slice(first, last - first)
            arrays[node_id(int(array_id[first]))] = _refs(part, ids, checked)
    return DecodedManifest(None, arrays)


def _refs(table: pa.Table, ids: IdMap, checked: Checked) -> ChunkRefs:
    index = _indices(column(table, "coords", pa.binary(), checked, nulls=False), checked)
    inline = column(table, "inline_data", pa.binary(), checked, nulls=True)
    location = column(table, "virtual_path", pa.string(), checked, nulls=True)
    chunk_id = column(table, "chunk_id", pa.binary(WIDE), checked, nulls=True)
    length = numbers_from_arrow(column(table, "length", pa.uint64(), checked, nulls=False))
    offset = numbers_from_arrow(
        column(table, "offset", pa.uint64(), checked, nulls=True).fill_null(0)
    )
    is_inline = mask_from_arrow(pc.is_valid(inline))
    is_virtual = ~is_inline & mask_from_arrow(pc.is_valid(location))
    is_native = ~is_inline & ~is_virtual & mask_from_arrow(pc.is_valid(chunk_id))
    if not (is_inline | is_virtual | is_native).all():
        raise checked.fail("a chunk has neither inline_data, virtual_path nor chunk_id")
    parts = []
    try:
        if is_inline.any():
            some = inline.filter(pa.array(is_inline))
            parts.append(ChunkRefs.inline_chunks(index[is_inline], some))
        if is_virtual.any():
            some = location.filter(pa.array(is_virtual))
            at, size = offset[is_virtual], length[is_virtual]
            parts.append(ChunkRefs.virtual(index[is_virtual], some, at, size))
        if is_native.any():
            raw = b"".join(chunk_id.filter(pa.array(is_native)).to_pylist())
            short = ids.shorten(np.frombuffer(raw, np.uint8).reshape(-1, WIDE))
            at, size = offset[is_native], length[is_native]
            parts.append(ChunkRefs.native(index[is_native], short, at, size))
        merged = ChunkRefs.overlay([(part, None) for part in parts], index.shape[1])[0]
    except IcechunkError as error:
        raise checked.fail(error.message) from None
    if len(merged) != len(index):
        raise checked.fail("a chunk is there twice")
    return merged


def _indices(coords: pa.Array, checked: Checked) -> NDArray[np.uint32]:
    """Indices of eight big-endian bytes each."""
    blobs = BlobColumn.from_arrow(coords)
    sizes = set(np.unique(blobs.length).tolist())
    size = int(sizes.pop())
    if sizes or size % _INDEX_BYTES:
        raise checked.fail(
            f"coords of one array have {sorted({size, *sizes})[:5]} bytes, expected as many for "
            f"each, and {_INDEX_BYTES} per dimension"
        )
    raw = blobs.data[int(blobs.offsets[0]) : int(blobs.offsets[-1])]
    found = np.ascontiguousarray(raw).view(">u8").reshape(len(blobs), size // _INDEX_BYTES)
    if found.size and int(found.max()) > _MAX_INDEX:
        raise checked.fail(f"a chunk index is {int(found.max())}, expected at most {_MAX_INDEX}")
    return found.astype(np.uint32)
