"""Where two lines of history part.

A snapshot has one parent. A commit that merges another line notes it in its metadata
(`commit_notes`). So a second merge of the same branch takes only what is new on it.

Expiration removes snapshots from a history. Their ids stay known, as pruned ancestors of a later
snapshot, or in notes. The newest common snapshot is looked for among all ids. If it has expired, it
is the base as long as its files are there. Where ids are not known, a base is taken only if no
unknown snapshot can be a newer one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError, SnapshotNotFoundError
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.ids import SnapshotId
from icefloe.records import NamedTuple
from icefloe.repo import commit_notes
from icefloe.repo.handle import RepoHandle
from icefloe.repo.history import expired_snapshots, is_child

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
    if handle.family.has_repo_object:
        table = (await handle.assets.repo_object()).info.snapshots

        async def of_table(key: SnapshotId) -> list[SnapshotInfo] | None:
            return None if key not in table else table.infos(table.line(key))

        return of_table

    async def of_files(key: SnapshotId) -> list[SnapshotInfo] | None:
        found: list[SnapshotInfo] = []
        try:
            async for info in handle.family.ancestors(handle, key):
                found.append(info)  # noqa: PERF401 - they count if a later one is missing
        except NotFoundError:
            if not found:
                return None
            # Files that are in memory may have been rewritten by an expiration since.
            handle.assets.caches.snapshots.drop([info.id for info in found])
            return await handle.family.ancestry(handle, key)
        return found

    return of_files
