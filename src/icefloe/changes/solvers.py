"""Conflict solvers: which version wins when a session and a commit conflict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from icefloe import paths
from icefloe.changes.change_set import ChangeSet, Deleted
from icefloe.changes.conflicts import Conflict, ConflictType
from icefloe.display.shown import NamedNumber
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.records import NamedTuple


class VersionSelection(NamedNumber):
    """Which version wins."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


_DELETIONS = (ConflictType.DeleteOfUpdatedArray, ConflictType.DeleteOfUpdatedGroup)


class ConflictSolver:
    """Settles conflicts. Subclasses return the version that wins from `choose`.

    Chunks that both changed can be settled either way. The deletion of an updated node can only be
    settled in favour of the deletion. All other conflicts cannot be settled, and `choose` is not
    called for them.
    """

    def choose(self, conflict: Conflict) -> VersionSelection:
        """The version to use. A commit is settled only if all of its conflicts are.

        Args:
            conflict: what contradicts.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to choose")


class ConflictDetector(ConflictSolver):
    """Settles no conflict: a rebase succeeds only if there are none."""

    def choose(self, conflict: Conflict) -> VersionSelection:
        """Never chooses.

        Args:
            conflict: what contradicts.
        """
        return VersionSelection.Fail


class BasicConflictSolver(ConflictSolver):
    """One rule for chunks that both changed, and for nodes we delete and they updated."""

    def __init__(
        self,
        *,
        on_chunk_conflict: VersionSelection = VersionSelection.UseOurs,
        fail_on_delete_of_updated_array: bool = False,
        fail_on_delete_of_updated_group: bool = False,
    ) -> None:
        if not isinstance(on_chunk_conflict, VersionSelection):
            raise TypeError(
                f"on_chunk_conflict is {on_chunk_conflict!r}, expected a VersionSelection"
            )
        self.on_chunk_conflict = on_chunk_conflict
        self.fail_on_delete_of_updated_array = bool(fail_on_delete_of_updated_array)
        self.fail_on_delete_of_updated_group = bool(fail_on_delete_of_updated_group)

    def choose(self, conflict: Conflict) -> VersionSelection:
        """The version that the rules select.

        Args:
            conflict: what contradicts.
        """
        if conflict.conflict_type == ConflictType.ChunkDoubleUpdate:
            return self.on_chunk_conflict
        fails = (
            self.fail_on_delete_of_updated_array
            if conflict.conflict_type == ConflictType.DeleteOfUpdatedArray
            else self.fail_on_delete_of_updated_group
        )
        return VersionSelection.Fail if fails else VersionSelection.UseOurs

    def __repr__(self) -> str:
        return (
            f"BasicConflictSolver(on_chunk_conflict={self.on_chunk_conflict}, "
            f"fail_on_delete_of_updated_array={self.fail_on_delete_of_updated_array}, "
            f"fail_on_delete_of_updated_group={self.fail_on_delete_of_updated_group})"
        )


class Decision(NamedTuple):
    """A conflict and the version that wins."""

    conflict: Conflict
    version: VersionSelection


def decide(solver: ConflictSolver, conflicts: Iterable[Conflict]) -> list[Decision]:
    """Ask the solver about every conflict that can be settled."""
    return [Decision(conflict, _choice(solver, conflict)) for conflict in conflicts]


def _choice(solver: ConflictSolver, conflict: Conflict) -> VersionSelection:
    if conflict.conflict_type == ConflictType.ChunkDoubleUpdate:
        return solver.choose(conflict)
    if conflict.conflict_type in _DELETIONS:
        chosen = solver.choose(conflict)
        return chosen if chosen == VersionSelection.UseOurs else VersionSelection.Fail
    return VersionSelection.Fail


def apply_decisions(changes: ChangeSet, decisions: Sequence[Decision], after: NodeTable) -> None:
    """Adapt `changes` to fit on top of `after`."""
    for conflict, version in decisions:
        if conflict.conflict_type in _DELETIONS:
            _delete_again(changes, conflict.path, after)
        elif version == VersionSelection.UseTheirs and conflict.node_id is not None:
            chunks = conflict.chunk_index
            assert chunks is not None
            changes.chunks[conflict.node_id] = changes.chunks[conflict.node_id].without(chunks)


def _delete_again(changes: ChangeSet, group: str, after: NodeTable) -> None:
    """Delete the current nodes: a replacement of the deleted node, and nodes added below it."""
    for row, path in enumerate(after.path):
        if paths.is_within(path, group):
            node = after.node(row)
            changes.deleted[path] = Deleted(node.id, node.array is not None)
