"""Columns of byte strings: gathered from and scattered into flat buffers, held as Arrow arrays.

Nothing here loops over rows; the cost is one pass per distinct length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_COPY_BYTES = 1 << 20
_TYPES = {
    (False, False): pa.binary(),
    (False, True): pa.large_binary(),
    (True, False): pa.string(),
    (True, True): pa.large_string(),
}
_FEW_LENGTHS = 16
_FEW = 64  # rows: below this, slicing one by one beats setting up numpy


def windows(buffer: Bytes, size: int) -> NDArray[Any]:
    """View where element i is `buffer[i : i + size]`: indexing it copies `size` bytes a row."""
    count = max(len(buffer) - size + 1, 0)
    return np.ndarray((count,), f"V{size}", buffer, 0, (1,))


def gather_fixed(buffer: Bytes, start: Ints, size: int) -> Bytes:
    """`size` bytes at each start, as rows of a matrix."""
    if size == 0 or len(start) == 0:
        return np.empty((len(start), size), np.uint8)
    return windows(buffer, size)[start].view(np.uint8).reshape(len(start), size)


def gather(
    buffer: Bytes,
    start: Ints,
    length: Ints,
    absent: NDArray[np.bool_] | None = None,
    *,
    is_text: bool = False,
) -> pa.Array:
    """The byte strings at `start`, as an Arrow array; rows marked `absent` are null.

    Raises:
        pa.ArrowInvalid: `is_text`, and a string is not UTF-8.
    """
    if absent is not None and absent.any():
        length = np.where(absent, 0, length)
    offsets = np.zeros(len(start) + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    if len(start) <= _FEW:
        source = memoryview(buffer)
        spans = zip(start.tolist(), length.tolist(), strict=True)
        joined = b"".join([source[at : at + size] for at, size in spans])
        return binary_array(offsets, np.frombuffer(joined, np.uint8), absent, is_text=is_text)
    data = np.empty(int(offsets[-1]), np.uint8)
    scatter(data, offsets[:-1], buffer, start, length)
    return binary_array(offsets, data, absent, is_text=is_text)


def scatter(target: Bytes, to: Ints, source: Bytes, start: Ints, length: Ints) -> None:
    """Copy `source[start : start + length]` to `target[to:]` for every row."""
    if len(length) <= _FEW:
        for at, begin, size in zip(to.tolist(), start.tolist(), length.tolist(), strict=True):
            target[at : at + size] = source[begin : begin + size]
        return
    first = int(length[0])
    if (length == first).all():
        _copy_rows(target, to, source, start, first)
        return
    for rows in _rows_by_length(length):
        _copy_rows(target, to[rows], source, start[rows], int(length[rows[0]]))


def _rows_by_length(length: Ints) -> list[Ints]:
    sample = np.unique(length[:: max(1, len(length) // 256)])
    if len(sample) <= _FEW_LENGTHS and int(length.max()) < 1 << 16:
        sizes = np.flatnonzero(np.bincount(length))
        if len(sizes) <= _FEW_LENGTHS:  # a pass for each is cheaper than sorting
            return [np.flatnonzero(length == size) for size in sizes]
    order = np.argsort(length, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(length[order])) + 1)


def _copy_rows(target: Bytes, to: Ints, source: Bytes, start: Ints, size: int) -> None:
    if size == 0:
        return
    into, out_of = windows(target, size), windows(source, size)
    step = max(1, _COPY_BYTES // size)  # fancy indexing copies twice; keep the first copy small
    for at in range(0, len(to), step):
        into[to[at : at + step]] = out_of[start[at : at + step]]


def binary_array(
    offsets: Ints,
    data: Bytes,
    absent: NDArray[np.bool_] | None = None,
    *,
    is_text: bool = False,
) -> pa.Array:
    """An Arrow binary or (checked) string array over these buffers, without copying `data`."""
    validity = None
    if absent is not None and absent.any():
        validity = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    is_large = bool(offsets[-1] > np.iinfo(np.int32).max)
    words = offsets if is_large else offsets.astype(np.int32)
    array = pa.Array.from_buffers(
        _TYPES[is_text, is_large],
        len(offsets) - 1,
        [validity, pa.py_buffer(words), pa.py_buffer(data)],
    )
    if is_text:
        array.validate(full=True)
    return array


def parts(array: pa.Array) -> tuple[Ints, Bytes]:
    """Offsets and data of a binary or string array; null rows have length zero."""
    _, offset_buffer, data_buffer = array.buffers()
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if offset_buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64), np.empty(0, np.uint8)
    words = np.frombuffer(offset_buffer, np.int64 if is_large else np.int32)
    offsets = words[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if data_buffer is None:
        return offsets, np.empty(0, np.uint8)
    return offsets, np.frombuffer(data_buffer, np.uint8)


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
    row = int(np.searchsorted(keys, np.bytes_(key)))
    return row if row < len(ids) and ids[row].tobytes() == key else -1
