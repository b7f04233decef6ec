"""Expiration in the writable generations before spec version 1.

Document 003: the state file without the expired snapshots replaces the old one. Snapshots that lose
their parent get another one. Document 000: a snapshot file has its ancestors in it and never
changes, so a snapshot expires by the deletion of its file. Later snapshots still name it.
"""

from __future__ import annotations

from dataclasses import replace

from icefloe.assets.state_file import StateObject
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.legacy.state_file.state import RefType, State
from icefloe.maintenance import live
from icefloe.maintenance.retention import Expiration, Rules, SnapshotLines, plan_expiration
from icefloe.repo.families.numbered.family import Numbered
from icefloe.repo.families.state_file.family import StateFile
from icefloe.repo.families.state_file.refs import find_ref
from icefloe.repo.families.state_file.update import assets_of, update_state
from icefloe.repo.handle import RepoHandle

_FILES_AT_ONCE = 1000


async def expire_older(handle: RepoHandle, rules: Rules, *, dry_run: bool) -> set[SnapshotId]:
    """Remove snapshots from the history. Returns their ids."""
    if isinstance(handle.family, StateFile):
        return await _expire_in_state(handle, rules, dry_run=dry_run)
    if isinstance(handle.family, Numbered):
        return await _expire_files(handle, rules, dry_run=dry_run)
    raise FormatError(
        f"expiration is not possible in {handle.family.noun}; migrate it first",
        ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
    )


# -- document 003


def lines_of_state(current: StateObject) -> SnapshotLines:
    """The history in a state file."""
    entries = current.entries
    infos = [
        SnapshotInfo(one.id, _listed(one.parent_id, entries), one.timestamp_ms * 1000, "")
        for one in entries.values()
    ]
    branches, tags = (
        {name: find_ref(current, kind, name) for name in current.state.named(kind)}
        for kind in (RefType.branch, RefType.tag)
    )
    return SnapshotLines(SnapshotTable.from_infos(infos), branches, tags)


def _listed(parent: SnapshotId | None, entries: object) -> SnapshotId | None:
    return parent if parent in entries else None  # type: ignore[operator]


def state_without(current: StateObject, table: SnapshotTable, plan: Expiration) -> State:
    """The state without the released snapshots and the deleted refs."""

    def text(row: int) -> str:
        return current.entries[SnapshotId(table.id[row].tobytes())].snapshot

    gone = {text(row) for row in plan.released.tolist()}
    parents = {text(row): text(parent) for row, parent in plan.parents.items()}
    deleted = plan.deleted_branches | plan.deleted_tags
    return replace(
        current.state,
        snapshots=tuple(
            entry._replace(parent=parents.get(entry.snapshot, entry.parent))
            for entry in current.state.snapshots
            if entry.snapshot not in gone
        ),
        refs={name: ref for name, ref in current.state.refs.items() if name not in deleted},
    )


def _released(current: StateObject, table: SnapshotTable, plan: Expiration) -> list[SnapshotId]:
    """The released snapshots, as the state file names them."""
    return [current.entries[one].id for one in plan.released_ids(table)]


async def _expire_in_state(handle: RepoHandle, rules: Rules, *, dry_run: bool) -> set[SnapshotId]:
    if dry_run:
        current = await assets_of(handle).state_object()
        history = lines_of_state(current)
        return set(_released(current, history.snapshots, plan_expiration(history, rules)))
    released: list[SnapshotId] = []

    def change(current: StateObject) -> State | None:
        history = lines_of_state(current)
        plan = plan_expiration(history, rules)
        released[:] = _released(current, history.snapshots, plan)
        if not released and not plan.deleted_branches and not plan.deleted_tags:
            return None
        return state_without(current, history.snapshots, plan)

    await update_state(handle, change)
    return set(released)


# -- document 000


async def _expire_files(handle: RepoHandle, rules: Rules, *, dry_run: bool) -> set[SnapshotId]:
    """Delete snapshot files, oldest first. After a crash, another run deletes the others."""
    if rules.delete_expired_branches or rules.delete_expired_tags:
        raise FormatError(
            f"{handle.family.noun} has no way to delete branches and tags; leave "
            "delete_expired_branches and delete_expired_tags out, or migrate it",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    branches, tags = await handle.family.branches(handle), await handle.family.tags(handle)
    infos = await handle.family.stored_history(handle, [*branches.values(), *tags.values()])
    bare = [SnapshotInfo(one.id, one.parent_id, one.flushed_at, "") for one in infos]
    history = SnapshotLines(SnapshotTable.from_infos(bare), branches, tags)
    plan = plan_expiration(history, rules)
    known = {one.id: one for one in infos}
    released = [known[one] for one in plan.released_ids(history.snapshots)]
    released.sort(key=lambda one: one.flushed_at)
    if not dry_run:
        now = set((await live.ref_tips(handle)).values())  # refs may have come since
        released = [one for one in released if one.id not in now]
        keys = [handle.assets.snapshot_key(one.id) for one in released]
        for first in range(0, len(keys), _FILES_AT_ONCE):
            await handle.driver.delete_many(keys[first : first + _FILES_AT_ONCE])
        handle.assets.caches.snapshots.drop([one.id for one in released])
    return {one.id for one in released}
