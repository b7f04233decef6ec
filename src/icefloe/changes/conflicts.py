"""Conflicts between the changes of a session and a concurrent commit.

`find_conflicts` compares the uncommitted changes with one transaction log. Chunks are compared as
sorted columns, so a log of a million chunks takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np

from icefloe import paths
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.moves import Moves
from icefloe.display.shown import Picture, Shown
from icefloe.errors import AlreadyExistsError, NodeNotFoundError, SessionStateError
from icefloe.format.columns.chunk_index import Index, SortedIndex
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId


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


class Conflict(Shown):
    """One conflict between a session and a commit."""

    __slots__ = ("_chunks", "_path", "_type", "node_id")

    shown_in = "conflicts"

    def __init__(
        self,
        conflict_type: ConflictType,
        path: str,
        conflicted_chunks: Sequence[Sequence[int]] | Index | None = None,
        *,
        node_id: NodeId | None = None,
    ) -> None:
        self._type = conflict_type
        self._path = path
        self._chunks = conflicted_chunks
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
        return Conflict, (self._type, self._path, self.conflicted_chunks)

    def __str__(self) -> str:
        what = _SENTENCES[self._type]
        if self._chunks is not None:
            rows = ["/".join(map(str, row)) or "-" for row in self._chunks[:_SHOWN_CHUNKS]]
            more = len(self._chunks) - _SHOWN_CHUNKS
            what += f" {', '.join(rows)}{f' and {more:,} more' if more > 0 else ''}"
        return f"{self._path}: {what}"

    def _picture_(self) -> Picture:
        shown = None
        if self._chunks is not None:
            rows = [str([int(at) for at in row]) for row in self._chunks[:_SHOWN_CHUNKS]]
            more = len(self._chunks) - _SHOWN_CHUNKS
            shown = f"[{', '.join(rows)}]{f' and {more} more' if more > 0 else ''}"
        fields = {
            "conflict_type": self._type.name,
            "path": self._path,
            "conflicted_chunks": str(shown),
        }
        return Picture(self._title_(), list(fields.items()))


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
            kind = (
                ConflictType.ZarrMetadataUpdateOfDeletedArray
                if is_array
                else ConflictType.ZarrMetadataUpdateOfDeletedGroup
            )
            return [Conflict(kind, source)]
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
    for kind, theirs in (
        (ConflictType.ZarrMetadataUpdateOfDeletedArray, log.deleted_arrays),
        (ConflictType.ZarrMetadataUpdateOfDeletedGroup, log.deleted_groups),
    ):
        for node_id, update in ours:
            if node_id in theirs:
                yield Conflict(kind, update.path, node_id=node_id)


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
            kind = (
                ConflictType.DeleteOfUpdatedArray if is_array else ConflictType.DeleteOfUpdatedGroup
            )
            found[is_array].append(Conflict(kind, path, node_id=node.id))
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
