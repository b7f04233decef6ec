"""Moving a session to a new tip, and waiting while others commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.conflicts import (
    Conflict,
    ConflictSolver,
    Decision,
    VersionSelection,
    apply_decisions,
    changes_nodes,
    decide,
    find_conflicts,
    moved_again,
    net_log,
)
from icefloe.errors import ErrorKind, RebaseFailedError, SessionStateError, StorageError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.nodes import Node
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import NodeId, SnapshotId
from icefloe.observe import COMMIT, observed
from icefloe.repo.commit import store_packs
from icefloe.repo.handle import LineCommit, RepoHandle
from icefloe.repo.history import find_log, is_child
from icefloe.repo.session import (
    SessionMode,
    SessionState,
    Workspace,
    committed_chunks,
    restore_edits,
)

# -- Rebase: put the uncommitted changes of a session on top of newer commits.
#
# Everything that is needed is fetched first. The newer commits are then replayed under the
# session's lock, without requests, and the session moves to its new base in one step.


@dataclass(frozen=True, slots=True)
class _Commit:
    """A newer commit: its log, preceded by the logs of expired ancestors."""

    id: SnapshotId
    logs: Sequence[TransactionLog]


@dataclass(frozen=True, slots=True)
class _Line:
    """The commits between the session's base and the tip, oldest first, as far as fetched."""

    commits: Sequence[_Commit]
    tip: Snapshot
    snapshots: Mapping[SnapshotId, Snapshot]
    is_diverged: bool = False
    """Whether the session's base is not an ancestor of the tip. The tip then counts as one commit,
    whose log is computed by comparing the two snapshots."""
    chunks: Mapping[NodeId, tuple[ChunkRefs, ChunkRefs]] = field(default_factory=dict)
    """If diverged: both states of the arrays whose manifests differ."""


class Overtaken(NamedTuple):
    """The base of a session, and the commits of others since then."""

    base: Snapshot
    tip: Snapshot
    logs: Sequence[TransactionLog]


class LineSolver(ConflictSolver):
    """A solver that looks at all newer commits together, and changes what the session wrote.

    The session is rebased over all of them, or not at all.
    """

    async def bring_over(
        self, workspace: Workspace, line: Overtaken
    ) -> SessionState | list[Conflict] | None:
        """A session at the tip with the changes of this one, or why there is none.

        None if the usual rules hold. The session takes no changes meanwhile, has no chunks that
        are not stored, and none in prepared manifests.

        Args:
            workspace: the session.
            line: its base, and the commits since then.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to rebase")


async def rebase(workspace: Workspace, solver: ConflictSolver) -> int:
    """Move the session to the tip of its branch. Returns the number of commits replayed.

    Raises:
        RebaseFailedError: the solver could not settle a conflict. The session is at the last commit
            without a conflict and keeps its changes.
        SessionStateError: a log that is needed has been deleted, kind `rebase-tx-log-pruned`.
    """
    state = workspace.state
    with state.lock:
        state.require_no_commit()
    with state.sealed() if isinstance(solver, LineSolver) else nullcontext():
        return await rebase_sealed(workspace, solver)


@observed("rebase")
async def rebase_sealed(workspace: Workspace, solver: ConflictSolver) -> int:
    """`rebase`, called by a commit of the same session."""
    handle, state = workspace
    if state.mode == SessionMode.readonly or state.branch is None:
        raise SessionStateError(
            state.why_read_only("the session is read-only or a fork; rebase a writable_session"),
            ErrorKind.COMMIT_NOT_ALLOWED,
        )
    base = state.snapshot
    line = await _line_to_tip(handle, state.branch, base)
    if line is None:
        return 0
    if isinstance(solver, LineSolver) and not line.is_diverged:
        await store_packs(workspace)
        await restore_edits(workspace, state.changes.prepared)
        logs = [log for commit in line.commits for log in commit.logs]
        brought = await solver.bring_over(workspace, Overtaken(base, line.tip, logs))
        if isinstance(brought, list):
            raise RebaseFailedError(line.tip.id.text, brought)
        if brought is not None:
            with state.lock:
                state.show(brought.snapshot, brought.changes, brought.packs)
            COMMIT.info("appended behind %d commits to %r", len(line.commits), state.branch)
            return len(line.commits)
    while True:
        # Other threads may keep writing during the fetches. Their changes are compared here, under
        # the lock that also moves the session, so none is missed.
        with state.lock:
            _require_base(state, base)
            changes, unfit = state.changes, list[NodeId]()
            snapshots = _unknown_snapshots(line, changes)
            arrays = _unknown_arrays(line, base, changes)
            if not snapshots and not arrays:
                reached, decisions, conflicts = _replay(changes, base, solver, line)
                if not reached:
                    break
                last = line.commits[reached - 1].id
                if last in line.snapshots:
                    unfit = _move(state, line.snapshots[last], decisions)
                    if not unfit:
                        break
                else:
                    snapshots = [last]
        found, _ = await handle.assets.snapshots_and_logs(snapshots, [])
        chunks = await _fetch_chunks(handle, line, base, arrays)
        line = replace(
            line,
            snapshots={**line.snapshots, **{snapshot.id: snapshot for snapshot in found}},
            chunks={**line.chunks, **chunks},
        )
        await restore_edits(workspace, unfit)
    COMMIT.info(
        "rebased from %s over %d of %d commits to %r, %d conflicts left",
        base.id,
        reached,
        len(line.commits),
        state.branch,
        len(conflicts),
    )
    if conflicts:
        raise RebaseFailedError(line.commits[reached].id.text, conflicts)
    return reached


def _require_base(state: SessionState, base: Snapshot) -> None:
    if state.snapshot is not base or state.is_read_only:
        raise SessionStateError(
            state.why_read_only("another thread rebased the session at the same time; try again"),
            ErrorKind.COMMIT_NOT_ALLOWED,
        )


def _move(state: SessionState, snapshot: Snapshot, decisions: Sequence[Decision]) -> list[NodeId]:
    """Move the session to another snapshot.

    Returns the arrays whose prepared manifests do not fit on it. If there are any, nothing changes.
    """
    changed = {
        decision.conflict.node_id
        for decision in decisions
        if decision.version == VersionSelection.UseTheirs
    }
    changes = state.changes.copy()
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
        state.show(snapshot, changes)
    return unfit


def _replay(
    changes: ChangeSet, base: Snapshot, solver: ConflictSolver, line: _Line
) -> tuple[int, list[Decision], list[Conflict]]:
    """Replay the commits, oldest first, up to the first whose conflicts cannot be settled."""
    settled: list[Decision] = []
    before, commits = base.nodes, line.commits
    if line.is_diverged:
        tip = line.tip
        log = net_log(tip.id, base.nodes, tip.nodes, changes, line.chunks)
        commits = [_Commit(tip.id, [log])]
    for number, commit in enumerate(commits):
        # A commit that created and deleted no node did not change the hierarchy.
        snapshot = line.snapshots.get(commit.id) if any(map(changes_nodes, commit.logs)) else None
        after = before if snapshot is None else snapshot.nodes
        for log in commit.logs:
            decisions = decide(solver, find_conflicts(changes, log, before, after))
            if any(decision.version == VersionSelection.Fail for decision in decisions):
                return number, settled, [decision.conflict for decision in decisions]
            settled.extend(decisions)
        before = after
    return len(commits), settled, []


async def _line_to_tip(handle: RepoHandle, branch: str, base: Snapshot) -> _Line | None:
    """The commits after the session's base; None when there are none, or the branch is gone."""
    tip, since = await handle.format.line_since(handle, branch, base.id)
    if tip is None or tip == base.id:
        return None
    if since is not None and await _has_all_logs(handle, base, since):
        snapshot, commits = await _fetch_commits(handle, since)
        return _Line(commits, snapshot, {tip: snapshot})
    snapshot = await handle.assets.snapshot(tip)
    return _Line([_Commit(tip, [])], snapshot, {tip: snapshot}, is_diverged=True)


async def _has_all_logs(handle: RepoHandle, base: Snapshot, line: Sequence[LineCommit]) -> bool:
    """Whether the logs of a line tell all that changed, as far as that is known before a fetch.

    Official Icechunk makes snapshots that lose their parent children of the first one. In spec
    version 1 it leaves no ids of those that expired, and collections delete their logs.
    """
    format_version, oldest = handle.format, line[0]
    if (
        format_version.has_spec_folders
        and not format_version.has_repo_object
        and any(one.pruned for one in line)
    ):
        return False
    is_first = base.parent_id is None if format_version.stores_parents else not base.nodes
    if not is_first or not format_version.has_spec_folders or oldest.pruned:
        return True
    return await is_child(handle, base.id, oldest.id)


async def _fetch_commits(
    handle: RepoHandle, line: Sequence[LineCommit]
) -> tuple[Snapshot, list[_Commit]]:
    """The newest snapshot and all logs, fetched at once."""
    found = {commit.id: commit.log for commit in line if commit.log is not None}
    keys = [key for commit in line for key in (*commit.pruned, commit.id)]
    wanted = [key for key in keys if key not in found]
    try:
        (tip,), logs = await handle.assets.snapshots_and_logs([line[-1].id], wanted)
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            await _require_pruned_logs(handle, line)
        raise
    found |= {log.id: log for log in logs}
    return tip, [
        _Commit(commit.id, [found[key] for key in (*commit.pruned, commit.id)]) for commit in line
    ]


async def _require_pruned_logs(handle: RepoHandle, line: Sequence[LineCommit]) -> None:
    """Raise an error that names the missing log of an expired snapshot, if there is one."""
    for commit in line:
        for key in commit.pruned:
            if await find_log(handle, key) is None:
                raise SessionStateError(
                    f"the session cannot be rebased: snapshot {key} expired and its transaction "
                    "log has been deleted, so that what it changed is not known; make the changes "
                    "again in a new session",
                    ErrorKind.REBASE_TX_LOG_PRUNED,
                )


def _unknown_snapshots(line: _Line, changes: ChangeSet) -> list[SnapshotId]:
    """The snapshots whose nodes are needed: those of commits that created or deleted nodes."""
    if not (changes.new or changes.deleted or changes.moves.steps):
        return []
    return [
        commit.id
        for commit in line.commits
        if commit.id not in line.snapshots and any(map(changes_nodes, commit.logs))
    ]


def _unknown_arrays(
    line: _Line, base: Snapshot, changes: ChangeSet
) -> dict[NodeId, tuple[Node, Node]]:
    """The edited arrays whose chunks may differ between the base and a diverged tip.

    The branch was reset, its tip was amended, or its history was cut. The logs in between then do
    not matter, only the difference between the two states.
    """
    found: dict[NodeId, tuple[Node, Node]] = {}
    for node_id in changes.edited if line.is_diverged else ():
        if node_id in line.chunks:
            continue
        path = changes.chunk_path(node_id)
        old, new = base.nodes.find(path), line.tip.nodes.find(path)
        if old is None or new is None or old.id != new.id or old.array is None or new.array is None:
            continue  # only one side has the array, which the comparison of nodes finds
        if {ref.id for ref in old.array.manifests} != {ref.id for ref in new.array.manifests}:
            found[node_id] = (old, new)
    return found


async def _fetch_chunks(
    handle: RepoHandle, line: _Line, base: Snapshot, arrays: Mapping[NodeId, tuple[Node, Node]]
) -> dict[NodeId, tuple[ChunkRefs, ChunkRefs]]:
    return {
        node_id: (
            await committed_chunks(handle, base.manifest_files, old),
            await committed_chunks(handle, line.tip.manifest_files, new),
        )
        for node_id, (old, new) in arrays.items()
    }


# -- How long a commit waits while other processes commit to the same repository.
#
# One of several concurrent attempts succeeds, and the uploads of the others are wasted. So a commit
# that loses waits for a random time. Its range is the time that all writers need for one attempt
# each, and halves with every further loss, down to one attempt: whoever has waited for longest
# tries most often. Without any pause, a writer could be late by the same time again and again. The
# number of writers is that of the commits that overtook the last one, and grows slowly, because one
# writer may have made all of them. A first attempt waits only if the last commit was overtaken, for
# less than one attempt: others get through meanwhile. Where writers can queue up (`Driver.turn`),
# those that lost recently do so instead of waiting for a random time.


_MAX_PAUSE_S = 2.0
_REMEMBERED_US = 10_000_000
_CROWDED_US = 2_000_000
_MAX_HALVINGS = 50


@dataclass
class Contention:
    """What a process knows about concurrent committers."""

    rivals: int = 0
    """An estimate of the number of other writers."""
    seconds: float = 0.0
    """A moving average of the duration of an attempt."""
    changed_at: int = 0
    lost_at: int = -_CROWDED_US

    def is_crowded(self, now: int) -> bool:
        """Whether an attempt lost recently."""
        return now - self.lost_at < _CROWDED_US

    def pause(self, now: int, losses: int, chance: float) -> float:
        """Seconds to wait before the next attempt of a commit that lost so often.

        `chance` is in [0, 1), times are in microseconds.
        """
        rivals = self.rivals if now - self.changed_at <= _REMEMBERED_US else 0
        turns = rivals / 2.0 ** min(losses - 1, _MAX_HALVINGS)
        attempts = max(turns, 1.0) if losses else min(rivals, 1)
        return min(attempts * self.seconds, _MAX_PAUSE_S) * chance

    def lost(self, now: int, seconds: float) -> None:
        """Record an attempt that lost to another commit."""
        self.lost_at = now
        self._note(now, seconds, self.rivals)

    def won(self, now: int, seconds: float, overtaken: int) -> None:
        """Record an attempt that succeeded, after this many commits of others."""
        self._note(now, seconds, min(overtaken, 2 * self.rivals + 1))

    def _note(self, now: int, seconds: float, rivals: int) -> None:
        self.seconds = (self.seconds + seconds) / 2 if self.seconds else seconds
        self.rivals, self.changed_at = rivals, now
