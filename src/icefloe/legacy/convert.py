"""Snapshots and references of older generations converted to spec version 2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import Assets, arrived, list_folder
from icefloe.changes.splits import cut_refs, split_sizes
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet, id_keys
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.columns import BlobColumn, Bytes, Ints
from icefloe.format.locations import Coded, Locations
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import ArrayData, ManifestRef, Node, NodeTable, extents_of
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles, Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.maintenance.checks import overlapping_boxes
from icefloe.maintenance.live import GrowingIdSet
from icefloe.maintenance.upgrade import MovedSnapshot, derived_id, manifest_id
from icefloe.repo.commit import batches
from icefloe.repo.handle import RepoHandle
from icefloe.repo.history import find_log

_BYTES_AT_ONCE = 64 << 20
_OBJECTS_AT_ONCE = 256


class NativeObjects(NamedTuple):
    """The distinct objects of the native chunks of some references."""

    chunk_id: Bytes
    """The ids in the target. The id of an object with another name is derived from the name."""
    key: list[str | None]
    """The names in the source, if they are not ids."""
    size: list[int]
    """The end of the last referenced chunk."""
    rows: Ints
    """Which references are native."""
    place: Ints
    """The object of each native reference."""

    def keys(self, assets: Assets) -> list[str]:
        """The keys of the objects in the source."""
        return [
            assets.chunk_key(ChunkId(row.tobytes())) if key is None else key
            for row, key in zip(self.chunk_id, self.key, strict=True)
        ]

    def batches(self, wanted: Sequence[int]) -> Iterator[list[int]]:
        """The objects in batches that fit into memory."""
        return batches(wanted, self.size.__getitem__, _BYTES_AT_ONCE, _OBJECTS_AT_ONCE)


def native_objects(refs: ChunkRefs) -> NativeObjects:
    """The distinct objects of native chunks."""
    rows = np.flatnonzero(refs.kind == ChunkKind.NATIVE)
    ids = np.zeros((len(rows), ChunkId.size), np.uint8)
    if refs.chunk_id is not None:
        ids[:] = refs.chunk_id[rows]
    if refs.location is not None:
        codes = refs.location.codes[rows]
        used, place = np.unique(codes[codes >= 0], return_inverse=True)
        if len(used):
            named = (derived_id(refs.location.values.get(code).encode()) for code in used.tolist())
            made = np.frombuffer(b"".join(named), np.uint8).reshape(-1, ChunkId.size)
            ids[codes >= 0] = made[place]
    _, first, place = np.unique(id_keys(ids), return_index=True, return_inverse=True)
    ends = np.zeros(len(first), np.uint64)
    np.maximum.at(ends, place, refs.offset[rows] + refs.length[rows])
    location = refs.location
    keys = [None if location is None else location.get(int(row)) for row in rows[first]]
    return NativeObjects(ids[first], keys, ends.tolist(), rows, place)


def named_by_id(refs: ChunkRefs, objects: NativeObjects) -> ChunkRefs:
    """The same references, with an id for every native chunk."""
    if not any(key is not None for key in objects.key):
        return refs
    ids = np.zeros((len(refs), ChunkId.size), np.uint8)
    ids[objects.rows] = objects.chunk_id[objects.place]
    return replace(refs, chunk_id=ids, location=_without(refs.location, objects.rows), _lookup=[])


def as_virtual(refs: ChunkRefs, objects: NativeObjects, urls: Sequence[str]) -> ChunkRefs:
    """The same references, with native chunks as virtual chunks of the objects at `urls`."""
    if not len(objects.rows):
        return refs
    others = _without(refs.location, objects.rows)
    strings = BlobColumn.from_values(list(urls), is_text=True)
    codes = np.full(len(refs), -1, np.int32)
    if others is not None:
        codes[:] = others.codes
    known = 0 if others is None else len(others.values)
    codes[objects.rows] = objects.place + known
    parts = [] if others is None else [others.values.strings()]
    values = Locations(BlobColumn.concat([*parts, strings]))
    kind: NDArray[np.uint8] = refs.kind.copy()
    kind[objects.rows] = ChunkKind.VIRTUAL
    return replace(refs, kind=kind, chunk_id=None, location=Coded(codes, values), _lookup=[])


def _without(column: Coded | None, rows: Ints) -> Coded | None:
    """A column of locations, with those of some rows removed."""
    if column is None:
        return None
    codes = column.codes.copy()
    codes[rows] = -1
    if (codes < 0).all():
        return None
    return Coded(codes, column.values).compact()


async def chunks_there(source: RepoHandle, target: RepoHandle) -> IdSet:
    """The chunk objects that an interrupted migration has copied with all their bytes.

    Files that are not named by ids are copied again.
    """
    copies = await list_folder(target.driver, layout.CHUNKS)
    if not len(copies):
        return IdSet.of(copies.id)
    originals = await source.assets.list_objects("chunks")
    known = IdSet.of(originals.id).contains(copies.id)
    return arrived(copies.take(known), originals)


Source = tuple[ManifestId, NodeId]
"""An array in a manifest of the source."""


class ManifestWork(NamedTuple):
    """A manifest of the source, and the arrays in it that snapshots refer to."""

    id: ManifestId
    size_bytes: int
    nodes: tuple[NodeId, ...]
    snapshot_id: SnapshotId
    """One of the snapshots. A process has to read it before it can map 16-byte ids."""


class ConvertedArray(NamedTuple):
    """The converted array of a source manifest. Without `ref`, it has no chunks."""

    source: Source
    ref: ManifestRef | None = None
    info: ManifestFileInfo | None = None


class Conversion:
    """What a migration has written so far. It grows with the number of manifests and of chunk
    objects (twelve bytes each), not with the number of references."""

    def __init__(
        self,
        source: RepoHandle,
        target: RepoHandle,
        *,
        chunk_base_url: str | None,
        copies_chunks: bool,
    ) -> None:
        self.source = source
        self.target = target
        self.num_chunks_copied = 0
        self.num_bytes_copied = 0
        self._joined: dict[tuple[ManifestId, ...], list[ManifestRef]] = {}
        """New manifests, by those whose boxes overlap."""
        self._base_url = chunk_base_url
        self._copies_chunks = copies_chunks
        self._present: IdSet | None = None
        self._copied = GrowingIdSet()
        self._made: dict[Source, ManifestRef | None] = {}
        self._files: dict[ManifestId, ManifestFileInfo] = {}
        self._used: set[ManifestId] = set()

    async def write_snapshot(self, moved: MovedSnapshot) -> None:
        """Write one snapshot, whose manifests are there."""
        snapshot = await self.source.assets.snapshot(moved.source_id)
        nodes = [await self._converted(node) for node in snapshot.nodes]
        used = {ref.id: self._files[ref.id] for node in nodes for ref in _manifests(node)}
        self._used |= used.keys()
        info = moved.info
        new = Snapshot(
            info.id,
            NodeTable.from_nodes(nodes),
            info.flushed_at,
            info.message,
            info.metadata,
            ManifestFiles.from_infos(used.values()),
            info.parent_id if self.target.format.stores_parents else None,
        )
        await self.target.assets.put_metadata_files([self.target.assets.encode_snapshot(new)])

    async def write_log(self, moved: MovedSnapshot) -> bool:
        """Write the transaction log of a snapshot, which may list as many chunks as it has.

        Returns whether the changes are known. If not, the log is empty.
        """
        log = await find_log(self.source, moved.source_id)
        new = TransactionLog(moved.info.id) if log is None else replace(log, id=moved.info.id)
        await self.target.assets.put_metadata_files([self.target.assets.encode_log(new)])
        return log is not None

    async def _converted(self, node: Node) -> Node:
        if node.array is None:
            return node
        made = (self._made[ref.id, node.id] for ref in node.array.manifests)
        refs = [ref for ref in made if ref is not None]
        manifests = tuple(refs if len(refs) < 2 else await self._apart(node, node.array, refs))
        return replace(node, array=replace(node.array, manifests=manifests))

    async def _apart(
        self, node: Node, array: ArrayData, refs: list[ManifestRef]
    ) -> list[ManifestRef]:
        """The manifests of an array, joined where their boxes overlap.

        Earlier generations look for a chunk in all manifests, Icechunk today in one.
        """
        ndim = len(array.shape)
        ranked = [ref for ref in refs if len(ref.extents) == ndim]
        found = [ref for ref in refs if len(ref.extents) != ndim]
        joined: set[int] = set()
        for rows in overlapping_boxes(extents_of(ranked, ndim)):
            found += await self._join(node, array, [ranked[row] for row in rows])
            joined |= set(rows)
        return found + [ref for row, ref in enumerate(ranked) if row not in joined]

    async def _join(
        self, node: Node, array: ArrayData, parts: list[ManifestRef]
    ) -> list[ManifestRef]:
        key = tuple(ref.id for ref in parts)
        if key not in self._joined:
            wanted = [(each, self._files[each].size_bytes) for each in key]
            found = [one.find(node.id) for one in await self.target.assets.load_manifests(wanted)]
            refs = ChunkRefs.joined(found, len(array.shape))
            sizes, limit = split_sizes(self.target.settings.manifest)(node.path, array, len(refs))
            tables = cut_refs(refs, sizes, limit) if limit else [refs]
            made = []
            for number, table in enumerate(tables):
                new_id = ManifestId(derived_id(b"".join(key), number.to_bytes(4, "big")))
                made.append(await self._put(new_id, node.id, table))
            self._joined[key] = made
        return self._joined[key]

    def take(self, converted: Iterable[ConvertedArray]) -> None:
        """Record what this or another process has written."""
        for source, ref, info in converted:
            self._made[source] = ref
            if info is not None:
                self._files[info.id] = info

    @property
    def num_manifests(self) -> int:
        return len(self._used)

    @property
    def num_refs(self) -> int:
        return sum(self._files[each].num_chunk_refs for each in self._used)

    def unused_files(self) -> list[str]:
        """The manifests that were joined to others and that no snapshot uses."""
        return [layout.manifest_key(each) for each in self._files.keys() - self._used]

    async def write_arrays(self, work: ManifestWork) -> list[ConvertedArray]:
        """Write one manifest per array, after the chunks it refers to."""
        await self.source.assets.prepare_manifests(work.snapshot_id)
        (manifest,) = await self.source.assets.load_manifests([(work.id, work.size_bytes)])
        made = []
        for node_id in work.nodes:
            source, refs = (work.id, node_id), manifest.find(node_id)
            if refs is None or not len(refs):
                made.append(ConvertedArray(source))
            else:
                made.append(await self._write(source, refs))
        return made

    async def _write(self, source: Source, refs: ChunkRefs) -> ConvertedArray:
        objects = native_objects(refs)
        if self._base_url is not None:
            urls = [self._base_url + key for key in objects.keys(self.source.assets)]
            refs = as_virtual(refs, objects, urls)
        else:
            await self._copy(objects)
            refs = named_by_id(refs, objects)
        ref = await self._put(manifest_id(*source), source[1], refs)
        return ConvertedArray(source, ref, self._files[ref.id])

    async def _put(self, new_id: ManifestId, node_id: NodeId, refs: ChunkRefs) -> ManifestRef:
        made = Manifest(new_id, (ArrayManifest(node_id, refs),))
        data = self.target.assets.encode_manifest(made)
        await self.target.assets.put_metadata_files([(layout.manifest_key(new_id), data)])
        self._files[new_id] = ManifestFileInfo(new_id, len(data), len(refs))
        return ManifestRef(new_id, tuple(refs.extents()))

    async def _copy(self, objects: NativeObjects) -> None:
        """Copy objects that the target does not have yet, within the memory limits."""
        if not self._copies_chunks or not len(objects.chunk_id):
            return
        if self._present is None:
            self._present = await chunks_there(self.source, self.target)
        there = self._present.contains(objects.chunk_id)
        there |= self._copied.contains(objects.chunk_id)
        keys = objects.keys(self.source.assets)
        storage_class = self.target.settings.storage.chunks_storage_class
        for batch in objects.batches(np.flatnonzero(~there).tolist()):
            blobs = await self.source.driver.get_many([(keys[at], None) for at in batch])
            names = [layout.chunk_key(ChunkId(objects.chunk_id[at].tobytes())) for at in batch]
            await self.target.driver.put_many(
                list(zip(names, blobs, strict=True)), storage_class=storage_class
            )
            self.num_chunks_copied += len(batch)
            self.num_bytes_copied += sum(map(len, blobs))
            self._copied.add(objects.chunk_id[batch])


def _manifests(node: Node) -> Sequence[ManifestRef]:
    return () if node.array is None else node.array.manifests
