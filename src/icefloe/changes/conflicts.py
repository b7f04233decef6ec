"""What two writers did to the same things, and who wins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe import paths
from icefloe.changes.change_set import ChangeSet, Deleted, Moves
from icefloe.display import NamedNumber, Picture, Shown
from icefloe.errors import AlreadyExistsError, NodeNotFoundError, SessionStateError
from icefloe.format.chunk_index import Index, SortedIndex, sort_rows
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.columns import mask_from_arrow
from icefloe.format.nodes import Node, NodeTable
from icefloe.format.transaction_log import Move, NodeType, TransactionLog
from icefloe.ids import NodeId, SnapshotId

# -- Conflicts between the changes of a session and a concurrent commit.
#
# `find_conflicts` compares the uncommitted changes with one transaction log. Chunks are compared
# as sorted columns, so a log of a million chunks takes a fraction of a second.


class ConflictType(Enum):
    """Kinds of conflicts. "New", "update" and "delete" name the session's change."""

    NewNodeConflictsWithExistingNode = 1
    NewNodeInInvalidGroup = 2
    ZarrMetadataDoubleUpdate = 3
    ZarrMetadataUpdateOfDeletedArray = 4
    ZarrMetadataUpdateOfDeletedGroup = 5
    ChunkDoubleUpdate = 6
    ChunksUpdatedInDeletedArray = 7
    ChunksUpdatedInUpdatedArray = 8
    DeleteOfUpdatedArray = 9
    DeleteOfUpdatedGroup = 10
    MoveOperationCannotBeRebased = 11

    def __str__(self) -> str:
        words = "".join(f" {char.lower()}" if char.isupper() else char for char in self.name)
        return words.strip().capitalize()

    def __repr__(self) -> str:
        return self.name

    def __int__(self) -> int:
        return int(self.value)


UPDATE_OF_DELETED = {
    True: ConflictType.ZarrMetadataUpdateOfDeletedArray,
    False: ConflictType.ZarrMetadataUpdateOfDeletedGroup,
}
DELETE_OF_UPDATED = {
    True: ConflictType.DeleteOfUpdatedArray,
    False: ConflictType.DeleteOfUpdatedGroup,
}
"""By whether the node is an array."""


class Conflict(Shown):
    """One conflict between a session and a commit."""

    __slots__ = ("_chunks", "_path", "_reason", "_type", "node_id")

    shown_in = "conflicts"

    def __init__(
        self,
        conflict_type: ConflictType,
        path: str,
        conflicted_chunks: Sequence[Sequence[int]] | Index | None = None,
        *,
        node_id: NodeId | None = None,
        reason: str = "",
    ) -> None:
        self._type = conflict_type
        self._path = path
        self._chunks = conflicted_chunks
        self._reason = reason
        self.node_id = node_id

    @property
    def conflict_type(self) -> ConflictType:
        """The kind of the conflict."""
        return self._type

    @property
    def path(self) -> str:
        """The path of the node in conflict."""
        return self._path

    @property
    def conflicted_chunks(self) -> list[list[int]] | None:
        """The indices of the chunks that both changed; None if the conflict is not about chunks."""
        if self._chunks is None:
            return None
        return [[int(at) for at in row] for row in self._chunks]

    @property
    def chunk_index(self) -> Index | None:
        """The same as a matrix, one row per chunk."""
        return None if self._chunks is None else np.array(self._chunks, np.uint32)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Conflict):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self._type, self._path))

    def _key(self) -> tuple[Any, ...]:
        return self._type, self._path, self.conflicted_chunks

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Conflict, reason=self._reason), self._key()

    def __str__(self) -> str:
        what = self._reason or _SENTENCES[self._type]
        if self._chunks is not None:
            rows = ["/".join(map(str, row)) or "-" for row in self._chunks[:_SHOWN_CHUNKS]]
            more = len(self._chunks) - _SHOWN_CHUNKS
            what += f" {', '.join(rows)}{f' and {more:,} more' if more > 0 else ''}"
        return f"{self._path}: {what}"

    def _picture_(self) -> Picture:
        shown = "None"
        if self._chunks is not None:
            rows = [str([int(at) for at in row]) for row in self._chunks[:_SHOWN_CHUNKS]]
            more = len(self._chunks) - _SHOWN_CHUNKS
            shown = f"[{', '.join(rows)}]{f' and {more} more' if more > 0 else ''}"
        fields = [("conflict_type", self._type.name), ("path", self._path)]
        return Picture(self._title_(), [*fields, ("conflicted_chunks", shown)])


_SHOWN_CHUNKS = 10
_SENTENCES = {
    ConflictType.NewNodeConflictsWithExistingNode: "both sides created it",
    ConflictType.NewNodeInInvalidGroup: (
        "nodes were created below it, where the branch has no group any more"
    ),
    ConflictType.ZarrMetadataDoubleUpdate: "both sides changed its metadata",
    ConflictType.ZarrMetadataUpdateOfDeletedArray: (
        "its metadata was changed, and the branch deleted the array"
    ),
    ConflictType.ZarrMetadataUpdateOfDeletedGroup: (
        "its metadata was changed, and the branch deleted the group"
    ),
    ConflictType.ChunkDoubleUpdate: "both sides wrote chunks",
    ConflictType.ChunksUpdatedInDeletedArray: (
        "chunks were written, and the branch deleted the array"
    ),
    ConflictType.ChunksUpdatedInUpdatedArray: (
        "chunks were written, and the branch changed the array's metadata"
    ),
    ConflictType.DeleteOfUpdatedArray: "it was deleted, and the branch changed the array",
    ConflictType.DeleteOfUpdatedGroup: "it was deleted, and the branch changed the group",
    ConflictType.MoveOperationCannotBeRebased: (
        "the branch moved nodes, and other changes cannot be brought after a move"
    ),
}


def changes_nodes(log: TransactionLog) -> bool:
    """Whether a commit created, deleted or moved nodes."""
    lists = log.new_groups, log.new_arrays, log.deleted_groups, log.deleted_arrays
    return any(lists) or bool(log.moved_nodes)


def find_conflicts(
    changes: ChangeSet, log: TransactionLog, before: NodeTable, after: NodeTable
) -> list[Conflict]:
    """The conflicts between `changes` and the commit with this log.

    `before` has the nodes that the changes are based on, `after` the nodes after the commit.
    """
    if log.moved_nodes:
        return [Conflict(ConflictType.MoveOperationCannotBeRebased, paths.ROOT)]
    if changes.moves.steps:
        return [] if before is after else _moves(changes.moves, before, after)
    return [
        *_new_nodes(changes, before, after),
        *_updates(changes, log),
        *_chunks(changes, log),
        *_deletions(changes, log, before, after),
    ]


def _moves(moves: Moves, before: NodeTable, after: NodeTable) -> list[Conflict]:
    """The first of our moves that is no longer possible. Later moves may depend on it."""
    first, again = Moves(), Moves()
    for source, destination in moves.steps:
        node = first.find(before, source)
        is_array = node is not None and node.array is not None
        is_free = not first.paths(before, destination)
        first.move(before, source, destination)
        there = again.paths(after, destination)
        if is_array and is_free and there and there[0] != destination:
            return [Conflict(ConflictType.NewNodeInInvalidGroup, destination)]
        try:
            again.move(after, source, destination)
        except NodeNotFoundError:
            return [Conflict(UPDATE_OF_DELETED[is_array], source)]
        except AlreadyExistsError:
            return [Conflict(ConflictType.NewNodeConflictsWithExistingNode, destination)]
        except SessionStateError:
            group = paths.parent(destination) or paths.ROOT
            return [Conflict(ConflictType.NewNodeInInvalidGroup, group)]
    return []


def moved_again(moves: Moves, nodes: NodeTable) -> Moves:
    """The same moves on top of other nodes, on which they are possible."""
    again = Moves()
    for source, destination in moves.steps:
        again.move(nodes, source, destination)
    return again


def _new_nodes(changes: ChangeSet, before: NodeTable, after: NodeTable) -> Iterator[Conflict]:
    if not changes.new or before is after:
        return
    here, there = set(after.path), set(before.path)
    new = sorted(changes.new)
    for path in new:
        if path in here and path not in changes.deleted:
            yield Conflict(ConflictType.NewNodeConflictsWithExistingNode, path)
    gone = there - here
    for path in new:
        for group in _unfit_groups(path, changes, after, gone):
            yield Conflict(ConflictType.NewNodeInInvalidGroup, group)
    # Nodes of the commit below a path where the session has a new array.
    arrays = {path for path, node in changes.new.items() if node.array is not None}
    above = {group for path in here - there for group in paths.ancestors(path)}
    for path in sorted(arrays & above):
        yield Conflict(ConflictType.NewNodeInInvalidGroup, path)


def _unfit_groups(path: str, changes: ChangeSet, after: NodeTable, gone: set[str]) -> Iterator[str]:
    """Paths above a new node where the commit created an array or deleted the group."""
    for group in paths.ancestors(path):
        if group in changes.new or group in changes.deleted:
            continue  # the session's own change
        node = after.find(group)
        if group in gone or (node is not None and node.array is not None):
            yield group


def _updates(changes: ChangeSet, log: TransactionLog) -> Iterator[Conflict]:
    ours = sorted(changes.updated.items(), key=lambda item: item[1].path)
    is_array = {node_id: update.array is not None for node_id, update in ours}
    for wants_array, theirs in ((True, log.updated_arrays), (False, log.updated_groups)):
        for node_id, update in ours:
            if is_array[node_id] == wants_array and node_id in theirs:
                yield Conflict(ConflictType.ZarrMetadataDoubleUpdate, update.path, node_id=node_id)
    for wants_array, theirs in ((True, log.deleted_arrays), (False, log.deleted_groups)):
        for node_id, update in ours:
            if node_id in theirs:
                yield Conflict(UPDATE_OF_DELETED[wants_array], update.path, node_id=node_id)


def _chunks(changes: ChangeSet, log: TransactionLog) -> Iterator[Conflict]:
    yield from _chunks_of_another_rank(changes, log)
    theirs = log.deleted_arrays | log.updated_arrays | log.updated_chunks.keys()
    ours = sorted((changes.chunk_path(key), key) for key in changes.edited & theirs)
    for kind, nodes in (
        (ConflictType.ChunksUpdatedInDeletedArray, log.deleted_arrays),
        (ConflictType.ChunksUpdatedInUpdatedArray, log.updated_arrays),
    ):
        for path, node_id in ours:
            if node_id in nodes:
                yield Conflict(kind, path, node_id=node_id)
    for path, node_id in ours:
        if node_id in log.updated_chunks:
            ours_here, theirs_here = changes.touched_chunks(node_id), log.updated_chunks[node_id]
            if ours_here.shape[1] != theirs_here.shape[1]:
                continue  # reported as another kind of conflict
            both = common_rows(ours_here, theirs_here)
            if len(both):
                yield Conflict(ConflictType.ChunkDoubleUpdate, path, both, node_id=node_id)


def _chunks_of_another_rank(changes: ChangeSet, log: TransactionLog) -> Iterator[Conflict]:
    """Arrays whose number of dimensions we changed while they wrote the first chunks."""
    for node_id in sorted(changes.updated.keys() & log.updated_chunks.keys()):
        update = changes.updated[node_id]
        ndim = log.updated_chunks[node_id].shape[1]
        if update.array is not None and len(update.array.shape) != ndim:
            yield Conflict(ConflictType.ChunksUpdatedInUpdatedArray, update.path, node_id=node_id)


def _deletions(
    changes: ChangeSet, log: TransactionLog, before: NodeTable, after: NodeTable
) -> Iterator[Conflict]:
    if not changes.deleted:
        return
    touched = log.updated_arrays | log.updated_groups | log.updated_chunks.keys()
    grown = _grown_groups(changes, before, after)
    found: dict[bool, list[Conflict]] = {True: [], False: []}
    for path, gone in sorted(changes.deleted.items()):
        node = after.find(path)
        if node is None:
            continue  # deleted by both
        if node.id in touched or node.id != gone.id or path in grown:
            is_array = node.array is not None
            found[is_array].append(Conflict(DELETE_OF_UPDATED[is_array], path, node_id=node.id))
    yield from found[True]
    yield from found[False]


def _grown_groups(changes: ChangeSet, before: NodeTable, after: NodeTable) -> set[str]:
    """Groups that we delete and in which they created nodes: the nearest group of each new node."""
    if before is after:
        return set()
    grown = set()
    for path in set(after.path).difference(before.path):
        if path not in changes.deleted:
            above = (group for group in paths.ancestors(path) if group in changes.deleted)
            grown.update(list(above)[:1])
    return grown


def common_rows(ours: Index, theirs: Index) -> Index:
    """The rows that two matrices with ascending rows have in common."""
    if not len(ours) or not len(theirs) or ours.shape[1] != theirs.shape[1]:
        return ours[:0]
    few, many = (ours, theirs) if len(ours) <= len(theirs) else (theirs, ours)
    return few[SortedIndex(many).find_many(few) >= 0]


# -- Conflict solvers: which version wins when a session and a commit conflict.


class VersionSelection(NamedNumber):
    """Which version wins."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


class ConflictSolver:
    """Settles conflicts. Subclasses return the version that wins from `choose`.

    Chunks that both changed can be settled either way. The deletion of an updated node can only be
    settled in favour of the deletion. All other conflicts cannot be settled, and `choose` is not
    called for them.

    >>> class Newest(icefloe.ConflictSolver):
    ...     def choose(self, conflict):
    ...         return icefloe.VersionSelection.UseOurs
    """

    def choose(self, conflict: Conflict) -> VersionSelection:
        """The version to use. A commit is settled only if all of its conflicts are.

        Args:
            conflict: what contradicts.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to choose")


class ConflictDetector(ConflictSolver):
    """Settles no conflict: a rebase succeeds only if there are none.

    >>> session.rebase(icefloe.ConflictDetector())
    """

    def choose(self, conflict: Conflict) -> VersionSelection:
        """Never chooses.

        Args:
            conflict: what contradicts.
        """
        return VersionSelection.Fail


class BasicConflictSolver(ConflictSolver):
    """One rule for chunks that both changed, and for nodes we delete and they updated.

    >>> theirs = icefloe.VersionSelection.UseTheirs
    >>> session.rebase(icefloe.BasicConflictSolver(on_chunk_conflict=theirs))
    """

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
        rules = ", ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"BasicConflictSolver({rules})"


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
    if conflict.conflict_type in DELETE_OF_UPDATED.values():
        chosen = solver.choose(conflict)
        return chosen if chosen == VersionSelection.UseOurs else VersionSelection.Fail
    return VersionSelection.Fail


def apply_decisions(changes: ChangeSet, decisions: Sequence[Decision], after: NodeTable) -> None:
    """Adapt `changes` to fit on top of `after`."""
    for conflict, version in decisions:
        if conflict.conflict_type in DELETE_OF_UPDATED.values():
            # Delete the current nodes: a replacement of the deleted node, and nodes added below it.
            for row, path in enumerate(after.path):
                if paths.is_within(path, conflict.path):
                    node = after.node(row)
                    changes.deleted[path] = Deleted(node.id, node.array is not None)
        elif version == VersionSelection.UseTheirs and conflict.node_id is not None:
            chunks = conflict.chunk_index
            assert chunks is not None
            changes.chunks[conflict.node_id] = changes.chunks[conflict.node_id].without(chunks)


# -- The difference between two snapshots as a transaction log, when neither is an ancestor.


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
