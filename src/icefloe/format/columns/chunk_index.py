"""Chunk indices as sort keys: order, lookup, boxes and merging, without a Python object a chunk.

An index matrix has one row per chunk and one column per dimension. Its key column is one int64 a
row (the row-major rank within the bounding box); boxes of more than 2**63 cells use big-endian
bytes instead, which sort the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.uint32]
Rows = NDArray[np.int64]

_SLICE = 1 << 16
_FEW = 64  # rows: up to this many, comparing lists beats making keys


def bounding_box(index: Index) -> list[tuple[int, int]]:
    """(from, to) along each dimension of a matrix that has rows."""
    # Column by column: numpy reduces along the short axis an order of magnitude slower.
    return [(int(column.min()), int(column.max()) + 1) for column in index.T]


class KeySpace:
    """Maps index rows inside one bounding box to keys that sort like the rows."""

    def __init__(self, *matrices: Index) -> None:
        self.ndim = matrices[0].shape[1]
        filled = [matrix for matrix in matrices if len(matrix)]
        self.low = [0] * self.ndim
        self.high = [0] * self.ndim
        if filled:
            boxes = [bounding_box(matrix) for matrix in filled]
            self.low = [min(box[axis][0] for box in boxes) for axis in range(self.ndim)]
            self.high = [max(box[axis][1] for box in boxes) for axis in range(self.ndim)]
        self.strides = [1] * self.ndim
        for axis in range(self.ndim - 2, -1, -1):
            size = self.high[axis + 1] - self.low[axis + 1]
            self.strides[axis] = self.strides[axis + 1] * max(size, 1)
        cells = self.strides[0] * (self.high[0] - self.low[0]) if self.ndim else 1
        self.fits_int64 = cells < 2**63

    def keys(self, index: Index) -> NDArray[Any]:
        """Keys of rows that lie inside the box."""
        if not self.fits_int64:
            return np.ascontiguousarray(index, ">u4").view(f"S{4 * self.ndim}").reshape(-1)
        keys = np.zeros(len(index), np.int64)
        for first in range(0, len(index), _SLICE):
            part = keys[first : first + _SLICE]
            columns = index[first : first + _SLICE].T
            for column, low, stride in zip(columns, self.low, self.strides, strict=True):
                part += (column.astype(np.int64) - low) * stride
        return keys

    def holds(self, index: Index) -> NDArray[np.bool_]:
        """Which rows lie inside the box."""
        inside = np.ones(len(index), np.bool_)
        for column, low, high in zip(index.T, self.low, self.high, strict=True):
            inside &= (column >= low) & (column < high)
        return inside


class SortedIndex:
    """Lookup in an index matrix whose rows ascend."""

    __slots__ = ("_cells", "_keys", "_space", "count")

    def __init__(self, index: Index) -> None:
        self.count = len(index)
        self._space = KeySpace(index)
        self._keys = self._space.keys(index)
        self._cells = memoryview(self._keys) if self._space.fits_int64 else None

    def is_strictly_ascending(self) -> bool:
        return bool((self._keys[1:] > self._keys[:-1]).all())

    def find(self, coordinates: Sequence[int]) -> int:
        """The row of one chunk, or -1."""
        space = self._space
        key = 0
        for at, low, high, stride in zip(
            coordinates, space.low, space.high, space.strides, strict=True
        ):
            if not low <= at < high:
                return -1
            key += (at - low) * stride
        if self._cells is None:
            return int(self.find_many(np.array([coordinates], np.uint32))[0])
        # In a dense array the key is the row; elsewhere it is a good place to stop looking.
        if key < self.count and self._cells[key] == key:
            return key
        row = bisect_left(self._cells, key, 0, min(key, self.count))
        return row if row < self.count and self._cells[row] == key else -1

    def find_many(self, index: Index) -> Rows:
        """The row of each chunk, -1 where there is none."""
        if self.count == 0:
            return np.full(len(index), -1, np.int64)
        inside = self._space.holds(index)
        keys = self._space.keys(
            np.where(inside[:, None], index, np.array(self._space.low, np.uint32))
        )
        row = np.minimum(np.searchsorted(self._keys, keys), self.count - 1)
        return np.where(inside & (self._keys[row] == keys), row, -1)


def box_rows(index: Index, start: Sequence[int], stop: Sequence[int]) -> slice | Rows:
    """Rows of an ascending matrix inside the half-open box [start, stop).

    A slice where they are neighbours, so that taking them copies nothing.
    """
    if not index.shape[1] or not len(index):
        return slice(0, len(index))
    # Rows ascend, so the leading dimension narrows the search to one contiguous stretch. The
    # bisection reads few cells; numpy's own would copy the whole column first.
    leading = index[:, 0]
    first = bisect_left(leading, start[0])
    last = bisect_left(leading, max(start[0], stop[0]), first)
    inside = np.ones(last - first, np.bool_)
    for axis in range(1, index.shape[1]):
        column = index[first:last, axis]
        inside &= (column >= start[axis]) & (column < stop[axis])
    if inside.all():
        return slice(first, last)
    return first + np.flatnonzero(inside)


def is_strictly_ascending(index: Index) -> bool:
    """Whether every row comes after the one before it. Needs no memory a row."""
    if len(index) <= _FEW:
        return all(first < second for first, second in pairwise(index.tolist()))
    space = KeySpace(index)
    for first in range(0, len(index), _SLICE):
        # One row of overlap: the last of a slice is compared with the first of the next.
        keys = space.keys(index[first : first + _SLICE + 1])
        if not bool((keys[1:] > keys[:-1]).all()):
            return False
    return True


def sort_rows(index: Index) -> Rows:
    """Rows in ascending order; of equal indices only the last one given."""
    keys = KeySpace(index).keys(index)
    order = np.argsort(keys, kind="stable")  # linear where ascending runs follow each other
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = keys[order[1:]] != keys[order[:-1]]
    return order[is_last]


def follow_each_other(matrices: Sequence[Index]) -> bool:
    """Whether ascending matrices, none of them empty, ascend as a whole."""
    return all(before[-1].tolist() < after[0].tolist() for before, after in pairwise(matrices))
