"""The first snapshot of a repository of spec version 1 or 2."""

from __future__ import annotations

from icefloe.assets.assets import object_metadata
from icefloe.format import layout
from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import FIRST_SNAPSHOT_ID
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import ConditionFailed, Driver, find_object
from icefloe.storage.keys import PROBE_DIRECTORY

_METADATA = {"__icechunk": {"is_root": True}}
_MESSAGE = "Repository initialized"


async def put_first_snapshot(handle: RepoHandle, *, has_log: bool) -> Snapshot:
    """Write the first snapshot, or use the one that another process has written.

    Its id is the same in every repository. So this file, unlike all others, must not be
    overwritten.
    """
    first = Snapshot(
        FIRST_SNAPSHOT_ID,
        NodeTable.from_nodes([]),
        handle.clock.now_us(),
        _MESSAGE,
        _METADATA,
        ManifestFiles.from_infos([]),
    )
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


async def is_unfinished(driver: Driver) -> bool:
    """Whether the only files are those of an interrupted creation that was never published."""
    leftovers = {
        layout.snapshot_key(FIRST_SNAPSHOT_ID),
        layout.transaction_log_key(FIRST_SNAPSHOT_ID),
        layout.CONFIG_YAML,
    }
    if await find_object(driver, layout.snapshot_key(FIRST_SNAPSHOT_ID)) is None:
        return False
    listed = {entry.key for entry in await driver.list("")}
    return all(key in leftovers or key.startswith(PROBE_DIRECTORY) for key in listed)
