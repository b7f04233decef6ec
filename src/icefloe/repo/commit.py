"""Commit, amend and flush: build the files, write them, then move the branch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.changes.build import CommitPlan, build_snapshot, plan_commit
from icefloe.changes.log_union import union_of_logs
from icefloe.changes.packs import check_placed
from icefloe.changes.solvers import ConflictSolver
from icefloe.changes.split_sizes import split_sizes
from icefloe.errors import ConflictError, ErrorKind, SessionStateError
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.repo.clock_checks import later_than, require_clock_of_storage
from icefloe.repo.commit_work import CommitWork, with_rebase_attempts
from icefloe.repo.handle import NewCommit
from icefloe.repo.packing import close_packs, store_closed
from icefloe.repo.rebase import rebase_sealed
from icefloe.repo.sessions import SessionMode, SessionState
from icefloe.repo.workspace import Workspace
from icefloe.repo.write_manifests import forget_replaced

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
            work = CommitWork(looks_first=handle.family.looks_before_upload)
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
    await handle.family.publish(handle, _new_commit(state, written), branch, work.seen)
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
    if not handle.family.can_amend:
        handle.family.require_repo_object("amending a commit")
    branch = _require_branch(state)
    _require_changes(state, allow_empty=allow_empty)
    with state.sealed():
        base = state.snapshot_id
        parent = await handle.family.require_amendable(handle, base)
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

        await handle.family.publish_amended(handle, _new_commit(state, written), branch)
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
        await handle.family.require_listed(handle, base)
        written = await _write(workspace, message, metadata, parent_id=base)
        await handle.family.publish_detached(handle, _new_commit(state, written))
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
    handle.family.require_metadata(properties)  # refused before anything is uploaded
    sizes = split_sizes(handle.settings.manifest)
    snapshot_id = handle.new_id(SnapshotId)
    with state.lock:  # every chunk in the plan has its place in a pack, and is stored below
        packs = close_packs(state)
        check_placed(state.changes)
        changes = handle.family.with_node_ids(handle, base, state.changes)
        plan = plan_commit(base, changes, sizes, rewrite_all=rewrite_all)
        # Now, so that it tells of what the plan has.
        log = changes.log(snapshot_id, is_packed=before is None)
    await store_closed(workspace, packs)
    if work.looks_first:
        await _look_before_upload(workspace, plan, work)
    manifests = await work.write_manifests(handle, plan, changes)
    snapshot = build_snapshot(
        plan,
        manifests,
        snapshot_id=snapshot_id,
        parent_id=parent_id if handle.family.stores_parents else None,
        flushed_at=later_than(base.flushed_at, handle.clock.now_us(), "the parent snapshot"),
        message=message,
        metadata=properties,
    )
    if before is not None:
        log = union_of_logs(before, log)
    snapshot, files = await handle.assets.encode_commit(snapshot, log)
    seen = () if work.seen is None else work.seen.files
    await handle.assets.put_metadata_files([*files, *seen])
    await require_clock_of_storage(handle, files[0][0], snapshot.flushed_at)
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
        work.seen = handle.family.seen_tip(handle)
        return
    if sum(info.num_chunk_refs for info in infos) < _MOST_REFS_AHEAD:
        await handle.assets.manifests([(info.id, info.size_bytes) for info in infos])
    branch, base = _require_branch(state), state.snapshot_id
    work.seen = await handle.family.require_tip(handle, branch, base)


def _new_commit(state: SessionState, written: _Written) -> NewCommit:
    is_rearranged = state.mode == SessionMode.rearrange
    return NewCommit(written.snapshot, state.snapshot_id, moves_nodes=is_rearranged)
