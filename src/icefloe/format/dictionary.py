"""Dictionary-encoding the blobs that many tables point at, cheapest test first.

Writers repeat themselves in three ways: neighbours share one blob, far rows share one blob, or
equal bytes are stored again and again. Each is looked for before bytes are hashed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.format.blobs import Ints, gather
from icefloe.format.flat_read import FlatBuffer

_SAMPLE = 2048


def encode_dictionary(
    buffer: FlatBuffer, at: Ints, what: str
) -> tuple[NDArray[np.int32], pa.Array]:
    """Codes and distinct values of the blobs whose length words are at `at`."""
    is_head = np.ones(len(at), np.bool_)
    np.not_equal(at[1:], at[:-1], out=is_head[1:])
    head = np.flatnonzero(is_head)
    codes, address = _distinct_addresses(at[head])
    start, length = buffer.vectors_at(address, 1, what)
    buffer.check_total(int(length.sum()), what)
    values = gather(buffer.u1, start, length)
    if len(values) > 1 and not seems_distinct(values):
        encoded = values.dictionary_encode()
        values = encoded.dictionary
        codes = encoded.indices.to_numpy().take(codes)
    if len(head) < len(at):
        codes = np.repeat(codes, np.diff(head, append=len(at)))
    return codes, values


def _distinct_addresses(address: Ints) -> tuple[NDArray[np.int32], Ints]:
    if len(address) == 1 or seems_distinct(pa.array(address)):
        return np.arange(len(address), dtype=np.int32), address
    encoded = pa.array(address).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_numpy()


def seems_distinct(values: pa.Array) -> bool:
    """Whether hashing every value would be wasted: a sample hardly repeats itself.

    A wrong guess costs memory or time, never a wrong value.
    """
    if len(values) <= 2 * _SAMPLE:
        return False
    spread_out = np.linspace(0, len(values) - 1, _SAMPLE).astype(np.int64)
    neighbours = np.arange(len(values) // 2, len(values) // 2 + _SAMPLE)
    return all(
        len(values.take(pa.array(rows)).unique()) > 0.9 * _SAMPLE
        for rows in (spread_out, neighbours)
    )
