"""Where the nodes of a base snapshot have been moved to.

A move changes paths only: ids, metadata and manifests of the nodes stay. Only moved nodes are kept
here, so the cost of a rename in a large hierarchy depends only on the nodes it moves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe import paths
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    NodeNotFoundError,
    SessionStateError,
)
from icefloe.format.snapshot.nodes import Node, NodeTable
from icefloe.ids import NodeId
from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple

if TYPE_CHECKING:
    from icefloe.format import transaction_log
    from icefloe.format.transaction_log import Move
else:
    transaction_log = on_demand("icefloe.format.transaction_log")


class Moved(NamedTuple):
    """A node whose path differs from the base snapshot."""

    origin: str
    id: NodeId
    is_array: bool


class Moves:
    """Moves on top of a base snapshot, in order. Methods that look up nodes take the base."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        """(from, to) of every requested move, to be replayed on another base."""
        self._at: dict[str, Moved] = {}
        self._left: set[str] = set()
        self._order: list[str] = []  # the keys of _at, ascending

    @classmethod
    def at_once(cls, base: NodeTable, goals: Mapping[str, str]) -> Moves:
        """Move all of these nodes at the same time. Every node is listed, also below others."""
        moves = cls()
        for origin, goal in goals.items():
            node = base.find(origin)
            assert node is not None
            moves._at[goal] = Moved(origin, node.id, node.array is not None)
        moves._left = set(goals)
        moves._order = sorted(moves._at)
        return moves

    @property
    def has_any(self) -> bool:
        """Whether a move was requested, even if the node came back."""
        return bool(self.steps or self._at)

    def arrives_at(self, path: str) -> bool:
        """Whether a node was moved to `path`."""
        return path in self._at

    def find(self, base: NodeTable, path: str) -> Node | None:
        """The node that is now at `path`, or None."""
        moved = self._at.get(path)
        if moved is None:
            return None if path in self._left else base.find(path)
        node = base.find(moved.origin)
        assert node is not None
        return replace(node, path=path)

    def paths(self, base: NodeTable, below: str = paths.ROOT) -> list[str]:
        """Paths of all nodes that are now at or below a path, ascending."""
        found = paths_within(base.path, below)
        if not self._at:
            return found
        found = [path for path in found if path not in self._left and path not in self._at]
        return sorted([*found, *paths_within(self._order, below)])

    def origins(self) -> Iterable[str]:
        """Paths in the base from which a node has moved away."""
        return self._left

    def moved(self, base: NodeTable) -> list[Node]:
        """Every moved node, at its new path."""
        nodes = (self.find(base, path) for path in self._order)
        return [node for node in nodes if node is not None]

    def log(self) -> tuple[Move, ...]:
        """The net moves as a transaction log lists them: one entry per node, without nodes that
        came back, ordered by the segments of the new path."""
        kinds = transaction_log.NodeType.GROUP, transaction_log.NodeType.ARRAY
        return tuple(
            transaction_log.Move(moved.origin, path, moved.id, kinds[moved.is_array])
            for path, moved in sorted(self._at.items(), key=lambda item: paths.segments(item[0]))
        )

    def move(self, base: NodeTable, source: str, destination: str) -> None:
        """Move a node and everything below it to a free path.

        Raises:
            NodeNotFoundError: there is no node at `source`.
            AlreadyExistsError: there is one at `destination`.
            SessionStateError: the destination is inside the source, or not in a group.
        """
        self._check(base, source, destination)
        goals = self._goals(base, source, destination)
        self._check_free(base, destination, goals)
        taken = {path: self._take(base, path) for path in goals}
        for path, moved in taken.items():
            goal = goals[path]
            if goal == moved.origin:
                self._left.discard(goal)
                continue
            self._left.add(moved.origin)
            self._at[goal] = moved
            insort(self._order, goal)
        self.steps.append((source, destination))

    def _goals(self, base: NodeTable, source: str, destination: str) -> dict[str, str]:
        """The new paths of a node and everything below it."""
        group = source.removesuffix("/")
        if group == source or self.find(base, group) is not None:
            riders = self.paths(base, source)
            return {path: paths.rebase(path, source, destination) for path in riders}
        # When Icechunk moves a group to `/q/`, its nodes are at `/q/a`, and there is no group `/q`.
        riders = self.paths(base, group)
        goals = {path: paths.rebase(path, group, destination) for path in riders}
        return {**goals, source: destination}

    def _take(self, base: NodeTable, path: str) -> Moved:
        moved = self._at.pop(path, None)
        if moved is not None:
            del self._order[bisect_left(self._order, path)]
            return moved
        node = base.find(path)
        assert node is not None
        return Moved(path, node.id, node.array is not None)

    def _check_free(self, base: NodeTable, destination: str, goals: dict[str, str]) -> None:
        """Refuse a move onto existing nodes. Nodes can exist below `destination` without a
        group."""
        there = set(self.paths(base, destination)) - goals.keys()
        blocked = sorted(there & set(goals.values()))
        if blocked:
            raise AlreadyExistsError(
                f"move cannot overwrite existing node at {blocked[0]!r}: nothing can be moved to "
                f"{destination!r} before that one is moved away",
                ErrorKind.MOVE_WONT_OVERWRITE,
            )

    def _check(self, base: NodeTable, source: str, destination: str) -> None:
        if self.find(base, source) is None:
            raise NodeNotFoundError(f"{source!r}, which is to be moved")
        if paths.is_within(destination, source):
            raise SessionStateError(
                f"cannot move {source!r} into itself or its own descendant {destination!r}",
                ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT,
            )
        if self.find(base, destination) is not None:
            raise AlreadyExistsError(
                f"move cannot overwrite existing node at {destination!r}: {source!r} can go there "
                "when that one is moved away",
                ErrorKind.MOVE_WONT_OVERWRITE,
            )
        above = paths.parent(destination)
        assert above is not None  # the root has no parent, and it contains every source
        group = self.find(base, above)
        if group is None:
            raise SessionStateError(
                f"cannot move to {destination!r}: the destination's parent group {above!r} does "
                f"not exist; create it in a writable_session, then move {source!r}",
                ErrorKind.MOVE_DESTINATION_PARENT_MISSING,
            )
        if group.array is not None:
            raise SessionStateError(
                f"cannot move to {destination!r}: the destination's parent {above!r} is an array, "
                f"not a group; {source!r} stays where it is",
                ErrorKind.MOVE_DESTINATION_PARENT_NOT_GROUP,
            )


def paths_within(ordered: list[str], below: str) -> list[str]:
    """Paths at or below a path: the path itself, and one contiguous range."""
    if below == paths.ROOT:
        return ordered
    at = bisect_left(ordered, below)
    itself = ordered[at : at + 1] if ordered[at : at + 1] == [below] else []
    # "0" is the character after "/": every path that starts with below + "/" sorts before it.
    first, last = bisect_left(ordered, below + "/"), bisect_left(ordered, below + "0")
    return itself + ordered[first:last]
