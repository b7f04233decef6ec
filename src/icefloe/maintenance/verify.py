"""`verify`: checks that everything a repository refers to exists, complete and consistent.

Refs lead to snapshots and logs, those to manifests, those to chunks and virtual sources. Chunk
objects are compared with one listing, without a request for each. Memory grows with the number of
stored objects and distinct sources (some tens of bytes each), not with references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from icefloe.format import layout
from icefloe.ids import SnapshotId
from icefloe.maintenance.check_files import (
    ManifestToCheck,
    check_fetched_manifest,
    check_fetched_snapshot,
    get_all,
    manifests_to_check,
    missing_pruned_log,
)
from icefloe.maintenance.check_manifest import CheckedManifest, Use
from icefloe.maintenance.check_refs import History, read_history
from icefloe.maintenance.check_snapshot import ENTRIES, USES, entries_of, uses_of
from icefloe.maintenance.check_sources import SourceTable, check_sources
from icefloe.maintenance.findings import DEFAULT_KEPT, FindingKind, FindingLog, VerifyReport
from icefloe.maintenance.growing_table import GrowingTable
from icefloe.maintenance.listing import StoredObjects, list_folder, list_strays
from icefloe.maintenance.object_table import ObjectTable
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.read_chunks import UnreadChunks, read_and_decode
from icefloe.observe import MAINTENANCE, observed
from icefloe.on_demand import on_demand
from icefloe.records import record
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import Driver

if TYPE_CHECKING:
    from icefloe.format.manifest.file import Manifest
    from icefloe.maintenance import verify_older
else:
    verify_older = on_demand("icefloe.maintenance.verify_older")

FILES_AT_ONCE = 64
BYTES_AT_ONCE = 64 << 20


@record(frozen=True)
class VerifyOptions:
    """What a verification checks besides metadata and the listing."""

    read_chunks: bool = False
    virtual_sources: bool = False
    orphans: bool = True
    max_findings: int = DEFAULT_KEPT


@record()
class Verification:
    """The state of a verification."""

    handle: RepoHandle
    options: VerifyOptions
    log: FindingLog
    report: Reporter
    checked: Counter[str] = field(default_factory=Counter)


class Listed(NamedTuple):
    """The folders that metadata refers to, listed after the repo object was read.

    So the listing has everything that the repo object refers to, unless it was deleted.
    """

    snapshots: ObjectTable
    logs: ObjectTable
    manifests: ObjectTable
    chunks: ObjectTable


@observed("verify", MAINTENANCE)
async def verify(handle: RepoHandle, options: VerifyOptions, report: Reporter) -> VerifyReport:
    """Check everything that is reachable from the refs of a repository."""
    handle = replace(handle, assets=handle.assets.past_disk_cache())
    state = Verification(handle, options, FindingLog(max(1, options.max_findings)), report)
    if not handle.family.has_spec_folders:
        return await verify_older.verify_older(state)
    return await _check_history(state, await read_history(handle, state.log))


async def verify_history(handle: RepoHandle, history: History, report: Reporter) -> VerifyReport:
    """Check the snapshots of a repository that cannot be opened yet, and all they refer to."""
    options = VerifyOptions(orphans=False)
    return await _check_history(Verification(handle, options, FindingLog(), report), history)


async def _check_history(state: Verification, history: History) -> VerifyReport:
    handle, options = state.handle, state.options
    listed = await _list_all(handle, state)
    if history.is_lost:  # the snapshots in use are unknown
        history.snapshots += [SnapshotId(row.tobytes()) for row in listed.snapshots.id]
    uses, entries = await _check_snapshots(state, history, listed)
    sources = SourceTable()
    unread = UnreadChunks()
    async for checked, users in _checked_manifests(state, listed, uses, entries):
        state.log.add_all(checked.findings)
        listed.chunks.refer(checked.native)
        if checked.manifest is None:
            continue
        state.checked["manifests"] += 1
        state.checked["references"] += checked.manifest.num_chunk_refs
        sources.add(checked.sources)
        if options.read_chunks:
            await read_chunks(state, checked.manifest, users, unread, listed.chunks)
    listed.chunks.note_problems(state.log)
    await check_all_sources(state, sources)
    if options.orphans:
        for table in listed:
            table.note_orphans(state.log)
    return VerifyReport.of(state.log, state.checked)


async def _list_all(handle: RepoHandle, state: Verification) -> Listed:
    tables = []
    for folder in (layout.SNAPSHOTS, layout.TRANSACTIONS, layout.MANIFESTS, layout.CHUNKS):
        found = await list_folder(handle.driver, folder)
        state.checked["objects"] += len(found)
        state.report.tell("listing", state.checked["objects"])
        note_strange(state.log, found)
        tables.append(ObjectTable(found))
    await note_strays(handle.driver, state.log)
    return Listed(*tables)


async def note_strays(driver: Driver, log: FindingLog) -> None:
    """Objects outside of the repository's folders."""
    async for key in list_strays(driver):
        log.add(
            FindingKind.FOREIGN_OBJECT,
            key,
            "it is in no folder of the repository, so no version has it; zarr.open writes such "
            "files into the folder of a repository: write to session.store instead",
        )


def note_strange(log: FindingLog, found: StoredObjects) -> None:
    """Objects whose names are not ids. Readers never request them."""
    for name in found.strange_names:
        log.add(FindingKind.FOREIGN_OBJECT, found.folder + name, "the name is no id")


# -- snapshots and logs


async def _check_snapshots(
    state: Verification, history: History, listed: Listed
) -> tuple[pa.Table, pa.Table]:
    """Check snapshots with their logs. Returns the manifests they use and list."""
    uses, entries = GrowingTable(USES), GrowingTable(ENTRIES)
    total = len(history.snapshots)
    for first in range(0, total, FILES_AT_ONCE):
        state.report.tell("reading snapshots", first, total)
        batch = history.snapshots[first : first + FILES_AT_ONCE]
        keys = [layout.snapshot_key(one) for one in batch if listed.snapshots.mark(one)]
        keys += [layout.transaction_log_key(one) for one in batch if listed.logs.mark(one)]
        found = dict(zip(keys, await get_all(state.handle, keys), strict=True))
        for one in batch:
            checked = check_fetched_snapshot(
                history,
                one,
                found.get(layout.snapshot_key(one)),
                found.get(layout.transaction_log_key(one)),
            )
            state.log.add_all(checked.findings)
            state.checked["logs"] += checked.num_logs
            if checked.snapshot is not None:
                state.checked["snapshots"] += 1
                uses.add(uses_of(checked.snapshot, with_forms=state.options.read_chunks))
                entries.add(entries_of(checked.snapshot))
    for one in history.pruned:
        if not listed.logs.mark(one):
            state.log.add_all([missing_pruned_log(one)])
    return uses.finish(), entries.finish()


# -- manifests


async def _checked_manifests(
    state: Verification, listed: Listed, uses: pa.Table, entries: pa.Table
) -> AsyncIterator[tuple[CheckedManifest, list[Use]]]:
    """Check every manifest, ascending by id."""
    manifests, done = listed.manifests, 0
    for batch in _manifest_batches(manifests, uses, entries):
        state.report.tell("reading manifests", done, len(manifests))
        done += len(batch)
        keys = [layout.manifest_key(one.id) for one in batch if manifests.mark(one.id)]
        found = dict(zip(keys, await get_all(state.handle, keys), strict=True))
        for one in batch:
            yield check_fetched_manifest(one, found.get(layout.manifest_key(one.id))), one.uses


def _manifest_batches(
    manifests: ObjectTable, uses: pa.Table, entries: pa.Table
) -> Iterable[list[ManifestToCheck]]:
    """Batches to fetch at once. Both tables ascend by manifest and are walked in parallel."""
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


async def read_chunks(
    state: Verification,
    manifest: Manifest,
    uses: Sequence[Use],
    unread: UnreadChunks,
    chunks: ObjectTable,
) -> None:
    """Read and decode the chunks of a manifest that were not read yet."""
    for array in manifest.arrays:
        users = [use for use in uses if use.node_id == array.node_id]
        refs = unread.take(array.refs, chunks, with_virtual=state.options.virtual_sources)
        path = min((use.path for use in users), default="")
        forms = sorted({use.form for use in users})
        found, size = await read_and_decode(state.handle, array.node_id, path, refs, forms)
        state.log.add_all(found)
        state.checked["chunks read"] += len(refs)
        state.checked["bytes read"] += size
        state.report.tell("reading chunks", state.checked["chunks read"])


# -- chunks, sources, and what nothing refers to


async def check_all_sources(state: Verification, sources: SourceTable) -> None:
    """Ask every virtual source, if that is wanted."""
    table = sources.finish()
    if not table.num_rows:
        return
    if not state.options.virtual_sources:
        state.checked["sources not checked"] = table.num_rows
        return
    state.report.tell("asking sources", 0, table.num_rows)
    state.log.add_all(await check_sources(state.handle, table))
    state.checked["sources"] += table.num_rows
