"""Byte strings in flat buffers: gathered from there and scattered into them, many at once.

Nothing here loops over rows; the cost is one pass per distinct length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_COPY_BYTES = 1 << 20
_FEW_LENGTHS = 16
_WORD = 8  # bytes
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
    for rows in rows_by_length(length):
        _copy_rows(target, to[rows], source, start[rows], int(length[rows[0]]))


def rows_by_length(length: Ints) -> list[Ints]:
    """The rows of each length; there has to be a row."""
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
    if len(wanted) < _FEW or not len(ids):
        return np.array([find_id(ids, key) for key in wanted], np.int64)
    return find_rows(ids, np.frombuffer(b"".join(wanted), np.uint8).reshape(-1, ids.shape[1]))


def find_rows(ids: Bytes, sought: Bytes) -> Ints:
    """The same for ids that are the rows of matrices; `ids` must not be empty."""
    size = ids.shape[1]
    ids, sought = np.ascontiguousarray(ids), np.ascontiguousarray(sought)
    # Random ids differ in their first word, and numbers are found several times as fast.
    if size > _WORD:
        found = _search(_first_words(ids), _first_words(sought))
        if (ids.take(found, axis=0) == sought).all():
            return found
    keys, wanted = (one.view(f"S{size}").reshape(-1) for one in (ids, sought))
    found = _search(keys, wanted)
    found[keys[found] != wanted] = -1
    return found


def _search(keys: NDArray[Any], wanted: NDArray[Any]) -> Ints:
    found: Ints = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
    return found


def _first_words(ids: Bytes) -> NDArray[Any]:
    """The first word of each id as a number; the numbers are in the order of the ids."""
    words = np.dtype([("first", ">u8"), ("rest", f"V{ids.shape[1] - _WORD}")])
    return ids.view(words).reshape(-1)["first"].astype(np.uint64)


def byte_rows(ids: Bytes) -> list[bytes]:
    """The rows of a matrix as byte strings."""
    raw, size = ids.tobytes(), ids.shape[1]
    return [raw[at : at + size] for at in range(0, len(raw), size)]
