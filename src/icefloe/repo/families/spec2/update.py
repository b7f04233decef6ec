"""Replacing the `repo` object of a version-2 repository: read, change, write if unchanged.

This one compare-and-swap makes commits, refs and settings atomic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icefloe.assets.assets import RepoObject, object_metadata
from icefloe.changes.ops_log import with_entry
from icefloe.errors import ConflictError, ErrorKind
from icefloe.format import layout
from icefloe.format.repo_info.file import RepoInfo, UpdateKind, encode_repo_info
from icefloe.ids import ChunkId
from icefloe.observe import COMMIT
from icefloe.records import record
from icefloe.repo.clock_checks import later_than
from icefloe.repo.families.spec2.checks import require_online
from icefloe.repo.handle import RepoHandle, SeenTip
from icefloe.storage.driver import ConditionFailed

Changed = tuple[RepoInfo, UpdateKind, Mapping[str, Any]]
Change = Callable[[RepoInfo], Changed]
"""From the current object to the new one and its entry in the operations log."""

_IMMEDIATE_RETRIES = 5


@record(frozen=True)
class SeenRepo(SeenTip):
    """A repo object that was just read, and the name for its backup copy."""

    current: RepoObject
    backup: str

    @property
    def files(self) -> Sequence[tuple[str, bytes]]:
        """The copy, which has to be stored before the object is replaced."""
        return ((layout.OVERWRITTEN + self.backup, self.current.data),)


def seen_now(handle: RepoHandle, current: RepoObject) -> SeenRepo:
    """An object that is about to be replaced. The caller may store its copy with other files."""
    milliseconds = handle.clock.now_us() // 1000
    return SeenRepo(current, layout.backup_name(layout.REPO, milliseconds, handle.new_id(ChunkId)))


async def update_repo(
    handle: RepoHandle,
    change: Change,
    *,
    is_status_change: bool = False,
    seen: SeenRepo | None = None,
) -> RepoInfo:
    """Apply `change` to the newest repo object, and retry while other writers replace it.

    `change` checks the object it is given; an exception from it ends the update. The first attempt
    uses the object in `seen`, whose backup copy is already stored.

    Raises:
        ReadOnlyError: the status of the repository is read-only.
        ConflictError: every attempt lost to another writer, kind `update-attempts-exhausted`.
    """
    handle.require_writable()
    retries = handle.settings.repo_update_retries.default
    attempts = max(_IMMEDIATE_RETRIES, retries.max_tries) + 1
    for attempt in range(attempts):
        current = seen.current if seen is not None else await handle.assets.repo_object()
        if not is_status_change:
            require_online(current.info)
        # The log is ordered by time.
        newest = current.info.newest_update_at
        now = later_than(newest, handle.clock.now_us(), "the newest operation of the repository")
        changed, kind, values = change(current.info)
        if seen is None:
            seen = seen_now(handle, current)
            for key, data in seen.files:
                await handle.driver.put(key, data)
            await handle.driver.sync()  # the new object refers to it
        replaced = await _replace(handle, seen, changed, kind, values, now)
        if replaced is not None:
            return replaced
        seen = None
        COMMIT.info("another writer replaced the repo object, trying again")
        if attempt >= _IMMEDIATE_RETRIES:
            grown = retries.initial_backoff_ms * 2 ** min(attempt - _IMMEDIATE_RETRIES, 30)
            longest = min(grown, retries.max_backoff_ms) / 1000
            await handle.driver.sleep(longest * random.uniform(0.5, 1.0))
    raise ConflictError(
        message=f"the repo object was changed by others at each of {attempts} attempts; try again "
        "when fewer writers are active, or raise repo_update_retries",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )


async def save_config(handle: RepoHandle, data: bytes) -> None:
    """Put an encoded configuration into the object."""

    def change(info: RepoInfo) -> Changed:
        return replace(info, config=data), UpdateKind.CONFIG_CHANGED, {}

    await update_repo(handle, change)


async def _replace(
    handle: RepoHandle,
    seen: SeenRepo,
    changed: RepoInfo,
    kind: UpdateKind,
    values: Mapping[str, Any],
    now: int,
) -> RepoInfo | None:
    """Replace the object; None if it is no longer the current one."""
    page_size = handle.settings.num_updates_per_repo_info_file
    info = with_entry(changed, kind, values, now=now, backup=seen.backup, page_size=page_size)
    data = encode_repo_info(info, level=handle.settings.compression.level)
    try:
        version = await handle.driver.put_if(
            layout.REPO, data, previous=seen.current.version, metadata=object_metadata(data)
        )
    except ConditionFailed:
        return None
    handle.assets.caches.repo = RepoObject(info, data, version)
    return info
