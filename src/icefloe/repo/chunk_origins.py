"""Which commit wrote each chunk of an array: the logs of the history, read backwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, StorageError
from icefloe.format.columns.chunk_index import Index, SortedIndex
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.nodes import Node
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.records import record
from icefloe.repo import history
from icefloe.repo.workspace import Workspace

_LOGS_AT_ONCE = 64


@record(frozen=True)
class ChunkOrigins:
    """For each chunk, the commit that wrote it last."""

    commit: NDArray[np.int64]
    """One row per chunk: the number of a commit in `commits`, or -1 where none was found."""
    commits: list[SnapshotInfo]
    """The commits that wrote chunks, newest first."""
    num_read: int
    """How many commits were looked at."""


async def chunk_origins(
    workspace: Workspace, node: Node, refs: ChunkRefs, max_commits: int
) -> ChunkOrigins:
    """Find the commits that wrote the chunks of `refs`, within the newest `max_commits` ones.

    The search ends when every chunk has its commit, or at the commit that created the array. What
    expired commits wrote is counted for the commit that followed them.
    """
    handle, state = workspace
    line = (await history.ancestry(handle, state.snapshot_id))[:max_commits]
    commit = np.full(len(refs), -1, np.int64)
    commits: list[SnapshotInfo] = []
    num_read = 0
    for first in range(0, len(line), _LOGS_AT_ONCE):
        batch = line[first : first + _LOGS_AT_ONCE]
        logs = await _logs(workspace, [key for entry in batch for key in _ids(entry)])
        for entry in batch:
            if not (commit < 0).any():
                return ChunkOrigins(commit, commits, num_read)
            num_read += 1
            found = [log for key in _ids(entry) if (log := logs.get(key)) is not None]
            rows = np.flatnonzero(commit < 0)
            written = rows[_is_touched(refs.index[rows], node, found)]
            if len(written):
                commit[written] = len(commits)
                commits.append(entry)
            if any(node.id in log.new_arrays for log in found):
                return ChunkOrigins(commit, commits, num_read)
    return ChunkOrigins(commit, commits, num_read)


def _ids(entry: SnapshotInfo) -> tuple[SnapshotId, ...]:
    return (entry.id, *entry.pruned_ancestor_tx_logs)


async def _logs(
    workspace: Workspace, ids: Sequence[SnapshotId]
) -> dict[SnapshotId, TransactionLog]:
    """The logs that exist: the first snapshot has none, and others may have been collected."""
    handle = workspace.handle
    try:
        _, found = await handle.assets.snapshots_and_logs([], ids)
    except StorageError as error:
        if error.kind != ErrorKind.OBJECT_NOT_FOUND:
            raise
        each = {key: await history.find_log(handle, key) for key in ids}
        return {key: log for key, log in each.items() if log is not None}
    return dict(zip(ids, found, strict=True))


def _is_touched(index: Index, node: Node, logs: Sequence[TransactionLog]) -> NDArray[np.bool_]:
    touched = np.zeros(len(index), np.bool_)
    for log in logs:
        written = log.updated_chunks.get(node.id)
        if written is not None and written.shape[1] == index.shape[1]:
            touched |= SortedIndex(written).find_many(index) >= 0
    return touched
