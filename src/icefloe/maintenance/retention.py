"""Which snapshots of a history expire, and the new parents of those that stay. No I/O.

A history is a table of snapshots with their parents, and the refs that point into it. The table
comes from the `repo` object, or from the snapshot files in version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError, SnapshotNotFoundError
from icefloe.format.columns.blobs import Ints
from icefloe.format.repo_info.snapshots import SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.records import NamedTuple
from icefloe.storage.keys import microseconds

MAIN = "main"


class SnapshotLines(NamedTuple):
    """Snapshots and the refs that point at them."""

    snapshots: SnapshotTable
    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]

    def tip_rows(self, tips: Iterable[SnapshotId]) -> list[int]:
        return [self.snapshots.row(tip) for tip in tips]

    def reached(self, tips: Iterable[SnapshotId]) -> NDArray[np.bool_]:
        """Which rows are these snapshots or ancestors of them."""
        found = np.zeros(len(self.snapshots), np.bool_)
        found[self.snapshots.lines(self.tip_rows(tips))] = True
        return found


@dataclass(frozen=True, slots=True)
class Keep:
    """What to keep of one branch: snapshots since a time, and at least the newest few."""

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
    branches: Mapping[str, Keep] = field(default_factory=dict)
    ids: frozenset[SnapshotId] | None = None
    names: frozenset[str] | None = None
    """The texts of `ids`, before the family of the repository has parsed them."""

    @property
    def is_plain(self) -> bool:
        """Whether only options of Icechunk are used."""
        has_ids = self.ids is not None or self.names is not None
        return not (self.keep_last or self.keep_tagged or self.branches or has_ids)


@dataclass(frozen=True, slots=True)
class Expiration:
    """The result of planning an expiration."""

    released: Ints
    """Rows that are removed from the history."""
    parents: Mapping[int, int]
    """The new parent of every row that loses its own."""
    deleted_branches: frozenset[str] = frozenset()
    deleted_tags: frozenset[str] = frozenset()

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
    boundary = (table.parent < 0) if rules.is_plain else ~gone
    return Expiration(
        np.flatnonzero(gone),
        _new_parents(table, gone, boundary),
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


def _old(history: SnapshotLines, rules: Rules) -> NDArray[np.bool_]:
    table = history.snapshots
    flushed_at = table.flushed_at.astype(np.int64)
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
    needed = {tip: f"branch {name!r} points at it" for name, tip in history.branches.items()}
    needed |= {tip: f"tag {name!r} points at it" for name, tip in history.tags.items()}
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
    parent, flushed_at = table.parent.tolist(), table.flushed_at.tolist()
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


def pruned_logs(table: SnapshotTable, row: int, new_parent: int) -> list[bytes]:
    """The logs between a row and its new parent, oldest first, to be read with its own log.

    A removed ancestor may itself have pruned logs, which are included.
    """
    between: list[int] = []
    ancestor = int(table.parent[row])
    while ancestor != new_parent:
        between.append(ancestor)
        ancestor = int(table.parent[ancestor])
    ids: list[bytes] = []
    for at in reversed(between):
        ids += [one.tobytes() for one in table.pruned_of(at)]
        ids.append(table.id[at].tobytes())
    return ids + [one.tobytes() for one in table.pruned_of(row)]


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
    return Expiration(np.flatnonzero(~stays), _new_parents(table, ~stays, stays))
