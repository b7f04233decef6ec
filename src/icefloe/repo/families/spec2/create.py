"""The first `repo` object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.assets.assets import RepoObject, object_metadata
from icefloe.config import RepositoryConfig
from icefloe.format import layout
from icefloe.format.repo_info.file import (
    RepoAvailability,
    RepoInfo,
    RepoStatus,
    Update,
    UpdateKind,
    encode_repo_info,
)
from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.format.snapshot.file import Snapshot
from icefloe.on_demand import on_demand
from icefloe.repo.handle import RepoHandle
from icefloe.repo.refs import MAIN

if TYPE_CHECKING:
    from icefloe.format.config import file as config_file
else:
    config_file = on_demand("icefloe.format.config.file")


async def publish_first(
    handle: RepoHandle, first: Snapshot, config: RepositoryConfig | None
) -> None:
    """Create the `repo` object with the first snapshot at `main`."""
    listed = SnapshotInfo(first.id, None, first.flushed_at, first.message, first.metadata)
    info = RepoInfo(
        branches={MAIN: first.id},
        tags={},
        deleted_tags=frozenset(),
        snapshots=SnapshotTable.from_infos([listed]),
        status=RepoStatus(RepoAvailability.ONLINE, first.flushed_at),
        metadata={},
        latest_updates=(Update(UpdateKind.REPO_INITIALIZED, first.flushed_at),),
        config=None if config is None else config_file.encode_config_flexbuffer(config),
    )
    data = encode_repo_info(info, level=handle.settings.compression.level)
    version = await handle.driver.put_if(
        layout.REPO, data, previous=None, metadata=object_metadata(data)
    )
    handle.assets.caches.repo = RepoObject(info, data, version)
