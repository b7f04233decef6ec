"""`rescue`: rebuilds a lost repo object or branch from the remaining files.

Version 2 keeps a copy of every former repo object in `overwritten/`. The newest readable copy lacks
only later changes. Snapshots that were stored later become children of the snapshot that their log
fits. In version 1, a snapshot file has its parent, and branches may have pointed at snapshots
without children.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from icefloe.assets.assets import list_folder, object_metadata
from icefloe.assets.virtual import Authorizations
from icefloe.config import RepositoryConfig
from icefloe.display import ShownAsText
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format import layout
from icefloe.format.operations_log import RepoAvailability, RepoStatus, Update, UpdateKind
from icefloe.format.ref_files import decode_ref_file, encode_ref_file
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info, with_entry
from icefloe.format.snapshot import Snapshot, decode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.format.transaction_log import TransactionLog, decode_transaction_log
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.maintenance.expire import Rules, SnapshotLines, expire_snapshots
from icefloe.maintenance.live import get_all, require_spec_1_or_2
from icefloe.maintenance.verify import FILES_AT_ONCE
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.lifecycle import make_handle, older_generations, open_repository
from icefloe.repo.refs import MAIN, reset_branch
from icefloe.repo.spec1 import Spec1
from icefloe.repo.spec2 import Spec2
from icefloe.repo.spec2_publish import with_snapshot
from icefloe.storage.driver import ConditionFailed, Driver, Version, find_object
from icefloe.storage.spec import Storage

_FORK = "fork"
"""The message of snapshots that are stored for forks of a session. They are never listed."""


class RescueAction(NamedTuple):
    """One line of a plan."""

    what: str
    object: str
    detail: str


@dataclass(frozen=True, repr=False)
class RescuePlan(ShownAsText):
    """The writes of a rescue. `print` shows them, `run_rescue` makes them."""

    actions: tuple[RescueAction, ...]
    writes: tuple[tuple[str, bytes, Version | None], ...] = field(default=(), repr=False)
    """Key, new bytes, and the current version of the object."""
    resets: tuple[tuple[str, SnapshotId, SnapshotId], ...] = ()
    """Branches with their current tip and the snapshot to reset them to."""
    forgets: tuple[SnapshotId, ...] = ()
    """Lost snapshots to take out of the list, because they would stop every collection."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.writes and not self.resets and not self.forgets

    def __str__(self) -> str:
        lines = [f"{one.what} {one.object}: {one.detail}" for one in self.actions]
        return "\n".join(lines or ["nothing to do"])


async def open_damaged(
    storage: Storage,
    driver: Driver,
    config: RepositoryConfig | None,
    clock: Clock,
    *,
    authorize: Authorizations | None = None,
) -> RepoHandle:
    """Open a repository even if its `repo` object or its branch `main` is lost.

    Raises:
        RepositoryNotFoundError: there is no trace of a repository.
    """
    try:
        return await open_repository(storage, driver, config, clock, authorize=authorize)
    except (FormatError, RepositoryNotFoundError):
        older = older_generations()
        damaged = None if older is None else await older.find_damaged(driver)
        if damaged is not None:
            return make_handle(storage, driver, damaged, config or RepositoryConfig(), clock)
        if not await driver.list(layout.SNAPSHOTS):
            raise
    backups = await driver.list(layout.OVERWRITTEN + layout.REPO + ".")
    has_repo = any(found.key == layout.REPO for found in await driver.list(layout.REPO))
    is_old = not backups and not has_repo and bool(await driver.list(layout.REFS))
    format_version = Spec1() if is_old else Spec2()
    return make_handle(storage, driver, format_version, config or RepositoryConfig(), clock)


async def plan_rescue(handle: RepoHandle) -> RescuePlan:
    """Find lost refs and plan their replacement."""
    require_spec_1_or_2(handle, "rescue")
    if not handle.format.has_repo_object:
        return await _plan_v1(handle)
    found = await find_object(handle.driver, layout.REPO)
    if found is not None:
        try:
            info = decode_repo_info(found[0], layout.REPO)
        except FormatError as error:
            return await _plan_lost(handle, found[1], error.message)
        return await _plan_dangling(handle, info)
    return await _plan_lost(handle, None, "it does not exist")


async def run_rescue(handle: RepoHandle, plan: RescuePlan) -> None:
    """Execute a plan. After an interruption, the same plan can be executed again.

    Raises:
        ConflictError: an object has changed since the plan was made; it was not overwritten.
    """
    handle.require_writable()
    for key, data, previous in plan.writes:
        metadata = object_metadata(data) if key == layout.REPO else None
        content_type = None if key == layout.REPO else "application/json"
        try:
            await handle.driver.put_if(
                key, data, previous=previous, metadata=metadata, content_type=content_type
            )
        except ConditionFailed:
            now = await find_object(handle.driver, key)
            if now is not None and now[0] == data:
                continue  # an earlier run has written it
            raise ConflictError(
                message=f"{key} has changed since the plan was made; make another plan"
            ) from None
    handle.assets.caches.repo = None
    for name, tip, left in plan.resets:
        if await handle.format.lookup_branch(handle, name) != left:
            await reset_branch(handle, name, left, tip)
    for one in plan.forgets:
        # Another rescue may have taken it out of the list.
        with suppress(SnapshotNotFoundError):
            await expire_snapshots(handle, Rules(ids=frozenset([one])))


# -- version 2: the repo object


async def _plan_lost(handle: RepoHandle, version: Version | None, why: str) -> RescuePlan:
    actions = [RescueAction("rebuild", layout.REPO, why)]
    info, backup = await _newest_backup(handle, actions)
    snapshots = await _stored_snapshots(handle, info, actions)
    if info is None:
        info = _from_scratch(snapshots, actions)
        snapshots = [one for one in snapshots if one.snapshot.id not in info.snapshots]
    info = await _with_later(handle, info, backup, snapshots, actions)
    data = encode_repo_info(info, level=handle.settings.compression.level)
    return RescuePlan(tuple(actions), ((layout.REPO, data, version),))


async def _newest_backup(
    handle: RepoHandle, actions: list[RescueAction]
) -> tuple[RepoInfo | None, str]:
    """The newest readable copy of the repo object. A listing has the newest first."""
    best: RepoInfo | None = None
    name = ""
    prefix = layout.OVERWRITTEN + layout.REPO + "."
    for entry in await handle.driver.list(prefix):
        try:
            found = decode_repo_info(bytes(await handle.driver.get(entry.key)), entry.key)
        except (FormatError, StorageError) as error:
            actions.append(RescueAction("skip", entry.key, error.message))
            continue
        # Names have millisecond times of different clocks; log entries are strictly ordered.
        if best is None or found.newest_update_at > best.newest_update_at:
            best, name = found, entry.key.removeprefix(layout.OVERWRITTEN)
        elif found.newest_update_at < best.newest_update_at:
            break
    if best is not None:
        detail = f"the newest copy that can be read, with {len(best.snapshots):,} snapshots"
        actions.append(RescueAction("start from", layout.OVERWRITTEN + name, detail))
    return best, name


class _Stored(NamedTuple):
    snapshot: Snapshot
    log: TransactionLog | None


async def _stored_snapshots(
    handle: RepoHandle, known: RepoInfo | None, actions: list[RescueAction]
) -> list[_Stored]:
    """Snapshot files that are newer than the known repo object, oldest first."""
    newest = 0 if known is None else known.newest_update_at
    listed = await list_folder(handle.driver, layout.SNAPSHOTS)
    ids = [SnapshotId(row.tobytes()) for row in listed.id]
    if known is not None:
        ids = [one for one in ids if one not in known.snapshots]
    found = []
    for first in range(0, len(ids), FILES_AT_ONCE):
        some = ids[first : first + FILES_AT_ONCE]
        blobs = await get_all(handle, [layout.snapshot_key(one) for one in some])
        logs = await get_all(handle, [layout.transaction_log_key(one) for one in some])
        for one, data, log in zip(some, blobs, logs, strict=True):
            key = layout.snapshot_key(one)
            try:
                if isinstance(data, StorageError):
                    raise data
                snapshot = decode_snapshot(data, key)
                decoded = None
                if not isinstance(log, StorageError):
                    decoded = decode_transaction_log(log, layout.transaction_log_key(one))
            except (FormatError, StorageError) as error:
                actions.append(RescueAction("skip", key, error.message))
                continue
            if snapshot.id == one and snapshot.flushed_at > newest and snapshot.message != _FORK:
                found.append(_Stored(snapshot, decoded))
    return sorted(found, key=lambda one: one.snapshot.flushed_at)


def _from_scratch(snapshots: Sequence[_Stored], actions: list[RescueAction]) -> RepoInfo:
    """A repository with only its first snapshot."""
    by_id = {one.snapshot.id: one.snapshot for one in snapshots}
    first = by_id.get(FIRST_SNAPSHOT_ID)
    if first is None:
        roots = [one for one in by_id.values() if not len(one.nodes)]
        if not roots:
            raise FormatError(
                "neither a copy of the repo object nor a first snapshot is left; nothing says "
                "what belongs to the repository",
                ErrorKind.REPOSITORY_NOT_FOUND,
            )
        first = min(roots, key=lambda one: one.flushed_at)
    detail = "no copy of the repo object is left; tags, settings and names of branches are lost"
    actions.append(RescueAction("start from", layout.snapshot_key(first.id), detail))
    return RepoInfo(
        branches={MAIN: first.id},
        snapshots=SnapshotTable.from_infos([SnapshotInfo.of(first)]),
        status=RepoStatus(RepoAvailability.ONLINE, first.flushed_at),
        latest_updates=(Update(UpdateKind.REPO_INITIALIZED, first.flushed_at),),
    )


async def _with_later(
    handle: RepoHandle,
    info: RepoInfo,
    backup: str,
    snapshots: Iterable[_Stored],
    actions: list[RescueAction],
) -> RepoInfo:
    """Attach later snapshots to those that their logs fit, oldest first."""
    decoded: dict[SnapshotId, Snapshot] = {}

    async def state_of(snapshot_id: SnapshotId) -> Snapshot | None:
        if snapshot_id not in decoded:
            (data,) = await get_all(handle, [layout.snapshot_key(snapshot_id)])
            if isinstance(data, StorageError):
                return None
            decoded[snapshot_id] = decode_snapshot(data, layout.snapshot_key(snapshot_id))
        return decoded[snapshot_id]

    for one in snapshots:
        key = layout.snapshot_key(one.snapshot.id)
        if one.log is None:
            actions.append(RescueAction("leave", key, "it has no log, so its parent is unknown"))
            continue
        branch, parent = None, None
        for candidate in _candidates(info):
            before = await state_of(candidate)
            if before is not None and fits_on(before, one.snapshot, one.log):
                parent = candidate
                break
        if parent is None:
            detail = "its log fits on no snapshot that is known"
            actions.append(RescueAction("leave", key, detail))
            continue
        names = sorted(name for name, tip in info.branches.items() if tip == parent)
        if len(names) == 1:
            branch = names[0]
        elif MAIN in names:
            branch = MAIN
        else:
            branch = f"rescued-{one.snapshot.id}"
        detail = f"{one.snapshot.message!r} becomes the tip of {branch!r}, behind {parent}"
        actions.append(RescueAction("take in", key, detail))
        info = _with_commit(handle, info, one.snapshot, parent, branch, backup)
        backup = ""
        decoded[one.snapshot.id] = one.snapshot
    return info


def _candidates(info: RepoInfo) -> list[SnapshotId]:
    """Possible parents: `main`, other branches, then all others, newest first."""
    tips = [info.branches[MAIN], *info.branches.values()]
    rows = info.snapshots.columns.flushed_at.argsort()[::-1].tolist()
    others = [SnapshotId(info.snapshots.id[row].tobytes()) for row in rows]
    return list(dict.fromkeys([*tips, *others]))


def fits_on(before: Snapshot, after: Snapshot, log: TransactionLog) -> bool:
    """Whether a snapshot equals another one with the changes of a log."""
    if before.flushed_at >= after.flushed_at:
        return False
    old = {node.id: node for node in before.nodes}
    new = {node.id: node for node in after.nodes}
    came = log.new_groups | log.new_arrays
    gone = log.deleted_groups | log.deleted_arrays
    if (old.keys() | came) - gone != new.keys() or (old.keys() & came) - gone:
        return False
    touched = came | log.updated_arrays | log.updated_groups | log.updated_chunks.keys()
    moved = {move.node_id for move in log.moved_nodes or ()}
    return all(
        (old[key].user_data, old[key].array) == (new[key].user_data, new[key].array)
        and (key in moved or old[key].path == new[key].path)
        for key in new.keys() - touched
    )


def _with_commit(
    handle: RepoHandle,
    info: RepoInfo,
    snapshot: Snapshot,
    parent: SnapshotId,
    branch: str,
    backup: str,
) -> RepoInfo:
    now = max(snapshot.flushed_at, info.newest_update_at + 1)
    changed = with_snapshot(info, snapshot, parent, branch=branch)
    values: Mapping[str, object] = {"branch": branch, "new_snap_id": snapshot.id}
    if backup:
        size = handle.settings.num_updates_per_repo_info_file
        return with_entry(
            changed, UpdateKind.NEW_COMMIT, values, now=now, backup=backup, page_size=size
        )
    entry = Update(UpdateKind.NEW_COMMIT, now, values)
    return replace(changed, latest_updates=(entry, *info.latest_updates))


async def _plan_dangling(handle: RepoHandle, info: RepoInfo) -> RescuePlan:
    """Reset branches whose tip is lost to their newest remaining ancestor."""
    listed = await list_folder(handle.driver, layout.SNAPSHOTS)
    there = {row.tobytes() for row in listed.id}
    actions, resets = [], []
    for name, tip in sorted(info.branches.items()):
        if tip in there:
            continue
        left = next((one for one in info.snapshots.ancestry(tip) if one in there), None)
        if left is None:
            detail = "no snapshot of its history is left"
            actions.append(RescueAction("leave", f"branch {name!r}", detail))
            continue
        detail = f"its tip {tip} is gone; it goes back to {left}"
        actions.append(RescueAction("reset", f"branch {name!r}", detail))
        resets.append((name, tip, left))
    for name, tip in sorted(info.tags.items()):
        if tip not in there:
            detail = f"its snapshot {tip} is gone; delete the tag"
            actions.append(RescueAction("leave", f"tag {name!r}", detail))
    kept = {**info.branches, **{name: left for name, _, left in resets}}
    history = SnapshotLines(info.snapshots, kept, info.tags)
    is_reached = history.reached([*kept.values(), *info.tags.values()])
    forgets = tuple(
        one
        for one, reached, parent in zip(
            info.snapshots, is_reached.tolist(), info.snapshots.parent.tolist(), strict=True
        )
        if one not in there and not reached and parent >= 0
    )
    actions += [
        RescueAction("forget", f"snapshot {one}", "its file is gone, and no ref leads to it then")
        for one in forgets
    ]
    return RescuePlan(tuple(actions), resets=tuple(resets), forgets=forgets)


async def _plan_v1(handle: RepoHandle) -> RescuePlan:
    """Branch files that are lost, damaged, or point at a missing snapshot."""
    stored = [one.snapshot for one in await _stored_snapshots(handle, None, [])]
    by_id = {one.id: one for one in stored}
    wrong: dict[str, tuple[Version | None, str]] = {}
    good: dict[str, SnapshotId] = {}
    keys = {found.key for found in await handle.driver.list(layout.REFS)}
    names = {key for key in keys if key.endswith("/ref.json")} | {layout.branch_key(MAIN)}
    for key in sorted(names):
        found = await find_object(handle.driver, key)
        if found is None:
            wrong[key] = None, "it does not exist"
            continue
        try:
            tip = decode_ref_file(found[0], key)
        except FormatError as error:
            wrong[key] = found[1], error.message
            continue
        if tip in by_id:
            good[key] = tip
        elif key + ".deleted" not in keys:
            wrong[key] = found[1], f"its snapshot {tip} is gone"
    actions, writes = [], []
    for key, (version, why) in wrong.items():
        heads = _heads(by_id, good.values())
        if "/branch." not in f"/{key}" or not heads:
            actions.append(RescueAction("leave", key, f"{why}; nothing says where it pointed"))
            continue
        tip = max(heads, key=lambda one: by_id[one].flushed_at)
        others = f", out of {len(heads)} ends of history" if len(heads) > 1 else ""
        detail = f"{why}; it gets {tip} ({by_id[tip].message!r}){others}"
        actions.append(RescueAction("restore", key, detail))
        writes.append((key, encode_ref_file(tip), version))
        good[key] = tip
    return RescuePlan(tuple(actions), tuple(writes))


def _heads(by_id: Mapping[SnapshotId, Snapshot], tips: Iterable[SnapshotId]) -> list[SnapshotId]:
    """Snapshots without children that no ref leads to; if there are none, all without children."""
    parents = {one.parent_id for one in by_id.values()}
    reached: set[SnapshotId] = set()
    for tip in tips:
        current: SnapshotId | None = tip
        while current is not None and current in by_id and current not in reached:
            reached.add(current)
            current = by_id[current].parent_id
    ends = [one for one in by_id if one not in parents]
    return [one for one in ends if one not in reached] or ends
