"""`verify`: whether everything that a repository refers to is there, whole and consistent.

Refs lead to snapshots and logs, those to manifests, those to chunks and virtual sources. Chunk
objects are compared with one listing, never asked for one by one. What is held grows with the
number of stored objects and distinct sources (some tens of bytes each), not with references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import pyarrow as pa

from icefloe.errors import StorageError
from icefloe.format import layout
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import ManifestId, SnapshotId
from icefloe.maintenance.check_manifest import CheckedManifest, ListedFile, Use, check_manifest_file
from icefloe.maintenance.check_refs import History, read_history
from icefloe.maintenance.check_snapshot import (
    ENTRIES,
    USES,
    check_log_file,
    check_snapshot_file,
    entries_of,
    uses_of,
)
from icefloe.maintenance.check_sources import SourceTable, check_sources
from icefloe.maintenance.findings import DEFAULT_KEPT, FindingKind, FindingLog, VerifyReport
from icefloe.maintenance.listing import StoredObjects, list_folder
from icefloe.maintenance.object_table import ObjectTable
from icefloe.maintenance.read_chunks import UnreadChunks, read_and_decode
from icefloe.records import record
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import Readable

FILES_AT_ONCE = 64
BYTES_AT_ONCE = 64 << 20
_ROWS_AT_ONCE = 1 << 18


@record(frozen=True)
class VerifyOptions:
    """What a verification looks at besides metadata and the listing."""

    read_chunks: bool = False
    virtual_sources: bool = False
    orphans: bool = True
    max_findings: int = DEFAULT_KEPT


@record()
class _State:
    """What has been found so far."""

    handle: RepoHandle
    options: VerifyOptions
    log: FindingLog
    checked: Counter[str] = field(default_factory=Counter)


class Listed(NamedTuple):
    """The folders that metadata refers to, listed after the repo object was read.

    Whatever that refers to is in there then, unless something deleted it.
    """

    snapshots: ObjectTable
    logs: ObjectTable
    manifests: ObjectTable
    chunks: ObjectTable


async def verify(handle: RepoHandle, options: VerifyOptions) -> VerifyReport:
    """Look at everything that the refs of a repository lead to."""
    state = _State(handle, options, FindingLog(max(1, options.max_findings)))
    history = await read_history(handle, state.log)
    listed = await _list_all(handle, state)
    if history.is_lost:  # nobody knows which are in use
        history.snapshots += [SnapshotId(row.tobytes()) for row in listed.snapshots.id]
    uses, entries = await _check_snapshots(state, history, listed)
    sources = SourceTable()
    unread = UnreadChunks()
    async for checked, users in _checked_manifests(state, listed, uses, entries):
        state.log.add_all(checked.findings)
        listed.chunks.refer(checked.native)
        if checked.manifest is None:
            continue
        state.checked["references"] += checked.manifest.num_chunk_refs
        sources.add(checked.sources)
        if options.read_chunks:
            await _read_chunks(state, checked, users, unread, listed.chunks)
    listed.chunks.note_problems(state.log)
    await _check_sources(state, sources)
    if options.orphans:
        for table in listed:
            table.note_orphans(state.log)
    return VerifyReport.of(state.log, state.checked)


async def _list_all(handle: RepoHandle, state: _State) -> Listed:
    tables = []
    for folder in (layout.SNAPSHOTS, layout.TRANSACTIONS, layout.MANIFESTS, layout.CHUNKS):
        found = await list_folder(handle.driver, folder)
        state.checked["objects"] += len(found)
        note_strange(state.log, found)
        tables.append(ObjectTable(found))
    return Listed(*tables)


def note_strange(log: FindingLog, found: StoredObjects) -> None:
    """Objects whose names are no ids; readers never ask for them."""
    for name in found.strange_names:
        log.add(FindingKind.FOREIGN_OBJECT, found.folder + name, "the name is no id")


# -- snapshots and logs


async def _check_snapshots(
    state: _State, history: History, listed: Listed
) -> tuple[pa.Table, pa.Table]:
    """Snapshots with their logs; returns the manifests they use and list."""
    uses, entries = _Distinct(USES), _Distinct(ENTRIES)
    times: dict[SnapshotId, int] = {}
    parents: list[tuple[SnapshotId, SnapshotId]] = []
    waiting = list(history.snapshots)
    seen = set(waiting)
    while waiting:
        batch, waiting = waiting[:FILES_AT_ONCE], waiting[FILES_AT_ONCE:]
        async for snapshot_id, snapshot in _checked_batch(state, history, listed, batch):
            if snapshot is None:
                continue
            uses.add(uses_of(snapshot, with_forms=state.options.read_chunks))
            entries.add(entries_of(snapshot))
            times[snapshot_id] = snapshot.flushed_at
            info = history.info(snapshot_id)
            parent = snapshot.parent_id if info is None else info.parent_id
            if parent is None:
                continue
            parents.append((snapshot_id, parent))
            if history.follows_files and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    for child, parent in parents:
        if parent in times and times[parent] >= times[child]:
            detail = f"its parent {parent} was flushed at or after the time of the snapshot"
            state.log.add(FindingKind.PARENT_IS_NEWER, layout.snapshot_key(child), detail)
    for snapshot_id in history.pruned:
        if not listed.logs.mark(snapshot_id):
            key = layout.transaction_log_key(snapshot_id)
            detail = "the log of an expired commit is gone; differences across it are unknown"
            state.log.add(FindingKind.MISSING_PRUNED_LOG, key, detail)
    return uses.finish(), entries.finish()


async def _checked_batch(
    state: _State, history: History, listed: Listed, batch: Sequence[SnapshotId]
) -> AsyncIterator[tuple[SnapshotId, Snapshot | None]]:
    there = [one for one in batch if listed.snapshots.mark(one)]
    for one in batch:
        if one not in there:
            kind = (
                FindingKind.DANGLING_REF if one in history.names else FindingKind.MISSING_SNAPSHOT
            )
            detail = f"the snapshot does not exist; {history.named_by(one)}"
            state.log.add(kind, layout.snapshot_key(one), detail)
    logs = [one for one in batch if listed.logs.mark(one)]
    keys = [layout.snapshot_key(one) for one in there]
    keys += [layout.transaction_log_key(one) for one in logs]
    found = dict(zip(keys, await get_all(state.handle, keys), strict=True))
    for one in batch:
        snapshot = None
        data = found.get(layout.snapshot_key(one))
        if isinstance(data, StorageError):
            key = layout.snapshot_key(one)
            state.log.add(FindingKind.DAMAGED_SNAPSHOT, key, f"cannot be read: {data.message}")
        elif data is not None:
            state.checked["snapshots"] += 1
            checked = check_snapshot_file(data, one, history.info(one))
            state.log.add_all(checked.findings)
            snapshot = checked.snapshot
        yield one, snapshot
        _check_log(state, history, one, snapshot, found.get(layout.transaction_log_key(one)))


def _check_log(
    state: _State,
    history: History,
    snapshot_id: SnapshotId,
    snapshot: Snapshot | None,
    data: Readable | StorageError | None,
) -> None:
    key = layout.transaction_log_key(snapshot_id)
    if isinstance(data, StorageError):
        state.log.add(FindingKind.DAMAGED_LOG, key, f"cannot be read: {data.message}")
    elif data is not None:
        state.checked["logs"] += 1
        state.log.add_all(check_log_file(data, snapshot_id, snapshot))
    elif history.needs_log(snapshot_id, snapshot):
        state.log.add(FindingKind.MISSING_LOG, key, "the log of a commit does not exist")


async def get_all(handle: RepoHandle, keys: Sequence[str]) -> list[Readable | StorageError]:
    """The bytes of each object, or why it could not be read."""
    try:
        return list(await handle.driver.get_many([(key, None) for key in keys]))
    except StorageError:  # one of them; found out one by one
        outcomes: list[Readable | StorageError] = []
        for key in keys:
            try:
                outcomes.append(await handle.driver.get(key))
            except StorageError as error:
                outcomes.append(error)
        return outcomes


class _Distinct:
    """Rows of which each is kept once; they are compared now and then."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._known = schema.empty_table()
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._num_waiting += rows.num_rows
        if self._num_waiting > max(_ROWS_AT_ONCE, self._known.num_rows):
            self.finish()

    def finish(self) -> pa.Table:
        """All rows so far, ascending by the first column."""
        rows = pa.concat_tables([self._known, pa.Table.from_batches(self._waiting, self._schema)])
        names = self._schema.names
        distinct = rows.group_by(names).aggregate([]).select(names).cast(self._schema)
        self._known = distinct.sort_by([(name, "ascending") for name in names])
        self._waiting, self._num_waiting = [], 0
        return self._known


# -- manifests


async def _checked_manifests(
    state: _State, listed: Listed, uses: pa.Table, entries: pa.Table
) -> AsyncIterator[tuple[CheckedManifest, list[Use]]]:
    """Every manifest, ascending by id."""
    manifests = listed.manifests
    for batch in _manifest_batches(manifests, uses, entries):
        keys = [layout.manifest_key(one.id) for one in batch if manifests.mark(one.id)]
        found = dict(zip(keys, await get_all(state.handle, keys), strict=True))
        for one in batch:
            key = layout.manifest_key(one.id)
            path = min((use.path for use in one.uses), default="")
            data = found.get(key)
            if data is None:
                detail = f"the manifest does not exist; {one.described}"
                state.log.add(FindingKind.MISSING_MANIFEST, key, detail, path)
                continue
            if isinstance(data, StorageError):
                detail = f"cannot be read: {data.message}"
                state.log.add(FindingKind.DAMAGED_MANIFEST, key, detail, path)
                continue
            note_sizes(state.log, one, len(data), path)
            state.checked["manifests"] += 1
            yield check_manifest_file(data, one.id, one.entries, one.uses), one.uses


class ManifestToCheck(NamedTuple):
    """A manifest, and what snapshots say of it."""

    id: ManifestId
    entries: list[ListedFile]
    uses: list[Use]

    @property
    def described(self) -> str:
        """For messages."""
        number = max((entry.num_chunk_refs for entry in self.entries), default=0)
        return f"it had {number:,} references" if number else "no snapshot says what it had"


def note_sizes(log: FindingLog, one: ManifestToCheck, size: int, path: str) -> None:
    """Readers fetch as many bytes as a snapshot says."""
    for other in sorted({entry.size_bytes for entry in one.entries} - {size}):
        detail = f"the file has {size:,} bytes, a snapshot says {other:,}"
        log.add(FindingKind.WRONG_MANIFEST_SIZE, layout.manifest_key(one.id), detail, path)


def _manifest_batches(
    manifests: ObjectTable, uses: pa.Table, entries: pa.Table
) -> Iterable[list[ManifestToCheck]]:
    """What is fetched at once. Both tables ascend by manifest, so they are walked side by side."""
    batch: list[ManifestToCheck] = []
    size = 0
    for one in manifests_to_check(uses, entries):
        batch.append(one)
        size += manifests.size_of(one.id)
        if size >= BYTES_AT_ONCE or len(batch) >= FILES_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def manifests_to_check(uses: pa.Table, entries: pa.Table) -> Iterable[ManifestToCheck]:
    """One item for each manifest of the two tables, which ascend by manifest."""
    users, listed = _Groups(uses), _Groups(entries)
    while users.key is not None or listed.key is not None:
        key = min(key for key in (users.key, listed.key) if key is not None)
        yield ManifestToCheck(
            ManifestId(key),
            [ListedFile(*row) for row in listed.take(key)],
            [Use(*row) for row in users.take(key)],
        )


class _Groups:
    """Rows of an ascending table, group by group; few at a time are Python objects."""

    def __init__(self, table: pa.Table) -> None:
        self._rows = self._walk(table)
        self._next = next(self._rows, None)

    @staticmethod
    def _walk(table: pa.Table) -> Any:
        for batch in table.to_batches(max_chunksize=4096):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    @property
    def key(self) -> bytes | None:
        return None if self._next is None else self._next[0]

    def take(self, key: bytes) -> list[Any]:
        """The rows of a group, if it is the next one; without their key."""
        found = []
        while self._next is not None and self._next[0] == key:
            found.append(self._next[1:])
            self._next = next(self._rows, None)
        return found


async def _read_chunks(
    state: _State,
    checked: CheckedManifest,
    uses: Sequence[Use],
    unread: UnreadChunks,
    chunks: ObjectTable,
) -> None:
    assert checked.manifest is not None
    for array in checked.manifest.arrays:
        users = [use for use in uses if use.node_id == array.node_id]
        refs = unread.take(array.refs, chunks, with_virtual=state.options.virtual_sources)
        path = min((use.path for use in users), default="")
        forms = sorted({use.form for use in users})
        found, size = await read_and_decode(state.handle, array.node_id, path, refs, forms)
        state.log.add_all(found)
        state.checked["chunks read"] += len(refs)
        state.checked["bytes read"] += size


# -- chunks, sources, and what nothing refers to


async def _check_sources(state: _State, sources: SourceTable) -> None:
    table = sources.finish()
    if not table.num_rows:
        return
    if not state.options.virtual_sources:
        state.checked["sources not checked"] = table.num_rows
        return
    state.log.add_all(await check_sources(state.handle, table))
    state.checked["sources"] += table.num_rows
