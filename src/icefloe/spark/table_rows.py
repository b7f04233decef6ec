"""Values and rows in order: coordinates sorted, rows brought together by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.table_arrays import TableRequest, check_present
from icefloe.spark.table_columns import as_keys, key_type
from icefloe.spark.table_grid import BLOCK


def sorted_keys(dim: str, column: pa.Array, request: TableRequest) -> pa.Array:
    """Distinct values in the order in which new coordinates are stored."""
    keys = pc.unique(as_keys(dim, column, key_type(request.types[dim])))
    check_present(dim, keys)
    return keys.take(pc.sort_indices(keys))


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
