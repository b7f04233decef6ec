"""Three versions of a hierarchy under the same ids and paths, to be merged.

`base` is where two lines of history part. `ours` is the state that one of them led to, `tip` the
state of the branch that takes our changes. Nodes are the same if their ids are the same, wherever
they were moved. Nodes that both sides created at one path with equal documents count as one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from icefloe import paths
from icefloe.changes.conflicts import Conflict, ConflictType
from icefloe.format.snapshot.nodes import Node, NodeTable
from icefloe.ids import NodeId

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
    if not same:
        return {node.id: node for node in nodes}
    known = (replace(node, id=same.get(node.id, node.id)) for node in nodes)
    return {node.id: node for node in known}


# -- nodes with several ids


def _same_nodes(base: NodeTable, ours: NodeTable, tip: NodeTable) -> dict[NodeId, NodeId]:
    """Nodes of ours that the tip has under another id, at the same path with an equal document."""
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


# -- moves


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
        Conflict(
            ConflictType.ZarrMetadataUpdateOfDeletedGroup
            if node.array is None
            else ConflictType.ZarrMetadataUpdateOfDeletedArray,
            node.path,
            node_id=key,
        )
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
                kind = (
                    ConflictType.DeleteOfUpdatedGroup
                    if node.array is None
                    else ConflictType.DeleteOfUpdatedArray
                )
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


# -- changes that both sides made


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
