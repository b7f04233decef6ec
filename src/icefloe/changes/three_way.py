"""A three-way merge of snapshots, with the conflicts and solvers of a rebase.

The difference between the base and our version becomes a change set. The difference between the
base and the tip becomes the log of one commit. Then `find_conflicts` compares them, as it compares
a session with a newer commit. What both sides changed in the same way is no conflict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from icefloe.changes.align_nodes import Aligned
from icefloe.changes.change_set import ChangeSet, Deleted, NodeUpdate
from icefloe.changes.conflicts import Conflict, find_conflicts
from icefloe.changes.divergence import differs, has_rows, net_log
from icefloe.changes.moves import Moves
from icefloe.changes.solvers import ConflictSolver, VersionSelection, apply_decisions, decide
from icefloe.format.columns.chunk_index import sort_rows
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.snapshot.nodes import Node, NodeTable
from icefloe.ids import NodeId, SnapshotId

ChunkPairs = Mapping[NodeId, tuple[ChunkRefs, ChunkRefs]]
"""Two states of arrays, limited to manifests that only one of them has."""


def our_changes(versions: Aligned, chunks: ChunkPairs) -> ChangeSet:
    """What leads from the base to our version. `chunks` has both states of changed arrays."""
    changes = ChangeSet()
    for key, node in versions.ours.items():
        before = versions.base.get(key)
        bare = None if node.array is None else replace(node.array, manifests=())
        if before is None:
            changes.new[node.path] = replace(node, array=bare)
        elif before.user_data != node.user_data:
            changes.updated[key] = NodeUpdate(node.path, node.user_data, bare)
        if key in chunks:
            _edit(changes, node, *chunks[key])
    for key, node in versions.base.items():
        if key not in versions.ours:
            changes.deleted[node.path] = Deleted(key, node.array is not None)
    return changes


def _edit(changes: ChangeSet, node: Node, before: ChunkRefs, after: ChunkRefs) -> None:
    both = np.concatenate([before.index, after.index])
    both = both[sort_rows(both)]
    touched = both[differs(both, before, after)]
    rows = after.lookup.find_many(touched)
    if len(touched):
        changes.edits(node).set_table(after.take(rows[rows >= 0]), touched[rows < 0])


def drop_shared_chunks(changes: ChangeSet, ours: ChunkPairs, theirs: ChunkPairs) -> None:
    """Forget edits of chunks that the tip has already."""
    for key in list(changes.chunks):
        if key in theirs:
            touched, (before, after) = changes.touched_chunks(key), theirs[key]
            both = touched[differs(touched, before, after)]
            shared = both[~differs(both, ours[key][1], after)]
            changes.chunks[key] = changes.chunks[key].without(shared)
    _forget_nothing(changes)


def drop_settled(changes: ChangeSet, made: ChangeSet, later: ChangeSet) -> None:
    """Forget what another base has `made` and we have not changed since (`later`).

    Both sides contain that base. Where the tip differs, it has changed it since.
    """
    for path in made.new.keys() - later.new.keys() - later.deleted.keys():
        if made.new[path].id not in later.updated:
            changes.new.pop(path, None)
    for key in made.updated.keys() - later.updated.keys():
        changes.updated.pop(key, None)
    for path in made.deleted.keys() - later.new.keys():
        changes.deleted.pop(path, None)
    for key in changes.chunks.keys() & made.chunks.keys():
        touched = changes.touched_chunks(key)
        settled = touched[has_rows(made.touched_chunks(key), touched)]
        if key in later.chunks:
            settled = settled[~has_rows(later.touched_chunks(key), settled)]
        changes.chunks[key] = changes.chunks[key].without(settled)
    _forget_nothing(changes)


def _forget_nothing(changes: ChangeSet) -> None:
    for key in [key for key in changes.chunks if not len(changes.touched_chunks(key))]:
        del changes.chunks[key]


def merge_three_ways(
    versions: Aligned,
    changes: ChangeSet,
    theirs: ChunkPairs,
    tip: NodeTable,
    tip_id: SnapshotId,
    solver: ConflictSolver,
) -> tuple[ChangeSet, list[Conflict]]:
    """The changes to commit on top of the tip, or the conflicts that the solver did not settle."""
    before = NodeTable.from_nodes(versions.base.values())
    after = NodeTable.from_nodes(versions.tip.values())
    known = {key: pair for key, pair in theirs.items() if key in changes.edited}
    log = net_log(tip_id, before, after, changes, known)
    decisions = decide(solver, find_conflicts(changes, log, before, after))
    if any(decision.version == VersionSelection.Fail for decision in decisions):
        return changes, [decision.conflict for decision in decisions]
    merged = changes.copy()
    apply_decisions(merged, decisions, after)
    _forget_nothing(merged)
    return _on_tip(versions, merged, tip), []


def _on_tip(versions: Aligned, changes: ChangeSet, tip: NodeTable) -> ChangeSet:
    """The same changes with our moves, on top of the tip as it is stored."""
    if not versions.goals and not versions.replaced:
        return changes
    origin = versions.origins
    deleted = {origin.get(path, path): gone for path, gone in changes.deleted.items()}
    for path, node in versions.replaced.items():
        deleted[path] = Deleted(node.id, node.array is not None)
    changes.deleted = deleted
    goals = {old: new for old, new in versions.goals.items() if old not in deleted}
    changes.moves = Moves.at_once(tip, goals)
    return changes
