"""Names of chunks in a Zarr hierarchy: from `0.3` or `c/0/3` to indices, for all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.on_demand import on_demand
from icefloe.records import record

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = on_demand("pyarrow")
    pc = on_demand("pyarrow.compute")

_NUMBER = "(0|[1-9][0-9]{0,17})"  # fits into 64 bits, and has one spelling


@record(frozen=True)
class ChunkKeys:
    """How the chunks of an array are named, below the path of the array."""

    separator: str
    starts_with_c: bool

    def parse(self, names: pa.Array, ndim: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Which of the names are chunks of an array with so many dimensions, and their indices."""
        separator = "\\." if self.separator == "." else self.separator
        numbers = separator.join([_NUMBER] * ndim)
        if self.starts_with_c:
            pattern = f"^c{separator}{numbers}$" if ndim else "^c$"
        else:
            pattern = f"^{numbers}$" if ndim else "^0$"
        is_chunk = pc.match_substring_regex(names, pattern).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(is_chunk)
        index = np.zeros((len(rows), ndim), np.int64)
        if ndim and len(rows):
            parts = pc.split_pattern(names.take(pa.array(rows)), self.separator).flatten()
            if self.starts_with_c:
                parts = parts.filter(pc.not_equal(parts, "c"))
            index = parts.cast(pa.int64()).to_numpy().reshape(len(rows), ndim)
        return rows, index


def grid_of(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    """How many chunks there are along each dimension."""
    return tuple(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))
