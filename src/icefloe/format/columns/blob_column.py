"""A column of byte strings or texts: all bytes in one array, and where each row begins.

The layout is Arrow's, so that columns are exchanged with it without copying. Arrow itself is not
loaded for them: most programs never need it, and it takes longer to load than they take to open a
repository.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Bytes, Ints, scatter
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

_FEW = 64  # rows: below this, slicing one by one beats setting up numpy
_SHORT = 32  # bytes of a text on average: up to this, texts are cut apart together
_ROWS_AT_ONCE = 1 << 12
_DECODED_BYTES = 1 << 20
_CONTINUATION = np.uint8(0x80)


class BlobColumn:
    """Rows of bytes, or of text. A row that is absent has no bytes and reads as None."""

    __slots__ = ("absent", "data", "is_text", "offsets")

    def __init__(
        self,
        offsets: Ints,
        data: Bytes,
        absent: NDArray[np.bool_] | None = None,
        *,
        is_text: bool = False,
    ) -> None:
        """Row i is `data[offsets[i] : offsets[i + 1]]`; texts have to be UTF-8 already."""
        self.offsets = offsets
        self.data = data
        self.absent = absent if absent is not None and absent.any() else None
        self.is_text = is_text

    # -- making

    @classmethod
    def from_values(cls, values: Sequence[Any], *, is_text: bool = False) -> BlobColumn:
        """A column of these values; None for a row that is absent."""
        there, absent = list(values), None
        if None in there:
            absent = np.array([value is None for value in there], np.bool_)
            nothing: Any = "" if is_text else b""
            there = [nothing if value is None else value for value in there]
        joined = "".join(there).encode() if is_text else b"".join(there)
        length = np.fromiter(map(len, there), np.int64, len(there))
        if is_text and len(joined) != int(length.sum()):  # some characters take several bytes
            length = np.array([len(value.encode()) for value in there], np.int64)
        offsets = np.zeros(len(there) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        return cls(offsets, np.frombuffer(joined, np.uint8), absent, is_text=is_text)

    @classmethod
    def nulls(cls, count: int, *, is_text: bool = False) -> BlobColumn:
        """Rows that are all absent."""
        none = np.empty(0, np.uint8)
        return cls(np.zeros(count + 1, np.int64), none, np.ones(count, np.bool_), is_text=is_text)

    @classmethod
    def concat(cls, columns: Sequence[BlobColumn]) -> BlobColumn:
        """All rows, one column's after another's."""
        if len(columns) == 1:
            return columns[0]
        spans = [(int(column.offsets[0]), int(column.offsets[-1])) for column in columns]
        shift, offsets = 0, [np.zeros(1, np.int64)]
        for column, (first, last) in zip(columns, spans, strict=True):
            offsets.append(column.offsets[1:] + (shift - first))
            shift += last - first
        absent = None
        if any(column.absent is not None for column in columns):
            absent = np.concatenate([~column.is_valid() for column in columns])
        parts = [column.data[a:b] for column, (a, b) in zip(columns, spans, strict=True)]
        return cls(
            np.concatenate(offsets), np.concatenate(parts), absent, is_text=columns[0].is_text
        )

    # -- looking

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self._slice(row)
        if self.absent is not None and self.absent[row]:
            return None
        raw = self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()
        return raw.decode() if self.is_text else raw

    def _slice(self, rows: slice) -> BlobColumn:
        first, last, step = rows.indices(len(self))
        if step != 1:
            return self.take(np.arange(first, last, step))
        last = max(first, last)
        absent = None if self.absent is None else self.absent[first:last]
        return BlobColumn(self.offsets[first : last + 1], self.data, absent, is_text=self.is_text)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    def to_list(self) -> list[Any]:
        """Every row as a value."""
        values: list[Any] = []
        # In pieces: what is read and written in between stays in the processor cache.
        for row in range(0, len(self), _ROWS_AT_ONCE):
            offsets = self.offsets[row : row + _ROWS_AT_ONCE + 1]
            values += _values(self.data, offsets, is_text=self.is_text)
        if self.absent is not None:
            for row in np.flatnonzero(self.absent).tolist():
                values[row] = None
        return values

    def is_valid(self) -> NDArray[np.bool_]:
        """Which rows have a value."""
        return np.ones(len(self), np.bool_) if self.absent is None else ~self.absent

    @property
    def null_count(self) -> int:
        return 0 if self.absent is None else int(self.absent.sum())

    @property
    def length(self) -> Ints:
        """Bytes of each row."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        return int(self.offsets.nbytes) + int(self.offsets[-1] - self.offsets[0])

    # -- deriving

    def take(self, rows: Ints) -> BlobColumn:
        """Some rows in a new order; -1 stands for a row that is absent."""
        if not len(self):
            return BlobColumn.nulls(len(rows), is_text=self.is_text)
        absent = rows < 0
        if self.absent is not None:
            absent |= self.absent.take(rows, mode="clip")
        start = self.offsets[:-1].take(rows, mode="clip")
        length = self.length.take(rows, mode="clip")
        return gather(self.data, start, length, absent, is_text=self.is_text)

    def as_text(self) -> BlobColumn:
        """The same rows as texts.

        Raises:
            UnicodeDecodeError: a row is not UTF-8.
        """
        _check_text(self.offsets, self.data)
        return BlobColumn(self.offsets, self.data, self.absent, is_text=True)

    # -- exchanging

    def to_arrow(self) -> pa.Array:
        """An Arrow array of strings or binaries; large ones when 32 bits are too few."""
        validity = None
        if self.absent is not None:
            validity = pa.py_buffer(np.packbits(~self.absent, bitorder="little"))
        is_large = bool(self.offsets[-1] > np.iinfo(np.int32).max)
        words = np.ascontiguousarray(self.offsets) if is_large else self.offsets.astype(np.int32)
        if is_large:
            kind = pa.large_string() if self.is_text else pa.large_binary()
        else:
            kind = pa.string() if self.is_text else pa.binary()
        buffers = [validity, pa.py_buffer(words), pa.py_buffer(np.ascontiguousarray(self.data))]
        return pa.Array.from_buffers(kind, len(self), buffers)

    @classmethod
    def from_arrow(cls, array: pa.Array) -> BlobColumn:
        """A column over the memory of an Arrow array of strings or binaries."""
        types = pa.types
        is_text = types.is_string(array.type) or types.is_large_string(array.type)
        is_large = types.is_large_binary(array.type) or types.is_large_string(array.type)
        if not (is_text or is_large or types.is_binary(array.type)):
            raise TypeError(f"an array of {array.type}, expected strings or binaries")
        validity, offset_buffer, data_buffer = array.buffers()
        offsets = np.zeros(len(array) + 1, np.int64)
        if offset_buffer is not None and len(array):
            words = np.frombuffer(offset_buffer, np.int64 if is_large else np.int32)
            offsets = words[array.offset : array.offset + len(array) + 1].astype(np.int64)
        data = np.empty(0, np.uint8)
        if data_buffer is not None:
            data = np.frombuffer(data_buffer, np.uint8)
        absent = None
        if validity is not None and array.null_count:
            bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
            absent = bits[array.offset : array.offset + len(array)] == 0
            if (np.diff(offsets)[absent] > 0).any():  # a null may have bytes there
                return cls(offsets, data, is_text=is_text).take(
                    np.where(absent, -1, np.arange(len(array)))
                )
        return cls(offsets, data, absent, is_text=is_text)


def gather(
    buffer: Bytes,
    start: Ints,
    length: Ints,
    absent: NDArray[np.bool_] | None = None,
    *,
    is_text: bool = False,
) -> BlobColumn:
    """The byte strings at `start`; rows marked `absent` are None. Texts are not checked."""
    if absent is not None and absent.any():
        length = np.where(absent, 0, length)
    offsets = np.zeros(len(start) + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    if len(start) <= _FEW:
        source = memoryview(buffer)
        spans = zip(start.tolist(), length.tolist(), strict=True)
        joined = b"".join([source[at : at + size] for at, size in spans])
        return BlobColumn(offsets, np.frombuffer(joined, np.uint8), absent, is_text=is_text)
    data = np.empty(int(offsets[-1]), np.uint8)
    scatter(data, offsets[:-1], buffer, start, length)
    return BlobColumn(offsets, data, absent, is_text=is_text)


def _values(data: Bytes, offsets: Ints, *, is_text: bool) -> list[Any]:
    """The rows between offsets."""
    first, last, count = int(offsets[0]), int(offsets[-1]), len(offsets) - 1
    data = data[first:last]
    if is_text and count > _FEW and len(data) <= _SHORT * count and data.all():
        return _split(data, offsets - first)
    raw, ends = data.tobytes(), (offsets - first).tolist()
    if not is_text:
        return [raw[start:stop] for start, stop in pairwise(ends)]
    if not raw.isascii():
        return [raw[start:stop].decode() for start, stop in pairwise(ends)]
    text = raw.decode("ascii")
    return [text[start:stop] for start, stop in pairwise(ends)]


def _split(data: Bytes, offsets: Ints) -> list[str]:
    """Texts without zeros inside, cut out of one text at zeros between them."""
    count = len(offsets) - 1
    room = np.zeros(len(data) + count, np.uint8)
    is_inside = np.ones(len(room), np.bool_)
    is_inside[offsets[1:] + np.arange(count)] = False
    room[is_inside] = data
    return room[:-1].tobytes().decode().split("\0")


def _check_text(offsets: Ints, data: Bytes) -> None:
    """Every row is UTF-8: all of them together are, and none begins inside a character."""
    first, last = int(offsets[0]), int(offsets[-1])
    text = memoryview(np.ascontiguousarray(data))[first:last]
    if not len(text) or int(data[first:last].max()) < _CONTINUATION:
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(text), _DECODED_BYTES):
        decoder.decode(text[at : at + _DECODED_BYTES], at + _DECODED_BYTES >= len(text))
    starts = offsets[:-1][offsets[:-1] < last]
    inside = starts[(data[starts] & 0xC0) == _CONTINUATION]
    if len(inside):
        at = int(inside[0])
        raise UnicodeDecodeError("utf-8", bytes(text), at, at + 1, "a text begins inside")
