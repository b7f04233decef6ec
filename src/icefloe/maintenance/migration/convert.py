"""Converts snapshots one by one: manifests, chunks, files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from icefloe.changes.sharing import cut_refs
from icefloe.changes.split_sizes import split_sizes
from icefloe.errors import ErrorKind, StorageError
from icefloe.format import layout
from icefloe.format.columns.id_set import IdSet
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.format.manifest.file import ArrayManifest, Manifest
from icefloe.format.snapshot.file import ManifestFileInfo, ManifestFiles, Snapshot
from icefloe.format.snapshot.manifest_refs import ManifestRef, extents_of
from icefloe.format.snapshot.nodes import ArrayData, Node, NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.maintenance.check_snapshot import overlapping_boxes
from icefloe.maintenance.listing import arrived, list_folder
from icefloe.maintenance.live import GrowingIdSet
from icefloe.maintenance.migration.converted_refs import (
    NativeObjects,
    as_virtual,
    named_by_id,
    native_objects,
)
from icefloe.maintenance.migration.new_history import MovedSnapshot, derived_id, manifest_id
from icefloe.repo.handle import RepoHandle


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
        present: IdSet,
    ) -> None:
        self.source = source
        self.target = target
        self.num_chunks_copied = 0
        self.num_bytes_copied = 0
        self.joined: dict[tuple[ManifestId, ...], list[ManifestRef]] = {}
        """New manifests, by those whose boxes overlap."""
        self.lacks_log: list[SnapshotId] = []
        """Snapshots whose changes are no longer known. Their logs are empty."""
        self._base_url = chunk_base_url
        self._copies_chunks = copies_chunks
        self._present = present
        self._copied = GrowingIdSet()
        self._made: dict[Source, ManifestRef | None] = {}
        self._files: dict[ManifestId, ManifestFileInfo] = {}
        self._used: set[ManifestId] = set()

    async def convert(self, moved: MovedSnapshot, *, with_log: bool = True) -> None:
        """Write one snapshot with everything it refers to that is not written yet."""
        snapshot = await self.source.assets.snapshot(moved.source_id)
        await self._write_manifests(snapshot)
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
            info.parent_id if self.target.family.stores_parents else None,
        )
        files = [self.target.assets.encode_snapshot(new)]
        if with_log:
            files.append(self.target.assets.encode_log(await self._log(moved)))
        await self.target.assets.put_metadata_files(files)

    async def write_log(self, moved: MovedSnapshot) -> None:
        """Write the transaction log of a snapshot, which may list as many chunks as it has."""
        log = self.target.assets.encode_log(await self._log(moved))
        await self.target.assets.put_metadata_files([log])

    async def _log(self, moved: MovedSnapshot) -> TransactionLog:
        try:
            log = await self.source.assets.transaction_log(moved.source_id)
        except StorageError as error:
            if error.kind != ErrorKind.OBJECT_NOT_FOUND:
                raise
            self.lacks_log.append(moved.source_id)
            return TransactionLog(moved.info.id)
        return replace(log, id=moved.info.id)

    # -- manifests

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
        if key not in self.joined:
            wanted = [(each, self._files[each].size_bytes) for each in key]
            found = [one.find(node.id) for one in await self.target.assets.load_manifests(wanted)]
            refs = ChunkRefs.joined(found, len(array.shape))
            sizes, limit = split_sizes(self.target.settings.manifest)(node.path, array, len(refs))
            tables = cut_refs(refs, sizes, limit) if limit else [refs]
            made = []
            for number, table in enumerate(tables):
                new_id = ManifestId(derived_id(b"".join(key), number.to_bytes(4, "big")))
                made.append(await self._put(new_id, node.id, table))
            self.joined[key] = made
        return self.joined[key]

    def missing(self, snapshot: Snapshot) -> list[ManifestWork]:
        """The manifests of a snapshot that are not converted yet."""
        nodes: dict[ManifestId, list[NodeId]] = {}
        for node in snapshot.nodes:
            for ref in _manifests(node):
                if (ref.id, node.id) not in self._made:
                    nodes.setdefault(ref.id, []).append(node.id)
        files = snapshot.manifest_files
        return [
            ManifestWork(source_id, files[source_id].size_bytes, tuple(wanted), snapshot.id)
            for source_id, wanted in nodes.items()
        ]

    async def _write_manifests(self, snapshot: Snapshot) -> None:
        for work in self.missing(snapshot):
            self.take([made async for made, _ in self.write_arrays(work)])

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

    async def write_arrays(
        self, work: ManifestWork
    ) -> AsyncIterator[tuple[ConvertedArray, ChunkRefs]]:
        """Write one manifest per array, after the chunks it refers to.

        The second value has the references of the source.
        """
        await self.source.assets.prepare_manifests(work.snapshot_id)
        (manifest,) = await self.source.assets.load_manifests([(work.id, work.size_bytes)])
        for node_id in work.nodes:
            source = (work.id, node_id)
            refs = manifest.find(node_id)
            if refs is None or not len(refs):
                yield ConvertedArray(source), ChunkRefs.empty(0)
            else:
                yield await self._write(source, refs), refs

    async def _write(self, source: Source, refs: ChunkRefs) -> ConvertedArray:
        objects = native_objects(refs)
        if self._base_url is not None:
            urls = [self._base_url + key for key in self._keys(objects)]
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

    # -- chunks

    def _keys(self, objects: NativeObjects) -> list[str]:
        """The keys of the objects in the source."""
        chunk_key = self.source.assets.chunk_key
        return [
            chunk_key(ChunkId(row.tobytes())) if key is None else key
            for row, key in zip(objects.chunk_id, objects.key, strict=True)
        ]

    async def _copy(self, objects: NativeObjects) -> None:
        """Copy objects that the target does not have yet, within the memory limits."""
        if not self._copies_chunks or not len(objects.chunk_id):
            return
        there = self._present.contains(objects.chunk_id)
        there |= self._copied.contains(objects.chunk_id)
        keys = self._keys(objects)
        for batch in objects.batches(np.flatnonzero(~there).tolist()):
            await self._copy_batch(objects, keys, batch)

    async def _copy_batch(
        self, objects: NativeObjects, keys: Sequence[str], batch: Sequence[int]
    ) -> None:
        blobs = await self.source.driver.get_many([(keys[at], None) for at in batch])
        storage_class = self.target.settings.storage.chunks_storage_class
        names = [layout.chunk_key(ChunkId(objects.chunk_id[at].tobytes())) for at in batch]
        await self.target.driver.put_many(
            list(zip(names, blobs, strict=True)), storage_class=storage_class
        )
        self.num_chunks_copied += len(batch)
        self.num_bytes_copied += sum(map(len, blobs))
        self._copied.add(objects.chunk_id[list(batch)])


def _manifests(node: Node) -> Sequence[ManifestRef]:
    return () if node.array is None else node.array.manifests
