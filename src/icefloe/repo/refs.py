"""Branches and tags: the rules that all families share."""

from __future__ import annotations

from icefloe.errors import ErrorKind, SessionStateError
from icefloe.ids import SnapshotId
from icefloe.observe import REPOSITORY
from icefloe.repo.handle import RepoHandle

MAIN = "main"


async def list_branches(handle: RepoHandle) -> set[str]:
    """Names of all branches."""
    return await handle.family.list_branches(handle)


async def list_tags(handle: RepoHandle) -> set[str]:
    """Names of all tags that were not deleted."""
    return await handle.family.list_tags(handle)


async def lookup_branch(handle: RepoHandle, name: str) -> SnapshotId:
    """The tip of a branch."""
    return await handle.family.lookup_branch(handle, name)


async def lookup_tag(handle: RepoHandle, name: str) -> SnapshotId:
    """The snapshot of a tag."""
    return await handle.family.lookup_tag(handle, name)


async def create_branch(handle: RepoHandle, name: str, snapshot_id: SnapshotId) -> None:
    """Create a branch at a snapshot."""
    handle.family.require_ref_name(name)
    await handle.family.create_branch(handle, name, snapshot_id)
    REPOSITORY.info("branch %r created at %s", name, snapshot_id)


async def reset_branch(
    handle: RepoHandle, name: str, snapshot_id: SnapshotId, expected: SnapshotId | None
) -> None:
    """Point a branch at another snapshot, if it is still at `expected` (None: always)."""
    await handle.family.reset_branch(handle, name, snapshot_id, expected)
    REPOSITORY.info("branch %r reset to %s", name, snapshot_id)


async def delete_branch(handle: RepoHandle, name: str) -> None:
    """Delete a branch other than `main`."""
    if name == MAIN:
        raise SessionStateError(
            "every repository has it; reset_branch moves it",
            ErrorKind.CANNOT_DELETE_MAIN,
        )
    await handle.family.delete_branch(handle, name)
    REPOSITORY.info("branch %r deleted", name)


async def create_tag(handle: RepoHandle, name: str, snapshot_id: SnapshotId) -> None:
    """Create a tag. Tags never move."""
    handle.family.require_ref_name(name)
    await handle.family.create_tag(handle, name, snapshot_id)
    REPOSITORY.info("tag %r created at %s", name, snapshot_id)


async def delete_tag(handle: RepoHandle, name: str) -> None:
    """Delete a tag and retire its name."""
    await handle.family.delete_tag(handle, name)
    REPOSITORY.info("tag %r deleted", name)
