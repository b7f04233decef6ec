"""Distinct locations of virtual chunks: plain text, or zstd frames that wait to be inflated.

A version-2 manifest may store each location as its own small zstd frame made with a shared
dictionary. Most readers want a few of them, so frames are kept as they are until asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import zstandard

from icefloe.errors import FormatError
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Bytes, Ints, gather_fixed

MAX_COMPRESSED_LOCATION_BYTES = 1024
"""Readers inflate a compressed location to no more than this; longer ones are stored plain."""

_FRAME_MAGIC = 0xFD2FB528
# magic 4, descriptor 1, window 1, dictionary id 4, content size 8, block header 3
_LONGEST_HEAD = 21
_SLICE = 1 << 16
_PART = 1 << 12
_INFLATION = 4


class LocationDictionary:
    """Inflates locations made with one dictionary. `name` is what errors call the file."""

    def __init__(self, dictionary: bytes, name: str) -> None:
        self._name = name
        self._idle: list[zstandard.ZstdDecompressor] = []
        try:
            self._dictionary = zstandard.ZstdCompressionDict(dictionary)
        except zstandard.ZstdError as error:
            raise FormatError(f"{name}: location dictionary is damaged ({error})") from None

    def text(self, frame: bytes) -> str:
        """Inflate one location."""
        try:
            return self.inflate(frame).decode()
        except UnicodeDecodeError:
            raise self.damaged("is not valid UTF-8") from None

    def inflate(self, frame: bytes) -> bytes:
        """Inflate one location, whatever bytes it has."""
        limit = MAX_COMPRESSED_LOCATION_BYTES
        try:
            # The library heeds its limit only where a frame does not announce a size itself.
            announced = zstandard.get_frame_parameters(frame).content_size
            if announced != zstandard.CONTENTSIZE_UNKNOWN and announced > limit:
                raise self.damaged(f"announces {announced:,} bytes, at most {limit:,} fit")
            # A context costs more than a location: take an idle one, and give it back.
            try:
                context = self._idle.pop()
            except IndexError:
                context = self.decompressor()
            data = context.decompress(frame, max_output_size=limit, allow_extra_data=False)
            self._idle.append(context)
            return data
        except zstandard.ZstdError as error:
            raise self.damaged(f"cannot be inflated ({error})") from None

    def decompressor(self) -> zstandard.ZstdDecompressor:
        """A context of its own: contexts cannot be shared by threads."""
        return zstandard.ZstdDecompressor(dict_data=self._dictionary)

    def damaged(self, problem: str) -> FormatError:
        """The error of a location that cannot be read."""
        return FormatError(f"{self._name}: a compressed location {problem}")


class CompressedLocations:
    """Locations as zstd frames made with one dictionary."""

    def __init__(self, frames: BlobColumn, dictionary: bytes, name: str) -> None:
        self._frames = frames
        self._dictionary = LocationDictionary(dictionary, name)

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def nbytes(self) -> int:
        """About the bytes they will take: a frame is a small part of its text."""
        return _INFLATION * int(self._frames.nbytes)

    def get(self, row: int) -> str:
        """Inflate one location."""
        return self._dictionary.text(self._frames[row])

    def strings(self) -> BlobColumn:
        """Inflate all locations."""
        return self._inflated(self._frames)

    def parts(self) -> Iterator[BlobColumn]:
        """Inflate all locations, some thousand at a time: they stay in the processor cache."""
        for first in range(0, len(self), _PART):
            yield self._inflated(self._frames[first : first + _PART])

    def _inflated(self, frames: BlobColumn) -> BlobColumn:
        """The texts of frames, inflated as one stream."""
        first, last = int(frames.offsets[0]), int(frames.offsets[-1])
        data, offsets = frames.data[first:last], frames.offsets - first
        size = _content_sizes(data, offsets[:-1], np.diff(offsets))
        if bool((size < 0).any()):
            # Frames without a content size, or in several blocks: no writer known makes them.
            texts = [self._dictionary.inflate(frame) for frame in frames.to_list()]
            return self._text(BlobColumn.from_values(texts))
        ends = np.zeros(len(size) + 1, np.int64)
        np.cumsum(size, out=ends[1:])
        room = np.empty(int(ends[-1]), np.uint8)
        reader = self._dictionary.decompressor().stream_reader(
            memoryview(data), read_across_frames=True
        )
        filled = 0
        try:
            while filled < len(room) and (count := reader.readinto(memoryview(room)[filled:])):
                filled += count
        except zstandard.ZstdError as error:
            raise self._dictionary.damaged(f"cannot be inflated ({error})") from None
        if filled != len(room):
            raise self._dictionary.damaged(
                f"inflates to {filled:,} bytes, expected {len(room):,} in all"
            )
        return self._text(BlobColumn(ends, room))

    def _text(self, column: BlobColumn) -> BlobColumn:
        try:
            return column.as_text()
        except UnicodeDecodeError:
            raise self._dictionary.damaged("is not valid UTF-8") from None


class Locations:
    """The distinct locations that the refs of an array point at, by number."""

    __slots__ = ("_held",)

    def __init__(self, strings: BlobColumn, waiting: CompressedLocations | None = None) -> None:
        self._held = strings, waiting  # replaced together: other threads may be reading

    @classmethod
    def concat(cls, parts: Sequence[Locations]) -> Locations:
        """All locations of several dictionaries, one behind the other."""
        return cls(BlobColumn.concat([part.strings() for part in parts]))

    def __len__(self) -> int:
        strings, waiting = self._held
        return len(strings) + (len(waiting) if waiting else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of memory; those of locations that wait count as if they were inflated."""
        strings, waiting = self._held
        return int(strings.nbytes) + (0 if waiting is None else waiting.nbytes)

    @property
    def is_waiting(self) -> bool:
        """Whether some locations have not been inflated yet."""
        return self._held[1] is not None

    def get(self, code: int) -> str:
        """One location; inflates only that one."""
        strings, waiting = self._held
        if code < len(strings) or waiting is None:
            return str(strings[code])
        return waiting.get(code - len(strings))

    def strings(self) -> BlobColumn:
        """All locations as a column; inflated once, then kept."""
        strings, waiting = self._held
        if waiting is not None:
            inflated = waiting.strings()
            strings = BlobColumn.concat([strings, inflated]) if len(strings) else inflated
            self._held = strings, None
        return strings

    def parts(self) -> Iterator[BlobColumn]:
        """All locations as columns, one behind the other. What was inflated for it is not kept."""
        strings, waiting = self._held
        yield strings
        if waiting is not None:
            yield from waiting.parts()


def _content_sizes(data: Bytes, start: Ints, length: Ints) -> Ints:
    """The content size each frame announces; -1 for a frame that is not of the usual form.

    The usual form: content size given and within the limit, one block that ends with the blob.
    Anything else could let neighbours in a joined stream run into each other.
    """
    data = np.concatenate([data, np.zeros(_LONGEST_HEAD, np.uint8)])
    size = np.empty(len(start), np.int64)
    for at in range(0, len(start), _SLICE):
        rows = slice(at, at + _SLICE)
        size[rows] = _content_size(gather_fixed(data, start[rows], _LONGEST_HEAD), length[rows])
    return size


def _content_size(head: Bytes, length: Ints) -> Ints:
    size = np.full(len(head), -1, np.int64)
    descriptors = np.flatnonzero(np.bincount(head[:, 4], minlength=256)).tolist()
    for descriptor in descriptors:  # one, as a rule
        rows: Any = slice(None) if len(descriptors) == 1 else head[:, 4] == descriptor
        size[rows] = _size_with(descriptor, head[rows], length[rows])
    return size


def _size_with(descriptor: int, head: Bytes, length: Ints) -> Ints | int:
    """The same for frames of which the byte behind the magic number is this."""
    is_single_segment, size_flag = descriptor >> 5 & 1, descriptor >> 6
    at_size = 5 + (1 - is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    size_width = 1 << size_flag if size_flag else is_single_segment
    if size_width not in (1, 2) or descriptor & 4:  # 4: a checksum follows
        return -1

    def word(at: int, width: int) -> Ints:
        total = head[:, at].astype(np.int64)
        for byte in range(1, width):
            total |= head[:, at + byte].astype(np.int64) << 8 * byte
        return total

    size = word(at_size, size_width) + (256 if size_width == 2 else 0)
    block = word(at_size + size_width, 3)
    block_bytes = np.where((block >> 1) & 3 == 1, 1, block >> 3)
    is_usual = (
        (word(0, 4) == _FRAME_MAGIC)
        & (size <= MAX_COMPRESSED_LOCATION_BYTES)
        & (block & 1 == 1)  # the first block is the last one
        & (at_size + size_width + 3 + block_bytes == length)
    )
    return np.where(is_usual, size, -1)
