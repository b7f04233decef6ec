"""Rebase: put the uncommitted changes of a session on top of what others have committed.

Everything that is needed is fetched first, then the commits in between are gone through without
touching storage, and only then does the session change: it is never left halfway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from icefloe.changes.conflicts import Conflict, changes_nodes, find_conflicts, moved_again
from icefloe.changes.divergence import net_log
from icefloe.changes.solvers import (
    ConflictSolver,
    Decision,
    VersionSelection,
    apply_decisions,
    decide,
)
from icefloe.errors import (
    ErrorKind,
    RebaseFailedError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.repo import refs_v1
from icefloe.repo.handle import RepoHandle
from icefloe.repo.prepared import edit_again
from icefloe.repo.sessions import SessionMode, SessionState, committed_chunks


@dataclass(slots=True)
class _Commit:
    """A commit to get over: its own log, preceded by those of ancestors that expired."""

    id: SnapshotId
    pruned: Sequence[SnapshotId] = ()
    logs: list[TransactionLog] = field(default_factory=list)


async def rebase(handle: RepoHandle, state: SessionState, solver: ConflictSolver) -> int:
    """Move the session to the tip of its branch; returns how many commits it went over.

    Raises:
        RebaseFailedError: the solver could not settle a conflict. The session is on the last
            commit without one, and keeps its changes.
        SessionStateError: a log that is needed has been deleted, kind `rebase-tx-log-pruned`.
    """
    if state.mode == SessionMode.readonly or state.branch is None:
        raise SessionStateError(
            "this session cannot commit, so there is nothing to rebase; rebase a writable_session",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )
    tip, line = await _commits_since(handle, state)
    if tip is None or tip == state.snapshot_id:
        return 0
    if line is None:
        tip_snapshot = await handle.assets.snapshot(tip)
        log = await _difference(handle, state, tip_snapshot)
        line = [_Commit(tip, logs=[log])]
    else:
        tip_snapshot = await _fetch_logs(handle, line)
    known = await _fetch_nodes(handle, state, line, tip_snapshot)
    reached, decisions, conflicts = _replay(state, solver, line, known)
    if reached:
        last = line[reached - 1].id
        snapshot = known.get(last) or await handle.assets.snapshot(last)
        while unfit := _move(state, snapshot, decisions):
            await edit_again(handle, state, unfit)
    if conflicts:
        raise RebaseFailedError(line[reached].id.text, conflicts)
    return reached


def _move(state: SessionState, snapshot: Snapshot, decisions: Sequence[Decision]) -> list[NodeId]:
    """Put the session on another snapshot, unless manifests written ahead are in the way: then
    nothing changes, and the arrays they belong to are returned."""
    changed = {
        decision.conflict.node_id
        for decision in decisions
        if decision.version == VersionSelection.UseTheirs
    }
    with state.lock:
        changes = state.changes
        unfit, prepared = [], {}
        for node_id, ahead in changes.prepared.items():
            found = snapshot.nodes.find(changes.chunk_path(node_id))
            array = found.array if found is not None and found.id == node_id else None
            rebased = None if node_id in changed else ahead.rebased(array)
            if rebased is None:
                unfit.append(node_id)
            else:
                prepared[node_id] = rebased
        if not unfit:
            changes.prepared = prepared
            apply_decisions(changes, decisions, snapshot.nodes)
            changes.moves = moved_again(changes.moves, snapshot.nodes)
            state.snapshot = snapshot
            state.forget_nodes()
    return unfit


def _replay(
    state: SessionState,
    solver: ConflictSolver,
    line: Sequence[_Commit],
    known: dict[SnapshotId, Snapshot],
) -> tuple[int, list[Decision], list[Conflict]]:
    """Go over the commits, oldest first, up to one whose conflicts cannot be settled."""
    settled: list[Decision] = []
    before = state.snapshot.nodes
    for number, commit in enumerate(line):
        # A commit that made and deleted no node left the hierarchy as it was.
        snapshot = known.get(commit.id) if any(map(changes_nodes, commit.logs)) else None
        after = before if snapshot is None else snapshot.nodes
        for log in commit.logs:
            decisions = decide(solver, find_conflicts(state.changes, log, before, after))
            if any(decision.version == VersionSelection.Fail for decision in decisions):
                return number, settled, [decision.conflict for decision in decisions]
            settled.extend(decisions)
        before = after
    return len(line), settled, []


# -- finding the commits


async def _commits_since(
    handle: RepoHandle, state: SessionState
) -> tuple[SnapshotId | None, list[_Commit] | None]:
    """The tip of the branch, None when it is gone, and the commits after the session's base up to
    it, oldest first; None when the base is not in its history."""
    assert state.branch is not None
    if handle.spec_version > 1:
        info = (await handle.assets.repo_object()).info
        tip = info.branches.get(state.branch)
        return tip, None if tip is None else _line_v2(info, tip, state.snapshot_id)
    try:
        tip = await refs_v1.lookup_branch(handle, state.branch)
    except RefNotFoundError:
        return None, None
    return tip, await _line_v1(handle, tip, state.snapshot_id)


def _line_v2(info: RepoInfo, tip: SnapshotId, base: SnapshotId) -> list[_Commit] | None:
    line: list[_Commit] = []
    for key in info.snapshots.ancestry(tip):
        if key == base:
            return line[::-1]
        pruned = info.snapshots[key].pruned_ancestor_tx_logs
        if base in pruned:  # it expired, but what came after it is still listed
            line.append(_Commit(key, pruned[pruned.index(base) + 1 :]))
            return line[::-1]
        line.append(_Commit(key, pruned))
    return None


async def _line_v1(handle: RepoHandle, tip: SnapshotId, base: SnapshotId) -> list[_Commit] | None:
    line: list[_Commit] = []
    seen: set[SnapshotId] = set()
    current: SnapshotId | None = tip
    while current is not None and current not in seen:
        if current == base:
            return line[::-1]
        seen.add(current)
        line.append(_Commit(current))
        try:
            current = (await handle.assets.snapshot(current)).parent_id
        except SnapshotNotFoundError:
            if current == tip:
                raise
            return None  # history was cut off by expiration
    return None


# -- fetching


async def _fetch_logs(handle: RepoHandle, line: Sequence[_Commit]) -> Snapshot:
    """All logs and the newest snapshot, in one go."""
    wanted = [key for commit in line for key in (*commit.pruned, commit.id)]
    try:
        (tip,), logs = await handle.assets.snapshots_and_logs([line[-1].id], wanted)
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            await _report_missing_log(handle, line)
        raise
    found = {log.id: log for log in logs}
    for commit in line:
        commit.logs = [found[key] for key in (*commit.pruned, commit.id)]
    return tip


async def _report_missing_log(handle: RepoHandle, line: Sequence[_Commit]) -> None:
    for commit in line:
        for key in commit.pruned:
            try:
                await handle.assets.transaction_log(key)
            except StorageError as error:
                if error.kind != ErrorKind.OBJECT_NOT_FOUND:
                    raise
                raise SessionStateError(
                    f"the session cannot be rebased: snapshot {key} expired and its transaction "
                    "log has been deleted, so that what it changed is not known; make the changes "
                    "again in a new session",
                    ErrorKind.REBASE_TX_LOG_PRUNED,
                ) from None


async def _fetch_nodes(
    handle: RepoHandle, state: SessionState, line: Sequence[_Commit], tip: Snapshot
) -> dict[SnapshotId, Snapshot]:
    """The snapshots whose nodes have to be looked at: the tip's and where nodes came or went."""
    changes = state.changes
    looks_at_nodes = bool(changes.new or changes.deleted or changes.moves.steps)
    wanted = [
        commit.id for commit in line[:-1] if looks_at_nodes and any(map(changes_nodes, commit.logs))
    ]
    snapshots, _ = await handle.assets.snapshots_and_logs(wanted, [])
    return {snapshot.id: snapshot for snapshot in (*snapshots, tip)}


async def _difference(handle: RepoHandle, state: SessionState, tip: Snapshot) -> TransactionLog:
    """What differs between the session's base and a tip that does not descend from it.

    The branch was reset or its commit amended, or history was cut. What the logs on the way would
    say is then not what matters, but how the two states differ.
    """
    base = state.snapshot
    pairs: dict[NodeId, tuple[ChunkRefs, ChunkRefs]] = {}
    for node_id in state.changes.edited:
        path = state.changes.chunk_path(node_id)
        old, new = base.nodes.find(path), tip.nodes.find(path)
        if old is None or new is None or old.id != new.id or old.array is None or new.array is None:
            continue  # ours alone, or gone: the nodes tell
        if {ref.id for ref in old.array.manifests} != {ref.id for ref in new.array.manifests}:
            pairs[node_id] = (
                await committed_chunks(handle, base.manifest_files, old),
                await committed_chunks(handle, tip.manifest_files, new),
            )
    return net_log(tip.id, base.nodes, tip.nodes, state.changes, pairs)
