"""In-place upgrade from spec version 1 to 2: adds the `repo` object and deletes the old refs.

1. The `repo` object is made from refs and history. Writing it is the upgrade: from then on,
   clients that open the repository find version 2. A crash before that leaves version 1.
2. Every branch file is rewritten. A concurrent commit of version 1 then fails its conditional
   write. If it was first, step 1 is repeated with it.
3. Old files are deleted, `main` first, so that no client sees version 1. A crash in between
   leaves unused files, which another call deletes.
"""

from __future__ import annotations

from typing import NamedTuple

from icefloe.assets.assets import object_metadata
from icefloe.errors import ConflictError, ErrorKind, SessionStateError
from icefloe.format import layout
from icefloe.format.config.file import decode_config_yaml, encode_config_flexbuffer
from icefloe.format.ref_files import decode_ref_file
from icefloe.format.repo_info.file import (
    RepoAvailability,
    RepoInfo,
    RepoStatus,
    UpdateKind,
    encode_repo_info,
)
from icefloe.format.repo_info.snapshots import SnapshotTable
from icefloe.ids import SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.migration.past_operations import past_operations
from icefloe.maintenance.progress import Reporter
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo.families.spec1 import refs
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN
from icefloe.storage.driver import ConditionFailed, Version, find_object
from icefloe.storage.drivers.probe import check_conditions_are_honoured

_TRIES = 20


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
    if handle.family.name != "spec-1":
        may_finish = handle.family.has_repo_object and not dry_run and delete_unused_v1_files
        if may_finish and await _finish(handle, report):
            return
        raise SessionStateError(
            f"{handle.storage.describe()} holds {handle.family.noun}, expected one of spec "
            "version 1; see migrate_repository for other generations",
            ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    await refs.require_not_migrated(handle)
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
    family = handle.family
    deleted = await refs.list_deleted_tags(handle)
    return _Refs(await family.branches(handle), await family.tags(handle), deleted)


async def _make(handle: RepoHandle, found: _Refs) -> bytes:
    """The `repo` object for these refs."""
    branches, tags, deleted = found
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
        metadata={},
        latest_updates=past_operations(
            table, branches, tags, migrated_at=handle.clock.now_us(), deleted_tags=known
        ),
        config=saved,
    )
    return encode_repo_info(info, level=handle.settings.compression.level)


async def _publish(handle: RepoHandle) -> None:
    """Write the object, and repeat while version-1 commits interfere."""
    version: Version | None = None
    for _ in range(_TRIES):
        found = await _read(handle)
        data = await _make(handle, found)
        try:
            version = await handle.driver.put_if(
                layout.REPO, data, previous=version, metadata=object_metadata(data)
            )
        except ConditionFailed:
            raise ConflictError(
                message="somebody else upgraded the repository, or changed it after the upgrade, "
                "at the same time; open it again and compare its branches with those under refs/",
                kind=ErrorKind.REPO_INFO_UPDATED,
            ) from None
        for name, tip in found.branches.items():
            if not await refs.touch_branch(handle, name, tip):
                break
        else:
            if await _read(handle) == found:
                return
    raise ConflictError(
        message=f"version-1 writers committed at each of {_TRIES} attempts to upgrade; stop them",
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
    await _delete_old(handle)
    report.tell("upgrading", 2, 2)
    return True
