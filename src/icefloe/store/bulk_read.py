"""Reading all chunks of a selection together.

What is here (inline chunks, a local repository, virtual chunks in files) is read and decoded by
threads. What is away is requested in groups; while one group is decoded, the next are on their way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from icefloe.assets.chunks import fetch_stored
from icefloe.repo.find_chunks import FoundChunks, StoredChunk, VirtualChunk, find_chunks
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import Readable
from icefloe.storage.run import run_blocking
from icefloe.store.bulk_batch import (
    THREADS_FROM_BYTES,
    Batch,
    in_codec_thread,
    in_groups,
    in_thread,
    run_together,
    threads,
)
from icefloe.store.bulk_shards import (
    Chunk,
    InnerChunk,
    WantedShard,
    length_of,
    part_of,
    split_shards,
)
from icefloe.store.chunk_codecs import leading_part, scatter

_FILE = "file:"
_PRESENT: Any = {"status": "present"}
_MISSING: Any = {"status": "missing"}


async def read(batch: Batch) -> tuple[Any, ...]:
    """Read every chunk into the values of the batch. Returns Zarr's status of each chunk."""
    store = batch.store
    if store._eventloop.driver.is_local:
        found = await in_thread(batch, lambda: _find_and_read_here(batch))
        away: Sequence[Chunk] = [chunk for chunk in found.virtual if not _is_file(chunk)]
        if away:
            await _read_away(batch, away)
    else:
        found = await _find(batch, store._eventloop)
        away = [*found.stored, *(chunk for chunk in found.virtual if not _is_file(chunk))]
        await run_together(
            [in_thread(batch, lambda: _read_here(batch, found, [])), _read_away(batch, away)]
        )
    missing = set(found.missing)
    return tuple(_MISSING if at in missing else _PRESENT for at in range(len(batch.items)))


async def fetch_existing(batch: Batch, positions: Sequence[int]) -> dict[int, Readable]:
    """The stored bytes of some chunks of a batch, without decoding them."""
    part = batch.part(positions)
    handle = batch.store._eventloop
    found = await _find(part, handle)
    chunks: list[Chunk] = [*found.stored, *found.virtual]
    data = dict(found.inline)
    data.update(
        zip((chunk.position for chunk in chunks), await _fetch(handle, chunks), strict=True)
    )
    return {positions[at]: raw for at, raw in data.items()}


async def _find(batch: Batch, handle: RepoHandle) -> FoundChunks:
    view = batch.store._state.view
    if view.find_node(batch.path) is None:  # deleted since Zarr opened the array
        found = FoundChunks()
        found.missing += range(len(batch.items))
        return found
    return await find_chunks(handle, view, view.array(batch.path)[0], batch.index)


def _find_and_read_here(batch: Batch) -> FoundChunks:
    found = run_blocking(_find(batch, batch.store._blocking))
    _read_here(batch, found, found.stored)
    return found


def _read_here(batch: Batch, found: FoundChunks, stored: Sequence[StoredChunk]) -> None:
    for position in found.missing:
        item = batch.items[position]
        batch.values[item[3]] = item[1].fill_value
    parts = [found.inline[part] for part in batch.slices(len(found.inline))]
    threads.each(lambda part: _scatter(batch, part), parts)
    handle = batch.store._blocking
    here: list[Chunk] = [*stored, *(chunk for chunk in found.virtual if _is_file(chunk))]
    chunks, shards = split_shards(batch, [_narrowed(batch, chunk) for chunk in here])

    def read_shard(shard: WantedShard) -> None:
        [index] = run_blocking(_fetch(handle, [shard.index_source]))
        inner = list(shard.inner_chunks(index))
        _scatter_inner(inner, run_blocking(_fetch(handle, [one.source for one in inner])))
        shard.finish(batch)

    def read_some(part: slice) -> None:
        some = chunks[part]
        data = run_blocking(_fetch(handle, some))
        _scatter(batch, zip((chunk.position for chunk in some), data, strict=True))

    threads.each(read_some, batch.slices(len(chunks)))
    threads.each(read_shard, shards)


async def _read_away(batch: Batch, away: Sequence[Chunk]) -> None:
    handle = batch.store._eventloop
    chunks, shards = split_shards(batch, [_narrowed(batch, chunk) for chunk in away])

    async def read_some(some: Sequence[Chunk]) -> None:
        data = await _fetch(handle, some)
        pairs = list(zip((chunk.position for chunk in some), data, strict=True))
        await in_codec_thread(batch, lambda: _scatter(batch, pairs))

    async def read_shards(some: Sequence[tuple[WantedShard, Sequence[InnerChunk]]]) -> None:
        inner = [one for _, each in some for one in each]
        data = await _fetch(handle, [one.source for one in inner])
        await in_codec_thread(batch, lambda: _scatter_inner(inner, data))
        for shard, _ in some:
            shard.finish(batch)

    await in_groups(read_some, chunks, list(map(length_of, chunks)))
    indices = await _fetch(handle, [shard.index_source for shard in shards])
    inner = [[*shard.inner_chunks(index)] for shard, index in zip(shards, indices, strict=True)]
    sizes = [sum(length_of(one.source) for one in each) for each in inner]
    await in_groups(read_shards, list(zip(shards, inner, strict=True)), sizes)


def _narrowed(batch: Batch, chunk: Chunk) -> Chunk:
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


async def _fetch(handle: RepoHandle, chunks: Sequence[Chunk]) -> list[Readable]:
    stored = [chunk for chunk in chunks if isinstance(chunk, StoredChunk)]
    virtual = [chunk for chunk in chunks if isinstance(chunk, VirtualChunk)]
    data = await fetch_stored(handle.assets, [(chunk.key, chunk.span) for chunk in stored])
    if not virtual:
        return data
    found = iter(await handle.assets.virtual.fetch_many([chunk.ref for chunk in virtual]))
    rest = iter(data)
    return [next(rest) if isinstance(chunk, StoredChunk) else next(found) for chunk in chunks]


def _scatter(batch: Batch, pairs: Iterable[tuple[int, Readable]]) -> None:
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
    for one, raw in zip(inner, data, strict=True):
        one.shard.put(one, raw)


def _is_file(chunk: VirtualChunk) -> bool:
    return (chunk.ref.location or "").startswith(_FILE)
