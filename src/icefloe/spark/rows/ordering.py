"""Values and rows in order: coordinates sorted, rows brought together by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.rows.arrays import RowsRequest, check_present
from icefloe.spark.rows.columns import Taken, as_keys, key_type, spare_integers
from icefloe.spark.rows.grid import BLOCK


def sorted_keys(dim: str, column: pa.Array, request: RowsRequest) -> pa.Array:
    """Distinct values in the order in which new coordinates are stored."""
    keys = pc.unique(as_keys(dim, column, key_type(request.types[dim])))
    check_present(dim, keys)
    return keys.take(pc.sort_indices(keys))


def taken_of(table: pa.Table, request: RowsRequest) -> Taken:
    """What variables of integers have of the values that may stand for missing ones."""
    found = {}
    for name in request.variables:
        if spare := spare_integers(request.types[name]):
            column = table[name]
            is_spare = pc.is_in(column, value_set=pa.array(spare, column.type))
            found[name] = frozenset(pc.unique(column.filter(is_spare)).to_pylist())
    return found


def joined(many: Sequence[Taken]) -> Taken:
    """What the columns of several tables have together."""
    names = {name for taken in many for name in taken}
    return {
        name: frozenset().union(*(taken.get(name, frozenset()) for taken in many)) for name in names
    }


def whole_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Rows sorted by block, put together: each block once, with all its rows."""
    held: list[pa.RecordBatch] = []
    current = -1
    for batch in batches:
        blocks = np.asarray(batch.column(BLOCK))
        if not len(blocks):
            continue
        starts = np.flatnonzero(np.diff(blocks, prepend=blocks[0] - 1))
        for start, stop in zip(starts, [*starts[1:], len(blocks)], strict=True):
            number = int(blocks[start])
            if number != current and held:
                yield current, pa.Table.from_batches(held)
                held = []
            current = number
            held.append(batch.slice(int(start), int(stop - start)))
    if held:
        yield current, pa.Table.from_batches(held)
