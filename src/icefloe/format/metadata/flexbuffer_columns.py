"""Many FlexBuffers at once: values of the same shape become Python values together.

The commits of a program have metadata of the same shape. A reader follows one buffer and marks the
bytes that lead it: offsets, lengths, types and keys. Buffers of the same length with the same bytes
there have the same shape. Their numbers and texts are read as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Bytes, gather_fixed, rows_by_length
from icefloe.format.metadata.flexbuffers import Reader, Type, decode, text_at

_FEW = 8  # values: below this, one by one takes no longer
_MAX_COMPILED = 32  # items of a dict
_MAX_SHAPES = 16  # of one length; the rest is read one by one


def decode_many(column: BlobColumn) -> list[Any]:
    """`decode` of every row.

    Raises:
        FormatError: a row is not a FlexBuffer, or holds something JSON cannot.
    """
    found: list[Any] = [None] * len(column)
    for rows in rows_by_length(column.length) if len(column) else ():
        left = rows
        buffers = gather_fixed(column.data, column.offsets[rows], int(column.length[rows[0]]))
        for _ in range(_MAX_SHAPES):
            if len(left) < _FEW:
                break
            is_alike = _are_alike(buffers)
            values = _ColumnReader(buffers[is_alike]).root()
            for row, value in zip(left[is_alike].tolist(), values, strict=True):
                found[row] = value
            left, buffers = left[~is_alike], buffers[~is_alike]
        for row, buffer in zip(left.tolist(), buffers, strict=True):
            found[row] = decode(buffer.tobytes())
    return found


def _are_alike(buffers: Bytes) -> NDArray[np.bool_]:
    """Which buffers have the shape of the first."""
    reader = _ColumnReader(buffers[:1])
    reader.root()
    leading = np.flatnonzero(reader.leads)
    found: NDArray[np.bool_] = (buffers[:, leading] == buffers[0, leading]).all(axis=1)
    return found


class _ColumnReader(Reader):
    """Follows the first of buffers of the same shape. Every value is a list, one item a buffer."""

    def __init__(self, buffers: Bytes) -> None:
        super().__init__(buffers[0].tobytes())
        self._buffers = buffers
        self.leads = np.zeros(buffers.shape[1], np.bool_)
        """The bytes that were followed."""

    def _unsigned(self, position: int, width: int) -> int:
        self._require(position, width)
        self.leads[position : position + width] = True
        return super()._unsigned(position, width)

    def _byte(self, position: int) -> int:
        self.leads[position] = True
        return super()._byte(position)

    def _key(self, address: int) -> str:
        key = super()._key(address)
        self.leads[address : address + len(key.encode()) + 1] = True
        return key

    def _same(self, value: str | None) -> list[Any]:
        return [value] * len(self._buffers)

    def _dict(self, keys: list[str], values: list[Any]) -> list[dict[str, Any]]:
        return dicts(keys, values) if keys else [{} for _ in self._buffers]

    def _list(self, values: list[Any]) -> list[list[Any]]:
        return list(map(list, zip(*values, strict=True))) or [[] for _ in self._buffers]

    def _number(self, kind: Type, address: int, width: int) -> list[Any]:
        words = self._words(kind, address, width, 1)
        found: list[Any] = words.reshape(-1).tolist()
        return found

    def _numbers(self, kind: Type, address: int, width: int, count: int) -> list[list[Any]]:
        found: list[list[Any]] = self._words(kind, address, width, count).tolist()
        return found

    def _words(self, kind: Type, address: int, width: int, count: int) -> NDArray[Any]:
        letter = self._letter(kind, address, width, count)
        words: NDArray[Any] = self._part(address, address + count * width).view(f"<{letter}")
        if kind is Type.BOOL:
            words = words != 0
        elif kind is Type.FLOAT and not bool(np.isfinite(words).all()):
            is_finite, words = np.isfinite(words), words.astype(np.object_)
            words[~is_finite] = None
        return words

    def _text(self, start: int, end: int) -> list[str]:
        self._spend(end - start, start)
        part, size = self._part(start, end), end - start
        if bool((part == part[0]).all()):
            return [text_at(start, self._data[start:end])] * len(part)
        raw = part.tobytes()
        places = range(0, len(raw), size)
        if raw.isascii():
            text = raw.decode("ascii")
            return [text[at : at + size] for at in places]
        return [text_at(start, raw[at : at + size]) for at in places]

    def _part(self, start: int, end: int) -> Bytes:
        return np.ascontiguousarray(self._buffers[:, start:end])


def dicts(keys: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """One dict a row, with an item a column; there has to be a column."""
    if len(keys) > _MAX_COMPILED:
        return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
    made: list[dict[str, Any]] = _maker(len(keys))(*keys)(*columns)
    return made


@cache
def _maker(count: int) -> Any:
    # Compiled with an expression for each item, a dict takes a third of the time.
    keys, columns, values = ([f"{letter}{at}" for at in range(count)] for letter in "kcv")
    items = ", ".join(map("{}: {}".format, keys, values))
    rows = f"for {', '.join(values)}, in zip({', '.join(columns)}, strict=True)"
    return eval(f"lambda {', '.join(keys)}: lambda {', '.join(columns)}: [{{{items}}} {rows}]")
