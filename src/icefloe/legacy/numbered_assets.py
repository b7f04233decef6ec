"""Files of numbered repositories as today's sessions know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import Caches
from icefloe.assets.cache import BoundedCache
from icefloe.config.repository import ResolvedConfig
from icefloe.errors import FormatError, SnapshotNotFoundError
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet
from icefloe.format.columns import Bytes
from icefloe.format.envelope import WRITER_NAME
from icefloe.format.layout import Generation
from icefloe.format.manifest import Manifest
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import (
    ChunkId,
    ManifestId,
    SnapshotId,
    decode_base32_rows,
    encode_base32,
    encode_base32_rows,
)
from icefloe.legacy.base import OlderAssets
from icefloe.legacy.numbered import files, parquet_files
from icefloe.legacy.numbered.files import Form, form_of
from icefloe.legacy.numbered.model import Ancestor, AttributesRef, OldSnapshot
from icefloe.legacy.numbered.names import IdMap, Names
from icefloe.legacy.numbered.parquet_files import RefFile
from icefloe.legacy.numbered.snapshots import (
    FIRST,
    MOST_ANCESTORS,
    Lineage,
    attribute_files_of,
    from_snapshot,
    to_snapshot,
)
from icefloe.storage.driver import Readable, find_object

_MAX_CACHED_ANCESTORS = 100_000
_MAX_CACHED_PLACES = 10_000
_MAX_CACHED_TIPS = 10_000
_FILE_TYPES = {1: "snapshot", 2: "manifest", 3: "attributes", 4: "transaction-log"}


class Kind(NamedTuple):
    """What distinguishes one such repository from others."""

    names: Names
    generation: Generation
    form: Form
    """Of files that are written."""
    id_size: int
    inline_attributes_bytes: int | None
    """Attributes with more bytes of JSON go into an attributes file; None: none do."""


class NumberedCaches(Caches):
    """The cached state of one such repository."""

    def __init__(self, settings: ResolvedConfig, kind: Kind) -> None:
        super().__init__(settings)
        self.kind = kind
        self.ids = IdMap(kind.id_size)
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


class NumberedAssets(OlderAssets):
    """Typed access to the files of one such repository.

    Sessions use 12-byte ids for the 16-byte ids in the files (`ids`). The changes of a commit are
    read from its transaction log if the generation has one, and computed otherwise.
    """

    caches: NumberedCaches

    @property
    def names(self) -> Names:
        return self.caches.kind.names

    @property
    def ids(self) -> IdMap:
        return self.caches.ids

    def snapshot_key(self, snapshot_id: SnapshotId) -> str:
        return self.names.key(self.names.snapshots, self.ids.wide(snapshot_id))

    def manifest_key(self, manifest_id: ManifestId) -> str:
        return self.names.key(self.names.manifests, self.ids.wide(manifest_id))

    def transaction_log_key(self, snapshot_id: SnapshotId) -> str:
        return self.names.key(self.names.transactions, self.ids.wide(snapshot_id))

    def chunk_key(self, chunk_id: ChunkId) -> str:
        return self.names.key(self.names.chunks, self.ids.wide(chunk_id))

    def _attributes_key(self, wide_id: bytes) -> str:
        return self.names.key(self.names.attributes, wide_id)

    @property
    def changing_files(self) -> dict[str, str]:
        found = {self.names.refs: "ref"}
        if self.caches.kind.generation is not Generation.NUMBERED:
            found[layout.CONFIG_YAML] = "config"
        return found

    def stored_ids(self, ids: Bytes) -> Bytes:
        return self.ids.widen(np.ascontiguousarray(ids))

    def chunk_keys(self, chunk_ids: Bytes) -> list[str]:
        return [self.names.chunks + text for text in encode_base32_rows(self.stored_ids(chunk_ids))]

    async def other_files(self, snapshot_id: SnapshotId) -> list[str]:
        old, _ = await self._old_snapshot(snapshot_id)
        return [self._attributes_key(raw) for raw in attribute_files_of(old)]

    def label(self, key: str) -> str:
        """The name of a file in error messages."""
        return f"{key} of {self.caches.kind.generation.noun}"

    async def load_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Read a snapshot file, and the attributes files that it refers to."""
        old, label = await self._old_snapshot(snapshot_id)
        wanted = {raw: self._attributes_key(raw) for raw in attribute_files_of(old)}
        self.caches.attributes_of[snapshot_id] = list(wanted)
        blobs = await self.driver.get_many([(place, None) for place in wanted.values()])
        attributes = {
            raw: files.decode_attributes(blob, self.label(place))
            for (raw, place), blob in zip(wanted.items(), blobs, strict=True)
        }
        for raw, sets in attributes.items():
            for at, each in enumerate(sets):
                self.caches.placed.put(files.attributes_json(each), AttributesRef(raw, at), 1)
        is_planned = self.caches.kind.generation is Generation.NUMBERED
        snapshot = to_snapshot(old, attributes, self.ids, label, counts_boxes=is_planned)
        self.caches.snapshots.put(snapshot_id, snapshot, max(1, len(snapshot.nodes)))
        self._keep_lineage(snapshot_id, old)
        return snapshot

    async def _old_snapshot(self, snapshot_id: SnapshotId) -> tuple[OldSnapshot, str]:
        key = self.snapshot_key(snapshot_id)
        stored = await find_object(self.driver, key)
        if stored is None:
            raise SnapshotNotFoundError(
                f"{snapshot_id} in this repository (there is no object {key})"
            )
        label = self.label(key)
        return await self._decoded(snapshot_id, stored[0], label), label

    async def _decoded(self, snapshot_id: SnapshotId, data: Readable, label: str) -> OldSnapshot:
        old = files.decode_snapshot(data, label)
        if old.id != self.ids.wide(snapshot_id):
            raise FormatError(
                f"{label}: the file says it is {encode_base32(old.id)}, expected {snapshot_id}"
            )
        return old

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

    async def stored_log(self, snapshot_id: SnapshotId) -> TransactionLog | None:
        kind = self.caches.kind
        if kind.generation is Generation.NUMBERED and not kind.form.has_header:
            return None
        key = self.transaction_log_key(snapshot_id)
        stored = await find_object(self.driver, key)
        if stored is None:
            return None
        snapshot = await self.snapshot(snapshot_id)
        nodes = list(snapshot.nodes)
        if snapshot.parent_id is not None:
            with suppress(SnapshotNotFoundError):
                nodes += (await self.snapshot(snapshot.parent_id)).nodes
        arrays = {node.id for node in nodes if node.array}
        return files.decode_log(stored[0], self.label(key), snapshot_id, arrays)

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

    def identify(
        self, kind: str, listed: NDArray[np.bytes_], *, with_foreign: bool
    ) -> tuple[Bytes, NDArray[np.bool_]]:
        rows, is_id = decode_base32_rows(listed, self.ids.size)
        return self.ids.shorten(rows), is_id

    def files_of(self, snapshot: Snapshot) -> dict[str, IdSet]:
        attributes = [self.ids.short(raw) for raw in self.caches.attributes_of[snapshot.id]]
        return {**super().files_of(snapshot), "attributes": IdSet.of_ids(attributes)}

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

    async def encode_commit(
        self, snapshot: Snapshot, log: TransactionLog
    ) -> tuple[Snapshot, list[tuple[str, bytes]]]:
        """The snapshot and its files: the snapshot file, an attributes file for long attributes, a
        log."""
        form, level = self.caches.kind.form, self.settings.compression.level
        lineage = FIRST
        if snapshot.parent_id is not None:
            lineage = await self.history_after(snapshot.parent_id)
        outside: list[Mapping[str, Any]] = []
        file_id = self.ids.wide(snapshot.id)

        def place(attributes: Mapping[str, Any]) -> Mapping[str, Any] | AttributesRef:
            most = self.caches.kind.inline_attributes_bytes
            text = files.attributes_json(attributes)
            if (known := self.caches.placed.get(text)) is not None:
                return known
            if most is None or len(text) <= most:
                return attributes
            outside.append(attributes)
            ref = AttributesRef(file_id, len(outside) - 1)
            self.caches.placed.put(text, ref, 1)
            return ref

        old = from_snapshot(snapshot, lineage, snapshot.flushed_at, self.ids, place)
        self.caches.attributes_of[snapshot.id] = attribute_files_of(old)
        made = [(self.snapshot_key(snapshot.id), files.encode_snapshot(old, form, level))]
        if outside:
            data = files.encode_attributes(outside, form, level)
            made.append((self._attributes_key(file_id), data))
        encoded = files.encode_log(log, form, level)
        if encoded is not None:
            made.append((self.transaction_log_key(snapshot.id), encoded))
        self._keep_lineage(snapshot.id, old)
        return snapshot, made

    def encode_manifest(self, manifest: Manifest) -> bytes:
        """The bytes of a manifest file."""
        arrays = {array.node_id: array.refs for array in manifest.arrays}
        return files.encode_manifest(
            arrays, self.ids, self.caches.kind.form, self.settings.compression.level
        )

    def describe(self, data: bytes) -> dict[str, str]:
        """The user metadata that document 004 requires: version, type, compression, client."""
        form = form_of(data)
        if not form.has_header:
            return {"icclient": WRITER_NAME}
        return {
            "icspecver": str(data[36]),
            "icclient": WRITER_NAME,
            "icfiletype": _FILE_TYPES[data[37]],
            "iccompalg": "zstd" if form is Form.BINARY else "none",
        }


class ParquetPrototypeAssets(NumberedAssets):
    """Typed access to them. What is not in a snapshot file is taken from the ref files."""

    def chunk_keys(self, chunk_ids: Bytes) -> list[str]:
        return [
            self.names.key(self.names.chunks, row.tobytes()) for row in self.stored_ids(chunk_ids)
        ]

    def identify(
        self, kind: str, listed: NDArray[np.bytes_], *, with_foreign: bool
    ) -> tuple[Bytes, NDArray[np.bool_]]:
        found = [parquet_files.id_of_file(name) for name in listed.tolist()]
        raw = b"".join(each for each in found if each is not None)
        rows = np.frombuffer(raw, np.uint8).reshape(-1, self.ids.size)
        return self.ids.shorten(rows), np.array([each is not None for each in found], np.bool_)

    async def other_files(self, snapshot_id: SnapshotId) -> list[str]:
        return []

    async def _decoded(self, snapshot_id: SnapshotId, data: Readable, label: str) -> OldSnapshot:
        ref = await self._ref_of(self.ids.wide(snapshot_id))
        return parquet_files.decode_snapshot(data, label, ref, self._ancestors(ref))

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
