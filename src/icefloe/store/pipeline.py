"""A Zarr codec pipeline that reads and writes all chunks of a selection together.

Zarr's own pipelines ask the store for one chunk at a time. This one looks the references of a
selection up over columns, reads them in few requests, and decodes in threads. A selection of few
small chunks is decoded in place, without a task or a thread. Codecs that need an event loop are
served by Zarr's default pipeline, which this one extends.

Zarr has one configured class of pipelines for all stores, and asks it for the pipeline of an array
and a store. This class returns itself for icefloe stores, and Zarr's default for others.
`install_pipeline` puts it into Zarr's configuration.

Inline chunks, chunks of a local repository and virtual chunks in files are read and decoded by
threads. Remote chunks are requested in groups; while one group is decoded, the next are on their
way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np
import zarr
from zarr.abc.codec import Codec
from zarr.abc.store import ByteGetter, ByteSetter, Store
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.core import array as zarr_array
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from icefloe.assets.assets import fetch_stored
from icefloe.changes.chunk_edits import Coordinates
from icefloe.repo.find_chunks import FoundChunks, StoredChunk, VirtualChunk, find_chunks
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.driver import Readable
from icefloe.storage.run import repair_after_fork, run_blocking
from icefloe.store import operations
from icefloe.store.codecs import (
    Chunk,
    ChunkCodecs,
    InnerChunk,
    WantedShard,
    is_empty,
    is_whole,
    leading_part,
    length_of,
    merged,
    part_of,
    scatter,
    split_shards,
)
from icefloe.store.operations import MAX_INDEX, ChunkKey, WrittenChunks, chunk_prefix, parse_key
from icefloe.store.zarr_store import IcechunkStore

Item = TypeVar("Item")
Result = TypeVar("Result")
ChunkItem = tuple[Any, ArraySpec, Any, Any, bool]
"""A chunk as Zarr hands it to a pipeline: its key, its spec, what of it goes where in the values,
and whether that is all of it."""

THREADS_FROM_BYTES = 64 << 10
"""Per chunk. Smaller ones are decoded faster by one thread, because Python runs one at a time."""
SLICE_BYTES = 4 << 20
"""Decoded bytes of the chunks that one thread works on before it takes more."""
MAX_IN_PLACE = 4
"""Small chunks. A batch of more leaves the event loop to others while it is decoded."""
_GROUP_BYTES = 32 << 20
_GROUP_CHUNKS = 2048
_MIN_IN_FLIGHT = 3
_BYTES_IN_FLIGHT = _MIN_IN_FLIGHT * _GROUP_BYTES

_BATCH_SIZE = "codec_pipeline.batch_size"
_PATH = "codec_pipeline.path"
_FILE = "file:"
_PRESENT: Any = {"status": "present"}
_MISSING: Any = {"status": "missing"}
_COMPARABLE = {BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec}
"""Codecs that are equal only if they do the same."""
_CACHE_SIZE = 256
_pipeline_cache: dict[Any, BulkCodecPipeline] = {}


class BulkCodecPipeline(BatchedCodecPipeline):
    """Batches the chunk I/O and codecs of one selection."""

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Store) -> Any:
        """The pipeline of an array: this one for icefloe stores, Zarr's default for others."""
        if not isinstance(store, IcechunkStore):
            return zarr_array.create_codec_pipeline(array_metadata)
        codecs = getattr(array_metadata, "codecs", ())
        if not codecs or not all(type(codec) in _COMPARABLE for codec in codecs):
            return cls._make(array_metadata)
        # Groups with thousands of arrays open faster if equal arrays share their pipeline.
        grid, dtype = array_metadata.chunk_grid, array_metadata.data_type
        key = (codecs, grid, dtype, repr(array_metadata.fill_value), zarr.config.get(_BATCH_SIZE))
        pipeline = _pipeline_cache.get(key)
        if pipeline is None:
            if len(_pipeline_cache) >= _CACHE_SIZE:
                _pipeline_cache.clear()
            pipeline = _pipeline_cache[key] = cls._make(array_metadata)
        return pipeline

    @classmethod
    def _make(cls, array_metadata: Any) -> BulkCodecPipeline:
        default: Any = zarr_array.create_codec_pipeline(array_metadata)
        return cls(
            default.array_array_codecs,
            default.array_bytes_codec,
            default.bytes_bytes_codecs,
            default.batch_size,
        )

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec], *, batch_size: int | None = None) -> Any:
        """Zarr's default, because the store is not known. Shards ask so for their inner chunks."""
        return BatchedCodecPipeline.from_codecs(codecs, batch_size=batch_size)

    async def read(
        self,
        batch_info: Iterable[tuple[ByteGetter, ArraySpec, Any, Any, bool]],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> Any:
        """Read a selection into `out`. Returns whether each chunk was present, as Zarr wants it."""
        items: list[Any] = list(batch_info)
        batch = self._batch(items, out, drop_axes)
        # Of a shard that is read in part, only the wanted inner chunks are fetched.
        is_partial = self.supports_partial_decode and not all(item[4] for item in items)
        if batch is None or (is_partial and batch.codecs.sharding is None):
            return await super().read(items, out, drop_axes)
        return await _read(batch)

    async def write(
        self,
        batch_info: Iterable[tuple[ByteSetter, ArraySpec, Any, Any, bool]],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Write `value` into a selection."""
        items: list[Any] = list(batch_info)
        batch = self._batch(items, value, drop_axes)
        if batch is None or (self.supports_partial_encode and not all(item[4] for item in items)):
            await super().write(items, value, drop_axes)
            return
        if self.supports_partial_encode and items[0][1].config.write_empty_chunks:
            # Inner chunks outside of the array are not written, as Zarr's default leaves them out.
            inside = [position for position, item in enumerate(items) if is_whole(item)]
            if len(inside) < len(items):
                edge = [item for item in items if not is_whole(item)]
                await super().write(edge, value, drop_axes)
                batch = batch.part(inside)
        if batch.items:
            await _write(batch)

    def _batch(
        self, items: list[ChunkItem], values: NDBuffer, drop_axes: tuple[int, ...]
    ) -> ChunkBatch | None:
        """The batch, or None if something is of a kind that only Zarr's default knows."""
        if not items or not isinstance(items[0][0], StorePath):
            return None
        store = items[0][0].store
        array = values.as_ndarray_like()
        if not isinstance(store, IcechunkStore) or not isinstance(array, np.ndarray):
            return None
        if items[0][1].fill_value is None:
            return None
        codecs = ChunkCodecs.of(
            self.array_array_codecs, self.array_bytes_codec, self.bytes_bytes_codecs
        )
        keys = [item[0].path for item in items]
        first = parse_key(keys[0], store._state.find_node)
        if codecs is None or not isinstance(first, ChunkKey):
            return None
        coordinates = _coordinates_of(keys, first)
        if coordinates is None:
            return None
        return ChunkBatch(store, first.path, items, coordinates, array, drop_axes, codecs)


register_pipeline(BulkCodecPipeline)


# -- Zarr's configuration

_ZARRS = f"{BatchedCodecPipeline.__module__}.{BatchedCodecPipeline.__qualname__}"
_OURS = f"{BulkCodecPipeline.__module__}.{BulkCodecPipeline.__qualname__}"


class _Installation:
    """Whether opening an icefloe store installs the pipeline."""

    is_automatic = True


def install_pipeline() -> None:
    """Make `BulkCodecPipeline` the pipeline of Zarr: sets `codec_pipeline.path` in `zarr.config`.

    Every icefloe store calls this when it is made, so the first one changes the configuration of
    the process. Arrays of other stores keep Zarr's default pipeline. A pipeline other than Zarr's
    default is left alone, and so is everything after `use_bulk_pipeline(False)`.
    """
    if _Installation.is_automatic and zarr.config.get(_PATH) == _ZARRS:
        zarr.config.set({_PATH: _OURS})


def use_bulk_pipeline(enabled: bool = True) -> None:
    """Whether arrays of icefloe stores read and write whole selections at once, if opened later.

    They do unless Zarr is configured to use another pipeline. Arrays of other stores always have
    the pipelines of Zarr.

    Args:
        enabled: False returns to Zarr's default pipeline, True chooses this one instead of any.

    >>> icefloe.use_bulk_pipeline(enabled=True)
    """
    _Installation.is_automatic = enabled
    zarr.config.set({_PATH: _OURS if enabled else _ZARRS})


# -- batches


class ChunkBatch:
    """Chunks of one array that are read or written together."""

    def __init__(
        self,
        store: IcechunkStore,
        path: str,
        items: list[ChunkItem],
        coordinates: list[Coordinates],
        values: np.ndarray[Any, Any],
        drop_axes: tuple[int, ...],
        codecs: ChunkCodecs,
    ) -> None:
        self.store = store
        self.path = path
        """Of the array."""
        self.items = items
        self.coordinates = coordinates
        """The index of each chunk."""
        self.values = values
        """Where chunks are read into, or what is written."""
        self.drop_axes = drop_axes
        self.codecs = codecs
        spec = items[0][1] if items else None
        self.chunk_bytes: int = 0
        """Decoded bytes of the first chunk."""
        if spec is not None:
            self.chunk_bytes = prod(spec.shape) * spec.dtype.to_native_dtype().itemsize

    def part(self, positions: Sequence[int]) -> ChunkBatch:
        """Some of the chunks, in the order given."""
        items = [self.items[position] for position in positions]
        chosen = [self.coordinates[position] for position in positions]
        return ChunkBatch(
            self.store, self.path, items, chosen, self.values, self.drop_axes, self.codecs
        )

    def slices(self, count: int) -> list[slice]:
        """Parts of `count` chunks for threads to work on."""
        size = max(self.chunk_bytes, 1)
        if size < THREADS_FROM_BYTES or count < 2:
            return [slice(0, count)] if count else []
        edges = [*range(0, count, max(1, SLICE_BYTES // size)), count]
        return [slice(start, stop) for start, stop in pairwise(edges)]

    @property
    def is_small(self) -> bool:
        """Whether the work is done in place: a task or a thread would take longer than it."""
        return len(self.items) <= MAX_IN_PLACE and self.chunk_bytes < THREADS_FROM_BYTES

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Do blocking work without keeping the event loop from others, unless it is small."""
        return work() if self.is_small else await asyncio.to_thread(work)

    async def in_codec_thread(self, work: Callable[[], Result]) -> Result:
        """The same in one of the threads of `threads`: no more at a time than there are processors.

        Work is done in the order of these calls, so that its request can start early. It must not
        wait for `threads` itself, because it occupies one of them.
        """
        return work() if self.is_small else await asyncio.wrap_future(threads.submit(work))


def _coordinates_of(keys: Sequence[str], first: ChunkKey) -> list[Coordinates] | None:
    """The chunk indices of keys of the first key's array; None if one is of another form."""
    ndim = len(first.coordinates)
    if ndim == 0 or len(keys) == 1:
        return [first.coordinates] * len(keys)
    prefix = keys[0].rsplit("/", ndim)[0] + "/"
    length = len(prefix)
    if not all(key.startswith(prefix) for key in keys):
        return None
    try:
        rows = [tuple(map(int, key[length:].split("/"))) for key in keys]
    except ValueError:
        return None
    is_valid = set(map(len, rows)) == {ndim} and max(map(max, rows)) <= MAX_INDEX
    return rows if is_valid else None


class _Threads:
    """The threads that decode and encode, shared by all arrays of the process."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def each(self, function: Callable[[Item], None], items: Sequence[Item]) -> None:
        """`function` of every item. An error is raised when all have ended."""
        if len(items) < 2:
            for item in items:
                function(item)
            return
        futures = [self.submit(partial(function, item)) for item in items]
        wait(futures)
        for future in futures:
            future.result()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "icefloe-codecs")
        return self._pool.submit(work)


threads = _Threads()


async def in_groups(
    work: Callable[[Sequence[Item]], Coroutine[Any, Any, None]],
    items: Sequence[Item],
    sizes: Sequence[int],
    in_flight: int | None = None,
) -> None:
    """Work on groups of bounded size, several at a time. A large chunk is a group of its own."""
    if not items:
        return
    edges, total, largest = [0], 0, 1
    for position, size in enumerate(sizes):
        limit = SLICE_BYTES if size >= SLICE_BYTES else _GROUP_BYTES
        if total and (total + size > limit or position - edges[-1] >= _GROUP_CHUNKS):
            edges.append(position)
            total = 0
        total += size
        largest = max(largest, total)
    if len(edges) == 1:
        await work(items)
        return
    edges.append(len(items))
    turns = asyncio.Semaphore(in_flight or max(_MIN_IN_FLIGHT, _BYTES_IN_FLIGHT // largest))

    async def in_turn(group: Sequence[Item]) -> None:
        async with turns:
            await work(group)

    await run_together([in_turn(items[start:stop]) for start, stop in pairwise(edges)])


async def run_together(work: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Run coroutines concurrently. The first error cancels the others."""
    if len(work) == 1:
        await work[0]
        return
    tasks = [*map(asyncio.ensure_future, work)]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


# -- reading


async def _read(batch: ChunkBatch) -> tuple[Any, ...]:
    """Read every chunk into the values of the batch. Returns Zarr's status of each chunk."""
    if batch.store._eventloop.driver.is_local:
        found = await batch.in_thread(lambda: _find_and_read_here(batch))
        if remote := [chunk for chunk in found.virtual if not _is_file(chunk)]:
            await _read_remote(batch, remote)
    else:
        found = await _find(batch, batch.store._eventloop)
        chunks: list[Chunk] = [*found.stored]
        chunks += (chunk for chunk in found.virtual if not _is_file(chunk))
        work = [_read_remote(batch, chunks)]
        if len(chunks) < len(batch.items):
            work.append(batch.in_thread(lambda: _read_here(batch, found, [])))
        await run_together(work)
    missing = set(found.missing)
    return tuple(_MISSING if row in missing else _PRESENT for row in range(len(batch.items)))


async def _fetch_existing(batch: ChunkBatch, positions: Sequence[int]) -> dict[int, Readable]:
    """The stored bytes of some chunks of a batch, without decoding them."""
    part = batch.part(positions)
    handle = batch.store._eventloop
    found = await _find(part, handle)
    chunks: list[Chunk] = [*found.stored, *found.virtual]
    data = dict(found.inline)
    data.update(
        zip((chunk.position for chunk in chunks), await fetch_chunks(handle, chunks), strict=True)
    )
    return {positions[at]: raw for at, raw in data.items()}


async def _find(batch: ChunkBatch, handle: RepoHandle) -> FoundChunks:
    view, coordinates = batch.store._state.view, batch.coordinates
    found = FoundChunks()
    if view.find_node(batch.path) is None:  # deleted since Zarr opened the array
        found.missing += range(len(coordinates))
        return found
    node, array = view.array(batch.path)
    if len(coordinates) > 1:
        index = np.array(coordinates, np.uint32).reshape(len(coordinates), len(array.shape))
        return await find_chunks(handle, view, node, index)
    ref = await operations.find_ref(handle, view, node, coordinates[0])
    if ref is None:
        found.missing.append(0)
    else:
        found.add(handle.assets, 0, ref)
    return found


def _find_and_read_here(batch: ChunkBatch) -> FoundChunks:
    found = run_blocking(_find(batch, batch.store._blocking))
    _read_here(batch, found, found.stored)
    return found


def _read_here(batch: ChunkBatch, found: FoundChunks, stored: Sequence[StoredChunk]) -> None:
    for position in found.missing:
        item = batch.items[position]
        batch.values[item[3]] = item[1].fill_value
    parts = [found.inline[part] for part in batch.slices(len(found.inline))]
    threads.each(lambda part: _scatter(batch, part), parts)
    handle = batch.store._blocking
    here: list[Chunk] = [*stored, *(chunk for chunk in found.virtual if _is_file(chunk))]
    chunks, shards = _split(batch, here)

    def read_shard(shard: WantedShard) -> None:
        [index] = run_blocking(fetch_chunks(handle, [shard.index_source]))
        inner = list(shard.inner_chunks(index))
        _scatter_inner(inner, run_blocking(fetch_chunks(handle, [chunk.source for chunk in inner])))
        shard.finish(batch.values, batch.drop_axes)

    def read_some(part: slice) -> None:
        some = chunks[part]
        data = run_blocking(fetch_chunks(handle, some))
        _scatter(batch, zip((chunk.position for chunk in some), data, strict=True))

    threads.each(read_some, batch.slices(len(chunks)))
    threads.each(read_shard, shards)


async def _read_remote(batch: ChunkBatch, remote: Sequence[Chunk]) -> None:
    handle = batch.store._eventloop
    chunks, shards = _split(batch, remote)

    async def read_some(some: Sequence[Chunk]) -> None:
        data = await fetch_chunks(handle, some)
        pairs = list(zip((chunk.position for chunk in some), data, strict=True))
        await batch.in_codec_thread(lambda: _scatter(batch, pairs))

    async def read_shards(some: Sequence[tuple[WantedShard, Sequence[InnerChunk]]]) -> None:
        inner = [chunk for _, chunks in some for chunk in chunks]
        data = await fetch_chunks(handle, [chunk.source for chunk in inner])
        await batch.in_codec_thread(lambda: _scatter_inner(inner, data))
        for shard, _ in some:
            shard.finish(batch.values, batch.drop_axes)

    await in_groups(read_some, chunks, list(map(length_of, chunks)))
    if not shards:
        return
    indices = await fetch_chunks(handle, [shard.index_source for shard in shards])
    inner = [[*shard.inner_chunks(index)] for shard, index in zip(shards, indices, strict=True)]
    sizes = [sum(length_of(chunk.source) for chunk in chunks) for chunks in inner]
    await in_groups(read_shards, list(zip(shards, inner, strict=True)), sizes)


def _split(batch: ChunkBatch, chunks: Iterable[Chunk]) -> tuple[Sequence[Chunk], list[WantedShard]]:
    """Chunks to read, large ones in part, and shards to read in part."""
    narrowed = [_narrowed(batch, chunk) for chunk in chunks]
    return split_shards(batch.codecs, batch.items, narrowed)


def _narrowed(batch: ChunkBatch, chunk: Chunk) -> Chunk:
    """The part of a large chunk that is wanted. The item of the chunk is changed to that part."""
    item = batch.items[chunk.position]
    if not batch.codecs.is_part_enough(item):
        return chunk
    key, spec, selection, *rest = item
    found = leading_part(selection, spec.shape)
    size = spec.dtype.to_native_dtype().itemsize
    if found is None or length_of(chunk) != prod(spec.shape) * size:
        return chunk
    first, count, shape, inside = found
    batch.items[chunk.position] = (key, replace(spec, shape=shape), inside, *rest)
    return part_of(chunk, first * size, count * size)


async def fetch_chunks(handle: RepoHandle, chunks: Sequence[Chunk]) -> list[Readable]:
    """The bytes of chunks that are not inline, in the order given."""
    stored = [chunk for chunk in chunks if isinstance(chunk, StoredChunk)]
    virtual = [chunk for chunk in chunks if isinstance(chunk, VirtualChunk)]
    data = await fetch_stored(handle.assets, [(chunk.key, chunk.span) for chunk in stored])
    if not virtual:
        return data
    found = iter(await handle.assets.virtual.fetch_many([chunk.ref for chunk in virtual]))
    rest = iter(data)
    return [next(rest) if isinstance(chunk, StoredChunk) else next(found) for chunk in chunks]


def _scatter(batch: ChunkBatch, pairs: Iterable[tuple[int, Readable]]) -> None:
    """Decode chunks into the values of the batch. Chunks never overlap, so threads may share it."""
    items, out, drop_axes = batch.items, batch.values, batch.drop_axes
    is_large = batch.chunk_bytes >= THREADS_FROM_BYTES
    spec = decode = None
    for position, raw in pairs:
        item = items[position]
        if item[1] is not spec or decode is None:
            spec, decode = item[1], batch.codecs.decoder(item[1])
        if not is_large or not batch.codecs.decode_into(raw, item, out):
            scatter(decode(raw), item, out, drop_axes)


def _scatter_inner(inner: Sequence[InnerChunk], data: Sequence[Readable]) -> None:
    for chunk, raw in zip(inner, data, strict=True):
        chunk.shard.put(chunk, raw)


def _is_file(chunk: VirtualChunk) -> bool:
    return (chunk.ref.location or "").startswith(_FILE)


# -- writing


async def _write(batch: ChunkBatch) -> None:
    """Write the values of the batch: encoded by threads, one change of the session."""
    store, state = batch.store, batch.store._state
    store._check_writable()
    operations.require_writable(state)
    node, array = state.array(batch.path)
    highest = tuple(map(max, zip(*batch.coordinates, strict=True)))
    key = "/".join([chunk_prefix(batch.path), *map(str, highest)])
    operations.check_chunk(key, array, highest, 1)
    written = WrittenChunks()
    is_local = store._eventloop.driver.is_local
    is_large = batch.chunk_bytes >= SLICE_BYTES
    sizes = [batch.chunk_bytes] * len(batch.items)

    async def write_some(positions: Sequence[int]) -> None:
        incomplete = [position for position in positions if not batch.items[position][4]]
        existing = await _fetch_existing(batch, incomplete) if incomplete else {}

        def write_here(part: slice) -> None:
            encoded = _encode(batch, positions[part], existing)
            run_blocking(operations.store_chunks(store._blocking, encoded, written))

        async def encode_and_store(part: slice) -> None:
            encoded = await batch.in_codec_thread(lambda: _encode(batch, positions[part], existing))
            await operations.store_chunks(store._eventloop, encoded, written)

        parts = batch.slices(len(positions))
        if is_local and is_large:  # one chunk: a large one is a group of its own
            await batch.in_codec_thread(lambda: write_here(slice(None)))
        elif is_local:
            await batch.in_thread(lambda: threads.each(write_here, parts))
        else:
            await run_together([encode_and_store(part) for part in parts])

    # Threads that create many files in one directory wait for each other.
    in_flight = 1 if is_local and not is_large else None
    await in_groups(write_some, range(len(batch.items)), sizes, in_flight)
    await operations.set_chunks(Workspace(store._eventloop, state), node, written)


def _encode(
    batch: ChunkBatch, positions: Sequence[int], existing: dict[int, Readable]
) -> list[tuple[Coordinates, Any]]:
    """The index and the bytes of each chunk; None for a chunk that is not stored."""
    encoded = []
    codecs = batch.codecs
    for position in positions:
        item = batch.items[position]
        values = merged(codecs, batch.values, item, batch.drop_axes, existing.get(position))
        data = None if is_empty(values, item[1]) else codecs.encode(values, item[1])
        encoded.append((batch.coordinates[position], data))
    return encoded
