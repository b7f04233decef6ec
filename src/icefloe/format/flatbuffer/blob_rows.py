"""Many byte strings as flatbuffers keep them: length, bytes, terminator, padding to words."""

from __future__ import annotations

import numpy as np

from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Bytes, Ints, scatter

_SHORT_COLUMN = 1 << 16  # bytes: copied one by one, with eight bytes of address for each


def blob_rows(column: BlobColumn, terminator: int, lead: int = 0) -> tuple[Bytes, Ints]:
    """The rows one behind the other, and where each starts.

    Each row begins with `lead` zero bytes for the caller to fill, a multiple of four.
    """
    offsets = column.offsets
    length = offsets[1:] - offsets[:-1]
    if (length == length[0]).all():
        return _equal_rows(column, int(length[0]), terminator, lead)
    size = (length + lead + 4 + terminator + 3) & ~3
    end = np.cumsum(size)
    start: Ints = end - size
    segment = np.zeros(int(end[-1]), np.uint8)
    segment.view("<u4")[(start + lead) >> 2] = length
    text = column.data[int(offsets[0]) : int(offsets[-1])]
    if len(text) <= _SHORT_COLUMN:
        shift = np.repeat(start + lead + 4 - (offsets[:-1] - offsets[0]), length)
        segment[np.arange(len(text)) + shift] = text
    else:
        scatter(segment, start + lead + 4, column.data, offsets[:-1], length)
    return segment, start


def _equal_rows(column: BlobColumn, length: int, terminator: int, lead: int) -> tuple[Bytes, Ints]:
    """The rows of byte strings that all have the same length."""
    first, count = int(column.offsets[0]), len(column)
    size = lead + 4 + (length + terminator + 3 & ~3)
    segment = np.zeros((count, size), np.uint8)
    segment[:, lead : lead + 4] = np.frombuffer(length.to_bytes(4, "little"), np.uint8)
    text = column.data[first : first + count * length]
    segment[:, lead + 4 : lead + 4 + length] = text.reshape(count, length)
    return segment.reshape(-1), np.arange(0, count * size, size)
