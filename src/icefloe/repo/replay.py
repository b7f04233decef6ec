"""Commits of other places, applied to the tip of a branch: cherry-pick, undo, merge.

All three are a three-way merge (`changes.three_way`) that differs in its base and in the state it
leads to. The result is one commit. It reuses references, so chunks are not copied.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from icefloe.assets.computed_logs import differing_chunks
from icefloe.changes.align_nodes import Aligned, CannotAlignError, align
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.diff import Diff, make_diff, paths_by_id
from icefloe.changes.solvers import ConflictDetector, ConflictSolver
from icefloe.changes.three_way import (
    ChunkPairs,
    drop_settled,
    drop_shared_chunks,
    merge_three_ways,
    our_changes,
)
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    IcechunkError,
    InvalidInputError,
    RebaseFailedError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.repo.commit import commit
from icefloe.repo.commit_notes import NOTES, merge_notes
from icefloe.repo.handle import RepoHandle
from icefloe.repo.history import is_child
from icefloe.repo.merge_base import merge_base, unknown_base
from icefloe.repo.sessions import SessionState, open_writable
from icefloe.repo.workspace import Workspace

_TRIES_AFTER_COLLECTIONS = 5
_GONE = (ErrorKind.OBJECT_NOT_FOUND, ErrorKind.SNAPSHOT_NOT_FOUND)


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What the caller of any of these operations may say."""

    branch: str
    message: str | None = None
    metadata: Mapping[str, Any] | None = None
    solver: ConflictSolver | None = None
    tries: int = 1000
    dry_run: bool = False


class Replayed(NamedTuple):
    """What became of a request. Without an id, nothing was committed."""

    snapshot_id: SnapshotId | None
    parent_id: SnapshotId
    diff: Diff


class _Plan(NamedTuple):
    """The base and the wanted state, and what the commit says."""

    base: SnapshotId
    ours: SnapshotId
    message: str
    notes: Mapping[str, Any]
    metadata: Mapping[str, Any]
    may_be_empty: bool = False
    may_vanish: bool = False
    """Whether the base has expired, so that a collection may delete its files."""
    others: Sequence[tuple[SnapshotId, SnapshotId]] = ()
    """See `MergeBase`."""


async def cherry_pick(
    handle: RepoHandle, snapshot_id: SnapshotId, request: ReplayRequest
) -> Replayed:
    """Apply the changes of one commit to a branch."""

    async def plan(_: SessionState) -> _Plan:
        info = await handle.family.lookup_snapshot(handle, snapshot_id)
        kept = {key: value for key, value in info.metadata.items() if not key.startswith("__")}
        notes = {"cherry_picked": snapshot_id.text}
        return _Plan(await _parent_of(handle, info), snapshot_id, info.message, notes, kept)

    return await _replay(handle, request, plan, "cherry-picking")


async def undo(handle: RepoHandle, snapshot_id: SnapshotId, request: ReplayRequest) -> Replayed:
    """Apply the reverse of one commit to the branch that has it."""

    async def plan(state: SessionState) -> _Plan:
        async for info in handle.family.ancestors(handle, state.snapshot_id):
            if info.id == snapshot_id:
                break
        else:
            raise InvalidInputError(
                f"snapshot {snapshot_id} is not in the history of branch {request.branch!r}, so "
                "there is nothing to undo",
                ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
            )
        notes = {"undone": snapshot_id.text}
        message = f"Undo: {info.message}"
        return _Plan(snapshot_id, await _parent_of(handle, info), message, notes, {})

    return await _replay(handle, request, plan, "undoing a commit")


async def merge(
    handle: RepoHandle, source: SnapshotId, name: str, request: ReplayRequest
) -> Replayed:
    """Apply to a branch everything that a snapshot has since the two parted."""

    async def plan(state: SessionState) -> _Plan:
        base = await merge_base(handle, source, state.snapshot_id)
        if base.id == source:
            raise SessionStateError(
                f"branch {request.branch!r} already contains {name}",
                ErrorKind.NO_CHANGES_TO_COMMIT,
            )
        message = f"Merge {name} into {request.branch}"
        notes = merge_notes([source.text], base.contained)
        return _Plan(base.id, source, message, notes, {}, True, not base.is_listed, base.others)

    return await _replay(handle, request, plan, "merging")


async def _parent_of(handle: RepoHandle, info: SnapshotInfo) -> SnapshotId:
    """The snapshot that a commit was made on."""
    if info.parent_id is None:
        raise InvalidInputError(
            f"snapshot {info.id} is the first one, so it changed nothing",
            ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    if info.pruned_ancestor_tx_logs or not await is_child(handle, info.parent_id, info.id):
        raise SnapshotNotFoundError(
            f"the snapshot before {info.id} has expired, so its changes cannot be told from those "
            "of the snapshots before it"
        )
    return info.parent_id


async def _replay(
    handle: RepoHandle,
    request: ReplayRequest,
    make_plan: Callable[[SessionState], Awaitable[_Plan]],
    what: str,
) -> Replayed:
    """Merge with the tip and commit. If another commit was first, merge with the new tip."""
    handle.family.require_spec_folders(what)
    clock, contention = handle.clock, handle.shared.contention
    tries = 0
    while True:
        started = clock.now_us()
        # Opened before anything else is read, so that the commit notices a garbage collection.
        state = await open_writable(handle, request.branch)
        plan = await make_plan(state)
        try:
            done = await _merge_into(handle, state, plan, request)
        except (StorageError, SnapshotNotFoundError) as error:
            if not plan.may_vanish or error.kind not in _GONE:
                raise
            what = f"snapshot {plan.base}, the newest that both contain,"
            raise unknown_base(plan.ours, state.snapshot_id, what) from None
        if request.dry_run:
            return done
        try:
            landed = await commit(
                Workspace(handle, state),
                request.message if request.message is not None else plan.message,
                {**plan.metadata, **(request.metadata or {}), NOTES: dict(plan.notes)},
                allow_empty=plan.may_be_empty,
                source=plan.ours,
            )
        except (ConflictError, SessionStateError) as error:
            if tries >= min(request.tries, _most_tries(error)):
                raise
            tries += 1
            contention.lost(clock.now_us(), (clock.now_us() - started) / 1e6)
            await handle.driver.sleep(contention.pause(clock.now_us(), random.random()))
        else:
            contention.won(clock.now_us(), (clock.now_us() - started) / 1e6)
            return done._replace(snapshot_id=landed)


def _most_tries(error: IcechunkError) -> float:
    """How often another try, which uploads everything again, may succeed after an error.

    Another writer always leaves a newer state. A collection took files that were being uploaded;
    one that does so again and again has a wrong cutoff.
    """
    if error.kind == ErrorKind.OBJECTS_COLLECTED:
        return _TRIES_AFTER_COLLECTIONS
    return inf if error.kind == ErrorKind.COMMIT_CONFLICT else 0


async def _merge_into(
    handle: RepoHandle, state: SessionState, plan: _Plan, request: ReplayRequest
) -> Replayed:
    """Put the changes of the plan into a session at the tip."""
    tip = state.snapshot
    (base, ours), _ = await handle.assets.snapshots_and_logs([plan.base, plan.ours], [])
    solver = request.solver or ConflictDetector()
    try:
        versions = align(base.nodes, ours.nodes, tip.nodes)
    except CannotAlignError as error:
        raise RebaseFailedError(tip.id.text, error.conflicts) from None
    if versions.goals:
        handle.family.require_moves()
    mine = await _our_chunks(handle, versions, base, ours)
    changes = our_changes(versions, mine)
    for key, below in plan.others:
        (other, older), _ = await handle.assets.snapshots_and_logs([key, below], [])
        made = await _changes(handle, older, other, tip)
        drop_settled(changes, made, await _changes(handle, other, ours, tip))
    theirs = await _their_chunks(handle, versions, base, tip, changes)
    drop_shared_chunks(changes, mine, theirs)
    merged, conflicts = merge_three_ways(versions, changes, theirs, tip.nodes, tip.id, solver)
    if conflicts:
        raise RebaseFailedError(tip.id.text, conflicts)
    if merged.is_empty and not plan.may_be_empty:
        raise SessionStateError(
            f"branch {request.branch!r} already has these changes",
            ErrorKind.NO_CHANGES_TO_COMMIT,
        )
    with state.lock:
        state.show(tip, merged)
    return Replayed(None, tip.id, _diff(merged, tip))


async def _changes(handle: RepoHandle, base: Snapshot, ours: Snapshot, tip: Snapshot) -> ChangeSet:
    versions = align(base.nodes, ours.nodes, tip.nodes)
    return our_changes(versions, await _our_chunks(handle, versions, base, ours))


async def _our_chunks(
    handle: RepoHandle, versions: Aligned, base: Snapshot, ours: Snapshot
) -> ChunkPairs:
    pairs = {
        key: (versions.stored_base(key), versions.stored(node))
        for key, node in versions.ours.items()
        if node.array is not None
    }
    return await differing_chunks(handle.assets, base.manifest_files, ours.manifest_files, pairs)


async def _their_chunks(
    handle: RepoHandle, versions: Aligned, base: Snapshot, tip: Snapshot, changes: ChangeSet
) -> ChunkPairs:
    """Only of arrays that we edited. Chunks of others cannot be in conflict."""
    pairs = {
        key: (versions.stored_base(key), node)
        for key in changes.edited & versions.tip.keys()
        if (node := versions.tip[key]).array is not None
    }
    return await differing_chunks(handle.assets, base.manifest_files, tip.manifest_files, pairs)


def _diff(changes: ChangeSet, tip: Snapshot) -> Diff:
    known = paths_by_id(tip.nodes)
    known.update((node.id, path) for path, node in changes.new.items())
    return make_diff([changes.log(FIRST_SNAPSHOT_ID)], known)
