"""Rows of one chunk that arrive in many tasks: set aside as pieces, put together at the end.

Spark's data sources bring no rows together, and the coordinates of new cells are known only when
every task has seen its rows. So tasks store their rows as compressed Arrow in objects under
`chunks/`, with ids of their own; no snapshot ever refers to them, and the garbage collector takes
them away. The commit reads them again, as many blocks at a time as fit a fixed amount of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.format.layout import chunk_key
from icefloe.ids import ChunkId
from icefloe.spark.batch_ids import BatchId
from icefloe.spark.table_arrays import TableRequest, check_present, prepare
from icefloe.spark.table_columns import Spans, as_keys, key_type
from icefloe.spark.table_grid import BLOCK, TableGrid
from icefloe.spark.table_rows import joined_spans, sorted_keys, spans_of, whole_blocks
from icefloe.storage.run import run_blocking

PIECE_BYTES = 64 << 20
ASSEMBLY_BYTES = 256 << 20
_IN_MESSAGE_BYTES = 64 << 10  # a smaller piece travels in the message of its task
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that one task has set aside, and which coordinates they have."""

    key: str
    data: bytes | None
    """The rows themselves, when they are few; otherwise they are the object `key`."""
    values: Mapping[str, pa.Array]
    spans: Spans

    def read(self, repository: Repository) -> pa.Table:
        """The rows."""
        data: Any = self.data
        if data is None:
            data = run_blocking(repository._handles.blocking.driver.get(self.key))
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            return reader.read_all()


def stage(
    repository: Repository, request: TableRequest, batches: Iterable[pa.RecordBatch]
) -> list[Piece]:
    """Set rows aside; when this returns they are safe."""
    pieces: list[Piece] = []
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        chosen = batch.select(list(request.columns))
        held.append(chosen)
        size += chosen.nbytes
        if size >= PIECE_BYTES:
            pieces.append(_piece(repository, request, held))
            held, size = [], 0
    if sum(batch.num_rows for batch in held):
        pieces.append(_piece(repository, request, held))
    run_blocking(repository._handles.blocking.driver.sync())
    return pieces


def _piece(
    repository: Repository, request: TableRequest, batches: Sequence[pa.RecordBatch]
) -> Piece:
    table = pa.Table.from_batches(batches)
    values = {}
    for dim in request.dims:
        column = pc.unique(table[dim])
        values[dim] = as_keys(dim, column, key_type(request.types[dim]))
        check_present(dim, values[dim])
    spans = spans_of(table, request)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data = bytes(sink.getvalue())
    if len(data) <= _IN_MESSAGE_BYTES:
        return Piece("", data, values, spans)
    handle = repository._handles.blocking
    chunk_id = handle.new_id(ChunkId)
    key = chunk_key(ChunkId(bytes(chunk_id)))
    run_blocking(handle.driver.put(key, data))
    return Piece(key, None, values, spans)


def commit_pieces(
    repository: Repository,
    branch: str,
    request: TableRequest,
    pieces: Sequence[Piece],
    message: str,
    batch: BatchId | None = None,
) -> str | None:
    """Put all pieces into arrays, in one commit; None if that was done before or there are no rows.

    If others commit to the branch meanwhile, the rows are put on top of what they left.
    """
    if not pieces:
        if request.mode == "overwrite":
            raise InvalidInputError(
                f"the table has no rows; there is nothing to replace {request.variables} with"
            )
        return None
    for left in reversed(range(_TRIES)):
        session = repository.writable_session(branch)
        if batch is not None and batch.find(repository, session.snapshot_id) is not None:
            return None
        assemble(repository, session, request, pieces)
        try:
            metadata = None if batch is None else batch.metadata
            return session.commit(message, metadata, allow_empty=True)
        except ConflictError:
            if not left:
                raise
    raise AssertionError("the last try raises")


def assemble(
    repository: Repository,
    session: Session,
    request: TableRequest,
    pieces: Sequence[Piece],
    memory: int = ASSEMBLY_BYTES,
) -> None:
    """Write the rows of all pieces into a session, some blocks at a time."""
    values = {}
    for dim in request.dims:
        found = pa.concat_arrays([piece.values[dim] for piece in pieces])
        values[dim] = sorted_keys(dim, found, request)
    spans = joined_spans([piece.spans for piece in pieces])
    grid = prepare(session, request, {**values, **request.coordinates}, spans)
    touched = [_blocks_touched(grid, piece) for piece in pieces]
    for blocks in _groups(grid, np.unique(np.concatenate(touched)), memory):
        tables = []
        for piece, candidates in zip(pieces, touched, strict=True):
            if not len(np.intersect1d(candidates, blocks, assume_unique=True)):
                continue
            rows = grid.locate(piece.read(repository))
            is_here = np.isin(np.asarray(rows[BLOCK]), blocks)
            tables.append(rows.filter(pa.array(is_here)))
        rows = pa.concat_tables(tables).sort_by(BLOCK)
        for block, part in whole_blocks(rows.to_batches()):
            grid.write_block(session, block, part)


def _blocks_touched(grid: TableGrid, piece: Piece) -> NDArray[np.int64]:
    """The blocks that may have a row of a piece, sorted."""
    shape = (grid.axes, grid.grid.chunks)
    along = [
        np.unique(axis.locate(piece.values[axis.name]) // step)
        for axis, step in zip(*shape, strict=True)
    ]
    return np.ravel_multi_index(np.ix_(*along), grid.blocks).reshape(-1).astype(np.int64)


def _groups(grid: TableGrid, blocks: NDArray[np.int64], memory: int) -> Iterator[NDArray[np.int64]]:
    size = math.prod(grid.grid.chunks) * (grid.grid.itemsize + 8)  # the number of the cell as well
    many = max(1, memory // max(size, 1))
    for start in range(0, len(blocks), many):
        yield blocks[start : start + many]
