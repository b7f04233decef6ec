"""Cutting a grid of chunks into blocks: pure arithmetic, nothing that grows with the data.

A block is a box of whole chunks, as many as make a task worth starting; at the edges, and where
coordinates were chosen, it is cut down to the cells that are wanted. Blocks are numbered in C
order, and a partition is a run of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.geometry import Slices, grow_chunks

Mask = NDArray[np.bool_]
_MANY = 4  # rounds of tasks, of which the last one may leave slots idle
_MAX_PARTITIONS = 20_000  # Spark keeps a few kilobytes for each on the driver


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """Blocks as the product of ranges along each dimension."""

    ranges: tuple[NDArray[np.int64], ...]
    """For each dimension rows of (start, stop), in cells."""
    num_partitions: int
    """At most as many as there are blocks; each has about as many of them."""

    @property
    def num_blocks(self) -> int:
        return math.prod(len(rows) for rows in self.ranges)

    def regions(self, partition: int) -> Iterator[Slices]:
        """The blocks of one partition."""
        counts = [len(rows) for rows in self.ranges]
        first, last = (
            at * self.num_blocks // self.num_partitions for at in (partition, partition + 1)
        )
        for number in range(first, last):
            place = np.unravel_index(number, counts)
            yield tuple(
                slice(int(rows[at, 0]), int(rows[at, 1]))
                for rows, at in zip(self.ranges, place, strict=True)
            )


def plan_blocks(
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    *,
    bytes_per_cell: int,
    target_bytes: int,
    min_blocks: int,
    wanted: Sequence[Mask | None] | None = None,
) -> BlockGrid:
    """Blocks of about `target_bytes`, or smaller ones if there would be fewer than `min_blocks`.

    A partition is one block, unless there are very many, or so few that most slots would wait for
    the last one: then blocks are smaller, and each of `min_blocks` slots gets as many partitions.

    Args:
        wanted: for each dimension which cells are wanted, None for all. Chunks without any are
            left out, and blocks shrink to the wanted cells at their ends.
    """
    masks = list(wanted) if wanted is not None else [None] * len(shape)
    counts = [
        _num_chunks(length, chunk, mask)
        for length, chunk, mask in zip(shape, chunk_shape, masks, strict=True)
    ]
    cells = math.prod(
        min(count * chunk, length)
        for count, chunk, length in zip(counts, chunk_shape, shape, strict=True)
    )
    goal = min(target_bytes // max(bytes_per_cell, 1), cells // max(min_blocks, 1))

    def cut(most_cells: int, most_partitions: int) -> BlockGrid:
        steps = grow_chunks(shape, chunk_shape, most_cells, counts)
        sides = zip(shape, steps, masks, strict=True)
        ranges = tuple(_ranges(length, step, mask) for length, step, mask in sides)
        return BlockGrid(ranges, min(math.prod(map(len, ranges)), most_partitions))

    grid = cut(goal, _MAX_PARTITIONS)
    slots = max(min_blocks, 1)
    if grid.num_blocks >= _MANY * slots or grid.num_blocks % slots == 0:
        return grid
    rounds = max(-(-cells * bytes_per_cell // (max(target_bytes, 1) * slots)), 1)
    return cut(goal // _MANY, rounds * slots)


def slabs(shape: Sequence[int], most_cells: int) -> Iterator[Slices]:
    """A box in pieces of at most `most_cells` that follow each other in C order."""
    axis = 0
    inner = math.prod(shape[1:])
    while axis < len(shape) and inner > most_cells:
        axis += 1
        inner = math.prod(shape[axis + 1 :])
    if axis == len(shape):
        yield ()
        return
    step = max(most_cells // max(inner, 1), 1)
    parts = -(-shape[axis] // step)
    step = -(-shape[axis] // max(parts, 1))  # equal pieces, instead of a crumb at the end
    rest = (slice(None),) * (len(shape) - axis - 1)
    for outer in np.ndindex(*shape[:axis]):
        lead = tuple(slice(at, at + 1) for at in outer)
        for start in range(0, shape[axis], max(step, 1)):
            yield (*lead, slice(start, min(start + step, shape[axis])), *rest)


def _num_chunks(length: int, chunk: int, mask: Mask | None) -> int:
    if mask is None:
        return -(-length // chunk)
    return len(np.unique(np.flatnonzero(mask) // chunk))


def _ranges(length: int, step: int, mask: Mask | None) -> NDArray[Any]:
    if mask is None:
        start = np.arange(0, length, step, dtype=np.int64)
        return np.stack([start, np.minimum(start + step, length)], axis=1)
    rows = np.flatnonzero(mask)
    if not len(rows):
        return np.empty((0, 2), np.int64)
    _, first = np.unique(rows // step, return_index=True)
    last = np.append(first[1:], len(rows)) - 1
    return np.stack([rows[first], rows[last] + 1], axis=1).astype(np.int64)
