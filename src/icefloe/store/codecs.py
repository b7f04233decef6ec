"""Zarr's codecs applied to chunks and shards one after the other, without an event loop.

Numbers that are stored as they are (the `bytes` codec) are only viewed differently; every other
codec is called as Zarr's own pipelines call it.

Of shards that are read in part, the indices are fetched first, then all inner chunks. Zarr's codec
reads one shard after the other, with several requests for each. Here neighbouring inner chunks of
a shard share a request, and so do shards that lie close together in one object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import zstandard
from numcodecs.zstd import Zstd
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer
from zarr.core.chunk_grids import ChunkGrid
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.indexing import get_indexer
from zarr.dtype import UInt64

from icefloe.errors import ErrorKind, StorageError
from icefloe.repo.find_chunks import StoredChunk, VirtualChunk
from icefloe.storage.driver import Readable, Span

Chunk = StoredChunk | VirtualChunk

PARTS_FROM_BYTES = 16 << 20
"""Of a chunk. Smaller ones are read as a whole, so that caches have them for the next part."""

_NUMBERS = "biufcmM"
_zstd = Zstd()
_NONE = 2**64 - 1
"""Offset and length of an inner chunk that is not stored."""
_INDEX_ENTRY_BYTES = 16
"""Of an offset and a length."""


class ChunkCodecs:
    """The codecs of one array. Thread-safe, because codecs have no state."""

    def __init__(
        self,
        array_array: tuple[ArrayArrayCodec, ...],
        array_bytes: ArrayBytesCodec,
        bytes_bytes: tuple[BytesBytesCodec, ...],
    ) -> None:
        self._array_array: Any = array_array
        self._array_bytes: Any = array_bytes
        self._bytes_bytes: Any = bytes_bytes
        self.is_plain = isinstance(array_bytes, BytesCodec) and not array_array
        self._is_zstd = self.is_plain and [*map(type, bytes_bytes)] == [ZstdCodec]

    @classmethod
    def of(
        cls,
        array_array: tuple[ArrayArrayCodec, ...],
        array_bytes: ArrayBytesCodec,
        bytes_bytes: tuple[BytesBytesCodec, ...],
    ) -> ChunkCodecs | None:
        """None if one of the codecs works in an event loop only, as all do in older Zarr."""
        codecs: list[Codec] = [*array_array, array_bytes, *bytes_bytes]
        if not all(map(_is_synchronous, codecs)):
            return None
        return cls(array_array, array_bytes, bytes_bytes)

    @property
    def is_cheap(self) -> bool:
        """Whether decoding is no more than a copy."""
        return self.is_plain and not self._bytes_bytes

    def is_part_enough(self, item: Any) -> bool:
        """Whether a large chunk is wanted in part, and its bytes are its values."""
        spec = item[1]
        dtype = spec.dtype.to_native_dtype()
        is_large = prod(spec.shape) * dtype.itemsize >= PARTS_FROM_BYTES
        return is_large and self.is_cheap and not item[4] and dtype.kind in _NUMBERS

    @property
    def sharding(self) -> ShardingCodec | None:
        """The sharding codec, if chunks are shards that can be read in part; else None."""
        codec = self._array_bytes
        is_alone = not self._array_array and not self._bytes_bytes
        if not is_alone or not isinstance(codec, ShardingCodec):
            return None
        parts = [*codec.codecs, *codec.index_codecs]
        return codec if all(map(_is_synchronous, parts)) else None

    def decoder(self, spec: ArraySpec) -> Callable[[Readable], Any]:
        """A function that turns the bytes of a chunk into an array, which may be read-only."""
        dtype, shape = spec.dtype.to_native_dtype(), spec.shape
        are_numbers = self.is_plain and dtype.kind in _NUMBERS
        stored_dtype = self._stored_dtype(dtype) if are_numbers else dtype
        if are_numbers and not self._bytes_bytes:
            return lambda raw: np.frombuffer(raw, stored_dtype).reshape(shape)
        specs = self._specs(spec)
        make_buffer = spec.prototype.buffer.from_bytes

        def decode(raw: Readable) -> Any:
            buffer = make_buffer(raw)
            for codec in reversed(self._bytes_bytes):
                buffer = codec._decode_sync(buffer, specs[-1])
            if are_numbers:
                return np.frombuffer(buffer.as_numpy_array(), stored_dtype).reshape(shape)
            array = self._array_bytes._decode_sync(buffer, specs[-1])
            for codec, before in zip(
                reversed(self._array_array), reversed(specs[:-1]), strict=True
            ):
                array = codec._decode_sync(array, before)
            return array.as_ndarray_like()

        return decode

    def decode_into(self, raw: Readable, item: Any, out: np.ndarray[Any, Any]) -> bool:
        """Decode a whole chunk where it belongs in `out`, if its bytes are not to be rearranged.

        Returns whether it was. It saves a copy of a large chunk, and the memory of that copy.
        """
        _, spec, chunk_selection, out_selection, is_complete = item
        if not (self._is_zstd and is_complete):
            return False
        if not (_are_slices(chunk_selection) and _are_slices(out_selection)):
            return False
        target = out[out_selection]
        dtype = target.dtype
        if not target.flags.c_contiguous or dtype != spec.dtype.to_native_dtype():
            return False
        if dtype.kind not in _NUMBERS or dtype != self._stored_dtype(dtype):
            return False
        num_bytes = prod(spec.shape) * dtype.itemsize
        if target.nbytes != num_bytes or zstandard.frame_content_size(raw) != num_bytes:
            return False
        _zstd.decode(raw, out=target)
        return True

    def encode(self, array: Any, spec: ArraySpec) -> Any:
        """The bytes to store of a chunk, or None for a chunk that is not stored."""
        specs = self._specs(spec)
        stored = specs[-1]
        if self.is_cheap and array.dtype.kind in _NUMBERS:
            plain = np.ascontiguousarray(array, self._stored_dtype(array.dtype))
            return plain.reshape(-1).view(np.uint8)
        values: Any = spec.prototype.nd_buffer.from_ndarray_like(array)
        for codec, before in zip(self._array_array, specs[:-1], strict=True):
            values = codec._encode_sync(values, before)
            if values is None:
                return None
        encoded = self._array_bytes._encode_sync(values, stored)
        for codec in self._bytes_bytes:
            if encoded is None:
                return None
            encoded = codec._encode_sync(encoded, stored)
        return None if encoded is None else encoded.as_numpy_array()

    def _stored_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        endian = self._array_bytes.endian
        if endian is None or dtype.itemsize == 1:
            return dtype
        return dtype.newbyteorder(getattr(endian, "value", endian))

    def _specs(self, spec: ArraySpec) -> list[ArraySpec]:
        """What each array-to-array codec gets, and last what the bytes are made of."""
        specs = [spec]
        for codec in self._array_array:
            specs.append(codec.resolve_metadata(specs[-1]))
        return specs


def leading_part(selection: Any, shape: Sequence[int]) -> tuple[int, int, Any, Any] | None:
    """The run of values of a chunk that a selection is in, if it is smaller than the chunk.

    Returns its first value, the number of values, its shape, and the selection inside of it. None
    for a selection of another kind than slices and numbers.
    """
    if not isinstance(selection, tuple) or len(selection) != len(shape):
        return None
    first, part_shape, inside = 0, list(shape), list(selection)
    for axis, (one, size) in enumerate(zip(selection, shape, strict=True)):
        if isinstance(one, slice):
            wanted = range(size)[one]
            if not wanted or wanted.step < 1:
                return None
            start, stop = wanted[0], wanted[-1] + 1
            inside[axis] = slice(0, stop - start, wanted.step)
        elif isinstance(one, int | np.integer) and 0 <= one < size:
            start, stop = int(one), int(one) + 1
            inside[axis] = 0
        else:
            return None
        part_shape[axis] = stop - start
        first += start * prod(shape[axis + 1 :])
        if stop - start > 1:  # what follows is not one run of values any more
            inside[axis + 1 :] = selection[axis + 1 :]
            break
    count = prod(part_shape)
    return (first, count, tuple(part_shape), tuple(inside)) if count < prod(shape) else None


def scatter(array: Any, item: Any, out: Any, drop_axes: tuple[int, ...]) -> None:
    """Put what is wanted of a decoded chunk where it belongs in `out`."""
    selected = array[item[2]]
    out[item[3]] = selected.squeeze(axis=drop_axes) if drop_axes else selected


def merged(
    codecs: ChunkCodecs,
    values: Any,
    item: Any,
    drop_axes: tuple[int, ...],
    existing: Readable | None,
) -> Any:
    """The values of a whole chunk: those that are written over those that were there."""
    _, spec, chunk_selection, out_selection, is_complete = item
    if values.shape != () and chunk_selection != ():
        values = values[out_selection]
        if is_complete and values.shape == spec.shape:
            return values
        if drop_axes:
            axes = range(len(spec.shape))
            values = values[tuple(None if axis in drop_axes else slice(None) for axis in axes)]
    if existing is None:
        dtype = spec.dtype.to_native_dtype()
        chunk = np.full(spec.shape, spec.fill_value, dtype, order=spec.order)
    else:
        chunk = np.array(codecs.decoder(spec)(existing), order="K")
    chunk[chunk_selection] = values
    return chunk


def is_empty(array: Any, spec: ArraySpec) -> bool:
    """Whether a chunk is left out, because it has nothing but the fill value."""
    if spec.config.write_empty_chunks:
        return False
    fill = spec.fill_value
    if array.size and array.dtype.kind in _NUMBERS:
        first = array[(0,) * array.ndim]
        if first != fill and not (first != first and fill != fill):
            return False
    buffer: NDBuffer = spec.prototype.nd_buffer.from_ndarray_like(array)
    return bool(buffer.all_equal(fill))


def is_whole(item: Any) -> bool:
    """Whether the selection has every value of a chunk, also those outside of the array."""
    _, spec, selection, _, _ = item
    return _are_slices(selection) and all(
        len(range(*one.indices(size))) == size
        for one, size in zip(selection, spec.shape, strict=True)
    )


def _are_slices(selection: Any) -> bool:
    return isinstance(selection, tuple) and all(type(one) is slice for one in selection)


def _is_synchronous(codec: Codec) -> bool:
    return (
        hasattr(codec, "_decode_sync")
        and hasattr(codec, "_encode_sync")
        and getattr(codec, "_sync_capable", True) is not False
    )


# -- shards


class InnerChunk(NamedTuple):
    """An inner chunk that is wanted, and where to find its bytes."""

    shard: WantedShard
    source: Chunk
    chunk_selection: Any
    out_selection: Any


class WantedShard:
    """A shard that is read in part."""

    def __init__(self, layout: ShardLayout, source: Chunk, item: Any) -> None:
        key, _, selection, self._out_selection, _ = item
        self._name = key.path
        self.layout = layout
        self.source = source
        indexer = get_indexer(selection, shape=layout.spec.shape, chunk_grid=layout.grid)
        self._inner = list(indexer)
        dtype = layout.spec.dtype.to_native_dtype()
        self._values = np.full(indexer.shape, layout.spec.fill_value, dtype)
        self._shape = getattr(indexer, "sel_shape", indexer.shape)

    @property
    def is_whole(self) -> bool:
        """Whether every inner chunk is wanted."""
        return len({coords for coords, *_ in self._inner}) == self.layout.num_inner

    @property
    def index_source(self) -> Chunk:
        """Where the index of the shard is."""
        size, total = self.layout.index_size, length_of(self.source)
        return self._part(0 if self.layout.is_index_first else total - size, size)

    def inner_chunks(self, index: Readable) -> Iterable[InnerChunk]:
        """The inner chunks that are wanted and present, according to the index."""
        places = self.layout.decode_index(index)
        for coords, chunk_selection, out_selection, _ in self._inner:
            start, length = places[coords].tolist()
            if (start, length) != (_NONE, _NONE):
                source = self._part(start, length)
                yield InnerChunk(self, source, chunk_selection, out_selection)

    def put(self, inner: InnerChunk, raw: Readable) -> None:
        """Decode an inner chunk."""
        self._values[inner.out_selection] = self.layout.decode(raw)[inner.chunk_selection]

    def finish(self, out: Any, drop_axes: tuple[int, ...]) -> None:
        """Copy the values to `out`, when all inner chunks are in."""
        values = self._values.reshape(self._shape)
        out[self._out_selection] = values.squeeze(axis=drop_axes) if drop_axes else values

    def _part(self, start: int, length: int) -> Chunk:
        total = length_of(self.source)
        if start < 0 or start + length > total:
            raise StorageError(
                f"shard {self._name!r} has {total} bytes, but its index or an inner chunk would be "
                f"bytes {start} to {start + length}; the shard is damaged",
                ErrorKind.INVALID_OBJECT_SIZE,
            )
        return part_of(self.source, start, length)


class ShardLayout:
    """The inner chunks and the index of shards of one shape."""

    def __init__(self, codec: ShardingCodec, spec: ArraySpec) -> None:
        self.spec = spec
        self.grid = ChunkGrid.from_sizes(spec.shape, codec.chunk_shape)
        per_shard = [
            size // inner for size, inner in zip(spec.shape, codec.chunk_shape, strict=True)
        ]
        self.num_inner = prod(per_shard)
        self.decode = _decoder(codec.codecs, replace(spec, shape=codec.chunk_shape))
        index = replace(spec, shape=(*per_shard, 2), dtype=UInt64(), fill_value=_NONE)
        self.decode_index = _decoder(codec.index_codecs, index)
        self.index_size = _INDEX_ENTRY_BYTES * self.num_inner
        for one in codec.index_codecs:
            self.index_size = one.compute_encoded_size(self.index_size, index)
        self.is_index_first = (
            getattr(codec.index_location, "value", codec.index_location) == "start"
        )


def _decoder(codecs: Iterable[Codec], spec: ArraySpec) -> Callable[[Readable], Any]:
    pipeline = BatchedCodecPipeline.from_codecs(codecs).evolve_from_array_spec(spec)
    return ChunkCodecs(
        pipeline.array_array_codecs, pipeline.array_bytes_codec, pipeline.bytes_bytes_codecs
    ).decoder(spec)


def split_shards(
    codecs: ChunkCodecs, items: Sequence[Any], chunks: Sequence[Chunk]
) -> tuple[Sequence[Chunk], list[WantedShard]]:
    """Chunks that are read whole, and shards of which only some inner chunks are wanted."""
    codec = codecs.sharding
    if codec is None:
        return chunks, []
    whole: list[Chunk] = []
    shards = []
    layouts: dict[int, ShardLayout] = {}
    for chunk in chunks:
        item = items[chunk.position]
        spec, is_complete = item[1], item[4]
        if is_complete:
            whole.append(chunk)
            continue
        layout = layouts.get(id(spec))
        if layout is None:
            layout = layouts[id(spec)] = ShardLayout(codec, spec)
        shard = WantedShard(layout, chunk, item)
        if shard.is_whole:
            whole.append(chunk)
        else:
            shards.append(shard)
    return whole, shards


def part_of(chunk: Chunk, start: int, length: int) -> Chunk:
    """Part of the bytes that are stored."""
    if isinstance(chunk, StoredChunk):
        return chunk._replace(span=Span(chunk.span.start + start, length))
    ref = chunk.ref
    return chunk._replace(ref=ref._replace(offset=ref.offset + start, length=length))


def length_of(chunk: Chunk) -> int:
    """How many bytes are stored."""
    return chunk.span.length if isinstance(chunk, StoredChunk) else chunk.ref.length
