"""The three-way merge behind cherry-pick, undo and merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from icefloe import paths
from icefloe.changes.change_set import ChangeSet, Deleted, Moves, NodeUpdate
from icefloe.changes.conflicts import (
    DELETE_OF_UPDATED,
    UPDATE_OF_DELETED,
    Conflict,
    ConflictSolver,
    ConflictType,
    VersionSelection,
    apply_decisions,
    decide,
    differs,
    find_conflicts,
    has_rows,
    net_log,
)
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.chunk_index import sort_rows
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import Node, NodeTable
from icefloe.ids import NodeId, SnapshotId

# -- Merging the changes of a fork into the session it was forked from.
#
# This is a three-way merge of the nodes the fork started from, the fork's changes, and the
# session's current changes. A node that only one side changed takes that side's version. If both
# sides changed a node in different ways, the merge is refused. Several forks may change different
# nodes, or different chunks of one array. If two forks write the same chunk, the one merged last
# wins without a warning.


def merge_changes(
    ours: ChangeSet, base: NodeTable, fork: ChangeSet, fork_base: NodeTable
) -> ChangeSet:
    """Our changes with those of a fork on top. The arguments are not modified.

    Args:
        ours: changes of the session that is merged into.
        base: nodes of that session's snapshot.
        fork: changes of the fork.
        fork_base: nodes of the fork's snapshot: ours when it was forked, changes included.

    Raises:
        SessionStateError: kind `merge-failed`; both sides changed the same node.
    """
    merge = _Merge(ours.copy(), base, fork, fork_base)
    merge.delete_nodes()
    merge.create_nodes()
    merge.update_nodes()
    merge.edit_chunks()
    merge.check_places()
    merge.check_grids()
    return merge.result


class _Merge:
    def __init__(
        self, result: ChangeSet, base: NodeTable, fork: ChangeSet, fork_base: NodeTable
    ) -> None:
        self.result = result
        self.base = base
        self.fork = fork
        self.fork_base = fork_base
        self._gone = {path for path in fork.deleted if self._mine(path) is None}
        """The paths that both sides deleted. The fork's deletions are not in the result yet."""

    def delete_nodes(self) -> None:
        for path, gone in self.fork.deleted.items():
            mine = self._mine(path)
            if mine is None or mine == self.fork.new.get(path):
                continue  # both deleted it, or this fork was merged before
            if mine.id != gone.id:
                _refuse(path, "the fork deleted it, the session replaced it by another node")
            before = self.fork_base.find(path)
            is_edited = mine.id in self.result.edited
            if is_edited or before is None or mine.user_data != before.user_data:
                _refuse(path, "the fork deleted it, the session changed it")
            self.result.drop(path, gone)
        for path, gone in self.fork.deleted.items():
            if gone.is_array:
                continue
            for left in self._below(path):
                if self.fork_base.find(left) is None:
                    _refuse(left, f"the session created it, the fork deleted {path!r} above it")

    def create_nodes(self) -> None:
        for path, node in self.fork.new.items():
            mine = self._mine(path)
            if mine is not None and mine.id == node.id and mine.user_data == node.user_data:
                continue  # merged before
            if mine is not None:
                _refuse(path, "both created it")
            if path in self._gone:
                _refuse(path, "the session deleted it, the fork replaced it by another node")
            self.result.new[path] = node

    def update_nodes(self) -> None:
        for node_id, update in self.fork.updated.items():
            mine = self._mine(update.path)
            if mine is None or mine.id != node_id:
                _refuse(update.path, "the fork changed its metadata, the session has no such node")
            before = self.fork_base.find(update.path)
            if mine.user_data == update.user_data:
                continue
            if before is None or mine.user_data != before.user_data:
                _refuse(update.path, "both changed its metadata")
            if update.path in self.result.new:
                changed = replace(mine, user_data=update.user_data, array=update.array)
                self.result.new[update.path] = changed
            else:
                self.result.updated[node_id] = update

    def edit_chunks(self) -> None:
        for node_id, edits in self.fork.chunks.items():
            path = self.fork.chunk_path(node_id)
            mine = self._mine(path)
            if mine is None or mine.id != node_id or mine.array is None:
                _refuse(path, "the fork wrote chunks of it, the session has no such array")
            if len(mine.array.shape) != edits.ndim:
                _refuse(path, "the fork wrote chunks of it, the session changed its dimensions")
            together = self.result.edits(mine).copy()
            for refs, deleted in edits.layers():
                together.set_table(refs, deleted)
            self.result.chunks[node_id] = together

    def check_places(self) -> None:
        """Check that nodes which one side created are still in a group after the other's
        changes."""
        for path, node in self.fork.new.items():
            above = paths.parent(path)
            if above is None:
                continue
            if self._mine(above) is None and self._theirs(above) is not None:
                _refuse(path, f"the fork created it, the session deleted {above!r} above it")
            for group in paths.ancestors(path):
                if self._is_array(self._mine(group)) and not self._is_array(self._theirs(group)):
                    _refuse(path, f"the fork created it, in the session {group!r} is an array")
            if node.array is None:
                continue
            for below in self._below(path):
                if self._theirs(below) is None:
                    _refuse(below, f"the session created it, in the fork {path!r} is an array")

    def check_grids(self) -> None:
        """Check that no chunk of one side is lost because the other side shrank the array."""
        arrays = {node_id: update.path for node_id, update in self.fork.updated.items()}
        arrays.update((node_id, self.fork.chunk_path(node_id)) for node_id in self.fork.chunks)
        for node_id, path in arrays.items():
            edits, mine = self.result.chunks.get(node_id), self._mine(path)
            if edits is None or mine is None or mine.array is None:
                continue
            sides = self.fork_base.find(path), self._theirs(path)
            grids = {_grid(node) for node in sides if node is not None}
            if grids == {_grid(mine)}:
                continue
            if edits.ndim != len(mine.array.shape):
                _refuse(path, "one side wrote chunks of it, the other changed its dimensions")
            refs, _ = edits.columns()
            outside = (refs.index >= np.array(_grid(mine), np.uint64)).any(axis=1)
            if outside.any():
                at = tuple(refs.index[int(np.flatnonzero(outside)[0])].tolist())
                _refuse(path, f"one side wrote chunk {at}, the other made the array smaller")

    @staticmethod
    def _is_array(node: Node | None) -> bool:
        return node is not None and node.array is not None

    def _theirs(self, path: str) -> Node | None:
        return self.fork.find(self.fork_base, path)

    def _mine(self, path: str) -> Node | None:
        return self.result.find(self.base, path)

    def _below(self, path: str) -> list[str]:
        return [below for below in self.result.paths(self.base, path) if below != path]


def _grid(node: Node) -> tuple[int, ...]:
    return () if node.array is None else tuple(side.num_chunks for side in node.array.shape)


def _refuse(path: str, problem: str) -> NoReturn:
    raise SessionStateError(
        f"the fork cannot be merged, node {path!r}: {problem}; nothing was merged",
        ErrorKind.MERGE_FAILED,
    )


# -- Three versions of a hierarchy under the same ids and paths, to be merged.
#
# `base` is where two lines of history part. `ours` is the state that one of them led to, `tip`
# the state of the branch that takes our changes. Nodes are the same if their ids are the same,
# wherever they were moved. Nodes that both sides created at one path with equal documents count
# as one node.


Nodes = dict[NodeId, Node]


class CannotAlignError(Exception):
    """Conflicts that no solver can settle."""

    def __init__(self, conflicts: list[Conflict]) -> None:
        super().__init__(conflicts)
        self.conflicts = conflicts


@dataclass(slots=True)
class Aligned:
    """The three versions, each node under the id that it has at the tip.

    In all of them nodes are at the paths that they have after the moves of both sides. So what is
    left to compare are documents and chunks, and nodes that were created or deleted.
    """

    base: Nodes
    ours: Nodes
    tip: Nodes
    renamed: Mapping[NodeId, NodeId] = field(default_factory=dict)
    """The id in the stored base and in our stored version of nodes that have another id at the
    tip."""
    goals: dict[str, str] = field(default_factory=dict)
    """Our moves of nodes at the tip: from path to path, also of nodes below moved groups."""
    origins: dict[str, str] = field(default_factory=dict)
    """The reverse, also of nodes that we deleted."""
    replaced: dict[str, Node] = field(default_factory=dict)
    """Nodes at the tip that we deleted, at paths to which we moved others."""

    def stored(self, node: Node) -> Node:
        """A node of the base or of our version under the id that its manifests use."""
        return replace(node, id=self.renamed.get(node.id, node.id))

    def stored_base(self, key: NodeId) -> Node | None:
        """A node of the base under the id that its manifests use, or None."""
        node = self.base.get(key)
        return None if node is None else self.stored(node)


def align(base: NodeTable, ours: NodeTable, tip: NodeTable) -> Aligned:
    """Give the same nodes the same ids and paths in all three versions.

    A change that both sides made counts as made in the base.

    Raises:
        CannotAlignError: the moves of the two sides, or our moves and their nodes, do not fit.
    """
    same = _same_nodes(base, ours, tip)
    renamed = {there: here for here, there in same.items()}
    versions = Aligned(_by_id(base, same), _by_id(ours, same), _by_id(tip, {}), renamed)
    _follow_moves(versions)
    _share_changes(versions)
    return versions


def _by_id(nodes: NodeTable, same: Mapping[NodeId, NodeId]) -> Nodes:
    known = (replace(node, id=same[node.id]) if node.id in same else node for node in nodes)
    return {node.id: node for node in known}


def _same_nodes(base: NodeTable, ours: NodeTable, tip: NodeTable) -> dict[NodeId, NodeId]:
    """Our nodes that the tip has under another id, at the same path with an equal document."""
    here = {node.id for table in (base, ours) for node in table}
    there = {node.id for node in tip}
    same: dict[NodeId, NodeId] = {}
    for node in tip:
        mine, before = ours.find(node.path), base.find(node.path)
        if node.id in here or mine is None or mine.id in there or not _is_like(mine, node):
            continue
        if before is not None and before.id != mine.id:
            continue  # replaced on our side, so it is another node
        if node.user_data in (mine.user_data, None if before is None else before.user_data):
            same[mine.id] = node.id
    return same


def _is_like(one: Node, other: Node) -> bool:
    if one.array is None or other.array is None:
        return one.array is None and other.array is None
    return len(one.array.shape) == len(other.array.shape)


def _follow_moves(versions: Aligned) -> None:
    """Put the nodes of all versions where they are after the moves of both sides."""
    base, ours, tip = versions.base, versions.ours, versions.tip
    our_moves, their_moves = _moves(base, ours), _moves(base, tip)
    if not our_moves and not their_moves:
        return
    if our_moves.items() <= their_moves.items():
        _forget_replaced(versions, set(their_moves.values()))
        versions.base = _moved(base, their_moves, tip)
        others = {old: new for old, new in their_moves.items() if old not in our_moves}
        versions.ours = _moved(ours, others, tip)
    elif not their_moves:
        _require_movable(our_moves, versions)
        versions.base = _moved(base, our_moves, ours)
        versions.tip = _moved(tip, our_moves, ours)
        for key, node in tip.items():
            goal = versions.tip[key].path
            if goal != node.path:
                versions.origins[goal] = node.path
                if key in ours or key not in base:
                    versions.goals[node.path] = goal
        _replace_deleted(versions, tip)
        _require_groups(our_moves, versions)
    else:
        raise CannotAlignError([Conflict(ConflictType.MoveOperationCannotBeRebased, paths.ROOT)])
    for nodes in (versions.base, versions.ours, versions.tip):
        _require_one_each(nodes.values())


def _moves(before: Nodes, after: Nodes) -> dict[str, str]:
    """Old to new path of every node that both have, at different places."""
    return {
        node.path: after[key].path
        for key, node in before.items()
        if key in after and after[key].path != node.path
    }


def _moved(nodes: Nodes, moves: Mapping[str, str], known: Nodes) -> Nodes:
    """The nodes at their new places: where `known` has them, or along with the group above."""
    found = {}
    for key, node in nodes.items():
        path = known[key].path if key in known else _along(node.path, moves)
        found[key] = node if path == node.path else replace(node, path=path)
    return found


def _along(path: str, moves: Mapping[str, str]) -> str:
    """The path after the move of the nearest group above that has moved."""
    for group in (path, *paths.ancestors(path)):
        if group in moves:
            return paths.rebase(path, group, moves[group])
    return path


def _require_movable(moves: Mapping[str, str], versions: Aligned) -> None:
    """Refuse our moves of nodes that they deleted."""
    gone = [
        Conflict(UPDATE_OF_DELETED[node.array is not None], node.path, node_id=key)
        for key, node in versions.base.items()
        if node.path in moves and key in versions.ours and key not in versions.tip
    ]
    if gone:
        raise CannotAlignError(gone)


def _forget_replaced(versions: Aligned, arrivals: set[str]) -> None:
    """Forget nodes that they deleted to move others to their places, if we left them alone."""
    for key, node in list(versions.base.items()):
        mine = versions.ours.get(key)
        if key not in versions.tip and node.path in arrivals and (mine is None or mine == node):
            del versions.base[key]
            versions.ours.pop(key, None)


def _replace_deleted(versions: Aligned, tip: Nodes) -> None:
    """Take nodes away that we deleted to move others to their places, if they left them alone."""
    arrivals = set(versions.goals.values())
    for key, node in list(versions.base.items()):
        if key in versions.ours or node.path not in arrivals:
            continue
        there = versions.tip.pop(key, None)
        if there is not None:
            if replace(there, path=node.path) != node:
                kind = DELETE_OF_UPDATED[node.array is not None]
                raise CannotAlignError([Conflict(kind, tip[key].path, node_id=key)])
            versions.replaced[tip[key].path] = there
        del versions.base[key]


def _require_groups(moves: Mapping[str, str], versions: Aligned) -> None:
    """Refuse moves into groups that they deleted or replaced with an array."""
    kinds = {node.path: node.array is None for node in versions.tip.values()}
    created = {node.path for key, node in versions.ours.items() if key not in versions.base}
    above = {paths.parent(goal) for goal in moves.values()} - {None}
    unfit = [group for group in sorted(map(str, above)) if not kinds.get(group, group in created)]
    if unfit:
        conflicts = [Conflict(ConflictType.NewNodeInInvalidGroup, group) for group in unfit]
        raise CannotAlignError(conflicts)


def _require_one_each(nodes: Iterable[Node]) -> None:
    seen, twice = set[str](), set[str]()
    for node in nodes:
        (twice if node.path in seen else seen).add(node.path)
    if twice:
        kind = ConflictType.NewNodeConflictsWithExistingNode
        raise CannotAlignError([Conflict(kind, path) for path in sorted(twice)])


def _share_changes(versions: Aligned) -> None:
    base, ours, tip = versions.base, versions.ours, versions.tip
    shared = [
        key
        for key in ours.keys() & tip.keys()
        if (ours[key].user_data, ours[key].path) == (tip[key].user_data, tip[key].path)
    ]
    # A node that both deleted. If only they replaced it, our deletion is about their node.
    taken = {node.path for node in tip.values()} - {tip[key].path for key in shared}
    for key in base.keys() - ours.keys() - tip.keys():
        if base[key].path not in taken:
            del base[key]
    for key in shared:
        theirs, before = tip[key], base.get(key)
        if before is None or before.user_data != theirs.user_data:
            array = theirs.array
            if array is not None:
                known = None if before is None else before.array
                array = replace(array, manifests=() if known is None else known.manifests)
            base[key] = replace(theirs, array=array)


# -- A three-way merge of snapshots, with the conflicts and solvers of a rebase.
#
# The difference between the base and our version becomes a change set. The difference between the
# base and the tip becomes the log of one commit. Then `find_conflicts` compares them, as it
# compares a session with a newer commit. What both sides changed in the same way is no conflict.


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
