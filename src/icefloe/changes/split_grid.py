"""The grid of splits: a chunk grid cut along each dimension, and the split of each chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.chunk_index import Index, bounding_box
from icefloe.format.snapshot.manifest_refs import ManifestRef, extents_of
from icefloe.records import NamedTuple

Box = tuple[tuple[int, int], ...]
Ints = NDArray[np.int64]
Rows = slice | Ints
Runs = tuple[Ints, Ints, Rows]
"""A key per run of rows, the boundaries of the runs, and the rows of the matrix they cover."""
_ALL = slice(None)


class ChunkSpan(NamedTuple):
    """The extent of touched chunks: an upper bound of their number, and their box if known."""

    num_chunks: int
    box: Box | None = None

    @classmethod
    def of_boxes(cls, first: Ints, last: Ints) -> ChunkSpan:
        """The extent of many boxes, one row each. A chunk that is in two boxes counts twice."""
        if not len(first):
            return cls(0)
        box = zip(first.min(axis=0).tolist(), last.max(axis=0).tolist(), strict=True)
        return cls(int((last - first).prod(axis=1).sum()), tuple(box))


class Splits:
    """The splits of a grid, numbered in row-major order."""

    def __init__(self, grid: Sequence[int], sizes: Sequence[int]) -> None:
        self.grid = grid
        self.sizes = [min(size, count) for size, count in zip(sizes, grid, strict=True)]
        counts = [-(-count // size) for count, size in zip(grid, self.sizes, strict=True)]
        self._counts = counts
        self._strides = [prod(counts[axis + 1 :]) for axis in range(len(counts))]
        self.count = prod(counts)
        self._cut_axes = [axis for axis, count in enumerate(counts) if count > 1]
        # Splits of size 1 in an extremely large grid: slow, but correct.
        self._dtype: Any = np.int64 if self.count < 2**63 else object

    @property
    def room(self) -> int:
        """The maximum number of chunks in a split."""
        return prod(self.sizes)

    def box(self, number: int) -> Box:
        """The chunk indices of a split."""
        at = [number // stride % n for stride, n in zip(self._strides, self._counts, strict=True)]
        return self.chunks([(place, place + 1) for place in at])

    def chunks(self, places: Sequence[tuple[int, int]]) -> Box:
        """The chunk indices in a box of splits."""
        return tuple(
            (start * size, min(stop * size, count))
            for (start, stop), size, count in zip(places, self.sizes, self.grid, strict=True)
        )

    def places(self, numbers: NDArray[Any]) -> Ints:
        """The position of splits along each axis, one row per split."""
        sides = zip(self._strides, self._counts, strict=True)
        found = [(numbers // stride % count).astype(np.int64) for stride, count in sides]
        return np.stack(found, axis=1)

    def places_of(
        self, manifests: Sequence[ManifestRef], within: Box | None = None
    ) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """For each manifest: the first and the last split plus one along each axis, and whether it
        reaches beyond the grid or a box of whole splits."""
        extents = extents_of(manifests, len(self.grid)).astype(np.int64)
        start, stop = extents.transpose(2, 0, 1)
        window = [(0, count) for count in self.grid] if within is None else within
        low, high = np.array(window, np.int64).reshape(-1, 2).T
        sizes = np.array(self.sizes, np.int64)
        first, last = np.clip(start, low, high) // sizes, -(-np.clip(stop, low, high) // sizes)
        return first, last, ((start < low) | (stop > high)).any(axis=1)

    def numbers(self, places: Ints) -> NDArray[Any]:
        """The splits at these positions along each axis, one row per split."""
        found: NDArray[Any] = places.astype(self._dtype) @ np.array(self._strides, self._dtype)
        return found

    def between(self, low: Sequence[int], high: Sequence[int]) -> list[int]:
        """The splits in a box of them."""
        return [
            sum(at * stride for at, stride in zip(place, self._strides, strict=True))
            for place in product(*map(range, low, high))
        ]

    def hull(self, box: Box) -> Box:
        """The chunk indices of all splits that a box of chunk indices touches."""
        sides = zip(box, self.sizes, strict=True)
        return self.chunks([(start // size, -(-stop // size)) for (start, stop), size in sides])

    def beyond(self, box: Box) -> Iterator[Box]:
        """The rest of the grid around a box, as disjoint boxes."""
        whole = tuple((0, count) for count in self.grid)
        for axis, (start, stop) in enumerate(box):
            for side in ((0, start), (stop, self.grid[axis])):
                if side[0] < side[1]:
                    yield (*box[:axis], side, *whole[axis + 1 :])

    def count_in(self, box: Box) -> int:
        """How many splits a box of chunk indices touches."""
        sides = zip(box, self.sizes, strict=True)
        return prod(-(-stop // size) - start // size for (start, stop), size in sides)

    def inside(self, index: Index) -> Rows:
        """The rows of `index` that are inside the grid."""
        box = bounding_box(index) if len(index) else ()
        if any(stop > count for (_, stop), count in zip(box, self.grid, strict=False)):
            return np.flatnonzero((index < np.array(self.grid, np.uint64)).all(axis=1))
        return _ALL

    def runs(self, index: Index) -> Runs:
        """The splits of the rows of `index`, run by run. Rows outside the grid are left out."""
        inside = self.inside(index)
        index = index[inside]
        number = np.zeros(len(index), self._dtype)
        for axis in self._cut_axes:
            place = index[:, axis] // np.uint32(self.sizes[axis])
            number += place.astype(self._dtype) * self._strides[axis]
        starts = _starts(number)
        return number[starts], np.append(starts, len(number)), inside

    def group(self, index: Index) -> Iterator[tuple[int, Rows]]:
        """Each split with rows of `index`, and its rows: a slice if they are contiguous."""
        return rows_by(*self.runs(index))


def rows_by(keys: NDArray[Any], bounds: Ints, inside: Rows) -> Iterator[tuple[int, Rows]]:
    """Each key of runs and its rows: a slice if they are contiguous."""
    starts = _starts(keys)
    if len(np.unique(keys[starts])) < len(starts):  # the rows of a key are not contiguous
        keys = np.repeat(keys, np.diff(bounds))
        order = np.argsort(keys, kind="stable")
        inside = order if isinstance(inside, slice) else inside[order]
        keys, bounds = keys[order], np.arange(len(keys) + 1)
        starts = _starts(keys)
    edges = [*bounds[starts].tolist(), int(bounds[-1])]
    for key, first, last in zip(keys[starts].tolist(), edges, edges[1:], strict=False):
        rows = slice(first, last)
        yield key, rows if isinstance(inside, slice) else inside[rows]


def _starts(values: NDArray[Any]) -> Ints:
    """Where runs of equal values begin."""
    first = np.zeros(min(len(values), 1), np.int64)
    return np.concatenate([first, np.flatnonzero(values[1:] != values[:-1]) + 1])
