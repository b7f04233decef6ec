"""Expiration: removes snapshots from the history. A later collection deletes their objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icefloe.format.repo_info.file import RepoInfo, UpdateKind
from icefloe.format.repo_info.snapshots import SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.retention import (
    Expiration,
    Rules,
    SnapshotLines,
    between_rows,
    cut_apart,
    plan_expiration,
    plan_plain_expiration_v1,
    pruned_logs,
    without,
)
from icefloe.observe import MAINTENANCE, observed
from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple
from icefloe.repo import commit_notes
from icefloe.repo.families.spec2.checks import require_online
from icefloe.repo.families.spec2.update import Changed, update_repo
from icefloe.repo.fence import require_open, require_still_open
from icefloe.repo.handle import RepoHandle
from icefloe.repo.history import is_child

if TYPE_CHECKING:
    from icefloe.maintenance import expire_older
else:
    expire_older = on_demand("icefloe.maintenance.expire_older")


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
    if not handle.family.has_spec_folders:
        return Expired(await expire_older.expire_older(handle, rules, dry_run=dry_run))
    if not handle.family.has_repo_object:
        return await _expire_v1(handle, rules, dry_run=dry_run)
    if dry_run:
        info = (await handle.assets.repo_object()).info
        require_online(info)
        plan = plan_expiration(history_of(info), rules)
        return _outcome(history_of(info), plan, keeps_ids=True)
    last: list[Expired] = []

    def change(info: RepoInfo) -> Changed:
        plan = plan_expiration(history_of(info), rules)
        last[:] = [_outcome(history_of(info), plan, keeps_ids=True)]
        return expired(info, plan, rules), UpdateKind.EXPIRATION_RAN, {}

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
    return replace(
        info,
        branches={n: tip for n, tip in info.branches.items() if n not in plan.deleted_branches},
        tags={n: tip for n, tip in info.tags.items() if n not in plan.deleted_tags},
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


# -- version 1: parents are in the snapshot files, which are rewritten


async def _expire_v1(handle: RepoHandle, rules: Rules, *, dry_run: bool) -> Expired:
    """Rewrite the files one by one. After a crash, another run cuts the remaining histories."""
    tips = await live.ref_tips(handle)
    await require_open(handle)
    infos = [
        replace(info, pruned_ancestor_tx_logs=commit_notes.expired_before(info))
        for info in await live.reachable_infos(handle.driver, tips.values())
    ]
    history = SnapshotLines(
        SnapshotTable.from_infos(infos),
        {name.removeprefix("branch."): tip for name, tip in tips.items() if name[0] == "b"},
        {name.removeprefix("tag."): tip for name, tip in tips.items() if name[0] == "t"},
    )
    is_plain = rules.is_plain and rules.older_than is not None
    plan = (plan_plain_expiration_v1 if is_plain else plan_expiration)(history, rules)
    table = history.snapshots
    if not dry_run:
        # Oldest first: the times of the files, which collection compares, follow the history.
        for row, parent in sorted(plan.parents.items(), key=lambda it: table.flushed_at[it[0]]):
            one = SnapshotId(table.id[row].tobytes())
            note = _note(table, row, parent, lists_snapshots=True)
            is_noted = not is_plain or note["contains"] or table.num_pruned[row]
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
            await handle.family.delete_tag(handle, name)
        for name in sorted(plan.deleted_branches):
            await handle.family.delete_branch(handle, name)
        await require_still_open(handle)
    return _outcome(history, plan, keeps_ids=not is_plain)


async def _is_cut(handle: RepoHandle, table: SnapshotTable, row: int, parent: int) -> bool:
    """Whether official Icechunk has cut the history right after `parent` before: it leaves no
    ids."""
    oldest = [row, *between_rows(table, row, parent)][-1]
    if table.parent[parent] >= 0 or table.num_pruned[oldest]:
        return False
    keys = [SnapshotId(table.id[each].tobytes()) for each in (parent, oldest)]
    return not await is_child(handle, *keys)
