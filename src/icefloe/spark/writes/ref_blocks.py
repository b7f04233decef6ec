"""What a write task hands back: the references it made, as blocks of columns.

A row holds all references that a task made of one array, or of one piece of it, as compressed
Arrow: a few bytes per reference. So neither Spark nor the driver has one row per chunk. In a large
job other tasks write the manifests. Then a row holds the manifests of one piece.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from icefloe.changes.prepared import PreparedPiece
from icefloe.format.columns.arrow_columns import batch_of
from icefloe.format.columns.chunk_index import Index, sort_rows
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.ids import NodeId

SCHEMA = pa.schema(
    [
        ("node_id", pa.binary()),
        ("piece", pa.int64()),
        ("ndim", pa.int32()),
        ("chunks", pa.int64()),
        ("virtual", pa.int64()),
        ("bytes", pa.int64()),
        ("refs", pa.binary()),
        ("deleted", pa.binary()),
        ("made", pa.binary()),
        ("told", pa.binary()),
    ]
)
DDL = (
    "node_id binary, piece bigint, ndim int, chunks bigint, virtual bigint, bytes bigint, "
    "refs binary, deleted binary, made binary, told binary"
)
UNCUT = -1


class Counts(NamedTuple):
    """Chunks set, how many of them are virtual, and bytes written for the others."""

    chunks: int
    virtual: int
    bytes: int

    @classmethod
    def of(cls, refs: ChunkRefs) -> Counts:
        """What a table of references adds up to."""
        is_virtual = refs.kind == ChunkKind.VIRTUAL
        return cls(len(refs), int(is_virtual.sum()), int(refs.length[~is_virtual].sum()))

    @classmethod
    def total(cls, many: Iterable[Counts]) -> Counts:
        """The sum."""
        return cls(*(sum(column) for column in zip((0, 0, 0), *many, strict=True)))


@dataclass(frozen=True, slots=True)
class RefBlock:
    """References set and indices deleted, of one array or of one of its pieces."""

    node_id: NodeId
    refs: ChunkRefs
    deleted: Index
    piece: int = UNCUT


def joined(blocks: Sequence[RefBlock]) -> tuple[ChunkRefs, Index]:
    """The references and deletions of several blocks, ascending."""
    refs = ChunkRefs.concat([block.refs for block in blocks])
    deleted = np.concatenate([block.deleted for block in blocks])
    return refs.take(sort_rows(refs.index)), deleted[sort_rows(deleted)]


class MadePiece(NamedTuple):
    """A piece whose manifests are written."""

    node_id: NodeId
    piece: PreparedPiece


def to_batch(blocks: Iterable[RefBlock]) -> pa.RecordBatch:
    """Blocks as rows."""
    return _rows(
        {
            "node_id": bytes(block.node_id),
            "piece": block.piece,
            "ndim": block.refs.ndim,
            **Counts.of(block.refs)._asdict(),
            "refs": block.refs.pack(),
            "deleted": _pack_index(block.deleted),
        }
        for block in blocks
    )


def made_batch(
    node_id: NodeId, number: int, piece: PreparedPiece, counts: Counts
) -> pa.RecordBatch:
    """A written piece as a row."""
    row = {
        "node_id": bytes(node_id),
        "piece": number,
        "ndim": piece.touched.ndim,
        **counts._asdict(),
        "made": pickle.dumps(piece),
    }
    return _rows([row])


def told_batch(told: Any) -> pa.RecordBatch:
    """A row with another result of a task, besides references and manifests."""
    row = {"node_id": b"", "piece": UNCUT, "ndim": 0, "chunks": 0, "virtual": 0, "bytes": 0}
    return _rows([{**row, "told": pickle.dumps(told)}])


def _rows(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return batch_of(SCHEMA, [[row.get(name) for name in SCHEMA.names] for row in rows])


def told_in(table: pa.Table) -> list[Any]:
    """The other results of the tasks."""
    return [pickle.loads(told) for told in table["told"].drop_null().to_pylist()]


def counts_in(table: pa.Table) -> Counts:
    """What all rows add up to."""
    return Counts(*(sum(table[name].to_pylist()) for name in Counts._fields))


def made_in(table: pa.Table) -> Iterator[MadePiece]:
    """The rows that are written pieces."""
    for node_id, made in zip(table["node_id"], table["made"], strict=True):
        if made.is_valid:
            yield MadePiece(NodeId(node_id.as_py()), pickle.loads(made.as_py()))


def from_table(table: pa.Table) -> Iterator[RefBlock]:
    """The rows that are blocks, in the order they came."""
    for batch in table.to_batches():
        yield from from_batch(batch)


def from_batch(batch: pa.RecordBatch) -> Iterator[RefBlock]:
    """The rows that are blocks."""
    for number in range(batch.num_rows):
        row = {name: batch.column(name)[number].as_py() for name in _BLOCK_FIELDS}
        if row["refs"] is None:
            continue
        deleted = np.frombuffer(row["deleted"], np.uint32).reshape(-1, max(row["ndim"], 1))
        deleted = deleted[:, : row["ndim"]]
        refs = ChunkRefs.unpack(row["refs"])
        yield RefBlock(NodeId(row["node_id"]), refs, deleted, row["piece"])


_BLOCK_FIELDS: Sequence[str] = ("node_id", "piece", "ndim", "refs", "deleted")


def _pack_index(index: Index) -> bytes:
    # A 0-d array has indices without numbers; a column stands for "there is one".
    if index.shape[1] == 0:
        return np.zeros(len(index), np.uint32).tobytes()
    return np.ascontiguousarray(index).tobytes()
