"""Dictionary-encoding the blobs that many tables point at, cheapest test first.

Writers repeat themselves in four ways: neighbours share one blob, far rows share one blob,
neighbours have equal bytes, or equal bytes are stored again and again. Each is looked for before
all bytes are hashed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.arrow_columns import numbers_from_arrow, numbers_to_arrow
from icefloe.format.columns.blob_column import BlobColumn, gather
from icefloe.format.columns.blobs import Ints, gather_fixed, rows_by_length
from icefloe.format.flatbuffer.read import FlatBuffer

_SAMPLE = 2048
_ROWS_COMPARED = 1 << 14
_FEW = 2 * _SAMPLE  # rows: below this, a Python dictionary is quick enough


def encode_dictionary(
    buffer: FlatBuffer, at: NDArray[np.uint32], what: str
) -> tuple[NDArray[np.int32], BlobColumn]:
    """Codes and distinct values of the blobs whose length words are at `at`."""
    is_head = np.ones(len(at), np.bool_)
    np.not_equal(at[1:], at[:-1], out=is_head[1:])
    head = np.flatnonzero(is_head)
    codes, address = _distinct_addresses(at[head].astype(np.int64))
    start, length = buffer.vectors_at(address, 1, what)
    buffer.check_total(int(length.sum()), what)
    values = gather(buffer.u1, start, length)
    if len(values) > 1:
        numbers, values = distinct_values(values)
        codes = numbers.take(codes)
    if len(head) < len(at):
        codes = np.repeat(codes, np.diff(head, append=len(at)))
    return codes, values


def distinct_values(column: BlobColumn) -> tuple[NDArray[np.int32], BlobColumn]:
    """Codes of a column into its distinct values, -1 where it has none.

    A column that hardly repeats itself is its own dictionary.
    """
    if not column.null_count and seems_distinct(column):
        return np.arange(len(column), dtype=np.int32), column
    if len(column) <= _FEW:
        codes, first = _numbered(column.to_list())
        return codes, column.take(first)
    if _seems_to_have_runs(column):
        head = _run_heads(column)
        codes, values = distinct_values(column.take(head))
        return np.repeat(codes, np.diff(head, append=len(column))), values
    encoded = column.to_arrow().dictionary_encode()
    codes = numbers_from_arrow(encoded.indices.fill_null(-1))
    return codes, BlobColumn.from_arrow(encoded.dictionary)


def _seems_to_have_runs(column: BlobColumn) -> bool:
    """Whether most neighbours in the middle are equal. Then Arrow need not be loaded."""
    middle = column[len(column) // 2 - _SAMPLE // 2 : len(column) // 2 + _SAMPLE // 2]
    return len(_run_heads(middle)) < _SAMPLE // 2


def _run_heads(column: BlobColumn) -> Ints:
    """The rows whose value differs from that of the row before."""
    start, length = column.offsets[:-1], column.length
    is_same = np.zeros(len(column), np.bool_)
    np.equal(length[1:], length[:-1], out=is_same[1:])
    if column.absent is not None:
        is_same[1:] &= column.absent[1:] == column.absent[:-1]
    alike = np.flatnonzero(is_same)
    for rows in rows_by_length(length[alike]) if len(alike) else ():
        size = int(length[alike[rows[0]]])
        for first in range(0, len(rows), _ROWS_COMPARED):
            row = alike[rows[first : first + _ROWS_COMPARED]]
            mine, before = (gather_fixed(column.data, start[at], size) for at in (row, row - 1))
            is_same[row] = (mine == before).all(axis=1)
    return np.flatnonzero(~is_same)


def _distinct_addresses(address: Ints) -> tuple[NDArray[np.int32], Ints]:
    if len(address) == 1 or seems_distinct(address):
        return np.arange(len(address), dtype=np.int32), address
    if len(address) <= _FEW:
        codes, first = _numbered(address.tolist())
        return codes, address[first]
    encoded = numbers_to_arrow(address).dictionary_encode()
    return numbers_from_arrow(encoded.indices), numbers_from_arrow(encoded.dictionary)


def _numbered(values: Iterable[Hashable]) -> tuple[NDArray[np.int32], Ints]:
    """A number for each distinct value in order of appearance, -1 for None; where each came."""
    number: dict[Any, int] = {None: -1}
    first: list[int] = []
    codes: list[int] = []
    for row, value in enumerate(values):
        code = number.setdefault(value, len(first))
        if code == len(first):
            first.append(row)
        codes.append(code)
    return np.array(codes, np.int32), np.array(first, np.int64)


def seems_distinct(values: BlobColumn | Ints) -> bool:
    """Whether hashing every value would be wasted: a sample hardly repeats itself.

    A wrong guess costs memory or time, never a wrong value.
    """
    if len(values) <= _FEW:
        return False
    spread_out = np.linspace(0, len(values) - 1, _SAMPLE).astype(np.int64)
    neighbours = np.arange(len(values) // 2, len(values) // 2 + _SAMPLE)
    samples = (values.take(rows) for rows in (spread_out, neighbours))
    return all(len(set(sample)) > 0.9 * _SAMPLE for sample in samples)
