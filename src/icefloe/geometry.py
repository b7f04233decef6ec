"""Boxes of arrays, and how they are cut at the borders of chunks: arithmetic without I/O.

A box of cells is a tuple of slices, as numpy and Zarr take it. `Region` is the same with the names
of the axes, for functions of users.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from icefloe.errors import InvalidInputError

CHUNK_BYTES = 8 << 20
"""Default chunk size."""

Slices = tuple[slice, ...]
"""A box of cells: one slice per axis, with a start and a stop."""


@dataclass(frozen=True, slots=True)
class Region:
    """A box of an array, or of the arrays of a group that have the same axes.

    >>> Region(("time", "y"), (0, 0), (2, 8)).dims
    ('time', 'y')
    """

    dims: tuple[str, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def of(cls, dims: Sequence[str], slices: Slices) -> Region:
        """The box of these slices, with names for its axes.

        Args:
            dims: names of the dimensions.
            slices: the part along each.

        >>> Region.of(["time"], (slice(0, 2),)).stop
        (2,)
        """
        start = tuple(span.start for span in slices)
        return cls(tuple(dims), start, tuple(span.stop for span in slices))

    @property
    def shape(self) -> tuple[int, ...]:
        """How many elements the box has along each axis."""
        return shape_of(self.slices)

    @property
    def slices(self) -> Slices:
        """The box as an index for numpy and Zarr arrays, in the order of `dims`."""
        return tuple(slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def indexers(self) -> dict[str, slice]:
        """The box by name, as xarray's `isel` takes it."""
        return dict(zip(self.dims, self.slices, strict=True))

    def __getitem__(self, dim: str) -> slice:
        return self.indexers[dim]


def region_of(dims: Sequence[str], shape: Sequence[int], given: object) -> Region:
    """A region from what a caller may write: a Region, slices in order, or slices by name."""
    if isinstance(given, Region):
        return given
    if isinstance(given, Mapping):
        unknown = set(given) - set(dims)
        if unknown:
            raise InvalidInputError(
                f"region {dict(given)} names {sorted(unknown)}, the arrays have {tuple(dims)}"
            )
        slices = [given.get(dim, slice(None)) for dim in dims]
    elif isinstance(given, Sequence) and len(given) == len(dims):
        slices = list(given)
    else:
        raise InvalidInputError(
            f"region {given!r} is not understood, expected a slice for each of {tuple(dims)}, or "
            "a mapping from their names to slices"
        )
    found = []
    for dim, part, length in zip(dims, slices, shape, strict=True):
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise InvalidInputError(f"region: {part!r} along {dim!r}, expected slice(start, stop)")
        start = 0 if part.start is None else part.start
        found.append(slice(int(start), int(length if part.stop is None else part.stop)))
    return Region.of(dims, tuple(found))


def shape_of(box: Slices) -> tuple[int, ...]:
    """How many cells a box has along each axis."""
    return tuple(span.stop - span.start for span in box)


def whole(shape: Sequence[int]) -> Slices:
    """The box of all cells of an array."""
    return tuple(slice(0, length) for length in shape)


def moved(box: Slices, origin: Sequence[int]) -> Slices:
    """The box as seen from `origin`.

    >>> moved((slice(5, 8),), (5,))
    (slice(0, 3, None),)
    """
    return tuple(
        slice(span.start - first, span.stop - first)
        for span, first in zip(box, origin, strict=True)
    )


def inside(box: Slices, outer: Slices) -> Slices:
    """The box as an index into the cells of `outer`, which has it in it."""
    return moved(box, [span.start for span in outer])


def cut_span(span: slice, step: int) -> list[slice]:
    """A span, cut at multiples of `step`.

    >>> cut_span(slice(3, 9), 4)
    [slice(3, 4, None), slice(4, 8, None), slice(8, 9, None)]
    """
    first = span.start // step * step
    return [
        slice(max(span.start, at), min(span.stop, at + step))
        for at in range(first, span.stop, step)
    ]


def cut(box: Slices, steps: Sequence[int]) -> Iterator[Slices]:
    """A box, cut at multiples of a step along each axis, in C order."""
    return product(*(cut_span(span, step) for span, step in zip(box, steps, strict=True)))


def chunks_of(box: Slices, chunk_shape: Sequence[int]) -> Slices:
    """The chunks that a box of cells touches, as a box of chunk indices."""
    return tuple(
        slice(span.start // chunk, -(-span.stop // chunk))
        for span, chunk in zip(box, chunk_shape, strict=True)
    )


def cells_of(box: Slices, chunk_shape: Sequence[int], shape: Sequence[int]) -> Slices:
    """The cells of a box of chunks, inside an array of this shape."""
    return tuple(
        slice(span.start * chunk, min(span.stop * chunk, length))
        for span, chunk, length in zip(box, chunk_shape, shape, strict=True)
    )


def grow_chunks(
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    max_cells: int,
    max_chunks: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The shape of blocks of whole chunks with at most `max_cells`, or of one chunk.

    Chunks are joined along the last axes first, so that blocks follow the order of cells in C.

    Args:
        max_chunks: how many chunks to join along each axis at most, where it is not joined whole.
    """
    steps = list(chunk_shape)
    for axis in reversed(range(len(steps))):
        length, chunk = shape[axis], max(steps[axis], 1)
        others = math.prod(
            min(step, size)
            for at, (step, size) in enumerate(zip(steps, shape, strict=True))
            if at != axis
        )
        count = max(-(-length // chunk), 1)
        if max_cells >= others * length:
            steps[axis] = chunk * count
            continue
        limit = count if max_chunks is None else max_chunks[axis]
        steps[axis] = chunk * max(1, min(limit, max_cells // max(others * chunk, 1)))
        break
    return tuple(steps)


def shrink_chunks(
    shape: Sequence[int], itemsize: int, target_bytes: int = CHUNK_BYTES
) -> tuple[int, ...]:
    """Chunks of at most about `target_bytes`, shortened from the first axis on."""
    chunks = [max(length, 1) for length in shape]
    for axis in range(len(chunks)):
        size = math.prod(chunks) * itemsize
        if size <= target_bytes:
            break
        chunks[axis] = max(1, chunks[axis] * target_bytes // size)
    return tuple(chunks)
