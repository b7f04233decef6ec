"""Commit, amend and flush: build the files, write them, then move the branch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from icefloe.changes.build import CommitPlan, build_snapshot, plan_commit
from icefloe.changes.log_union import union_of_logs
from icefloe.changes.packs import check_placed
from icefloe.changes.solvers import ConflictSolver
from icefloe.changes.split_sizes import split_sizes
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format import layout
from icefloe.format.metadata.items import encode_metadata
from icefloe.format.repo_info.file import RepoInfo, UpdateKind
from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.repo import refs_v1
from icefloe.repo.commit_work import CommitWork, with_rebase_attempts
from icefloe.repo.feature_flags import require_flag
from icefloe.repo.handle import RepoHandle
from icefloe.repo.packing import close_packs, store_closed
from icefloe.repo.rebase import rebase_sealed
from icefloe.repo.refs import find_branch
from icefloe.repo.sessions import SessionMode, SessionState
from icefloe.repo.update import Change, Changed, Seen, seen_now, update_repo
from icefloe.repo.workspace import Workspace
from icefloe.repo.write_manifests import forget_replaced

_MAX_CLOCK_SKEW_S = 600
_MAX_CLOCK_STEP_US = 1_000_000
_CLOCK_CHECK_LASTS_US = 60_000_000
_MOST_REFS_AHEAD = 1_000_000


@dataclass(frozen=True, slots=True)
class _Written:
    """A snapshot that is stored, but that no ref points at yet."""

    snapshot: Snapshot
    log: TransactionLog


async def commit(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any] | None,
    *,
    allow_empty: bool = False,
    rebase_with: ConflictSolver | None = None,
    rebase_tries: int = 1000,
    rewrite_all: bool = False,
) -> SnapshotId:
    """Make the session's changes the new tip of its branch.

    Raises:
        ConflictError: the branch has moved since the session was opened, and goes on moving if
            there is a solver; nothing is lost, the session keeps its changes.
        RebaseFailedError: the solver could not settle a conflict.
    """
    handle, state = workspace
    _require_branch(state)
    _require_changes(state, allow_empty=allow_empty)
    with state.sealed():
        if rebase_with is None:
            work = CommitWork(looks_first=handle.spec_version > 1)
            return await _try_commit(workspace, message, metadata, work, rewrite_all=rewrite_all)
        return await _commit_rebasing(
            Workspace(handle, state),
            message,
            metadata,
            rebase_with,
            rebase_tries,
            rewrite_all=rewrite_all,
        )


async def _commit_rebasing(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any] | None,
    solver: ConflictSolver,
    rebase_tries: int,
    *,
    rewrite_all: bool,
) -> SnapshotId:
    """Rebase and try to commit, in turn."""
    handle = workspace.handle
    work = CommitWork(looks_first=True)
    clock, others = handle.clock, handle.shared.contention
    rebases = 0
    while True:
        started = clock.now_us()
        # Whoever is behind already need not upload anything to find that out.
        if rebases < rebase_tries:
            work.is_at_tip = not await rebase_sealed(workspace, solver)
            rebases += not work.is_at_tip
        noted = with_rebase_attempts(metadata, rebases)
        try:
            landed = await _try_commit(workspace, message, noted, work, rewrite_all=rewrite_all)
        except ConflictError as conflict:
            if conflict.kind != ErrorKind.COMMIT_CONFLICT or rebases >= rebase_tries:
                raise
            others.lost(clock.now_us(), (clock.now_us() - started) / 1e6)
            await handle.driver.sleep(others.pause(clock.now_us(), random.random()))
        else:
            others.won(clock.now_us(), (clock.now_us() - started) / 1e6)
            return landed


async def _try_commit(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any] | None,
    work: CommitWork,
    *,
    rewrite_all: bool = False,
) -> SnapshotId:
    handle, state = workspace
    branch, base = _require_branch(state), state.snapshot_id
    written = await _write(
        workspace, message, metadata, parent_id=base, work=work, rewrite_all=rewrite_all
    )
    if handle.spec_version == 1:
        try:
            await refs_v1.move_branch(handle, branch, written.snapshot.id, base)
        except ConflictError as conflict:
            raise ConflictError(
                conflict.expected_parent, conflict.actual_parent, kind=ErrorKind.COMMIT_CONFLICT
            ) from None
    else:

        def change(info: RepoInfo, _now: int) -> Changed:
            _require_news(info, written)
            _require_moves_allowed(info, state)
            _require_tip(info, branch, base)
            values = {"branch": branch, "new_snap_id": written.snapshot.id}
            return _with_commit(info, branch, written, base), UpdateKind.NEW_COMMIT, values

        await _publish(handle, change, work.seen)
    forget_replaced(handle, state.snapshot, written.snapshot)
    state.finish(written.snapshot)
    return written.snapshot.id


async def amend(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any] | None,
    *,
    allow_empty: bool = False,
    rewrite_all: bool = False,
) -> SnapshotId:
    """Replace the tip of the branch by a snapshot that also has the session's changes."""
    handle, state = workspace
    handle.require_version_2("amending a commit")
    branch = _require_branch(state)
    _require_changes(state, allow_empty=allow_empty)
    with state.sealed():
        base = state.snapshot_id
        listed = (await handle.assets.repo_object()).info.snapshots
        _require_listed(listed, base)
        parent = listed[base].parent_id
        if parent is None:
            raise SessionStateError(
                "the first snapshot of a repository cannot be amended; commit on top of it",
                ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
            )
        before = await handle.assets.transaction_log(base)
        _require_amendable(state, before)
        written = await _write(
            Workspace(handle, state),
            message,
            metadata,
            parent_id=parent,
            before=before,
            rewrite_all=rewrite_all,
        )

        def change(info: RepoInfo, _now: int) -> Changed:
            _require_news(info, written)
            _require_moves_allowed(info, state)
            _require_tip(info, branch, base)
            _require_listed(info.snapshots, base)
            pruned = info.snapshots[base].pruned_ancestor_tx_logs
            changed = _with_commit(info, branch, written, info.snapshots[base].parent_id, pruned)
            values = {
                "branch": branch,
                "previous_snap_id": base,
                "new_snap_id": written.snapshot.id,
            }
            return changed, UpdateKind.COMMIT_AMENDED, values

        await _publish(handle, change)
        forget_replaced(handle, state.snapshot, written.snapshot)
        state.finish(written.snapshot)
        return written.snapshot.id


async def flush(
    workspace: Workspace, message: str, metadata: Mapping[str, Any] | None
) -> SnapshotId:
    """Store the session's changes as a snapshot that no branch points at."""
    handle, state = workspace
    _require_writable(state)
    if state.is_fork:
        raise SessionStateError(
            "a fork cannot be flushed; merge it into the session it was forked from",
            ErrorKind.UNKNOWN,
        )
    with state.sealed():
        base = state.snapshot_id
        if handle.spec_version > 1:
            _require_listed((await handle.assets.repo_object()).info.snapshots, base)
        written = await _write(workspace, message, metadata, parent_id=base)
        if handle.spec_version > 1:

            def change(info: RepoInfo, _now: int) -> Changed:
                _require_news(info, written)
                _require_moves_allowed(info, state)
                _require_listed(info.snapshots, base)
                values = {"new_snap_id": written.snapshot.id}
                changed = _with_commit(info, None, written, base)
                return changed, UpdateKind.NEW_DETACHED_SNAPSHOT, values

            await _publish(handle, change)
        state.finish(written.snapshot)
        return written.snapshot.id


async def store_aside(workspace: Workspace) -> Snapshot:
    """Store the session as it is now as a snapshot that nothing lists, for its forks to read.

    Nothing of it ends up in a commit. It goes with the next garbage collection.
    """
    state = workspace.state
    return (await _write(workspace, "fork", None, parent_id=state.snapshot_id)).snapshot


# -- checks


def _require_writable(state: SessionState) -> None:
    if state.mode == SessionMode.readonly:
        raise SessionStateError(
            "a read-only session cannot be committed; open a writable_session",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )


def _require_branch(state: SessionState) -> str:
    _require_writable(state)
    if state.branch is None:
        raise SessionStateError(
            "a fork cannot be committed; merge it into the session it was forked from",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )
    return state.branch


def _require_changes(state: SessionState, *, allow_empty: bool) -> None:
    if state.changes.is_empty and not allow_empty:
        raise SessionStateError(
            "there is nothing to commit: the session has no changes; pass allow_empty=True to "
            "commit anyway",
            ErrorKind.NO_CHANGES_TO_COMMIT,
        )


def _require_amendable(state: SessionState, before: TransactionLog) -> None:
    """A log says either where nodes went or what happened inside them; readers count on it."""
    if before.moved_nodes and state.mode != SessionMode.rearrange:
        raise SessionStateError(
            "the commit to be amended moved nodes, only a rearrange_session can amend it; commit "
            "on top of it instead",
            ErrorKind.REARRANGE_SESSION_ONLY,
        )


def _require_moves_allowed(info: RepoInfo, state: SessionState) -> None:
    if state.mode == SessionMode.rearrange:
        require_flag(info, "move_node")


def _require_tip(info: RepoInfo, branch: str, expected: SnapshotId) -> None:
    tip = find_branch(info, branch)
    if tip != expected:
        raise ConflictError(expected.text, tip.text)


def _require_listed(snapshots: SnapshotTable, base: SnapshotId) -> None:
    if base not in snapshots:
        raise SnapshotNotFoundError(
            f"snapshot {base}, from which the session started, has expired or was deleted since; "
            "the session keeps its changes: rebase it, or make them again in a new session"
        )


# -- publishing


class _Landed(Exception):  # noqa: N818 - good news, not an error
    """An earlier try of this very update happened after all."""


def _require_news(info: RepoInfo, written: _Written) -> None:
    """Stop when the snapshot is listed: something between us and the storage repeated a request
    that had succeeded, and what came back looked like another writer's doing."""
    if written.snapshot.id in info.snapshots:
        raise _Landed


async def _publish(handle: RepoHandle, change: Change, seen: Seen | None = None) -> None:
    try:
        await update_repo(handle, change, seen=seen)
    except _Landed:
        return


# -- writing


async def _write(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any] | None,
    *,
    parent_id: SnapshotId,
    before: TransactionLog | None = None,
    work: CommitWork | None = None,
    rewrite_all: bool = False,
) -> _Written:
    """Write manifests, snapshot and log; `before` is the log of a commit being amended, `work`
    what earlier tries of the same commit have done already."""
    handle, state = workspace
    work = work or CommitWork()
    base = state.snapshot
    properties = {**handle.shared.default_commit_metadata, **(metadata or {})}
    encode_metadata(properties, handle.spec_version)  # refused before anything is uploaded
    sizes = split_sizes(handle.settings.manifest)
    snapshot_id = handle.new_id(SnapshotId)
    with state.lock:  # every chunk in the plan has its place in a pack, and is stored below
        packs = close_packs(state)
        check_placed(state.changes)
        plan = plan_commit(base, state.changes, sizes, rewrite_all=rewrite_all)
        # Now, so that it tells of what the plan has.
        log = state.changes.log(snapshot_id, is_packed=before is None)
    await store_closed(workspace, packs)
    if work.looks_first:
        await _look_before_upload(workspace, plan, work)
    manifests = await work.write_manifests(handle, plan, state.changes)
    snapshot = build_snapshot(
        plan,
        manifests,
        snapshot_id=snapshot_id,
        parent_id=parent_id if handle.spec_version == 1 else None,
        flushed_at=_flush_time(handle, base),
        message=message,
        metadata=properties,
    )
    if before is not None:
        log = union_of_logs(before, log)
    version = handle.spec_version
    files = [
        handle.assets.encode_snapshot(snapshot, version),
        handle.assets.encode_log(log, version),
    ]
    await handle.assets.put_metadata_files(files if work.seen is None else [*files, work.seen.copy])
    await _check_clock_skew(handle, snapshot)
    await handle.driver.sync()
    weight = max(1, len(snapshot.nodes))
    handle.assets.caches.snapshots.put(snapshot.id, snapshot, weight)
    return _Written(snapshot, log)


async def _look_before_upload(workspace: Workspace, plan: CommitPlan, work: CommitWork) -> None:
    """Find out that the branch has moved before anything is uploaded, as late as possible."""
    handle, state = workspace
    needed = {
        ref.id
        for array_plan in plan.arrays.values()
        for rewrite in array_plan.rewrites
        for ref in rewrite.sources
    }
    cached = handle.assets.caches
    infos = [plan.files[key] for key in needed if cached.manifests.get(key) is None]
    if work.is_at_tip and not infos:
        # The look that found the session at the tip was a moment ago: nothing was fetched since.
        work.seen = None if cached.repo is None else seen_now(handle, cached.repo)
        return
    if sum(info.num_chunk_refs for info in infos) < _MOST_REFS_AHEAD:
        await handle.assets.manifests([(info.id, info.size_bytes) for info in infos])
    branch, base = _require_branch(state), state.snapshot_id
    if handle.spec_version == 1:
        tip = await refs_v1.lookup_branch(handle, branch)
        if tip != base:
            raise ConflictError(base.text, tip.text)
        return
    current = await handle.assets.repo_object()
    _require_tip(current.info, branch, base)
    work.seen = seen_now(handle, current)


def _flush_time(handle: RepoHandle, parent: Snapshot) -> int:
    now = handle.clock.now_us()
    if now <= parent.flushed_at:
        if parent.flushed_at - now < _MAX_CLOCK_STEP_US:
            return parent.flushed_at + 1  # another writer's clock is a little ahead
        raise FormatError(
            f"the parent snapshot was written {(parent.flushed_at - now) / 1e6:.3f} s in the "
            "future of this machine's clock; set the clock right",
            ErrorKind.SNAPSHOT_TIMESTAMP,
        )
    return now


async def _check_clock_skew(handle: RepoHandle, snapshot: Snapshot) -> None:
    """Refuse to publish a time that the storage's own clock contradicts; asked once in a while."""
    checked_at = handle.shared.clock_checked_at
    if checked_at is not None and 0 <= snapshot.flushed_at - checked_at < _CLOCK_CHECK_LASTS_US:
        return
    stored = await handle.driver.head(layout.snapshot_key(snapshot.id))
    skew = snapshot.flushed_at / 1e6 - stored.created_at.timestamp()
    if abs(skew) > _MAX_CLOCK_SKEW_S:
        raise FormatError(
            f"this machine's clock is {skew:+.0f} s off the storage's; at most "
            f"{_MAX_CLOCK_SKEW_S} s are allowed, set the clock right",
            ErrorKind.SNAPSHOT_TIMESTAMP,
        )
    handle.shared.clock_checked_at = snapshot.flushed_at


def _with_commit(
    info: RepoInfo,
    branch: str | None,
    written: _Written,
    parent_id: SnapshotId | None,
    pruned: tuple[SnapshotId, ...] = (),
) -> RepoInfo:
    snapshot = written.snapshot
    listed = SnapshotInfo(
        snapshot.id, parent_id, snapshot.flushed_at, snapshot.message, snapshot.metadata, pruned
    )
    branches = info.branches if branch is None else {**info.branches, branch: snapshot.id}
    return replace(info, branches=branches, snapshots=info.snapshots.with_snapshot(listed))
