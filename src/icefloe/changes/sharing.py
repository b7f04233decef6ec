"""Neighbouring splits with few references share a manifest.

Splits depend on the grid only: an append moves no cut, and tasks know the cuts before any reference
exists. One manifest per split would mean very many small files in a large grid with few references.
So neighbouring splits share a manifest while their references together are within the limit. Cuts
are always at the borders of splits, and boxes never overlap. Along each axis in turn, places (rows
of splits) are either joined whole, or a single place is cut along the next axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from icefloe.changes.split_grid import Ints
from icefloe.format.columns.chunk_index import Index
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.records import NamedTuple

Places = tuple[tuple[int, int], ...]
"""The first and the last split plus one, along each axis."""


class Parts(NamedTuple):
    """Everything that has references. One row per old manifest and per split with edits."""

    start: Ints
    """The first split along each axis."""
    stop: Ints
    stored: Ints
    """References of an old manifest."""
    edited: Ints
    """References that are set in a split, at most."""

    def around(self, rows: Ints) -> Places:
        """The smallest box of splits that contains these parts."""
        low, high = self.start[rows].min(axis=0), self.stop[rows].max(axis=0)
        return tuple(zip(low.tolist(), high.tolist(), strict=True))

    def are_dense(self, rows: Ints, limit: int) -> bool:
        """Whether one manifest per split would be half full on average. Then none is shared."""
        most = max(int(self.stored[rows].sum()), int(self.edited[rows].sum()))
        return 2 * most >= limit * prod(stop - start for start, stop in self.around(rows))


def group_parts(parts: Parts, limit: int) -> Iterator[Ints]:
    """Groups of parts that share a manifest: the rows of each, within the limit where possible.

    A split that fills half a manifest ends its group, so that appends behind it do not rewrite it.
    Any two neighbours of the other groups exceed the limit together. So one axis has at most
    `2 * references / limit + 1` groups. A place that exceeds the limit is cut along the next axis
    and may add two small groups: one at its end, and one before it.
    """
    if len(parts.start):
        yield from _group(parts, np.arange(len(parts.start), dtype=np.int64), limit, 0)


def _group(parts: Parts, rows: Ints, limit: int, axis: int) -> Iterator[Ints]:
    rows = rows[np.argsort(parts.start[rows, axis], kind="stable")]
    start, reach = parts.start[rows, axis], np.maximum.accumulate(parts.stop[rows, axis])
    # Parts whose places overlap are a cluster.
    first = np.concatenate([[0], np.flatnonzero(start[1:] >= reach[:-1]) + 1])
    last = np.append(first[1:], len(rows))
    stored = np.add.reduceat(parts.stored[rows], first)
    edited = np.add.reduceat(parts.edited[rows], first)
    low = np.minimum.reduceat(parts.start[rows], first)
    sides = np.maximum.reduceat(parts.stop[rows], first) - low
    is_half_full = 2 * np.maximum(stored, edited) >= limit
    closing = np.flatnonzero((sides == 1).all(axis=1) & is_half_full)
    total = np.concatenate([[0], np.cumsum(stored + edited)])
    at = 0
    while at < len(first):
        end = max(at + 1, int(np.searchsorted(total, total[at] + limit, "right")) - 1)
        closed = int(np.searchsorted(closing, at))
        if closed < len(closing):
            end = min(end, int(closing[closed]) + 1)
        group = rows[first[at] : last[end - 1]]
        # A single place is cut along the next axis; `cut_refs` cuts a group of several places.
        is_finer = sides[at, axis] == 1 and total[end] - total[at] > limit
        if is_finer and axis + 1 < parts.start.shape[1]:
            yield from _group(parts, group, limit, axis + 1)
        else:
            yield group
        at = end


def cut_refs(refs: ChunkRefs, sizes: Sequence[int], limit: int) -> list[ChunkRefs]:
    """Cut references at the borders of splits into parts of similar size, each within the limit.

    Similar size matters: cutting off full parts would leave a small rest each time.
    """
    if len(refs) <= limit:
        return [refs]
    rows = np.arange(len(refs), dtype=np.int64)
    return [refs.take(part) for part in _cut_rows(refs.index, rows, sizes, limit, 0)]


def _cut_rows(
    index: Index, rows: Ints, sizes: Sequence[int], limit: int, axis: int
) -> Iterator[Ints]:
    if len(rows) <= limit or axis == len(sizes):
        yield rows
        return
    place = index[rows, axis] // np.uint32(sizes[axis])
    rows = rows[np.argsort(place, kind="stable")]
    counts = np.unique(place, return_counts=True)[1].tolist()
    enough = -(-len(rows) // -(-len(rows) // limit))
    first = last = 0
    for count in counts:
        size = last - first
        if size and (size + count > limit or size >= enough):
            yield from _cut_rows(index, np.sort(rows[first:last]), sizes, limit, axis + 1)
            first = last
        last += count
    yield from _cut_rows(index, np.sort(rows[first:last]), sizes, limit, axis + 1)
