"""The files of a state-file dataset: `state.json`, and the Parquet files it refers to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import Caches, by_id
from icefloe.config.repository import ResolvedConfig
from icefloe.errors import ErrorKind, SnapshotNotFoundError, StorageError
from icefloe.format.chunk_index import IdSet
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.columns import Bytes
from icefloe.format.layout import Generation
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import ChunkId, ManifestId, SnapshotId, encode_base32_rows
from icefloe.legacy.base import OlderAssets
from icefloe.legacy.state_file import state as names
from icefloe.legacy.state_file.manifest import decode_manifest, encode_manifest
from icefloe.legacy.state_file.state import Entry, State, decode_state
from icefloe.legacy.state_file.structure import (
    Inventory,
    encode_structure,
    manifest_files,
    nodes_of,
    read_structure,
)
from icefloe.legacy.state_file.tables import Profile, decode_attributes, encode_attributes
from icefloe.storage.driver import Version

INLINE_ATTRS_BYTES = 4096
"""Longer attributes go into an attributes file, so that later structure files stay small."""


@dataclass
class StateObject:
    """The state file as last seen: decoded, by id, and with its version."""

    state: State
    version: Version
    entries: Mapping[SnapshotId, Entry]


class StateFileCaches(Caches):
    """The cached state of a dataset."""

    def __init__(self, settings: ResolvedConfig) -> None:
        super().__init__(settings)
        self.state: StateObject | None = None
        self.inventories: dict[ManifestId, Inventory] = {}
        """The location of the references of each manifest id."""
        self.profile = Profile.strict
        """Of the structure file that was read last."""
        self.notes: dict[SnapshotId, tuple[int, Profile]] = {}
        """The next node number and the profile of snapshots that sessions commit on top of."""


class StateFileAssets(OlderAssets):
    """Typed access to the files of one dataset."""

    caches: StateFileCaches

    def snapshot_key(self, snapshot_id: SnapshotId) -> str:
        """The structure file: named by the state file, or a new one."""
        state = self.caches.state
        entry = None if state is None else state.entries.get(snapshot_id)
        if entry is not None:
            return names.key(names.STRUCTURES, entry.structure_file, names.STATE)
        return names.STRUCTURES + names.parquet_name(snapshot_id)

    def manifest_key(self, manifest_id: ManifestId) -> str:
        """The file of a new manifest. Inventories within one file have ids of their own and no
        file of that name."""
        return names.INVENTORIES + names.parquet_name(manifest_id)

    def chunk_key(self, chunk_id: ChunkId) -> str:
        return names.CHUNKS + chunk_id.text

    @property
    def changing_files(self) -> dict[str, str]:
        return {names.STATE: "state"}

    def chunk_keys(self, chunk_ids: Bytes) -> list[str]:
        return [names.CHUNKS + text for text in encode_base32_rows(chunk_ids)]

    def manifest_file(self, manifest_id: ManifestId) -> str:
        file = self.caches.inventories[manifest_id].file
        return names.key(names.INVENTORIES, file, "a structure file")

    async def other_files(self, snapshot_id: SnapshotId) -> list[str]:
        key = self.snapshot_key(snapshot_id)
        structure = read_structure(await self.driver.get(key), key)
        return [names.key(names.ATTRIBUTES, file, key) for file in structure.attrs_files]

    async def state_object(self) -> StateObject:
        """The current state; not fetched again if it has not changed since last time."""
        cached = self.caches.state
        if cached is None:
            data, version = await self.driver.get_versioned(names.STATE)
        else:
            changed = await self.driver.get_if_changed(names.STATE, cached.version)
            if changed is None:
                return cached
            data, version = changed
        return self.keep_state(decode_state(data), version)

    def keep_state(self, state: State, version: Version) -> StateObject:
        """Cache a state file that was just read or written."""
        entries = {entry.id: entry for entry in state.snapshots}
        found = self.caches.state = StateObject(state, version, entries)
        return found

    async def load_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Read a structure file, and the attributes files that it refers to."""
        cached = self.caches.state
        if cached is None or snapshot_id not in cached.entries:
            cached = await self.state_object()
        entry = cached.entries.get(snapshot_id)
        key = self.snapshot_key(snapshot_id)
        try:
            data = await self.driver.get(key)
        except StorageError as error:
            if error.kind != ErrorKind.OBJECT_NOT_FOUND:
                raise
            named = snapshot_id.text if entry is None else entry.snapshot
            raise SnapshotNotFoundError(
                f"{named} in {Generation.STATE_FILE.noun} (there is no object {key})"
            ) from None
        snapshot = await self._snapshot(snapshot_id, entry, data, key)
        self.caches.snapshots.put(snapshot_id, snapshot, max(1, len(snapshot.nodes)))
        return snapshot

    async def _snapshot(
        self, snapshot_id: SnapshotId, entry: Entry | None, data: bytes | memoryview, key: str
    ) -> Snapshot:
        structure = read_structure(data, key)
        files = structure.attrs_files
        keys = [names.key(names.ATTRIBUTES, file, key) for file in files]
        blobs = await self.driver.get_many([(at, None) for at in keys]) if keys else []
        attributes = {
            file: decode_attributes(blob, at)
            for file, at, blob in zip(files, keys, blobs, strict=True)
        }
        nodes, inventories = nodes_of(structure, attributes)
        self.caches.inventories.update((found.id, found) for found in inventories)
        self.caches.profile = structure.profile
        self.caches.notes[snapshot_id] = structure.next_id, structure.profile
        # A snapshot that forks read is not listed: only its nodes matter.
        listed = entry or Entry(snapshot_id.text, None, 0, key)
        return Snapshot(
            snapshot_id,
            nodes,
            listed.timestamp_ms * 1000,
            listed.message,
            listed.metadata,
            manifest_files(inventories),
            listed.parent_id,
            _extra(structure.next_id, structure.profile),
        )

    async def load_manifests(self, wanted: Sequence[tuple[ManifestId, int]]) -> list[Manifest]:
        """Read the manifest files of some inventories, each file once."""
        by_file: dict[str, list[Inventory]] = {}
        for manifest_id, _ in wanted:
            inventory = self.caches.inventories[manifest_id]
            by_file.setdefault(inventory.file, []).append(inventory)
        keys = [names.key(names.INVENTORIES, file, "a structure file") for file in by_file]
        blobs = await self.driver.get_many([(key, None) for key in keys])
        found: dict[ManifestId, Manifest] = {}
        for inventories, key, data in zip(by_file.values(), keys, blobs, strict=True):
            tables = decode_manifest(data, key, inventories)
            for inventory, refs in zip(inventories, tables, strict=True):
                arrays = (ArrayManifest(inventory.node_id, refs),)
                found[inventory.id] = Manifest(inventory.id, arrays)
        return [found[manifest_id] for manifest_id, _ in wanted]

    @property
    def folders(self) -> Mapping[str, str]:
        return names.KINDS

    def identify(
        self, kind: str, listed: NDArray[np.bytes_], *, with_foreign: bool
    ) -> tuple[Bytes, NDArray[np.bool_]]:
        """The ids of names that icefloe may have chosen: an id, followed by `.parquet` if the file
        is no chunk. With `with_foreign`, those of all names."""
        if with_foreign:
            texts = [name.decode("utf-8", "surrogatepass") for name in listed.tolist()]
            ids = b"".join(names.file_id(self.folders[kind], text) for text in texts)
            rows = np.frombuffer(ids, np.uint8).reshape(-1, ChunkId.size)
            return rows, np.ones(len(texts), np.bool_)
        if kind == "chunks":
            return by_id(listed)
        suffix = names.PARQUET.encode()
        bare = [name[: -len(suffix)] if name.endswith(suffix) else b"" for name in listed.tolist()]
        return by_id(np.array(bare, np.bytes_))

    def files_of(self, snapshot: Snapshot) -> dict[str, IdSet]:
        entries = self.caches.state.entries if self.caches.state is not None else {}
        entry = entries.get(snapshot.id)
        structure = names.parquet_name(snapshot.id) if entry is None else entry.structure_file
        known = self.caches.inventories
        inventories = [known[ManifestId(row.tobytes())].file for row in snapshot.manifest_files.id]
        notes = (node.extra for node in snapshot.nodes)
        attributes = [json.loads(note)[0] for note in notes if note is not None]
        found = {"snapshots": [structure], "manifests": inventories, "attributes": attributes}
        return {
            kind: IdSet.of_ids({names.file_id(self.folders[kind], name) for name in some})
            for kind, some in found.items()
        }

    def with_chunk_ids(self, manifest: Manifest) -> Manifest:
        arrays = tuple(
            ArrayManifest(array.node_id, _with_chunk_ids(array.refs)) for array in manifest.arrays
        )
        return replace(manifest, arrays=arrays)

    async def put_metadata_files(self, files: Sequence[tuple[str, bytes]]) -> None:
        storage_class = self.settings.storage.metadata_storage_class
        await self.driver.put_many(files, storage_class=storage_class)

    def encode_manifest(self, manifest: Manifest) -> bytes:
        (array,) = manifest.arrays
        profile = self.caches.profile
        data = encode_manifest(
            array.node_id, array.refs, profile, f"array {names.array_id(array.node_id)}"
        )
        extent = tuple(array.refs.extents())
        inventory = Inventory(names.parquet_name(manifest.id), 0, array.node_id, extent)
        self.caches.inventories[manifest.id] = inventory
        return data

    def notes(self, snapshot: Snapshot) -> tuple[int, Profile]:
        """The number for the next new node, and the widths of numbers. Cached by snapshot."""
        if snapshot.extra is not None:
            next_id, profile = json.loads(snapshot.extra)
            self.caches.notes[snapshot.id] = next_id, Profile(profile)
        return self.caches.notes[snapshot.id]

    async def encode_commit(
        self, snapshot: Snapshot, log: TransactionLog
    ) -> tuple[Snapshot, list[tuple[str, bytes]]]:
        """The structure file, and an attributes file if there are long new attributes.

        The snapshot as readers will find it has other ids for new manifests, and zarr.json in its
        canonical form.
        """
        next_id, profile = 0, Profile.strict
        if snapshot.parent_id is not None:
            next_id, profile = self.caches.notes[snapshot.parent_id]
        return self.encode_structure(snapshot, next_id, profile)

    def encode_structure(
        self, snapshot: Snapshot, next_id: int, profile: Profile
    ) -> tuple[Snapshot, list[tuple[str, bytes]]]:
        """The files of a snapshot. `next_id` is larger than all node numbers used so far."""
        numbers = (names.node_number(node.id) or 0 for node in snapshot.nodes)
        next_id = max(next_id, max(numbers, default=-1) + 1)
        attrs_file = names.parquet_name(snapshot.id)
        new = encode_structure(
            snapshot.nodes,
            snapshot.manifest_files,
            next_id=next_id,
            profile=profile,
            attrs_file=attrs_file,
            inline_attrs_bytes=INLINE_ATTRS_BYTES,
        )
        self.caches.notes[snapshot.id] = next_id, profile
        files = [(self.snapshot_key(snapshot.id), new.data)]
        if new.attributes:
            files.append((names.ATTRIBUTES + attrs_file, encode_attributes(new.attributes)))
        for manifest_id, inventory in new.inventories.items():
            self.caches.inventories[inventory.id] = inventory
            written = self.caches.manifests.get(manifest_id)
            if written is not None:
                self.caches.keep_manifest(replace(written, id=inventory.id))
        return replace(
            snapshot,
            nodes=new.nodes,
            flushed_at=-(-snapshot.flushed_at // 1000) * 1000,  # the file counts milliseconds
            manifest_files=manifest_files(new.inventories.values()),
            extra=_extra(next_id, profile),
        ), files


def _with_chunk_ids(refs: ChunkRefs) -> ChunkRefs:
    """Ids also for native chunks in files that are not named by one."""
    if refs.location is None:
        return refs
    rows = np.flatnonzero((refs.kind == ChunkKind.NATIVE) & (refs.location.codes >= 0))
    if not len(rows):
        return refs
    known = np.zeros((len(refs), ChunkId.size), np.uint8)
    if refs.chunk_id is not None:
        known[:] = refs.chunk_id
    keys = [refs.location.get(row) or "" for row in rows.tolist()]
    ids = b"".join(names.file_id(names.CHUNKS, key) for key in keys)
    known[rows] = np.frombuffer(ids, np.uint8).reshape(-1, ChunkId.size)
    return replace(refs, chunk_id=known)


def _extra(next_id: int, profile: Profile) -> bytes:
    """What a decoded snapshot keeps of its structure file besides the nodes."""
    return json.dumps([next_id, profile.value]).encode()
