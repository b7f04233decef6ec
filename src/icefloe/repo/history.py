"""History: ancestry, snapshots by id, ref or time, differences, the operations log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format import layout
from icefloe.format.operations_log import Update, UpdateKind, UpdateTable
from icefloe.format.repo_info import decode_operations, decode_repo_info
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.ids import SnapshotId
from icefloe.repo.handle import LineCommit, RepoHandle

if TYPE_CHECKING:
    from icefloe.changes.diff import Diff
    from icefloe.format.transaction_log import TransactionLog

_MAX_BACKUPS = 100


async def resolve(
    handle: RepoHandle,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    prefix: str = "",
) -> SnapshotId:
    """The snapshot that exactly one of these names; `prefix` is that of the caller's arguments."""
    given = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise InvalidInputError(
            f"give one of {prefix}branch, {prefix}tag and {prefix}snapshot_id; got "
            f"{' and '.join(prefix + name for name in named) or 'none'}",
            ErrorKind.INVALID_REF_TYPE,
        )
    if branch is not None:
        return await handle.format.lookup_branch(handle, branch)
    if tag is not None:
        return await handle.format.lookup_tag(handle, tag)
    return await handle.given_id(snapshot_id or "")


async def snapshot_as_of(handle: RepoHandle, branch: str, instant_us: int) -> SnapshotId:
    """The newest snapshot of a branch that is not later than the given time."""
    line = await handle.format.branch_line(handle, branch)
    if not isinstance(line, tuple):
        async for entry in line:
            if entry.flushed_at <= instant_us:
                return entry.id
    else:
        table, rows = line
        early = np.flatnonzero(table.columns.flushed_at[rows].astype(np.int64) <= instant_us)
        if len(early):
            return SnapshotId(table.id[rows[early[0]]].tobytes())
    raise SnapshotNotFoundError(
        f"branch {branch!r} has no snapshot at or before the time given",
        ErrorKind.NO_SNAPSHOT_AT_TIME,
    )


async def diff(handle: RepoHandle, start: SnapshotId, end: SnapshotId) -> Diff:
    """What changed after `start` up to `end`; `start` has to be an ancestor of `end`."""
    chain = await _since(handle, start, end)
    if not chain:
        raise InvalidInputError(
            f"snapshot {start} is not an ancestor of {end}, whose ancestry doesn't include it; a "
            "difference runs forward along one line of history",
            ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    (before, after), own = await handle.assets.snapshots_and_logs(
        [start, end], [entry.id for entry in reversed(chain)]
    )
    logs: list[TransactionLog] = []
    for entry, log in zip(reversed(chain), own, strict=True):
        pruned = [await find_log(handle, key) for key in entry.pruned]
        logs.extend(log for log in pruned if log is not None)
        logs.append(log)
    from icefloe.changes import diff as diffs

    return diffs.make_diff(logs, diffs.paths_by_id(before.nodes, after.nodes))


async def has_all_logs(handle: RepoHandle, start: str, end: str) -> bool:
    """Whether `diff` knows every change: logs of expired snapshots in between may be collected."""
    chain = await _since(handle, SnapshotId.parse(start), SnapshotId.parse(end)) or []
    return all([await find_log(handle, key) is not None for entry in chain for key in entry.pruned])


async def _since(handle: RepoHandle, start: SnapshotId, end: SnapshotId) -> list[LineCommit] | None:
    """The commits after `start` up to `end`, newest first; None if they are not on one line."""
    line = await handle.format.line(handle, end)
    if not isinstance(line, tuple):
        newer: list[LineCommit] = []
        async for entry in line:
            if entry.id == start:
                return newer
            newer.append(LineCommit(entry.id, entry.pruned_ancestor_tx_logs))
        return None
    table, rows = line
    found = np.flatnonzero(rows == table.find(start))
    if not len(found):
        return None
    rows = rows[: found[0]]
    return list(map(LineCommit, SnapshotId.of_rows(table.id[rows]), table.pruned(rows)))


async def find_log(handle: RepoHandle, snapshot_id: SnapshotId) -> TransactionLog | None:
    """A transaction log, or None if garbage collection has deleted it."""
    try:
        return await handle.assets.transaction_log(snapshot_id)
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            return None
        raise


async def is_child(handle: RepoHandle, parent_id: SnapshotId, snapshot_id: SnapshotId) -> bool:
    """Whether a commit was made on top of its parent: its log accounts for all differences.

    Otherwise snapshots in between have expired. Spec version 1 does not say so.
    """
    (before, after), _ = await handle.assets.snapshots_and_logs([parent_id, snapshot_id], [])
    log = await find_log(handle, snapshot_id)
    if log is None:
        return False
    old = {node.id: node for node in before.nodes}
    pairs = {
        node.id: (old[node.id], node)
        for node in after.nodes
        if node.id in old and node.array is not None
    }
    files = before.manifest_files, after.manifest_files
    from icefloe.assets import computed_logs

    chunks = await computed_logs.differing_chunks(handle.assets, *files, pairs)
    from icefloe.changes import conflicts

    return conflicts.accounts_for(log, before.nodes, after.nodes, chunks)


async def expired_snapshots(handle: RepoHandle) -> AsyncIterator[list[SnapshotInfo]]:
    """The snapshots that were listed before each expiration and collection, the newest first.

    Backups of the `repo` object have them. They are read as far as the caller iterates.
    """
    if not handle.format.has_repo_object:
        return
    is_next, num_read = False, 0
    async for page in operations_pages(handle):
        for entry, name in zip(page.updates, page.backup_paths(), strict=True):
            if is_next and name is not None and num_read < _MAX_BACKUPS:
                key = layout.OVERWRITTEN + name
                num_read += 1
                try:
                    table = decode_repo_info(bytes(await handle.driver.get(key)), key).snapshots
                except StorageError as error:
                    if error.kind != ErrorKind.OBJECT_NOT_FOUND:
                        raise
                else:
                    yield table.infos(np.arange(len(table)))
            is_next = entry.kind in (UpdateKind.EXPIRATION_RAN, UpdateKind.GC_RAN)


class OperationsPage(NamedTuple):
    """The part of the operations log that is in one `repo` object, newest first."""

    updates: Sequence[Update]
    name: str | None
    """The backup it is in, or None for the current object."""

    def times(self) -> NDArray[np.uint64]:
        """When each operation happened, in microseconds."""
        return UpdateTable.from_updates(self.updates).updated_at

    def backup_paths(self) -> list[str | None]:
        """The backup in which each operation is the newest."""
        found = UpdateTable.from_updates(self.updates).backup_path.to_list()
        return found if self.name is None else [self.name, *found[1:]]


async def operations_pages(handle: RepoHandle) -> AsyncIterator[OperationsPage]:
    """The operations log, newest first. Backups of the `repo` object continue it."""
    handle.format.require_repo_object("the operations log")
    info = (await handle.assets.repo_object()).info
    updates, before = info.latest_updates, info.repo_before_updates
    yield OperationsPage(updates, None)
    seen = set()
    while (name := before) is not None and name not in seen:
        seen.add(name)  # a cycle of backups ends here
        key = layout.OVERWRITTEN + name
        try:
            updates, before = decode_operations(bytes(await handle.driver.get(key)), key)
        except StorageError as error:
            if error.kind == ErrorKind.OBJECT_NOT_FOUND:
                return  # the backup was deleted, so the log ends here
            raise
        yield OperationsPage(updates, name)


async def ops_log(handle: RepoHandle) -> AsyncIterator[Update]:
    """Every operation, newest first."""
    async for page in operations_pages(handle):
        for row, entry in enumerate(page.updates):
            yield entry if row or page.name is None else replace(entry, backup_path=page.name)
