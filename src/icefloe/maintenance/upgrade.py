"""The upgrade from spec version 1 to 2."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from icefloe.assets.assets import object_metadata
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    RefNotFoundError,
    SessionStateError,
)
from icefloe.format import layout
from icefloe.format.config import decode_config_yaml, encode_config_flexbuffer
from icefloe.format.operations_log import RepoAvailability, RepoStatus, Update, UpdateKind
from icefloe.format.ref_files import decode_ref_file
from icefloe.format.repo_info import RepoInfo, encode_repo_info
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.ids import FIRST_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.progress import Reporter
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo import spec1
from icefloe.repo.gc_guard import mark_upgrade, require_not_migrated
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN
from icefloe.storage.driver import ConditionFailed, check_conditions_are_honoured, find_object

# -- The history of a migrated repository, decided before anything is written.
#
# Ids are derived from those of the source, so an interrupted migration can continue.


FIRST_MESSAGE = "Repository initialized"
FIRST_METADATA = {"__icechunk": {"is_root": True}}
MIGRATED_FROM = "icefloe.migrated_from"
"""The metadata key for the old id of a snapshot whose id had to change."""


@dataclass(frozen=True, slots=True)
class MovedSnapshot:
    """A snapshot of the source, and its entry in the target."""

    source_id: SnapshotId
    info: SnapshotInfo


@dataclass(frozen=True, slots=True)
class NewHistory:
    """All snapshots of a migrated repository, each after its parent."""

    first: SnapshotInfo
    """The empty first snapshot of every repository."""
    moved: tuple[MovedSnapshot, ...]
    new_ids: Mapping[SnapshotId, SnapshotId]
    """Keyed by the id in the source."""

    def infos(self) -> list[SnapshotInfo]:
        return [self.first, *(each.info for each in self.moved)]


def derived_id(source: bytes, *parts: bytes) -> bytes:
    """A 12-byte replacement for an id of the source that cannot be kept."""
    digest = hashlib.blake2b(source, digest_size=SnapshotId.size, person=b"icefloe.migrate")
    for part in parts:
        digest.update(part)
    return digest.digest()


def manifest_id(source: ManifestId, node_id: NodeId) -> ManifestId:
    """The new manifest of one array, from a source manifest that may hold several arrays."""
    return ManifestId(derived_id(bytes(source), bytes(node_id)))


def plan_history(
    snapshots: Iterable[SnapshotInfo], is_empty: Mapping[SnapshotId, bool], *, renames: bool
) -> NewHistory:
    """Order the snapshots, choose ids, and make times ascend along every history.

    `is_empty` says for every readable snapshot whether it has no nodes. Snapshots whose files are
    gone are left out; their children get the nearest readable ancestor as parent. With `renames`,
    all snapshots get new ids, because files with the old names exist.
    """
    known = {info.id: info for info in snapshots}
    ordered = _parents_first(known)
    readable = [info for info in ordered if info.id in is_empty]
    if not readable:
        raise FormatError("no snapshot of this repository can be read: there is nothing to migrate")
    roots = [info for info in readable if _kept_parent(info, known, is_empty) is None]
    replaced = next((info for info in roots if is_empty[info.id]), None)
    first = SnapshotInfo(
        FIRST_SNAPSHOT_ID,
        None,
        min(info.flushed_at for info in roots) - 1 if replaced is None else replaced.flushed_at,
        FIRST_MESSAGE,
        FIRST_METADATA,
    )
    new_ids: dict[SnapshotId, SnapshotId] = {}
    times = {first.id: first.flushed_at}
    moved: list[MovedSnapshot] = []
    for info in readable:
        if replaced is not None and info.id == replaced.id:
            new_ids[info.id] = first.id
            continue
        parent = _kept_parent(info, known, is_empty)
        parent_id = first.id if parent is None else new_ids[parent]
        new_id = SnapshotId(derived_id(bytes(info.id)) if renames else bytes(info.id))
        flushed_at = max(info.flushed_at, times[parent_id] + 1)
        metadata = dict(info.metadata)
        if new_id.text != info.id.text:
            metadata[MIGRATED_FROM] = info.id.text
        new_ids[info.id], times[new_id] = new_id, flushed_at
        listed = SnapshotInfo(new_id, parent_id, flushed_at, info.message, metadata)
        moved.append(MovedSnapshot(info.id, listed))
    return NewHistory(first, tuple(moved), new_ids)


def _kept_parent(
    info: SnapshotInfo,
    known: Mapping[SnapshotId, SnapshotInfo],
    is_empty: Mapping[SnapshotId, bool],
) -> SnapshotId | None:
    """The nearest readable ancestor."""
    current = info.parent_id
    while current is not None and current not in is_empty:
        ancestor = known.get(current)
        current = None if ancestor is None else ancestor.parent_id
    return current


def _parents_first(known: Mapping[SnapshotId, SnapshotInfo]) -> list[SnapshotInfo]:
    """Each snapshot after its parent, older ones first, so that the order is deterministic."""
    ordered: dict[SnapshotId, SnapshotInfo] = {}
    for tip in sorted(known.values(), key=lambda info: (info.flushed_at, bytes(info.id))):
        line: dict[SnapshotId, SnapshotInfo] = {}
        current: SnapshotInfo | None = tip
        while current is not None and current.id not in ordered:
            if current.id in line:
                raise FormatError(f"snapshot {current.id} is its own ancestor")
            line[current.id] = current
            current = None if current.parent_id is None else known.get(current.parent_id)
        ordered.update(reversed(line.items()))
    return list(ordered.values())


# -- An operations log, made from refs and history, for a generation that has none.


_MILLISECOND = 1000
_FROM_VERSION = 1
"""The old version in the entry of the migration. Official clients do not know version 0."""


def past_operations(
    snapshots: SnapshotTable,
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    *,
    migrated_at: int,
    deleted_tags: Mapping[str, SnapshotId] | None = None,
) -> tuple[Update, ...]:
    """Entries, newest first, by the same rules as the migration of official Icechunk.

    A commit has the time of its snapshot. A branch is created one millisecond after its tip, and a
    tag one millisecond after its snapshot. Equal times are moved apart.
    """
    written: set[SnapshotId] = set()
    entries: list[Update] = []

    def commits(branch: str) -> None:
        new = []
        for row in snapshots.line(branches[branch]).tolist():
            info = snapshots.info(row)
            if info.parent_id is None or info.id in written:
                break  # another branch has the rest of the line
            new.append(info)
        for info in reversed(new):
            written.add(info.id)
            values = {"branch": branch, "new_snap_id": info.id}
            entries.append(Update(UpdateKind.NEW_COMMIT, info.flushed_at, values))

    root = snapshots.info(int(snapshots.line(branches[MAIN])[-1]))
    entries.append(Update(UpdateKind.REPO_INITIALIZED, root.flushed_at))
    commits(MAIN)
    for name in sorted(branches):
        if name != MAIN:
            at = snapshots[branches[name]].flushed_at + _MILLISECOND
            entries.append(Update(UpdateKind.BRANCH_CREATED, at, {"name": name}))
            commits(name)
    for name, tip in sorted(tags.items()):
        at = snapshots[tip].flushed_at + _MILLISECOND
        entries.append(Update(UpdateKind.TAG_CREATED, at, {"name": name}))
    for name, tip in sorted((deleted_tags or {}).items()):
        at = snapshots[tip].flushed_at + _MILLISECOND
        entries.append(Update(UpdateKind.TAG_CREATED, at, {"name": name}))
        deleted = {"name": name, "previous_snap_id": tip}
        entries.append(Update(UpdateKind.TAG_DELETED, at + _MILLISECOND, deleted))
    entries.sort(key=lambda entry: entry.updated_at)
    versions = {"from_version": _FROM_VERSION, "to_version": 2}
    entries.append(Update(UpdateKind.REPO_MIGRATED, migrated_at, versions))
    return tuple(reversed(_ascending(entries)))


def _ascending(entries: Sequence[Update]) -> list[Update]:
    """The same entries with ascending times, moved one microsecond apart where needed."""
    found: list[Update] = []
    for entry in entries:
        at = entry.updated_at
        if found and at <= found[-1].updated_at:
            at = found[-1].updated_at + 1
        found.append(Update(entry.kind, at, entry.values))
    return found


# -- In-place upgrade from spec version 1 to 2: adds the `repo` object and deletes the old refs.
#
# 1. The `repo` object is made once and thrown away. So a repository that cannot be upgraded is
# left as it was. 2. A mark in the object of the fence (`icefloe.repo.gc_guard`) stops icefloe's
# writers of version 1. 3. Every branch file is rewritten. So it gets a new version. 4. The `repo`
# object is made from refs and history, and created. This is the upgrade: from then on, clients
# that open the repository find version 2, official ones too. 5. The mark is taken back, and old
# files are deleted, `main` first, so that no client finds version 1.
#
# Why no acknowledged commit is lost: a commit of version 1 reads its branch, then the mark, then
# looks for `repo`, and then replaces the branch file if it still has the version that was read.
# If it read the branch after step 3, it finds the mark, or `repo` once the mark is gone, and
# refuses. If it read the branch before step 3, its write succeeds only before step 3, and step 4
# finds the commit on its branch. Writers of version 2 need `repo`, which is complete when it
# appears. Whatever else changes refs or settings in version 1 looks for the mark before and after
# its write, and is acknowledged only if there was none afterwards: then the write came before
# step 2.
#
# Several upgrades at the same time set the same mark, and one of them creates `repo`. The mark is
# never taken back before that, because another upgrade may rely on it. So a crash before step 4
# leaves a repository of version 1 that can be read and takes no changes until the call is
# repeated. A crash after step 4 leaves a repository of version 2 with unused files, which another
# call deletes.


_TRIES = 100


class _Refs(NamedTuple):
    branches: dict[str, SnapshotId]
    tags: dict[str, SnapshotId]
    deleted_tags: dict[str, SnapshotId | None]


@observed("upgrade", MAINTENANCE)
async def upgrade(
    handle: RepoHandle, *, dry_run: bool, delete_unused_v1_files: bool, report: Reporter
) -> None:
    """Upgrade a repository of version 1 to version 2.

    Raises:
        SessionStateError: kind `invalid-repository-migration` for any other repository.
    """
    handle.require_writable()
    if handle.format.name != "spec-1":
        may_finish = handle.format.has_repo_object and not dry_run and delete_unused_v1_files
        if may_finish and await _finish(handle, report):
            return
        raise SessionStateError(
            f"{handle.storage.describe()} holds {handle.format.noun}, expected one of spec "
            "version 1; see migrate_repository for other generations",
            ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    await require_not_migrated(handle)
    if dry_run:
        await _make(handle, await _read(handle))
        return
    await check_conditions_are_honoured(handle.driver)
    await _publish(handle)
    report.tell("upgrading", 1, 2)
    if delete_unused_v1_files:
        await _delete_old(handle)
    report.tell("upgrading", 2, 2)


async def _read(handle: RepoHandle) -> _Refs:
    format_version = handle.format
    deleted = await spec1.list_deleted_tags(handle)
    return _Refs(await format_version.branches(handle), await format_version.tags(handle), deleted)


async def _make(handle: RepoHandle, found: _Refs) -> bytes:
    """The `repo` object for these refs."""
    branches, tags, deleted = found
    if MAIN not in branches:
        await require_not_migrated(handle)  # the end of another upgrade deletes `main` first
        raise RefNotFoundError(f"no branch {MAIN!r} in this repository; create it first")
    tips = [*branches.values(), *tags.values()]
    table = SnapshotTable.from_infos(await live.reachable_infos(handle.driver, tips))
    first = table.info(int(table.line(branches[MAIN])[-1]))
    config = await find_object(handle.driver, layout.CONFIG_YAML)
    saved = None if config is None else encode_config_flexbuffer(decode_config_yaml(config[0]))
    known = {name: tip for name, tip in deleted.items() if tip is not None and tip in table}
    info = RepoInfo(
        branches=branches,
        tags=tags,
        deleted_tags=frozenset(deleted),
        snapshots=table,
        status=RepoStatus(RepoAvailability.ONLINE, first.flushed_at),
        latest_updates=past_operations(
            table, branches, tags, migrated_at=handle.clock.now_us(), deleted_tags=known
        ),
        config=saved,
    )
    return encode_repo_info(info, level=handle.settings.compression.level)


async def _publish(handle: RepoHandle) -> None:
    await _make(handle, await _read(handle))
    await mark_upgrade(handle, is_upgrading=True)
    try:
        data = await _make(handle, await _frozen_refs(handle))
        await handle.driver.put_if(layout.REPO, data, previous=None, metadata=object_metadata(data))
    except ConditionFailed:
        raise ConflictError(
            message="another process upgraded the repository at the same time; open it again",
            kind=ErrorKind.REPO_INFO_UPDATED,
        ) from None
    except IcechunkError as error:
        error.add_note(
            "The upgrade has not ended. The repository can be read, and takes no changes until "
            "upgrade_icechunk_repository is called again and succeeds."
        )
        raise
    await mark_upgrade(handle, is_upgrading=False)


async def _frozen_refs(handle: RepoHandle) -> _Refs:
    """The refs, after every branch was rewritten. Only writers that were faster than the mark can
    move a branch once more."""
    frozen: dict[str, SnapshotId] = {}
    for _ in range(_TRIES):
        found = await _read(handle)
        moved = {name: tip for name, tip in found.branches.items() if frozen.get(name) != tip}
        if not moved:
            return found
        frozen |= {
            name: tip
            for name, tip in moved.items()
            if await handle.format.touch_branch(handle, name, tip)
        }
    raise ConflictError(
        message=f"branches moved at each of {_TRIES} attempts to upgrade: stop other clients of "
        "version 1, and repeat the call",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )


async def _delete_old(handle: RepoHandle) -> None:
    await handle.driver.delete_many([layout.branch_key(MAIN)])
    keys = [entry.key for entry in await handle.driver.list(layout.REFS)]
    await handle.driver.delete_many([*keys, layout.CONFIG_YAML])


async def _finish(handle: RepoHandle, report: Reporter) -> bool:
    """Delete the old files of an interrupted upgrade. Returns False if there are none."""
    info = (await handle.assets.repo_object()).info
    keys = [entry.key for entry in await handle.driver.list(layout.REFS)]
    was_upgraded = any(entry.kind == UpdateKind.REPO_MIGRATED for entry in info.latest_updates)
    if not keys or not was_upgraded:
        return False
    for key in keys:
        if key.startswith(f"{layout.REFS}branch."):
            found = await find_object(handle.driver, key)
            tip = None if found is None else decode_ref_file(found[0], key)
            if tip is not None and tip not in info.snapshots:
                raise SessionStateError(
                    f"{key} points at snapshot {tip}, which the repository does not list: a client "
                    "of version 1 may have committed after the upgrade. Nothing was deleted",
                    ErrorKind.INVALID_REPOSITORY_MIGRATION,
                )
    await mark_upgrade(handle, is_upgrading=False)
    await _delete_old(handle)
    report.tell("upgrading", 2, 2)
    return True
