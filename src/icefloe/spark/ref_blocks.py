"""What a write task hands back: the references it made, as blocks of columns.

A row stands for all references of one array that a task made. Packed as compressed Arrow they are
a few bytes each, and neither Spark nor the driver ever sees one row a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icefloe.changes.change_set import ChangeSet
from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.ids import NodeId

SCHEMA = pa.schema(
    [
        ("node_id", pa.binary()),
        ("ndim", pa.int32()),
        ("chunks", pa.int64()),
        ("bytes", pa.int64()),
        ("refs", pa.binary()),
        ("deleted", pa.binary()),
    ]
)
DDL = "node_id binary, ndim int, chunks bigint, bytes bigint, refs binary, deleted binary"


@dataclass(frozen=True, slots=True)
class RefBlock:
    """References set and indices deleted, of one array."""

    node_id: NodeId
    refs: ChunkRefs
    deleted: Index


def blocks_of(changes: ChangeSet) -> Iterator[RefBlock]:
    """The chunk edits of a change set."""
    for node_id, edits in changes.chunks.items():
        yield RefBlock(node_id, *edits.columns())


def to_batch(blocks: Iterable[RefBlock]) -> pa.RecordBatch:
    """Blocks as rows."""
    rows = list(blocks)
    return pa.record_batch(
        [
            pa.array([bytes(block.node_id) for block in rows], pa.binary()),
            pa.array([block.refs.ndim for block in rows], pa.int32()),
            pa.array([len(block.refs) for block in rows], pa.int64()),
            pa.array([_stored_bytes(block.refs) for block in rows], pa.int64()),
            pa.array([pack_refs(block.refs) for block in rows], pa.binary()),
            pa.array([_pack_index(block.deleted) for block in rows], pa.binary()),
        ],
        schema=SCHEMA,
    )


def from_table(table: pa.Table) -> Iterator[RefBlock]:
    """Rows as blocks, in the order they came."""
    for batch in table.to_batches():
        yield from from_batch(batch)


def from_batch(batch: pa.RecordBatch) -> Iterator[RefBlock]:
    """Rows as blocks."""
    for row in batch.to_pylist():
        deleted = np.frombuffer(row["deleted"], np.uint32).reshape(-1, max(row["ndim"], 1))
        deleted = deleted[:, : row["ndim"]]
        yield RefBlock(NodeId(row["node_id"]), unpack_refs(row["refs"]), deleted)


def pack_refs(refs: ChunkRefs) -> bytes:
    """References as one compressed Arrow stream."""
    table = refs.to_arrow()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpack_refs(data: bytes) -> ChunkRefs:
    """The references of `pack_refs`."""
    with pa.ipc.open_stream(data) as reader:
        return ChunkRefs.from_arrow(reader.read_all())


def _pack_index(index: Index) -> bytes:
    # A 0-d array has indices without numbers; a column stands for "there is one".
    if index.shape[1] == 0:
        return np.zeros(len(index), np.uint32).tobytes()
    return np.ascontiguousarray(index).tobytes()


def _stored_bytes(refs: ChunkRefs) -> int:
    """Bytes that were written for these chunks: those of virtual ones were there before."""
    return int(refs.length[refs.kind != ChunkKind.VIRTUAL].sum())
