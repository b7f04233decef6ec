"""Which chunk goes into which manifest, and which manifests a commit has to write again.

An array's grid of chunks is cut along each dimension into splits of a configured size; a
manifest holds one split. Only splits that changed are rewritten; a manifest that lies wholly
inside an unchanged split is kept as it is.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from icefloe.changes.sharing import Parts, cut_refs, group_parts
from icefloe.changes.split_grid import Box, Ints, Rows, Splits, rows_by
from icefloe.format.columns.chunk_index import Index
from icefloe.format.manifest.chunk_refs import ChunkRefs, Layer
from icefloe.format.snapshot.nodes import ArrayData, ManifestRef
from icefloe.ids import ManifestId

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
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
    limit: int = 0
    """References that one manifest may have; with more, the box is cut. 0 is no limit."""

    @property
    def num_edits(self) -> int:
        return sum(_count(rows, len(refs)) for refs, rows, _ in self.edits)


@dataclass(frozen=True, slots=True)
class SplitsPlan:
    """The manifests of one array after a commit: those kept, and those to be made."""

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
    """Decide about the manifests of an array that changed. `array` has the new shape.

    With a limit, splits share a manifest where they have no more references together. That needs
    the number of references in each of the old manifests. Those in `new`, which tasks wrote ahead,
    are joined with their neighbours. What reaches beyond the box `within` is cut there.
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
    """The references of one split, or of those that shared a manifest: old ones inside its box,
    with the changes laid over. They are cut where one manifest has not room for them."""
    refs = _merge(rewrite, sources)
    return cut_refs(refs, rewrite.sizes, rewrite.limit) if rewrite.limit else [refs]


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


class _Table(NamedTuple):
    """References that are set, or indices that are deleted, with the splits of their rows."""

    refs: ChunkRefs
    deleted: Index | None
    split: Ints
    """Of each run of rows in one split."""
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
        """The splits that have any."""
        self.num_refs = np.zeros(len(self.numbers), np.int64)
        """References that are set in each, at most."""
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
    """The manifests that an array has."""

    manifests: Sequence[ManifestRef]
    num_refs: Sequence[int]
    new: Container[ManifestId]
    rewrite_all: bool


def _plan_each(
    splits: Splits, edits: _Edits, manifests: Sequence[ManifestRef], rewrite_all: bool
) -> SplitsPlan:
    """A manifest for every split. An old one in a single split without edits can stay."""
    found = {number: SplitRewrite(splits.box(number)) for number in edits.numbers.tolist()}
    edits.lay_over(list(found.values()), np.arange(len(found)))
    whole: list[tuple[ManifestRef, int]] = []
    for ref, (is_one, numbers) in zip(manifests, splits.overlaps(manifests), strict=True):
        if is_one and not rewrite_all:
            whole.append((ref, numbers[0]))
        else:
            _take_in(found, splits, ref, numbers)
    kept = []
    for ref, number in whole:
        # It may share its split with a manifest that has to be cut: then both move over.
        if number in found:
            found[number].sources.append(ref)
        else:
            kept.append(ref)
    return SplitsPlan(kept, [found[number] for number in sorted(found)])


def _take_in(
    found: dict[int, SplitRewrite], splits: Splits, ref: ManifestRef, numbers: Sequence[int]
) -> None:
    """An old manifest moves over into new ones of the splits it overlaps."""
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
        rows, edited = group[group < len(stored)], group[group >= len(stored)] - len(stored)
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
