"""Files of the program of 2024-09 whose snapshots and manifests are Parquet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.numbered_assets import NumberedAssets
from icefloe.errors import SnapshotNotFoundError
from icefloe.format.columns.blobs import Bytes
from icefloe.format.manifest.file import Manifest
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import ManifestId, SnapshotId
from icefloe.legacy.numbered import parquet_files
from icefloe.legacy.numbered.from_snapshot import MOST_ANCESTORS
from icefloe.legacy.numbered.model import Ancestor, OldSnapshot
from icefloe.legacy.numbered.parquet_files import RefFile
from icefloe.storage.driver import Readable, find_object


class ParquetPrototypeAssets(NumberedAssets):
    """Typed access to them. What is not in a snapshot file is taken from the ref files."""

    def chunk_keys(self, chunk_ids: Bytes) -> list[str]:
        return [self.names.chunk_key(row.tobytes()) for row in self.stored_ids(chunk_ids)]

    def _identify(self, listed: NDArray[np.bytes_]) -> tuple[Bytes, NDArray[np.bool_]]:
        found = [parquet_files.id_of_file(name) for name in listed.tolist()]
        raw = b"".join(each for each in found if each is not None)
        rows = np.frombuffer(raw, np.uint8).reshape(-1, self.ids.size)
        return self.ids.shorten(rows), np.array([each is not None for each in found], np.bool_)

    async def other_files(self, snapshot_id: SnapshotId) -> list[str]:
        return []

    async def _old_snapshot(self, snapshot_id: SnapshotId) -> tuple[OldSnapshot, str]:
        key = self.snapshot_key(snapshot_id)
        stored = await find_object(self.driver, key)
        if stored is None:
            raise SnapshotNotFoundError(
                f"{snapshot_id} in this repository (there is no object {key})"
            )
        ref = await self._ref_of(self.ids.wide(snapshot_id))
        label = self.label(key)
        return parquet_files.decode_snapshot(stored[0], label, ref, self._ancestors(ref)), label

    def _ancestors(self, ref: RefFile) -> tuple[Ancestor, ...]:
        """Some commits before this one, newest first. The last of them knows those before it."""
        found: list[Ancestor] = []
        while ref.parent_id is not None and len(found) < MOST_ANCESTORS:
            ref = self.caches.ref_files[ref.parent_id]
            found.append(Ancestor(ref.snapshot_id, ref.written_at, ref.message))
        return tuple(found)

    async def _ref_of(self, raw: bytes) -> RefFile:
        """The ref file of a snapshot; one without time or message if there is none."""
        known = self.caches.ref_files
        if raw not in known:
            known.update(await self._all_refs())
        return known.get(raw) or RefFile(raw, 0, "", {})

    async def _all_refs(self) -> dict[bytes, RefFile]:
        """All ref files by snapshot. The parent of a commit is that of the file before it."""
        names = self.names
        keys = [entry.key for entry in await self.driver.list(names.refs)]
        branches: dict[str, list[str]] = {}
        for key in keys:  # the newest first
            if (name := names.branch_of(key)) is not None:
                branches.setdefault(name, []).append(key)
        wanted = [key for line in branches.values() for key in line]
        tags = [key for key in keys if names.tag_of(key) is not None]
        blobs = await self.driver.get_many([(key, None) for key in (*tags, *wanted)])
        refs = {
            key: parquet_files.decode_ref_file(blob, self.label(key))
            for key, blob in zip((*tags, *wanted), blobs, strict=True)
        }
        found = {refs[key].snapshot_id: refs[key] for key in tags}
        for line in branches.values():
            commits = [refs[key] for key in reversed(line)]
            for at, commit in enumerate(commits):
                parent = commits[at - 1].snapshot_id if at else None
                found[commit.snapshot_id] = commit._replace(parent_id=parent)
        return found

    def _manifest(self, manifest_id: ManifestId, key: str, data: Readable) -> Manifest:
        found = parquet_files.decode_manifest(data, self.label(key), self.ids)
        return found.manifest(manifest_id)

    async def _stored_log(self, snapshot_id: SnapshotId) -> TransactionLog | None:
        return None
