"""Selections of chunks, and Zarr's codecs applied to one after the other without an event loop.

Numbers that are stored as they are (the `bytes` codec) are only looked at differently; every other
codec is called as Zarr's own pipelines call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard
from numcodecs.zstd import Zstd
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer

from icefloe.storage.driver import Readable

if TYPE_CHECKING:
    from icefloe.store.zarr_store import IcechunkStore

_NUMBERS = "biufcmM"
_zstd = Zstd()

PARTS_FROM_BYTES = 16 << 20
"""Of a chunk. Smaller ones are read as a whole, so that caches have them for the next part."""


class Selection:
    """What Zarr hands to a pipeline: one item per chunk, all of one array."""

    __slots__ = ("codecs", "drop_axes", "items", "store", "values")

    def __init__(
        self,
        store: IcechunkStore,
        items: list[Any],
        values: np.ndarray[Any, Any],
        drop_axes: tuple[int, ...],
        codecs: ChunkCodecs,
    ) -> None:
        self.store = store
        self.items = items
        """Of each chunk: its key, its spec, what of it goes where in the values, and whether that
        is all of it."""
        self.values = values
        """Where chunks are read into, or what is written."""
        self.drop_axes = drop_axes
        self.codecs = codecs

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of the first chunk."""
        spec = self.items[0][1]
        num_bytes: int = prod(spec.shape) * spec.dtype.to_native_dtype().itemsize
        return num_bytes


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
