"""Cherry-pick, undo, merge and squash."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from icefloe.assets.computed_logs import differing_chunks
from icefloe.changes.change_set import ChangeSet
from icefloe.changes.conflicts import ConflictDetector, ConflictSolver, log_between
from icefloe.changes.diff import Diff, make_diff, paths_by_id
from icefloe.changes.three_way import (
    Aligned,
    CannotAlignError,
    ChunkPairs,
    align,
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
    NotFoundError,
    RebaseFailedError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.repo import commit_notes
from icefloe.repo.commit import commit, store_commits
from icefloe.repo.commit_notes import (
    NOTES,
    REWRITTEN,
    SQUASHED,
    merge_notes,
    merged_into,
    moved_expired,
    notes_of,
)
from icefloe.repo.handle import NewCommit, RepoHandle, later_than
from icefloe.repo.history import expired_snapshots, is_child
from icefloe.repo.session import SessionState, Workspace, open_writable

# -- Where two lines of history part.
#
# A snapshot has one parent. A commit that merges another line notes it in its metadata
# (`commit_notes`). So a second merge of the same branch takes only what is new on it.
#
# Expiration removes snapshots from a history. Their ids stay known, as pruned ancestors of a
# later snapshot, or in notes. The newest common snapshot is looked for among all ids. If it has
# expired, it is the base as long as its files are there. Where ids are not known, a base is taken
# only if no unknown snapshot can be a newer one.


_Lines = Callable[[SnapshotId], Awaitable[list[SnapshotInfo] | None]]
"""A snapshot and its ancestors, newest first; None if it is in no history."""


class MergeBase(NamedTuple):
    """Where two snapshots part."""

    id: SnapshotId
    contained: frozenset[SnapshotId] | None
    """What the first one contains and the second one does not; None if that is not known."""
    is_listed: bool
    """Whether it is still part of a history. Otherwise its files may be deleted at any time."""
    others: Sequence[tuple[SnapshotId, SnapshotId]] = ()
    """After merges in both directions: more snapshots that both contain and none of which contains
    another, each with the newest one that it has in common with the base."""


async def merge_base(handle: RepoHandle, ours: SnapshotId, tip: SnapshotId) -> MergeBase:
    """The newest snapshot that both contain.

    Raises:
        InvalidInputError: there is none.
        SnapshotNotFoundError: it has expired and is not known any more, or its files are gone.
    """
    known, mine, theirs = await _compare(handle, ours, tip)
    both = mine & theirs
    if not both:
        raise InvalidInputError(
            f"snapshots {ours} and {tip} have no ancestor in common, or it has expired",
            ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    gaps = await known.gaps(handle, mine, theirs) | await known.gaps(handle, theirs, mine)
    if gaps:
        keys = ", ".join(sorted(key.text for key in gaps))
        raise unknown_base(ours, tip, f"ancestors of {keys}")
    newest = both - {older for key in both for older in known.before.get(key, ())}
    times = {key: await known.time(handle, key) for key in newest}
    lost = sorted(key.text for key, time in times.items() if time is None)
    if lost:
        raise unknown_base(ours, tip, f"snapshot {', '.join(lost)}, the newest that both contain,")
    base = max(newest, key=lambda key: (times[key] or 0, key))
    is_whole = not known.hidden.keys() & (mine - theirs)
    others = [(key, await known.below(handle, base, key)) for key in sorted(newest - {base})]
    return MergeBase(
        base, frozenset(mine - theirs) if is_whole else None, newest <= known.infos.keys(), others
    )


async def contained_since(
    handle: RepoHandle, since: SnapshotId, newest: SnapshotId
) -> frozenset[SnapshotId] | None:
    """What a snapshot contains and an ancestor of it does not; None if that is not known."""
    try:
        known, after, before = await _compare(handle, newest, since)
    except SnapshotNotFoundError:  # spec version 1, where files of older snapshots are gone
        return None
    found = after - before
    cut = [key for key in found & known.infos.keys() if await known.is_cut(handle, key)]
    return None if cut or known.hidden.keys() & found else frozenset(found)


def unknown_base(ours: SnapshotId, tip: SnapshotId, what: str) -> SnapshotNotFoundError:
    """The error of a merge whose base has expired."""
    return SnapshotNotFoundError(
        f"{what} expired and cannot be read any more, so what snapshots {ours} and {tip} changed "
        "since they parted is not known. Nothing has changed. Write the values to keep into a "
        "session on the branch and commit it. So that later merges find where branches part, "
        "expire with keep_fork_points=True"
    )


@dataclass(slots=True)
class _Known:
    """Snapshots as far as they are known."""

    lines: _Lines
    expired: Mapping[SnapshotId, SnapshotInfo]
    """Descriptions of snapshots that are in no history any more."""
    infos: dict[SnapshotId, SnapshotInfo] = field(default_factory=dict)
    before: dict[SnapshotId, set[SnapshotId]] = field(default_factory=dict)
    """What a snapshot comes right after."""
    hidden: dict[SnapshotId, int] = field(default_factory=dict)
    """Snapshots whose ancestors, or what they merged, are not known, and the latest time at which
    they were made."""

    async def contained_in(self, handle: RepoHandle, tip: SnapshotId) -> set[SnapshotId]:
        """A snapshot, its ancestors, the snapshots that they merged, and the ancestors of those."""
        found, walked = {tip}, set[SnapshotId]()
        waiting = {tip: 0}
        while waiting:
            key = next(iter(waiting))
            held_at = waiting.pop(key)
            if key in walked:
                continue
            line = await self.lines(key)
            if line is None and key == tip:
                raise SnapshotNotFoundError(f"no snapshot {tip} in this repository")
            if line is None and key not in self.expired:
                if held_at:
                    self.hidden[key] = max(held_at, self.hidden.get(key, 0))
                continue
            if line is None:
                line = [self.expired[key]]
                if (parent := line[0].parent_id) is not None:
                    waiting.setdefault(parent, line[0].flushed_at)
            else:
                self.infos |= {info.id: info for info in line}
            for info in line:
                if info.id in walked:
                    break
                walked.add(info.id)
                found |= self._add(handle, info, waiting)
        return found

    def _add(
        self, handle: RepoHandle, info: SnapshotInfo, waiting: dict[SnapshotId, int]
    ) -> set[SnapshotId]:
        """Take one snapshot into account; returns what it contains itself, and names the rest."""
        notes = commit_notes.notes_of(info.metadata)
        parent = [] if info.parent_id is None else [info.parent_id]
        chain = [info.id, *reversed(info.pruned_ancestor_tx_logs), *parent]
        for newer, older in pairwise(chain):
            self.before.setdefault(newer, set()).add(older)
        contained = {handle.snapshot_id(text) for text in commit_notes.contained_in(notes)}
        self.before.setdefault(info.id, set()).update(contained)
        # What is not noted as a whole has to be found.
        is_noted = commit_notes.is_whole(notes)
        for text in commit_notes.merged_into(notes):
            waiting.setdefault(handle.snapshot_id(text), 0 if is_noted else info.flushed_at)
        if not commit_notes.accounts_for_expired(info):
            for key in chain[1:]:
                waiting.setdefault(key, info.flushed_at)
        return {*chain, *contained}

    async def gaps(
        self, handle: RepoHandle, mine: set[SnapshotId], theirs: set[SnapshotId]
    ) -> set[SnapshotId]:
        """Our snapshots behind which one may be hidden that is among theirs."""
        both, found = mine & theirs, set()
        others = [self.infos.get(key, self.expired.get(key)) for key in theirs - both]
        for key in mine - both:
            info = self.infos.get(key)
            made_at = self.hidden.get(key, 0) if info is None else info.flushed_at
            # Times increase along a line.
            if not any(other is None or other.flushed_at <= made_at for other in others):
                continue
            if key in self.hidden or (
                info is not None and info.parent_id in both and await self.is_cut(handle, key)
            ):
                found.add(key)
        return found

    async def is_cut(self, handle: RepoHandle, key: SnapshotId) -> bool:
        """Whether ancestors of a snapshot have expired without leaving their ids.

        This happens in spec version 1, and in version 2 to repositories that official Icechunk 2.0
        wrote to. Official makes such a snapshot a child of the first one.
        """
        info = self.infos[key]
        if info.parent_id is None or info.pruned_ancestor_tx_logs:
            return False
        parent = self.infos.get(info.parent_id)
        if parent is None or parent.parent_id is not None:
            return False
        return not await is_child(handle, info.parent_id, key)

    async def below(self, handle: RepoHandle, one: SnapshotId, other: SnapshotId) -> SnapshotId:
        """The newest snapshot that two known ones contain and that can be read."""
        both = self._closure(one) & self._closure(other)
        times = {key: await self.time(handle, key) for key in both & self.infos.keys()}
        if not times:
            raise unknown_base(one, other, "the newest snapshot that both contain")
        return max(times, key=lambda key: (times[key] or 0, key))

    def _closure(self, key: SnapshotId) -> set[SnapshotId]:
        found, waiting = set(), [key]
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                waiting.extend(self.before.get(key, ()))
        return found

    async def time(self, handle: RepoHandle, key: SnapshotId) -> int | None:
        """When a snapshot was made; None if its file is gone."""
        if key in self.infos:
            return self.infos[key].flushed_at
        try:
            return (await handle.assets.load_snapshot(key)).flushed_at
        except NotFoundError:
            return None


async def _compare(
    handle: RepoHandle, ours: SnapshotId, tip: SnapshotId
) -> tuple[_Known, set[SnapshotId], set[SnapshotId]]:
    """What two snapshots contain. Expired snapshots are looked up only if they matter."""
    lines = await _lines(handle)
    expired: dict[SnapshotId, SnapshotInfo] = {}
    older = expired_snapshots(handle)
    while True:
        known = _Known(lines, expired)
        mine = await known.contained_in(handle, ours)
        theirs = await known.contained_in(handle, tip)
        if not known.hidden.keys() & (mine ^ theirs):
            return known, mine, theirs
        try:
            found = await anext(older)
        except StopAsyncIteration:
            return known, mine, theirs
        expired |= {info.id: info for info in found if info.id not in expired}


async def _lines(handle: RepoHandle) -> _Lines:
    """Where histories are read from: one repo object, or snapshot files."""
    if handle.format.has_repo_object:
        table = (await handle.assets.repo_object()).info.snapshots

        async def of_table(key: SnapshotId) -> list[SnapshotInfo] | None:
            return None if key not in table else table.infos(table.line(key))

        return of_table

    async def of_files(key: SnapshotId) -> list[SnapshotInfo] | None:
        found: list[SnapshotInfo] = []
        try:
            async for info in handle.format.ancestors(handle, key):
                found.append(info)  # noqa: PERF401 - they count if a later one is missing
        except NotFoundError:
            if not found:
                return None
            # Files that are in memory may have been rewritten by an expiration since.
            handle.assets.caches.snapshots.drop([info.id for info in found])
            return await handle.format.ancestry(handle, key)
        return found

    return of_files


# -- Commits of other places, applied to the tip of a branch: cherry-pick, undo, merge.
#
# All three are a three-way merge (`changes.three_way`) that differs in its base and in the state
# it leads to. The result is one commit. It reuses references, so chunks are not copied.


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
        info = await handle.format.lookup_snapshot(handle, snapshot_id)
        kept = {key: value for key, value in info.metadata.items() if not key.startswith("__")}
        notes = {"cherry_picked": snapshot_id.text}
        return _Plan(await _parent_of(handle, info), snapshot_id, info.message, notes, kept)

    return await _replay(handle, request, plan, "cherry-picking")


async def undo(handle: RepoHandle, snapshot_id: SnapshotId, request: ReplayRequest) -> Replayed:
    """Apply the reverse of one commit to the branch that has it."""

    async def plan(state: SessionState) -> _Plan:
        async for info in handle.format.ancestors(handle, state.snapshot_id):
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
            f"snapshot {info.id} is the first one and changed nothing; name a later commit",
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
    handle.format.require_spec_folders(what)
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
            await handle.driver.sleep(contention.pause(clock.now_us(), tries, random.random()))
        else:
            contention.won(clock.now_us(), (clock.now_us() - started) / 1e6, tries)
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
        handle.format.require_moves()
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


# -- Squash: several commits of a branch become one.
#
# The new snapshot has the nodes and manifests of the newest of them, and an earlier snapshot as
# its parent. Later commits are written again on top of it: the same content, message and time,
# another id and parent. The branch moves by one conditional write. The old snapshots stay until
# they expire.


_COMMITS_AT_ONCE = 64


async def squash(
    handle: RepoHandle, since: SnapshotId, request: ReplayRequest, until: SnapshotId | None = None
) -> Replayed:
    """Replace the commits after `since`, up to `until` or the tip, with one.

    Raises:
        ConflictError: the branch has moved in the meantime; nothing has changed.
    """
    handle.format.require_spec_folders("squashing")
    state = await open_writable(handle, request.branch)
    line: list[SnapshotInfo] = []
    ends = {since, until or since}
    async for info in handle.format.ancestors(handle, state.snapshot_id):
        line.append(info)
        ends.discard(info.id)
        if not ends:
            break
    later, squashed = _cut(line, since, until, request.branch)
    (base, newest), _ = await handle.assets.snapshots_and_logs([since, squashed[0].id], [])
    log = await _log(handle, base, newest)
    diff = make_diff([log], paths_by_id(base.nodes, newest.nodes))
    if request.dry_run:
        return Replayed(None, since, diff)
    now = handle.clock.now_us()
    messages = [info.message for info in reversed(squashed)]
    one = replace(
        newest,
        id=log.id,
        parent_id=since if handle.format.stores_parents else None,
        message=request.message if request.message is not None else "\n".join(messages),
        metadata=await _metadata(handle, since, squashed, request),
        # Times increase along a branch, and those of later commits stay.
        flushed_at=newest.flushed_at
        if later
        else later_than(newest.flushed_at, now, "the tip of the branch"),
    )
    handle.format.require_metadata(one.metadata)
    stored = await store_commits(handle, [(one, log)], now)
    new = [NewCommit(stored[0], newest.id, bool(log.moved_nodes), state.opened_at)]
    for last in range(len(later), 0, -_COMMITS_AT_ONCE):
        batch = later[max(0, last - _COMMITS_AT_ONCE) : last][::-1]
        new += await _written_again(handle, batch, new[-1].snapshot.id, state.opened_at)
    pruned = [info.pruned_ancestor_tx_logs for info in reversed(later)]
    await handle.format.publish_squashed(handle, new, request.branch, since, [(), *pruned])
    return Replayed(log.id, since, diff)


def _cut(
    line: list[SnapshotInfo], since: SnapshotId, until: SnapshotId | None, branch: str
) -> tuple[list[SnapshotInfo], list[SnapshotInfo]]:
    """The commits of a branch after `until`, and those after `since` up to it, newest first."""
    ids = [info.id for info in line]
    for key in (since, until):
        if key is not None and key not in ids:
            raise _unfit(
                f"snapshot {key} is not in the history of branch {branch!r}, so the commits "
                f"{'after' if key == since else 'up to'} it cannot be squashed"
            )
    first, last = ids.index(since), 0 if until is None else ids.index(until)
    if until is not None and last >= first:
        how = "is" if last == first else "comes before"
        raise _unfit(
            f"the range ends at snapshot {until}, which {how} the one that it starts after, "
            f"{since}: there are no commits to squash; name the last snapshot that is to stay "
            "first, then the newest that is to be squashed"
        )
    if first == 0:
        raise _unfit(
            f"snapshot {since} is the tip of branch {branch!r}: there are no commits after it to "
            "squash; name the last snapshot that is to stay"
        )
    return line[:last], line[last:first]


def _unfit(message: str) -> InvalidInputError:
    return InvalidInputError(message, ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF)


async def _metadata(
    handle: RepoHandle, since: SnapshotId, squashed: Sequence[SnapshotInfo], request: ReplayRequest
) -> dict[str, Any]:
    merged = [each for info in squashed for each in merged_into(notes_of(info.metadata))]
    contained = await contained_since(handle, since, squashed[0].id)
    if contained is not None:
        contained -= {squashed[0].id}
    # The newest one leads to the others.
    notes = {SQUASHED: squashed[0].id.text, "commits": len(squashed)}
    return {
        **handle.shared.default_commit_metadata,
        **(request.metadata or {}),
        NOTES: {**notes, **merge_notes(merged, contained)},
    }


async def _written_again(
    handle: RepoHandle, old: Sequence[SnapshotInfo], parent: SnapshotId, opened_at: int
) -> list[NewCommit]:
    """Store commits again, oldest first, on another parent with the same content."""
    keys = [info.id for info in old]
    made = []
    for info, snapshot, log in zip(
        old, *await handle.assets.snapshots_and_logs(keys, keys), strict=True
    ):
        key = handle.new_id(SnapshotId)
        metadata = moved_expired(info, info.metadata, parent)
        metadata[NOTES] = {**notes_of(metadata), REWRITTEN: info.id.text}
        parent_id = parent if handle.format.stores_parents else None
        again = replace(snapshot, id=key, parent_id=parent_id, metadata=metadata)
        made.append((again, replace(log, id=key)))
        parent = key
    stored = await store_commits(handle, made, handle.clock.now_us())
    return [
        NewCommit(snapshot, info.id, bool(log.moved_nodes), opened_at)
        for snapshot, info, (_, log) in zip(stored, old, made, strict=True)
    ]


async def _log(handle: RepoHandle, base: Snapshot, tip: Snapshot) -> TransactionLog:
    """The net changes. What was changed and changed back is not listed."""
    before = {node.id: node for node in base.nodes}
    arrays = [node for node in tip.nodes if node.array is not None]
    pairs = {node.id: (before.get(node.id), node) for node in arrays}
    chunks = await differing_chunks(handle.assets, base.manifest_files, tip.manifest_files, pairs)
    return log_between(
        handle.new_id(SnapshotId), base.nodes, tip.nodes, chunks, lists_all_moves=True
    )
