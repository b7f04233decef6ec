"""Where cells of a result come from, as far as the values and sizes of a source decide it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Place(NamedTuple):
    """Where an operation finds its cells along a dimension. An append only makes it longer."""

    dim: str
    """The dimension of the result; empty if it has none."""
    values: NDArray[np.int64]
    """Of each cell its position or group; or the borders of blocks."""
    has_borders: bool = False

    @property
    def size(self) -> int:
        """How many cells there are."""
        return int(self.values[-1]) if self.has_borders else len(self.values)

    def until(self, size: int) -> NDArray[np.int64]:
        """The same for the first cells."""
        return np.unique(self.values.clip(max=size)) if self.has_borders else self.values[:size]
