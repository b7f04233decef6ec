"""Packed objects: how much of each is dead, and repacking of the live chunks.

A packed object stays as long as one of its chunks is in use. Its dead bytes can only be deleted
after the live chunks have been written to another object.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.format import layout
from icefloe.format.columns.blobs import Bytes
from icefloe.format.columns.id_set import IdSet, id_keys
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.snapshot.nodes import Node
from icefloe.ids import ChunkId, SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.listing import list_folder
from icefloe.maintenance.stats import DistinctRows, native_rows
from icefloe.repo.commit import commit
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session_view import committed_chunks
from icefloe.repo.sessions import open_writable
from icefloe.repo.workspace import Workspace
from icefloe.storage.driver import Span

_PACK_BYTES = 16 << 20


class PackedObjects(NamedTuple):
    """Objects with several chunks, or with more bytes than the chunks in use have."""

    id: Bytes
    size_bytes: NDArray[np.int64]
    live_bytes: NDArray[np.int64]
    """Bytes of chunks that are reachable from a branch or tag."""
    num_live_chunks: NDArray[np.int64]

    @property
    def dead_bytes(self) -> NDArray[np.int64]:
        return self.size_bytes - self.live_bytes

    def __str__(self) -> str:
        size, dead = int(self.size_bytes.sum()), int(self.dead_bytes.sum())
        share = 100 * dead / size if size else 0.0
        return (
            f"{len(self.id):,} packed objects with {int(self.num_live_chunks.sum()):,} chunks in "
            f"use: {size:,} bytes, {dead:,} of them dead ({share:.1f} %)"
        )


async def packed_objects(handle: RepoHandle) -> PackedObjects:
    """The live bytes of every packed object."""
    live.require_spec_1_or_2(handle, "looking into packed objects")
    tips = await live.ref_tips(handle)
    snapshots = await live.reachable_snapshots(handle, tips.values())
    files = await live.manifest_files(handle, snapshots)
    used = DistinctRows(28)
    async for manifest in live.each_manifest(handle, files):
        for array in manifest.arrays:
            used.add(native_rows(array.refs))
    rows = used.finish()
    keys, which = np.unique(id_keys(rows[:, : ChunkId.size]), return_inverse=True)
    length = np.ascontiguousarray(rows[:, -8:]).view("<u8").reshape(-1).astype(np.float64)
    live_bytes = np.bincount(which, length, len(keys)).astype(np.int64)
    num_chunks = np.bincount(which, minlength=len(keys))
    stored = await list_folder(handle.driver, layout.CHUNKS)
    at = np.minimum(np.searchsorted(keys, id_keys(stored.id)), max(len(keys) - 1, 0))
    is_used = keys[at] == id_keys(stored.id) if len(keys) else np.zeros(len(stored), np.bool_)
    objects, at = stored.take(is_used), at[is_used]
    is_packed = (num_chunks[at] > 1) | (live_bytes[at] < objects.size_bytes)
    objects, at = objects.take(is_packed), at[is_packed]
    return PackedObjects(objects.id, objects.size_bytes, live_bytes[at], num_chunks[at])


async def repack(
    handle: RepoHandle, branch: str, message: str, min_dead_fraction: float
) -> SnapshotId | None:
    """Repack the live chunks of partly dead objects, and commit to a branch.

    Returns None if no object is dead enough. The old objects become garbage when no older snapshot
    needs them.
    """
    if not 0 < min_dead_fraction <= 1:
        raise InvalidInputError(
            f"min_dead_fraction is {min_dead_fraction}, expected a number above 0 and up to 1"
        )
    found = await packed_objects(handle)
    is_dead = found.dead_bytes >= min_dead_fraction * found.size_bytes
    victims = IdSet.of(found.id[is_dead])
    workspace = Workspace(handle, await open_writable(handle, branch))
    if not victims.size:
        return None
    for node in list(workspace.state.view.all_nodes()):
        if node.array is not None:
            await _repack_array(workspace, node, victims)
    if workspace.state.changes.is_empty:
        return None
    return await commit(workspace, message, None)


async def _repack_array(workspace: Workspace, node: Node, victims: IdSet) -> None:
    handle, state = workspace
    refs = await committed_chunks(handle, state.manifest_files, node)
    if refs.chunk_id is None:
        return
    hit = (refs.kind == ChunkKind.NATIVE) & victims.contains(refs.chunk_id)
    rows = np.flatnonzero(hit)
    ends = np.cumsum(refs.length[rows].astype(np.int64))
    for pack in np.split(rows, np.flatnonzero(np.diff(ends // _PACK_BYTES)) + 1):
        if len(pack):
            moved = await _repack_chunks(handle, refs.take(pack))
            with state.writing():
                state.changes.edits(node).set_table(moved)


async def _repack_chunks(handle: RepoHandle, refs: ChunkRefs) -> ChunkRefs:
    """Store these chunks together in a new object."""
    assert refs.chunk_id is not None
    places = zip(refs.chunk_id, refs.offset.tolist(), refs.length.tolist(), strict=True)
    wanted = [
        (layout.chunk_key(ChunkId(one.tobytes())), Span(offset, length))
        for one, offset, length in places
    ]
    data = await handle.driver.get_many([(key, span) for key, span in wanted])
    new_id = handle.new_id(ChunkId)
    storage_class = handle.settings.storage.chunks_storage_class
    await handle.driver.put(layout.chunk_key(new_id), b"".join(data), storage_class=storage_class)
    ends = np.cumsum(refs.length)
    ids = np.tile(np.frombuffer(new_id, np.uint8), (len(refs), 1))
    return ChunkRefs.native(refs.index, ids, ends - refs.length, refs.length)
