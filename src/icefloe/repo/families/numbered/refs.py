"""Branches and tags of repositories with numbered branch files.

A branch is a directory with one file per commit; the newest sorts first. A commit creates the file
with the next number. Files are never replaced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from icefloe.assets.numbered_assets import NumberedAssets
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    FormatError,
    RefNotFoundError,
    branch_moved,
)
from icefloe.ids import SnapshotId
from icefloe.legacy.numbered.json_refs import decode_ref, encode_ref
from icefloe.legacy.numbered.sequence import next_number
from icefloe.repo.fence import require_open, require_still_open
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import ConditionFailed, find_object

_JSON = "application/json"
_FILES_TRIED = 8


class Tip(NamedTuple):
    """The newest file of a branch."""

    number: int
    snapshot_id: SnapshotId


def assets_of(handle: RepoHandle) -> NumberedAssets:
    """The files of a repository of this family."""
    assert isinstance(handle.assets, NumberedAssets)
    return handle.assets


async def list_branches(handle: RepoHandle) -> set[str]:
    """Names of all branches."""
    names = assets_of(handle).names
    listed = await handle.driver.list(names.refs)
    return {name for entry in listed if (name := names.branch_of(entry.key)) is not None}


async def list_tags(handle: RepoHandle) -> set[str]:
    """Names of all tags that were not deleted."""
    names = assets_of(handle).names
    keys = {entry.key for entry in await handle.driver.list(names.refs)}
    tags = {name for key in keys if (name := names.tag_of(key)) is not None}
    return {name for name in tags if names.tag_tombstone_key(name) not in keys}


async def find_tip(handle: RepoHandle, name: str) -> Tip:
    """The newest file of a branch; `RefNotFoundError` when there is none.

    A branch has one file per commit, and listing all of them before every commit would take time
    that grows with the square of their number. So the files after the newest known one are tried.
    """
    known: int | None = assets_of(handle).caches.tips.get(name)
    tip = None if known is None else await _tip_from(handle, name, known)
    if tip is None:
        tip = await _listed_tip(handle, name)
    if handle.family.is_writable:  # document 000: branches cannot be deleted, so numbers only grow
        assets_of(handle).caches.tips.put(name, tip.number, 1)
    return tip


async def _tip_from(handle: RepoHandle, name: str, number: int) -> Tip | None:
    """The newest file, tried from `number` on; None if that one is gone or far behind."""
    names = assets_of(handle).names
    tip: Tip | None = None
    for _ in range(_FILES_TRIED):
        found = await _read(handle, names.branch_key(name, number))
        if found is None:
            return tip
        tip = Tip(number, found)
        number = next_number(number, name, names.characters)
    return None


async def _listed_tip(handle: RepoHandle, name: str) -> Tip:
    names = assets_of(handle).names
    directory = names.branch_directory(name)
    listed = (names.number_of(entry.key, name) for entry in await handle.driver.list(directory))
    newest = next((number for number in listed if number is not None), None)  # it sorts first
    if newest is None:
        raise RefNotFoundError(
            f"branch {name!r} in this repository (there are no files {directory}*.json)"
        )
    found = await _read(handle, names.branch_key(name, newest))
    if found is None:
        raise FormatError(f"{names.branch_key(name, newest)} was listed and is gone; try again")
    return Tip(newest, found)


async def lookup_tag(handle: RepoHandle, name: str) -> SnapshotId:
    """The snapshot of a tag without tombstone."""
    names = assets_of(handle).names
    key = names.tag_key(name)
    found = await _read(handle, key)
    if found is None or await find_object(handle.driver, names.tag_tombstone_key(name)):
        state = "does not exist" if found is None else "was deleted"
        raise RefNotFoundError(f"tag {name!r} in this repository ({key} {state})")
    return found


async def _read(handle: RepoHandle, key: str) -> SnapshotId | None:
    found = await find_object(handle.driver, key)
    if found is None:
        return None
    assets = assets_of(handle)
    raw = decode_ref(found[0], assets.label(key))
    if len(raw) != assets.ids.size:
        raise FormatError(
            f"{assets.label(key)}: the snapshot id has {len(raw)} bytes, those of this repository "
            f"have {assets.ids.size}"
        )
    return assets.ids.snapshot_id(raw)


# -- writing


async def require_stored(handle: RepoHandle, snapshot_id: SnapshotId) -> None:
    """Refuse a snapshot whose file is missing, even if it is still in memory."""
    await handle.assets.past_disk_cache().load_snapshot(snapshot_id)


async def create_file(handle: RepoHandle, key: str, snapshot_id: SnapshotId) -> bool:
    """Create a ref file; False when it exists already."""
    handle.require_writable()
    data = encode_ref(assets_of(handle).ids.wide(snapshot_id), handle.clock.now_us(), None)
    try:
        await handle.driver.put_if(key, data, previous=None, content_type=_JSON)
    except ConditionFailed:
        return False
    return True


async def touch_branch(handle: RepoHandle, name: str, expected: SnapshotId) -> bool:
    """Create another file of a branch with the same tip, so that a commit that is under way finds
    its number taken.

    Returns False if the branch is no longer at `expected`, or another writer used the number.
    """
    names = assets_of(handle).names
    tip = await find_tip(handle, name)
    if tip.snapshot_id != expected:
        return False
    key = names.branch_key(name, next_number(tip.number, name, names.characters))
    return await create_file(handle, key, expected)


async def move_branch(
    handle: RepoHandle,
    name: str,
    to: SnapshotId,
    expected: SnapshotId | None,
    kind: ErrorKind,
    check: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """Create the next file of a branch, if its newest still points at `expected`.

    `check` gets the fence of collections and may refuse. It runs after the branch was read. A
    collection or a migration that starts after the check takes the next number itself.

    Raises:
        ConflictError: it does not, or another writer has used the number.
    """
    names = assets_of(handle).names
    tip = await find_tip(handle, name)
    actual: SnapshotId | None = tip.snapshot_id
    if expected is None or actual == expected:
        fence = await require_open(handle)
        if check is not None:
            await check(fence)
        key = names.branch_key(name, next_number(tip.number, name, names.characters))
        if await create_file(handle, key, to):
            return
        actual = await _read(handle, key)
        if actual == to:
            return  # an earlier attempt of this request succeeded
    was, now = (None if each is None else each.text for each in (expected, actual))
    raise branch_moved(name, was, now, kind)


async def create_branch(handle: RepoHandle, name: str, at: SnapshotId) -> None:
    """Create the first file of a branch."""
    names = assets_of(handle).names
    await require_open(handle)
    await require_stored(handle, at)
    # The first file of a branch is never deleted, so this cannot succeed twice.
    if await create_file(handle, names.branch_key(name, 0), at):
        await require_still_open(handle)
        return
    tip = await find_tip(handle, name)
    raise AlreadyExistsError(
        f"{name!r} points at {tip.snapshot_id}; choose another name, or move it with reset_branch",
        ErrorKind.BRANCH_ALREADY_EXISTS,
    )


async def create_tag(handle: RepoHandle, name: str, at: SnapshotId) -> None:
    """Create the file of a tag."""
    await require_open(handle)
    await require_stored(handle, at)
    if not await create_file(handle, assets_of(handle).names.tag_key(name), at):
        raise AlreadyExistsError(
            f"{name!r}; choose another name, because tags of this repository cannot be deleted",
            ErrorKind.TAG_ALREADY_EXISTS,
        )
    await require_still_open(handle)
