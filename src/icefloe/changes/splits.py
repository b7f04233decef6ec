"""Which chunk goes into which manifest, and which manifests a commit has to write again.

An array's grid of chunks is cut along each dimension into splits of a configured size; a
manifest holds one split. Only splits that changed are rewritten; a manifest that lies wholly
inside an unchanged split is kept as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import ArrayData, ManifestRef

Split = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
Rows = NDArray[np.int64]


@dataclass(slots=True)
class SplitRewrite:
    """One split that needs a new manifest: what to keep from old ones, and what to lay over."""

    box: Box
    edits: ChunkRefs
    deleted: Index
    sources: list[ManifestRef] = field(default_factory=list)


@dataclass(slots=True)
class ArrayPlan:
    """The manifests of one array after a commit: those kept, and those to be made."""

    kept: list[ManifestRef]
    rewrites: list[SplitRewrite]


def plan_array(
    array: ArrayData,
    edits: ChunkRefs,
    deleted: Index,
    split_sizes: Sequence[int],
    *,
    rewrite_all: bool = False,
) -> ArrayPlan:
    """Decide about the manifests of an array that changed. `array` has the new shape."""
    grid = [dimension.num_chunks for dimension in array.shape]
    if 0 in grid:
        return ArrayPlan([], [])  # no chunk can exist
    sizes = [min(size, max(count, 1)) for size, count in zip(split_sizes, grid, strict=True)]
    edits = edits.take(_inside(edits.index, grid))
    deleted = deleted[_inside(deleted, grid)]
    rewrites = {
        split: SplitRewrite(_box(split, sizes, grid), edits.take(chosen), deleted[gone])
        for split, chosen, gone in _by_split(
            edits.index, deleted, sizes, grid_is_one_split=sizes == grid
        )
    }
    none = ChunkRefs.empty(len(grid)), np.empty((0, len(grid)), np.uint32)
    kept = []
    for ref in array.manifests:
        overlapping = list(_splits_of(ref.extents, sizes, grid))
        if not overlapping:
            continue  # the grid shrank below it
        alone = overlapping[0]
        is_whole = len(overlapping) == 1 and _contains(_box(alone, sizes, grid), ref.extents)
        if is_whole and alone not in rewrites and not rewrite_all:
            kept.append(ref)
            continue
        for split in overlapping:
            if split not in rewrites:
                rewrites[split] = SplitRewrite(_box(split, sizes, grid), *none)
            rewrites[split].sources.append(ref)
    # A kept manifest may share its split with one that has to be cut: then both move over.
    still_kept = []
    for ref in kept:
        (split,) = _splits_of(ref.extents, sizes, grid)
        if split in rewrites:
            rewrites[split].sources.append(ref)
        else:
            still_kept.append(ref)
    return ArrayPlan(still_kept, [rewrites[split] for split in sorted(rewrites)])


def merge_split(rewrite: SplitRewrite, sources: Sequence[ChunkRefs]) -> ChunkRefs:
    """The references of one split: old ones inside its box, with the changes laid over."""
    start, stop = zip(*rewrite.box, strict=True) if rewrite.box else ((), ())
    merged = ChunkRefs.empty(len(rewrite.box))
    for refs in sources:
        is_inside = all(
            first <= low and high <= last
            for (first, last), (low, high) in zip(rewrite.box, refs.extents(), strict=True)
        )
        merged = merged.merge(refs if is_inside else refs.select(start, stop))
    return merged.merge(rewrite.edits, rewrite.deleted)


def _inside(index: Index, grid: Sequence[int]) -> Rows:
    return np.flatnonzero((index < np.array(grid, np.uint64)).all(axis=1))


def _by_split(
    edited: Index, deleted: Index, sizes: Sequence[int], *, grid_is_one_split: bool
) -> Iterator[tuple[Split, Rows, Rows]]:
    """Rows of the edits and of the deletions that fall into each touched split."""
    if not len(edited) and not len(deleted):
        return
    if grid_is_one_split:
        yield (0,) * edited.shape[1], np.arange(len(edited)), np.arange(len(deleted))
        return
    both = np.concatenate([edited, deleted]) // np.array(sizes, np.uint32)
    splits, number = np.unique(both, axis=0, return_inverse=True)
    number = number.reshape(-1)
    order = np.argsort(number, kind="stable")
    cuts = np.searchsorted(number[order], np.arange(1, len(splits)))
    for split, rows in zip(splits.tolist(), np.split(order, cuts), strict=True):
        is_edit = rows < len(edited)
        yield tuple(split), rows[is_edit], rows[~is_edit] - len(edited)


def _box(split: Split, sizes: Sequence[int], grid: Sequence[int]) -> Box:
    return tuple(
        (at * size, min((at + 1) * size, count))
        for at, size, count in zip(split, sizes, grid, strict=True)
    )


def _splits_of(box: Box, sizes: Sequence[int], grid: Sequence[int]) -> Iterator[Split]:
    """Splits that a box of chunk indices overlaps, inside the grid."""
    return product(
        *(
            range(start // size, -(-min(stop, count) // size))
            for (start, stop), size, count in zip(box, sizes, grid, strict=True)
        )
    )


def _contains(outer: Box, inner: Box) -> bool:
    return all(
        first <= start and stop <= last
        for (first, last), (start, stop) in zip(outer, inner, strict=True)
    )
