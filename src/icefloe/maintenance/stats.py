"""Bytes of chunks: of the whole repository, of each snapshot and array, of packed objects.

Everything is columns: each manifest is read once, however many snapshots share it.
A packed object stays as long as one of its chunks is in use. Its dead bytes can only be deleted
after the live chunks have been written to another object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import list_folder
from icefloe.errors import InvalidInputError
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet, id_keys
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.columns import Bytes, find_id, find_rows
from icefloe.format.manifest import Manifest
from icefloe.format.nodes import Node
from icefloe.format.snapshot import Snapshot
from icefloe.ids import ChunkId, SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.live import DEFAULT_LIMITS, GrowingIdSet, Limits
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.summary import ChunkStorageStats
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo.commit import commit
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import Workspace, committed_chunks, open_writable
from icefloe.storage.driver import Span

_ROWS_AT_ONCE = 1 << 20


@observed("chunk_storage_stats", MAINTENANCE)
async def chunk_storage_stats(
    handle: RepoHandle, limits: Limits = DEFAULT_LIMITS, report: Reporter | None = None
) -> ChunkStorageStats:
    """Bytes of chunks by where they are.

    A native chunk counts once, however many manifests refer to it, and so does a virtual one;
    chunks of a packed object count each. Inline bytes count in every manifest that holds them.
    """
    tips = await live.ref_tips(handle)
    snapshots = await live.reachable_snapshots(handle, tips.values())
    files = await live.manifest_files(handle, snapshots, limits)
    native, virtual, inlined = GrowingIdSet(), GrowingIdSet(), 0
    places: dict[str, int] = {}
    async for manifest in live.each_manifest(handle, files, limits, report):
        for array in manifest.arrays:
            table = array.refs
            native.add(native_rows(table))
            virtual.add(_virtual_rows(table, places))
            inlined += int(table.length[table.kind == ChunkKind.INLINE].sum())
    return ChunkStorageStats(_total_length(native), _total_length(virtual), inlined)


def native_rows(table: ChunkRefs) -> Bytes:
    """Id, offset and length of every native chunk."""
    rows = np.flatnonzero(table.kind == ChunkKind.NATIVE)
    if table.chunk_id is None:
        return np.empty((0, 28), np.uint8)
    place = _words(table.offset[rows], table.length[rows])
    return np.concatenate([table.chunk_id[rows], place], axis=1)


def _virtual_rows(table: ChunkRefs, places: dict[str, int]) -> Bytes:
    """Place, number of the location, and length of every virtual chunk."""
    rows = np.flatnonzero(table.kind == ChunkKind.VIRTUAL)
    if table.location is None or not len(rows):
        return np.empty((0, 24), np.uint8)
    locations = table.location.values.strings().to_list()
    numbers = np.array([places.setdefault(text, len(places)) for text in locations], "<u8")
    codes = numbers[table.location.codes[rows]]
    # A set is fast if the first words of its rows differ, which offsets alone do not.
    return _words(table.offset[rows] + (codes << np.uint64(40)), codes, table.length[rows])


def _words(*columns: NDArray[np.uint64]) -> Bytes:
    together = np.stack(columns, axis=1).astype("<u8")
    return together.view(np.uint8).reshape(-1, 8 * len(columns))


def _total_length(places: GrowingIdSet) -> int:
    length = np.ascontiguousarray(places.finish().rows[:, -8:]).view("<u8")
    return int(length.sum(dtype=np.uint64))


# -- by snapshot and array, and how much of it no other snapshot uses


_SHARED = -1
_KINDS = (ChunkKind.NATIVE, ChunkKind.INLINE, ChunkKind.VIRTUAL)


class ArrayUsage(NamedTuple):
    """The chunks of one array in one snapshot, and their bytes by kind."""

    path: str
    chunks: int
    native_bytes: int
    inline_bytes: int
    virtual_bytes: int
    exclusive_bytes: int
    """Native and inline bytes that are in no other snapshot: what its expiration would free."""


class SnapshotUsage(NamedTuple):
    """One snapshot and its arrays."""

    snapshot_id: SnapshotId
    arrays: tuple[ArrayUsage, ...]

    def total(self) -> ArrayUsage:
        """The sum over all arrays; packed and shared chunks count in every array that has them."""
        sums = [sum(column) for column in zip(*(one[1:] for one in self.arrays), strict=True)]
        return ArrayUsage("/", *(sums or [0] * 5))


async def snapshot_usage(
    handle: RepoHandle,
    wanted: Sequence[SnapshotId],
    limits: Limits = DEFAULT_LIMITS,
    report: Reporter | None = None,
) -> list[SnapshotUsage]:
    """The usage of these snapshots, compared with all that branches and tags lead to."""
    live.require_spec_1_or_2(handle, "counting the bytes of snapshots")
    tips = await live.ref_tips(handle)
    reachable = await live.reachable_snapshots(handle, [*tips.values(), *wanted])
    files = await live.manifest_files(handle, reachable, limits)
    manifests = IdSet.of(files.id)
    owners = await _owners(handle, reachable, manifests, limits)
    sums: dict[tuple[bytes, bytes], list[int]] = {}
    chunks = _Owned()
    async for manifest in live.each_manifest(handle, files, limits, report):
        owner = int(owners[find_id(manifests.rows, manifest.id)])
        for array in manifest.arrays:
            refs = array.refs
            sizes = [int(refs.length[refs.kind == kind].sum()) for kind in _KINDS]
            sums[manifest.id, array.node_id] = [len(refs), *sizes]
        chunks.add(manifest, owner)
    exclusive = chunks.finish()
    found = {SnapshotId(row.tobytes()): number for number, row in enumerate(reachable.rows)}
    snapshots = await live.fetch_snapshots(handle.driver, list(wanted))
    return [_usage(one, found[one.id], sums, exclusive) for one in snapshots]


async def _owners(
    handle: RepoHandle, snapshots: IdSet, manifests: IdSet, limits: Limits
) -> NDArray[np.int64]:
    """For each manifest the number of the only snapshot that uses it, or `_SHARED`."""
    first = np.full(manifests.size, np.iinfo(np.int64).max)
    last = np.full(manifests.size, -1)
    number = 0
    async for snapshot in live.each_snapshot(handle, snapshots, limits):
        used = np.concatenate([snapshot.manifest_files.id, snapshot.nodes.used_manifests()])
        at = np.unique(find_rows(manifests.rows, used))
        first[at] = np.minimum(first[at], number)
        last[at] = number
        number += 1
    return np.where(first == last, first, _SHARED)


class _Owned:
    """Native chunks, each with the only snapshot that has it; and inline bytes by owner."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, int] = {}
        self._inline: dict[tuple[int, int], int] = {}
        self._keys = np.empty(0, "S28")
        self._owner = self._node = np.empty(0, np.int64)
        self._waiting: list[tuple[NDArray[Any], ...]] = []
        self._num_waiting = 0

    def add(self, manifest: Manifest, owner: int) -> None:
        for array in manifest.arrays:
            node = self._nodes.setdefault(bytes(array.node_id), len(self._nodes))
            refs = array.refs
            keys = np.ascontiguousarray(native_rows(refs)).view("S28").reshape(-1)
            self._waiting.append((keys, np.full(len(keys), owner), np.full(len(keys), node)))
            self._num_waiting += len(keys)
            inline = int(refs.length[refs.kind == ChunkKind.INLINE].sum())
            if owner != _SHARED and inline:
                key = owner, node
                self._inline[key] = self._inline.get(key, 0) + inline
        if self._num_waiting > max(_ROWS_AT_ONCE, len(self._keys)):
            self._merge()

    def _merge(self) -> None:
        known = self._keys, self._owner, self._node
        keys, owner, node = map(np.concatenate, zip(known, *self._waiting, strict=True))
        self._waiting, self._num_waiting = [], 0
        if not len(keys):
            return
        order = np.argsort(keys, kind="stable")
        keys, owner, node = keys[order], owner[order], node[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        low, high = np.minimum.reduceat(owner, starts), np.maximum.reduceat(owner, starts)
        self._keys, self._node = keys[starts], node[starts]
        self._owner = np.where(low == high, low, _SHARED)

    def finish(self) -> dict[tuple[int, bytes], int]:
        """Exclusive bytes by snapshot and node."""
        self._merge()
        sizes = dict(self._inline)
        mine = np.flatnonzero(self._owner != _SHARED)
        if len(mine):
            raw = self._keys[mine].view(np.uint8).reshape(-1, 28)
            length = np.ascontiguousarray(raw[:, -8:]).view("<u8").reshape(-1)
            pairs, at = np.unique(
                np.stack([self._owner[mine], self._node[mine]], axis=1), axis=0, return_inverse=True
            )
            totals = np.zeros(len(pairs), np.int64)
            np.add.at(totals, at.reshape(-1), length.astype(np.int64))
            for (owner, node), size in zip(pairs.tolist(), totals.tolist(), strict=True):
                sizes[owner, node] = sizes.get((owner, node), 0) + size
        names = {number: node for node, number in self._nodes.items()}
        return {(owner, names[node]): size for (owner, node), size in sizes.items()}


def _usage(
    snapshot: Snapshot,
    number: int,
    sums: Mapping[tuple[bytes, bytes], list[int]],
    exclusive: Mapping[tuple[int, bytes], int],
) -> SnapshotUsage:
    """`sums` has the chunks and bytes of each kind, by manifest and node."""
    arrays = []
    for node in snapshot.nodes:
        if node.array is None:
            continue
        keys = {(ref.id, node.id) for ref in node.array.manifests}
        found = [sums[key] for key in keys if key in sums] or [[0] * 4]
        own = exclusive.get((number, bytes(node.id)), 0)
        chunks, native, inline, virtual = map(sum, zip(*found, strict=True))
        arrays.append(ArrayUsage(node.path, chunks, native, inline, virtual, own))
    return SnapshotUsage(snapshot.id, tuple(arrays))


# -- packed objects: how much of each is dead, and repacking of the live chunks


_PACK_BYTES = 16 << 20


class PackedObjects(NamedTuple):
    """Objects with several chunks, or with more bytes than the chunks in use have."""

    id: Bytes
    size_bytes: NDArray[np.int64]
    live_bytes: NDArray[np.int64]
    """Bytes of chunks that are reachable from a branch or tag."""
    num_live_chunks: NDArray[np.int64]

    @property
    def dead_bytes(self) -> NDArray[np.int64]:
        return self.size_bytes - self.live_bytes

    def __str__(self) -> str:
        size, dead = int(self.size_bytes.sum()), int(self.dead_bytes.sum())
        share = 100 * dead / size if size else 0.0
        return (
            f"{len(self.id):,} packed objects with {int(self.num_live_chunks.sum()):,} chunks in "
            f"use: {size:,} bytes, {dead:,} of them dead ({share:.1f} %)"
        )


async def packed_objects(handle: RepoHandle) -> PackedObjects:
    """The live bytes of every packed object."""
    live.require_spec_1_or_2(handle, "looking into packed objects")
    tips = await live.ref_tips(handle)
    snapshots = await live.reachable_snapshots(handle, tips.values())
    files = await live.manifest_files(handle, snapshots)
    used = GrowingIdSet()
    async for manifest in live.each_manifest(handle, files):
        for array in manifest.arrays:
            used.add(native_rows(array.refs))
    rows = used.finish().rows
    keys, which = np.unique(id_keys(rows[:, : ChunkId.size]), return_inverse=True)
    length = np.ascontiguousarray(rows[:, -8:]).view("<u8").reshape(-1).astype(np.float64)
    live_bytes = np.bincount(which, length, len(keys)).astype(np.int64)
    num_chunks = np.bincount(which, minlength=len(keys))
    stored = await list_folder(handle.driver, layout.CHUNKS)
    at = find_rows(IdSet(keys).rows, stored.id)
    objects, at = stored.take(at >= 0), at[at >= 0]
    is_packed = (num_chunks[at] > 1) | (live_bytes[at] < objects.size_bytes)
    objects, at = objects.take(is_packed), at[is_packed]
    return PackedObjects(objects.id, objects.size_bytes, live_bytes[at], num_chunks[at])


async def repack(
    handle: RepoHandle, branch: str, message: str, min_dead_fraction: float
) -> SnapshotId | None:
    """Repack the live chunks of partly dead objects, and commit to a branch.

    Returns None if no object is dead enough. The old objects become garbage when no older snapshot
    needs them.
    """
    if not 0 < min_dead_fraction <= 1:
        raise InvalidInputError(
            f"min_dead_fraction is {min_dead_fraction}, expected a number above 0 and up to 1"
        )
    found = await packed_objects(handle)
    is_dead = found.dead_bytes >= min_dead_fraction * found.size_bytes
    victims = IdSet.of(found.id[is_dead])
    workspace = Workspace(handle, await open_writable(handle, branch))
    if not victims.size:
        return None
    for node in list(workspace.state.view.all_nodes()):
        if node.array is not None:
            await _repack_array(workspace, node, victims)
    if workspace.state.changes.is_empty:
        return None
    return await commit(workspace, message, None)


async def _repack_array(workspace: Workspace, node: Node, victims: IdSet) -> None:
    handle, state = workspace
    refs = await committed_chunks(handle, state.manifest_files, node)
    if refs.chunk_id is None:
        return
    hit = (refs.kind == ChunkKind.NATIVE) & victims.contains(refs.chunk_id)
    rows = np.flatnonzero(hit)
    ends = np.cumsum(refs.length[rows].astype(np.int64))
    for pack in np.split(rows, np.flatnonzero(np.diff(ends // _PACK_BYTES)) + 1):
        if len(pack):
            moved = await _repack_chunks(handle, refs.take(pack))
            with state.writing():
                state.changes.edits(node).set_table(moved)


async def _repack_chunks(handle: RepoHandle, refs: ChunkRefs) -> ChunkRefs:
    """Store these chunks together in a new object."""
    assert refs.chunk_id is not None
    places = zip(refs.chunk_id, refs.offset.tolist(), refs.length.tolist(), strict=True)
    wanted = [
        (layout.chunk_key(ChunkId(one.tobytes())), Span(offset, length))
        for one, offset, length in places
    ]
    data = await handle.driver.get_many([(key, span) for key, span in wanted])
    new_id = handle.new_id(ChunkId)
    storage_class = handle.settings.storage.chunks_storage_class
    await handle.driver.put(layout.chunk_key(new_id), b"".join(data), storage_class=storage_class)
    ends = np.cumsum(refs.length)
    ids = np.tile(np.frombuffer(new_id, np.uint8), (len(refs), 1))
    return ChunkRefs.native(refs.index, ids, ends - refs.length, refs.length)
