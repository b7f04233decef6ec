"""Forks: sessions for workers. Their changes are merged back into the original session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.three_way import merge_changes
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.snapshot import Snapshot
from icefloe.ids import SnapshotId
from icefloe.repo.commit import close_packs, store_aside, store_closed
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionMode, SessionState, Workspace, restore_edits
from icefloe.storage.spec import Storage


@dataclass(frozen=True, slots=True)
class ForkChanges:
    """The changes of a fork. `root` is the snapshot of the session that was forked first."""

    storage: Storage
    is_fork: bool
    root: SnapshotId
    snapshot_id: SnapshotId
    changes: ChangeSet
    opened_at: int
    """When the original session was opened; see `FormatVersion.opened_at`."""


async def fork_session(workspace: Workspace) -> SessionState:
    """A session that starts from the current state of this one. It can be merged, not committed.

    Uncommitted changes are first stored as an unlisted snapshot. So a fork is small to pickle,
    regardless of how much was written before.
    """
    state = workspace.state
    if state.mode == SessionMode.readonly:
        raise SessionStateError(
            state.why_read_only("it can be pickled as it is"),
            ErrorKind.CANNOT_FORK_READ_ONLY_SESSION,
        )
    state.require_writable()
    root = state.fork_root or state.snapshot_id
    snapshot = state.snapshot if state.changes.is_empty else await store_aside(workspace)
    return _new_fork(snapshot, root, ChangeSet(), state.opened_at)


async def open_fork(handle: RepoHandle, fork: ForkChanges) -> SessionState:
    """The session of a fork that was pickled."""
    snapshot = await handle.assets.snapshot(fork.snapshot_id)
    return _new_fork(snapshot, fork.root, fork.changes, fork.opened_at)


def _new_fork(
    snapshot: Snapshot, root: SnapshotId, changes: ChangeSet, opened_at: int
) -> SessionState:
    state = SessionState(snapshot, None, SessionMode.writable)
    state.opened_at = opened_at
    state.fork_root = root
    state.show(snapshot, changes)
    return state


async def fork_changes(workspace: Workspace) -> ForkChanges:
    """The changes of a session, after all their chunks are stored and synced.

    Another process may commit references to these chunks as soon as it has the changes.
    """
    handle, state = workspace
    if state.mode == SessionMode.readonly:
        raise SessionStateError(
            state.why_read_only("a read-only session has no changes that could be merged"),
            ErrorKind.MERGE_NOT_ALLOWED,
        )
    while True:
        await restore_edits(workspace, state.changes.prepared)
        with state.lock:
            if state.changes.prepared:
                continue  # another thread has added chunks in the meantime
            packs = close_packs(state)
            changes = state.changes.copy()
            changes.chunks = {key: edits.copy() for key, edits in changes.chunks.items()}
            root, base = state.fork_root or state.snapshot_id, state.snapshot_id
            break
    # The copy does not include later writes of other threads.
    await store_closed(workspace, packs)
    await handle.driver.sync()
    return ForkChanges(handle.storage, state.is_fork, root, base, changes, state.opened_at)


async def merge_forks(workspace: Workspace, forks: Sequence[ForkChanges]) -> None:
    """Merge the changes of forks into a session, in order. Either all are merged, or none is.

    Raises:
        SessionStateError: kind `merge-not-allowed` for forks of another repository or of a
            session that started elsewhere, `merge-failed` where both sides changed a node.
    """
    handle, state = workspace
    state.require_writable()
    root = state.fork_root or state.snapshot_id
    for fork in forks:
        if state.is_fork and not fork.is_fork:
            raise SessionStateError(
                "a session on a branch cannot be merged into a fork; merge the fork into it",
                ErrorKind.MERGE_NOT_ALLOWED,
            )
        _require_same_origin(handle, fork, root)
    starts = {fork.snapshot_id: None for fork in forks}
    nodes = {key: (await handle.assets.snapshot(key)).nodes for key in starts}
    # If an array has shrunk, the merge needs the index of every chunk that was written.
    await restore_edits(workspace, {key for fork in forks for key in fork.changes.updated})
    with state.writing():
        merged = state.changes
        for fork in forks:
            fork_base = nodes[fork.snapshot_id]
            merged = merge_changes(merged, state.snapshot.nodes, fork.changes, fork_base)
        state.show(state.snapshot, merged)
        state.opened_at = min([state.opened_at, *(fork.opened_at for fork in forks)])


def _require_same_origin(handle: RepoHandle, fork: ForkChanges, root: SnapshotId) -> None:
    if not fork.storage.is_same_place(handle.storage):
        raise SessionStateError(
            f"a fork of the repository in {fork.storage.url} cannot be merged into a session of "
            f"the one in {handle.storage.url}",
            ErrorKind.MERGE_NOT_ALLOWED,
        )
    if fork.root != root:
        raise SessionStateError(
            f"a fork of a session at snapshot {fork.root} cannot be merged into one at {root}; "
            "merge forks before the session is rebased, and into no other",
            ErrorKind.MERGE_NOT_ALLOWED,
        )
