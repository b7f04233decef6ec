"""Expiration: removes snapshots from the history. A later collection deletes their objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError, SnapshotNotFoundError
from icefloe.format.columns import Ints
from icefloe.format.operations_log import UpdateKind
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot_table import SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.maintenance import live
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo import commit_notes
from icefloe.repo.gc_guard import require_open, require_still_open
from icefloe.repo.handle import RepoHandle
from icefloe.repo.history import is_child
from icefloe.repo.refs import MAIN
from icefloe.repo.spec2_publish import Changed, require_online, update_repo
from icefloe.storage.driver import microseconds


class SnapshotLines(NamedTuple):
    """Snapshots and the refs that point at them."""

    snapshots: SnapshotTable
    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]

    def tips(self) -> dict[str, SnapshotId]:
        """The snapshots of all refs, by kind and name."""
        branches = {f"branch {name!r}": tip for name, tip in self.branches.items()}
        return branches | {f"tag {name!r}": tip for name, tip in self.tags.items()}

    def tip_rows(self, tips: Iterable[SnapshotId]) -> list[int]:
        return [self.snapshots.row(tip) for tip in tips]

    def reached(self, tips: Iterable[SnapshotId]) -> NDArray[np.bool_]:
        """Which rows are these snapshots or ancestors of them."""
        found = np.zeros(len(self.snapshots), np.bool_)
        found[self.snapshots.lines(self.tip_rows(tips))] = True
        return found


@dataclass(frozen=True, slots=True)
class Keep:
    """What to keep of one branch: snapshots since a time, and at least the newest few.

    >>> newest = icefloe.Keep(since=datetime.now(UTC) - timedelta(days=30), last=10)
    >>> ids = repo.expire_snapshots(datetime.now(UTC), branches={"main": newest}, dry_run=True)
    """

    since: datetime | None = None
    """None keeps nothing by age."""
    last: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """Which snapshots expire.

    Snapshots older than `older_than` expire, unless a rule of `branches`, `keep_last` or
    `keep_tagged` keeps them. With `ids`, exactly those expire.
    """

    older_than: int | None = None
    delete_expired_branches: bool = False
    delete_expired_tags: bool = False
    keep_last: int = 0
    keep_tagged: bool = False
    keep_fork_points: bool = False
    """Whether snapshots stay where branches and tags part."""
    branches: Mapping[str, Keep] = field(default_factory=dict)
    ids: frozenset[SnapshotId] | None = None
    names: frozenset[str] | None = None
    """The texts of `ids`, before the format version of the repository has parsed them."""

    @property
    def is_plain(self) -> bool:
        """Whether only options of Icechunk are used."""
        has_ids = self.ids is not None or self.names is not None
        kept = self.keep_last or self.keep_tagged or self.keep_fork_points or self.branches
        return not (kept or has_ids)


@dataclass(frozen=True, slots=True)
class Expiration:
    """The result of planning an expiration."""

    released: Ints
    """Rows that are removed from the history."""
    parents: Mapping[int, int]
    """The new parent of every row that loses its own."""
    deleted_branches: frozenset[str] = frozenset()
    deleted_tags: frozenset[str] = frozenset()

    def left(self, history: SnapshotLines) -> SnapshotLines:
        """The same snapshots with the refs that stay."""
        return history._replace(
            branches={n: k for n, k in history.branches.items() if n not in self.deleted_branches},
            tags={n: k for n, k in history.tags.items() if n not in self.deleted_tags},
        )

    def released_ids(self, table: SnapshotTable) -> list[SnapshotId]:
        return [SnapshotId(row.tobytes()) for row in table.id[self.released]]


def plan_expiration(history: SnapshotLines, rules: Rules) -> Expiration:
    """Decide which snapshots expire.

    The first snapshot of a history and the tip of `main` always stay. Other tips stay too, unless
    expired branches or tags are to be deleted.
    """
    table = history.snapshots
    has_parent = table.parent >= 0
    expired = has_parent & (
        _named(history, rules) if rules.ids is not None else _old(history, rules)
    )
    protected = np.zeros(len(table), np.bool_)
    if MAIN in history.branches:  # other writers of document 003 may have no such branch
        protected[table.row(history.branches[MAIN])] = True
    if not rules.delete_expired_branches:
        protected[history.tip_rows(history.branches.values())] = True
    if not rules.delete_expired_tags:
        protected[history.tip_rows(history.tags.values())] = True
    gone = expired & ~protected
    plan = Expiration(
        np.flatnonzero(gone),
        {},
        frozenset(
            name
            for name, tip in history.branches.items()
            if rules.delete_expired_branches and name != MAIN and expired[table.row(tip)]
        ),
        frozenset(
            name
            for name, tip in history.tags.items()
            if rules.delete_expired_tags and expired[table.row(tip)]
        ),
    )
    if rules.keep_fork_points and rules.ids is None:
        gone[list(fork_points(plan.left(history)))] = False
    boundary = (table.parent < 0) if rules.is_plain else ~gone
    parents = _new_parents(table, gone, boundary)
    return replace(plan, released=np.flatnonzero(gone), parents=parents)


def _old(history: SnapshotLines, rules: Rules) -> NDArray[np.bool_]:
    table = history.snapshots
    flushed_at = table.columns.flushed_at.astype(np.int64)
    # Without an age, everything but the newest few snapshots of a branch is old.
    old = np.full(len(table), rules.older_than is None and rules.keep_last > 0)
    if rules.older_than is not None:
        old = flushed_at < rules.older_than
    kept, has_rule = np.zeros(len(table), np.bool_), np.zeros(len(table), np.bool_)
    for name, tip in history.branches.items():
        line = table.line(tip)
        rule = rules.branches.get(name)
        if rule is None:
            kept[line[: rules.keep_last]] = True
            kept[line[~old[line]]] = True
        else:
            has_rule[line] = True
            kept[line[: rule.last]] = True
            if rule.since is not None:
                kept[line[flushed_at[line] >= microseconds(rule.since)]] = True
    if rules.keep_tagged:
        kept |= history.reached(history.tags.values())
    unknown = rules.branches.keys() - history.branches.keys()
    if unknown:
        raise InvalidInputError(
            f"there are rules for branches that do not exist: {sorted(unknown)}; branches are "
            f"{sorted(history.branches)}"
        )
    return np.asarray((old | has_rule) & ~kept)


def _named(history: SnapshotLines, rules: Rules) -> NDArray[np.bool_]:
    assert rules.ids is not None
    table = history.snapshots
    needed = {tip: f"{name} points at it" for name, tip in history.tips().items()}
    named = np.zeros(len(table), np.bool_)
    for one in sorted(rules.ids):
        row = table.find(one)
        if row < 0:
            raise SnapshotNotFoundError(f"{one} in this repository")
        reason = needed.get(one)
        if table.parent[row] < 0:
            reason = "it is the first of its history"
        if reason is not None:
            raise InvalidInputError(
                f"snapshot {one} cannot expire: {reason}", ErrorKind.INVALID_SNAPSHOT_ID
            )
        named[row] = True
    return named


def _new_parents(
    table: SnapshotTable, gone: NDArray[np.bool_], boundary: NDArray[np.bool_]
) -> dict[int, int]:
    """For every row that stays and loses its parent, the nearest ancestor on the boundary."""
    parent = table.parent.tolist()
    orphans = np.flatnonzero(~gone & (table.parent >= 0) & gone[table.parent])
    found = {}
    for row in orphans.tolist():
        ancestor = parent[row]
        while not boundary[ancestor]:
            ancestor = parent[ancestor]
        found[row] = ancestor
    return found


def plan_plain_expiration_v1(history: SnapshotLines, rules: Rules) -> Expiration:
    """The behaviour of Icechunk in version 1: ref by ref, tags first.

    The oldest unexpired snapshot of each history gets the first snapshot as parent. All expired
    snapshots count as released, even if a tag still points at one.
    """
    assert rules.older_than is not None
    table = history.snapshots
    parent, flushed_at = table.parent.tolist(), table.columns.flushed_at.tolist()
    released: set[int] = set()
    parents: dict[int, int] = {}
    expired_refs: dict[str, set[str]] = {"tags": set(), "branches": set()}
    for kind, tips in (("tags", history.tags), ("branches", history.branches)):
        for name in sorted(tips):
            tip = row = table.row(tips[name])
            oldest_kept, line_released = tip, set()
            while row >= 0:
                if flushed_at[row] >= rules.older_than:
                    oldest_kept = row
                else:
                    line_released.add(row)
                root, row = row, parent[row]
            if flushed_at[tip] < rules.older_than:
                expired_refs[kind].add(name)
            if root in line_released and tip != root and parent[oldest_kept] not in (-1, root):
                parent[oldest_kept] = parents[oldest_kept] = root
                released |= line_released - {root}
    return Expiration(
        np.array(sorted(released), np.int64),
        parents,
        frozenset(expired_refs["branches"] - {MAIN} if rules.delete_expired_branches else ()),
        frozenset(expired_refs["tags"] if rules.delete_expired_tags else ()),
    )


def fork_points(history: SnapshotLines) -> dict[int, int]:
    """The rows of the newest snapshots that several refs contain, and bit by bit their refs.

    What a commit merged counts as contained.
    """
    older = _older(history.snapshots)
    refs = [0] * len(older)
    for bit, row in enumerate(history.tip_rows(history.tips().values())):
        refs[row] |= 1 << bit
    for row in _newest_first(older):
        for below in older[row]:
            refs[below] |= refs[row]
    covered = {
        below for row, rows in enumerate(older) for below in rows if refs[below] == refs[row]
    }
    found = {row: bits for row, bits in enumerate(refs) if bits & (bits - 1)}
    return {row: bits for row, bits in found.items() if row not in covered}


def cut_apart(
    history: SnapshotLines, plan: Expiration, *, keeps_ids: bool
) -> dict[SnapshotId, list[str]]:
    """The refs that no longer have the snapshot in common where they part, by that snapshot.

    `keeps_ids`: whether snapshots that lose their parent list the expired ones in between.
    """
    left, table = plan.left(history), history.snapshots
    pruned = {row: pruned_logs(table, row, parent) for row, parent in plan.parents.items()}
    later = table.with_parents(plan.parents, pruned if keeps_ids else {})
    after = fork_points(left._replace(snapshots=later))
    gone = set(plan.released.tolist()) - set(left.tip_rows(left.tips().values()))
    names = list(left.tips())
    return {
        SnapshotId(table.id[row].tobytes()): [
            name for bit, name in enumerate(names) if bits >> bit & 1
        ]
        for row, bits in fork_points(left).items()
        if row in gone or after.get(row) != bits
    }


def _has_notes(table: SnapshotTable) -> NDArray[np.bool_]:
    """Which rows have notes of icefloe in their metadata."""
    is_note = [name == commit_notes.NOTES for name in table.columns.metadata_name.to_list()]
    owners = np.repeat(np.arange(len(table)), table.columns.num_metadata)
    found = np.zeros(len(table), np.bool_)
    found[owners[np.array(is_note, np.bool_)]] = True
    return found


def _older(table: SnapshotTable) -> list[list[int]]:
    """For each row the rows that it comes after: its parent, pruned ancestors, what it merged."""
    parent = table.parent.tolist()
    older = [[row] if row >= 0 else [] for row in parent]
    noted = np.flatnonzero(_has_notes(table))
    for row, metadata in zip(noted.tolist(), table.metadata(noted), strict=True):
        notes = commit_notes.notes_of(metadata)
        keys = [bytes(SnapshotId.parse(text)) for text in commit_notes.contained_in(notes)]
        older[row] += [at for key in keys if (at := table.find(key)) >= 0]
    for row in np.flatnonzero(table.columns.num_pruned).tolist():
        keys = [one.tobytes() for one in table.pruned_of(row)]
        older[row] += [at for key in keys if (at := table.find(key)) >= 0]
    return older


def _newest_first(older: Sequence[Sequence[int]]) -> list[int]:
    """Every row before those that it comes after."""
    waiting = [0] * len(older)
    for rows in older:
        for row in rows:
            waiting[row] += 1
    ordered = [row for row, count in enumerate(waiting) if not count]
    for row in ordered:
        for below in older[row]:
            waiting[below] -= 1
            if not waiting[below]:
                ordered.append(below)
    return ordered


def pruned_logs(table: SnapshotTable, row: int, new_parent: int) -> list[bytes]:
    """The logs between a row and its new parent, oldest first, to be read with its own log.

    A removed ancestor may itself have pruned logs, which are included.
    """
    ids: list[bytes] = []
    for at in reversed(between_rows(table, row, new_parent)):
        ids += [one.tobytes() for one in table.pruned_of(at)]
        ids.append(table.id[at].tobytes())
    return ids + [one.tobytes() for one in table.pruned_of(row)]


def between_rows(table: SnapshotTable, row: int, new_parent: int) -> list[int]:
    """The ancestors of a row up to its new parent, newest first, without both."""
    found: list[int] = []
    ancestor = int(table.parent[row])
    while ancestor != new_parent:
        found.append(ancestor)
        ancestor = int(table.parent[ancestor])
    return found


def without(table: SnapshotTable, gone: Ints, parents: Mapping[int, int]) -> SnapshotTable:
    """The table without the removed rows. Rows that lost their parent list the pruned logs."""
    pruned = {row: pruned_logs(table, row, parent) for row, parent in parents.items()}
    stays = np.ones(len(table), np.bool_)
    stays[gone] = False
    return table.with_parents(parents, pruned).take(np.flatnonzero(stays))


def plan_collection(
    history: SnapshotLines, is_young: Callable[[SnapshotTable], NDArray[np.bool_]]
) -> Expiration:
    """Decide which snapshots a garbage collection removes from the history.

    These are old snapshots that no ref reaches. Their remaining descendants get the nearest
    remaining ancestor as parent.
    """
    table = history.snapshots
    stays = history.reached([*history.branches.values(), *history.tags.values()])
    stays |= is_young(table)
    stays |= table.parent < 0
    if _has_notes(table).any():
        # A merge of two refs needs the newest snapshot that both contain.
        stays[list(fork_points(history))] = True
    return Expiration(np.flatnonzero(~stays), _new_parents(table, ~stays, stays))


def history_of(info: RepoInfo) -> SnapshotLines:
    """The history of a repo object."""
    return SnapshotLines(info.snapshots, info.branches, info.tags)


class Expired(NamedTuple):
    """What an expiration has removed, or would remove."""

    snapshots: set[SnapshotId]
    apart: Mapping[SnapshotId, list[str]] = {}
    """The refs that it cuts from each other, by the snapshot where they part."""


@observed("expire_snapshots", MAINTENANCE)
async def expire_snapshots(handle: RepoHandle, rules: Rules, *, dry_run: bool = False) -> Expired:
    """Remove snapshots from the history."""
    handle.require_writable()
    if rules.names is not None:
        ids = frozenset([await handle.given_id(name) for name in rules.names])
        rules = replace(rules, ids=ids)
    if not handle.format.has_spec_folders:
        return Expired(await handle.format.maintenance.expire_older(handle, rules, dry_run=dry_run))
    if not handle.format.has_repo_object:
        return await _expire_v1(handle, rules, dry_run=dry_run)
    last: list[Expired] = []

    def change(info: RepoInfo) -> Changed:
        plan = plan_expiration(history_of(info), rules)
        last[:] = [_outcome(history_of(info), plan, keeps_ids=True)]
        return expired(info, plan, rules), UpdateKind.EXPIRATION_RAN, {}

    if dry_run:
        info = (await handle.assets.repo_object()).info
        require_online(info)
        change(info)
    else:
        await update_repo(handle, change)
    return last[0]


def _outcome(history: SnapshotLines, plan: Expiration, *, keeps_ids: bool) -> Expired:
    released = set(plan.released_ids(history.snapshots))
    return Expired(released, cut_apart(history, plan, keeps_ids=keeps_ids) if released else {})


def expired(info: RepoInfo, plan: Expiration, rules: Rules) -> RepoInfo:
    """The repo object after an expiration."""
    table = info.snapshots
    notes = {row: _note(table, row, parent) for row, parent in plan.parents.items()}
    metadata = {
        row: commit_notes.with_expired(table.info(row).metadata, note)
        for row, note in notes.items()
        if not rules.is_plain or note["contains"]
    }
    left = plan.left(history_of(info))
    return replace(
        info,
        branches=left.branches,
        tags=left.tags,
        deleted_tags=info.deleted_tags | plan.deleted_tags,
        snapshots=without(table.with_metadata(metadata), plan.released, plan.parents),
    )


def _note(
    table: SnapshotTable, row: int, parent: int, *, lists_snapshots: bool = False
) -> dict[str, Any]:
    """What stays known of the expired snapshots between a row and its new parent.

    Rules that only icefloe has leave it in any case, those of Icechunk if there were merges.
    """
    between = between_rows(table, row, parent)
    since = SnapshotId(table.id[parent].tobytes())
    snapshots = map(SnapshotId, pruned_logs(table, row, parent)) if lists_snapshots else ()
    return commit_notes.expired_note(
        table.info(row), since, [table.info(one) for one in between], snapshots
    )


async def _expire_v1(handle: RepoHandle, rules: Rules, *, dry_run: bool) -> Expired:
    """Rewrite the files one by one. After a crash, another run cuts the remaining histories."""
    branches = dict(sorted((await handle.format.branches(handle)).items()))
    tags = dict(sorted((await handle.format.tags(handle)).items()))
    await require_open(handle)
    tips = [*branches.values(), *tags.values()]
    infos = [
        replace(info, pruned_ancestor_tx_logs=commit_notes.expired_before(info))
        for info in await live.reachable_infos(handle.driver, tips)
    ]
    history = SnapshotLines(SnapshotTable.from_infos(infos), branches, tags)
    is_plain = rules.is_plain and rules.older_than is not None
    plan = (plan_plain_expiration_v1 if is_plain else plan_expiration)(history, rules)
    table = history.snapshots
    if not dry_run:
        # Oldest first: the times of the files, which collection compares, follow the history.
        for row, parent in sorted(
            plan.parents.items(), key=lambda it: table.columns.flushed_at[it[0]]
        ):
            one = SnapshotId(table.id[row].tobytes())
            note = _note(table, row, parent, lists_snapshots=True)
            is_noted = not is_plain or note["contains"] or table.columns.num_pruned[row]
            is_noted = is_noted and not await _is_cut(handle, table, row, parent)
            [snapshot] = await live.fetch_snapshots(handle.driver, [one])
            metadata = snapshot.metadata
            if is_noted:
                metadata = commit_notes.with_expired(metadata, note)
            since = SnapshotId(table.id[parent].tobytes())
            changed = replace(snapshot, parent_id=since, metadata=metadata)
            await handle.assets.put_metadata_files([handle.assets.encode_snapshot(changed)])
            handle.assets.caches.snapshots.drop([one])
        await handle.driver.sync()
        for name in sorted(plan.deleted_tags):
            await handle.format.delete_tag(handle, name)
        for name in sorted(plan.deleted_branches):
            await handle.format.delete_branch(handle, name)
        await require_still_open(handle)
    return _outcome(history, plan, keeps_ids=not is_plain)


async def _is_cut(handle: RepoHandle, table: SnapshotTable, row: int, parent: int) -> bool:
    """Whether official Icechunk has cut the history right after `parent` before: it leaves no
    ids."""
    oldest = [row, *between_rows(table, row, parent)][-1]
    if table.parent[parent] >= 0 or table.columns.num_pruned[oldest]:
        return False
    keys = [SnapshotId(table.id[each].tobytes()) for each in (parent, oldest)]
    return not await is_child(handle, *keys)
