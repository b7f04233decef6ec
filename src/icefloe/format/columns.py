"""Byte strings and texts in flat arrays, many at once; columns to Arrow and back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format import small

if TYPE_CHECKING:
    import pyarrow as pa


# -- Byte strings in flat buffers: gathered from there and scattered into them, many at once.
#
# Nothing here loops over rows; the cost is one pass per distinct length.


Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_COPY_BYTES = 1 << 20
_WORD = 8  # bytes


def windows(buffer: Bytes, size: int) -> NDArray[Any]:
    """View where element i is `buffer[i : i + size]`: indexing it copies `size` bytes a row."""
    count = max(len(buffer) - size + 1, 0)
    return np.ndarray((count,), f"V{size}", buffer, 0, (1,))


def gather_fixed(buffer: Bytes, start: Ints, size: int) -> Bytes:
    """`size` bytes at each start, as rows of a matrix."""
    if size == 0 or len(start) == 0:
        return np.empty((len(start), size), np.uint8)
    return windows(buffer, size)[start].view(np.uint8).reshape(len(start), size)


def scatter(target: Bytes, to: Ints, source: Bytes, start: Ints, length: Ints) -> None:
    """Copy `source[start : start + length]` to `target[to:]` for every row."""
    if len(length) <= small.ROWS:
        for at, begin, size in zip(to.tolist(), start.tolist(), length.tolist(), strict=True):
            target[at : at + size] = source[begin : begin + size]
        return
    if (length == length[:1]).all():
        _copy_rows(target, to, source, start, int(length.max(initial=0)))
        return
    for rows in rows_by_length(length):
        _copy_rows(target, to[rows], source, start[rows], int(length[rows[0]]))


def rows_by_length(length: Ints) -> list[Ints]:
    """The rows of each length."""
    if not len(length):
        return []
    is_short = int(length.max()) <= np.iinfo(np.uint16).max  # numpy counts these, which is fast
    order = np.argsort(length.astype(np.uint16) if is_short else length, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(length[order])) + 1)


def _copy_rows(target: Bytes, to: Ints, source: Bytes, start: Ints, size: int) -> None:
    if size == 0:
        return
    into, out_of = windows(target, size), windows(source, size)
    step = max(1, _COPY_BYTES // size)  # fancy indexing copies twice; keep the first copy small
    for at in range(0, len(to), step):
        into[to[at : at + step]] = out_of[start[at : at + step]]


def spread(start: Ints, count: Ints, width: int) -> Ints:
    """Positions of all elements of many vectors, `width` bytes each, one vector after another."""
    ends = np.cumsum(count)
    first = start - width * (ends - count)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(first, count) + width * np.arange(total, dtype=np.int64)


def find_id(ids: Bytes, key: bytes) -> int:
    """The row of an id among ascending ids of the same size, or -1."""
    if not len(ids):
        return -1
    keys = np.ascontiguousarray(ids).view(f"S{ids.shape[1]}").reshape(-1)
    row = int(keys.searchsorted(key))
    return row if row < len(ids) and ids[row].tobytes() == key else -1


def find_ids(ids: Bytes, wanted: Sequence[bytes]) -> Ints:
    """The row of each of these ids among ascending ids of the same size, or -1."""
    return find_rows(ids, np.frombuffer(b"".join(wanted), np.uint8).reshape(-1, ids.shape[1]))


def find_rows(ids: Bytes, sought: Bytes) -> Ints:
    """The same for ids that are the rows of matrices."""
    if not len(ids):
        return np.full(len(sought), -1, np.int64)
    size = ids.shape[1]
    ids, sought = np.ascontiguousarray(ids), np.ascontiguousarray(sought)
    # Random ids differ in their first word, and numbers are found several times as fast.
    if size > _WORD and len(sought) > small.ROWS:
        found = _search(_first_words(ids), _first_words(sought))
        if (ids.take(found, axis=0) == sought).all():
            return found
    keys, wanted = (one.view(f"S{size}").reshape(-1) for one in (ids, sought))
    found = _search(keys, wanted)
    found[keys[found] != wanted] = -1
    return found


def is_ascending_ids(ids: Bytes) -> bool:
    """Whether ids, as rows of a matrix, strictly ascend."""
    keys = np.ascontiguousarray(ids).view(f"S{ids.shape[1]}").reshape(-1)
    return bool((keys[1:] > keys[:-1]).all())


def id_rows(ids: Iterable[bytes], size: int) -> Bytes:
    """Ids of this size as the rows of a matrix."""
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, size)


def parts_of(counts: Ints, owners: Ints) -> Ints:
    """The rows of a flat column that belong to these owners, of which each has `counts` rows."""
    return spread((np.cumsum(counts) - counts)[owners], counts[owners], 1)


def concat_optional(parts: Sequence[tuple[BlobColumn | None, int]]) -> BlobColumn | None:
    """All rows of columns that may not exist, each with its number of rows; None if none does."""
    if all(column is None for column, _ in parts):
        return None
    return BlobColumn.concat(
        [BlobColumn.nulls(count) if column is None else column for column, count in parts]
    )


def _search(keys: NDArray[Any], wanted: NDArray[Any]) -> Ints:
    found: Ints = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
    return found


def _first_words(ids: Bytes) -> NDArray[Any]:
    """The first word of each id as a number; the numbers are in the order of the ids."""
    words = np.dtype([("first", ">u8"), ("rest", f"V{ids.shape[1] - _WORD}")])
    return ids.view(words).reshape(-1)["first"].astype(np.uint64)


# -- A column of byte strings or texts: all bytes in one array, and where each row begins.
#
# The layout is Arrow's, so that columns are exchanged with it without copying. Arrow itself is
# not loaded for them: most programs never need it, and it takes longer to load than they take to
# open a repository.


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
        import pyarrow as pa

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
        import pyarrow as pa

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
    if len(start) <= small.ROWS:
        source = memoryview(buffer)
        spans = zip(start.tolist(), length.tolist(), strict=True)
        joined = b"".join([source[at : at + size] for at, size in spans])
        return BlobColumn(offsets, np.frombuffer(joined, np.uint8), absent, is_text=is_text)
    data = np.empty(int(offsets[-1]), np.uint8)
    scatter(data, offsets[:-1], buffer, start, length)
    return BlobColumn(offsets, data, absent, is_text=is_text)


def _values(data: Bytes, offsets: Ints, *, is_text: bool) -> list[Any]:
    """The rows between offsets."""
    first, last = int(offsets[0]), int(offsets[-1])
    raw, ends = data[first:last].tobytes(), (offsets - first).tolist()
    if not is_text:
        return [raw[start:stop] for start, stop in pairwise(ends)]
    if not raw.isascii():
        return [raw[start:stop].decode() for start, stop in pairwise(ends)]
    text = raw.decode("ascii")
    return [text[start:stop] for start, stop in pairwise(ends)]


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


# -- Numbers and small rows to Arrow, numbers back, by their buffers; tables as bytes.
#
# Arrow's own conversions (`pa.array`, `to_numpy`) load pandas first wherever it is installed,
# which takes longer than most of what is done here.


def numbers_to_arrow(numbers: NDArray[Any], absent: NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array over the memory of numbers or times; rows marked `absent` are null."""
    validity = _bits(~absent) if absent is not None and absent.any() else None
    raw = np.ascontiguousarray(numbers)
    import pyarrow as pa

    data = pa.py_buffer(raw.view(np.uint8) if raw.nbytes else b"")  # times offer no buffer
    return pa.Array.from_buffers(pa.from_numpy_dtype(raw.dtype), len(raw), [validity, data])


def mask_to_arrow(mask: NDArray[np.bool_]) -> pa.Array:
    """Flat values that are true or false."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, _bits(mask)])


def _bits(mask: NDArray[np.bool_]) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def batch_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """A batch of a few rows of numbers, byte strings and texts; the latter two may be None."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [_column_of(c, field.type) for c, field in zip(columns, schema, strict=True)]
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    is_text = pa.types.is_string(kind)
    if is_text or pa.types.is_binary(kind):
        return BlobColumn.from_values(values, is_text=is_text).to_arrow()
    return numbers_to_arrow(np.array(values, kind.to_pandas_dtype()))


def numbers_from_arrow(array: pa.Array) -> NDArray[Any]:
    """The numbers of an Arrow array that has no nulls, without copying."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    numbers: NDArray[Any] = np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]
    return numbers


def mask_from_arrow(array: pa.Array) -> NDArray[np.bool_]:
    """An Arrow array of true and false, which has no nulls."""
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


def pack_table(table: pa.Table) -> bytes:
    """A table as one compressed Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpack_table(data: bytes | pa.Buffer) -> pa.Table:
    """The table of `pack_table`."""
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
