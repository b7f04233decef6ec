"""Expiration: removes snapshots from the history. A later collection deletes their objects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe.format.repo_info.file import RepoInfo, UpdateKind
from icefloe.format.repo_info.snapshots import SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.retention import (
    Expiration,
    Rules,
    SnapshotLines,
    plan_expiration,
    plan_plain_expiration_v1,
    without,
)
from icefloe.observe import MAINTENANCE, observed
from icefloe.on_demand import on_demand
from icefloe.repo.families.spec1.refs import require_open, require_still_open
from icefloe.repo.families.spec2.checks import require_online
from icefloe.repo.families.spec2.update import Changed, update_repo
from icefloe.repo.handle import RepoHandle

if TYPE_CHECKING:
    from icefloe.maintenance import expire_older
else:
    expire_older = on_demand("icefloe.maintenance.expire_older")


def history_of(info: RepoInfo) -> SnapshotLines:
    """The history of a repo object."""
    return SnapshotLines(info.snapshots, info.branches, info.tags)


@observed("expire_snapshots", MAINTENANCE)
async def expire_snapshots(
    handle: RepoHandle, rules: Rules, *, dry_run: bool = False
) -> set[SnapshotId]:
    """Remove snapshots from the history. Returns their ids."""
    handle.require_writable()
    if rules.names is not None:
        ids = frozenset([await handle.given_id(name) for name in rules.names])
        rules = replace(rules, ids=ids)
    if not handle.family.has_spec_folders:
        return await expire_older.expire_older(handle, rules, dry_run=dry_run)
    if not handle.family.has_repo_object:
        return await _expire_v1(handle, rules, dry_run=dry_run)
    if dry_run:
        info = (await handle.assets.repo_object()).info
        require_online(info)
        return set(plan_expiration(history_of(info), rules).released_ids(info.snapshots))
    released: list[SnapshotId] = []

    def change(info: RepoInfo) -> Changed:
        plan = plan_expiration(history_of(info), rules)
        released[:] = plan.released_ids(info.snapshots)
        return expired(info, plan), UpdateKind.EXPIRATION_RAN, {}

    await update_repo(handle, change)
    return set(released)


def expired(info: RepoInfo, plan: Expiration) -> RepoInfo:
    """The repo object after an expiration."""
    return replace(
        info,
        branches={n: tip for n, tip in info.branches.items() if n not in plan.deleted_branches},
        tags={n: tip for n, tip in info.tags.items() if n not in plan.deleted_tags},
        deleted_tags=info.deleted_tags | plan.deleted_tags,
        snapshots=without(info.snapshots, plan.released, plan.parents),
    )


# -- version 1: parents are in the snapshot files, which are rewritten


async def _expire_v1(handle: RepoHandle, rules: Rules, *, dry_run: bool) -> set[SnapshotId]:
    """Rewrite the files one by one. After a crash, another run cuts the remaining histories."""
    tips = await live.ref_tips(handle)
    await require_open(handle)
    infos = await live.reachable_infos(handle.driver, tips.values())
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
            [snapshot] = await live.fetch_snapshots(handle.driver, [one])
            changed = replace(snapshot, parent_id=SnapshotId(table.id[parent].tobytes()))
            await handle.assets.put_metadata_files([handle.assets.encode_snapshot(changed)])
            handle.assets.caches.snapshots.drop([one])
        await handle.driver.sync()
        for name in sorted(plan.deleted_tags):
            await handle.family.delete_tag(handle, name)
        for name in sorted(plan.deleted_branches):
            await handle.family.delete_branch(handle, name)
        await require_still_open(handle)
    return set(plan.released_ids(table))
