"""The table `changes`: what every commit of a line of history did, a row a node or chunk.

Each commit's log is read by a task, so "which commit last wrote this chunk" is a query, whatever
the length of the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icefloe.api.repository import Repository
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.repo import history
from icefloe.repo.handle import RepoHandle
from icefloe.scans.arrow_types import INDEX, INSTANT, index_column, required
from icefloe.scans.metadata.id_text import key_column
from icefloe.scans.pinned import PinnedSnapshot
from icefloe.scans.scan import ROWS_PER_BATCH
from icefloe.storage.run import each_blocking, run_blocking

SCHEMA = pa.schema(
    [
        required("committed_at", INSTANT),
        required("snapshot_id", pa.string()),
        pa.field("parent_id", pa.string()),
        required("change", pa.string()),
        required("path", pa.string()),
        pa.field("chunk_index", INDEX),
        pa.field("destination", pa.string()),
    ]
)

_NODE_CHANGES = {
    "deleted_groups": "deleted_group",
    "deleted_arrays": "deleted_array",
    "new_groups": "new_group",
    "new_arrays": "new_array",
    "updated_groups": "updated_group",
    "updated_arrays": "updated_array",
}
_TASKS_PER_SLOT = 4


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a history, with the logs of expired ancestors it took over."""

    id: SnapshotId
    parent_id: SnapshotId | None
    committed_at_us: int
    pruned: tuple[SnapshotId, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """The scan; a partition is a run of commits."""

    source: PinnedSnapshot
    commits: tuple[Commit, ...]
    per_partition: int

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def num_partitions(self) -> int:
        return -(-len(self.commits) // self.per_partition)

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        start = partition * self.per_partition
        yield from read_commits(self.source, self.commits[start : start + self.per_partition])


def plan_changes(source: PinnedSnapshot, start: str | None, min_partitions: int) -> Changes:
    """The commits after `start` (exclusive; None for all) up to the source's snapshot."""
    commits = find_commits(source.open_repository(), start, source.snapshot_id)
    tasks = max(min_partitions * _TASKS_PER_SLOT, 1)
    return Changes(source, tuple(commits), max(-(-len(commits) // tasks), 1))


def find_commits(repository: Repository, start: str | None, end: str) -> list[Commit]:
    """The commits from after `start` to `end`, oldest first.

    Raises:
        InvalidInputError: `start` is not an ancestor of `end`, so nothing lies between them.
    """
    handle = repository.handle
    stop = None if start is None else handle.snapshot_id(start)
    newer = []
    for info in each_blocking(handle.family.ancestors(handle, handle.snapshot_id(end))):
        if info.id == stop:
            break
        newer.append(_commit(info))
    else:
        if stop is not None:
            raise InvalidInputError(
                f"snapshot {stop} is not an ancestor of {end}: the branch was reset, amended or "
                "expired since; start again from a snapshot that is",
                ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
            )
    return newer[::-1]


def _commit(info: SnapshotInfo) -> Commit:
    return Commit(info.id, info.parent_id, info.flushed_at, info.pruned_ancestor_tx_logs)


# -- in a task


def read_commits(source: PinnedSnapshot, commits: Iterable[Commit]) -> Iterator[pa.RecordBatch]:
    """The rows of some commits."""
    handle = source.open_repository().handle
    for commit in commits:
        batch = pa.Table.from_batches(_commit_rows(handle, commit), SCHEMA)
        yield from batch.to_batches(max_chunksize=ROWS_PER_BATCH)


def _commit_rows(handle: RepoHandle, commit: Commit) -> list[pa.RecordBatch]:
    found = [run_blocking(history.find_log(handle, key)) for key in (*commit.pruned, commit.id)]
    logs = [log for log in found if log is not None]
    if not any(log.num_changes for log in logs):
        return []
    known = _paths(handle, commit, logs)
    return [batch for log in logs for batch in _log_rows(commit, log, known)]


def _paths(handle: RepoHandle, commit: Commit, logs: Sequence[TransactionLog]) -> dict[NodeId, str]:
    """Paths of the nodes the logs name: after the commit, or before it for what it deleted."""
    wanted: set[NodeId] = set()
    for log in logs:
        wanted.update(*(getattr(log, name) for name in _NODE_CHANGES), log.updated_chunks)
    known = find_paths(run_blocking(handle.assets.snapshot(commit.id)).nodes, wanted)
    gone = wanted - known.keys()
    if gone and commit.parent_id is not None:
        before = run_blocking(handle.assets.snapshot(commit.parent_id))
        known |= find_paths(before.nodes, gone)
    return known


def find_paths(nodes: NodeTable, wanted: Iterable[NodeId]) -> dict[NodeId, str]:
    """The paths of some nodes; those that are not in the table are left out."""
    ids = list(wanted)
    if not ids or not len(nodes):
        return {}
    keys = key_column(nodes.id)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], np.array(ids, keys.dtype))
    rows = order[np.minimum(at, len(keys) - 1)]
    return {
        node_id: nodes.path[row]
        for node_id, row in zip(ids, rows.tolist(), strict=True)
        if nodes.id[row].tobytes() == node_id
    }


def _log_rows(
    commit: Commit, log: TransactionLog, known: Mapping[NodeId, str]
) -> Iterator[pa.RecordBatch]:
    for field_name, change in _NODE_CHANGES.items():
        paths = sorted(known[key] for key in getattr(log, field_name) if key in known)
        if paths:
            yield _batch(commit, change, pa.array(paths))
    for move in log.moved_nodes or ():
        yield _batch(
            commit, "moved_node", pa.array([move.source]), destination=pa.array([move.destination])
        )
    for node_id, index in log.updated_chunks.items():
        if node_id in known and len(index):
            path = pa.repeat(known[node_id], len(index))
            yield _batch(commit, "updated_chunk", path, index_column(index))


def _batch(
    commit: Commit,
    change: str,
    path: pa.Array,
    index: pa.Array | None = None,
    destination: pa.Array | None = None,
) -> pa.RecordBatch:
    n = len(path)
    parent = None if commit.parent_id is None else commit.parent_id.text
    columns = [
        pa.repeat(pa.scalar(commit.committed_at_us, pa.int64()), n).cast(INSTANT),
        pa.repeat(commit.id.text, n),
        pa.repeat(pa.scalar(parent, pa.string()), n),
        pa.repeat(change, n),
        path,
        pa.nulls(n, INDEX) if index is None else index,
        pa.nulls(n, pa.string()) if destination is None else destination,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
