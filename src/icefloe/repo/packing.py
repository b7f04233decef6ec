"""Storing small chunks in packs. A pack is stored when it is full, or before a commit."""

from __future__ import annotations

from functools import partial

from icefloe.changes.chunk_edits import Coordinates
from icefloe.changes.packs import Pack
from icefloe.format.snapshot.nodes import Node
from icefloe.ids import ChunkId
from icefloe.repo.handle import RepoHandle
from icefloe.repo.sessions import SessionState
from icefloe.repo.workspace import Workspace

_MAX_PACKS_IN_FLIGHT = 8
_PAUSE_S = 0.005
_MAX_PAUSES = 12_000


def is_packed(handle: RepoHandle, size: int) -> bool:
    """Whether a chunk of this size, which is too large to be kept inline, goes into a pack."""
    return size <= handle.settings.packing.max_chunk_size_bytes


async def add_chunk(
    workspace: Workspace, node: Node, coordinates: Coordinates, data: bytes
) -> None:
    """Add a chunk to the session. A caller that fills a pack waits until the pack is stored.

    Raises:
        StorageError: a pack could not be stored. Its chunks stay in the session. The next chunk and
            the commit retry it.
    """
    handle, state = workspace
    await _make_room(workspace)
    with state.writing():
        edits, new_id = state.edits(node), partial(handle.new_id, ChunkId)
        if edits is None:
            return
        is_shared = not handle.settings.packing.is_one_array_each
        num_bytes = state.packs.add(edits, node.id, coordinates, data, new_id, is_shared=is_shared)
        if num_bytes < handle.settings.packing.target_size_bytes:
            return
        state.packs.close_pack(state.changes, None if is_shared else node.id)
        packs = state.packs.take()
    await store_closed(workspace, packs)


async def store_packs(workspace: Workspace) -> None:
    """Store all chunks of the session that are only in memory."""
    state = workspace.state
    with state.lock:
        packs = close_packs(state)
    await store_closed(workspace, packs)


def close_packs(state: SessionState) -> list[Pack]:
    """Close the open pack, so that every chunk has its object and offset.

    The caller holds the lock.
    Returns the packs that have to be stored (`store_closed`) before a manifest refers to them.
    These include packs that another thread is storing: storing a pack twice is harmless and avoids
    a wait.
    """
    state.packs.close(state.changes)
    return state.packs.take(all_closed=True)


async def _make_room(workspace: Workspace) -> None:
    """Bound the memory: retry packs that failed to be stored, and limit the packs in flight."""
    handle, state = workspace
    with state.lock:
        failed = state.packs.take()
    await store_closed(workspace, failed)
    for _ in range(_MAX_PAUSES):
        with state.lock:
            if state.packs.num_taken < _MAX_PACKS_IN_FLIGHT:
                return
        await handle.driver.sleep(_PAUSE_S)


async def store_closed(workspace: Workspace, packs: list[Pack]) -> None:
    """Store closed packs. Packs that fail to be stored stay in the session."""
    handle, state = workspace
    if not packs:
        return
    objects = [(handle.assets.chunk_key(pack.id), pack.data) for pack in packs]
    storage_class = handle.settings.storage.chunks_storage_class
    try:
        await handle.driver.put_new(objects, storage_class=storage_class)
    except BaseException:
        with state.lock:
            state.packs.give_back(packs)
        raise
    with state.lock:
        state.packs.drop(packs)
