"""The tables about a repository: their columns, and the scan of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefloe.errors import InvalidInputError
from icefloe.scans.metadata import changes, files
from icefloe.scans.metadata import repo as repo_tables
from icefloe.scans.metadata import snapshot as snapshot_tables
from icefloe.scans.metadata.changes import plan_changes
from icefloe.scans.metadata.files import Files
from icefloe.scans.metadata.snapshot import SnapshotRows, plan_chunk_refs
from icefloe.scans.options import DEFAULT_MIN_PARTITIONS
from icefloe.scans.pinned import PinnedSnapshot
from icefloe.scans.scan import FixedRows, Scan

OF_REPOSITORY = {
    "snapshots": repo_tables.SNAPSHOTS,
    "refs": repo_tables.REFS,
    "ops": repo_tables.OPS,
    "files": files.SCHEMA,
}
OF_SNAPSHOT = {
    "history": repo_tables.HISTORY,
    "nodes": snapshot_tables.NODES,
    "manifests": snapshot_tables.MANIFESTS,
    "chunks": snapshot_tables.CHUNKS,
    "changes": changes.SCHEMA,
}
TABLES = {**OF_REPOSITORY, **OF_SNAPSHOT}
"""The columns of every table."""


def plan_table(
    source: PinnedSnapshot,
    name: str,
    branch: str | None,
    *,
    start: str | None = None,
    min_partitions: int = DEFAULT_MIN_PARTITIONS,
) -> Scan:
    """The scan of a table; `branch` if the snapshot was named by one."""
    repository = source.open_repository()
    if name == "snapshots":
        return FixedRows(repo_tables.snapshots(repository))
    if name == "refs":
        return FixedRows(repo_tables.refs(repository))
    if name == "ops":
        return FixedRows(repo_tables.ops(repository))
    if name == "history":
        return FixedRows(repo_tables.history_of(repository, source.snapshot_id, branch))
    if name == "files":
        return Files(source)
    if name == "chunks":
        return plan_chunk_refs(source)
    if name == "changes":
        return plan_changes(source, start, min_partitions)
    return SnapshotRows(source, name)


def check_table(name: Any) -> None:
    """Refuse a table that does not exist."""
    if name not in TABLES:
        raise InvalidInputError(f"no table {name!r:.80}; tables are {', '.join(TABLES)}")


def check_ref(name: str, given: Mapping[str, Any]) -> None:
    """Refuse a ref for a table that is not about one."""
    named = [key for key, value in given.items() if value is not None]
    if name in OF_REPOSITORY and named:
        raise InvalidInputError(
            f"table {name!r} is about the whole repository; {named[0]} cannot be given"
        )
    if name != "changes" and any(key.startswith("start") for key in named):
        raise InvalidInputError(f"a start is for table 'changes', not for {name!r}")
