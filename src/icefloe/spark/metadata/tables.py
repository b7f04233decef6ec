"""`table`: what a repository knows about itself, as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from icefloe.api.repository import Repository
from icefloe.errors import InvalidInputError
from icefloe.scans.options import DEFAULT_MIN_PARTITIONS
from icefloe.scans.pinned import PinnedSnapshot, as_repository, pin
from icefloe.scans.scan import FixedRows, Scan
from icefloe.spark.metadata import changes, files
from icefloe.spark.metadata import repo as repo_tables
from icefloe.spark.metadata import snapshot as snapshot_tables
from icefloe.spark.metadata.changes import plan_changes
from icefloe.spark.metadata.files import Files, files_dataframe
from icefloe.spark.metadata.snapshot import SnapshotRows, plan_chunk_refs
from icefloe.spark.reads.reading import check_session, to_dataframe
from icefloe.spark.runtime.spark_session import parallelism

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


def table(
    spark: SparkSession,
    repository: Repository | str,
    name: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    start_snapshot_id: str | None = None,
) -> DataFrame:
    """A table of metadata.

    ===========  ================================================================================
    `snapshots`  every snapshot, with its message, metadata and the refs that point at it
    `refs`       branches and tags
    `ops`        the operations log (spec version 2)
    `files`      every object with its size, and whether anything refers to it
    `history`    the ancestors of a ref, and what its branch left behind
    `nodes`      groups and arrays of a snapshot
    `manifests`  manifest files of a snapshot, and the arrays they hold
    `chunks`     every chunk reference of a snapshot; read by as many tasks as there are manifests
    `changes`    what every commit up to a ref did, a row a node or chunk
    ===========  ================================================================================

    The last five are about one ref, `main` unless it is given. `start_snapshot_id` lets `changes`
    begin after that snapshot. Snapshots, refs and the log are taken now, at this call.
    """
    check_session(spark)
    check_table(name)
    opened = as_repository(repository)
    ref = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    check_ref(name, {**ref, "start_snapshot_id": start_snapshot_id})
    source = pin(opened, **ref)  # type: ignore[arg-type]
    tasks = parallelism(spark)
    if name == "files":
        return files_dataframe(spark, source, tasks)
    named = branch or (None if tag or snapshot_id else "main")
    return to_dataframe(
        spark, plan_table(source, name, named, start=start_snapshot_id, min_partitions=tasks)
    )


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
