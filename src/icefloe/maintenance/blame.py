"""Which commit last wrote each node and each chunk, from the logs of a line of history.

Logs are read from the newest on, in batches, until everything is explained. What a commit took
over from expired ancestors counts as its own. A chunk that no remaining log names stays
unexplained.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, StorageError
from icefloe.format import layout
from icefloe.format.chunk_index import Index
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.format.transaction_log import TransactionLog, decode_transaction_log
from icefloe.ids import NodeId, SnapshotId
from icefloe.maintenance.live import get_all, require_spec_1_or_2
from icefloe.maintenance.progress import Reporter
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import Workspace, all_chunks

_LOGS_AT_ONCE = 64


class NodeBlame(NamedTuple):
    """The commits that last changed a node. None means that no remaining log names it."""

    path: str
    metadata: SnapshotInfo | None
    """Its zarr.json, or its place."""
    chunks: SnapshotInfo | None


@dataclass(frozen=True, slots=True, eq=False)
class ChunkBlame:
    """The chunks of an array, and for each the number of the commit that last wrote it."""

    index: Index
    number: NDArray[np.int64]
    """Into `commits`, or -1."""
    commits: list[SnapshotInfo]


async def blame_nodes(
    handle: RepoHandle, workspace: Workspace, report: Reporter | None = None
) -> list[NodeBlame]:
    """The last changes of all nodes of a session, in the order of their paths."""
    nodes = workspace.state.view.all_nodes()
    by_path = {node.path: node.id for node in nodes}
    without_metadata = {node.id for node in nodes}
    without_chunks = {node.id for node in nodes if node.array is not None}
    metadata: dict[NodeId, SnapshotInfo] = {}
    chunks: dict[NodeId, SnapshotInfo] = {}
    async for info, log in _logs(handle, workspace.state.snapshot_id, report):
        touched = log.new_groups | log.new_arrays | log.updated_groups | log.updated_arrays
        touched |= {move.node_id for move in log.moved_nodes or ()}
        for node in without_metadata & touched:
            metadata[node] = info
        for node in without_chunks & log.updated_chunks.keys():
            chunks[node] = info
        without_metadata -= touched
        # Nothing was written to an array before it was made.
        without_chunks -= log.updated_chunks.keys() | log.new_arrays
        if not without_metadata and not without_chunks:
            break
    return [NodeBlame(path, metadata.get(one), chunks.get(one)) for path, one in by_path.items()]


async def blame_chunks(
    handle: RepoHandle,
    workspace: Workspace,
    path: str,
    report: Reporter | None = None,
    max_commits: int | None = None,
) -> ChunkBlame:
    """The commit that last wrote each chunk of an array, among the newest `max_commits` ones."""
    view = workspace.state.view
    node, _ = view.array(path)
    index = (await all_chunks(handle, view, node)).index
    keys, number = _keys(index), np.full(len(index), -1)
    left = np.arange(len(index))
    commits: list[SnapshotInfo] = []
    async for info, log in _logs(handle, workspace.state.snapshot_id, report, max_commits):
        if not len(left):
            break
        written = log.updated_chunks.get(node.id)
        if written is not None and len(written):
            hit = np.isin(keys[left], _keys(written))
            if hit.any():
                if not commits or commits[-1].id != info.id:
                    commits.append(info)
                number[left[hit]] = len(commits) - 1
                left = left[~hit]
        if node.id in log.new_arrays:
            break
    return ChunkBlame(index, number, commits)


async def _logs(
    handle: RepoHandle,
    tip: SnapshotId,
    report: Reporter | None,
    max_commits: int | None = None,
) -> AsyncIterator[tuple[SnapshotInfo, TransactionLog]]:
    """The logs of a line of history, newest first, each with the commit that has it."""
    require_spec_1_or_2(handle, "finding out who wrote what")
    owners: list[tuple[SnapshotInfo, SnapshotId]] = []
    num_commits = num_logs = 0
    async for entry in handle.format.ancestors(handle, tip):
        if num_commits == max_commits:
            break
        num_commits += 1
        owners += [(entry, key) for key in (entry.id, *reversed(entry.pruned_ancestor_tx_logs))]
        if len(owners) >= _LOGS_AT_ONCE:
            for found in await _read_logs(handle, owners):
                yield found
            num_logs += len(owners)
            owners = []
            if report is not None:
                report.tell("reading logs", num_logs)
    for found in await _read_logs(handle, owners):
        yield found


async def _read_logs(
    handle: RepoHandle, owners: Sequence[tuple[SnapshotInfo, SnapshotId]]
) -> list[tuple[SnapshotInfo, TransactionLog]]:
    """Those that exist: some are collected, and the first snapshot of version 1 has none."""
    found = []
    names = [layout.transaction_log_key(key) for _, key in owners]
    for (entry, _), name, data in zip(owners, names, await get_all(handle, names), strict=True):
        if not isinstance(data, StorageError):
            found.append((entry, decode_transaction_log(data, name)))
        elif data.kind != ErrorKind.OBJECT_NOT_FOUND:
            raise data
    return found


def _keys(index: Index) -> NDArray[np.bytes_]:
    """Rows as single values. A scalar array has one chunk, with no coordinates."""
    if not index.shape[1]:
        return np.zeros(len(index), "S1")
    width = 4 * index.shape[1]
    return np.ascontiguousarray(index, np.uint32).view(f"S{width}").reshape(-1)
