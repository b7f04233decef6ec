"""Snapshot files: every node of the repository at one commit, and the manifests they use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from operator import lt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Bytes, Ints, byte_rows, find_id
from icefloe.format.envelope import FileType, decode_envelope
from icefloe.format.flatbuffer.read import FlatBuffer, Rows, Table
from icefloe.format.flatbuffer.schema import (
    ARRAY_NODE_DATA,
    CHUNK_INDEX_RANGE,
    DIMENSION_NAME,
    DIMENSION_SHAPE,
    DIMENSION_SHAPE_V2,
    GROUP_NODE_DATA,
    MANIFEST_FILE_INFO,
    MANIFEST_FILE_INFO_V2,
    MANIFEST_REF,
    METADATA_ITEM,
    NODE_SNAPSHOT,
    SNAPSHOT,
)
from icefloe.format.metadata.items import decode_metadata, read_items
from icefloe.format.snapshot.node_paths import check_paths
from icefloe.format.snapshot.nodes import ARRAY, GROUP, NodeTable
from icefloe.ids import ManifestId, SnapshotId
from icefloe.records import NamedTuple, record


class ManifestFileInfo(NamedTuple):
    """A manifest file; `size_bytes` is exact, because readers fetch that many bytes."""

    id: ManifestId
    size_bytes: int
    num_chunk_refs: int
    extra: bytes | None = None


@record(frozen=True, eq=False)
class ManifestFiles(Mapping[ManifestId, ManifestFileInfo]):
    """The manifest files of a snapshot as columns, ascending by id."""

    id: Bytes
    size_bytes: NDArray[np.uint64]
    num_chunk_refs: NDArray[np.uint32]
    extra: BlobColumn | None = None

    def __len__(self) -> int:
        return len(self.id)

    def __iter__(self) -> Iterator[ManifestId]:
        return (ManifestId(row.tobytes()) for row in self.id)

    def __getitem__(self, key: ManifestId) -> ManifestFileInfo:
        row = find_id(self.id, key)
        if row < 0:
            raise FormatError(
                f"an array has chunks in manifest {ManifestId(key)}, which is not among the "
                "manifest files of the snapshot; Repository.verify lists what is affected",
                ErrorKind.MANIFEST_INFO_NOT_FOUND,
            )
        extra = None if self.extra is None else self.extra[row]
        return ManifestFileInfo(
            ManifestId(key), int(self.size_bytes[row]), int(self.num_chunk_refs[row]), extra
        )

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and find_id(self.id, key) >= 0

    def take(self, rows: Ints) -> ManifestFiles:
        """Some rows; keep them ascending."""
        extra = None if self.extra is None else self.extra.take(rows)
        return ManifestFiles(self.id[rows], self.size_bytes[rows], self.num_chunk_refs[rows], extra)

    def rows_of(self, ids: Bytes) -> Ints:
        """The row of each of these ids, -1 where it is not listed."""
        if not len(self):
            return np.full(len(ids), -1, np.int64)
        keys, wanted = _keys(self.id), _keys(ids)
        rows = keys.searchsorted(wanted)
        rows[rows == len(keys)] = 0
        rows[keys[rows] != wanted] = -1
        return rows

    def not_in(self, others: ManifestFiles) -> list[ManifestId]:
        """The files that `others` does not list."""
        if len(self) <= _FEW_FILES and len(others) <= _FEW_FILES:
            listed = set(byte_rows(others.id))
            return [ManifestId(row) for row in byte_rows(self.id) if row not in listed]
        return [ManifestId(row) for row in byte_rows(self.id[others.rows_of(self.id) < 0])]

    def refs_in(self, wanted: Sequence[ManifestId]) -> int:
        """How many references these manifests hold together, those of other arrays included."""
        ids = np.frombuffer(b"".join(wanted), np.uint8).reshape(-1, ManifestId.size)
        return int(self.num_refs(ids).sum(dtype=np.int64))

    def num_refs(self, ids: Bytes) -> NDArray[np.uint32]:
        """How many references each of these manifests holds; 0 for one that is not listed."""
        rows = self.rows_of(ids)
        is_listed = rows >= 0
        if is_listed.all():
            return self.num_chunk_refs[rows]
        counts = np.zeros(len(ids), np.uint32)
        counts[is_listed] = self.num_chunk_refs[rows[is_listed]]
        return counts

    def with_infos(self, infos: Sequence[ManifestFileInfo]) -> ManifestFiles:
        """These files and some new ones, sorted by id."""
        if not infos:
            return self
        new = ManifestFiles.from_infos(infos)
        if not len(self):
            return new
        extra = None
        if self.extra is not None or new.extra is not None:
            extra = BlobColumn.concat(
                [BlobColumn.nulls(len(t)) if t.extra is None else t.extra for t in (self, new)]
            )
        both = ManifestFiles(
            np.concatenate([self.id, new.id]),
            np.concatenate([self.size_bytes, new.size_bytes]),
            np.concatenate([self.num_chunk_refs, new.num_chunk_refs]),
            extra,
        )
        return both.take(np.argsort(both.id.view("S12").reshape(-1), kind="stable"))

    @classmethod
    def from_infos(cls, infos: Any) -> ManifestFiles:
        """Columns of these infos, sorted by id."""
        ordered = sorted(infos, key=lambda info: info.id)
        extra = [info.extra for info in ordered]
        raw = np.frombuffer(b"".join(info.id for info in ordered), np.uint8)
        return cls(
            raw.reshape(-1, ManifestId.size),
            np.array([info.size_bytes for info in ordered], np.uint64),
            np.array([info.num_chunk_refs for info in ordered], np.uint32),
            BlobColumn.from_values(extra) if any(e is not None for e in extra) else None,
        )


_FEW_FILES = 32  # numpy takes as long to set up


def _keys(ids: Bytes) -> NDArray[np.bytes_]:
    """Ids in a form that sorts and compares as a whole."""
    return np.ascontiguousarray(ids).view("S12").reshape(-1)


@record(frozen=True, eq=False)
class Snapshot:
    """A decoded snapshot. `flushed_at` is in microseconds since the epoch, UTC."""

    id: SnapshotId
    nodes: NodeTable
    flushed_at: int
    message: str
    metadata: Mapping[str, Any]
    manifest_files: ManifestFiles
    parent_id: SnapshotId | None = None
    extra: bytes | None = None

    def equals(self, other: Snapshot) -> bool:
        """Same contents, apart from the version they were encoded with."""
        mine = (self.id, self.flushed_at, self.message, self.metadata, self.parent_id, self.extra)
        return (
            mine
            == (
                other.id,
                other.flushed_at,
                other.message,
                other.metadata,
                other.parent_id,
                other.extra,
            )
            and dict(self.manifest_files) == dict(other.manifest_files)
            and self.nodes.equals(other.nodes)
        )


def decode_snapshot(data: bytes | memoryview, name: str = "snapshot") -> Snapshot:
    """Decode a snapshot file. `name` is what errors call it.

    Raises:
        FormatError: the bytes are not a whole, consistent snapshot.
    """
    header, payload, size = decode_envelope(data, FileType.SNAPSHOT, name)
    buffer = FlatBuffer(payload, size, name)
    root = buffer.root(SNAPSHOT)
    parent = root.struct("parent_id")
    items = read_items(root.rows("metadata", METADATA_ITEM))
    return Snapshot(
        SnapshotId(root.id("id")),
        _decode_nodes(root.rows("nodes", NODE_SNAPSHOT), header.spec_version),
        root.scalar("flushed_at"),
        root.text("message"),
        decode_metadata(items, header.spec_version, name),
        _decode_manifest_files(root),
        None if parent is None else SnapshotId(parent),
        root.bytes("extra"),
    )


def _decode_manifest_files(root: Table) -> ManifestFiles:
    structs = root.array("manifest_files", MANIFEST_FILE_INFO)
    assert structs is not None  # a required field
    if not root.has("manifest_files_v2"):
        raw = np.ascontiguousarray(structs["id"]).view(np.uint8).reshape(-1, ManifestId.size)
        files = ManifestFiles(
            raw, structs["size_bytes"].astype("u8"), structs["num_chunk_refs"].astype("u4")
        )
    else:
        rows = root.rows("manifest_files_v2", MANIFEST_FILE_INFO_V2)
        extra = None if rows.is_absent_everywhere("extra") else rows.blobs("extra")
        files = ManifestFiles(
            rows.struct("id"), rows.scalar("size_bytes"), rows.scalar("num_chunk_refs"), extra
        )
    keys = _keys(files.id)
    if not bool((keys[1:] > keys[:-1]).all()):
        order = np.argsort(keys, kind="stable")
        if bool((keys[order][1:] == keys[order][:-1]).any()):
            root.buffer.fail("a manifest file is listed twice")
        files = files.take(order)
    return files


def _decode_nodes(rows: Rows, spec_version: int) -> NodeTable:
    buffer = rows.buffer
    path, order = _sorted_paths(buffer, rows.strings("path"))
    if order is not None:
        rows = rows.take(order)
    kind = rows.scalar("node_data_type")
    if not np.isin(kind, (ARRAY, GROUP)).all():
        buffer.fail("a node is neither array (1) nor group (2)")
    is_array = kind == ARRAY
    rows.take(np.flatnonzero(~is_array)).children("node_data", GROUP_NODE_DATA)
    arrays = rows.take(np.flatnonzero(is_array)).children("node_data", ARRAY_NODE_DATA)
    if spec_version == 1 and not arrays.is_absent_everywhere("shape_v2"):
        buffer.fail("ArrayNodeData.shape_v2 in a file of spec version 1")
    shape = _decode_shapes(arrays)
    num_dimensions = shape.pop("count")
    has_names, names = _decode_names(arrays, num_dimensions)
    manifests, num_manifests = arrays.nested("manifests", MANIFEST_REF)
    extents, num_extents = manifests.structs("extents", CHUNK_INDEX_RANGE)
    boxes = extents.view("<u4").reshape(-1, 2)
    expected = np.repeat(num_dimensions, num_manifests)
    if not np.array_equal(num_extents, expected):
        boxes = _without_other_ranks(boxes, num_extents, expected)
    return NodeTable(
        rows.struct("id"),
        path,
        rows.blobs("user_data"),
        is_array,
        None if rows.is_absent_everywhere("extra") else rows.blobs("extra"),
        num_dimensions,
        has_names,
        num_manifests,
        shape["array_length"],
        shape["num_chunks"],
        shape.get("chunk_length"),
        names,
        manifests.struct("object_id"),
        boxes,
    )


def _without_other_ranks(
    boxes: NDArray[np.uint32], count: Ints, expected: Ints
) -> NDArray[np.uint32]:
    """Boxes that have as many dimensions as their arrays; empty ones where a file has others.

    Official clients let an array with chunks change its number of dimensions. Nobody can ask for
    the chunks it had before, so their manifest covers nothing.
    """
    fits = count == expected
    found = np.zeros((int(expected.sum()), 2), np.uint32)
    found[np.repeat(fits, expected)] = boxes[np.repeat(fits, count)]
    return found


def _sorted_paths(buffer: FlatBuffer, paths: BlobColumn) -> tuple[list[str], Ints | None]:
    """Ascending paths, and the order that makes them ascend unless the file has it already."""
    listed: list[str] = paths.to_list()
    check_paths(buffer, listed, "node path")
    if all(map(lt, listed, islice(listed, 1, None))):
        return listed, None
    ascending = sorted(listed)
    for first, second in pairwise(ascending):
        if first == second:
            buffer.fail(f"node path {first!r} appears twice")
    # Some writers order nodes segment by segment; lookups here need the order of whole paths.
    return ascending, np.array(sorted(range(len(listed)), key=listed.__getitem__), np.int64)


def _decode_shapes(arrays: Rows) -> dict[str, NDArray[Any]]:
    """Array lengths and numbers of chunks, of either version; `count` dimensions an array."""
    _, _, lacks_v2 = arrays.vectors("shape_v2", 4)
    is_v1 = np.zeros(len(arrays), np.bool_) if lacks_v2 is None else lacks_v2
    old, old_count = arrays.take(np.flatnonzero(is_v1)).structs("shape", DIMENSION_SHAPE)
    new, new_count = arrays.take(np.flatnonzero(~is_v1)).nested("shape_v2", DIMENSION_SHAPE_V2)
    if not is_v1.any():
        return {
            "count": new_count,
            "array_length": new.scalar("array_length"),
            "num_chunks": new.scalar("num_chunks").astype(np.uint64),
        }
    length, chunk = old["array_length"].astype(np.uint64), old["chunk_length"].astype(np.uint64)
    if bool(((chunk == 0) & (length > 0)).any()):
        arrays.buffer.fail("DimensionShape has chunk length 0 for a dimension that is not empty")
    divisor = np.maximum(chunk, np.uint64(1))
    chunks = length // divisor + (length % divisor > 0)
    if is_v1.all():
        return {
            "count": old_count,
            "array_length": length,
            "num_chunks": chunks,
            "chunk_length": chunk,
        }
    raise FormatError(
        f"{arrays.buffer.name}: some arrays have version-1 shapes and others version-2 shapes; "
        "a file has one or the other",
        ErrorKind.DESERIALIZATION,
    )


def _decode_names(arrays: Rows, num_dimensions: Ints) -> tuple[NDArray[np.bool_], BlobColumn]:
    """Which arrays have dimension names, and a name or null for every dimension."""
    _, count, absent = arrays.vectors("dimension_names", 4)
    has_names = np.ones(len(arrays), np.bool_) if absent is None else ~absent
    if not np.array_equal(count[has_names], num_dimensions[has_names]):
        arrays.buffer.fail("ArrayNodeData.dimension_names and shape differ in length")
    tables, _ = arrays.nested("dimension_names", DIMENSION_NAME)
    total = int(num_dimensions.sum())
    if not len(tables):
        return has_names, BlobColumn.nulls(total, is_text=True)
    names = tables.strings("name")
    rows = np.flatnonzero(np.repeat(has_names, num_dimensions))
    place = np.full(total, -1, np.int64)
    place[rows] = np.where(names.length > 0, np.arange(len(rows)), -1)  # "" is no name
    return has_names, names.take(place)
