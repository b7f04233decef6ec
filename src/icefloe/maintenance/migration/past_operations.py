"""An operations log, made from refs and history, for a generation that has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.format.repo_info.updates import Update, UpdateKind
from icefloe.ids import SnapshotId

_MAIN = "main"
_MILLISECOND = 1000
_FROM_VERSION = 1
"""The old version in the entry of the migration. Official clients do not know version 0."""


def past_operations(
    snapshots: SnapshotTable,
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    *,
    migrated_at: int,
    deleted_tags: Mapping[str, SnapshotId] | None = None,
) -> tuple[Update, ...]:
    """Entries, newest first, by the same rules as the migration of official Icechunk.

    A commit has the time of its snapshot. A branch is created one millisecond after its tip, and a
    tag one millisecond after its snapshot. Equal times are moved apart.
    """
    written: set[SnapshotId] = set()
    entries: list[Update] = []

    def commits(branch: str) -> None:
        new = []
        for row in snapshots.line(branches[branch]).tolist():
            info = snapshots.info(row)
            if info.parent_id is None or info.id in written:
                break  # another branch has the rest of the line
            new.append(info)
        for info in reversed(new):
            written.add(info.id)
            values = {"branch": branch, "new_snap_id": info.id}
            entries.append(Update(UpdateKind.NEW_COMMIT, info.flushed_at, values))

    root = _root(snapshots, branches[_MAIN])
    entries.append(Update(UpdateKind.REPO_INITIALIZED, root.flushed_at))
    commits(_MAIN)
    for name in sorted(branches):
        if name != _MAIN:
            at = snapshots[branches[name]].flushed_at + _MILLISECOND
            entries.append(Update(UpdateKind.BRANCH_CREATED, at, {"name": name}))
            commits(name)
    for name, tip in sorted(tags.items()):
        at = snapshots[tip].flushed_at + _MILLISECOND
        entries.append(Update(UpdateKind.TAG_CREATED, at, {"name": name}))
    for name, tip in sorted((deleted_tags or {}).items()):
        at = snapshots[tip].flushed_at + _MILLISECOND
        entries.append(Update(UpdateKind.TAG_CREATED, at, {"name": name}))
        deleted = {"name": name, "previous_snap_id": tip}
        entries.append(Update(UpdateKind.TAG_DELETED, at + _MILLISECOND, deleted))
    entries.sort(key=lambda entry: entry.updated_at)
    versions = {"from_version": _FROM_VERSION, "to_version": 2}
    entries.append(Update(UpdateKind.REPO_MIGRATED, migrated_at, versions))
    return tuple(reversed(_ascending(entries)))


def _root(snapshots: SnapshotTable, tip: SnapshotId) -> SnapshotInfo:
    return snapshots.info(int(snapshots.line(tip)[-1]))


def _ascending(entries: Sequence[Update]) -> list[Update]:
    """The same entries with ascending times, moved one microsecond apart where needed."""
    found: list[Update] = []
    for entry in entries:
        at = entry.updated_at
        if found and at <= found[-1].updated_at:
            at = found[-1].updated_at + 1
        found.append(Update(entry.kind, at, entry.values))
    return found
