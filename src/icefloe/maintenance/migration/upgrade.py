"""In-place upgrade from spec version 1 to 2: adds the `repo` object and deletes the old refs.

1. The `repo` object is made once and thrown away. So a repository that cannot be upgraded is left
   as it was.
2. A mark in the object of the fence (`icefloe.repo.fence`) stops icefloe's writers of version 1.
3. Every branch file is rewritten. So it gets a new version.
4. The `repo` object is made from refs and history, and created. This is the upgrade: from then on,
   clients that open the repository find version 2, official ones too.
5. The mark is taken back, and old files are deleted, `main` first, so that no client finds
   version 1.

Why no acknowledged commit is lost: a commit of version 1 reads its branch, then the mark, then
looks for `repo`, and then replaces the branch file if it still has the version that was read. If it
read the branch after step 3, it finds the mark, or `repo` once the mark is gone, and refuses. If it
read the branch before step 3, its write succeeds only before step 3, and step 4 finds the commit on
its branch. Writers of version 2 need `repo`, which is complete when it appears. Whatever else
changes refs or settings in version 1 looks for the mark before and after its write, and is
acknowledged only if there was none afterwards: then the write came before step 2.

Several upgrades at the same time set the same mark, and one of them creates `repo`. The mark is
never taken back before that, because another upgrade may rely on it. So a crash before step 4
leaves a repository of version 1 that can be read and takes no changes until the call is repeated.
A crash after step 4 leaves a repository of version 2 with unused files, which another call deletes.
"""

from __future__ import annotations

from typing import NamedTuple

from icefloe.assets.assets import object_metadata
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    IcechunkError,
    RefNotFoundError,
    SessionStateError,
)
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
from icefloe.repo.fence import mark_upgrade, require_not_migrated
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN
from icefloe.storage.driver import ConditionFailed, find_object
from icefloe.storage.drivers.probe import check_conditions_are_honoured

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
    if handle.family.name != "spec-1":
        may_finish = handle.family.has_repo_object and not dry_run and delete_unused_v1_files
        if may_finish and await _finish(handle, report):
            return
        raise SessionStateError(
            f"{handle.storage.describe()} holds {handle.family.noun}, expected one of spec "
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
    family = handle.family
    deleted = await refs.list_deleted_tags(handle)
    return _Refs(await family.branches(handle), await family.tags(handle), deleted)


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
        metadata={},
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
            name: tip for name, tip in moved.items() if await refs.touch_branch(handle, name, tip)
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
