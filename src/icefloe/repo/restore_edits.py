"""Turning prepared manifests back into ordinary edits of a session."""

from __future__ import annotations

from collections.abc import Iterable

from icefloe.changes.chunk_edits import EditLayer
from icefloe.changes.prepared import PreparedArray
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.ids import NodeId
from icefloe.repo.handle import RepoHandle
from icefloe.repo.workspace import Workspace


async def edits_of(handle: RepoHandle, node_id: NodeId, ahead: PreparedArray) -> EditLayer:
    """The references that were set and the indices that were deleted, read from the manifests."""
    touched = ahead.touched.unpack()
    files = [(info.id, info.size_bytes) for info in ahead.files]
    found = [manifest.find(node_id) for manifest in await handle.assets.manifests(files)]
    layers = [(refs, None) for refs in found if refs is not None]
    refs, _ = ChunkRefs.overlay(layers, ahead.touched.ndim)
    rows = refs.lookup.find_many(touched)
    return refs.take(rows[rows >= 0]), touched[rows < 0]


async def restore_edits(workspace: Workspace, nodes: Iterable[NodeId]) -> None:
    """Replace the prepared manifests of some arrays with edits, which fit on any base.

    The content of the session does not change. The references are in memory afterwards.
    """
    handle, state = workspace
    for node_id in list(nodes):
        ahead = state.changes.prepared.get(node_id)
        if ahead is None:
            continue
        layer = await edits_of(handle, node_id, ahead)
        with state.lock:
            # Another thread may have discarded or extended it. Callers check again.
            if state.changes.prepared.get(node_id) is ahead:
                state.changes.lay_below(node_id, layer)
                state.forget_nodes()
