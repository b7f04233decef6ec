"""The size of an array's splits along each dimension: configured, or chosen automatically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from icefloe.changes.split_grid import Box, Splits
from icefloe.config.resolved import ResolvedManifest, ResolvedSplitting
from icefloe.format.snapshot.nodes import ArrayData
from icefloe.records import NamedTuple

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
