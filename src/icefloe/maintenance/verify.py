"""`verify`: checks that everything a repository refers to exists, complete and consistent.

Refs lead to snapshots and logs, those to manifests, those to chunks and virtual sources. Chunk
objects are compared with one listing, without a request for each. Memory grows with the number of
stored objects and distinct sources (some tens of bytes each), not with references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.assets.assets import StoredObjects, list_folder
from icefloe.errors import ErrorKind, IcechunkError, StorageError
from icefloe.format import layout
from icefloe.format.chunk_index import id_keys
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.columns import Bytes, find_id, find_rows
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.ids import NodeId, SnapshotId
from icefloe.maintenance.check_refs import History, read_history
from icefloe.maintenance.checks import (
    SAID,
    SOURCES,
    CheckedManifest,
    ManifestToCheck,
    Use,
    check_manifest,
    check_snapshot,
    concat_batches,
    distinct_ids,
    entries_of,
    manifests_to_check,
    uses_of,
)
from icefloe.maintenance.findings import (
    DEFAULT_KEPT,
    Finding,
    FindingKind,
    FindingLog,
    VerifyReport,
)
from icefloe.maintenance.live import GrowingIdSet, each_key, get_all, list_strays
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.read_chunks import read_and_decode
from icefloe.observe import MAINTENANCE, observed
from icefloe.repo.commit import batches
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import Driver

FILES_AT_ONCE = 64
_BYTES_AT_ONCE = 64 << 20
_ROWS_OF_PYTHON = 4096


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What a verification checks besides metadata and the listing."""

    read_chunks: bool = False
    virtual_sources: bool = False
    orphans: bool = True
    max_findings: int = DEFAULT_KEPT


@dataclass
class Verification:
    """The state of a verification."""

    handle: RepoHandle
    options: VerifyOptions
    log: FindingLog
    report: Reporter
    checked: Counter[str] = field(default_factory=Counter)


class Verifier(Protocol):
    """The steps of a verification, done in this process or on Spark."""

    async def list_objects(self, history: History) -> None:
        """List the folders that metadata refers to, after the repo object was read.

        So the listing has everything that the repo object refers to, unless it was deleted.
        """

    async def check_snapshots(self, history: History) -> None:
        """Check snapshots with their logs."""

    async def check_manifests(self) -> None:
        """Check the manifests of all snapshots, and their chunks if that is wanted."""

    async def check_sources(self) -> None:
        """Ask every virtual source, if that is wanted."""

    async def check_objects(self) -> None:
        """Compare chunk objects with references to them, and find what nothing refers to."""

    def finish(self) -> VerifyReport:
        """What was found."""


async def check_history(verifier: Verifier, history: History) -> VerifyReport:
    """Check the snapshots of a history, and all they refer to."""
    await verifier.list_objects(history)
    await verifier.check_snapshots(history)
    await verifier.check_manifests()
    await verifier.check_sources()
    await verifier.check_objects()
    return verifier.finish()


@observed("verify", MAINTENANCE)
async def verify(handle: RepoHandle, options: VerifyOptions, report: Reporter) -> VerifyReport:
    """Check everything that is reachable from the refs of a repository."""
    handle = replace(handle, assets=handle.assets.past_disk_cache())
    state = Verification(handle, options, FindingLog(max(1, options.max_findings)), report)
    if not handle.format.has_spec_folders:
        older: VerifyReport = await handle.format.maintenance.verify_older(state)
        return older
    history = await read_history(handle, state.log)
    await note_strays(handle.driver, state.log)
    return await check_history(LocalVerifier(state), history)


async def verify_history(handle: RepoHandle, history: History, report: Reporter) -> VerifyReport:
    """Check the snapshots of a repository that cannot be opened yet, and all they refer to."""
    state = Verification(handle, VerifyOptions(orphans=False), FindingLog(), report)
    return await check_history(LocalVerifier(state), history)


async def note_strays(driver: Driver, log: FindingLog) -> None:
    """Objects outside of the repository's folders."""
    async for key in list_strays(driver):
        log.add(
            FindingKind.FOREIGN_OBJECT,
            key,
            "it is in no folder of the repository, so no version has it; zarr.open writes such "
            "files into the folder of a repository: write to session.store instead",
        )


class Told(NamedTuple):
    """What a check has to say: findings, how much was looked at, and rows for later steps: `said`
    (of `SAID`), `native` (of `NATIVE`) and `source` (of `SOURCES`)."""

    findings: Sequence[Finding]
    counts: Mapping[str, int] = {}
    rows: Mapping[str, pa.RecordBatch] = {}


async def check_snapshots(
    handle: RepoHandle,
    history: History,
    wanted: Iterable[tuple[SnapshotId, bool, bool]],
    *,
    with_forms: bool,
) -> AsyncIterator[Told]:
    """Check snapshots with their logs. It is known which files are there, of either."""
    for batch in batches(wanted, lambda _: 0, _BYTES_AT_ONCE, FILES_AT_ONCE):
        keys = [layout.snapshot_key(one) for one, has_file, _ in batch if has_file]
        keys += [layout.transaction_log_key(one) for one, _, has_log in batch if has_log]
        found = dict(zip(keys, await get_all(handle, keys), strict=True))
        for one, _, _ in batch:
            data = found.get(layout.snapshot_key(one))
            log = found.get(layout.transaction_log_key(one))
            checked = check_snapshot(history, one, data, log)
            counts = {"logs": checked.num_logs}
            if checked.snapshot is None:
                yield Told(checked.findings, counts)
                continue
            said = [uses_of(checked.snapshot, with_forms=with_forms), entries_of(checked.snapshot)]
            rows = {"said": concat_batches(said)}
            yield Told(checked.findings, {**counts, "snapshots": 1}, rows)


async def check_manifests(
    handle: RepoHandle, wanted: Iterable[ManifestToCheck]
) -> AsyncIterator[tuple[CheckedManifest, ManifestToCheck]]:
    """Check manifests."""
    for batch in batches(wanted, lambda one: one.stored_bytes or 0, _BYTES_AT_ONCE, FILES_AT_ONCE):
        keys = [layout.manifest_key(one.id) for one in batch if one.stored_bytes is not None]
        found = dict(zip(keys, await get_all(handle, keys), strict=True))
        for one in batch:
            yield check_manifest(one, found.pop(layout.manifest_key(one.id), None)), one


def told_by(checked: CheckedManifest) -> Told:
    """What the check of a manifest has to say."""
    counts = {}
    if checked.manifest is not None:
        counts = {"manifests": 1, "references": checked.manifest.num_chunk_refs}
    return Told(checked.findings, counts, {"native": checked.native, "source": checked.sources})


async def read_chunks(
    handle: RepoHandle, node_id: NodeId, path: str, refs: ChunkRefs, forms: Sequence[str]
) -> Told:
    """Read and decode chunks of an array."""
    found, size = await read_and_decode(handle, node_id, path, refs, forms)
    return Told(found, {"chunks read": len(refs), "bytes read": size})


def is_read_in_place(refs: ChunkRefs, options: VerifyOptions) -> NDArray[np.bool_]:
    """Chunks to read with each manifest that names them. Objects are read once for all of them."""
    kinds = [ChunkKind.INLINE, *([ChunkKind.VIRTUAL] if options.virtual_sources else [])]
    return np.isin(refs.kind, kinds)


def object_problems(size: Any, end: Any) -> dict[FindingKind, Any]:
    """Which objects are not as references want them: conditions on columns of numpy or of Spark.

    `size` is -1 if there is no object, `end` if nothing refers to it, and 0 if only arrays do that
    no longer use the manifest.
    """
    return {
        FindingKind.MISSING_CHUNK: (size < 0) & (end > 0),
        FindingKind.SHORT_CHUNK: (size >= 0) & (end > size),
        FindingKind.LONG_CHUNK: (end > 0) & (end < size),
        FindingKind.ORPHAN: end < 0,
    }


def arrays_in_use(
    manifest: Manifest, uses: Sequence[Use]
) -> Iterator[tuple[ArrayManifest, str, list[str]]]:
    """The arrays that are read by a manifest, the path for findings, and the forms of chunks."""
    users: dict[bytes, list[Use]] = {}
    for use in uses:
        users.setdefault(use.node_id, []).append(use)
    for array in manifest.arrays:
        mine = users.get(array.node_id)
        if mine is not None:
            yield array, min(use.path for use in mine), sorted({use.form for use in mine})


class LocalVerifier:
    """Checks in this process."""

    def __init__(self, state: Verification) -> None:
        self.state = state
        self.listed: dict[str, ObjectTable] = {}
        self.said = GrowingTable(SAID)
        self.sources = source_table()
        self._read = GrowingIdSet()
        """The chunks that were read. Manifests of later commits mostly refer to the same ones."""

    async def list_objects(self, history: History) -> None:
        for kind, folder in layout.KINDS.items():
            self.add_listing(kind, await list_folder(self.state.handle.driver, folder))
        if history.is_lost:  # the snapshots in use are unknown
            history.snapshots += [SnapshotId(row.tobytes()) for row in self.listed["snapshots"].id]

    def take(self, told: Told) -> None:
        """Record what a check has to say."""
        self.state.log.add_all(told.findings)
        self.state.checked.update(told.counts)
        keep = {
            "said": self.said.add,
            "native": self.listed["chunks"].refer,
            "source": self.sources.add,
        }
        for what, rows in told.rows.items():
            keep[what](rows)

    def add_listing(
        self, kind: str, found: StoredObjects, spell: Callable[[bytes], str] | None = None
    ) -> None:
        """Take the objects of one folder; `spell` as `ObjectTable` takes it."""
        state = self.state
        state.checked["objects"] += len(found)
        state.report.tell("listing", state.checked["objects"])
        for name in found.strange_names:  # readers never request them
            strange = FindingKind.FOREIGN_OBJECT
            state.log.add(strange, found.folder + name, object_detail(strange, 0, 0))
        self.listed[kind] = ObjectTable(found, spell)

    async def check_snapshots(self, history: History) -> None:
        state, files, logs = self.state, self.listed["snapshots"], self.listed["transaction_logs"]
        total = len(history.snapshots)
        wanted = (
            (one, files.mark(one), logs.mark(one))
            for one in state.report.each("reading snapshots", history.snapshots, total)
        )
        with_forms = state.options.read_chunks
        async for told in check_snapshots(state.handle, history, wanted, with_forms=with_forms):
            self.take(told)
        for one in history.pruned:
            if not logs.mark(one):
                kind, key = FindingKind.MISSING_PRUNED_LOG, layout.transaction_log_key(one)
                state.log.add(kind, key, object_detail(kind, 0, 0))

    async def check_manifests(self) -> None:
        async for checked, one in self.checked_manifests():
            self.take(told_by(checked))
            if checked.manifest is not None and self.state.options.read_chunks:
                await self._read_chunks(checked.manifest, one.uses)

    async def _read_chunks(self, manifest: Manifest, uses: Sequence[Use]) -> None:
        """Read and decode the chunks of a manifest that were not read yet."""
        state = self.state
        for array, path, forms in arrays_in_use(manifest, uses):
            refs = self._unread(array.refs)
            self.take(await read_chunks(state.handle, array.node_id, path, refs, forms))
            state.report.tell("reading chunks", state.checked["chunks read"])

    def _unread(self, refs: ChunkRefs) -> ChunkRefs:
        """The references that can be read and were not read yet."""
        wanted = is_read_in_place(refs, self.state.options)
        native = np.flatnonzero(refs.kind == ChunkKind.NATIVE)
        if len(native) and refs.chunk_id is not None:
            ids = refs.chunk_id[native]
            end = (refs.offset + refs.length)[native].astype(np.int64)
            native = native[self.listed["chunks"].is_whole(ids, end)]  # others are findings
            offset = np.ascontiguousarray(refs.offset[native], ">u8").view(np.uint8).reshape(-1, 8)
            places = np.hstack([refs.chunk_id[native], offset])
            first = np.unique(id_keys(places), return_index=True)[1]
            new = first[~self._read.contains(places[first])]
            self._read.add(places[new])
            wanted[native[new]] = True
        return refs.take(np.flatnonzero(wanted))

    def checked_manifests(self) -> AsyncIterator[tuple[CheckedManifest, ManifestToCheck]]:
        """All manifests that snapshots name, ascending by id."""
        files = self.listed["manifests"]
        wanted = (
            one._replace(stored_bytes=files.size_of(one.id) if files.mark(one.id) else None)
            for one in self.manifests()
        )
        return check_manifests(self.state.handle, wanted)

    def manifests(self) -> Iterator[ManifestToCheck]:
        """What snapshots say of these manifests."""
        said = self.said.finish().to_batches(max_chunksize=_ROWS_OF_PYTHON)
        total = len(self.listed["manifests"])
        return self.state.report.each("reading manifests", manifests_to_check(said), total)

    async def check_sources(self) -> None:
        state, table = self.state, self.sources.finish()
        if not table.num_rows:
            return
        if not state.options.virtual_sources:
            state.checked["sources not checked"] = table.num_rows
            return
        state.report.tell("asking sources", 0, table.num_rows)
        state.log.add_all(await check_sources(state.handle, table))
        state.checked["sources"] += table.num_rows

    async def check_objects(self) -> None:
        for table in self.listed.values():
            table.note_problems(self.state.log, orphans=self.state.options.orphans)

    def finish(self) -> VerifyReport:
        return VerifyReport.of(self.state.log, self.state.checked)


# -- rows that arrive in batches, reduced now and then: memory for distinct rows only


_ROWS_AT_ONCE = 1 << 18

Reduce = Callable[[pa.Table], pa.Table]
"""Joins equal rows. The result of several reductions is that of one."""


class GrowingTable:
    """Rows of one schema, equal ones joined."""

    def __init__(
        self, schema: pa.Schema, reduce: Reduce | None = None, order: Sequence[str] = ()
    ) -> None:
        self._schema = schema
        self._reduce = reduce or distinct
        self._order = order or schema.names
        self._known = schema.empty_table()
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._num_waiting += rows.num_rows
        if self._num_waiting > max(_ROWS_AT_ONCE, self._known.num_rows):
            self._join()

    def _join(self) -> None:
        new = pa.Table.from_batches(self._waiting, self._schema)
        self._known = self._reduce(pa.concat_tables([self._known, new])).cast(self._schema)
        self._waiting, self._num_waiting = [], 0

    def finish(self) -> pa.Table:
        """All rows so far, ascending by the columns of the order, or by all."""
        if self._waiting:
            self._join()
        return self._known.sort_by([(name, "ascending") for name in self._order])


def distinct(rows: pa.Table) -> pa.Table:
    """Each row once."""
    names = rows.schema.names
    return rows.group_by(names).aggregate([]).select(names)


# -- stored objects and the extent of references to them, as columns


_NONE = -1


class ObjectTable:
    """The objects of one folder, ascending by id, with their size and the end of their last use."""

    def __init__(self, found: StoredObjects, spell: Callable[[bytes], str] | None = None) -> None:
        """`spell` has the names of objects that are not in the listing, if they are not the text
        of their ids."""
        order = np.argsort(id_keys(found.id), kind="stable")
        self.folder = found.folder
        self._name = None if found.name is None else found.name[order]
        self._spell = spell
        self.id: Bytes = found.id[order]
        self.size_bytes = found.size_bytes[order]
        self._end = np.full(len(order), _NONE, np.int64)
        self._user = np.full(len(order), _NONE, np.int64)
        self._paths: dict[str, int] = {}
        self._lost: list[tuple[Bytes, NDArray[np.int64], int]] = []

    def __len__(self) -> int:
        return len(self.id)

    def mark(self, object_id: bytes) -> bool:
        """Record a reference to a whole object. Returns whether the object exists."""
        row = find_id(self.id, object_id)
        if row >= 0:
            self._end[row] = self.size_bytes[row]
        return row >= 0

    def size_of(self, object_id: bytes) -> int:
        """The size of an object, 0 if it does not exist."""
        row = find_id(self.id, object_id)
        return int(self.size_bytes[row]) if row >= 0 else 0

    def refer(self, native: pa.RecordBatch) -> None:
        """Record the references of a manifest: rows of `NATIVE`.

        Manifests come in ascending order, so the path reported for an object is deterministic.
        """
        if not native.num_rows:
            return
        for path in pc.unique(native["path"]).to_pylist():
            rows = native.filter(pc.equal(native["path"], path))
            ids = np.frombuffer(b"".join(rows["chunk_id"].to_pylist()), np.uint8).reshape(-1, 12)
            self._refer(ids, np.asarray(rows["end"]), path)

    def _refer(self, ids: Bytes, end: NDArray[np.int64], path: str) -> None:
        rows = find_rows(self.id, ids)
        is_there = rows >= 0
        number = self._paths.setdefault(path, len(self._paths))
        is_lost = ~is_there & (end > 0)
        if is_lost.any():
            self._lost.append((ids[is_lost], end[is_lost], number))
        found = rows[is_there]
        self._end[found] = np.maximum(self._end[found], end[is_there])
        found = found[end[is_there] > 0]
        self._user[found[self._user[found] == _NONE]] = number

    def is_whole(self, ids: Bytes, end: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which objects exist and are long enough."""
        rows = find_rows(self.id, ids)
        is_whole: NDArray[np.bool_] = rows >= 0
        is_whole[is_whole] = self.size_bytes[rows[is_whole]] >= end[is_whole]
        return is_whole

    def note_problems(self, log: FindingLog, *, orphans: bool) -> None:
        """Findings for missing and short objects, and for bytes that nothing refers to."""
        lost, lost_end, lost_user = self._lost_objects()
        size = np.concatenate([self.size_bytes, np.full(len(lost), _NONE)])
        end = np.concatenate([self._end, lost_end])
        user = np.concatenate([self._user, lost_user])
        paths = [*self._paths, ""]  # the last one stands for no path
        for kind, which in object_problems(size, end).items():
            if kind == FindingKind.ORPHAN and not orphans:
                continue
            rows = np.flatnonzero(which)
            keys = self._lost_keys(lost) if kind == FindingKind.MISSING_CHUNK else self._keys(rows)
            columns = (column[rows].tolist() for column in (size, end, user))
            found = (
                (key, object_detail(kind, *numbers), paths[who])
                for key, *numbers, who in zip(keys, *columns, strict=True)
            )
            log.add_many(kind, len(rows), found)

    def _lost_objects(self) -> tuple[Bytes, NDArray[np.int64], NDArray[np.int64]]:
        """The objects that are missing, with the end and the user of references to them."""
        parts = [(self.id[:0], self._end[:0], 0), *self._lost]
        ids = np.concatenate([ids for ids, _, _ in parts])
        user = np.repeat([number for _, _, number in parts], [len(ids) for ids, _, _ in parts])
        first = np.unique(id_keys(ids), return_index=True)[1]
        return *distinct_ids(ids, np.concatenate([end for _, end, _ in parts])), user[first]

    def _keys(self, rows: NDArray[np.int64]) -> Iterator[str]:
        if self._name is None:
            return each_key(self.folder, self.id[rows])
        listed = (name.decode("utf-8", "replace") for name in self._name[rows].tolist())
        return (self.folder + name for name in listed)

    def _lost_keys(self, ids: Bytes) -> Iterator[str]:
        spell = self._spell
        if spell is None:
            return each_key(self.folder, ids)
        return (self.folder + spell(row.tobytes()) for row in ids)


_LENGTHS = "the object has {size:,} bytes, references reach byte {end:,}"
_DETAILS = {
    FindingKind.MISSING_CHUNK: "the object does not exist, references reach byte {end:,}",
    FindingKind.SHORT_CHUNK: _LENGTHS,
    FindingKind.LONG_CHUNK: _LENGTHS,
    FindingKind.ORPHAN: "nothing refers to its {size:,} bytes",
    FindingKind.FOREIGN_OBJECT: "the name is no id",
    FindingKind.MISSING_PRUNED_LOG: "the log of an expired commit is gone; differences across it "
    "are unknown",
}


def object_detail(kind: FindingKind, size: int, end: int) -> str:
    """What a listing and the references say of an object: its size, and the end of the last one."""
    return _DETAILS[kind].format(size=size, end=end)


_AT_ONCE = 256
_STATE = ["location", "etag", "last_modified"]

_NOT_ALLOWED = {
    ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
    ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
}


def source_table() -> GrowingTable:
    """Sources of many manifests, once per expected state; rows of `SOURCES`."""
    return GrowingTable(SOURCES, _per_state, _STATE)


def _per_state(rows: pa.Table) -> pa.Table:
    """One row per source and expected state: how far it is needed, and where it is named."""
    grouped = rows.group_by(_STATE).aggregate(
        [("end", "max"), ("manifest_id", "min"), ("path", "min")]
    )
    names = [*_STATE, "end_max", "manifest_id_min", "path_min"]
    return grouped.select(names).rename_columns(SOURCES.names)


async def check_sources(handle: RepoHandle, sources: pa.Table) -> list[Finding]:
    """Request the last byte of every source that any reference needs, with their condition.

    So there is one request per source and expected state, and normally one state.
    """
    return [
        Finding.of(_kind(error), row["location"], error.message, row["path"])
        async for row, error in _failures(handle, sources)
    ]


async def dead_sources(handle: RepoHandle, sources: pa.Table) -> set[tuple[Any, ...]]:
    """Location, ETag and time of the sources that are missing, too short or changed.

    Raises:
        IcechunkError: a source could not be checked, so its state is unknown.
    """
    found: set[tuple[Any, ...]] = set()
    async for row, error in _failures(handle, sources):
        if _kind(error) not in _DEAD:
            raise error
        found.add((row["location"], row["etag"], row["last_modified"] or None))
    return found


async def _failures(
    handle: RepoHandle, sources: pa.Table
) -> AsyncIterator[tuple[dict[str, Any], IcechunkError]]:
    for batch in sources.to_batches(max_chunksize=_AT_ONCE):
        rows = batch.to_pylist()
        refs = [_last_byte(row) for row in rows]
        for row, outcome in zip(rows, await handle.assets.virtual.fetch_all(refs), strict=True):
            if isinstance(outcome, IcechunkError):
                yield row, outcome


def _last_byte(row: dict[str, Any]) -> ChunkRef:
    start = max(0, row["end"] - 1)
    return ChunkRef(
        ChunkKind.VIRTUAL,
        start,
        row["end"] - start,
        location=row["location"],
        etag=row["etag"],
        last_modified=row["last_modified"] or None,
    )


_DEAD = {FindingKind.MISSING_SOURCE, FindingKind.SHORT_SOURCE, FindingKind.CHANGED_SOURCE}


def _kind(error: IcechunkError) -> FindingKind:
    cause = error.__cause__
    if error.kind in _NOT_ALLOWED:
        return FindingKind.UNCHECKED_SOURCES
    if error.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED:
        return FindingKind.CHANGED_SOURCE
    if error.kind == ErrorKind.INVALID_OBJECT_SIZE:
        return FindingKind.SHORT_SOURCE
    if isinstance(cause, StorageError) and cause.kind == ErrorKind.OBJECT_NOT_FOUND:
        return FindingKind.MISSING_SOURCE
    return FindingKind.UNREADABLE_SOURCE
