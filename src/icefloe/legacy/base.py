"""What the format versions of older generations and their files have in common."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import LISTINGS_AT_ONCE, Assets, StoredObjects, list_folder
from icefloe.assets.computed_logs import computed_log
from icefloe.format.columns import Bytes
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.repo.creation import empty_snapshot
from icefloe.repo.handle import FormatVersion, RepoHandle
from icefloe.storage.driver import PROBE_DIRECTORY, Driver


class OlderAssets(Assets):
    """Files whose names need not be ids, of commits that need not have a log."""

    async def prepare_manifests(self, snapshot_id: SnapshotId) -> None:
        """Read the snapshot: only its file has the places or the long ids of some objects."""
        await self.snapshot(snapshot_id)

    async def transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """The changes of a commit; `object-not-found` if both its log and its parent are
        missing."""
        log = self.caches.logs.get(snapshot_id)
        if log is None:
            log = await self.stored_log(snapshot_id)
            if log is None:
                log = await computed_log(self, await self.snapshot(snapshot_id))
            self.caches.logs.put(snapshot_id, log, max(1, log.num_changes))
        return log

    async def stored_log(self, snapshot_id: SnapshotId) -> TransactionLog | None:
        """The log in a file; None if it has to be computed."""
        return None

    async def snapshots_and_logs(
        self, snapshot_ids: Sequence[SnapshotId], log_ids: Sequence[SnapshotId]
    ) -> tuple[list[Snapshot], list[TransactionLog]]:
        # Logs first: one that is computed names the parent that it lacks.
        logs = [await self.transaction_log(key) for key in log_ids]
        return [await self.snapshot(key) for key in snapshot_ids], logs

    async def list_objects(
        self,
        kind: str,
        at_once: int = LISTINGS_AT_ONCE,
        *,
        names_only: bool = False,
        with_foreign: bool = False,
    ) -> StoredObjects:
        def identify(listed: NDArray[np.bytes_]) -> tuple[Bytes, NDArray[np.bool_]]:
            return self.identify(kind, listed, with_foreign=with_foreign)

        return await list_folder(
            self.driver, self.folders[kind], at_once, names_only=names_only, identify=identify
        )

    def identify(
        self, kind: str, listed: NDArray[np.bytes_], *, with_foreign: bool
    ) -> tuple[Bytes, NDArray[np.bool_]]:
        """The ids of the files of a folder, and which names stand for one."""
        raise NotImplementedError


class OlderFormat(FormatVersion):
    """Versions of the format before spec version 1."""

    spec_version = 0
    lists_lost_snapshots = True
    has_rectilinear_grids = False
    first_folders: tuple[str, ...]
    """The folders of files that are written before a new repository is published."""

    @property
    def maintenance(self) -> ModuleType:
        """How such a repository is collected, expired and verified."""
        from icefloe.legacy import maintenance

        return maintenance

    async def is_unfinished(self, driver: Driver) -> bool:
        """Whether the only files are snapshots of creations that were never published."""
        listed = [entry.key for entry in await driver.list("")]
        folders = (*self.first_folders, PROBE_DIRECTORY)
        return bool(listed) and all(key.startswith(folders) for key in listed)


def first_snapshot(handle: RepoHandle) -> Snapshot:
    """The snapshot of a new repository, without nodes."""
    now = handle.clock.now_us()
    return empty_snapshot(handle.new_id(SnapshotId), now, "Repository initialized", {})
