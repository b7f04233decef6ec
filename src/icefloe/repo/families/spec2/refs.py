"""Changing branches and tags in the `repo` object."""

from __future__ import annotations

from dataclasses import replace

from icefloe.errors import AlreadyExistsError, ErrorKind, branch_moved
from icefloe.format.repo_info.file import RepoInfo, UpdateKind
from icefloe.ids import SnapshotId
from icefloe.repo.families.spec2.checks import require_branch, require_snapshot, require_tag
from icefloe.repo.families.spec2.flags import require_flag
from icefloe.repo.families.spec2.update import Changed, update_repo
from icefloe.repo.handle import RepoHandle


async def create_branch(handle: RepoHandle, name: str, at: SnapshotId) -> None:
    """Create a branch at a snapshot."""

    def change(info: RepoInfo) -> Changed:
        if name in info.branches:
            raise AlreadyExistsError(
                f"{name!r} points at {info.branches[name]}; choose another name, or move it with "
                "reset_branch",
                ErrorKind.BRANCH_ALREADY_EXISTS,
            )
        require_snapshot(info, at)
        branches = {**info.branches, name: at}
        return replace(info, branches=branches), UpdateKind.BRANCH_CREATED, {"name": name}

    await update_repo(handle, change)


async def reset_branch(
    handle: RepoHandle, name: str, to: SnapshotId, expected: SnapshotId | None
) -> None:
    """Point a branch at another snapshot, if it is still at `expected` (None: always)."""

    def change(info: RepoInfo) -> Changed:
        tip = require_branch(info, name)
        if expected is not None and tip != expected:
            raise branch_moved(name, expected.text, tip.text, ErrorKind.BRANCH_UPDATE_CONFLICT)
        require_snapshot(info, to)
        values = {"name": name, "previous_snap_id": tip}
        changed = replace(info, branches={**info.branches, name: to})
        return changed, UpdateKind.BRANCH_RESET, values

    await update_repo(handle, change)


async def delete_branch(handle: RepoHandle, name: str) -> None:
    """Delete a branch."""

    def change(info: RepoInfo) -> Changed:
        values = {"name": name, "previous_snap_id": require_branch(info, name)}
        branches = {key: value for key, value in info.branches.items() if key != name}
        return replace(info, branches=branches), UpdateKind.BRANCH_DELETED, values

    await update_repo(handle, change)


async def create_tag(handle: RepoHandle, name: str, at: SnapshotId) -> None:
    """Create a tag, unless its name was ever used."""

    def change(info: RepoInfo) -> Changed:
        require_flag(info, "create_tag")
        if name in info.tags:
            raise AlreadyExistsError(
                f"{name!r} points at {info.tags[name]}; choose another name",
                ErrorKind.TAG_ALREADY_EXISTS,
            )
        if name in info.deleted_tags:
            raise AlreadyExistsError(
                f"{name!r}, whose name is never used again; choose another one",
                ErrorKind.TAG_PREVIOUSLY_DELETED,
            )
        require_snapshot(info, at)
        tags = {**info.tags, name: at}
        return replace(info, tags=tags), UpdateKind.TAG_CREATED, {"name": name}

    await update_repo(handle, change)


async def delete_tag(handle: RepoHandle, name: str) -> None:
    """Delete a tag and retire its name."""

    def change(info: RepoInfo) -> Changed:
        require_flag(info, "delete_tag")
        values = {"name": name, "previous_snap_id": require_tag(info, name)}
        tags = {key: value for key, value in info.tags.items() if key != name}
        changed = replace(info, tags=tags, deleted_tags=info.deleted_tags | {name})
        return changed, UpdateKind.TAG_DELETED, values

    await update_repo(handle, change)
