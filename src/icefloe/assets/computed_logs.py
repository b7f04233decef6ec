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
from icefloe.format.snapshot.nodes import ArrayData, ManifestRef, NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId


async def computed_log(assets: Assets, snapshot: Snapshot) -> TransactionLog:
    """The log of a commit. Only manifests that are not in both snapshots are read.

    Raises:
        StorageError: the parent is gone, kind `object-not-found`, as for a deleted log.
    """
    before, files = NodeTable.from_nodes([]), ManifestFiles.from_infos([])
    if snapshot.parent_id is not None:
        try:
            parent = await assets.snapshot(snapshot.parent_id)
        except SnapshotNotFoundError:
            raise StorageError(
                f"what snapshot {snapshot.id} changed is not known: its parent "
                f"{snapshot.parent_id} is gone",
                ErrorKind.OBJECT_NOT_FOUND,
            ) from None
        before, files = parent.nodes, parent.manifest_files
    old = {node.id: node.array for node in before if node.array is not None}
    chunks: dict[NodeId, tuple[ChunkRefs, ChunkRefs]] = {}
    for node in snapshot.nodes:
        if node.array is None:
            continue
        earlier = old.get(node.id)
        gone = _not_in(earlier, node.array)
        come = _not_in(node.array, earlier)
        if gone or come:
            ndim = len(node.array.shape)
            chunks[node.id] = (
                await _refs(assets, files, node.id, gone, ndim),
                await _refs(assets, snapshot.manifest_files, node.id, come, ndim),
            )
    return log_between(snapshot.id, before, snapshot.nodes, chunks)


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
