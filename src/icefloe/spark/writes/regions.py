"""Regions of arrays that can be written independently: no two of them share a chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from icefloe import geometry
from icefloe.changes.split_grid import ChunkSpan
from icefloe.errors import InvalidInputError
from icefloe.geometry import Region

TARGET_REGION_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes that a set of arrays shares, and how their chunks cut them.

    `chunks` is the length along each axis at which every array of the set has a border, so that
    regions made of whole steps never share a chunk of any of them.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    itemsize: int

    @classmethod
    def common(
        cls,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        chunks: Sequence[Sequence[int]],
        itemsize: int,
    ) -> Grid:
        """The grid of arrays with equal axes and `chunks` of their own."""
        steps = tuple(math.lcm(*axis) for axis in zip(*chunks, strict=True))
        return cls(dims, shape, steps, itemsize)


def default_region_shape(grid: Grid, target_bytes: int = TARGET_REGION_BYTES) -> tuple[int, ...]:
    """Whole chunks, grown from the last axis forward until a region is worth a task."""
    return geometry.grow_chunks(grid.shape, grid.chunks, target_bytes // max(grid.itemsize, 1))


def cut(
    grid: Grid,
    region_shape: Sequence[int] | None,
    start: Sequence[int] | None = None,
    stop: Sequence[int] | None = None,
) -> Iterator[Region]:
    """Regions that cover the box from `start` to `stop`, their borders at those of chunks.

    The first and the last along an axis may be shorter: they hold what of their chunks lies
    inside the box, and each chunk still belongs to one region alone.
    """
    step = tuple(region_shape or default_region_shape(grid))
    _check_steps(grid, step)
    low = tuple(start or (0,) * len(grid.shape))
    high = tuple(grid.shape if stop is None else stop)
    for box in geometry.cut(tuple(map(slice, low, high)), step):
        yield Region.of(grid.dims, box)


def _check_steps(grid: Grid, step: Sequence[int]) -> None:
    if len(step) != len(grid.shape):
        raise InvalidInputError(
            f"region_shape {tuple(step)} has {len(step)} axes, expected {len(grid.shape)}: "
            f"{grid.dims}"
        )
    for dim, size, chunk, length in zip(grid.dims, step, grid.chunks, grid.shape, strict=True):
        if size < 1 or (size % chunk and size < length):
            raise InvalidInputError(
                f"region_shape has {size} along {dim!r}, expected a multiple of {chunk}: two "
                "regions would share a chunk, and one task's data would overwrite the other's"
            )


def chunks_in(regions: Sequence[Region], chunks: Sequence[int]) -> ChunkSpan:
    """The chunks that the regions touch."""
    low = np.array([region.start for region in regions], np.int64).reshape(len(regions), -1)
    high = np.array([region.stop for region in regions], np.int64).reshape(len(regions), -1)
    step = np.array(chunks, np.int64)
    return ChunkSpan.of_boxes(low // step, -(-high // step))


def check_given(grid: Grid, regions: Sequence[Region]) -> None:
    """Refuse regions outside the arrays, and any two that share a chunk."""
    if not regions:
        return
    lows = np.array([region.start for region in regions], np.int64).reshape(len(regions), -1)
    highs = np.array([region.stop for region in regions], np.int64).reshape(len(regions), -1)
    is_bad = ((lows < 0) | (highs > np.array(grid.shape)) | (lows >= highs)).any(axis=1)
    if bool(is_bad.any()):
        region = regions[int(np.flatnonzero(is_bad)[0])]
        raise InvalidInputError(
            f"region {region.indexers} is empty or not inside the shape {grid.shape}"
        )
    step = np.array(grid.chunks)
    first, last = lows // step, -(-highs // step)
    pair = _overlapping_pair(first, last)
    if pair is not None:
        a, b = (regions[at].indexers for at in pair)
        raise InvalidInputError(
            f"regions {a} and {b} share a chunk (chunks of {grid.dims} are {grid.chunks}): "
            "one task's data would overwrite the other's; move their common border to a border "
            "of chunks, or write them as one region"
        )


def _overlapping_pair(first: np.ndarray, last: np.ndarray) -> tuple[int, int] | None:
    """Two boxes that overlap, found by sweeping along the first axis."""
    if first.shape[1] == 0:
        return (0, 1) if len(first) > 1 else None
    order = np.argsort(first[:, 0], kind="stable")
    active = np.empty(0, np.int64)
    for at in order.tolist():
        active = active[last[active, 0] > first[at, 0]]
        is_hit = ((first[active] < last[at]) & (first[at] < last[active])).all(axis=1)
        if bool(is_hit.any()):
            return int(active[is_hit][0]), int(at)
        active = np.append(active, at)
    return None
