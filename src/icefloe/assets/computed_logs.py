"""Transaction logs of generations that do not write any.

The changes of a commit are computed by comparing its snapshot with its parent's.
"""

from __future__ import annotations

from collections.abc import Mapping

from icefloe.assets.assets import Assets
from icefloe.changes.conflicts import log_between
from icefloe.errors import ErrorKind, SnapshotNotFoundError, StorageError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import ArrayData, ManifestRef, Node, NodeTable
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId

_MANIFESTS_AT_ONCE = 128


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
    arrays = [node for node in snapshot.nodes if node.array is not None]
    pairs = {node.id: (old.get(node.id), node) for node in arrays}
    chunks = await differing_chunks(assets, files, snapshot.manifest_files, pairs)
    return log_between(snapshot.id, before, snapshot.nodes, chunks)


async def differing_chunks(
    assets: Assets,
    old_files: ManifestFiles,
    files: ManifestFiles,
    pairs: Mapping[NodeId, tuple[Node | None, Node]],
) -> dict[NodeId, tuple[ChunkRefs, ChunkRefs]]:
    """References of two states of arrays, without the manifests that both states have.

    The ids of the two nodes of an array may differ. Arrays whose manifests are the same are left
    out. Manifests of all arrays are fetched together.
    """
    layers: dict[NodeId, tuple[list[ChunkRefs], list[ChunkRefs]]] = {}
    wanted = []
    for key, (old, new) in pairs.items():
        before, after = None if old is None else old.array, new.array
        for side, one, other, listed, node in (
            (0, before, after, old_files, old),
            (1, after, before, files, new),
        ):
            for ref in _not_in(one, other):
                assert node is not None
                layers.setdefault(key, ([], []))
                wanted.append((key, side, node.id, ref.id, listed[ref.id].size_bytes))
    for first in range(0, len(wanted), _MANIFESTS_AT_ONCE):
        batch = wanted[first : first + _MANIFESTS_AT_ONCE]
        loaded = await assets.manifests([(manifest_id, size) for *_, manifest_id, size in batch])
        for (key, side, node_id, _, _), manifest in zip(batch, loaded, strict=True):
            refs = manifest.find(node_id)
            if refs is not None:
                layers[key][side].append(refs)
    found = {}
    for key, (gone, come) in layers.items():
        array = pairs[key][1].array
        assert array is not None
        ndim = len(array.shape)
        found[key] = ChunkRefs.joined(gone, ndim), ChunkRefs.joined(come, ndim)
    return found


def _not_in(array: ArrayData | None, other: ArrayData | None) -> list[ManifestRef]:
    known = set() if other is None else {ref.id for ref in other.manifests}
    return [] if array is None else [ref for ref in array.manifests if ref.id not in known]
