"""The verbs of a commit: `commit`, `amend`, `flush`.

Each writes the files of a snapshot (`write_commit`). The family of the repository then publishes it
with one conditional write.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from icefloe.changes.made_manifests import MadeManifests
from icefloe.errors import ConflictError, ErrorKind, SessionStateError
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.observe import COMMIT, observed
from icefloe.on_demand import on_demand
from icefloe.repo.handle import NewCommit
from icefloe.repo.sessions import SessionMode, SessionState
from icefloe.repo.workspace import Workspace
from icefloe.repo.write_commit import CommitRequest, TipCheck, write_commit
from icefloe.repo.write_manifests import forget_replaced

if TYPE_CHECKING:
    from icefloe.changes.solvers import ConflictSolver
    from icefloe.repo import rebase
else:
    rebase = on_demand("icefloe.repo.rebase")

_NOTES = "__icechunk"


@observed("commit")
async def commit(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any] | None,
    *,
    allow_empty: bool = False,
    rebase_with: ConflictSolver | None = None,
    rebase_tries: int = 1000,
    rewrite_all: bool = False,
    source: SnapshotId | None = None,
) -> SnapshotId:
    """Make the session's changes the new tip of its branch.

    `source` is another snapshot whose chunks the changes refer to, if there is one.

    Raises:
        ConflictError: the branch has moved since the session was opened. With a solver: it still
            moved after `rebase_tries` rebases. The session keeps its changes.
        RebaseFailedError: the solver could not settle a conflict.
    """
    state = workspace.state
    branch = _require_branch(state)
    _require_changes(state, allow_empty=allow_empty)
    request = CommitRequest(message, metadata, rewrite_all, source)
    with state.sealed():
        if rebase_with is not None:
            return await _commit_rebasing(workspace, branch, request, rebase_with, rebase_tries)
        looks = workspace.handle.family.looks_before_upload
        tip_check = TipCheck.BEFORE_UPLOAD if looks else TipCheck.NONE
        return await _try_commit(workspace, branch, request, tip_check, MadeManifests())


async def _commit_rebasing(
    workspace: Workspace,
    branch: str,
    request: CommitRequest,
    solver: ConflictSolver,
    rebase_tries: int,
) -> SnapshotId:
    """Alternate between rebasing and trying to commit."""
    handle = workspace.handle
    clock, contention = handle.clock, handle.shared.contention
    made = MadeManifests()
    rebases = 0
    while True:
        # Where writers can queue up, one that has lost lately does so instead of losing again.
        turn = handle.driver.turn() if contention.is_crowded(clock.now_us()) else None
        with turn or nullcontext():
            started, tip_check = clock.now_us(), TipCheck.BEFORE_UPLOAD
            # A session that is behind its branch notices it before the first upload.
            if rebases < rebase_tries:
                if await rebase.rebase_sealed(workspace, solver):
                    rebases += 1
                else:
                    tip_check = TipCheck.WAS_DONE
            noted = request._replace(metadata=_with_rebase_attempts(request.metadata, rebases))
            try:
                landed = await _try_commit(workspace, branch, noted, tip_check, made)
            except ConflictError as conflict:
                if conflict.kind != ErrorKind.COMMIT_CONFLICT or rebases >= rebase_tries:
                    raise
                contention.lost(clock.now_us(), (clock.now_us() - started) / 1e6)
            else:
                contention.won(clock.now_us(), (clock.now_us() - started) / 1e6)
                return landed
        pause = 0.0
        if handle.driver.turn() is None:
            pause = contention.pause(clock.now_us(), random.random())
            await handle.driver.sleep(pause)
        COMMIT.info("another commit to %r was first, trying again after %.2f s", branch, pause)


def _with_rebase_attempts(metadata: Mapping[str, Any] | None, number: int) -> dict[str, Any]:
    """Commit metadata that says how often the session was rebased."""
    noted = dict(metadata or {})
    inner = noted.get(_NOTES)
    notes = dict(inner) if isinstance(inner, Mapping) else {}
    return {**noted, _NOTES: {**notes, "rebase_attempts": number}}


async def _try_commit(
    workspace: Workspace,
    branch: str,
    request: CommitRequest,
    tip_check: TipCheck,
    made: MadeManifests,
) -> SnapshotId:
    handle, state = workspace
    written = await write_commit(
        workspace,
        request,
        parent_id=state.snapshot_id,
        branch=branch,
        tip_check=tip_check,
        made=made,
    )
    new = _new_commit(state, written.snapshot)._replace(source=request.source)
    await handle.family.publish(handle, new, branch, written.seen)
    COMMIT.info("committed %s to %r of %s", written.snapshot.id, branch, handle.storage.url)
    return _finish(workspace, written.snapshot)


@observed("amend")
async def amend(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any] | None,
    *,
    allow_empty: bool = False,
    rewrite_all: bool = False,
) -> SnapshotId:
    """Replace the tip of the branch with a snapshot that also has the session's changes."""
    handle, state = workspace
    handle.family.require_amending()
    branch = _require_branch(state)
    _require_changes(state, allow_empty=allow_empty)
    with state.sealed():
        parent = await handle.family.require_amendable(handle, state.snapshot_id)
        amended = await handle.assets.transaction_log(state.snapshot_id)
        _require_same_kind(state, amended)
        request = CommitRequest(message, metadata, rewrite_all)
        written = await write_commit(workspace, request, parent_id=parent, amended=amended)
        new = _new_commit(state, written.snapshot)
        await handle.family.publish_amended(handle, new, branch)
        COMMIT.info("%s replaced the tip of %r", written.snapshot.id, branch)
        return _finish(workspace, written.snapshot)


@observed("flush")
async def flush(
    workspace: Workspace, message: str, metadata: Mapping[str, Any] | None
) -> SnapshotId:
    """Store the session's changes as a snapshot that no branch points at."""
    handle, state = workspace
    _require_not_read_only(state)
    if state.is_fork:
        raise SessionStateError(
            "a fork cannot be flushed; merge it into the session it was forked from",
            ErrorKind.UNKNOWN,
        )
    with state.sealed():
        base = state.snapshot_id
        await handle.family.require_listed(handle, base)
        written = await write_commit(workspace, CommitRequest(message, metadata), parent_id=base)
        await handle.family.publish_detached(handle, _new_commit(state, written.snapshot))
        state.finish(written.snapshot)
        return written.snapshot.id


def _new_commit(state: SessionState, snapshot: Snapshot) -> NewCommit:
    moves_nodes = state.mode == SessionMode.rearrange or state.changes.moves.has_any
    return NewCommit(snapshot, state.snapshot_id, moves_nodes, state.opened_at)


def _finish(workspace: Workspace, snapshot: Snapshot) -> SnapshotId:
    handle, state = workspace
    forget_replaced(handle, state.snapshot, snapshot)
    state.finish(snapshot)
    return snapshot.id


# -- checks


def _require_not_read_only(state: SessionState) -> None:
    if state.mode == SessionMode.readonly:
        raise SessionStateError(
            state.why_read_only("the session is read-only; open a writable_session"),
            ErrorKind.COMMIT_NOT_ALLOWED,
        )


def _require_branch(state: SessionState) -> str:
    _require_not_read_only(state)
    if state.branch is None:
        raise SessionStateError(
            "this is a fork; merge it into the session it was forked from",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )
    return state.branch


def _require_changes(state: SessionState, *, allow_empty: bool) -> None:
    if state.changes.is_empty and not allow_empty:
        raise SessionStateError(
            "write something first, or pass allow_empty=True to commit anyway",
            ErrorKind.NO_CHANGES_TO_COMMIT,
        )


def _require_same_kind(state: SessionState, amended: TransactionLog) -> None:
    """Refuse to mix moves and edits in one log: readers expect one or the other."""
    if amended.moved_nodes and state.mode != SessionMode.rearrange:
        raise SessionStateError(
            "the commit to be amended moved nodes, only a rearrange_session can amend it; commit "
            "on top of it instead",
            ErrorKind.REARRANGE_SESSION_ONLY,
        )
