"""Reading parts of many shards together: all their indices at once, then all inner chunks.

Zarr's codec reads one shard after the other, each with a request for its index and more for its
inner chunks. Here neighbouring inner chunks of a shard share a request, and so do shards that lie
close together in one object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from zarr.abc.codec import Codec
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.chunk_grids import ChunkGrid
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.indexing import get_indexer
from zarr.dtype import UInt64

from icefloe.errors import ErrorKind, StorageError
from icefloe.repo.find_chunks import StoredChunk, VirtualChunk
from icefloe.storage.driver import Readable, Span
from icefloe.store.bulk_batch import Batch
from icefloe.store.chunk_codecs import ChunkCodecs

Chunk = StoredChunk | VirtualChunk

_NONE = 2**64 - 1
"""Offset and length of an inner chunk that is not stored."""
_NUM_BYTES = 16
"""Of an offset and a length."""


class InnerChunk(NamedTuple):
    """An inner chunk that is wanted, and where to find its bytes."""

    shard: WantedShard
    source: Chunk
    chunk_selection: Any
    out_selection: Any


class WantedShard:
    """A shard that is read in part."""

    def __init__(self, layout: Layout, source: Chunk, name: str, selection: Any) -> None:
        self._name = name
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

    def finish(self, batch: Batch) -> None:
        """Hand the values over, when all inner chunks are in."""
        values = self._values.reshape(self._shape)
        out_selection = batch.items[self.source.position][3]
        if batch.drop_axes:
            values = values.squeeze(axis=batch.drop_axes)
        batch.values[out_selection] = values

    def _part(self, start: int, length: int) -> Chunk:
        total = length_of(self.source)
        if start < 0 or start + length > total:
            raise StorageError(
                f"shard {self._name!r} has {total} bytes, but its index or an inner chunk would be "
                f"bytes {start} to {start + length}; the shard is damaged",
                ErrorKind.INVALID_OBJECT_SIZE,
            )
        return part_of(self.source, start, length)


class Layout:
    """How shards of one shape are made."""

    def __init__(self, codec: ShardingCodec, spec: ArraySpec) -> None:
        self.spec = spec
        self.grid = ChunkGrid.from_sizes(spec.shape, codec.chunk_shape)
        per_shard = [
            size // inner for size, inner in zip(spec.shape, codec.chunk_shape, strict=True)
        ]
        self.num_inner = math.prod(per_shard)
        self.decode = _decoder(codec.codecs, replace(spec, shape=codec.chunk_shape))
        index = replace(spec, shape=(*per_shard, 2), dtype=UInt64(), fill_value=_NONE)
        self.decode_index = _decoder(codec.index_codecs, index)
        self.index_size = _NUM_BYTES * self.num_inner
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
    batch: Batch, chunks: Sequence[Chunk]
) -> tuple[Sequence[Chunk], list[WantedShard]]:
    """Chunks that are read whole, and shards of which only some inner chunks are wanted."""
    codec = batch.codecs.sharding
    if codec is None:
        return chunks, []
    whole: list[Chunk] = []
    shards = []
    layouts: dict[int, Layout] = {}
    for chunk in chunks:
        place, spec, selection, _, is_complete = batch.items[chunk.position]
        if is_complete:
            whole.append(chunk)
            continue
        layout = layouts.get(id(spec))
        if layout is None:
            layout = layouts[id(spec)] = Layout(codec, spec)
        shard = WantedShard(layout, chunk, place.path, selection)
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
