"""Virtual locations: dictionary columns and their compression."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format import small
from icefloe.format.columns import (
    BlobColumn,
    Bytes,
    Ints,
    gather,
    gather_fixed,
    numbers_from_arrow,
    numbers_to_arrow,
    rows_by_length,
)
from icefloe.format.flatbuffer.read import FlatBuffer

if TYPE_CHECKING:
    import pyarrow as pa


# -- Virtual locations: dictionary columns and their compression.


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
        """Inflate one location of arbitrary bytes."""
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


# -- Dictionary columns: texts as codes, and how manifests store them.


# -- Dictionary-encoding the blobs that many tables point at, cheapest test first.
#
# Writers repeat themselves in four ways: neighbours share one blob, far rows share one blob,
# neighbours have equal bytes, or equal bytes are stored again and again. Each is looked for
# before all bytes are hashed.


_SAMPLE = 2048
_ROWS_COMPARED = 1 << 14


def encode_dictionary(
    buffer: FlatBuffer, at: NDArray[np.uint32], what: str
) -> tuple[NDArray[np.int32], BlobColumn]:
    """Codes and distinct values of the blobs whose length words are at `at`."""
    is_head = np.ones(len(at), np.bool_)
    np.not_equal(at[1:], at[:-1], out=is_head[1:])
    head = np.flatnonzero(is_head)
    codes, address = _distinct_addresses(at[head].astype(np.int64))
    start, length = buffer.vectors_at(address, 1, what)
    buffer.check_total(int(length.sum()), what)
    values = gather(buffer.u1, start, length)
    if len(values) > 1:
        numbers, values = distinct_values(values)
        codes = numbers.take(codes)
    if len(head) < len(at):
        codes = np.repeat(codes, np.diff(head, append=len(at)))
    return codes, values


def distinct_values(column: BlobColumn) -> tuple[NDArray[np.int32], BlobColumn]:
    """Codes of a column into its distinct values, -1 where it has none.

    A column that hardly repeats itself is its own dictionary.
    """
    if not column.null_count and seems_distinct(column):
        return np.arange(len(column), dtype=np.int32), column
    if len(column) <= small.DICTIONARY_ROWS:
        codes, first = _numbered(column.to_list())
        return codes, column.take(first)
    if _seems_to_have_runs(column):
        head = _run_heads(column)
        codes, values = distinct_values(column.take(head))
        return np.repeat(codes, np.diff(head, append=len(column))), values
    encoded = column.to_arrow().dictionary_encode()
    codes = numbers_from_arrow(encoded.indices.fill_null(-1))
    return codes, BlobColumn.from_arrow(encoded.dictionary)


def _seems_to_have_runs(column: BlobColumn) -> bool:
    """Whether most neighbours in the middle are equal. Then Arrow need not be loaded."""
    centre, reach = len(column) // 2, min(len(column), _SAMPLE) // 2
    return len(_run_heads(column[centre - reach : centre + reach])) < reach


def _run_heads(column: BlobColumn) -> Ints:
    """The rows whose value differs from that of the row before."""
    start, length = column.offsets[:-1], column.length
    is_same = np.zeros(len(column), np.bool_)
    np.equal(length[1:], length[:-1], out=is_same[1:])
    if column.absent is not None:
        is_same[1:] &= column.absent[1:] == column.absent[:-1]
    alike = np.flatnonzero(is_same)
    for rows in rows_by_length(length[alike]):
        size = int(length[alike[rows[0]]])
        for first in range(0, len(rows), _ROWS_COMPARED):
            row = alike[rows[first : first + _ROWS_COMPARED]]
            mine, before = (gather_fixed(column.data, start[at], size) for at in (row, row - 1))
            is_same[row] = (mine == before).all(axis=1)
    return np.flatnonzero(~is_same)


def _distinct_addresses(address: Ints) -> tuple[NDArray[np.int32], Ints]:
    if seems_distinct(address):
        return np.arange(len(address), dtype=np.int32), address
    if len(address) <= small.DICTIONARY_ROWS:
        codes, first = _numbered(address.tolist())
        return codes, address[first]
    encoded = numbers_to_arrow(address).dictionary_encode()
    return numbers_from_arrow(encoded.indices), numbers_from_arrow(encoded.dictionary)


def _numbered(values: Iterable[Hashable]) -> tuple[NDArray[np.int32], Ints]:
    """A number for each distinct value in order of appearance, -1 for None; where each came."""
    number: dict[Any, int] = {None: -1}
    first: list[int] = []
    codes: list[int] = []
    for row, value in enumerate(values):
        code = number.setdefault(value, len(first))
        if code == len(first):
            first.append(row)
        codes.append(code)
    return np.array(codes, np.int32), np.array(first, np.int64)


def seems_distinct(values: BlobColumn | Ints) -> bool:
    """Whether hashing every value would be wasted: a sample hardly repeats itself.

    A wrong guess costs memory or time, never a wrong value.
    """
    if len(values) <= 2 * _SAMPLE:
        return False
    spread_out = np.linspace(0, len(values) - 1, _SAMPLE).astype(np.int64)
    neighbours = np.arange(len(values) // 2, len(values) // 2 + _SAMPLE)
    samples = (values.take(rows) for rows in (spread_out, neighbours))
    return all(len(set(sample)) > 0.9 * _SAMPLE for sample in samples)


# -- A column of texts as numbers into its distinct values.


class Coded(NamedTuple):
    """A text column as numbers into its distinct values; -1 means no value."""

    codes: NDArray[np.int32]
    values: Locations

    def take(self, rows: Any) -> Coded:
        return Coded(self.codes[rows], self.values)

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes) + self.values.nbytes

    @property
    def uses_few_values(self) -> bool:
        """Whether inflating the values one by one, as rows ask for them, beats inflating all."""
        return len(self.codes) <= small.LOCATIONS_SHARE * len(self.values)

    def compact(self) -> Coded:
        """The same column over the values it uses, if it leaves most of its values unused."""
        if not len(self.codes):
            return self
        first = max(int(self.codes.min()), 0)
        last = max(int(self.codes.max()), first)
        is_used = np.zeros(last - first + 1, np.bool_)
        for at in range(0, len(self.codes), _SLICE):
            codes = self.codes[at : at + _SLICE]
            is_used[codes[codes >= 0] - first] = True
        used = np.flatnonzero(is_used)
        if 2 * len(used) >= len(self.values):
            return self
        number = np.cumsum(is_used, dtype=np.int32) - 1
        codes = np.where(self.codes < 0, -1, number.take(self.codes - first, mode="clip"))
        values = self.values.strings().take(used + first)
        return Coded(codes.astype(np.int32), Locations(values))

    def to_arrow(self) -> pa.Array:
        codes = numbers_to_arrow(self.codes, self.codes < 0)
        import pyarrow as pa

        values = self.values.strings().to_arrow().cast(pa.string())
        return pa.DictionaryArray.from_arrays(codes, values)

    def get(self, row: int) -> str | None:
        """The value of one row."""
        code = int(self.codes[row])
        return None if code < 0 else self.values.get(code)

    @classmethod
    def from_arrow(cls, column: pa.Array) -> Coded | None:
        if len(column) == column.null_count:
            return None
        import pyarrow as pa

        if not pa.types.is_dictionary(column.type):
            return cls.from_blobs(BlobColumn.from_arrow(column))
        codes = numbers_from_arrow(column.indices.cast(pa.int32()).fill_null(-1))
        return cls(codes, Locations(BlobColumn.from_arrow(column.dictionary)))

    @classmethod
    def from_blobs(cls, column: BlobColumn) -> Coded | None:
        if column.null_count == len(column):
            return None
        codes, values = distinct_values(column)
        return cls(codes, Locations(values))
