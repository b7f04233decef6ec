"""Branches and tags of version 1: one small object each, under conditional writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    RefNotFoundError,
    SnapshotNotFoundError,
    branch_moved,
)
from icefloe.format import layout
from icefloe.format.ref_files import TOMBSTONE, decode_ref_file, encode_ref_file
from icefloe.ids import SnapshotId
from icefloe.repo.families.spec1.kept import require_kept
from icefloe.repo.fence import require_open, require_still_open
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import ConditionFailed, Version, find_object

_JSON = "application/json"
_TRIES = 100


async def list_branches(handle: RepoHandle) -> set[str]:
    """Names of all branches."""
    return (await _listed(handle))["branch."]


async def list_tags(handle: RepoHandle) -> set[str]:
    """Names of all tags that were not deleted."""
    return (await _listed(handle))["tag."]


async def _listed(handle: RepoHandle) -> dict[str, set[str]]:
    """Names by kind; tags with a tombstone are left out."""
    found: dict[str, set[str]] = {"branch.": set(), "tag.": set()}
    buried = set()
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
            buried.add(name)
        elif kind != "tags.":
            found[kind].add(name)
    found["tag."] -= buried
    return found


async def list_deleted_tags(handle: RepoHandle) -> dict[str, SnapshotId | None]:
    """Deleted tags, with their snapshots where the file that says so is still there."""
    keys = [entry.key for entry in await handle.driver.list(layout.REFS)]
    found: dict[str, SnapshotId | None] = {}
    for key in keys:
        folder, _, file = key.removeprefix(layout.REFS).partition("/")
        if file == "ref.json.deleted":
            name = folder.partition(".")[2]
            old = await find_object(handle.driver, layout.tag_key(name))
            tip = None if old is None else decode_ref_file(old[0], layout.tag_key(name))
            found[name] = tip
    return found


async def lookup_branch(handle: RepoHandle, name: str) -> SnapshotId:
    """The tip of a branch."""
    return (await _require_branch(handle, name))[0]


async def _require_branch(handle: RepoHandle, name: str) -> tuple[SnapshotId, Version]:
    """The tip of an existing branch, and the version of its file."""
    key = layout.branch_key(name)
    found = await find_object(handle.driver, key)
    if found is None:
        is_tag = await find_object(handle.driver, layout.tag_key(name)) is not None
        why = "it is a tag" if is_tag else f"there is no object {key}"
        raise RefNotFoundError(f"branch {name!r} in this repository ({why})")
    return decode_ref_file(found[0], key), found[1]


async def lookup_tag(handle: RepoHandle, name: str) -> SnapshotId:
    """The snapshot of a tag without tombstone."""
    key = layout.tag_key(name)
    found = await find_object(handle.driver, key)
    if found is None or await find_object(handle.driver, layout.tag_tombstone_key(name)):
        why = f"{key} {'does not exist' if found is None else 'was deleted'}"
        if await find_object(handle.driver, layout.branch_key(name)) is not None:
            why = "it is a branch"
        raise RefNotFoundError(f"tag {name!r} in this repository ({why})")
    return decode_ref_file(found[0], key)


async def touch_branch(handle: RepoHandle, name: str, expected: SnapshotId) -> bool:
    """Rewrite the ref file of a branch to give it a new version.

    A writer that read the old version then fails its conditional write and reads again.

    Returns False if the branch is no longer at `expected`.
    """
    found = await find_object(handle.driver, layout.branch_key(name))
    if found is None or decode_ref_file(found[0], layout.branch_key(name)) != expected:
        return False
    # Some storages derive the version from the bytes of the object, so the bytes have to change.
    noise = bytes(b" \n\t\r"[byte & 3] for byte in handle.clock.random_bytes(32))
    try:
        await put_ref(handle, layout.branch_key(name), encode_ref_file(expected) + noise, found[1])
    except ConditionFailed:
        return False
    return True


async def create_branch(handle: RepoHandle, name: str, snapshot_id: SnapshotId) -> None:
    """Create the ref file of a branch."""
    try:
        await _create_ref(handle, layout.branch_key(name), f"branch.{name}", snapshot_id)
    except ConditionFailed:
        tip = await lookup_branch(handle, name)
        raise ConflictError(
            None,
            tip.text,
            f"branch {name!r} exists and points at {tip}; choose another name, or move it with "
            "reset_branch",
            ErrorKind.BRANCH_UPDATE_CONFLICT,
        ) from None


async def _create_ref(handle: RepoHandle, key: str, ref: str, snapshot_id: SnapshotId) -> None:
    """Create a ref file. A collection that became final before may have missed it."""
    handle.require_writable()
    fence = await require_open(handle)
    await require_kept(handle, snapshot_id, fence)
    await put_ref(handle, key, encode_ref_file(snapshot_id), None)
    now = await require_still_open(handle)
    if now != fence:
        try:
            await require_kept(handle, snapshot_id, now, besides=ref)
        except SnapshotNotFoundError:
            await handle.driver.delete_many([key])
            raise


async def move_branch(
    handle: RepoHandle,
    name: str,
    snapshot_id: SnapshotId,
    expected: SnapshotId | None,
    check: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """Point a branch at another snapshot, unless another writer moved it first.

    `check` gets the fence of collections and may refuse. It runs between reading and writing the
    branch. A collection or an upgrade that starts after the check gives the branch another version,
    so the write fails, and everything is checked again.
    """
    handle.require_writable()
    start = expected
    for attempt in range(_TRIES):
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
            await put_ref(handle, layout.branch_key(name), encode_ref_file(snapshot_id), version)
        except ConditionFailed:
            continue
        return
    was = None if expected is None else expected.text
    raise branch_moved(name, was, tip.text, ErrorKind.BRANCH_UPDATE_CONFLICT)


async def delete_branch(handle: RepoHandle, name: str) -> None:
    """Delete the ref file of a branch."""
    handle.require_writable()
    await require_open(handle)
    await _require_branch(handle, name)
    await handle.driver.delete_many([layout.branch_key(name)])
    await require_still_open(handle)


async def create_tag(handle: RepoHandle, name: str, snapshot_id: SnapshotId) -> None:
    """Create the ref file of a tag."""
    try:
        await _create_ref(handle, layout.tag_key(name), f"tag.{name}", snapshot_id)
    except ConditionFailed:
        raise AlreadyExistsError(
            f"{name!r}; choose another name, also if the tag was deleted: names of tags are never "
            "used again",
            ErrorKind.TAG_ALREADY_EXISTS,
        ) from None


async def delete_tag(handle: RepoHandle, name: str) -> None:
    """Write the tombstone of a tag."""
    handle.require_writable()
    await require_open(handle)
    await lookup_tag(handle, name)
    try:
        await handle.driver.put_if(layout.tag_tombstone_key(name), TOMBSTONE, previous=None)
    except ConditionFailed:
        raise RefNotFoundError(f"tag {name!r} was deleted") from None
    await require_still_open(handle)


async def put_ref(handle: RepoHandle, key: str, data: bytes, previous: Version | None) -> None:
    """Write a ref file if its version is still `previous` (None: if it does not exist)."""
    await handle.driver.put_if(key, data, previous=previous, content_type=_JSON)
