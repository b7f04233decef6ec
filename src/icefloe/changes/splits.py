"""Which chunk reference goes into which manifest."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.config.manifest import ResolvedManifest, ResolvedSplitting
from icefloe.format.chunk_index import Index, bounding_box
from icefloe.format.chunk_refs import ChunkRefs, Layer
from icefloe.format.nodes import ArrayData, ManifestRef, extents_of, picked
from icefloe.ids import ManifestId

# -- The grid of splits: a chunk grid cut along each dimension, and the split of each chunk.


Box = tuple[tuple[int, int], ...]
Ints = NDArray[np.int64]
Rows = slice | Ints
Runs = tuple[Ints, Ints, Rows]
"""A key per run of rows, the boundaries of the runs, and the rows of the matrix they cover."""


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
    # The rows of a key may not be contiguous.
    if len(starts) > 1 and len(np.unique(keys[starts])) < len(starts):
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


# -- The size of an array's splits along each dimension: configured, or chosen automatically.


UNSPLIT = 2**32 - 1


class Sizes(NamedTuple):
    """How an array is split."""

    sizes: tuple[int, ...]
    """The size of a split along each axis."""
    limit: int
    """Neighbouring splits share a manifest up to this number of references. 0: never shared, as
    for sizes from a rule."""


SplitSizes = Callable[[str, ArrayData, int], Sizes]
"""From path, array and an upper bound of its references to the sizes of its splits."""


def split_sizes(manifest: ResolvedManifest) -> SplitSizes:
    """The split sizes of the settings: by rules, or automatic for arrays without a rule."""

    def sizes(path: str, array: ArrayData, num_refs: int) -> Sizes:
        decided = configured_split_sizes(manifest.splitting, path, array)
        if decided:
            ruled = tuple(decided.get(axis, UNSPLIT) for axis in range(len(array.shape)))
            return Sizes(ruled, 0)
        grid = [dimension.num_chunks for dimension in array.shape]
        found = automatic_split_sizes(grid, num_refs, manifest.max_refs_per_manifest)
        return Sizes(found, manifest.max_refs_per_manifest)

    return sizes


def configured_split_sizes(
    splitting: ResolvedSplitting, path: str, array: ArrayData
) -> dict[int, int]:
    """Sizes by axis, for the axes that a rule matches.

    Rules are visited in order. A dimension takes the first rule that matches it.
    """
    names = array.dimension_names or (None,) * len(array.shape)
    decided: dict[int, int] = {}
    for condition, dimension_rules in splitting.split_sizes:
        if not condition.matches(path):
            continue
        for axis, name in enumerate(names):
            for dimension, size in dimension_rules:
                if axis not in decided and dimension.matches(axis, name):
                    decided[axis] = size
    return decided


def automatic_split_sizes(grid: Sequence[int], num_refs: int, most: int) -> tuple[int, ...]:
    """Sizes for splits of at most `most` cells of the grid, cut along the outermost axis.

    The size along an axis depends only on the axes after it. So an array that grows along its first
    axis keeps its splits. Sizes are powers of two: when an inner axis grows, splits are halved only
    each time it has doubled. An array whose references fit into one split is not cut, regardless of
    the size of its grid. 0 means no limit.
    """
    whole = (UNSPLIT,) * len(grid)
    if most == 0 or num_refs == 0:
        return whole
    sizes = list(whole)
    for axis in range(len(grid)):
        behind = prod(grid[axis + 1 :])
        sizes[axis] = 1 << (max(1, most // max(behind, 1)).bit_length() - 1)
        if behind <= most:
            break
    cells = prod(min(size, count) for size, count in zip(sizes, grid, strict=True))
    return tuple(sizes) if num_refs > cells else whole


def coarser_sizes(
    grid: Sequence[int], sizes: Sequence[int], box: Box, most: int
) -> tuple[int, ...]:
    """Sizes of pieces of whole splits, such that a box touches at most so many pieces, or one.

    Sizes are doubled along the innermost axis until it is whole, then along the axis before it. So
    the chunks of a piece stay contiguous in row-major order.
    """
    found = [min(size, count) for size, count in zip(sizes, grid, strict=True)]
    axis = len(grid) - 1
    while axis >= 0 and Splits(grid, found).count_in(box) > max(1, most):
        if found[axis] < grid[axis]:
            found[axis] *= 2
        else:
            axis -= 1
    return tuple(found)


# -- Neighbouring splits with few references share a manifest.
#
# Splits depend on the grid only: an append moves no cut, and tasks know the cuts before any
# reference exists. One manifest per split would mean very many small files in a large grid with
# few references. So neighbouring splits share a manifest while their references together are
# within the limit. Cuts are always at the borders of splits, and boxes never overlap. Along each
# axis in turn, places (rows of splits) are either joined whole, or a single place is cut along
# the next axis.


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


# -- Which chunk goes into which manifest, and which manifests a commit has to write again.
#
# The chunk grid of an array is cut along each dimension into splits of a configured size. A
# manifest holds the references of one split. A commit rewrites the splits that changed. It keeps
# a manifest that lies inside one unchanged split.


_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class SplitRewrite:
    """One split that needs a new manifest: its old manifests, and the edits to lay over them.

    Edits are rows of tables that several splits share. They are copied when the split is merged.
    """

    box: Box
    edits: list[tuple[ChunkRefs, Rows, Index]] = field(default_factory=list)
    sources: list[ManifestRef] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    """The size of a split along each axis, where several splits share the box."""
    limit: int = 0
    """References per manifest. A box with more of them is cut. 0 means no limit."""

    @property
    def num_edits(self) -> int:
        return sum(_count(rows, len(refs)) for refs, rows, _ in self.edits)


class SplitsPlan(NamedTuple):
    """The manifests of one array after a commit: those that are kept, and those to be written."""

    kept: Sequence[ManifestRef]
    rewrites: Sequence[SplitRewrite]


def plan_array(
    array: ArrayData,
    layers: Sequence[Layer],
    split_sizes: Sequence[int],
    *,
    rewrite_all: bool = False,
    limit: int = 0,
    num_refs: Sequence[int] = (),
    new: Container[ManifestId] = (),
    within: Box | None = None,
) -> SplitsPlan:
    """Plan the manifests of an array that changed. `array` has the new shape.

    With a limit, neighbouring splits share a manifest while their references together are within
    it. That needs `num_refs`, the number of references in each old manifest. Manifests in `new`,
    which tasks have prepared, may be joined with their neighbours. Manifests that extend beyond the
    box `within` are cut at its border.
    """
    grid = [dimension.num_chunks for dimension in array.shape]
    if 0 in grid:
        return SplitsPlan([], [])  # no chunk can exist
    splits = Splits(grid, split_sizes)
    edits = _Edits(splits, layers)
    if limit and splits.count > 1:
        old = _Old(array.manifests, num_refs, new, rewrite_all)
        return _plan_shared(splits, edits, old, limit, within)
    return _plan_each(splits, edits, array.manifests, rewrite_all)


def merge_split(rewrite: SplitRewrite, sources: Sequence[ChunkRefs]) -> list[ChunkRefs]:
    """The references of one split, or of several that share a manifest: one table per manifest.

    The edits are laid over the old references inside the box. A table beyond the limit is cut.
    """
    refs = _merge(rewrite, sources)
    return cut_refs(refs, rewrite.sizes, rewrite.limit) if rewrite.limit else [refs]


def _merge(rewrite: SplitRewrite, sources: Sequence[ChunkRefs]) -> ChunkRefs:
    start, stop = zip(*rewrite.box, strict=True) if rewrite.box else ((), ())
    inside: list[ChunkRefs] = []
    for refs in sources:
        if refs.ndim != len(rewrite.box):
            continue  # written when the array had another number of dimensions
        is_inside = all(
            first <= low and high <= last
            for (first, last), (low, high) in zip(rewrite.box, refs.extents(), strict=True)
        )
        inside.append(refs if is_inside else refs.select(start, stop))
    layers: list[Layer] = [(ChunkRefs.joined(inside, len(rewrite.box)), None)]
    layers += [
        (refs if _count(rows, len(refs)) == len(refs) else refs.take(rows), deleted)
        for refs, rows, deleted in rewrite.edits
    ]
    return ChunkRefs.overlay(layers, len(rewrite.box))[0]


class _Table(NamedTuple):
    """References that are set, or indices that are deleted, grouped by split."""

    refs: ChunkRefs
    deleted: Index | None
    split: Ints
    """The split of each run of rows."""
    bounds: Ints
    inside: Rows

    def edit(self, rows: Rows) -> tuple[ChunkRefs, Rows, Index]:
        if self.deleted is not None:
            return self.refs, _ALL, self.deleted[rows]
        return self.refs, rows, np.empty((0, self.refs.ndim), np.uint32)


class _Edits:
    """The edits of an array, by the splits they are in."""

    def __init__(self, splits: Splits, layers: Sequence[Layer]) -> None:
        self._tables: list[_Table] = []
        for refs, deleted in layers:
            if deleted is not None:
                nothing = ChunkRefs.empty(deleted.shape[1])
                self._tables.append(_Table(nothing, deleted, *splits.runs(deleted)))
            self._tables.append(_Table(refs, None, *splits.runs(refs.index)))
        none = np.empty(0, np.int64)
        self.numbers = np.unique(np.concatenate([none, *(one.split for one in self._tables)]))
        """The splits with edits, ascending."""
        self.num_refs = np.zeros(len(self.numbers), np.int64)
        """An upper bound of the references that are set in each of these splits."""
        for table in self._tables:
            if table.deleted is None:
                at = np.searchsorted(self.numbers, table.split)
                np.add.at(self.num_refs, at, np.diff(table.bounds))
        self.num_refs = np.minimum(self.num_refs, splits.room)

    def lay_over(self, rewrites: Sequence[SplitRewrite], owner: Ints) -> None:
        """Give every edit to the rewrite that owns its split."""
        for table in self._tables:
            keys = owner[np.searchsorted(self.numbers, table.split)]
            for key, rows in rows_by(keys, table.bounds, table.inside):
                rewrites[key].edits.append(table.edit(rows))


class _Old(NamedTuple):
    """The manifests of an array before the commit."""

    manifests: Sequence[ManifestRef]
    num_refs: Sequence[int]
    new: Container[ManifestId]
    rewrite_all: bool


def _plan_each(
    splits: Splits, edits: _Edits, manifests: Sequence[ManifestRef], rewrite_all: bool
) -> SplitsPlan:
    """One manifest per split. An old manifest inside a split without edits is kept."""
    found = {number: SplitRewrite(splits.box(number)) for number in edits.numbers.tolist()}
    edits.lay_over(list(found.values()), np.arange(len(found)))
    first, last, is_outside = splits.places_of(manifests)
    is_whole = (first + 1 == last).all(axis=1) & ~is_outside & (not rewrite_all)
    places = list(zip(first.tolist(), last.tolist(), strict=True))
    cut = {at for row in np.flatnonzero(~is_whole).tolist() for at in splits.between(*places[row])}
    # The split of a whole manifest may also have a part of one that is cut. Then both are
    # rewritten.
    number = splits.numbers(first).tolist()
    is_kept = is_whole & np.array([at not in found and at not in cut for at in number], np.bool_)
    for row in np.flatnonzero(~is_kept).tolist():
        _take_in(found, splits, manifests[row], splits.between(*places[row]))
    kept = picked(manifests, np.flatnonzero(is_kept))
    return SplitsPlan(kept, [found[number] for number in sorted(found)])


def _take_in(
    found: dict[int, SplitRewrite], splits: Splits, ref: ManifestRef, numbers: Sequence[int]
) -> None:
    """Make an old manifest a source of all splits it overlaps."""
    for number in numbers:
        if number not in found:
            found[number] = SplitRewrite(splits.box(number))
        found[number].sources.append(ref)


def _plan_shared(
    splits: Splits, edits: _Edits, old: _Old, limit: int, within: Box | None
) -> SplitsPlan:
    """Splits with few references share a manifest with their neighbours."""
    first, last, is_outside = splits.places_of(old.manifests, within)
    place, stored = splits.places(edits.numbers), np.array(old.num_refs, np.int64)
    is_shared = (last - first > 1).any(axis=1)
    is_touched = is_outside | (is_shared & (stored > limit)) | old.rewrite_all
    is_new = np.array([ref.id in old.new for ref in old.manifests], np.bool_)
    parts = Parts(
        np.concatenate([first, place]),
        np.concatenate([last, place + 1]),
        np.concatenate([stored, np.zeros(len(place), np.int64)]),
        np.concatenate([np.zeros(len(stored), np.int64), edits.num_refs]),
    )
    kept: list[ManifestRef] = []
    rewrites: list[SplitRewrite] = []
    owner = np.empty(len(place), np.int64)
    for group in group_parts(parts, limit):
        rows, edited = np.sort(group[group < len(stored)]), group[group >= len(stored)]
        edited = edited - len(stored)
        sources = [old.manifests[row] for row in rows.tolist()]
        is_kept = not len(edited) and not is_touched[rows].any()
        is_dense = parts.are_dense(group, limit)
        if is_kept and (is_dense or len(rows) == 1 or not is_new[rows].any()):
            kept += sources
        elif is_dense:
            numbers = edits.numbers[edited]
            found = {number: SplitRewrite(splits.box(number)) for number in numbers.tolist()}
            boxes = zip(sources, first[rows].tolist(), last[rows].tolist(), strict=True)
            for ref, low, high in boxes:
                _take_in(found, splits, ref, splits.between(low, high))
            order = sorted(found)
            owner[edited] = len(rewrites) + np.searchsorted(order, numbers)
            rewrites += [found[number] for number in order]
        else:
            owner[edited] = len(rewrites)
            box = splits.chunks(parts.around(group))
            rewrites.append(SplitRewrite(box, [], sources, tuple(splits.sizes), limit))
    edits.lay_over(rewrites, owner)
    return SplitsPlan(kept, rewrites)


def _count(rows: Rows, length: int) -> int:
    return len(range(*rows.indices(length))) if isinstance(rows, slice) else len(rows)
