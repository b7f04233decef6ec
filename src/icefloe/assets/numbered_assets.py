"""Files of repositories with numbered branches, decoded to the types of current sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import Assets, Caches
from icefloe.assets.cache import BoundedCache
from icefloe.assets.computed_logs import computed_log
from icefloe.assets.stored_objects import LISTINGS_AT_ONCE, StoredObjects, list_folder
from icefloe.config.resolved import ResolvedConfig
from icefloe.errors import FormatError, SnapshotNotFoundError
from icefloe.format import layout
from icefloe.format.columns.blobs import Bytes
from icefloe.format.columns.id_set import IdSet
from icefloe.format.envelope import WRITER_NAME
from icefloe.format.manifest.file import Manifest
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import (
    ChunkId,
    ManifestId,
    SnapshotId,
    decode_base32_rows,
    encode_base32,
    encode_base32_rows,
)
from icefloe.legacy.generation import Generation
from icefloe.legacy.numbered import files
from icefloe.legacy.numbered.files import Form, form_of
from icefloe.legacy.numbered.from_snapshot import FIRST, Lineage, from_snapshot
from icefloe.legacy.numbered.model import Ancestor, AttributesRef, OldSnapshot
from icefloe.legacy.numbered.names import Names
from icefloe.legacy.numbered.to_snapshot import AttributeFiles, attribute_files_of, to_snapshot
from icefloe.legacy.numbered.wide_ids import IdMap
from icefloe.storage.driver import Readable, find_object

if TYPE_CHECKING:
    from icefloe.legacy.numbered.parquet_files import RefFile

_MAX_CACHED_ANCESTORS = 100_000
_MAX_CACHED_PLACES = 10_000
_MAX_CACHED_TIPS = 10_000
_FILE_TYPES = {1: "snapshot", 2: "manifest", 3: "attributes", 4: "transaction-log"}


class NumberedCaches(Caches):
    """The cached state of one such repository."""

    def __init__(
        self,
        settings: ResolvedConfig,
        names: Names,
        generation: Generation,
        form: Form,
        id_size: int,
        inline_attributes_bytes: int | None,
    ) -> None:
        super().__init__(settings)
        self.names = names
        self.generation = generation
        self.form = form
        """Of files that are written."""
        self.inline_attributes_bytes = inline_attributes_bytes
        """Attributes with more bytes of JSON go into an attributes file; None: none do."""
        self.ids = IdMap(id_size)
        self.lineages: BoundedCache[Lineage] = BoundedCache(_MAX_CACHED_ANCESTORS)
        """The history of a snapshot that follows the one under the key."""
        self.ref_files: dict[bytes, RefFile] = {}
        """By snapshot, for snapshot files that do not describe their commit."""
        self.tips: BoundedCache[int] = BoundedCache(_MAX_CACHED_TIPS)
        """The newest known number of a branch."""
        self.placed: BoundedCache[AttributesRef] = BoundedCache(_MAX_CACHED_PLACES)
        """The places of attributes that are already stored, keyed by their JSON."""
        self.attributes_of: dict[SnapshotId, list[bytes]] = {}
        """The attributes files of the snapshots that were read or written."""


class NumberedAssets(Assets):
    """Typed access to the files of one such repository.

    Sessions use 12-byte ids for the 16-byte ids in the files (`ids`). The changes of a commit are
    read from its transaction log if the generation has one, and computed otherwise.
    """

    caches: NumberedCaches

    @property
    def names(self) -> Names:
        return self.caches.names

    @property
    def ids(self) -> IdMap:
        return self.caches.ids

    # -- naming

    def snapshot_key(self, snapshot_id: SnapshotId) -> str:
        return self.names.snapshot_key(self.ids.wide(snapshot_id))

    def manifest_key(self, manifest_id: ManifestId) -> str:
        return self.names.manifest_key(self.ids.wide(manifest_id))

    def transaction_log_key(self, snapshot_id: SnapshotId) -> str:
        return self.names.transaction_log_key(self.ids.wide(snapshot_id))

    def chunk_key(self, chunk_id: ChunkId) -> str:
        return self.names.chunk_key(self.ids.wide(chunk_id))

    @property
    def changing_files(self) -> dict[str, str]:
        found = {self.names.refs: "ref"}
        if self.caches.generation is not Generation.NUMBERED:
            found[layout.CONFIG_YAML] = "config"
        return found

    def stored_ids(self, ids: Bytes) -> Bytes:
        return self.ids.widen(np.ascontiguousarray(ids))

    def chunk_keys(self, chunk_ids: Bytes) -> list[str]:
        return [self.names.chunks + text for text in encode_base32_rows(self.stored_ids(chunk_ids))]

    async def other_files(self, snapshot_id: SnapshotId) -> list[str]:
        old, _ = await self._old_snapshot(snapshot_id)
        return [self.names.attributes_key(raw) for raw in attribute_files_of(old)]

    async def prepare_manifests(self, snapshot_id: SnapshotId) -> None:
        """Read the snapshot: the long forms of some ids are known from files only."""
        await self.snapshot(snapshot_id)

    def label(self, key: str) -> str:
        """The name of a file in error messages."""
        return f"{key} of {self.caches.generation.noun}"

    # -- reading

    async def load_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Read a snapshot file, and the attributes files that it refers to."""
        old, label = await self._old_snapshot(snapshot_id)
        wanted = {raw: self.names.attributes_key(raw) for raw in attribute_files_of(old)}
        self.caches.attributes_of[snapshot_id] = list(wanted)
        blobs = await self.driver.get_many([(place, None) for place in wanted.values()])
        attributes = {
            raw: files.decode_attributes(blob, self.label(place))
            for (raw, place), blob in zip(wanted.items(), blobs, strict=True)
        }
        self._keep_places(attributes)
        is_planned = self.caches.generation is Generation.NUMBERED
        snapshot = to_snapshot(old, attributes, self.ids, label, counts_boxes=is_planned)
        self.caches.snapshots.put(snapshot_id, snapshot, max(1, len(snapshot.nodes)))
        self._keep_lineage(snapshot_id, old)
        return snapshot

    def _keep_places(self, attributes: AttributeFiles) -> None:
        for raw, sets in attributes.items():
            for location, each in enumerate(sets):
                self.caches.placed.put(files.attributes_json(each), AttributesRef(raw, location), 1)

    async def _old_snapshot(self, snapshot_id: SnapshotId) -> tuple[OldSnapshot, str]:
        key = self.snapshot_key(snapshot_id)
        stored = await find_object(self.driver, key)
        if stored is None:
            raise SnapshotNotFoundError(
                f"{snapshot_id} in this repository (there is no object {key})"
            )
        label = self.label(key)
        old = files.decode_snapshot(stored[0], label)
        if old.id != self.ids.wide(snapshot_id):
            raise FormatError(
                f"{label}: the file says it is {encode_base32(old.id)}, expected {snapshot_id}"
            )
        return old, label

    async def load_manifests(self, wanted: Sequence[tuple[ManifestId, int]]) -> list[Manifest]:
        keys = [self.manifest_key(manifest_id) for manifest_id, _ in wanted]
        blobs = await self.driver.get_many([(key, None) for key in keys])
        return [
            self._manifest(manifest_id, key, data)
            for (manifest_id, _), key, data in zip(wanted, keys, blobs, strict=True)
        ]

    def _manifest(self, manifest_id: ManifestId, key: str, data: Readable) -> Manifest:
        found = files.decode_manifest(data, self.label(key), self.ids)
        if found.object_id is not None and found.object_id != self.ids.wide(manifest_id):
            raise FormatError(
                f"{self.label(key)}: the file says it is {encode_base32(found.object_id)}"
            )
        return found.manifest(manifest_id)

    async def transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """The changes of a commit; `object-not-found` if both its log and its parent are
        missing."""
        cached = self.caches.logs.get(snapshot_id)
        if cached is not None:
            return cached
        log = await self._stored_log(snapshot_id)
        if log is None:
            log = await computed_log(self, await self.snapshot(snapshot_id))
        self.caches.logs.put(snapshot_id, log, max(1, log.num_changes))
        return log

    async def snapshots_and_logs(
        self, snapshot_ids: Sequence[SnapshotId], log_ids: Sequence[SnapshotId]
    ) -> tuple[list[Snapshot], list[TransactionLog]]:
        # Logs first: one that is computed names the parent that it lacks.
        logs = [await self.transaction_log(key) for key in log_ids]
        return [await self.snapshot(key) for key in snapshot_ids], logs

    async def _stored_log(self, snapshot_id: SnapshotId) -> TransactionLog | None:
        if self.caches.generation is Generation.NUMBERED and self.caches.form in (
            Form.JSON,
            Form.MSGPACK,
        ):
            return None
        key = self.transaction_log_key(snapshot_id)
        stored = await find_object(self.driver, key)
        if stored is None:
            return None
        snapshot = await self.snapshot(snapshot_id)
        before = await self._parent_nodes(snapshot) if snapshot.parent_id is not None else None
        arrays = {
            node.id for table in (before, snapshot.nodes) for node in table or () if node.array
        }
        return files.decode_log(stored[0], self.label(key), snapshot_id, arrays)

    async def _parent_nodes(self, snapshot: Snapshot) -> NodeTable | None:
        """The nodes before a commit; None if they are no longer known."""
        assert snapshot.parent_id is not None
        try:
            return (await self.snapshot(snapshot.parent_id)).nodes
        except SnapshotNotFoundError:
            return None

    # -- which files there are

    @property
    def folders(self) -> Mapping[str, str]:
        names = self.names
        return {
            "snapshots": names.snapshots,
            "transaction_logs": names.transactions,
            "attributes": names.attributes,
            "manifests": names.manifests,
            "chunks": names.chunks,
        }

    async def list_objects(
        self,
        kind: str,
        at_once: int = LISTINGS_AT_ONCE,
        *,
        names_only: bool = False,
        with_foreign: bool = False,
    ) -> StoredObjects:
        folder = self.folders[kind]
        return await list_folder(
            self.driver, folder, at_once, names_only=names_only, identify=self._identify
        )

    def _identify(self, listed: NDArray[np.bytes_]) -> tuple[Bytes, NDArray[np.bool_]]:
        rows, is_id = decode_base32_rows(listed, self.ids.size)
        return self.ids.shorten(rows), is_id

    def files_of(self, snapshot: Snapshot) -> dict[str, IdSet]:
        attributes = [self.ids.short(raw) for raw in self.caches.attributes_of[snapshot.id]]
        return {**super().files_of(snapshot), "attributes": IdSet.of_ids(attributes)}

    # -- history

    async def history_after(self, snapshot_id: SnapshotId) -> Lineage:
        """The history of a snapshot on top of this one. It starts with this one."""
        found = self.caches.lineages.get(snapshot_id)
        if found is None:
            old, _ = await self._old_snapshot(snapshot_id)
            found = self._keep_lineage(snapshot_id, old)
        return found

    def _keep_lineage(self, snapshot_id: SnapshotId, old: OldSnapshot) -> Lineage:
        history = old.history
        if not history and old.parent_id is not None:
            history = (Ancestor(old.parent_id, old.written_at, ""),)
        itself = Ancestor(old.id, old.written_at, old.message)
        lineage = Lineage((itself, *history), old.total_parents + 1)
        self.caches.lineages.put(snapshot_id, lineage, len(lineage.history))
        return lineage

    # -- writing

    async def encode_commit(
        self, snapshot: Snapshot, log: TransactionLog
    ) -> tuple[Snapshot, list[tuple[str, bytes]]]:
        """The snapshot and its files: the snapshot file, an attributes file for long attributes, a
        log."""
        level = self.settings.compression.level
        lineage = FIRST
        if snapshot.parent_id is not None:
            lineage = await self.history_after(snapshot.parent_id)
        outside: list[Mapping[str, Any]] = []
        file_id = self.ids.wide(snapshot.id)

        def place(attributes: Mapping[str, Any]) -> Mapping[str, Any] | AttributesRef:
            most = self.caches.inline_attributes_bytes
            text = files.attributes_json(attributes)
            if (known := self.caches.placed.get(text)) is not None:
                return known
            if most is None or len(text) <= most:
                return attributes
            outside.append(attributes)
            ref = AttributesRef(file_id, len(outside) - 1)
            self.caches.placed.put(text, ref, 1)
            return ref

        old = from_snapshot(snapshot, lineage.shortened(), snapshot.flushed_at, self.ids, place)
        self.caches.attributes_of[snapshot.id] = attribute_files_of(old)
        made = [
            (self.snapshot_key(snapshot.id), files.encode_snapshot(old, self.caches.form, level))
        ]
        if outside:
            data = files.encode_attributes(outside, self.caches.form, level)
            made.append((self.names.attributes_key(file_id), data))
        encoded = files.encode_log(log, self.caches.form, level)
        if encoded is not None:
            made.append((self.transaction_log_key(snapshot.id), encoded))
        self._keep_lineage(snapshot.id, old)
        return snapshot, made

    def encode_manifest(self, manifest: Manifest) -> bytes:
        """The bytes of a manifest file."""
        arrays = {array.node_id: array.refs for array in manifest.arrays}
        return files.encode_manifest(
            arrays, self.ids, self.caches.form, self.settings.compression.level
        )

    def describe(self, data: bytes) -> dict[str, str]:
        """The user metadata that document 004 requires: version, type, compression, client."""
        form = form_of(data)
        if form not in (Form.BINARY, Form.UNCOMPRESSED):
            return {"icclient": WRITER_NAME}
        return {
            "icspecver": str(data[36]),
            "icclient": WRITER_NAME,
            "icfiletype": _FILE_TYPES[data[37]],
            "iccompalg": "zstd" if form is Form.BINARY else "none",
        }
