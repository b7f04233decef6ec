"""Chunk indices as matrices: order, search, packed form; sets of ids."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.format.columns import Bytes
from icefloe.ids import ObjectId

# -- Chunk indices as sort keys: order, lookup, boxes and merging, without a Python object a
# chunk.
#
# An index matrix has one row per chunk and one column per dimension. Its key column is one int64
# a row (the row-major rank within the bounding box); boxes of more than 2**63 cells use big-
# endian bytes instead, which sort the same way.


Index = NDArray[np.uint32]
Rows = NDArray[np.int64]

_SLICE = 1 << 16


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


def numbered(owner: NDArray[np.int64], index: Index) -> Index:
    """The chunks of many arrays as one index: the number of the array is the first coordinate."""
    return np.concatenate([owner.astype(np.uint32)[:, None], index], axis=1)


def follow_each_other(matrices: Sequence[Index]) -> bool:
    """Whether ascending matrices, none of them empty, ascend as a whole."""
    return all(before[-1].tolist() < after[0].tolist() for before, after in pairwise(matrices))


# -- Ascending chunk indices in compressed pieces: what a big job touched, in next to no memory.
#
# From one row to the next most coordinates stay, and the last one grows by one, so that
# differences compress to a fraction of a byte. A log is written from the pieces, one after the
# other; the matrix as a whole need not exist.


_PIECE_ROWS = 1 << 17


class _Piece(NamedTuple):
    rows: int
    first: tuple[int, ...]
    last: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True, eq=False)
class PackedIndex:
    """Distinct chunk indices in ascending order."""

    ndim: int
    pieces: tuple[_Piece, ...] = ()

    @classmethod
    def pack(cls, index: Index) -> PackedIndex:
        """Compress a matrix whose rows ascend."""
        parts = (index[at : at + _PIECE_ROWS] for at in range(0, len(index), _PIECE_ROWS))
        return cls(index.shape[1], tuple(map(_pack, parts)))

    @classmethod
    def union(cls, many: Sequence[PackedIndex], ndim: int) -> PackedIndex:
        """All indices of several.

        Where they lie behind each other, which splits along the first axis do, nothing is
        inflated. Otherwise all are sorted, at 4 bytes a coordinate and some 16 bytes a row.
        """
        filled = sorted((one for one in many if one.pieces), key=lambda one: one.pieces[0].first)
        pieces = tuple(piece for one in filled for piece in one.pieces)
        joined = cls(ndim, pieces)
        if all(before.last < after.first for before, after in pairwise(pieces)):
            return joined
        index = joined.unpack()
        return cls.pack(index[sort_rows(index)])

    @property
    def shape(self) -> tuple[int, int]:
        """As of the matrix."""
        return sum(piece.rows for piece in self.pieces), self.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def slices(self, size: int) -> Iterator[Index]:
        """The matrix in slices of `size` rows; the last may have fewer."""
        rest = np.empty((0, self.ndim), np.uint32)
        for piece in self.pieces:
            rows = np.concatenate([rest, _unpack(piece, self.ndim)])
            whole = len(rows) // size * size
            yield from (rows[at : at + size] for at in range(0, whole, size))
            rest = rows[whole:]
        if len(rest):
            yield rest

    def unpack(self) -> Index:
        """The whole matrix."""
        empty = np.empty((0, self.ndim), np.uint32)
        return np.concatenate([empty, *(_unpack(piece, self.ndim) for piece in self.pieces)])


def _pack(index: Index) -> _Piece:
    columns = np.array(index.T, order="C")
    columns[:, 1:] -= index.T[:, :-1]  # wraps around, and back again
    data = zstandard.ZstdCompressor(level=1).compress(columns.tobytes())
    return _Piece(len(index), tuple(index[0].tolist()), tuple(index[-1].tolist()), data)


def _unpack(piece: _Piece, ndim: int) -> Index:
    size = 4 * ndim * piece.rows
    raw = zstandard.ZstdDecompressor().decompress(piece.data, max_output_size=size)
    steps = np.frombuffer(raw, np.uint32).reshape(ndim, piece.rows)
    index: Index = np.cumsum(steps, axis=1, dtype=np.uint32).T
    return index


# -- Many ids as a sorted column: a set whose members take twelve bytes each.


class IdSet(NamedTuple):
    """Ids of twelve bytes, or rows of another width, each once, ascending.

    >>> some = IdSet.of_ids([ObjectId(b"b" * 12), ObjectId(b"a" * 12)])
    >>> some.contains(IdSet.of_ids([ObjectId(b"a" * 12), ObjectId(b"c" * 12)]).rows)
    array([ True, False])
    """

    keys: NDArray[np.bytes_]

    @classmethod
    def of(cls, rows: Bytes) -> IdSet:
        """From rows of bytes, in any order, with any repetition."""
        return cls(_sorted_once(id_keys(rows)))

    @classmethod
    def of_ids(cls, ids: Iterable[bytes]) -> IdSet:
        """From single ids."""
        return cls.of(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, ObjectId.size))

    @classmethod
    def union(cls, sets: Iterable[IdSet]) -> IdSet:
        """What is in any of the sets."""
        listed = [each.keys for each in sets]
        return cls(_sorted_once(np.concatenate(listed))) if listed else cls.of_ids(())

    @property
    def rows(self) -> Bytes:
        """The ids as rows of bytes."""
        return self.keys.view(np.uint8).reshape(-1, self.keys.itemsize)

    @property
    def size(self) -> int:
        return len(self.keys)

    def contains(self, rows: Bytes) -> NDArray[np.bool_]:
        """Which of these rows are in the set."""
        wanted = id_keys(rows)
        if not self.size:
            return np.zeros(len(wanted), np.bool_)
        starts = _first_words(self.keys)
        if (starts[1:] == starts[:-1]).any():  # not random: the first words are no keys
            at = np.searchsorted(self.keys, wanted)
        else:
            at = np.searchsorted(starts, _first_words(wanted))
        return np.asarray(self.keys[np.minimum(at, self.size - 1)] == wanted)

    def minus(self, other: IdSet) -> IdSet:
        """What is not in the other set."""
        return IdSet(self.keys[~other.contains(self.rows)])


def id_keys(rows: Bytes) -> NDArray[np.bytes_]:
    """Rows of bytes as one comparable value each."""
    # Values of equal width compare as their bytes do, trailing zeros included.
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").reshape(-1)


def _first_words(keys: NDArray[np.bytes_]) -> NDArray[np.uint64]:
    """The first eight bytes of each id as a number: numbers are compared much faster."""
    words = np.ndarray(len(keys), ">u8", keys, strides=keys.strides)
    return words.astype(np.uint64)


def _sorted_once(keys: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """The distinct keys, ascending."""
    words = _first_words(keys)
    order = np.argsort(words)
    keys, words = keys[order], words[order]
    is_new = np.ones(len(keys), np.bool_)
    is_new[1:] = (words[1:] != words[:-1]) | (keys[1:] != keys[:-1])
    keys, words = keys[is_new], words[is_new]
    # Keys with the same first word are in no order yet.
    return np.unique(keys) if (words[1:] == words[:-1]).any() else keys
