"""Chunk payloads: from a reference to bytes."""

from __future__ import annotations

from icefloe.assets.assets import Assets
from icefloe.errors import InternalError
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef
from icefloe.storage.driver import Readable, Span


async def fetch_chunk(assets: Assets, ref: ChunkRef, span: Span | None) -> Readable:
    """The bytes of a chunk, or a span of them; the span lies inside the chunk."""
    if ref.inline is not None:  # also of native chunks that are still to be stored
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
    return await assets.driver.get(key, Span(ref.offset + start, length))
