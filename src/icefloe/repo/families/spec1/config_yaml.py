"""The configuration file of a version-1 repository, replaced by conditional writes."""

from __future__ import annotations

from icefloe.config import RepositoryConfig
from icefloe.errors import AlreadyExistsError, ConflictError, ErrorKind
from icefloe.format import layout
from icefloe.format.config.file import encode_config_yaml
from icefloe.ids import ChunkId
from icefloe.repo.fence import require_open, require_still_open
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import ConditionFailed, Version, find_object


async def create(handle: RepoHandle, config: RepositoryConfig) -> None:
    """Write the configuration of a repository that is being created."""
    data = encode_config_yaml(config)
    found = await find_object(handle.driver, layout.CONFIG_YAML)
    if found is None:
        handle.shared.config_version = await _put(handle, data, None)
    elif found[0] == data:
        handle.shared.config_version = found[1]
    else:
        raise AlreadyExistsError(
            f"{handle.storage.describe()} has a {layout.CONFIG_YAML} with other settings: another "
            "process is creating a repository here, or was interrupted; open the "
            "repository when it is there, or delete that file",
            ErrorKind.REPO_INFO_UPDATED,
        )


async def save(handle: RepoHandle) -> None:
    """Replace the configuration, after storing a copy of the old one."""
    handle.require_writable()
    await require_open(handle)
    driver, previous = handle.driver, handle.shared.config_version
    if previous is not None and (old := await find_object(driver, layout.CONFIG_YAML)) is not None:
        now_ms = handle.clock.now_us() // 1000
        backup = layout.backup_name(layout.CONFIG_YAML, now_ms, handle.new_id(ChunkId))
        await driver.put(layout.OVERWRITTEN + backup, old[0])
        await driver.sync()
    try:
        handle.shared.config_version = await _put(
            handle, encode_config_yaml(handle.config), previous
        )
    except ConditionFailed:
        raise ConflictError(
            message="the configuration was saved by another process since this repository was "
            "opened; reopen it, make the change again and save",
            kind=ErrorKind.CONFIG_UPDATED,
        ) from None
    await require_still_open(handle)


async def _put(handle: RepoHandle, data: bytes, previous: Version | None) -> Version:
    return await handle.driver.put_if(
        layout.CONFIG_YAML, data, previous=previous, content_type="application/yaml"
    )
