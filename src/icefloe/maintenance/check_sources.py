"""Virtual sources: whether each exists, is long enough and has its expected state.

One byte is requested: the last one that any reference needs, with the condition of the references.
So there is one request per source and expected state, and normally one state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from icefloe.errors import ErrorKind, IcechunkError, StorageError
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef
from icefloe.maintenance.check_manifest import SOURCES
from icefloe.maintenance.findings import Finding, FindingKind
from icefloe.maintenance.growing_table import GrowingTable
from icefloe.repo.handle import RepoHandle

_AT_ONCE = 256
_STATE = ["location", "etag", "last_modified"]

_NOT_ALLOWED = {
    ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
    ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
}


class SourceTable(GrowingTable):
    """Sources of many manifests, once per expected state; rows of `check_manifest.SOURCES`."""

    def __init__(self) -> None:
        super().__init__(SOURCES, _per_state)

    def finish(self, order: Sequence[str] | None = None) -> pa.Table:
        """All sources so far, ascending."""
        return super().finish(order or _STATE)


def _per_state(rows: pa.Table) -> pa.Table:
    """One row per source and expected state: how far it is needed, and where it is named."""
    grouped = rows.group_by(_STATE).aggregate(
        [("end", "max"), ("manifest_id", "min"), ("path", "min")]
    )
    names = [*_STATE, "end_max", "manifest_id_min", "path_min"]
    return grouped.select(names).rename_columns(SOURCES.names)


async def check_sources(handle: RepoHandle, sources: pa.Table) -> list[Finding]:
    """Request the last needed byte of every source."""
    found: list[Finding] = []
    for batch in sources.to_batches(max_chunksize=_AT_ONCE):
        rows = batch.to_pylist()
        refs = [_last_byte(row) for row in rows]
        for row, outcome in zip(rows, await handle.assets.virtual.fetch_all(refs), strict=True):
            if isinstance(outcome, IcechunkError):
                found.append(_finding(row, outcome))
    return found


async def dead_sources(handle: RepoHandle, sources: pa.Table) -> set[tuple[Any, ...]]:
    """Location, ETag and time of the sources that are missing, too short or changed.

    Raises:
        IcechunkError: a source could not be checked, so its state is unknown.
    """
    found: set[tuple[Any, ...]] = set()
    for batch in sources.to_batches(max_chunksize=_AT_ONCE):
        rows = batch.to_pylist()
        refs = [_last_byte(row) for row in rows]
        for row, outcome in zip(rows, await handle.assets.virtual.fetch_all(refs), strict=True):
            if not isinstance(outcome, IcechunkError):
                continue
            if _kind(outcome) not in _DEAD:
                raise outcome
            found.add((row["location"], row["etag"], row["last_modified"] or None))
    return found


def _last_byte(row: dict[str, object]) -> ChunkRef:
    end = int(row["end"])  # type: ignore[call-overload]
    start = max(0, end - 1)
    return ChunkRef(
        ChunkKind.VIRTUAL,
        start,
        end - start,
        location=str(row["location"]),
        etag=row["etag"],  # type: ignore[arg-type]
        last_modified=row["last_modified"] or None,  # type: ignore[arg-type]
    )


def _finding(row: dict[str, str], error: IcechunkError) -> Finding:
    return Finding.of(_kind(error), row["location"], error.message, row["path"])


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
