"""The first snapshot and the first branch file of a repository of document 000."""

from __future__ import annotations

from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.legacy.numbered.names import Names
from icefloe.repo.families.numbered.refs import assets_of, create_file
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import ConditionFailed, Driver
from icefloe.storage.keys import PROBE_DIRECTORY

_MESSAGE = "Repository initialized"
_MAIN = "main"


async def create(handle: RepoHandle) -> None:
    """000, Initialize New Repository: an empty snapshot, then the first file of `main`.

    When several clients do this at once, only one creates that file. The snapshots of the others
    remain as unreferenced files.
    """
    snapshot_id = handle.new_id(SnapshotId)
    nodes, none = NodeTable.from_nodes([]), ManifestFiles.from_infos([])
    first = Snapshot(snapshot_id, nodes, handle.clock.now_us(), _MESSAGE, {}, none)
    _, files = await handle.assets.encode_commit(first, TransactionLog(snapshot_id))
    await handle.assets.put_metadata_files(files)
    await handle.driver.sync()
    key = assets_of(handle).names.branch_key(_MAIN, 0)
    if not await create_file(handle, key, snapshot_id):
        raise ConditionFailed


async def is_unfinished(driver: Driver, names: Names) -> bool:
    """Whether the only files are snapshots of creations that were never published."""
    listed = [entry.key for entry in await driver.list("")]
    folders = (names.snapshots, names.transactions, PROBE_DIRECTORY)
    return bool(listed) and all(key.startswith(folders) for key in listed)
