"""How much each snapshot and array takes, and how much of it no other snapshot uses.

Everything is columns: references are read once per manifest, whatever the number of snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Bytes
from icefloe.format.columns.id_set import IdSet, id_keys
from icefloe.format.manifest.chunk_refs import ChunkKind
from icefloe.format.manifest.file import Manifest
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.live import DEFAULT_LIMITS, Limits
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.stats import native_rows
from icefloe.records import NamedTuple
from icefloe.repo.handle import RepoHandle

_ROWS_AT_ONCE = 1 << 20
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
    sums, chunks = _Sums(), _Owned()
    done = 0
    async for manifest in live.each_manifest(handle, files, limits):
        owner = int(owners[np.searchsorted(manifests.keys, id_keys(_row(manifest.id)))[0]])
        sums.add(manifest)
        chunks.add(manifest, owner)
        done += 1
        if report is not None:
            report.tell("reading manifests", done, len(files))
    exclusive, table = chunks.finish(), sums.finish()
    found = {}
    for number, row in enumerate(reachable.rows):
        snapshot_id = SnapshotId(row.tobytes())
        if snapshot_id in wanted:
            found[snapshot_id] = number
    snapshots = await live.fetch_snapshots(handle.driver, list(wanted))
    return [_usage(one, found[one.id], table, exclusive) for one in snapshots]


async def _owners(
    handle: RepoHandle, snapshots: IdSet, manifests: IdSet, limits: Limits
) -> NDArray[np.int64]:
    """For each manifest the number of the only snapshot that uses it, or `_SHARED`."""
    first = np.full(manifests.size, np.iinfo(np.int64).max)
    last = np.full(manifests.size, -1)
    number = 0
    async for snapshot in live.each_snapshot(handle, snapshots, limits):
        used = np.concatenate([snapshot.manifest_files.id, snapshot.nodes.manifest_id])
        at = np.searchsorted(manifests.keys, np.unique(id_keys(used)))
        first[at] = np.minimum(first[at], number)
        last[at] = number
        number += 1
    return np.where(first == last, first, _SHARED)


class _Table(NamedTuple):
    """Sums by manifest and node: chunks, and bytes of each kind."""

    keys: NDArray[np.bytes_]
    sums: NDArray[np.int64]


class _Sums:
    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._rows: list[list[int]] = []

    def add(self, manifest: Manifest) -> None:
        for array in manifest.arrays:
            refs = array.refs
            sizes = [int(refs.length[refs.kind == kind].sum()) for kind in _KINDS]
            self._keys.append(bytes(manifest.id) + bytes(array.node_id))
            self._rows.append([len(refs), *sizes])

    def finish(self) -> _Table:
        keys = np.array(self._keys, "S20")
        order = np.argsort(keys)
        sums = np.array(self._rows, np.int64).reshape(-1, 4)
        return _Table(keys[order], sums[order])


class _Owned:
    """Native chunks, each with the only snapshot that has it; and inline bytes by owner."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, int] = {}
        self._inline: dict[tuple[int, int], int] = {}
        self._keys = np.empty(0, "S28")
        self._owner = np.empty(0, np.int64)
        self._node = np.empty(0, np.int64)
        self._waiting: list[tuple[Bytes, int, int]] = []
        self._num_waiting = 0

    def add(self, manifest: Manifest, owner: int) -> None:
        for array in manifest.arrays:
            node = self._nodes.setdefault(bytes(array.node_id), len(self._nodes))
            refs = array.refs
            rows = native_rows(refs)
            self._waiting.append((rows, owner, node))
            self._num_waiting += len(rows)
            inline = int(refs.length[refs.kind == ChunkKind.INLINE].sum())
            if owner != _SHARED and inline:
                key = owner, node
                self._inline[key] = self._inline.get(key, 0) + inline
        if self._num_waiting > max(_ROWS_AT_ONCE, len(self._keys)):
            self._merge()

    def _merge(self) -> None:
        parts = [np.ascontiguousarray(rows).view("S28").reshape(-1) for rows, _, _ in self._waiting]
        lengths = [len(part) for part in parts]
        keys = np.concatenate([self._keys, *parts])
        owner = np.concatenate(
            [self._owner, np.repeat([one for _, one, _ in self._waiting], lengths).astype(np.int64)]
        )
        node = np.concatenate(
            [self._node, np.repeat([one for _, _, one in self._waiting], lengths).astype(np.int64)]
        )
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
    snapshot: Snapshot, number: int, table: _Table, exclusive: dict[tuple[int, bytes], int]
) -> SnapshotUsage:
    arrays = []
    for node in snapshot.nodes:
        if node.array is None:
            continue
        keys = np.array([bytes(ref.id) + bytes(node.id) for ref in node.array.manifests], "S20")
        sums = np.zeros(4, np.int64)
        if len(keys) and len(table.keys):
            at = np.minimum(np.searchsorted(table.keys, np.unique(keys)), len(table.keys) - 1)
            is_there = table.keys[at] == np.unique(keys)
            sums = table.sums[at[is_there]].sum(axis=0)
        own = exclusive.get((number, bytes(node.id)), 0)
        chunks, native, inline, virtual = sums.tolist()
        arrays.append(ArrayUsage(node.path, chunks, native, inline, virtual, own))
    return SnapshotUsage(snapshot.id, tuple(arrays))


def _row(one: bytes) -> Bytes:
    return np.frombuffer(one, np.uint8).reshape(1, -1)
