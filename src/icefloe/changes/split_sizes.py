"""The configured size of an array's splits along each dimension."""

from __future__ import annotations

from collections.abc import Callable

from icefloe.config.resolved import ResolvedSplitting
from icefloe.format.nodes import ArrayData

UNSPLIT = 2**32 - 1


def configured_split_sizes(
    splitting: ResolvedSplitting,
) -> Callable[[str, ArrayData], tuple[int, ...]]:
    """A function from path and array to split sizes.

    Rules are visited in order; a dimension takes the first that matches it, and stays whole when
    none does.
    """

    def sizes(path: str, array: ArrayData) -> tuple[int, ...]:
        ndim = len(array.shape)
        names = array.dimension_names or (None,) * ndim
        decided: dict[int, int] = {}
        for condition, dimension_rules in splitting.split_sizes:
            if not condition.matches(path):
                continue
            for axis, name in enumerate(names):
                for dimension, size in dimension_rules:
                    if axis not in decided and dimension.matches(axis, name):
                        decided[axis] = size
        return tuple(decided.get(axis, UNSPLIT) for axis in range(ndim))

    return sizes
