"""`table`: what a repository knows about itself, as DataFrames."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from icefloe.api.repository import Repository
from icefloe.scans.metadata.tables import check_ref, check_table, plan_table
from icefloe.scans.pinned import as_repository, pin
from icefloe.spark.metadata.spread_files import files_dataframe
from icefloe.spark.reads.reading import check_session, to_dataframe
from icefloe.spark.runtime.spark_session import parallelism


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

    Args:
        spark: the session; `icefloe.spark.session()` makes one.
        repository: a `Repository`, or its URL.
        name: one of the names above.
        branch: `main` unless another ref is given.
        tag: the version, instead of a branch.
        snapshot_id: the version, instead of a branch.
        as_of: with a branch, its newest snapshot at that time.
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
