"""Ids as text, a column at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.ids import encode_base32

_ALPHABET = "".join(encode_base32(bytes([five_bits << 3]))[0] for five_bits in range(32))
_LETTERS = np.frombuffer(_ALPHABET.encode(), np.uint8)


def id_texts(ids: NDArray[Any], prefix: str = "") -> pa.Array:
    """The text of every row of a matrix of bytes, with a prefix."""
    rows, size = ids.shape
    length = (size * 8 + 4) // 5
    padding = np.zeros((rows, 1), np.uint8)
    wide = np.concatenate([np.ascontiguousarray(ids, np.uint8), padding], axis=1).astype(np.uint16)
    bit = np.arange(length) * 5
    at = bit // 8
    pairs = wide[:, at] << 8 | wide[:, np.minimum(at + 1, size)]
    letters = _LETTERS[pairs >> (11 - bit % 8) & 31]
    lead = np.frombuffer(prefix.encode(), np.uint8)
    text = np.concatenate([np.broadcast_to(lead, (rows, len(lead))), letters], axis=1)
    width = length + len(lead)
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    text = np.ascontiguousarray(text)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text))


def key_column(ids: NDArray[Any]) -> NDArray[Any]:
    """Rows of bytes as one comparable value each."""
    width = ids.shape[1]
    return np.ascontiguousarray(ids).view(f"S{width}").reshape(-1)
