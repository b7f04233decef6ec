"""Transaction logs of generations that do not write any.

The changes of a commit are computed by comparing its snapshot with its parent's.
"""

from __future__ import annotations

from collections.abc import Sequence

from icefloe.assets.assets import Assets
from icefloe.changes.divergence import log_between
from icefloe.errors import ErrorKind, SnapshotNotFoundError, StorageError
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.format.snapshot.nodes import ArrayData, ManifestRef, Node, NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId


async def computed_log(assets: Assets, snapshot: Snapshot) -> TransactionLog:
    """The log of a commit. Only manifests that are not in both snapshots are read.

    Raises:
        StorageError: the parent is gone, kind `object-not-found`, as for a deleted log.
    """
    if snapshot.parent_id is None:
        return await log_from(assets, None, snapshot)
    try:
        parent = await assets.snapshot(snapshot.parent_id)
    except SnapshotNotFoundError:
        raise StorageError(
            f"what snapshot {snapshot.id} changed is not known: its parent "
            f"{snapshot.parent_id} is gone",
            ErrorKind.OBJECT_NOT_FOUND,
        ) from None
    return await log_from(assets, parent, snapshot)


async def log_from(
    assets: Assets, earlier_snapshot: Snapshot | None, snapshot: Snapshot
) -> TransactionLog:
    """The log of a commit that would lead from one snapshot, or from nothing, to another one.

    Neither has to be an ancestor of the other. Only manifests that are not in both are read.
    """
    before, files = NodeTable.from_nodes([]), ManifestFiles.from_infos([])
    if earlier_snapshot is not None:
        before, files = earlier_snapshot.nodes, earlier_snapshot.manifest_files
    old = {node.id: node for node in before if node.array is not None}
    chunks: dict[NodeId, tuple[ChunkRefs, ChunkRefs]] = {}
    for node in snapshot.nodes:
        if node.array is not None:
            pair = await differing_chunks(
                assets, files, old.get(node.id), snapshot.manifest_files, node
            )
            if pair is not None:
                chunks[node.id] = pair
    return log_between(snapshot.id, before, snapshot.nodes, chunks)


async def differing_chunks(
    assets: Assets, old_files: ManifestFiles, old: Node | None, files: ManifestFiles, node: Node
) -> tuple[ChunkRefs, ChunkRefs] | None:
    """References of two states of an array, without the manifests that both have.

    The ids of the two nodes may differ. None if all manifests are the same.
    """
    assert node.array is not None
    earlier = None if old is None else old.array
    gone, come = _not_in(earlier, node.array), _not_in(node.array, earlier)
    if not gone and not come:
        return None
    ndim = len(node.array.shape)
    return (
        await _refs(assets, old_files, node.id if old is None else old.id, gone, ndim),
        await _refs(assets, files, node.id, come, ndim),
    )


def _not_in(array: ArrayData | None, other: ArrayData | None) -> list[ManifestRef]:
    known = set() if other is None else {ref.id for ref in other.manifests}
    return [] if array is None else [ref for ref in array.manifests if ref.id not in known]


async def _refs(
    assets: Assets, files: ManifestFiles, node_id: NodeId, wanted: Sequence[ManifestRef], ndim: int
) -> ChunkRefs:
    loaded = await assets.manifests([(ref.id, files[ref.id].size_bytes) for ref in wanted])
    found = [manifest.find(node_id) for manifest in loaded]
    layers = [(refs, None) for refs in found if refs is not None and refs.ndim == ndim]
    return ChunkRefs.overlay(layers, ndim)[0]
