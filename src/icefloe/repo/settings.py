"""What a repository remembers about itself: configuration, metadata, status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from icefloe.errors import ConflictError, ErrorKind
from icefloe.format import layout
from icefloe.format.config.file import encode_config_flexbuffer, encode_config_yaml
from icefloe.format.metadata.items import encode_metadata
from icefloe.format.repo_info.file import RepoInfo, RepoStatus, UpdateKind
from icefloe.ids import ChunkId
from icefloe.repo.handle import RepoHandle
from icefloe.repo.lifecycle import YAML_CONTENT_TYPE, find_object
from icefloe.repo.update import Changed, update_repo
from icefloe.storage.driver import ConditionFailed


async def save_config(handle: RepoHandle) -> None:
    """Keep the configuration in force with the repository, for everyone who opens it."""
    if handle.spec_version == 1:
        await _save_config_yaml(handle)
        return
    data = encode_config_flexbuffer(handle.config)

    def change(info: RepoInfo, _now: int) -> Changed:
        return replace(info, config=data), UpdateKind.CONFIG_CHANGED, {}

    await update_repo(handle, change)


async def _save_config_yaml(handle: RepoHandle) -> None:
    handle.require_writable()
    driver, previous = handle.driver, handle.shared.config_version
    if previous is not None and (old := await find_object(driver, layout.CONFIG_YAML)) is not None:
        now_ms = handle.clock.now_us() // 1000
        backup = layout.backup_name(layout.CONFIG_YAML, now_ms, handle.new_id(ChunkId))
        await driver.put(layout.OVERWRITTEN + backup, old[0])
        await driver.sync()
    data = encode_config_yaml(handle.config)
    try:
        handle.shared.config_version = await driver.put_if(
            layout.CONFIG_YAML, data, previous=previous, content_type=YAML_CONTENT_TYPE
        )
    except ConditionFailed:
        raise ConflictError(
            message="the configuration was saved by somebody else since this repository was "
            "opened; reopen it, make the change again and save",
            kind=ErrorKind.CONFIG_UPDATED,
        ) from None


def check_metadata(handle: RepoHandle, metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that no file of the repository can hold."""
    encode_metadata(metadata, handle.spec_version)


async def get_metadata(handle: RepoHandle) -> dict[str, Any]:
    """The metadata of the repository itself."""
    handle.require_version_2("repository metadata")
    return dict((await handle.assets.repo_object()).info.metadata)


async def set_metadata(handle: RepoHandle, metadata: Mapping[str, Any]) -> None:
    """Replace all metadata of the repository."""
    handle.require_version_2("repository metadata")
    check_metadata(handle, metadata)

    def change(info: RepoInfo, _now: int) -> Changed:
        return replace(info, metadata=dict(metadata)), UpdateKind.METADATA_CHANGED, {}

    await update_repo(handle, change)


async def update_metadata(handle: RepoHandle, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Set some keys and keep the others; returns all of it."""
    handle.require_version_2("repository metadata")
    check_metadata(handle, metadata)

    def change(info: RepoInfo, _now: int) -> Changed:
        merged = {**info.metadata, **metadata}
        return replace(info, metadata=merged), UpdateKind.METADATA_CHANGED, {}

    return dict((await update_repo(handle, change)).metadata)


async def get_status(handle: RepoHandle) -> RepoStatus:
    """Whether the repository takes writes."""
    handle.require_version_2("the repository status")
    return (await handle.assets.repo_object()).info.status


async def set_status(handle: RepoHandle, status: RepoStatus) -> None:
    """Make the repository read-only for everyone, or bring it back."""
    handle.require_version_2("the repository status")

    def change(info: RepoInfo, _now: int) -> Changed:
        changed = replace(info, status=status)
        return changed, UpdateKind.REPO_STATUS_CHANGED, {"status": status}

    await update_repo(handle, change, is_status_change=True)
