"""Snapshots by a text that may be a branch, a tag or an id, also the beginning of one."""

from __future__ import annotations

from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError, RefNotFoundError
from icefloe.ids import SnapshotId
from icefloe.repo.handle import RepoHandle

_SHORTEST = 4
_LENIENT = str.maketrans("ILO", "110")
"""Letters that stand for digits in ids, as when whole ids are read."""


async def find_snapshot(handle: RepoHandle, name: str) -> SnapshotId:
    """The snapshot of a branch, else of a tag, else the one with this id.

    Raises:
        RefNotFoundError: it is none of them.
    """
    branches = await handle.family.list_branches(handle)
    if name in branches:
        return await handle.family.lookup_branch(handle, name)
    tags = await handle.family.list_tags(handle)
    if name in tags:
        return await handle.family.lookup_tag(handle, name)
    found = await find_by_id(handle, name)
    if found is None:
        names = ", ".join(sorted(branches | tags))
        raise RefNotFoundError(
            f"{name!r} is neither a branch, a tag nor the id of a snapshot; there are {names}"
        )
    return found


async def find_by_id(handle: RepoHandle, text: str) -> SnapshotId | None:
    """The snapshot with this id, or the one whose id begins so; None if there is none.

    Raises:
        InvalidInputError: several begin so.
    """
    try:
        return (await handle.family.lookup_snapshot(handle, handle.snapshot_id(text))).id
    except NotFoundError:
        return None
    except InvalidInputError:
        if len(text) < _SHORTEST:
            return None
    starts = text.upper(), text.upper().translate(_LENIENT)
    every = await handle.family.all_snapshots(handle)
    found = [info.id.text for info in every if info.id.text.upper().startswith(starts)]
    if len(found) > 1:
        raise InvalidInputError(
            f"{len(found)} snapshot ids begin with {text!r}: {', '.join(found[:3])}"
            f"{', ...' if len(found) > 3 else ''}; give more characters",
            ErrorKind.INVALID_SNAPSHOT_ID,
        )
    return handle.snapshot_id(found[0]) if found else None
