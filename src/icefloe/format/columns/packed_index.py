"""Ascending chunk indices in compressed pieces: what a big job touched, in next to no memory.

From one row to the next most coordinates stay, and the last one grows by one, so that differences
compress to a fraction of a byte. A log is written from the pieces, one after the other; the matrix
as a whole need not exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import zstandard

from icefloe.format.columns.chunk_index import Index, sort_rows
from icefloe.records import NamedTuple, record

_PIECE_ROWS = 1 << 17


class _Piece(NamedTuple):
    rows: int
    first: tuple[int, ...]
    last: tuple[int, ...]
    data: bytes


@record(frozen=True, eq=False)
class PackedIndex:
    """Distinct chunk indices in ascending order."""

    ndim: int
    pieces: tuple[_Piece, ...] = ()

    @classmethod
    def pack(cls, index: Index) -> PackedIndex:
        """Compress a matrix whose rows ascend."""
        parts = (index[at : at + _PIECE_ROWS] for at in range(0, len(index), _PIECE_ROWS))
        return cls(index.shape[1], tuple(map(_pack, parts)))

    @classmethod
    def union(cls, many: Sequence[PackedIndex], ndim: int) -> PackedIndex:
        """All indices of several.

        Where they lie behind each other, which splits along the first axis do, nothing is
        inflated. Otherwise all are sorted, at 4 bytes a coordinate and some 16 bytes a row.
        """
        filled = sorted((one for one in many if one.pieces), key=lambda one: one.pieces[0].first)
        pieces = tuple(piece for one in filled for piece in one.pieces)
        joined = cls(ndim, pieces)
        if all(before.last < after.first for before, after in pairwise(pieces)):
            return joined
        index = joined.unpack()
        return cls.pack(index[sort_rows(index)])

    @property
    def shape(self) -> tuple[int, int]:
        """As of the matrix."""
        return sum(piece.rows for piece in self.pieces), self.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def slices(self, size: int) -> Iterator[Index]:
        """The matrix in slices of `size` rows; the last may have fewer."""
        rest = np.empty((0, self.ndim), np.uint32)
        for piece in self.pieces:
            rows = np.concatenate([rest, _unpack(piece, self.ndim)])
            whole = len(rows) // size * size
            yield from (rows[at : at + size] for at in range(0, whole, size))
            rest = rows[whole:]
        if len(rest):
            yield rest

    def unpack(self) -> Index:
        """The whole matrix."""
        empty = np.empty((0, self.ndim), np.uint32)
        return np.concatenate([empty, *(_unpack(piece, self.ndim) for piece in self.pieces)])


def _pack(index: Index) -> _Piece:
    columns = np.array(index.T, order="C")
    columns[:, 1:] -= index.T[:, :-1]  # wraps around, and back again
    data = zstandard.ZstdCompressor(level=1).compress(columns.tobytes())
    return _Piece(len(index), tuple(index[0].tolist()), tuple(index[-1].tolist()), data)


def _unpack(piece: _Piece, ndim: int) -> Index:
    size = 4 * ndim * piece.rows
    raw = zstandard.ZstdDecompressor().decompress(piece.data, max_output_size=size)
    steps = np.frombuffer(raw, np.uint32).reshape(ndim, piece.rows)
    index: Index = np.cumsum(steps, axis=1, dtype=np.uint32).T
    return index
