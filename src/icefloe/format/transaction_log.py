"""Transaction logs: which nodes and chunks a commit touched. Chunk coordinates are matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe import paths
from icefloe.format.chunk_index import Index, PackedIndex, SortedIndex, numbered, sort_rows
from icefloe.format.columns import Ints, spread
from icefloe.format.envelope import FileType, decode_envelope, encode_envelope
from icefloe.format.flatbuffer.read import EqualVectors, FlatBuffer, Rows, Table, index_tail
from icefloe.format.flatbuffer.schema import (
    ARRAY_UPDATED_CHUNKS,
    CHUNK_INDICES,
    MOVE_OPERATION,
    TRANSACTION_LOG,
)
from icefloe.format.flatbuffer.write import FlatWriter, Produced, padded, table_layout
from icefloe.format.nodes import check_paths
from icefloe.ids import NodeId, SnapshotId

_SLICE = 1 << 16
_BLOCK = 64
_NO_CHUNKS = np.empty((0, 0), np.uint32)


class NodeType(IntEnum):
    """The kind of a moved node, as logs number it (snapshots number kinds otherwise)."""

    GROUP = 0
    ARRAY = 1


class Move(NamedTuple):
    """A node that a commit gave another path."""

    source: str
    destination: str
    node_id: NodeId
    node_type: NodeType


@dataclass(frozen=True, slots=True, eq=False)
class TransactionLog:
    """A decoded log. `updated_chunks` has a matrix of ascending chunk indices for each array.

    `moved_nodes` is None where a file does not have the field, as before Icechunk 2.
    """

    id: SnapshotId
    new_groups: frozenset[NodeId] = frozenset()
    new_arrays: frozenset[NodeId] = frozenset()
    deleted_groups: frozenset[NodeId] = frozenset()
    deleted_arrays: frozenset[NodeId] = frozenset()
    updated_arrays: frozenset[NodeId] = frozenset()
    updated_groups: frozenset[NodeId] = frozenset()
    updated_chunks: Mapping[NodeId, Index] = field(default_factory=dict)
    moved_nodes: tuple[Move, ...] | None = ()
    extra: bytes | None = None
    packed_chunks: Mapping[NodeId, PackedIndex] = field(default_factory=dict)
    """More of `updated_chunks`, in a log that is about to be written; no decoded log has any."""

    @property
    def num_changes(self) -> int:
        nodes = sum(len(getattr(self, name)) for name in NODE_LISTS)
        chunks = sum(map(len, self.updated_chunks.values()))
        chunks += sum(map(len, self.packed_chunks.values()))
        return nodes + chunks + len(self.moved_nodes or ())

    def equals(self, other: TransactionLog) -> bool:
        """Same changes."""
        plain = ("id", "moved_nodes", "extra", *NODE_LISTS)
        return (
            all(getattr(self, name) == getattr(other, name) for name in plain)
            and self.updated_chunks.keys() == other.updated_chunks.keys()
            and all(
                np.array_equal(chunks, other.updated_chunks[node])
                for node, chunks in self.updated_chunks.items()
            )
        )


NODE_LISTS = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_arrays",
    "updated_groups",
)


def decode_transaction_log(
    data: bytes | memoryview, name: str = "transaction log"
) -> TransactionLog:
    """Decode a transaction log. `name` is what errors call it.

    Raises:
        FormatError: the bytes are not a whole, consistent log.
    """
    _, payload, size = decode_envelope(data, FileType.TRANSACTION_LOG, name)
    buffer = FlatBuffer(payload, size, name)
    root = buffer.root(TRANSACTION_LOG)
    lists: dict[str, Any] = {name: _node_ids(root, name) for name in NODE_LISTS}
    return TransactionLog(
        id=SnapshotId(root.id("id")),
        **lists,
        updated_chunks=_decode_chunks(root),
        moved_nodes=_decode_moves(root) if root.has("moved_nodes") else None,
        extra=root.bytes("extra"),
    )


def _node_ids(root: Table, field_name: str) -> frozenset[NodeId]:
    raw = root.array(field_name, "V8")
    assert raw is not None  # required fields
    if not len(raw):
        return frozenset()
    ids = frozenset(NodeId(item.tobytes()) for item in raw)
    if len(ids) != len(raw):
        root.buffer.fail(f"TransactionLog.{field_name} lists a node twice")
    return ids


def _decode_moves(root: Table) -> tuple[Move, ...]:
    if not root.count("moved_nodes"):
        return ()
    rows = root.rows("moved_nodes", MOVE_OPERATION)
    node_type = rows.scalar("node_type")
    if int(node_type.max()) > max(NodeType):
        root.buffer.fail(f"MoveOperation.node_type is {int(node_type.max())}, expected 0 or 1")
    sources, destinations = rows.strings("from").to_list(), rows.strings("to").to_list()
    check_paths(root.buffer, sources, "MoveOperation.from")
    check_paths(root.buffer, destinations, "MoveOperation.to")
    return tuple(
        Move(source, destination, NodeId(node.tobytes()), NodeType(kind))
        for source, destination, node, kind in zip(
            sources,
            destinations,
            rows.struct("node_id"),
            node_type.tolist(),
            strict=True,
        )
    )


def _decode_chunks(root: Table) -> dict[NodeId, Index]:
    rows, buffer = root.rows("updated_chunks", ARRAY_UPDATED_CHUNKS), root.buffer
    start, count, _ = rows.vectors("chunks", 4)
    ids = NodeId.of_rows(rows.struct("node_id"))
    if len(set(ids)) < len(ids):
        node_id = next(key for key in ids if ids.count(key) > 1)
        buffer.fail(f"updated chunks of node {node_id} are listed twice")
    is_small = (count > 0) & (count < _BLOCK)
    small = np.flatnonzero(is_small)
    found = dict(
        zip(small.tolist(), _decode_small(buffer, start[small], count[small]), strict=True)
    )
    for row in np.flatnonzero(~is_small).tolist():
        first, number = int(start[row]), int(count[row])
        slots = np.arange(first, first + 4 * number, 4, dtype=np.int64)
        found[row] = _decode_coordinates(buffer, buffer.targets(slots))
    return {node_id: found[row] for row, node_id in enumerate(ids)}


def _decode_small(buffer: FlatBuffer, start: Ints, count: Ints) -> list[Index]:
    """The coordinates of many arrays with few chunks each: one matrix for all of a rank."""
    if not len(start):
        return []
    buffer.check_apart(4 * int(count.sum()), "ArrayUpdatedChunks.chunks")
    tables = Rows(buffer, buffer.targets(spread(start, count, 4)), CHUNK_INDICES)
    field, first = tables.field("coords")[0], np.cumsum(count) - count
    # The first chunk says how many dimensions an array has; `EqualVectors` checks the others.
    at = buffer.targets(field[first])
    buffer.check(at, 4, 4, "ChunkIndices.coords")
    ndim = buffer.u4.take(at >> 2)
    found: list[Index] = [_NO_CHUNKS] * len(start)
    for rank in np.unique(ndim).tolist():
        mine = np.flatnonzero(ndim == rank)
        of_rank = field[np.repeat(ndim == rank, count)]
        vectors = EqualVectors(buffer, len(of_rank), "ChunkIndices.coords")
        vectors.read(slice(0, len(of_rank)), of_rank)
        owner = np.repeat(mine, count[mine])
        # Icechunk 1.1 wrote coordinates split by split, so they need not ascend.
        index = numbered(owner, vectors.matrix)
        index = index if SortedIndex(index).is_strictly_ascending() else index[sort_rows(index)]
        bounds = np.searchsorted(index[:, 0], [mine, mine + 1])
        for row, first, last in zip(mine.tolist(), *bounds.tolist(), strict=True):
            found[row] = index[first:last, 1:]
    return found


def _decode_coordinates(buffer: FlatBuffer, position: Ints) -> Index:
    """One matrix from many ChunkIndices tables."""
    vectors = EqualVectors(buffer, len(position), "ChunkIndices.coords")
    for first in range(0, len(position), _SLICE):
        rows = slice(first, min(first + _SLICE, len(position)))
        vectors.read(rows, Rows(buffer, position[rows], CHUNK_INDICES).field("coords")[0])
    index = vectors.matrix
    # Icechunk 1.1 wrote coordinates split by split, so they need not ascend as a whole.
    return index if SortedIndex(index).is_strictly_ascending() else index[sort_rows(index)]


def encode_transaction_log(log: TransactionLog, *, spec_version: int = 2, level: int = 3) -> bytes:
    """Encode a transaction log; lists are sorted as readers search them."""
    writer = FlatWriter()
    fields = ["id", *NODE_LISTS, "updated_chunks"]
    fields += ["moved_nodes"] if log.moved_nodes is not None else []
    fields += ["extra"] if log.extra is not None else []
    root = writer.table(TRANSACTION_LOG, fields)
    root.set("id", log.id)
    for name in NODE_LISTS:
        ids = sorted(getattr(log, name))
        root.point(name, writer.structs(b"".join(ids), len(ids)))
    chunks: dict[NodeId, Index | PackedIndex] = {**log.updated_chunks, **log.packed_chunks}
    root.point("updated_chunks", _add_chunks(writer, chunks))
    if log.moved_nodes is not None:
        root.point("moved_nodes", _add_moves(writer, log.moved_nodes))
    if log.extra is not None:
        root.point("extra", writer.blob(log.extra))
    return encode_envelope(writer.finish(root), spec_version, FileType.TRANSACTION_LOG, level)


def _add_moves(writer: FlatWriter, moves: tuple[Move, ...]) -> int:
    ordered = sorted(moves, key=lambda move: paths.segments(move.destination))
    vector = writer.offsets(len(ordered))
    if not ordered:
        return vector.position
    tables = writer.tables(
        MOVE_OPERATION,
        len(ordered),
        dict.fromkeys(("from", "to", "node_id", "node_type")),
    )
    vector.point(tables.position)
    tables.set("node_id", np.frombuffer(b"".join(move.node_id for move in ordered), np.uint8))
    tables.set("node_type", [move.node_type for move in ordered])
    tables.point("from", writer.blobs([move.source for move in ordered]))
    tables.point("to", writer.blobs([move.destination for move in ordered]))
    return vector.position


def _add_chunks(writer: FlatWriter, chunks: Mapping[NodeId, Index | PackedIndex]) -> int:
    nodes = sorted(chunks)
    vector = writer.offsets(len(nodes))
    tables = writer.tables(ARRAY_UPDATED_CHUNKS, len(nodes), {"node_id": None, "chunks": None})
    vector.point(tables.position)
    tables.set("node_id", np.frombuffer(b"".join(nodes), np.uint8))
    positions = np.zeros(len(nodes), np.int64)
    together: dict[int, list[tuple[int, Index]]] = {}
    for row, node in enumerate(nodes):
        index = chunks[node]
        if len(index) < _BLOCK and isinstance(index, np.ndarray):
            together.setdefault(index.shape[1], []).append((row, index))
        else:
            positions[row] = _add_coordinates(writer, index)
    for some in together.values():
        positions[[row for row, _ in some]] = _add_small(writer, [index for _, index in some])
    tables.point("chunks", positions)
    return vector.position


def _add_small(writer: FlatWriter, many: Sequence[Index]) -> Ints:
    """The same for many small arrays of one rank; returns a position for each."""
    vectors = writer.nested_offsets(np.array([len(index) for index in many], np.int64))
    index = np.concatenate(many)
    layout, vtable = table_layout(CHUNK_INDICES, ("coords",), index_tail(index.shape[1]))
    at_vtable = writer.add(vtable.tobytes(), align=2)
    records = np.zeros(len(index), layout)
    records["coords"] = 4
    records["tail"]["count"] = index.shape[1]
    if index.shape[1]:
        records["tail"]["at"] = index
    position = writer.add(records, align=4) + layout.itemsize * np.arange(len(index))
    records["soffset"] = position - at_vtable
    vectors.point(position)
    return vectors.position


def _add_coordinates(writer: FlatWriter, index: Index | PackedIndex) -> int:
    """A vector of ChunkIndices tables, each with its coordinates right behind it."""
    count, ndim = index.shape
    layout, vtable = table_layout(CHUNK_INDICES, ("coords",), index_tail(ndim))
    # Every so many tables have a vtable of their own: what leads there then repeats from block
    # to block, which the compressor likes.
    head = padded(vtable.nbytes, 4)
    block = np.dtype(
        [
            ("vtable", f"V{vtable.nbytes}"),
            ("gap", f"V{head - vtable.nbytes}"),
            ("rows", layout, (_BLOCK,)),
        ]
    )
    inside = head + np.arange(_BLOCK) * layout.itemsize
    start = padded(writer.size, 4)
    base = start + 4 * (count + 1)

    def size_of(number: int) -> int:
        """Bytes of so many tables with their vtables."""
        return -(-number // _BLOCK) * head + number * layout.itemsize

    def offsets() -> Iterator[NDArray[Any]]:
        yield np.array([count], "<u4")
        for first in range(0, count, _SLICE):
            rows = np.arange(first, min(first + _SLICE, count))
            at = base + rows // _BLOCK * block.itemsize + inside[rows % _BLOCK]
            yield (at - (start + 4 + 4 * rows)).astype("<u4")

    def tables() -> Iterator[NDArray[Any]]:
        for rows in _slices(index):
            blocks = np.zeros(-(-len(rows) // _BLOCK), block)
            blocks["vtable"] = vtable.view(f"V{vtable.nbytes}")[0]
            records = blocks["rows"]
            records["soffset"] = inside
            records["coords"] = 4
            records["tail"]["count"] = ndim
            if ndim:
                whole = len(rows) // _BLOCK
                full = rows[: whole * _BLOCK].reshape(-1, _BLOCK, ndim)
                records["tail"]["at"][:whole] = full
                if whole < len(blocks):
                    records["tail"]["at"][-1, : len(rows) % _BLOCK] = rows[whole * _BLOCK :]
            yield blocks.view(np.uint8)[: size_of(len(rows))]

    # A slice at a time, so that what is computed for it stays in the processor cache, and a log
    # of many millions of chunks is compressed without ever being there as a whole.
    for segment, expected in (
        (Produced(4 * (count + 1), offsets), start),
        (Produced(size_of(count), tables), base),
    ):
        position = writer.add(segment)
        assert position == expected
    return start


def _slices(index: Index | PackedIndex) -> Iterator[Index]:
    if isinstance(index, PackedIndex):
        return index.slices(_SLICE)
    return (index[first : first + _SLICE] for first in range(0, len(index), _SLICE))
