"""Snapshots by a text that may be a branch, a tag or an id."""

from __future__ import annotations

from icefloe.errors import InvalidInputError, NotFoundError, RefNotFoundError
from icefloe.ids import SnapshotId
from icefloe.repo.handle import RepoHandle


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
    try:
        return (await handle.family.lookup_snapshot(handle, handle.snapshot_id(name))).id
    except (NotFoundError, InvalidInputError):
        names = ", ".join(sorted(branches | tags))
        raise RefNotFoundError(
            f"{name!r} is neither a branch, a tag nor the id of a snapshot; there are {names}"
        ) from None
