"""The start of a verification: refs, the repo object, the operations log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from icefloe.errors import FormatError, IcechunkError, StorageError
from icefloe.format import layout
from icefloe.format.config import decode_config_flexbuffer, decode_config_yaml
from icefloe.format.ref_files import decode_ref_file
from icefloe.format.repo_info import RepoInfo, decode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.maintenance.findings import FindingKind, FindingLog
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN
from icefloe.storage.driver import find_object


@dataclass
class History:
    """The snapshots to check, and what refs and the repo object say about them."""

    snapshots: list[SnapshotId]
    table: SnapshotTable | None = None
    """The table of the repo object; None in version 1."""
    pruned: list[SnapshotId] = field(default_factory=list)
    """Expired commits whose logs are still needed."""
    names: dict[SnapshotId, list[str]] = field(default_factory=dict)
    """The refs that point at a snapshot."""
    is_lost: bool = False
    """Whether the repo object cannot be read, so that every stored snapshot may be in use."""

    times: dict[SnapshotId, int] = field(default_factory=dict)
    """When snapshots were flushed, in microseconds; the repo object says so, or their parents."""

    def parent_of(self, snapshot: Snapshot) -> SnapshotId | None:
        """The repo object knows parents, or in version 1 the snapshots themselves."""
        info = self.info(snapshot.id)
        return snapshot.parent_id if info is None else info.parent_id

    def info(self, snapshot_id: SnapshotId) -> SnapshotInfo | None:
        """The entry of a snapshot in the repo object."""
        return None if self.table is None else self.table.get(snapshot_id)

    def named_by(self, snapshot_id: SnapshotId) -> str:
        """What refers to a snapshot, for messages."""
        names = self.names.get(snapshot_id)
        if names:
            return f"{' and '.join(names[:3])} point{'s' if len(names) == 1 else ''} at it"
        return (
            "the repo object lists it" if self.table is not None else "a snapshot has it as parent"
        )

    def needs_log(self, snapshot_id: SnapshotId, snapshot: Snapshot | None) -> bool:
        """Whether a snapshot needs a log. The first snapshot of version 1 is not a commit."""
        info = self.info(snapshot_id)
        if info is not None:
            return info.parent_id is not None
        return snapshot is not None and snapshot.parent_id is not None


async def read_history(handle: RepoHandle, log: FindingLog) -> History:
    """Refs and the snapshots they lead to. Unreadable refs are recorded as findings."""
    if not handle.format.has_repo_object:
        return await _history_v1(handle, log)
    info = await _repo_info(handle, log)
    if info is None:
        return History([], is_lost=True)
    await _check_operations(handle, info, log)
    if info.config is not None:
        _check_config(decode_config_flexbuffer, info.config, layout.REPO, log)
    pruned = {SnapshotId(row.tobytes()) for row in info.snapshots.columns.pruned_id}
    names = _names({f"branch {name!r}": tip for name, tip in info.branches.items()})
    names |= _names({f"tag {name!r}": tip for name, tip in info.tags.items()})
    ids = list(info.snapshots)
    times = dict(zip(ids, info.snapshots.columns.flushed_at.tolist(), strict=True))
    return History(ids, info.snapshots, sorted(pruned - set(ids)), names, times=times)


def _names(tips: Mapping[str, SnapshotId]) -> dict[SnapshotId, list[str]]:
    found: dict[SnapshotId, list[str]] = {}
    for name, tip in tips.items():
        found.setdefault(tip, []).append(name)
    return found


async def _repo_info(handle: RepoHandle, log: FindingLog) -> RepoInfo | None:
    found = await find_object(handle.driver, layout.REPO)
    if found is None:
        log.add(FindingKind.MISSING_REPO, layout.REPO, "there is no repo object")
        return None
    try:
        info = decode_repo_info(found[0], layout.REPO)
        # Force decoding here: later checks rely on it.
        info.snapshots.metadata(range(len(info.snapshots)))
        return info
    except FormatError as error:
        log.add(FindingKind.DAMAGED_REPO, layout.REPO, error.message)
    return None


async def _check_operations(handle: RepoHandle, info: RepoInfo, log: FindingLog) -> None:
    """Check that the operations log, continued in backups, goes back in time."""
    listed = {found.key for found in await handle.driver.list(layout.OVERWRITTEN)}
    key, newest = layout.REPO, None
    seen = set()
    while True:
        times = [entry.updated_at for entry in info.latest_updates]
        if not times:
            log.add(FindingKind.OPERATIONS_DISORDER, key, "there are no operations in it")
            return
        if newest is not None:
            times.insert(0, newest)
        if any(first <= second for first, second in pairwise(times)):
            log.add(FindingKind.OPERATIONS_DISORDER, key, "an operation is not newer than the next")
        newest = times[-1]
        for entry in info.latest_updates:
            name = entry.backup_path
            if name is not None and layout.OVERWRITTEN + name not in listed:
                detail = "a former repo object that the operations log names is gone"
                log.add(FindingKind.MISSING_BACKUP, layout.OVERWRITTEN + name, detail)
        before = info.repo_before_updates
        if before is None or before in seen:
            return
        seen.add(before)
        key = layout.OVERWRITTEN + before
        if key not in listed:
            log.add(FindingKind.MISSING_BACKUP, key, "older operations are unknown without it")
            return
        try:
            info = decode_repo_info(bytes(await handle.driver.get(key)), key)
        except FormatError as error:
            log.add(FindingKind.DAMAGED_BACKUP, key, error.message)
            return


def _check_config(
    decode: Callable[[bytes], object], data: bytes, key: str, log: FindingLog
) -> None:
    try:
        decode(data)
    except IcechunkError as error:
        log.add(FindingKind.DAMAGED_CONFIG, key, error.message)


async def _history_v1(handle: RepoHandle, log: FindingLog) -> History:
    tips: dict[str, SnapshotId] = {}
    listed = {found.key for found in await handle.driver.list(layout.REFS)}
    for key in sorted(listed):
        folder, _, file = key.removeprefix(layout.REFS).partition("/")
        kind, _, name = folder.partition(".")
        if kind not in ("branch", "tag") or file != "ref.json":
            if not (kind in ("tag", "tags") and file == "ref.json.deleted"):
                log.add(FindingKind.FOREIGN_OBJECT, key, "neither a branch nor a tag")
            continue
        if key + ".deleted" in listed:
            continue
        try:
            tips[f"{kind} {name!r}"] = decode_ref_file(bytes(await handle.driver.get(key)), key)
        except IcechunkError as error:
            log.add(FindingKind.DAMAGED_REF, key, error.message)
    if layout.branch_key(MAIN) not in listed:
        log.add(FindingKind.MISSING_MAIN, layout.branch_key(MAIN), "every repository has `main`")
    config = await find_object(handle.driver, layout.CONFIG_YAML)
    if config is not None:
        _check_config(decode_config_yaml, config[0], layout.CONFIG_YAML, log)
    times = await _walk_files(handle, tips.values())
    return History(sorted(times), names=_names(tips), times=times)


async def _walk_files(handle: RepoHandle, tips: Iterable[SnapshotId]) -> dict[SnapshotId, int]:
    """These snapshots and all their ancestors; a file that cannot be read ends a line."""
    times: dict[SnapshotId, int] = {}
    frontier = set(tips)
    while frontier:
        times |= dict.fromkeys(frontier, -1)
        parents: set[SnapshotId] = set()
        for one in sorted(frontier):
            key = layout.snapshot_key(one)
            try:
                snapshot = decode_snapshot(await handle.driver.get(key), key)
            except (FormatError, StorageError):
                continue  # reported when snapshots are checked
            times[one] = snapshot.flushed_at
            if snapshot.parent_id is not None:
                parents.add(snapshot.parent_id)
        frontier = parents - times.keys()
    return times
