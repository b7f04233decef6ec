"""The table `files`, spread over tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icefloe.scans.metadata.files import (
    KEYS,
    LISTED,
    REFERRED,
    chunks_task,
    known_keys,
    list_task,
    prefixes,
    referred_task,
)
from icefloe.scans.metadata.repo import all_snapshots
from icefloe.scans.pinned import PinnedSnapshot
from icefloe.spark.runtime.tasks import map_batches
from icefloe.spark.spark_types import spark_schema


def files_dataframe(spark: SparkSession, source: PinnedSnapshot, num_tasks: int) -> DataFrame:
    """The rows of `Files`, by tasks that list, follow references, and a join."""
    repository = source.open_repository()
    handle = repository.handle

    def stage(
        items: Sequence[str], task: Callable[..., Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> DataFrame:
        table = pa.table({"item": pa.array(items, pa.string())})
        made = spark.createDataFrame(table).repartition(min(num_tasks, max(len(items), 1)), "item")
        return map_batches(made, partial(task, source), spark_schema(schema))

    listed = stage(prefixes(handle), list_task, LISTED)
    ids = [info.id for info in all_snapshots(repository)]
    referred = stage(ids, referred_task, REFERRED).dropDuplicates(["key", "manifest_id"])
    manifests = referred.where("manifest_id is not null").repartition(num_tasks, "key")
    chunks = map_batches(manifests, partial(chunks_task, source), spark_schema(KEYS))
    known = spark.createDataFrame(pa.table({"key": pa.array(known_keys(repository))}))
    live = referred.select("key").union(chunks).union(known).distinct()
    live = live.withColumn("is_referenced", sf.lit(True))
    joined = listed.join(live, listed["path"] == live["key"], "left")
    return joined.select(
        *LISTED.names,
        sf.coalesce("is_referenced", sf.lit(False)).alias("is_referenced"),
    )
