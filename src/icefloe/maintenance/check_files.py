"""Checks of fetched files against what refers to them.

Local and distributed verification fetch files in different ways and share these checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from icefloe.errors import StorageError
from icefloe.format import layout
from icefloe.format.snapshot.file import Snapshot
from icefloe.ids import ManifestId, SnapshotId
from icefloe.maintenance.check_manifest import (
    CheckedManifest,
    ListedFile,
    Use,
    check_manifest_file,
    nothing_referred_to,
)
from icefloe.maintenance.check_refs import History
from icefloe.maintenance.check_snapshot import check_log_file, check_snapshot_file
from icefloe.maintenance.findings import Finding, FindingKind
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import Readable

Fetched = Readable | StorageError | None
"""The bytes of a file, its error, or None if it does not exist."""


async def get_all(handle: RepoHandle, keys: Sequence[str]) -> list[Readable | StorageError]:
    """The bytes of each object, or its error."""
    try:
        return list(await handle.driver.get_many([(key, None) for key in keys]))
    except StorageError:  # one of them failed; read them one by one
        outcomes: list[Readable | StorageError] = []
        for key in keys:
            try:
                outcomes.append(await handle.driver.get(key))
            except StorageError as error:
                outcomes.append(error)
        return outcomes


class FetchedSnapshot(NamedTuple):
    """A snapshot and its log, if they could be decoded."""

    snapshot: Snapshot | None
    findings: list[Finding]
    num_logs: int


def check_fetched_snapshot(
    history: History, snapshot_id: SnapshotId, data: Fetched, log: Fetched
) -> FetchedSnapshot:
    """Check a referenced snapshot and its log."""
    key, log_key = layout.snapshot_key(snapshot_id), layout.transaction_log_key(snapshot_id)
    snapshot, found = None, []
    if data is None:
        kind = FindingKind.MISSING_SNAPSHOT
        if snapshot_id in history.names:
            kind = FindingKind.DANGLING_REF
        detail = f"the snapshot does not exist; {history.named_by(snapshot_id)}"
        found.append(Finding.of(kind, key, detail))
    elif isinstance(data, StorageError):
        detail = f"cannot be read: {data.message}"
        found.append(Finding.of(FindingKind.DAMAGED_SNAPSHOT, key, detail))
    else:
        snapshot, findings = check_snapshot_file(data, snapshot_id, history.info(snapshot_id))
        found += findings
    if snapshot is not None:
        parent = history.parent_of(snapshot)
        if parent is not None and history.times.get(parent, -1) >= snapshot.flushed_at:
            detail = f"its parent {parent} was flushed at or after the time of the snapshot"
            found.append(Finding.of(FindingKind.PARENT_IS_NEWER, key, detail))
    if isinstance(log, StorageError):
        found.append(Finding.of(FindingKind.DAMAGED_LOG, log_key, f"cannot be read: {log.message}"))
    elif log is not None:
        found += check_log_file(log, snapshot_id, snapshot)
        return FetchedSnapshot(snapshot, found, 1)
    elif history.needs_log(snapshot_id, snapshot):
        detail = "the log of a commit does not exist"
        found.append(Finding.of(FindingKind.MISSING_LOG, log_key, detail))
    return FetchedSnapshot(snapshot, found, 0)


def missing_pruned_log(snapshot_id: SnapshotId) -> Finding:
    """The finding for the missing log of an expired commit."""
    detail = "the log of an expired commit is gone; differences across it are unknown"
    key = layout.transaction_log_key(snapshot_id)
    return Finding.of(FindingKind.MISSING_PRUNED_LOG, key, detail)


class ManifestToCheck(NamedTuple):
    """A manifest, and its entries in snapshots."""

    id: ManifestId
    entries: list[ListedFile]
    uses: list[Use]

    @property
    def described(self) -> str:
        """For messages."""
        number = max((entry.num_chunk_refs for entry in self.entries), default=0)
        return f"it had {number:,} references" if number else "no snapshot says what it had"


def check_fetched_manifest(one: ManifestToCheck, data: Fetched) -> CheckedManifest:
    """Check a referenced manifest."""
    key = layout.manifest_key(one.id)
    path = min((use.path for use in one.uses), default="")
    if data is None or isinstance(data, StorageError):
        kind, detail = FindingKind.MISSING_MANIFEST, f"the manifest does not exist; {one.described}"
        if data is not None:
            kind, detail = FindingKind.DAMAGED_MANIFEST, f"cannot be read: {data.message}"
        return CheckedManifest(None, [Finding.of(kind, key, detail, path)], *nothing_referred_to())
    checked = check_manifest_file(data, one.id, one.entries, one.uses)
    # Readers fetch as many bytes as a snapshot says.
    for other in sorted({entry.size_bytes for entry in one.entries} - {len(data)}):
        detail = f"the file has {len(data):,} bytes, a snapshot says {other:,}"
        kind = FindingKind.WRONG_MANIFEST_SIZE
        checked.findings.append(Finding.of(kind, key, detail, path))
    return checked


def manifests_to_check(uses: pa.Table, entries: pa.Table) -> Iterable[ManifestToCheck]:
    """One item per manifest of the two tables, which ascend by manifest."""
    users, listed = _Groups(uses), _Groups(entries)
    while users.key is not None or listed.key is not None:
        key = min(key for key in (users.key, listed.key) if key is not None)
        yield ManifestToCheck(
            ManifestId(key),
            [ListedFile(*row) for row in listed.take(key)],
            [Use(*row) for row in users.take(key)],
        )


class _Groups:
    """Rows of an ascending table, group by group. Only few at a time are Python objects."""

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
        """The rows of a group without their key, if it is the next group."""
        found = []
        while self._next is not None and self._next[0] == key:
            found.append(self._next[1:])
            self._next = next(self._rows, None)
        return found
