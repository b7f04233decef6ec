"""Which chunk goes into which manifest, and which manifests a commit has to write again.

The chunk grid of an array is cut along each dimension into splits of a configured size. A manifest
holds the references of one split. A commit rewrites the splits that changed. It keeps a manifest
that lies inside one unchanged split.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import field

import numpy as np

from icefloe.changes.sharing import Parts, cut_refs, group_parts
from icefloe.changes.split_grid import Box, Ints, Rows, Splits, rows_by
from icefloe.format.columns.chunk_index import Index
from icefloe.format.manifest.chunk_refs import ChunkRefs, Layer
from icefloe.format.snapshot.manifest_refs import ManifestRef, picked
from icefloe.format.snapshot.nodes import ArrayData
from icefloe.ids import ManifestId
from icefloe.records import NamedTuple, record

_ALL = slice(None)


@record(frozen=True)
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
    if splits.count == 1:
        return _plan_whole(splits, layers, array.manifests, rewrite_all)
    edits = _Edits(splits, layers)
    if limit:
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
        (refs if isinstance(rows, slice) and rows == _ALL else refs.take(rows), deleted)
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


def _plan_whole(
    splits: Splits, layers: Sequence[Layer], manifests: Sequence[ManifestRef], rewrite_all: bool
) -> SplitsPlan:
    """One manifest for the whole grid. Old manifests are kept if nothing changed."""
    rewrite = SplitRewrite(splits.box(0))
    for refs, deleted in layers:
        if deleted is not None and len(gone := deleted[splits.inside(deleted)]):
            rewrite.edits.append((ChunkRefs.empty(deleted.shape[1]), _ALL, gone))
        rows = splits.inside(refs.index)
        if _count(rows, len(refs)):
            rewrite.edits.append((refs, rows, np.empty((0, refs.ndim), np.uint32)))
    is_kept = not rewrite.edits and not rewrite_all
    for ref in manifests:
        sides = list(zip(ref.extents, splits.grid, strict=True))
        if all(start < min(stop, count) for (start, stop), count in sides):
            rewrite.sources.append(ref)
            is_kept = is_kept and all(stop <= count for (_, stop), count in sides)
    if is_kept:
        return SplitsPlan(rewrite.sources, [])
    return SplitsPlan([], [rewrite] if rewrite.edits or rewrite.sources else [])


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
