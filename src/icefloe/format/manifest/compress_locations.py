"""Locations of virtual chunks as zstd frames that share a dictionary, for manifests of version 2.

Only written where the configuration asks for it: whole manifests are compressed anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.config.resolved import ResolvedLocationCompression
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Ints
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.manifest.coded import Coded
from icefloe.format.manifest.locations import MAX_COMPRESSED_LOCATION_BYTES
from icefloe.records import NamedTuple

_SHORTEST_SAMPLE = 8
"""Bytes. zstd makes no dictionary out of shorter samples."""

_LARGEST_DICTIONARY = 1 << 20
"""Bytes. Every reader of the manifest loads it, and it is made out of as many bytes of samples."""

_Sample: TypeAlias = bytes | bytearray | memoryview
"""What zstd takes."""


class Frames(NamedTuple):
    """A column of frames as numbers into the distinct ones; -1 where the location stays plain."""

    codes: NDArray[np.int32]
    frames: BlobColumn

    def take(self, rows: Any) -> Frames:
        return Frames(self.codes[rows], self.frames)


class LocationCompressor:
    """Makes the frames of one manifest."""

    def __init__(self, dictionary: zstandard.ZstdCompressionDict, level: int) -> None:
        self.dictionary: bytes = dictionary.as_bytes()
        dictionary.precompute_compress(level)
        self._compressor = zstandard.ZstdCompressor(level, dict_data=dictionary)

    def compress(self, column: Coded) -> Frames:
        """The frames of a column's locations. Those too long for readers to inflate have none."""
        texts = column.values.strings()
        fits = texts.length <= MAX_COMPRESSED_LOCATION_BYTES
        fits &= np.isin(np.arange(len(texts)), column.codes)
        rows: Ints = np.flatnonzero(fits)
        data = texts.data
        spans = zip(texts.offsets[rows].tolist(), texts.offsets[rows + 1].tolist(), strict=True)
        frames = [self._compressor.compress(data[start:stop].tobytes()) for start, stop in spans]
        number = np.where(fits, np.cumsum(fits) - 1, -1).astype(np.int32)
        codes = np.where(column.codes < 0, -1, number.take(column.codes, mode="clip"))
        return Frames(codes.astype(np.int32), BlobColumn.from_values(frames))


def train(
    arrays: Sequence[ChunkRefs], wanted: ResolvedLocationCompression
) -> LocationCompressor | None:
    """A compressor with a dictionary for these references, or None if locations stay plain.

    They do where there are too few, or where zstd can make no dictionary: because they are very
    short, or because the configuration has too little room or too few samples for one.
    """
    columns = [refs.location for refs in arrays if refs.location is not None]
    count = sum(int((column.codes >= 0).sum()) for column in columns)
    if not count or count < wanted.min_num_chunks:
        return None
    samples = _samples(columns, count, wanted.dictionary_max_training_samples)
    size = min(wanted.dictionary_max_size_bytes, _LARGEST_DICTIONARY)
    if 2 * sum(len(sample) < _SHORTEST_SAMPLE for sample in samples) >= len(samples):
        return None
    # zstd wants more bytes of samples than the dictionary may have.
    samples *= 1 + size // sum(map(len, samples))
    try:
        dictionary = zstandard.train_dictionary(size, samples)
    except zstandard.ZstdError:
        return None
    level = min(wanted.compression_level, zstandard.MAX_COMPRESSION_LEVEL)
    return LocationCompressor(dictionary, level)


def _samples(columns: Sequence[Coded], count: int, most: int) -> list[_Sample]:
    """Locations at equal distances, so that the same references make the same file."""
    picked = np.linspace(0, count - 1, min(most, count)).astype(np.int64)
    samples: list[_Sample] = []
    first = 0
    for column in columns:
        codes = column.codes[column.codes >= 0]
        rows = picked[(picked >= first) & (picked < first + len(codes))] - first
        texts = column.values.strings()
        samples += [texts[code].encode() for code in codes[rows].tolist()]
        first += len(codes)
    return samples
