"""Snapshot files: decoded and encoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from operator import lt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns import (
    BlobColumn,
    Bytes,
    Ints,
    concat_optional,
    find_id,
    find_rows,
    id_rows,
)
from icefloe.format.envelope import FileType, decode_envelope, encode_envelope
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
    TableSpec,
)
from icefloe.format.flatbuffer.write import FlatWriter, Positions, SingleTable
from icefloe.format.metadata import decode_metadata, encode_metadata, read_items, write_item_vector
from icefloe.format.nodes import (
    ARRAY,
    GROUP,
    ArrayData,
    Node,
    NodeColumns,
    NodeRows,
    NodeTable,
    check_paths,
)
from icefloe.ids import ManifestId, SnapshotId

# -- Snapshot files: every node of the repository at one commit, and the manifests they use.


class ManifestFileInfo(NamedTuple):
    """A manifest file; `size_bytes` is exact, because readers fetch that many bytes."""

    id: ManifestId
    size_bytes: int
    num_chunk_refs: int
    extra: bytes | None = None


@dataclass(frozen=True, eq=False)
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
        return find_rows(self.id, ids)

    def not_in(self, others: ManifestFiles) -> list[ManifestId]:
        """The files that `others` does not list."""
        return ManifestId.of_rows(self.id[others.rows_of(self.id) < 0])

    def refs_in(self, wanted: Sequence[ManifestId]) -> int:
        """How many references these manifests hold together, those of other arrays included."""
        return int(self.num_refs(id_rows(wanted, ManifestId.size)).sum(dtype=np.int64))

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
        both = ManifestFiles(
            np.concatenate([self.id, new.id]),
            np.concatenate([self.size_bytes, new.size_bytes]),
            np.concatenate([self.num_chunk_refs, new.num_chunk_refs]),
            concat_optional([(self.extra, len(self)), (new.extra, len(new))]),
        )
        return both.take(np.argsort(_keys(both.id), kind="stable"))

    @classmethod
    def from_infos(cls, infos: Any) -> ManifestFiles:
        """Columns of these infos, sorted by id."""
        ordered = sorted(infos, key=lambda info: info.id)
        extra = [info.extra for info in ordered]
        return cls(
            id_rows((info.id for info in ordered), ManifestId.size),
            np.array([info.size_bytes for info in ordered], np.uint64),
            np.array([info.num_chunk_refs for info in ordered], np.uint32),
            BlobColumn.from_values(extra) if any(e is not None for e in extra) else None,
        )


def _keys(ids: Bytes) -> NDArray[np.bytes_]:
    """Ids in a form that sorts and compares as a whole."""
    return np.ascontiguousarray(ids).view("S12").reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
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
        plain = ("id", "flushed_at", "message", "metadata", "parent_id", "extra")
        return (
            all(getattr(self, name) == getattr(other, name) for name in plain)
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


def _decode_nodes(rows: Rows, spec_version: int) -> NodeColumns:
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
    return NodeColumns(
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
    if is_v1.all():
        return {
            "count": old_count,
            "array_length": length,
            "num_chunks": _num_chunks(length, chunk),
            "chunk_length": chunk,
        }
    raise FormatError(
        f"{arrays.buffer.name}: some arrays have version-1 shapes and others version-2 shapes; "
        "a file has one or the other",
        ErrorKind.DESERIALIZATION,
    )


def _num_chunks(
    array_length: NDArray[np.uint64], chunk_length: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """How many chunks of equal length readers of version 1 find."""
    divisor = np.maximum(chunk_length, np.uint64(1))
    return array_length // divisor + (array_length % divisor > 0)


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


# -- Snapshot files, from columns to bytes.


_SHAPE_V2 = ("array_length", "num_chunks")
_REF = ("object_id", "extents")


def encode_snapshot(snapshot: Snapshot, *, spec_version: int, level: int = 3) -> bytes:
    """Encode a snapshot. Version 1 keeps the parent in the file, version 2 in the repo object."""
    writer = FlatWriter()
    fields = ["id", "nodes", "flushed_at", "message", "metadata", "manifest_files"]
    fields += ["parent_id"] if snapshot.parent_id is not None else []
    fields += ["manifest_files_v2"] if spec_version > 1 else []
    fields += ["extra"] if snapshot.extra is not None else []
    root = writer.table(SNAPSHOT, fields)
    root.set("id", snapshot.id)
    root.set("flushed_at", snapshot.flushed_at)
    if snapshot.parent_id is not None:
        root.set("parent_id", snapshot.parent_id)
    vector = writer.offsets(len(snapshot.nodes))
    root.point("nodes", vector.position)
    vector.point(_add_nodes(writer, snapshot.nodes, spec_version))
    root.point("message", writer.text(snapshot.message))
    items = encode_metadata(snapshot.metadata, spec_version)
    root.point("metadata", write_item_vector(writer, items))
    _add_manifest_files(writer, root, snapshot.manifest_files, spec_version)
    if snapshot.extra is not None:
        root.point("extra", writer.blob(snapshot.extra))
    return encode_envelope(writer.finish(root), spec_version, FileType.SNAPSHOT, level)


def _add_manifest_files(
    writer: FlatWriter, root: SingleTable, files: ManifestFiles, spec_version: int
) -> None:
    structs = np.zeros(0 if spec_version > 1 else len(files), MANIFEST_FILE_INFO)
    if spec_version == 1 and len(files):
        structs["id"] = np.ascontiguousarray(files.id).view("V12").reshape(-1)
        structs["size_bytes"] = files.size_bytes
        structs["num_chunk_refs"] = files.num_chunk_refs
    root.point("manifest_files", writer.vector(structs, align=8))
    if spec_version == 1:
        return
    vector = writer.offsets(len(files))
    root.point("manifest_files_v2", vector.position)
    extra = np.zeros(len(files), np.bool_)
    if files.extra is not None:
        extra = files.extra.is_valid()
    tables = writer.tables(
        MANIFEST_FILE_INFO_V2,
        len(files),
        {"id": None, "size_bytes": None, "num_chunk_refs": None, "extra": extra},
    )
    vector.point(tables.position)
    tables.set("id", files.id)
    tables.set("size_bytes", files.size_bytes)
    tables.set("num_chunk_refs", files.num_chunk_refs)
    if files.extra is not None:
        tables.point("extra", writer.blobs(files.extra, terminator=0))


def _add_nodes(writer: FlatWriter, table: NodeTable, spec_version: int) -> Positions:
    """Place all nodes and what hangs on them; returns the positions of the node tables."""
    if isinstance(table, NodeRows) and spec_version > 1:
        return [_add_node(writer, node) for node in table.nodes]
    nodes = table.columns
    extra = np.zeros(len(nodes), np.bool_)
    if nodes.extra is not None:
        extra = nodes.extra.is_valid()
    required = dict.fromkeys(("id", "path", "user_data", "node_data_type", "node_data"))
    tables = writer.tables(NODE_SNAPSHOT, len(nodes), {**required, "extra": extra})
    tables.set("id", nodes.id)
    tables.set("node_data_type", np.where(nodes.is_array, ARRAY, GROUP))
    tables.point("path", writer.blobs(nodes.path))
    tables.point("user_data", writer.blobs(nodes.user_data, terminator=0))
    if nodes.extra is not None:
        tables.point("extra", writer.blobs(nodes.extra, terminator=0))
    data = np.zeros(len(nodes), np.int64)
    if not nodes.is_array.all():
        # Group data has no fields, so one empty table serves every group.
        data[~nodes.is_array] = writer.table(GROUP_NODE_DATA, []).position
    data[nodes.is_array] = _add_arrays(writer, nodes, spec_version)
    tables.point("node_data", data)
    return tables.position


def _add_node(writer: FlatWriter, node: Node) -> int:
    """Place one node. Up to some dozens this takes a third of the time of columns."""
    fields = ["id", "path", "user_data", "node_data_type", "node_data"]
    table = writer.table(NODE_SNAPSHOT, fields if node.extra is None else [*fields, "extra"])
    table.set("id", node.id)
    table.set("node_data_type", GROUP if node.array is None else ARRAY)
    table.point("path", writer.text(node.path))
    table.point("user_data", writer.blob(node.user_data))
    if node.extra is not None:
        table.point("extra", writer.blob(node.extra))
    if node.array is None:
        table.point("node_data", writer.table(GROUP_NODE_DATA, []).position)
    else:
        table.point("node_data", _add_array(writer, node.array))
    return table.position


def _add_array(writer: FlatWriter, array: ArrayData) -> int:
    names = array.dimension_names
    fields = ["shape", "manifests", "shape_v2"]
    table = writer.table(ARRAY_NODE_DATA, fields if names is None else [*fields, "dimension_names"])
    table.point("shape", writer.structs(b"", 0, align=8))
    position, rows = _add_vector(writer, DIMENSION_SHAPE_V2, [_SHAPE_V2] * len(array.shape))
    table.point("shape_v2", position)
    for row, dimension in zip(rows, array.shape, strict=True):
        _check_num_chunks(dimension.num_chunks)
        row.set("array_length", dimension.array_length)
        row.set("num_chunks", dimension.num_chunks)
    if names is not None:
        named = [() if name is None else ("name",) for name in names]
        position, rows = _add_vector(writer, DIMENSION_NAME, named)
        table.point("dimension_names", position)
        for row, name in zip(rows, names, strict=True):
            if name is not None:
                row.point("name", writer.text(name))
    position, rows = _add_vector(writer, MANIFEST_REF, [_REF] * len(array.manifests))
    table.point("manifests", position)
    for row, ref in zip(rows, array.manifests, strict=True):
        row.set("object_id", ref.id)
        box = struct.pack(f"<{2 * len(ref.extents)}I", *chain.from_iterable(ref.extents))
        row.point("extents", writer.structs(box, len(ref.extents)))
    return table.position


def _add_vector(
    writer: FlatWriter, spec: TableSpec, fields: Sequence[tuple[str, ...]]
) -> tuple[int, list[SingleTable]]:
    """Reserve a vector of tables with these fields: its position, and the tables."""
    vector = writer.offsets(len(fields))
    rows = [writer.table(spec, names) for names in fields]
    vector.point([row.position for row in rows])
    return vector.position, rows


def _check_num_chunks(largest: int) -> None:
    if largest >= 2**32:
        raise FormatError(
            f"an array has {largest:,} chunks along one dimension, "
            f"the format counts to {2**32 - 1:,}; use larger chunks",
            ErrorKind.SERIALIZATION,
        )


def _add_arrays(writer: FlatWriter, nodes: NodeColumns, spec_version: int) -> Positions:
    count = len(nodes.num_dimensions)
    fields = {"shape": None, "dimension_names": nodes.has_names, "manifests": None}
    tables = writer.tables(
        ARRAY_NODE_DATA, count, {**fields, "shape_v2": None} if spec_version > 1 else fields
    )
    if spec_version > 1:
        none = np.zeros(count, np.int64)
        shapes = writer.vectors(np.empty(0, DIMENSION_SHAPE), none, align=8)
        tables.point("shape_v2", _add_shapes_v2(writer, nodes))
    else:
        shapes = writer.vectors(_shapes_v1(nodes), nodes.num_dimensions, align=8)
    tables.point("shape", shapes)
    if nodes.has_names.any():
        tables.point("dimension_names", _add_names(writer, nodes))
    tables.point("manifests", _add_manifest_refs(writer, nodes))
    return tables.position


def _shapes_v1(nodes: NodeColumns) -> NDArray[Any]:
    """Version 1 stores chunk lengths, from which readers work the numbers of chunks out."""
    structs = np.zeros(len(nodes.array_length), DIMENSION_SHAPE)
    structs["array_length"] = nodes.array_length
    structs["chunk_length"] = chunk = nodes.chunk_lengths()
    wrong = np.flatnonzero(_num_chunks(nodes.array_length, chunk) != nodes.num_chunks)
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(
            f"a dimension of {int(nodes.array_length[row]):,} elements in "
            f"{int(nodes.num_chunks[row]):,} chunks cannot be written with spec version 1, which "
            "knows equal chunks only; use version 2",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    return structs


def _add_shapes_v2(writer: FlatWriter, nodes: NodeColumns) -> Positions:
    _check_num_chunks(int(nodes.num_chunks.max(initial=0)))
    vectors = writer.nested_offsets(nodes.num_dimensions)
    tables = writer.tables(
        DIMENSION_SHAPE_V2, len(nodes.num_chunks), {"array_length": None, "num_chunks": None}
    )
    vectors.point(tables.position)
    tables.set("array_length", nodes.array_length)
    tables.set("num_chunks", nodes.num_chunks)
    return vectors.position


def _add_names(writer: FlatWriter, nodes: NodeColumns) -> Positions:
    """Vectors of dimension names, one for every array; those without names share nothing."""
    counts = np.where(nodes.has_names, nodes.num_dimensions, 0)
    rows = np.flatnonzero(np.repeat(nodes.has_names, nodes.num_dimensions))
    names = nodes.dimension_name.take(rows)
    vectors = writer.nested_offsets(counts)
    is_named = names.is_valid()
    tables = writer.tables(DIMENSION_NAME, len(names), {"name": is_named})
    vectors.point(tables.position)
    tables.point("name", writer.blobs(names))
    return vectors.position


def _add_manifest_refs(writer: FlatWriter, nodes: NodeColumns) -> Positions:
    vectors = writer.nested_offsets(nodes.num_manifests)
    tables = writer.tables(
        MANIFEST_REF, len(nodes.manifest_id), {"object_id": None, "extents": None}
    )
    vectors.point(tables.position)
    tables.set("object_id", nodes.manifest_id)
    counts = np.repeat(nodes.num_dimensions, nodes.num_manifests)
    boxes = np.ascontiguousarray(nodes.extents, "<u4").reshape(-1).view(CHUNK_INDEX_RANGE)
    tables.point("extents", writer.vectors(boxes, counts))
    return vectors.position
