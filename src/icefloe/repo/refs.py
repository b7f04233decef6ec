"""Branches and tags: one interface, whichever version the repository has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    InvalidInputError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.repo_info.file import RepoInfo, UpdateKind
from icefloe.ids import SnapshotId
from icefloe.on_demand import on_demand
from icefloe.repo.handle import RepoHandle

if TYPE_CHECKING:
    from icefloe.repo import feature_flags, refs_v1, update
    from icefloe.repo.update import Changed
else:
    feature_flags = on_demand("icefloe.repo.feature_flags")
    refs_v1 = on_demand("icefloe.repo.refs_v1")
    update = on_demand("icefloe.repo.update")

MAIN = "main"


async def list_branches(handle: RepoHandle) -> set[str]:
    """Names of all branches."""
    if handle.spec_version == 1:
        return await refs_v1.list_branches(handle)
    return set((await handle.assets.repo_object()).info.branches)


async def list_tags(handle: RepoHandle) -> set[str]:
    """Names of all tags that were not deleted."""
    if handle.spec_version == 1:
        return await refs_v1.list_tags(handle)
    return set((await handle.assets.repo_object()).info.tags)


async def lookup_branch(handle: RepoHandle, name: str) -> SnapshotId:
    """The tip of a branch."""
    if handle.spec_version == 1:
        return await refs_v1.lookup_branch(handle, name)
    return find_branch((await handle.assets.repo_object()).info, name)


async def lookup_tag(handle: RepoHandle, name: str) -> SnapshotId:
    """The snapshot of a tag."""
    if handle.spec_version == 1:
        return await refs_v1.lookup_tag(handle, name)
    tags = (await handle.assets.repo_object()).info.tags
    if name not in tags:
        raise RefNotFoundError(f"no tag {name!r}; {_known('tags', tags)}")
    return tags[name]


async def create_branch(handle: RepoHandle, name: str, snapshot_id: SnapshotId) -> None:
    """Create a branch at a snapshot."""
    check_ref_name(name, handle.spec_version)
    if handle.spec_version == 1:
        await refs_v1.create_branch(handle, name, snapshot_id)
        return

    def change(info: RepoInfo, _now: int) -> Changed:
        if name in info.branches:
            raise AlreadyExistsError(
                f"branch {name!r} exists and points at {info.branches[name]}",
                ErrorKind.BRANCH_ALREADY_EXISTS,
            )
        require_snapshot(info, snapshot_id)
        branches = {**info.branches, name: snapshot_id}
        return replace(info, branches=branches), UpdateKind.BRANCH_CREATED, {"name": name}

    await update.update_repo(handle, change)


async def reset_branch(
    handle: RepoHandle, name: str, snapshot_id: SnapshotId, expected: SnapshotId | None
) -> None:
    """Point a branch at another snapshot, if it still points at `expected` (None: wherever)."""
    if handle.spec_version == 1:
        await refs_v1.reset_branch(handle, name, snapshot_id, expected)
        return

    def change(info: RepoInfo, _now: int) -> Changed:
        tip = find_branch(info, name)
        if expected is not None and tip != expected:
            raise ConflictError(expected.text, tip.text, kind=ErrorKind.BRANCH_UPDATE_CONFLICT)
        require_snapshot(info, snapshot_id)
        branches = {**info.branches, name: snapshot_id}
        values = {"name": name, "previous_snap_id": tip}
        return replace(info, branches=branches), UpdateKind.BRANCH_RESET, values

    await update.update_repo(handle, change)


async def delete_branch(handle: RepoHandle, name: str) -> None:
    """Delete a branch other than `main`."""
    if name == MAIN:
        raise SessionStateError(
            "branch 'main' cannot be deleted: every repository has it",
            ErrorKind.CANNOT_DELETE_MAIN,
        )
    if handle.spec_version == 1:
        await refs_v1.delete_branch(handle, name)
        return

    def change(info: RepoInfo, _now: int) -> Changed:
        tip = find_branch(info, name)
        branches = {key: value for key, value in info.branches.items() if key != name}
        values = {"name": name, "previous_snap_id": tip}
        return replace(info, branches=branches), UpdateKind.BRANCH_DELETED, values

    await update.update_repo(handle, change)


async def create_tag(handle: RepoHandle, name: str, snapshot_id: SnapshotId) -> None:
    """Create a tag, which never moves."""
    check_ref_name(name, handle.spec_version)
    if handle.spec_version == 1:
        await refs_v1.create_tag(handle, name, snapshot_id)
        return

    def change(info: RepoInfo, _now: int) -> Changed:
        feature_flags.require_flag(info, "create_tag")
        if name in info.tags:
            raise AlreadyExistsError(
                f"tag {name!r} exists and points at {info.tags[name]}; tags never move",
                ErrorKind.TAG_ALREADY_EXISTS,
            )
        if name in info.deleted_tags:
            raise AlreadyExistsError(
                f"tag {name!r} was deleted, and a deleted name is never used again; "
                "choose another one",
                ErrorKind.TAG_PREVIOUSLY_DELETED,
            )
        require_snapshot(info, snapshot_id)
        tags = {**info.tags, name: snapshot_id}
        return replace(info, tags=tags), UpdateKind.TAG_CREATED, {"name": name}

    await update.update_repo(handle, change)


async def delete_tag(handle: RepoHandle, name: str) -> None:
    """Delete a tag and retire its name."""
    if handle.spec_version == 1:
        await refs_v1.delete_tag(handle, name)
        return

    def change(info: RepoInfo, _now: int) -> Changed:
        feature_flags.require_flag(info, "delete_tag")
        if name not in info.tags:
            raise RefNotFoundError(f"no tag {name!r}; {_known('tags', info.tags)}")
        tags = {key: value for key, value in info.tags.items() if key != name}
        values = {"name": name, "previous_snap_id": info.tags[name]}
        changed = replace(info, tags=tags, deleted_tags=info.deleted_tags | {name})
        return changed, UpdateKind.TAG_DELETED, values

    await update.update_repo(handle, change)


def find_branch(info: RepoInfo, name: str) -> SnapshotId:
    """The tip of a branch in a repo object."""
    if name not in info.branches:
        raise RefNotFoundError(f"no branch {name!r}; {_known('branches', info.branches)}")
    return info.branches[name]


def require_snapshot(info: RepoInfo, snapshot_id: SnapshotId) -> None:
    """Refuse a snapshot that the repository does not have."""
    if snapshot_id not in info.snapshots:
        raise SnapshotNotFoundError(f"no snapshot {snapshot_id} in this repository")


def check_ref_name(name: str, spec_version: int) -> None:
    """Names are free, except that they are not empty, and have no slash in version 1."""
    if not name or (spec_version == 1 and "/" in name):
        rule = "it must not be empty" if not name else "version-1 repositories allow no '/'"
        raise InvalidInputError(f"ref name {name!r}: {rule}", ErrorKind.INVALID_REF_NAME)


def _known(noun: str, names: object) -> str:
    listed = sorted(names)  # type: ignore[call-overload]
    shown = ", ".join(repr(name) for name in listed[:10])
    more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
    return f"{noun} are {shown}{more}" if listed else f"there are no {noun}"
