"""Neighbouring splits with few references share a manifest.

Splits are fixed by the grid, so that appends move no cut and tasks know the cuts before there are
references. In a large grid with few references a manifest for each split would be very many small
files. So neighbours share one, as long as together they have no more references than one split has
room for. Cuts are always at the borders of splits, and boxes never overlap: along one axis after
the other, places are either joined whole, or a single place is cut along the next axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import ManifestRef

Places = tuple[tuple[int, int], ...]
"""The first and the last split plus one, along each axis."""


class Part(NamedTuple):
    """Something that has references: an old manifest, or a split with edits."""

    places: Places
    num_refs: int
    """At most."""
    is_touched: bool
    manifest: ManifestRef | None = None
    split: int = -1


def group_parts(parts: Sequence[Part], room: int, axis: int = 0) -> Iterator[list[Part]]:
    """Parts that may share a manifest, together at most `room` references where that is possible.

    Any two neighbouring groups have more, so there are few.
    """
    run: list[Part] = []
    total = 0
    for cluster in _clusters(parts, axis):
        size = sum(part.num_refs for part in cluster)
        if run and total + size > room:
            yield from _finer(run, total, room, axis)
            run, total = [], 0
        run += cluster
        total += size
    if run:
        yield from _finer(run, total, room, axis)


def _finer(run: list[Part], total: int, room: int, axis: int) -> Iterator[list[Part]]:
    """A single place with too many references is looked at along the next axis. What is shared
    by several places was not cut there, and may have to be now."""
    start, stop = around(run)[axis]
    if total > room and stop - start == 1 and axis + 1 < len(run[0].places):
        yield from group_parts(run, room, axis + 1)
    else:
        yield run


def _clusters(parts: Sequence[Part], axis: int) -> Iterator[list[Part]]:
    """Parts whose places along an axis overlap, in order."""
    found: list[Part] = []
    reach = -1
    for part in sorted(parts, key=lambda part: part.places[axis]):
        start, stop = part.places[axis]
        if found and start >= reach:
            yield found
            found = []
        found.append(part)
        reach = max(reach, stop)
    if found:
        yield found


def around(parts: Sequence[Part]) -> Places:
    """The smallest box of splits that has all parts in it."""
    axes = zip(*(part.places for part in parts), strict=True)
    return tuple((min(a for a, _ in axis), max(b for _, b in axis)) for axis in axes)


def is_dense(parts: Sequence[Part], room: int) -> bool:
    """Whether a manifest for each split would be half full on average: then none is shared."""
    stored = sum(part.num_refs for part in parts if part.manifest is not None)
    edited = sum(part.num_refs for part in parts if part.manifest is None)
    splits = prod(stop - start for start, stop in around(parts))
    return 2 * max(stored, edited) >= splits * room


def cut_refs(refs: ChunkRefs, sizes: Sequence[int], room: int) -> list[ChunkRefs]:
    """References cut at the borders of splits into parts of at most `room`, of about one size:
    what is cut into a full part and a small rest leaves ever more small ones behind."""
    if len(refs) <= room:
        return [refs]
    rows = np.arange(len(refs), dtype=np.int64)
    return [refs.take(part) for part in _cut_rows(refs.index, rows, sizes, room, 0)]


def _cut_rows(
    index: Index, rows: NDArray[np.int64], sizes: Sequence[int], room: int, axis: int
) -> Iterator[NDArray[np.int64]]:
    if len(rows) <= room or axis == len(sizes):
        yield rows
        return
    place = index[rows, axis] // np.uint32(sizes[axis])
    rows = rows[np.argsort(place, kind="stable")]
    counts = np.unique(place, return_counts=True)[1].tolist()
    enough = -(-len(rows) // -(-len(rows) // room))
    first = last = 0
    for count in counts:
        size = last - first
        if size and (size + count > room or size >= enough):
            yield from _cut_rows(index, np.sort(rows[first:last]), sizes, room, axis + 1)
            first = last
        last += count
    yield from _cut_rows(index, np.sort(rows[first:last]), sizes, room, axis + 1)
