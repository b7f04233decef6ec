"""Spec version 1: a file per ref, history in the snapshots, settings in `config.yaml`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from icefloe.assets.assets import Assets
from icefloe.config import RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
    StorageError,
    branch_moved,
)
from icefloe.format import layout
from icefloe.format.config import decode_config_yaml, encode_config_yaml
from icefloe.format.ref_files import TOMBSTONE, decode_ref_file, encode_ref_file
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.ids import FIRST_SNAPSHOT_ID, ChunkId, SnapshotId
from icefloe.repo.commit_notes import expired_before
from icefloe.repo.creation import SpecFormat, put_first_snapshot
from icefloe.repo.gc_guard import require_open, require_own_objects, require_still_open
from icefloe.repo.handle import (
    MOST_CLOCK_SKEW_US,
    FoundRepository,
    LineCommit,
    NewCommit,
    RepoHandle,
    SeenTip,
)
from icefloe.repo.refs import MAIN
from icefloe.storage.driver import ConditionFailed, Driver, Version, find_object

if TYPE_CHECKING:
    from icefloe.format.transaction_log import TransactionLog

# -- Whether collections keep a snapshot: decided from what is stored, not from caches.
#
# A collection deletes what no ref leads to, if it is older than the fence. So a snapshot is kept
# if a ref leads to it. One that no ref leads to, such as a flushed one, is kept if its parent is,
# and all objects that it does not share with its parent are newer than the fence.


async def require_kept(
    handle: RepoHandle, snapshot_id: SnapshotId, fence: int, *, besides: str | None = None
) -> None:
    """Refuse a snapshot that a collection has deleted or may delete, as a whole or in part.

    Args:
        besides: a ref (`branch.NAME` or `tag.NAME`) that does not count.

    Raises:
        SnapshotNotFoundError: its file is missing, or objects that it needs may be.
    """
    stored = handle.assets.past_disk_cache()
    try:
        current = await stored.load_snapshot(snapshot_id)
    except SnapshotNotFoundError:
        handle.assets.caches.snapshots.drop([snapshot_id])
        raise
    if not fence:
        return  # icefloe never collected here
    try:
        while not await _is_reachable(handle, stored, current, besides):
            if current.parent_id is None:
                raise SnapshotNotFoundError(f"no ref leads to {current.id}")
            await require_own_objects(handle, NewCommit(current, current.parent_id, False), fence)
            current = await stored.load_snapshot(current.parent_id)
    except IcechunkError as error:
        if isinstance(error, SnapshotNotFoundError) or error.kind == ErrorKind.OBJECTS_COLLECTED:
            raise SnapshotNotFoundError(
                f"no branch or tag leads to snapshot {snapshot_id}, and garbage collections have "
                "deleted objects that it needs, or may still do so; use a snapshot of a branch"
            ) from error
        raise


async def _is_reachable(
    handle: RepoHandle, stored: Assets, wanted: Snapshot, besides: str | None
) -> bool:
    """Whether a ref leads to a snapshot. Branches lead to nearly all, so they are read first."""
    branches = await handle.format.branches(handle)
    tips = {tip for name, tip in branches.items() if f"branch.{name}" != besides}
    if await _lead_to(stored, tips, wanted):
        return True
    tags = await handle.format.tags(handle)
    tips = {tip for name, tip in tags.items() if f"tag.{name}" != besides} - tips
    return await _lead_to(stored, tips, wanted)


async def _lead_to(stored: Assets, tips: Iterable[SnapshotId], wanted: Snapshot) -> bool:
    """Whether a snapshot is among these and their ancestors. Times increase along a line, so older
    ones are not followed."""
    waiting, seen = set(tips), set[SnapshotId]()
    while waiting:
        if wanted.id in waiting:
            return True
        current = waiting.pop()
        seen.add(current)
        try:
            snapshot = await stored.load_snapshot(current)
        except SnapshotNotFoundError:
            continue  # the history is cut here
        is_newer = snapshot.flushed_at > wanted.flushed_at - MOST_CLOCK_SKEW_US
        if is_newer and snapshot.parent_id is not None and snapshot.parent_id not in seen:
            waiting.add(snapshot.parent_id)
    return False


# -- Ref files: one small object each, under conditional writes.


_JSON = "application/json"
_TRIES = 100


async def list_deleted_tags(handle: RepoHandle) -> dict[str, SnapshotId | None]:
    """Deleted tags, with their snapshots where the file that says so is still there."""
    found: dict[str, SnapshotId | None] = {}
    for name in (await _listed(handle))["deleted"]:
        old = await find_object(handle.driver, layout.tag_key(name))
        found[name] = None if old is None else decode_ref_file(old[0], layout.tag_key(name))
    return found


async def _listed(handle: RepoHandle) -> dict[str, set[str]]:
    """Names by kind; tags with a tombstone are `deleted`."""
    found: dict[str, set[str]] = {"branch.": set(), "tag.": set(), "deleted": set()}
    for entry in await handle.driver.list(layout.REFS):
        folder, _, file = entry.key.removeprefix(layout.REFS).partition("/")
        # One published text spells the tombstone's folder "tags."; reading it as well is harmless.
        kind = next((kind for kind in ("branch.", "tags.", "tag.") if folder.startswith(kind)), "")
        if not kind:
            raise FormatError(
                f"{entry.key}: neither a branch nor a tag, expected refs/branch.NAME or "
                "refs/tag.NAME",
                ErrorKind.INVALID_REF_TYPE,
            )
        name = folder.removeprefix(kind)
        if file == "ref.json.deleted":
            found["deleted"].add(name)
        elif kind != "tags.":
            found[kind].add(name)
    found["tag."] -= found["deleted"]
    return found


async def _require_branch(handle: RepoHandle, name: str) -> tuple[SnapshotId, Version]:
    """The tip of an existing branch, and the version of its file."""
    key = layout.branch_key(name)
    found = await find_object(handle.driver, key)
    if found is None:
        is_tag = await find_object(handle.driver, layout.tag_key(name)) is not None
        why = "it is a tag" if is_tag else f"there is no object {key}"
        raise RefNotFoundError(f"branch {name!r} in this repository ({why})")
    seen = decode_ref_file(found[0], key), found[1]
    handle.shared.seen_branches[name] = seen
    return seen


class _SeenFile(SeenTip):
    """The file of a branch that was just read."""

    def __init__(self, tip: SnapshotId, version: Version) -> None:
        self.file = tip, version


async def _create_ref(handle: RepoHandle, key: str, ref: str, snapshot_id: SnapshotId) -> None:
    """Create a ref file. A collection that became final before may have missed it."""
    handle.require_writable()
    fence = await require_open(handle)
    await require_kept(handle, snapshot_id, fence)
    await _put_ref(handle, key, encode_ref_file(snapshot_id), None)
    now = await require_still_open(handle)
    if now != fence:
        try:
            await require_kept(handle, snapshot_id, now, besides=ref)
        except SnapshotNotFoundError:
            await handle.driver.delete_many([key])
            raise


async def _move_branch(
    handle: RepoHandle,
    name: str,
    snapshot_id: SnapshotId,
    expected: SnapshotId | None,
    check: Callable[[int], Awaitable[None]] | None = None,
    seen: SeenTip | None = None,
) -> None:
    """Point a branch at another snapshot, unless another writer moved it first.

    The first attempt is made under the version of the file in `seen`. `check` gets the fence of
    collections and may refuse. It runs between reading and writing the branch. A collection or an
    upgrade that starts after the check gives the branch another version, so the write fails, and
    everything is checked again.
    """
    handle.require_writable()
    start = expected
    for attempt in range(_TRIES):
        if isinstance(seen, _SeenFile) and not attempt:
            tip, version = seen.file
        else:
            tip, version = await _require_branch(handle, name)
        if attempt and tip == snapshot_id:
            return  # an earlier attempt of this request succeeded
        start = start or tip
        if tip != start:
            break
        fence = await require_open(handle)
        if check is not None:
            await check(fence)
        try:
            await _put_ref(handle, layout.branch_key(name), encode_ref_file(snapshot_id), version)
        except ConditionFailed:
            continue
        return
    was = None if expected is None else expected.text
    raise branch_moved(name, was, tip.text, ErrorKind.BRANCH_UPDATE_CONFLICT)


async def _put_ref(handle: RepoHandle, key: str, data: bytes, previous: Version | None) -> None:
    """Write a ref file if its version is still `previous` (None: if it does not exist)."""
    await handle.driver.put_if(key, data, previous=previous, content_type=_JSON)


_MOST_ANCESTORS_CACHED = 1000
"""More of a long history are read again when they are wanted again."""


class _FoundBranch(FoundRepository):
    """A file of branch `main`; the configuration is in another file."""

    def __init__(self, driver: Driver) -> None:
        self.format = Spec1()
        self._driver = driver
        self._config_version: Version | None = None

    async def saved_config(self) -> RepositoryConfig | None:
        found = await find_object(self._driver, layout.CONFIG_YAML)
        if found is None:
            return None
        data, self._config_version = found
        return decode_config_yaml(data)

    def remember(self, handle: RepoHandle) -> None:
        handle.shared.config_version = self._config_version


class Spec1(SpecFormat):
    """Repositories with one small file per ref, replaced by conditional writes."""

    name = "spec-1"
    spec_version = 1
    has_rectilinear_grids = False

    async def find(self, driver: Driver) -> FoundRepository | None:
        found = await find_object(driver, layout.branch_key(MAIN), needs_bucket=False)
        return None if found is None else _FoundBranch(driver)

    def missing(self) -> str:
        return layout.branch_key(MAIN)

    async def create(self, handle: RepoHandle, config: RepositoryConfig | None) -> None:
        """The branch is written last: its file makes the repository visible, with its
        configuration."""
        await put_first_snapshot(handle, has_log=False)
        if config is not None:
            await _create_config(handle, config)
        await _put_ref(handle, layout.branch_key(MAIN), encode_ref_file(FIRST_SNAPSHOT_ID), None)

    async def list_branches(self, handle: RepoHandle) -> set[str]:
        return (await _listed(handle))["branch."]

    async def list_tags(self, handle: RepoHandle) -> set[str]:
        return (await _listed(handle))["tag."]

    async def lookup_branch(self, handle: RepoHandle, name: str) -> SnapshotId:
        return (await _require_branch(handle, name))[0]

    async def lookup_tag(self, handle: RepoHandle, name: str) -> SnapshotId:
        key = layout.tag_key(name)
        found = await find_object(handle.driver, key)
        if found is None or await find_object(handle.driver, layout.tag_tombstone_key(name)):
            why = f"{key} {'does not exist' if found is None else 'was deleted'}"
            if await find_object(handle.driver, layout.branch_key(name)) is not None:
                why = "it is a branch"
            raise RefNotFoundError(f"tag {name!r} in this repository ({why})")
        return decode_ref_file(found[0], key)

    def require_ref_name(self, name: str) -> None:
        super().require_ref_name(name)
        if "/" in name:
            raise InvalidInputError(
                f"ref name {name!r}: repositories of spec version 1 allow no '/'",
                ErrorKind.INVALID_REF_NAME,
            )

    async def create_branch(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        try:
            await _create_ref(handle, layout.branch_key(name), f"branch.{name}", at)
        except ConditionFailed:
            tip = await self.lookup_branch(handle, name)
            raise ConflictError(
                None,
                tip.text,
                f"branch {name!r} exists and points at {tip}; choose another name, or move it with "
                "reset_branch",
                ErrorKind.BRANCH_UPDATE_CONFLICT,
            ) from None

    async def reset_branch(
        self, handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
    ) -> None:
        await _move_branch(handle, name, to, expected, partial(require_kept, handle, to))

    async def touch_branch(self, handle: RepoHandle, name: str, expected: SnapshotId) -> bool:
        """A writer that read the old version fails its conditional write and reads again."""
        key = layout.branch_key(name)
        found = await find_object(handle.driver, key)
        if found is None or decode_ref_file(found[0], key) != expected:
            return False
        # Some storages derive the version from the bytes of the object, so these have to change.
        noise = bytes(b" \n\t\r"[byte & 3] for byte in handle.clock.random_bytes(32))
        try:
            await _put_ref(handle, key, encode_ref_file(expected) + noise, found[1])
        except ConditionFailed:
            return False
        return True

    async def delete_branch(self, handle: RepoHandle, name: str) -> None:
        handle.require_writable()
        await require_open(handle)
        await _require_branch(handle, name)
        await handle.driver.delete_many([layout.branch_key(name)])
        await require_still_open(handle)

    async def create_tag(self, handle: RepoHandle, name: str, at: SnapshotId) -> None:
        try:
            await _create_ref(handle, layout.tag_key(name), f"tag.{name}", at)
        except ConditionFailed:
            raise AlreadyExistsError(
                f"{name!r}; choose another name, also if the tag was deleted: names of tags are "
                "never used again",
                ErrorKind.TAG_ALREADY_EXISTS,
            ) from None

    async def delete_tag(self, handle: RepoHandle, name: str) -> None:
        """Write its tombstone."""
        handle.require_writable()
        await require_open(handle)
        await self.lookup_tag(handle, name)
        try:
            await handle.driver.put_if(layout.tag_tombstone_key(name), TOMBSTONE, previous=None)
        except ConditionFailed:
            raise RefNotFoundError(f"tag {name!r} was deleted") from None
        await require_still_open(handle)

    async def lookup_snapshot(self, handle: RepoHandle, snapshot_id: SnapshotId) -> SnapshotInfo:
        return _info(await handle.assets.snapshot(snapshot_id))

    async def ancestors(self, handle: RepoHandle, tip: SnapshotId) -> AsyncIterator[SnapshotInfo]:
        """Only a snapshot file says what comes before it, so nothing is fetched ahead."""
        seen: set[SnapshotId] = set()
        current: SnapshotId | None = tip
        while current is not None and current not in seen:
            info = _info(await handle.assets.snapshot(current))
            seen.add(current)
            if len(seen) > _MOST_ANCESTORS_CACHED:
                handle.assets.caches.snapshots.drop([current])
            yield info
            current = info.parent_id

    async def commits_since(
        self, handle: RepoHandle, tip: SnapshotId, base: SnapshotId
    ) -> list[LineCommit] | None:
        line: dict[SnapshotId, LineCommit] = {}
        current: SnapshotId | None = tip
        while current is not None and current not in line:
            if current == base:
                return list(line.values())[::-1]
            try:
                log = await _log_fetched_with(handle, tip) if current == tip else None
                info = _info(await handle.assets.snapshot(current))
            except SnapshotNotFoundError:
                if current == tip:
                    raise
                return None  # expiration has cut the history
            pruned = info.pruned_ancestor_tx_logs
            if base in pruned:
                line[current] = LineCommit(current, pruned[pruned.index(base) + 1 :], log)
                return list(line.values())[::-1]
            line[current] = LineCommit(current, pruned, log)
            current = info.parent_id
        return None

    async def publish(
        self, handle: RepoHandle, commit: NewCommit, branch: str, seen: SeenTip | None
    ) -> None:
        await _publish(handle, branch, [commit], seen=seen)

    def seen_tip(self, handle: RepoHandle, branch: str, base: SnapshotId) -> SeenTip | None:
        seen = handle.shared.seen_branches.get(branch)
        return None if seen is None or seen[0] != base else _SeenFile(*seen)

    async def publish_detached(self, handle: RepoHandle, commit: NewCommit) -> None:
        """No file lists the snapshot. It is worth nothing if its objects were collected."""
        fence = await require_open(handle)
        if fence > commit.opened_at - MOST_CLOCK_SKEW_US:
            await require_kept(handle, commit.base, fence)
            await require_own_objects(handle, commit, fence)

    async def publish_squashed(
        self,
        handle: RepoHandle,
        commits: Sequence[NewCommit],
        branch: str,
        since: SnapshotId,
        pruned: Sequence[tuple[SnapshotId, ...]],
    ) -> None:
        """The snapshot files have the parents. So only the branch has to be moved."""
        await _publish(handle, branch, commits, since)

    async def save_config(self, handle: RepoHandle) -> None:
        """Store a copy of the old configuration, then replace it by a conditional write."""
        handle.require_writable()
        await require_open(handle)
        driver, previous = handle.driver, handle.shared.config_version
        old = None if previous is None else await find_object(driver, layout.CONFIG_YAML)
        if old is not None:
            now_ms = handle.clock.now_us() // 1000
            backup = layout.backup_name(layout.CONFIG_YAML, now_ms, handle.new_id(ChunkId))
            await driver.put(layout.OVERWRITTEN + backup, old[0])
            await driver.sync()
        try:
            await _put_config(handle, encode_config_yaml(handle.config), previous)
        except ConditionFailed:
            raise ConflictError(
                message="the configuration was saved by another process since this repository was "
                "opened; reopen it, make the change again and save",
                kind=ErrorKind.CONFIG_UPDATED,
            ) from None
        await require_still_open(handle)


async def _create_config(handle: RepoHandle, config: RepositoryConfig) -> None:
    """Write the configuration of a repository that is being created."""
    data = encode_config_yaml(config)
    found = await find_object(handle.driver, layout.CONFIG_YAML)
    if found is None:
        await _put_config(handle, data, None)
    elif found[0] == data:
        handle.shared.config_version = found[1]
    else:
        raise AlreadyExistsError(
            f"{handle.storage.describe()} has a {layout.CONFIG_YAML} with other settings: another "
            "process is creating a repository here, or was interrupted; open the "
            "repository when it is there, or delete that file",
            ErrorKind.REPO_INFO_UPDATED,
        )


async def _put_config(handle: RepoHandle, data: bytes, previous: Version | None) -> None:
    handle.shared.config_version = await handle.driver.put_if(
        layout.CONFIG_YAML, data, previous=previous, content_type="application/yaml"
    )


async def _log_fetched_with(handle: RepoHandle, tip: SnapshotId) -> TransactionLog | None:
    """The log of a snapshot, which is fetched at the same time, into its cache; None if missing."""
    try:
        return (await handle.assets.snapshots_and_logs([tip], [tip]))[1][0]
    except StorageError as error:
        if error.kind != ErrorKind.OBJECT_NOT_FOUND:
            raise
    return None


def _info(snapshot: Snapshot) -> SnapshotInfo:
    info = SnapshotInfo.of(snapshot)
    expired = expired_before(info)
    return replace(info, pruned_ancestor_tx_logs=expired) if expired else info


async def _publish(
    handle: RepoHandle,
    branch: str,
    commits: Sequence[NewCommit],
    since: SnapshotId | None = None,
    seen: SeenTip | None = None,
) -> None:
    """Move a branch from the base of the last commit to the commit.

    If the commits replace those after `since`, all of these are still in the history.
    """

    async def check(fence: int) -> None:
        if commits[-1].source is not None:
            await require_kept(handle, commits[-1].source, fence)
        # A collection never deletes an object that was stored after its listing.
        if fence > commits[-1].opened_at - MOST_CLOCK_SKEW_US:
            if since is not None:
                await _require_line(handle, [commit.base for commit in commits], since)
            for commit in commits:
                await require_own_objects(handle, commit, fence)

    base = commits[-1].base
    try:
        await _move_branch(handle, branch, commits[-1].snapshot.id, base, check, seen)
    except ConflictError as conflict:
        raise branch_moved(branch, base.text, conflict.actual_parent) from None


async def _require_line(
    handle: RepoHandle, wanted: Sequence[SnapshotId], since: SnapshotId
) -> None:
    """Refuse if snapshots have expired that the last one led to. Their manifests may be deleted.

    Expiration writes snapshot files again, so they are read past the caches.
    """
    stored = handle.assets.past_disk_cache()
    reached = set()
    current: SnapshotId | None = wanted[-1]
    while current is not None and current not in reached:
        reached.add(current)
        current = None if current == since else (await stored.load_snapshot(current)).parent_id
    if not reached >= {since, *wanted}:
        handle.assets.caches.snapshots.drop(wanted)  # they were read before they were cut
        raise SnapshotNotFoundError(
            "snapshots that were to be squashed have expired in the meantime; nothing has changed: "
            "try again"
        )
