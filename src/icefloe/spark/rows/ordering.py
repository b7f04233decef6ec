"""Values and rows in order: coordinates sorted, spans joined, rows brought together by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.rows.arrays import RowsRequest, check_present
from icefloe.spark.rows.columns import Spans, as_keys, has_span, key_type
from icefloe.spark.rows.grid import BLOCK


def sorted_keys(dim: str, column: pa.Array, request: RowsRequest) -> pa.Array:
    """Distinct values in the order in which new coordinates are stored."""
    keys = pc.unique(as_keys(dim, column, key_type(request.types[dim])))
    check_present(dim, keys)
    return keys.take(pc.sort_indices(keys))


def spans_of(table: pa.Table, request: RowsRequest) -> Spans:
    """The smallest and the largest of each variable of integers; none where all are null."""
    found = {}
    for name in request.variables:
        if has_span(request.types[name]):
            ends = pc.min_max(table[name])
            if ends["min"].is_valid:
                found[name] = (ends["min"].as_py(), ends["max"].as_py())
    return found


def joined_spans(many: Sequence[Spans]) -> Spans:
    """The spans of several tables together."""
    found: dict[str, tuple[int, int]] = {}
    for spans in many:
        for name, (low, high) in spans.items():
            before = found.get(name, (low, high))
            found[name] = (min(before[0], low), max(before[1], high))
    return found


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
