"""Which chunk goes into which manifest, and which manifests a commit has to write again.

An array's grid of chunks is cut along each dimension into splits of a configured size; a
manifest holds one split. Only splits that changed are rewritten; a manifest that lies wholly
inside an unchanged split is kept as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.changes.sharing import Part, Places, around, cut_refs, group_parts, is_dense
from icefloe.format.chunk_index import Index, bounding_box
from icefloe.format.chunk_refs import ChunkRefs, Layer
from icefloe.format.nodes import ArrayData, ManifestRef

Box = tuple[tuple[int, int], ...]
Rows = slice | NDArray[np.int64]
_ALL = slice(None)


@dataclass(slots=True)
class SplitRewrite:
    """One split that needs a new manifest: what to keep from old ones, and what to lay over.

    Edits are rows of tables that other splits take rows of, too: nothing is copied until the
    split is merged.
    """

    box: Box
    edits: list[tuple[ChunkRefs, Rows, Index]] = field(default_factory=list)
    sources: list[ManifestRef] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    """Of the splits in the box, where several share it."""
    room: int = 0
    """References that one manifest may have; with more, the box is cut. 0 is no limit."""

    @property
    def num_edits(self) -> int:
        return sum(_count(rows, len(refs)) for refs, rows, _ in self.edits)


@dataclass(slots=True)
class ArrayPlan:
    """The manifests of one array after a commit: those kept, and those to be made."""

    kept: list[ManifestRef]
    rewrites: list[SplitRewrite]


def plan_array(
    array: ArrayData,
    layers: Sequence[Layer],
    split_sizes: Sequence[int],
    *,
    rewrite_all: bool = False,
    num_refs: Sequence[int] | None = None,
) -> ArrayPlan:
    """Decide about the manifests of an array that changed. `array` has the new shape.

    With `num_refs`, of each of its manifests, splits with few references share one.
    """
    grid = [dimension.num_chunks for dimension in array.shape]
    if 0 in grid:
        return ArrayPlan([], [])  # no chunk can exist
    splits = Splits(grid, split_sizes)
    rewrites = _Rewrites(splits)
    for refs, deleted in layers:
        if deleted is not None:
            rewrites.delete(deleted)
        rewrites.lay_over(refs)
    if num_refs is not None and splits.count > 1:
        return rewrites.shared(array.manifests, num_refs, rewrite_all=rewrite_all)
    return ArrayPlan(rewrites.take_in(array.manifests, rewrite_all=rewrite_all), rewrites.ordered())


def merge_split(rewrite: SplitRewrite, sources: Sequence[ChunkRefs]) -> list[ChunkRefs]:
    """The references of one split, or of those that shared a manifest: old ones inside its box,
    with the changes laid over. They are cut where one manifest has not room for them."""
    refs = _merge(rewrite, sources)
    return cut_refs(refs, rewrite.sizes, rewrite.room) if rewrite.room else [refs]


def _merge(rewrite: SplitRewrite, sources: Sequence[ChunkRefs]) -> ChunkRefs:
    start, stop = zip(*rewrite.box, strict=True) if rewrite.box else ((), ())
    layers: list[Layer] = []
    for refs in sources:
        if refs.ndim != len(rewrite.box):
            continue  # of a time when the array had other dimensions, see `snapshot.py`
        is_inside = all(
            first <= low and high <= last
            for (first, last), (low, high) in zip(rewrite.box, refs.extents(), strict=True)
        )
        layers.append((refs if is_inside else refs.select(start, stop), None))
    # Old manifests do not overlap: in this order most of them simply follow each other.
    layers.sort(key=lambda layer: layer[0].index[0].tolist() if len(layer[0]) else [])
    layers += [(refs.take(rows), deleted) for refs, rows, deleted in rewrite.edits]
    return ChunkRefs.overlay(layers, len(rewrite.box))[0]


class _Rewrites:
    """The splits that need a new manifest, found one after the other."""

    def __init__(self, splits: Splits) -> None:
        self._splits = splits
        self._found: dict[int, SplitRewrite] = {}
        self._layers: dict[int, int] = {}
        """The order in which tables came, by their identity."""
        self._nothing: list[ChunkRefs] = []

    def ordered(self) -> list[SplitRewrite]:
        return [self._found[number] for number in sorted(self._found)]

    def lay_over(self, refs: ChunkRefs) -> None:
        none = np.empty((0, refs.ndim), np.uint32)
        self._layers[id(refs)] = len(self._layers)
        for number, rows in self._splits.group(refs.index):
            self._rewrite(number).edits.append((refs, rows, none))

    def delete(self, index: Index) -> None:
        nothing = ChunkRefs.empty(index.shape[1])
        self._nothing.append(nothing)
        self._layers[id(nothing)] = len(self._layers)
        for number, rows in self._splits.group(index):
            self._rewrite(number).edits.append((nothing, _ALL, index[rows]))

    def take_in(self, manifests: Sequence[ManifestRef], *, rewrite_all: bool) -> list[ManifestRef]:
        """Give every old manifest to the splits it overlaps; returns those that can stay."""
        whole: list[tuple[ManifestRef, int]] = []
        for ref, overlapping in zip(manifests, self._splits.overlaps(manifests), strict=True):
            if isinstance(overlapping, int) and not rewrite_all:
                whole.append((ref, overlapping))
                continue
            for number in [overlapping] if isinstance(overlapping, int) else overlapping:
                self._rewrite(number).sources.append(ref)
        kept = []
        for ref, number in whole:
            # It may share its split with a manifest that has to be cut: then both move over.
            if number in self._found:
                self._found[number].sources.append(ref)
            else:
                kept.append(ref)
        return kept

    def shared(
        self, manifests: Sequence[ManifestRef], num_refs: Sequence[int], *, rewrite_all: bool
    ) -> ArrayPlan:
        """Like `take_in`, but neighbouring splits with few references share a manifest."""
        splits, kept = self._splits, []
        parts = [
            Part(splits.place(number), rewrite.num_edits, True, None, number)
            for number, rewrite in self._found.items()
        ]
        for ref, count in zip(manifests, num_refs, strict=True):
            places = splits.places(ref.extents)
            is_outside = any(
                stop > side for (_, stop), side in zip(ref.extents, splits.grid, strict=True)
            )
            is_large = count > splits.room and prod(b - a for a, b in places) > 1
            parts.append(Part(places, count, rewrite_all or is_outside or is_large, ref))
        rewrites: list[SplitRewrite] = []
        for group in group_parts(parts, splits.room):
            sources = [part.manifest for part in group if part.manifest is not None]
            if not any(part.is_touched for part in group):
                kept += sources
            elif is_dense(group, splits.room):
                rewrites += self._each_split(group)
            else:
                rewrites.append(self._together(group, sources))
        return ArrayPlan(kept, rewrites)

    def _each_split(self, group: Sequence[Part]) -> list[SplitRewrite]:
        """A manifest for every split of a group."""
        numbers = {part.split for part in group if part.manifest is None}
        for part in group:
            if part.manifest is None:
                continue
            for place in product(*(range(*side) for side in part.places)):
                number = self._splits.number(place)
                self._rewrite(number).sources.append(part.manifest)
                numbers.add(number)
        return [self._found[number] for number in sorted(numbers)]

    def _together(self, group: Sequence[Part], sources: list[ManifestRef]) -> SplitRewrite:
        """One manifest for all splits of a group, or a few if there turn out to be too many."""
        splits = self._splits
        layers: dict[int, list[tuple[ChunkRefs, Rows, Index]]] = {}
        for part in group:
            for edit in self._found[part.split].edits if part.manifest is None else ():
                layers.setdefault(self._layers[id(edit[0])], []).append(edit)
        return SplitRewrite(
            splits.chunks(around(group)),
            [_joined(layers[number]) for number in sorted(layers)],
            sources,
            tuple(splits.sizes),
            splits.room,
        )

    def _rewrite(self, number: int) -> SplitRewrite:
        if number not in self._found:
            self._found[number] = SplitRewrite(self._splits.box(number))
        return self._found[number]


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
        # Sizes of 1 in a grid of astronomical extent: slow, but right.
        self._dtype: Any = np.int64 if self.count < 2**63 else object

    def box(self, number: int) -> Box:
        """The chunk indices of a split."""
        return self.chunks(self.place(number))

    def place(self, number: int) -> Places:
        """Where a split is, as a box of one."""
        at = [number // stride % n for stride, n in zip(self._strides, self._counts, strict=True)]
        return tuple((place, place + 1) for place in at)

    @property
    def room(self) -> int:
        """Chunks in a split, at most."""
        return prod(self.sizes)

    def chunks(self, places: Sequence[tuple[int, int]]) -> Box:
        """The chunk indices in a box of splits."""
        return tuple(
            (start * size, min(stop * size, count))
            for (start, stop), size, count in zip(places, self.sizes, self.grid, strict=True)
        )

    def places(self, box: Sequence[tuple[int, int]]) -> Places:
        """The splits that a box of chunk indices lies in."""
        return tuple(
            (min(start, count) // size, -(-min(stop, count) // size))
            for (start, stop), size, count in zip(box, self.sizes, self.grid, strict=True)
        )

    def group(self, index: Index) -> Iterator[tuple[int, Rows]]:
        """Each split that has rows of `index` and those rows, as a slice where they are one."""
        if not len(index):
            return
        inside: Rows = _ALL
        box = bounding_box(index)
        if any(stop > count for (_, stop), count in zip(box, self.grid, strict=True)):
            inside = np.flatnonzero((index < np.array(self.grid, np.uint64)).all(axis=1))
            index = index[inside]
            if not len(index):
                return
        if not self._cut_axes:
            yield 0, inside
            return
        number = np.zeros(len(index), self._dtype)
        for axis in self._cut_axes:
            place = index[:, axis] // np.uint32(self.sizes[axis])
            number += place.astype(self._dtype) * self._strides[axis]
        starts = np.flatnonzero(number[1:] != number[:-1]) + 1
        runs = number[np.concatenate([[0], starts])]
        if len(np.unique(runs)) < len(runs):  # the rows of a split are not neighbours
            order = np.argsort(number, kind="stable")
            number = number[order]
            starts = np.flatnonzero(number[1:] != number[:-1]) + 1
            runs = number[np.concatenate([[0], starts])]
            inside = order if isinstance(inside, slice) else inside[order]
        bounds = [0, *starts.tolist(), len(number)]
        for run, first, last in zip(runs.tolist(), bounds, bounds[1:], strict=False):
            rows = slice(first, last)
            yield run, rows if isinstance(inside, slice) else inside[rows]

    def overlaps(self, manifests: Sequence[ManifestRef]) -> Iterator[int | list[int]]:
        """For each manifest the split it lies in, or all it has to be cut into."""
        if not manifests:
            return
        extents = np.array([ref.extents for ref in manifests], np.int64)
        start, stop = extents.reshape(len(manifests), -1, 2).transpose(2, 0, 1)
        sizes, grid = np.array(self.sizes, np.int64), np.array(self.grid, np.int64)
        first, last = start // sizes, -(-np.minimum(stop, grid) // sizes)
        is_whole = ((first + 1 == last) & (stop <= grid)).all(axis=1)
        places = zip(first.tolist(), last.tolist(), is_whole.tolist(), strict=True)
        for low, high, is_one in places:
            if is_one:
                yield self.number(low)
            else:
                yield [self.number(at) for at in product(*map(range, low, high))]

    def number(self, place: Sequence[int]) -> int:
        """The split at a place."""
        return sum(at * stride for at, stride in zip(place, self._strides, strict=True))


def _joined(edits: list[tuple[ChunkRefs, Rows, Index]]) -> tuple[ChunkRefs, Rows, Index]:
    """The rows of one table that go into several splits, as one edit."""
    if len(edits) == 1:
        return edits[0]
    refs = edits[0][0]
    every = np.arange(len(refs), dtype=np.int64)
    rows = np.concatenate([every[some] for _, some, _ in edits])
    return refs, np.sort(rows), np.concatenate([deleted for _, _, deleted in edits])


def _count(rows: Rows, length: int) -> int:
    return len(range(*rows.indices(length))) if isinstance(rows, slice) else len(rows)
