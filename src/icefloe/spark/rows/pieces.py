"""Rows of one chunk that arrive in many tasks: set aside as pieces, put together at the end.

Spark's data sources bring no rows together, and the coordinates of new cells are known only when
every task has seen its rows. So tasks store their rows as compressed Arrow in objects under
`chunks/`, with ids of their own; no snapshot ever refers to them, and the garbage collector takes
them away. The commit reads them again, as many blocks at a time as fit a fixed amount of memory.
Tasks sort their rows and cut them into small pieces, each with the coordinates it has: so the
commit reads what belongs to its blocks, and not everything for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.format.columns.arrow_columns import pack_table, unpack_table
from icefloe.ids import ChunkId
from icefloe.spark.batch_ids import BatchId
from icefloe.spark.rows.arrays import RowsRequest, check_present, prepare
from icefloe.spark.rows.columns import Taken, as_keys, key_type
from icefloe.spark.rows.grid import BLOCK, RowGrid, combined
from icefloe.spark.rows.ordering import joined, sorted_keys, taken_of, whole_blocks
from icefloe.storage.driver import Span
from icefloe.storage.run import run_blocking

OBJECT_BYTES = 64 << 20
PIECE_BYTES = 2 << 20
ASSEMBLY_BYTES = 32 << 20
_IN_MESSAGE_BYTES = 64 << 10  # a smaller piece travels in the message of its task
_PIECES_AT_ONCE = 32
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that one task has set aside, and which coordinates they have."""

    key: str
    span: Span
    data: bytes | None
    """The rows themselves, when they are few; otherwise they are in the object `key`."""
    values: Mapping[str, pa.Array]
    taken: Taken

    def table(self, data: Any) -> pa.Table:
        """The rows, from what was fetched of them."""
        return unpack_table(pa.py_buffer(data))


def read_pieces(repository: Repository, pieces: Sequence[Piece]) -> Iterator[pa.Table]:
    """The rows of pieces, some of which are fetched at once."""
    driver = repository.handle.driver
    for first in range(0, len(pieces), _PIECES_AT_ONCE):
        some = pieces[first : first + _PIECES_AT_ONCE]
        stored = [piece for piece in some if piece.data is None]
        wanted = [(piece.key, piece.span) for piece in stored]
        fetched = iter(run_blocking(driver.get_many(wanted)))
        for piece in some:
            yield piece.table(next(fetched) if piece.data is None else piece.data)


def stage(
    repository: Repository, request: RowsRequest, batches: Iterable[pa.RecordBatch]
) -> list[Piece]:
    """Set rows aside; when this returns they are safe."""
    pieces: list[Piece] = []
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        chosen = batch.select(list(request.columns))
        held.append(chosen)
        size += chosen.nbytes
        if size >= OBJECT_BYTES:
            pieces += _pieces(repository, request, held)
            held, size = [], 0
    if sum(batch.num_rows for batch in held):
        pieces += _pieces(repository, request, held)
    run_blocking(repository.handle.driver.sync())
    return pieces


def _pieces(
    repository: Repository, request: RowsRequest, batches: Sequence[pa.RecordBatch]
) -> list[Piece]:
    """Rows in the order of their coordinates, cut into pieces, all of them in one object."""
    table = _sorted(pa.Table.from_batches(batches), request)
    step = max(1, table.num_rows * PIECE_BYTES // max(table.nbytes, 1))
    parts = [table.slice(start, step) for start in range(0, table.num_rows, step)]
    packed = [pack_table(part) for part in parts]
    handle = repository.handle
    is_small = sum(map(len, packed)) <= _IN_MESSAGE_BYTES
    key = "" if is_small else handle.assets.chunk_key(handle.new_id(ChunkId))
    if not is_small:
        run_blocking(handle.driver.put(key, b"".join(packed)))
    starts = accumulate(map(len, packed), initial=0)
    return [
        Piece(
            key,
            Span(start, len(data)),
            data if is_small else None,
            {dim: _distinct(dim, part, request) for dim in request.dims},
            taken_of(part, request),
        )
        for part, data, start in zip(parts, packed, starts, strict=False)
    ]


def _sorted(table: pa.Table, request: RowsRequest) -> pa.Table:
    """Rows in the order of their coordinates; Arrow takes four times as long for several keys."""
    place = np.zeros(table.num_rows, np.int64)
    for dim in request.dims:
        column = combined(table[dim])
        check_present(dim, column)
        coded = column.dictionary_encode()
        rank = np.empty(len(coded.dictionary), np.int64)
        rank[pc.sort_indices(coded.dictionary)] = np.arange(len(rank))
        place = place * len(rank) + rank[coded.indices]
    return table.take(pa.array(np.argsort(place, kind="stable")))


def _distinct(dim: str, table: pa.Table, request: RowsRequest) -> pa.Array:
    found = as_keys(dim, pc.unique(table[dim]), key_type(request.types[dim]))
    check_present(dim, found)
    return found


def commit_pieces(
    repository: Repository,
    branch: str,
    request: RowsRequest,
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
    request: RowsRequest,
    pieces: Sequence[Piece],
    memory: int = ASSEMBLY_BYTES,
) -> None:
    """Write the rows of all pieces into a session, some blocks at a time."""
    values = {}
    for dim in request.dims:
        found = pa.concat_arrays([piece.values[dim] for piece in pieces])
        values[dim] = sorted_keys(dim, found, request)
    taken = joined([piece.taken for piece in pieces])
    grid = prepare(session, request, {**values, **request.coordinates}, taken)
    touched = [_blocks_touched(grid, piece) for piece in pieces]
    for blocks in _groups(grid, np.unique(np.concatenate(touched)), memory):
        here = [
            piece
            for piece, candidates in zip(pieces, touched, strict=True)
            if len(np.intersect1d(candidates, blocks, assume_unique=True))
        ]
        tables = []
        for found in read_pieces(repository, here):
            rows = grid.locate(found)
            is_here = np.isin(np.asarray(rows[BLOCK]), blocks)
            tables.append(rows.filter(pa.array(is_here)))
        rows = pa.concat_tables(tables).sort_by(BLOCK)
        for block, part in whole_blocks(rows.to_batches()):
            grid.write_block(session, block, part)


def _blocks_touched(grid: RowGrid, piece: Piece) -> NDArray[np.int64]:
    """The blocks that may have a row of a piece, sorted."""
    shape = (grid.axes, grid.grid.chunks)
    along = [
        np.unique(axis.locate(piece.values[axis.name]) // step)
        for axis, step in zip(*shape, strict=True)
    ]
    return np.ravel_multi_index(np.ix_(*along), grid.blocks).reshape(-1).astype(np.int64)


def _groups(grid: RowGrid, blocks: NDArray[np.int64], memory: int) -> Iterator[NDArray[np.int64]]:
    size = math.prod(grid.grid.chunks) * (grid.grid.itemsize + 8)  # the number of the cell as well
    many = max(1, memory // max(size, 1))
    for start in range(0, len(blocks), many):
        yield blocks[start : start + many]
