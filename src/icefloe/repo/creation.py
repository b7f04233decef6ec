"""What spec versions 1 and 2 have in common: their files, and how a repository starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefloe.assets.assets import Assets, Caches, object_metadata
from icefloe.config.repository import ResolvedConfig
from icefloe.format import layout
from icefloe.format.metadata import encode_metadata
from icefloe.format.nodes import NodeTable
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.repo.handle import FormatVersion, RepoHandle
from icefloe.storage.driver import PROBE_DIRECTORY, ConditionFailed, Driver, find_object

_METADATA = {"__icechunk": {"is_root": True}}
_MESSAGE = "Repository initialized"


def empty_snapshot(
    snapshot_id: SnapshotId, flushed_at: int, message: str, metadata: Mapping[str, Any]
) -> Snapshot:
    """A snapshot without nodes."""
    nodes, files = NodeTable.from_nodes([]), ManifestFiles.from_infos([])
    return Snapshot(snapshot_id, nodes, flushed_at, message, metadata, files)


async def put_first_snapshot(handle: RepoHandle, *, has_log: bool) -> Snapshot:
    """Write the first snapshot, or use the one that another process has written.

    Its id is the same in every repository. So this file, unlike all others, must not be
    overwritten.
    """
    from icefloe.format.transaction_log import TransactionLog

    first = empty_snapshot(FIRST_SNAPSHOT_ID, handle.clock.now_us(), _MESSAGE, _METADATA)
    files = [handle.assets.encode_snapshot(first)]
    if has_log:
        files.append(handle.assets.encode_log(TransactionLog(FIRST_SNAPSHOT_ID)))
    for key, data in files:
        try:
            await handle.driver.put_if(key, data, previous=None, metadata=object_metadata(data))
        except ConditionFailed:
            if key == files[0][0]:
                first = await handle.assets.snapshot(FIRST_SNAPSHOT_ID)
    return first


class SpecFormat(FormatVersion):
    """Repositories with the folders and files of the published specification."""

    shares_manifests = True

    def make_assets(self, driver: Driver, settings: ResolvedConfig) -> Assets:
        return Assets(driver, settings, Caches(settings), spec_version=self.spec_version)

    async def is_unfinished(self, driver: Driver) -> bool:
        leftovers = {
            layout.snapshot_key(FIRST_SNAPSHOT_ID),
            layout.transaction_log_key(FIRST_SNAPSHOT_ID),
            layout.CONFIG_YAML,
        }
        if await find_object(driver, layout.snapshot_key(FIRST_SNAPSHOT_ID)) is None:
            return False
        listed = {entry.key for entry in await driver.list("")}
        return all(key in leftovers or key.startswith(PROBE_DIRECTORY) for key in listed)

    def require_metadata(self, values: Mapping[str, Any]) -> None:
        encode_metadata(values, self.spec_version)
