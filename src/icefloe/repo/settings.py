"""Settings that are stored with a repository: configuration, metadata, status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from icefloe.format.repo_info.file import RepoInfo, RepoStatus, UpdateKind
from icefloe.repo.families.spec2.update import Changed, update_repo
from icefloe.repo.handle import RepoHandle


async def save_config(handle: RepoHandle) -> None:
    """Save the current configuration with the repository, for everyone who opens it."""
    await handle.family.save_config(handle)


async def get_metadata(handle: RepoHandle) -> dict[str, Any]:
    """The metadata of the repository itself."""
    handle.family.require_repo_object("repository metadata")
    return dict((await handle.assets.repo_object()).info.metadata)


async def set_metadata(handle: RepoHandle, metadata: Mapping[str, Any]) -> None:
    """Replace all metadata of the repository."""
    handle.family.require_repo_object("repository metadata")
    handle.family.require_metadata(metadata)  # refuse before the first request

    def change(info: RepoInfo) -> Changed:
        return replace(info, metadata=dict(metadata)), UpdateKind.METADATA_CHANGED, {}

    await update_repo(handle, change)


async def update_metadata(handle: RepoHandle, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Set some keys and keep the others. Returns all metadata."""
    handle.family.require_repo_object("repository metadata")
    handle.family.require_metadata(metadata)

    def change(info: RepoInfo) -> Changed:
        merged = {**info.metadata, **metadata}
        return replace(info, metadata=merged), UpdateKind.METADATA_CHANGED, {}

    return dict((await update_repo(handle, change)).metadata)


async def get_status(handle: RepoHandle) -> RepoStatus:
    """Whether the repository accepts writes."""
    handle.family.require_repo_object("the repository status")
    return (await handle.assets.repo_object()).info.status


async def set_status(handle: RepoHandle, status: RepoStatus) -> None:
    """Make the repository read-only for everyone, or writable again."""
    handle.family.require_repo_object("the repository status")

    def change(info: RepoInfo) -> Changed:
        changed = replace(info, status=status)
        return changed, UpdateKind.REPO_STATUS_CHANGED, {"status": status}

    await update_repo(handle, change, is_status_change=True)
