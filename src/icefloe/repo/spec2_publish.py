"""The `repo` object of spec version 2: one conditional write publishes a commit, a status or a
flag.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icefloe.assets.assets import RepoObject, object_metadata
from icefloe.display import Picture, Shown
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    branch_moved,
)
from icefloe.format import layout
from icefloe.format.operations_log import RepoAvailability, RepoStatus, UpdateKind, UpdateLog
from icefloe.format.repo_info import RepoInfo, encode_repo_info, with_entry, with_ref
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.ids import ChunkId, SnapshotId
from icefloe.observe import COMMIT
from icefloe.repo.handle import NewCommit, RepoHandle, SeenTip, later_than
from icefloe.storage.driver import ConditionFailed, Version

# -- Publishing in spec version 2: one conditional write of the `repo` object.


def require_online(info: RepoInfo) -> None:
    """Refuse to write to a repository whose status is read-only."""
    if info.status.availability != RepoAvailability.ONLINE:
        reason = info.status.limited_availability_reason
        raise ReadOnlyError(
            "the repository status is read-only" + (f": {reason}" if reason else ""),
            ErrorKind.READ_ONLY_REPOSITORY,
        )


def require_branch(info: RepoInfo, name: str) -> SnapshotId:
    """The tip of a branch; raises if there is no such branch."""
    tip = info.branches.get(name)
    if tip is None:
        other = "it is a tag; " if name in info.tags else _is_id(info, name)
        raise RefNotFoundError(f"branch {name!r}; {other}{_known('branches', info.branches)}")
    return tip


def require_tag(info: RepoInfo, name: str) -> SnapshotId:
    """The snapshot of a tag; raises if there is no such tag."""
    found = info.tags.get(name)
    if found is None:
        other = "it is a branch; " if name in info.branches else _is_id(info, name)
        raise RefNotFoundError(f"tag {name!r}; {other}{_known('tags', info.tags)}")
    return found


def _is_id(info: RepoInfo, name: str) -> str:
    try:
        is_listed = SnapshotId.parse(name) in info.snapshots
    except InvalidInputError:
        return ""
    return f"it is a snapshot id (snapshot_id={name!r}); " if is_listed else ""


def require_snapshot(info: RepoInfo, snapshot_id: SnapshotId) -> int:
    """The row of a snapshot; raises if the repository does not list it."""
    row = info.snapshots.find(snapshot_id)
    if row < 0:
        raise SnapshotNotFoundError(f"{snapshot_id} in this repository")
    return row


def _known(noun: str, names: Iterable[str]) -> str:
    listed = sorted(names)
    shown = ", ".join(repr(name) for name in listed[:10])
    more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
    return f"{noun} are {shown}{more}" if listed else f"there are no {noun}"


# -- Replacing the `repo` object of a version-2 repository: read, change, write if unchanged.
#
# This one compare-and-swap makes commits, refs and settings atomic.


Changed = tuple[RepoInfo, UpdateKind, Mapping[str, Any]]
Change = Callable[[RepoInfo], Changed]
"""From the current object to the new one and its entry in the operations log."""

_IMMEDIATE_RETRIES = 5


@dataclass(frozen=True)
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


async def update_attempts(handle: RepoHandle, what: str) -> AsyncIterator[None]:
    """One item per attempt to replace an object, with growing pauses; at the end a `ConflictError`.

    Its kind is `update-attempts-exhausted`: others were faster each time.
    """
    retries = handle.settings.repo_update_retries.default
    attempts = max(_IMMEDIATE_RETRIES, retries.max_tries) + 1
    for attempt in range(attempts):
        yield
        if attempt >= _IMMEDIATE_RETRIES:
            grown = retries.initial_backoff_ms * 2 ** min(attempt - _IMMEDIATE_RETRIES, 30)
            longest = min(grown, retries.max_backoff_ms) / 1000
            await handle.driver.sleep(longest * random.uniform(0.5, 1.0))
    raise ConflictError(
        message=f"{what} was changed by others at each of {attempts} attempts; try again "
        "when fewer writers are active, or raise repo_update_retries",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )


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
    async for _ in update_attempts(handle, "the repo object"):
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
    raise AssertionError("the attempts end with an error")


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
    try:
        await put_repo(handle, info, seen.current.version)
    except ConditionFailed:
        return None
    return info


async def put_repo(handle: RepoHandle, info: RepoInfo, previous: Version | None) -> None:
    """Write the object if its version is still `previous` (None: if there is none)."""
    data = encode_repo_info(info, level=handle.settings.compression.level)
    version = await handle.driver.put_if(
        layout.REPO, data, previous=previous, metadata=object_metadata(data)
    )
    handle.assets.caches.repo = RepoObject(info, data, version)


# -- Feature flags in a `repo` object: operations that an administrator can switch off.


# Ids 1 and 2 are reserved by the format for commit and amend.
FLAG_IDS = {"move_node": 3, "create_tag": 4, "delete_tag": 5}


@dataclass(frozen=True, repr=False)
class FeatureFlag(Shown):
    """A flag, its setting (None: the default), and its effective value."""

    shown_in = "config"

    id: int
    name: str
    default_enabled: bool
    setting: bool | None

    @property
    def enabled(self) -> bool:
        return self.default_enabled if self.setting is None else self.setting

    def _picture_(self) -> Picture:
        names = ("id", "name", "default_enabled", "setting", "enabled")
        return Picture(self._title_(), [(name, str(getattr(self, name))) for name in names])


def flags_of(info: RepoInfo) -> list[FeatureFlag]:
    """Every known flag. Unknown ids on disk are preserved and ignored."""
    flags = []
    for name, number in FLAG_IDS.items():
        setting = None
        if number in (info.enabled_feature_flags or ()):
            setting = True
        elif number in (info.disabled_feature_flags or ()):
            setting = False
        flags.append(FeatureFlag(number, name, True, setting))
    return flags


def require_flag(info: RepoInfo, name: str) -> None:
    """Refuse an operation whose flag is off."""
    if not next(flag for flag in flags_of(info) if flag.name == name).enabled:
        raise SessionStateError(
            f"feature flag {name!r} is disabled in this repository; "
            f"set_feature_flag({name!r}, None) brings it back",
            ErrorKind.FEATURE_FLAG_DISABLED,
        )


def replaced_tip(
    info: RepoInfo,
    commit: NewCommit,
    branch: str,
    parent_id: SnapshotId | None,
    pruned: tuple[SnapshotId, ...],
) -> Changed:
    """The object with a commit in place of its base, the tip of a branch."""
    changed = with_snapshot(info, commit.snapshot, parent_id, pruned, branch=branch)
    values = {
        "branch": branch,
        "previous_snap_id": commit.base,
        "new_snap_id": commit.snapshot.id,
    }
    return changed, UpdateKind.COMMIT_AMENDED, values


class _AlreadyListed(Exception):  # noqa: N818 - reports success, not an error
    """An earlier attempt of the same update has succeeded."""


class _Collected(Exception):  # noqa: N818 - caught in this module
    """A collection ran since the session was opened."""

    def __init__(self, at: int) -> None:
        self.at = at


def may_have_collected(info: RepoInfo, since: int) -> bool:
    """Whether a garbage collection may have run after an entry of the operations log.

    True also when the log in the object does not reach back that far.
    """
    log = UpdateLog.of(info.latest_updates)
    is_cut = log.oldest_at > since and info.repo_before_updates is not None
    return is_cut or log.newest_collection_at > since


async def publish_commits(
    handle: RepoHandle, commits: Sequence[NewCommit], change: Change, seen: SeenRepo | None = None
) -> None:
    """Publish commits once.

    The transport may repeat a request that has succeeded. The repetition fails as if another writer
    had been first. So the update ends when the snapshot is already listed.
    """

    opened_at = commits[-1].opened_at

    def checked(info: RepoInfo) -> Changed:
        if commits[-1].snapshot.id in info.snapshots:
            raise _AlreadyListed
        if any(commit.moves_nodes for commit in commits):
            require_flag(info, "move_node")
        result = change(info)
        if commits[-1].source is not None:
            require_snapshot(info, commits[-1].source)
        if may_have_collected(info, opened_at):
            raise _Collected(info.newest_update_at)
        return result

    while True:
        try:
            await update_repo(handle, checked, seen=seen)
        except _AlreadyListed:
            pass
        except _Collected as found:
            from icefloe.repo.gc_guard import require_own_objects

            for commit in commits:
                await require_own_objects(handle, commit)
            opened_at = found.at  # collections up to this one have not deleted the objects
            continue
        return


def require_tip(info: RepoInfo, branch: str, expected: SnapshotId) -> None:
    """Refuse to commit to a branch that has moved."""
    tip = require_branch(info, branch)
    if tip != expected:
        raise branch_moved(branch, expected.text, tip.text)


def require_base(info: RepoInfo, base: SnapshotId) -> None:
    """Refuse to commit on a base snapshot that is no longer listed."""
    if base not in info.snapshots:
        raise SnapshotNotFoundError(
            f"snapshot {base}, from which the session started, has expired or was deleted since; "
            "the session keeps its changes: rebase it, or make them again in a new session"
        )


def with_snapshot(
    info: RepoInfo,
    snapshot: Snapshot,
    parent_id: SnapshotId | None,
    pruned: tuple[SnapshotId, ...] = (),
    *,
    branch: str | None = None,
) -> RepoInfo:
    """The object with one more snapshot, which is the new tip of `branch`."""
    listed = SnapshotInfo.of(snapshot, parent_id, pruned)
    branches = info.branches
    if branch is not None:
        branches = with_ref(branches, branch, snapshot.id)
    return replace(info, snapshots=info.snapshots.with_snapshot(listed), branches=branches)


# -- Settings, status and feature flags of a repository.


async def get_metadata(handle: RepoHandle) -> dict[str, Any]:
    """The metadata of the repository itself."""
    handle.format.require_repo_object("repository metadata")
    return dict((await handle.assets.repo_object()).info.metadata)


async def set_metadata(handle: RepoHandle, metadata: Mapping[str, Any]) -> None:
    """Replace all metadata of the repository."""
    await update_metadata(handle, metadata, keeps_others=False)


async def update_metadata(
    handle: RepoHandle, metadata: Mapping[str, Any], *, keeps_others: bool = True
) -> dict[str, Any]:
    """Set some keys and keep the others. Returns all metadata."""
    handle.format.require_repo_object("repository metadata")
    handle.format.require_metadata(metadata)  # refuse before the first request

    def change(info: RepoInfo) -> Changed:
        merged = {**(info.metadata if keeps_others else {}), **metadata}
        return replace(info, metadata=merged), UpdateKind.METADATA_CHANGED, {}

    return dict((await update_repo(handle, change)).metadata)


async def get_status(handle: RepoHandle) -> RepoStatus:
    """Whether the repository accepts writes."""
    handle.format.require_repo_object("the repository status")
    return (await handle.assets.repo_object()).info.status


async def set_status(handle: RepoHandle, status: RepoStatus) -> None:
    """Make the repository read-only for everyone, or writable again."""
    handle.format.require_repo_object("the repository status")

    def change(info: RepoInfo) -> Changed:
        changed = replace(info, status=status)
        return changed, UpdateKind.REPO_STATUS_CHANGED, {"status": status}

    await update_repo(handle, change, is_status_change=True)


async def feature_flags(handle: RepoHandle) -> list[FeatureFlag]:
    """Every flag of the repository."""
    handle.format.require_repo_object("feature flags")
    return flags_of((await handle.assets.repo_object()).info)


async def set_feature_flag(handle: RepoHandle, name: str, setting: bool | None) -> None:
    """Switch a flag on or off, or back to its default with None."""
    handle.format.require_repo_object("feature flags")
    if name not in FLAG_IDS:
        raise InvalidInputError(
            f"no feature flag {name!r}; flags are {', '.join(map(repr, FLAG_IDS))}",
            ErrorKind.INVALID_FEATURE_FLAG,
        )
    number = FLAG_IDS[name]

    def change(info: RepoInfo) -> Changed:
        enabled = set(info.enabled_feature_flags or ()) - {number}
        disabled = set(info.disabled_feature_flags or ()) - {number}
        if setting is not None:
            (enabled if setting else disabled).add(number)
        changed = replace(
            info,
            enabled_feature_flags=tuple(sorted(enabled)),
            disabled_feature_flags=tuple(sorted(disabled)),
        )
        values = {"id": number, "new_value": bool(setting), "is_set": setting is not None}
        return changed, UpdateKind.FEATURE_FLAG_CHANGED, values

    await update_repo(handle, change)
