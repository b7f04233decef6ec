"""Chunk payloads: from a reference to bytes."""

from __future__ import annotations

from collections.abc import Sequence

from icefloe.assets.assets import Assets
from icefloe.errors import InternalError
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef
from icefloe.storage.driver import Readable, Span


async def fetch_chunk(assets: Assets, ref: ChunkRef, span: Span | None) -> Readable:
    """The bytes of a chunk, or a span of them. The span has to be inside the chunk."""
    if ref.inline is not None:  # also native chunks that are not stored yet
        return ref.inline if span is None else ref.inline[span.start : span.start + span.length]
    if ref.kind == ChunkKind.VIRTUAL:
        return await assets.virtual.fetch(ref, span)
    if ref.location is not None:
        key = ref.location
    elif ref.chunk_id is not None:
        key = assets.chunk_key(ref.chunk_id)
    else:
        raise InternalError("a native chunk has neither id nor key")
    start, length = (0, ref.length) if span is None else span
    return await _fetch_stored(assets, key, Span(ref.offset + start, length))


async def fetch_stored(assets: Assets, wanted: Sequence[tuple[str, Span]]) -> list[Readable]:
    """Parts of many objects of the repository, fetched at once."""
    if assets.settings.caching.num_bytes_chunks == 0:
        return await assets.driver.get_many(wanted)
    found = [assets.caches.chunks.get(one) for one in wanted]
    missing = [at for at, data in enumerate(found) if data is None]
    for at, data in zip(
        missing, await assets.driver.get_many([wanted[at] for at in missing]), strict=True
    ):
        found[at] = bytes(data)
        assets.caches.chunks.put(wanted[at], bytes(data), max(1, len(data)))
    return [data for data in found if data is not None]


async def _fetch_stored(assets: Assets, key: str, span: Span) -> Readable:
    """Part of an object of the repository. These objects never change, so they can be cached.

    Virtual chunks are not cached, because their objects may be replaced by their owners.
    """
    if assets.settings.caching.num_bytes_chunks == 0:
        return await assets.driver.get(key, span)
    cached = assets.caches.chunks.get((key, span))
    if cached is None:
        cached = bytes(await assets.driver.get(key, span))
        assets.caches.chunks.put((key, span), cached, max(1, len(cached)))
    return cached
