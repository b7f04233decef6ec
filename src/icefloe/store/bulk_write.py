"""Writing all chunks of a selection together: encoded by threads, one change of the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from icefloe.format.columns.chunk_index import Index
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.snapshot.nodes import Node
from icefloe.ids import ChunkId
from icefloe.repo import packing
from icefloe.repo.handle import RepoHandle
from icefloe.repo.workspace import Workspace
from icefloe.storage.driver import Readable
from icefloe.storage.run import run_blocking
from icefloe.store.bulk_batch import (
    SLICE_BYTES,
    Batch,
    in_codec_thread,
    in_groups,
    in_thread,
    run_together,
    threads,
)
from icefloe.store.bulk_read import fetch_existing
from icefloe.store.chunk_codecs import is_empty, merged
from icefloe.store.operations import check_chunk, require_writable


class _Written:
    """What became of the chunks of a batch, by position."""

    def __init__(self) -> None:
        self.inline: list[tuple[int, bytes]] = []
        self.native: list[tuple[int, ChunkId, int]] = []
        self.packed: list[tuple[int, bytes]] = []
        self.deleted: list[int] = []


async def write(batch: Batch) -> None:
    """Write the values of the batch."""
    store = batch.store
    store._check_writable()
    state = store._state
    require_writable(state)
    node, array = state.array(batch.path)
    highest = tuple(batch.index.max(0).tolist())
    check_chunk(f"{batch.path.lstrip('/')}/c/{'/'.join(map(str, highest))}", array, highest, 1)
    written = _Written()
    is_local = store._eventloop.driver.is_local
    is_large = batch.chunk_bytes >= SLICE_BYTES
    sizes = [batch.chunk_bytes] * len(batch.items)

    async def write_some(positions: Sequence[int]) -> None:
        incomplete = [at for at in positions if not batch.items[at][4]]
        existing = await fetch_existing(batch, incomplete) if incomplete else {}
        if is_local and is_large:  # one chunk: a large one is a group of its own
            await in_codec_thread(batch, lambda: _write_here(batch, positions, existing, written))
            return
        if is_local:
            await in_thread(batch, lambda: _write_parts(batch, positions, existing, written))
            return

        async def encode_and_store(part: slice) -> None:
            some = positions[part]
            encoded = await in_codec_thread(batch, lambda: _encode(batch, some, existing))
            await _store(store._eventloop, encoded, written)

        await run_together([encode_and_store(part) for part in batch.slices(len(positions))])

    # Threads that create many files in one directory wait for each other.
    in_flight = 1 if is_local and not is_large else None
    await in_groups(write_some, range(len(batch.items)), sizes, in_flight)
    for at, data in written.packed:
        coordinates = tuple(batch.index[at].tolist())
        await packing.add_chunk(Workspace(store._eventloop, state), node, coordinates, data)
    _set_refs(batch, node, written)


def _write_parts(
    batch: Batch, positions: Sequence[int], existing: dict[int, Readable], written: _Written
) -> None:
    """Write chunks to a directory, on several threads."""

    def write_part(part: slice) -> None:
        _write_here(batch, positions[part], existing, written)

    threads.each(write_part, batch.slices(len(positions)))


def _write_here(
    batch: Batch, positions: Sequence[int], existing: dict[int, Readable], written: _Written
) -> None:
    """Write chunks to a directory, on this thread."""
    encoded = _encode(batch, positions, existing)
    run_blocking(_store(batch.store._blocking, encoded, written))


def _encode(
    batch: Batch, positions: Sequence[int], existing: dict[int, Readable]
) -> list[tuple[int, Any]]:
    """The bytes of each chunk, or None if it is not stored."""
    encoded = []
    codecs = batch.codecs
    for at in positions:
        spec = batch.items[at][1]
        values = merged(codecs, batch.values, batch.items[at], batch.drop_axes, existing.get(at))
        encoded.append((at, None if is_empty(values, spec) else codecs.encode(values, spec)))
    return encoded


async def _store(handle: RepoHandle, encoded: Sequence[tuple[int, Any]], written: _Written) -> None:
    """Store what is too large to be kept inline or packed."""
    objects = []
    native = []
    for at, data in encoded:
        if data is None:
            written.deleted.append(at)
            continue
        size = memoryview(data).nbytes
        if size <= handle.settings.inline_chunk_threshold_bytes:
            written.inline.append((at, bytes(data)))
        elif packing.is_packed(handle, size):
            written.packed.append((at, bytes(data)))
        else:
            chunk_id = handle.new_id(ChunkId)
            objects.append((handle.assets.chunk_key(chunk_id), data))
            native.append((at, chunk_id, size))
    if objects:
        storage_class = handle.settings.storage.chunks_storage_class
        await handle.driver.put_new(objects, storage_class=storage_class)
    written.native += native


def _set_refs(batch: Batch, node: Node, written: _Written) -> None:
    """Enter the chunks into the session, all at once."""
    state, index = batch.store._state, batch.index
    tables = []
    if written.inline:
        at = [position for position, _ in written.inline]
        tables.append(ChunkRefs.inline_chunks(index[at], [data for _, data in written.inline]))
    if written.native:
        at = [position for position, _, _ in written.native]
        ids = np.frombuffer(b"".join(chunk_id for _, chunk_id, _ in written.native), np.uint8)
        length = np.array([size for _, _, size in written.native], np.uint64)
        tables.append(ChunkRefs.native(index[at], ids, np.zeros(len(at), np.uint64), length))
    deleted: Index = index[written.deleted]
    if not tables and not len(deleted):
        return
    with state.writing():
        if (edits := state.edits(node)) is not None:
            refs, _ = ChunkRefs.overlay([(table, None) for table in tables], index.shape[1])
            edits.set_table(refs, deleted)
