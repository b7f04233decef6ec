"""Incremental collections: what dropped snapshots named and no other one names, without a listing.

The memory of a collection counts how many of the snapshots it kept name each manifest, and how many
of these manifests name each chunk object. Files never change what they name. So the next collection
reads the snapshots that were added and dropped since, and the manifests that only these name, and
has the exact counts of what it keeps when its decision becomes final. An object whose count is 0
then is garbage. Objects that no known snapshot named are found by a full collection only.

The memory is a hint. A collection that cannot rely on it, or misses a file that it needs, deletes
nothing and a full one runs. It is deleted before the first object, and written again after the last
one, so that an interrupted collection is followed by a full one.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import StoredObjects, with_times
from icefloe.errors import ErrorKind, SnapshotNotFoundError, StorageError
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet, id_keys
from icefloe.format.chunk_refs import ChunkKind
from icefloe.format.columns import Bytes
from icefloe.format.manifest import Manifest
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.ids import ObjectId, SnapshotId
from icefloe.maintenance import live
from icefloe.maintenance.expire import history_of
from icefloe.maintenance.gc import Collection, InUse, Options, collect
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.summary import GCSummary
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo import gc_guard
from icefloe.repo.commit_notes import expired_before
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import find_object

_NONE = IdSet.of_ids(())
_WAITING_AT_ONCE = 1 << 18


# -- counting, as columns


class Tally(NamedTuple):
    """Distinct keys, ascending, each with a number above 0."""

    key: NDArray[Any]
    number: NDArray[np.int64]

    def plus(self, *others: Tally) -> Tally:
        """The sums. Keys whose sum is 0 are left out."""
        keys = np.concatenate([self.key, *(other.key for other in others)])
        counts = np.concatenate([self.number, *(other.number for other in others)])
        if not len(keys):
            return self
        order = np.argsort(keys)
        keys, counts = keys[order], counts[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        sums = np.add.reduceat(counts, starts)
        return Tally(keys[starts][sums != 0], sums[sums != 0])

    def minus(self, other: Tally) -> Tally:
        return self.plus(Tally(other.key, -other.number))

    def has(self, keys: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of these keys are counted."""
        return np.isin(keys, self.key)


class _Tallying:
    """Counts column after column, each with distinct keys, in the memory of the distinct ones."""

    def __init__(self, before: Tally) -> None:
        self._total = before
        self._waiting: list[Tally] = []
        self._num_waiting = 0

    def add(self, keys: NDArray[Any]) -> None:
        self._waiting.append(Tally(keys, np.ones(len(keys), np.int64)))
        self._num_waiting += len(keys)
        if self._num_waiting > max(_WAITING_AT_ONCE, len(self._total.key)):
            self.total()

    def total(self) -> Tally:
        """How often each key was in the columns, and before."""
        if self._waiting:
            self._total = self._total.plus(*self._waiting)
            self._waiting, self._num_waiting = [], 0
        return self._total


def tally(columns: Iterable[NDArray[Any]], kind: str) -> Tally:
    """How often each key is in the columns, whose keys are distinct."""
    made = _Tallying(Tally(np.empty(0, kind), np.empty(0, np.int64)))
    for keys in columns:
        made.add(keys)
    return made.total()


_IDS = f"S{ObjectId.size}"


def _words(ids: Bytes) -> NDArray[Any]:
    """The first eight bytes of each id. Two ids with the same ones are counted as one, which keeps
    both."""
    return np.ascontiguousarray(ids[:, :8]).view(">u8").reshape(-1).astype(np.uint64)


# -- the memory


class NeedsFullError(Exception):
    """The memory does not help. Its text says why, for the report."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a collection has left for the next one."""

    format: str
    """The name of the format version of the repository."""
    made_at: int
    """The newest operation of the repository; 0 in spec version 1, which has no such number."""
    runs: int
    """Incremental collections since the last full one."""
    snapshots: IdSet
    """Those whose manifests are counted."""
    others: IdSet
    """Snapshots that were too young to be deleted and are not counted."""
    pruned: IdSet
    """Expired snapshots that were known as such."""
    manifests: Tally
    chunks: Tally

    def encode(self) -> bytes:
        """The bytes of the object: what it is, a checksum, columns."""
        buffer = io.BytesIO()
        header = {"format": self.format, "made_at": self.made_at, "runs": self.runs}
        sets = {name: getattr(self, name).keys for name in _SETS}
        for name in _TALLIES:
            sets[name], counts = getattr(self, name)
            sets[f"{name}.number"] = counts.astype(np.min_scalar_type(counts.max(initial=0)))
        np.savez(buffer, allow_pickle=False, header=np.array(json.dumps(header)), **sets)
        data = buffer.getvalue()
        return _MAGIC + hashlib.blake2b(data, digest_size=_DIGEST).digest() + data

    @classmethod
    def decode(cls, stored: bytes) -> Memory:
        """The memory; raises `NeedsFullError` if a byte is wrong."""
        data = stored[len(_MAGIC) + _DIGEST :]
        digest = hashlib.blake2b(data, digest_size=_DIGEST).digest()
        if not stored.startswith(_MAGIC + digest):
            raise NeedsFullError(f"{layout.MEMORY} is damaged")
        with np.load(io.BytesIO(data), allow_pickle=False) as columns:
            sets: dict[str, Any] = {name: IdSet(columns[name]) for name in _SETS}
            for name in _TALLIES:
                sets[name] = Tally(columns[name], columns[f"{name}.number"].astype(np.int64))
            return cls(**json.loads(str(columns["header"])), **sets)


_MAGIC, _DIGEST = b"icefloe memory of a collection 2\n", 32
_SETS, _TALLIES = ("snapshots", "others", "pruned"), ("manifests", "chunks")


async def _remembered(handle: RepoHandle, full_every: int) -> Memory:
    found = await find_object(handle.driver, layout.MEMORY)
    if found is None:
        raise NeedsFullError("there is no memory of an earlier collection that came to its end")
    memory = Memory.decode(found[0])
    if memory.format != handle.format.name:
        raise NeedsFullError("the repository was upgraded since the last collection")
    if memory.runs + 1 >= full_every:
        raise NeedsFullError(f"one of {full_every} collections is a full one")
    return memory


# -- the collections


@observed("collect_garbage", MAINTENANCE)
async def collect_garbage(
    handle: RepoHandle, options: Options, report: Reporter, *, dry_run: bool = False
) -> GCSummary:
    """An incremental collection, or a full one where that is due or needed."""
    live.require_spec_1_or_2(handle, "an incremental collection")
    try:
        memory = await _remembered(handle, options.full_every)
        short = _Incremental(handle, options, report, memory)
        summary = await collect(short, dry_run=dry_run)
        summary.looked_for_orphans = False
    except NeedsFullError as reason:
        summary = await collect(_Remembering(handle, options, report), dry_run=dry_run)
        summary.full_because = str(reason)
    return summary


class _Remembering(Collection):
    """A full collection that leaves a memory."""

    runs = 0

    def __init__(self, handle: RepoHandle, options: Options, report: Reporter) -> None:
        super().__init__(handle, options, report)
        self.counted_manifests = tally([], _IDS)
        self.counted_chunks = tally([], "u8")
        self._pruned = _NONE
        """Expired snapshots that those in use name, in spec version 1."""

    def note_files(self, snapshot: Snapshot) -> None:
        self._new_files.add(id_keys(live.files_of(snapshot).id))

    def note_manifest(self, manifest: Manifest) -> None:
        super().note_manifest(manifest)
        self._new_chunks.add(np.unique(_words(manifest.native_chunk_ids())))

    async def walk(self, snapshots: IdSet) -> None:
        # What a walk has counted that did not come to its end does not count.
        files, chunks = _Tallying(self.counted_manifests), _Tallying(self.counted_chunks)
        self._new_files, self._new_chunks = files, chunks
        await super().walk(snapshots)
        self.counted_manifests, self.counted_chunks = files.total(), chunks.total()

    async def _reached_from(self, tips: Mapping[str, SnapshotId]) -> IdSet:
        if self._reached is None or self._reached[0] != tips:
            infos = await live.reachable_infos(self.handle.driver, tips.values())
            self._pruned = IdSet.of_ids(one for info in infos for one in expired_before(info))
            self._reached = dict(tips), IdSet.of_ids(info.id for info in infos)
        return self._reached[1]

    def memory(self, in_use: InUse) -> Memory:
        """What the next collection starts from."""
        repo = self.handle.assets.caches.repo
        young = IdSet.of(self.stored["snapshots"].id).minus(self.old_snapshots())
        return Memory(
            self.handle.format.name,
            0 if repo is None else repo.info.newest_update_at,
            self.runs,
            self.walked,
            young.minus(self.walked),
            IdSet.union([in_use.transaction_logs, self._pruned]).minus(in_use.snapshots),
            self.counted_manifests,
            self.counted_chunks,
        )

    async def delete(self, in_use: InUse) -> GCSummary:
        driver = self.handle.driver
        await driver.delete_many([layout.MEMORY])
        summary = await super().delete(in_use)
        if not summary.objects_failed_to_delete:
            await driver.put(layout.MEMORY, self.memory(in_use).encode())
        return summary


class _Incremental(_Remembering):
    """A collection of what snapshots named that were dropped since the last one.

    `stored` has the files of snapshots that may go, and their logs. Everything that these snapshots
    name was stored before their files.
    """

    def __init__(
        self, handle: RepoHandle, options: Options, report: Reporter, memory: Memory
    ) -> None:
        super().__init__(handle, options, report)
        self.before, self.runs = memory, memory.runs + 1
        self.walked = memory.snapshots
        self.manifests = IdSet(memory.manifests.key)
        self.counted_manifests, self.counted_chunks = memory.manifests, memory.chunks
        self._seen = _NONE
        self._named: dict[bytes, ManifestFiles] = {}
        """The manifests of each snapshot that may go."""
        self._chunks: dict[bytes, tuple[Bytes, NDArray[np.int64]]] = {}
        """The chunk objects of each manifest that may go, with their sizes."""

    async def look(self) -> None:
        """Find the snapshots that were dropped, and their files."""
        await self.require_open()
        memory = self.before
        if self.handle.format.has_repo_object:
            info = (await self.handle.assets.repo_object()).info
            if info.newest_update_at < memory.made_at:
                raise NeedsFullError("the repository is older than the memory of it")
            table, history = info.snapshots, history_of(info)
            reached = IdSet.of(table.id[history.reached(history.tips().values())])
            listed, pruned = IdSet.of(table.id), IdSet.of(table.columns.pruned_id)
            logs_in_use = IdSet.union([reached, pruned])
        else:
            _, reached = await self.walk_refs()
            listed, pruned, logs_in_use = _NONE, self._pruned, reached
        expired = pruned.minus(memory.pruned)
        must_be_there = IdSet.union([memory.snapshots, listed, expired]).minus(reached)
        dropped = IdSet.union([must_be_there, memory.others]).minus(reached)
        files = await self._with_times("snapshots", dropped)
        gone = must_be_there.minus(IdSet.of(files.id))
        if gone.size:
            name = layout.SNAPSHOTS + ObjectId(gone.rows[0].tobytes()).text
            raise NeedsFullError(f"{name} was deleted by another collection")
        logs = IdSet.union([dropped, memory.pruned.minus(pruned)]).minus(logs_in_use)
        self.stored = {
            "snapshots": files,
            "transaction_logs": await self._with_times("transaction_logs", logs),
        }

    def _objects(self, kind: str, ids: Bytes, sizes: NDArray[Any]) -> StoredObjects:
        sizes, unknown = sizes.astype(np.int64), np.full(len(ids), -1, np.int64)
        return StoredObjects(self.handle.assets.folders[kind], ids, sizes, unknown)

    async def _with_times(self, kind: str, ids: IdSet) -> StoredObjects:
        objects = self._objects(kind, ids.rows, np.zeros(ids.size))
        return await with_times(self.handle.driver, objects)

    async def look_closer(self, in_use: InUse) -> None:
        """Read all that may go, before anything is decided."""
        handle, limits, old = self.handle, self.options.limits, self.old_snapshots()
        try:
            async for snapshot in live.each_snapshot(handle, old, limits):
                self._named[bytes(snapshot.id)] = live.files_of(snapshot)
            files, _, _ = self._split(old)
            # A full collection may have deleted older files of a snapshot that it did not count.
            is_counted = self.counted_manifests.has(id_keys(files.id))
            there = await self._with_times("manifests", IdSet.of(files.id[~is_counted]))
            files = files.take(np.flatnonzero(is_counted | IdSet.of(there.id).contains(files.id)))
            async for manifest in live.each_manifest(handle, files, limits, self.report):
                self._chunks[bytes(manifest.id)] = _sizes_of_chunks(manifest)
        except (StorageError, SnapshotNotFoundError) as error:
            if isinstance(error, StorageError) and error.kind != ErrorKind.OBJECT_NOT_FOUND:
                raise
            raise NeedsFullError(f"another collection deleted a file: {error}") from error

    def _split(self, gone: IdSet) -> tuple[ManifestFiles, Tally, IdSet]:
        """The manifests that only these snapshots name, the counts of the others, and the counted
        ones of the snapshots."""
        counted = gone.minus(gone.minus(self.walked))
        named = (id_keys(self._named[row.tobytes()].id) for row in counted.rows)
        left = self.counted_manifests.minus(tally(named, _IDS))
        files = live.distinct_files([self._named[row.tobytes()] for row in gone.rows])
        return files.take(np.flatnonzero(~left.has(id_keys(files.id)))), left, counted

    def garbage(self, in_use: InUse) -> dict[str, StoredObjects]:
        """What nothing names that stays. From here on it is not counted."""
        garbage = super().garbage(in_use)
        files, manifests, counted = self._split(IdSet.of(garbage["snapshots"].id))
        files = files.take(np.flatnonzero(IdSet.of_ids(self._chunks).contains(files.id)))
        was_counted = self.counted_manifests.has(id_keys(files.id))
        named = (self._chunks[row.tobytes()][0] for row in files.id[was_counted])
        chunks = self.counted_chunks.minus(tally((np.unique(_words(ids)) for ids in named), "u8"))
        found = [self._chunks[row.tobytes()] for row in files.id]
        ids = np.concatenate([np.empty((0, ObjectId.size), np.uint8), *(ids for ids, _ in found)])
        sizes = np.concatenate([np.empty(0, np.int64), *(sizes for _, sizes in found)])
        is_dead = ~chunks.has(_words(ids))
        garbage["manifests"] = self._objects("manifests", files.id, files.size_bytes)
        garbage["chunks"] = self._objects("chunks", *_largest(ids[is_dead], sizes[is_dead]))
        self.walked = self.walked.minus(counted)
        self.counted_manifests, self.counted_chunks = manifests, chunks
        return garbage

    async def walk(self, snapshots: IdSet) -> None:
        self._seen = IdSet.union([self._seen, snapshots])
        await super().walk(snapshots)

    async def all_in_use(self) -> InUse:
        await gc_guard.require_open(self.handle)
        return self._in_use(self._seen, self._seen)

    def _in_use(self, snapshots: IdSet, logs: IdSet) -> InUse:
        return InUse(snapshots, logs, _NONE, _NONE)  # of the others there are counts


def _sizes_of_chunks(manifest: Manifest) -> tuple[Bytes, NDArray[np.int64]]:
    """The chunk objects of a manifest, and how long they are at least."""
    ends = [
        (table.offset + table.length)[table.kind == ChunkKind.NATIVE].astype(np.int64)
        for table in manifest.tables
        if table.chunk_id is not None
    ]
    return _largest(manifest.native_chunk_ids(), np.concatenate([np.empty(0, np.int64), *ends]))


def _largest(ids: Bytes, sizes: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
    """Distinct ids, each with its largest size."""
    order = np.argsort(-sizes, kind="stable")
    _, first = np.unique(id_keys(ids[order]), return_index=True)
    return ids[order][first], sizes[order][first]
