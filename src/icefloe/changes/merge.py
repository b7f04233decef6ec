"""Merging the changes of a fork into the session it was forked from.

This is a three-way merge of the nodes the fork started from, the fork's changes, and the session's
current changes. A node that only one side changed takes that side's version. If both sides changed
a node in different ways, the merge is refused. Several forks may change different nodes, or
different chunks of one array. If two forks write the same chunk, the one merged last wins without a
warning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

import numpy as np

from icefloe import paths
from icefloe.changes.change_set import ChangeSet, Deleted
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.snapshot.nodes import Node, NodeTable


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
            self._drop(path, gone)
        for path, gone in self.fork.deleted.items():
            if gone.is_array:
                continue
            for left in self._below(path):
                if self.fork_base.find(left) is None:
                    _refuse(left, f"the session created it, the fork deleted {path!r} above it")

    def _drop(self, path: str, gone: Deleted) -> None:
        self.result.chunks.pop(gone.id, None)
        self.result.prepared.pop(gone.id, None)
        self.result.updated.pop(gone.id, None)
        if self.result.new.pop(path, None) is None:
            self.result.deleted[path] = gone

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
            grids = {_grid(node) for node in self._sides(path) if node is not None}
            if grids == {_grid(mine)}:
                continue
            if edits.ndim != len(mine.array.shape):
                _refuse(path, "one side wrote chunks of it, the other changed its dimensions")
            refs, _ = edits.columns()
            outside = (refs.index >= np.array(_grid(mine), np.uint64)).any(axis=1)
            if outside.any():
                at = tuple(refs.index[int(np.flatnonzero(outside)[0])].tolist())
                _refuse(path, f"one side wrote chunk {at}, the other made the array smaller")

    def _sides(self, path: str) -> Iterable[Node | None]:
        return self.fork_base.find(path), self._theirs(path)

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
