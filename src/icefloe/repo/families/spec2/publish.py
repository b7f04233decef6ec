"""Publishing commits: each is one replacement of the `repo` object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icefloe.errors import ErrorKind, SessionStateError, SnapshotNotFoundError, branch_moved
from icefloe.format.repo_info.file import (
    RepoInfo,
    UpdateKind,
)
from icefloe.format.repo_info.refs import with_ref
from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.format.repo_info.updates import UpdateLog
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import SnapshotId
from icefloe.records import changed
from icefloe.repo.commit_notes import moved_expired
from icefloe.repo.families.spec2.checks import require_branch, require_snapshot
from icefloe.repo.families.spec2.flags import require_flag
from icefloe.repo.families.spec2.update import Change, Changed, SeenRepo, update_repo
from icefloe.repo.handle import NewCommit, RepoHandle, SeenTip
from icefloe.repo.own_objects import require_own_objects


async def publish(handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None) -> None:
    """List the snapshot and make it the tip of its branch."""

    def change(info: RepoInfo) -> Changed:
        require_tip(info, branch, commit.base)
        listed = _with_snapshot(info, commit.snapshot, commit.base)
        tips = with_ref(info.branches, branch, commit.snapshot.id)
        values = {"branch": branch, "new_snap_id": commit.snapshot.id}
        return changed(info, snapshots=listed, branches=tips), UpdateKind.NEW_COMMIT, values

    await _update(handle, [commit], change, seen if isinstance(seen, SeenRepo) else None)


async def publish_amended(handle: RepoHandle, commit: NewCommit, branch: str) -> None:
    """List the snapshot with the parent of its base, and replace the base with it as the tip."""

    def change(info: RepoInfo) -> Changed:
        require_tip(info, branch, commit.base)
        require_base(info, commit.base)
        amended = info.snapshots[commit.base]
        new, parent = commit.snapshot, amended.parent_id
        if parent is not None:
            metadata = moved_expired(amended, new.metadata, parent)
            new = replace(new, metadata=metadata)
        pruned = amended.pruned_ancestor_tx_logs
        return _replaced_tip(info, commit._replace(snapshot=new), branch, parent, pruned)

    await _update(handle, [commit], change)


async def publish_squashed(
    handle: RepoHandle,
    commits: Sequence[NewCommit],
    branch: str,
    since: SnapshotId,
    pruned: Sequence[tuple[SnapshotId, ...]],
) -> None:
    """List the snapshots as a line that starts at `since`, and make the last one the tip."""

    def change(info: RepoInfo) -> Changed:
        require_tip(info, branch, commits[-1].base)
        require_base(info, since)
        parent = since
        for commit, expired in zip(commits[:-1], pruned, strict=False):
            # Collections keep the manifests of snapshots that are listed.
            require_base(info, commit.base)
            listed = _with_snapshot(info, commit.snapshot, parent, expired)
            info = changed(info, snapshots=listed)
            parent = commit.snapshot.id
        return _replaced_tip(info, commits[-1], branch, parent, pruned[-1])

    await _update(handle, commits, change)


def _replaced_tip(
    info: RepoInfo,
    commit: NewCommit,
    branch: str,
    parent_id: SnapshotId | None,
    pruned: tuple[SnapshotId, ...] = (),
) -> Changed:
    listed = _with_snapshot(info, commit.snapshot, parent_id, pruned)
    tips = with_ref(info.branches, branch, commit.snapshot.id)
    values = {
        "branch": branch,
        "previous_snap_id": commit.base,
        "new_snap_id": commit.snapshot.id,
    }
    return changed(info, snapshots=listed, branches=tips), UpdateKind.COMMIT_AMENDED, values


async def publish_detached(handle: RepoHandle, commit: NewCommit) -> None:
    """List the snapshot."""

    def change(info: RepoInfo) -> Changed:
        require_base(info, commit.base)
        listed = changed(info, snapshots=_with_snapshot(info, commit.snapshot, commit.base))
        return listed, UpdateKind.NEW_DETACHED_SNAPSHOT, {"new_snap_id": commit.snapshot.id}

    await _update(handle, [commit], change)


class _AlreadyListed(Exception):  # noqa: N818 - reports success, not an error
    """An earlier attempt of the same update has succeeded."""


class _Collected(Exception):  # noqa: N818 - caught in this module
    """A collection ran since the session was opened."""

    def __init__(self, at: int) -> None:
        self.at = at


def may_have_collected(info: RepoInfo, since: int) -> bool:
    """Whether a garbage collection may have run after an entry of the operations log.

    True also when the log in the object does not reach back that far.
    """
    log = UpdateLog.of(info.latest_updates)
    is_cut = log.oldest_at > since and info.repo_before_updates is not None
    return is_cut or log.newest_collection_at > since


async def _update(
    handle: RepoHandle, commits: Sequence[NewCommit], change: Change, seen: SeenRepo | None = None
) -> None:
    """Publish commits once.

    The transport may repeat a request that has succeeded. The repetition fails as if another writer
    had been first. So the update ends when the snapshot is already listed.
    """

    opened_at = commits[-1].opened_at

    def checked(info: RepoInfo) -> Changed:
        if commits[-1].snapshot.id in info.snapshots:
            raise _AlreadyListed
        if any(commit.moves_nodes for commit in commits):
            require_flag(info, "move_node")
        result = change(info)
        if commits[-1].source is not None:
            require_snapshot(info, commits[-1].source)
        if may_have_collected(info, opened_at):
            raise _Collected(info.newest_update_at)
        return result

    while True:
        try:
            await update_repo(handle, checked, seen=seen)
        except _AlreadyListed:
            pass
        except _Collected as found:
            for commit in commits:
                await require_own_objects(handle, commit)
            opened_at = found.at  # collections up to this one have not deleted the objects
            continue
        return


def require_tip(info: RepoInfo, branch: str, expected: SnapshotId) -> None:
    """Refuse to commit to a branch that has moved."""
    tip = require_branch(info, branch)
    if tip != expected:
        raise branch_moved(branch, expected.text, tip.text)


def require_base(info: RepoInfo, base: SnapshotId) -> None:
    """Refuse to commit on a base snapshot that is no longer listed."""
    if base not in info.snapshots:
        raise SnapshotNotFoundError(
            f"snapshot {base}, from which the session started, has expired or was deleted since; "
            "the session keeps its changes: rebase it, or make them again in a new session"
        )


def require_amendable(info: RepoInfo, base: SnapshotId) -> SnapshotId:
    """The parent of a snapshot that can be amended."""
    require_base(info, base)
    parent = info.snapshots[base].parent_id
    if parent is None:
        raise SessionStateError(
            "the first snapshot of a repository cannot be amended; commit on top of it",
            ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
        )
    return parent


def _with_snapshot(
    info: RepoInfo,
    snapshot: Snapshot,
    parent_id: SnapshotId | None,
    pruned: tuple[SnapshotId, ...] = (),
) -> SnapshotTable:
    listed = SnapshotInfo(
        snapshot.id, parent_id, snapshot.flushed_at, snapshot.message, snapshot.metadata, pruned
    )
    return info.snapshots.with_snapshot(listed)
