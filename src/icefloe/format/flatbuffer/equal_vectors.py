"""Many vectors of one length as a matrix: the chunk indices in manifests and logs."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Ints, gather_fixed
from icefloe.format.flatbuffer.read import FlatBuffer


class EqualVectors:
    """A matrix filled slice by slice; the first vector says how long all have to be."""

    def __init__(self, buffer: FlatBuffer, count: int, what: str) -> None:
        self._buffer = buffer
        self._count = count
        self._what = what
        self.matrix: NDArray[np.uint32] = np.empty((0, 0), np.uint32)

    def read(self, rows: slice, field: Ints) -> None:
        """Fill `rows` with the vectors that the offsets at `field` lead to."""
        buffer, what = self._buffer, self._what
        at = buffer.targets(field)
        buffer.check(at, 4, 4, what)
        if rows.start == 0:
            length = int(buffer.u4[at[0] >> 2])
            buffer.check(at, 4 + 4 * length, 4, what)
            buffer.check_apart(4 * length * self._count, what)
            self.matrix = np.empty((self._count, length), np.uint32)
        length = self.matrix.shape[1]
        buffer.check(at, 4 + 4 * length, 4, what)
        # The length word comes along: one gather a vector instead of two.
        words = gather_fixed(buffer.u1, at, 4 + 4 * length).view("<u4")
        if bool((words[:, 0] != length).any()):
            refuse_lengths(buffer, length, what)
        self.matrix[rows] = words[:, 1:]


def refuse_lengths(buffer: FlatBuffer, length: int, what: str) -> NoReturn:
    """Vectors of one array have to be as long as the first."""
    buffer.fail(f"{what} of one array has {length} and other numbers of dimensions")


def index_tail(ndim: int) -> np.dtype[np.void]:
    """A vector of `ndim` coordinates, to be written right behind the table it belongs to."""
    return np.dtype([("count", "<u4"), ("at", "<u4", (ndim,))])
