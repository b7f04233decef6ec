"""The difference between two snapshots as a transaction log, when neither is an ancestor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from icefloe import paths
from icefloe.changes.change_set import ChangeSet
from icefloe.format.columns.arrow_columns import mask_from_arrow
from icefloe.format.columns.chunk_index import Index, sort_rows
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.snapshot.nodes import Node, NodeTable
from icefloe.format.transaction_log import Move, NodeType, TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = on_demand("pyarrow.compute")


def net_log(
    snapshot_id: SnapshotId,
    before: NodeTable,
    after: NodeTable,
    changes: ChangeSet,
    chunks: Mapping[NodeId, tuple[ChunkRefs, ChunkRefs]],
) -> TransactionLog:
    """The log of a hypothetical commit that leads from one table of nodes to the other.

    It lists only chunks that `changes` touched; `chunks` has both states of their arrays. An array
    in which only other chunks differ is listed without chunks.
    """
    touched = {key: changes.touched_chunks(key) for key in chunks}
    return _log(snapshot_id, before, after, touched, chunks)


def log_between(
    snapshot_id: SnapshotId,
    before: NodeTable,
    after: NodeTable,
    chunks: Mapping[NodeId, tuple[ChunkRefs, ChunkRefs]],
    *,
    lists_all_moves: bool = False,
) -> TransactionLog:
    """The complete log of a hypothetical commit that leads from one table of nodes to the other.

    `chunks` has both states of the arrays whose manifests differ, limited to the difference. Nodes
    below a moved group are listed on request, as spec version 2 does.
    """
    touched = {}
    for key, (old, new) in chunks.items():
        both = np.concatenate([old.index, new.index] if old.ndim == new.ndim else [new.index])
        touched[key] = both[sort_rows(both)]
    log = _log(snapshot_id, before, after, touched, chunks)
    updated = {key: index for key, index in log.updated_chunks.items() if len(index)}
    if lists_all_moves:
        return replace(log, updated_chunks=updated)
    went = {move.source: move.destination for move in log.moved_nodes or ()}
    moved = tuple(move for move in log.moved_nodes or () if not _goes_along(move, went))
    return replace(log, updated_chunks=updated, moved_nodes=moved)


def accounts_for(
    log: TransactionLog,
    before: NodeTable,
    after: NodeTable,
    chunks: Mapping[NodeId, tuple[ChunkRefs, ChunkRefs]],
) -> bool:
    """Whether the log of a commit lists all that differs between two snapshots.

    `chunks` has both states of the arrays in both whose manifests differ, limited to the
    difference.
    """
    net = log_between(log.id, before, after, chunks)
    made, gone = log.new_arrays | log.new_groups, log.deleted_arrays | log.deleted_groups
    updated = log.updated_arrays | log.updated_groups
    old, new = _by_id(before), _by_id(after)
    if not (
        net.new_arrays | net.new_groups <= made
        and net.deleted_arrays | net.deleted_groups <= gone
        and net.updated_arrays | net.updated_groups <= made | updated
        # An amended commit may have made what the amendment deletes.
        and gone - made <= old.keys()
    ):
        return False
    if net.moved_nodes and not log.moved_nodes:
        return False
    for key in chunks.keys() - made:
        first, second = old[key].array, new[key].array
        assert first is not None
        assert second is not None
        if [axis[:2] for axis in first.shape] != [axis[:2] for axis in second.shape]:
            continue  # an array of another shape loses and moves chunks that no log lists
        listed, found = log.updated_chunks.get(key), net.updated_chunks.get(key)
        if (
            found is not None
            and len(found)
            and (listed is None or not has_rows(listed, found).all())
        ):
            return False
    return True


def has_rows(index: Index, rows: Index) -> NDArray[np.bool_]:
    """Which of these rows an index has."""
    if index.shape[1] != rows.shape[1]:
        return np.zeros(len(rows), np.bool_)
    known = set(map(bytes, np.ascontiguousarray(index, np.uint32)))
    asked = map(bytes, np.ascontiguousarray(rows, np.uint32))
    return np.fromiter((row in known for row in asked), np.bool_, len(rows))


def _goes_along(move: Move, went: Mapping[str, str]) -> bool:
    """Whether a node moved only because a group above it moved."""
    group = paths.parent(move.source)
    if group is None or group not in went:
        return False
    return paths.rebase(move.source, group, went[group]) == move.destination


def _log(
    snapshot_id: SnapshotId,
    before: NodeTable,
    after: NodeTable,
    touched: Mapping[NodeId, Index],
    chunks: Mapping[NodeId, tuple[ChunkRefs, ChunkRefs]],
) -> TransactionLog:
    old, new = _by_id(before), _by_id(after)
    both = old.keys() & new.keys()
    updated = {key for key in both if old[key].user_data != new[key].user_data}
    moved = tuple(
        Move(old[key].path, new[key].path, key, NodeType(new[key].array is not None))
        for key in both
        if old[key].path != new[key].path
    )
    updated_chunks = {
        key: np.empty((0, len(array.shape)), np.uint32)
        for key in both
        if (array := new[key].array) is not None and array != old[key].array
    }
    for key, (theirs_before, theirs_after) in chunks.items():
        index = touched[key]
        updated_chunks[key] = index[differs(index, theirs_before, theirs_after)]
    return TransactionLog(
        snapshot_id,
        new_groups=frozenset(key for key in new.keys() - old.keys() if new[key].array is None),
        new_arrays=frozenset(key for key in new.keys() - old.keys() if new[key].array is not None),
        deleted_groups=frozenset(key for key in old.keys() - new.keys() if old[key].array is None),
        deleted_arrays=frozenset(
            key for key in old.keys() - new.keys() if old[key].array is not None
        ),
        updated_arrays=frozenset(key for key in updated if new[key].array is not None),
        updated_groups=frozenset(key for key in updated if new[key].array is None),
        updated_chunks=updated_chunks,
        moved_nodes=moved,
    )


def _by_id(nodes: NodeTable) -> dict[NodeId, Node]:
    return {node.id: node for node in nodes}


_REFERENCE = (
    *("kind", "chunk_id", "offset", "length", "location", "inline"),
    *("etag", "last_modified"),  # a virtual chunk whose source was replaced
)


def differs(index: Index, before: ChunkRefs, after: ChunkRefs) -> NDArray[np.bool_]:
    """The chunks whose references differ between the two states."""
    if before.ndim != index.shape[1] or after.ndim != index.shape[1]:
        return np.ones(len(index), np.bool_)
    old, new = before.lookup.find_many(index), after.lookup.find_many(index)
    found: NDArray[np.bool_] = (old < 0) != (new < 0)
    both = np.flatnonzero((old >= 0) & (new >= 0))
    first = before.take(old[both]).to_arrow(plain=True)
    second = after.take(new[both]).to_arrow(plain=True)
    for name in _REFERENCE:
        equal = pc.equal(first[name], second[name])
        nothing = pc.and_(pc.is_null(first[name]), pc.is_null(second[name]))
        same = pc.or_(pc.fill_null(equal, False), nothing)
        found[both] |= ~mask_from_arrow(same.combine_chunks())
    return found
