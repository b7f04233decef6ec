"""Items of work as tasks of Spark: neighbours go to the same task, in their order."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icefloe.format.columns.blob_column import BlobColumn
from icefloe.spark.runtime.spark_session import parallelism
from icefloe.spark.runtime.tasks import map_batches

_ITEMS = "task bigint, item binary"
_TASKS_PER_SLOT = 4  # so that a slow task does not leave the others idle at the end
_MAX_CARRIED_BYTES = 1 << 20

Batches = Iterable[pa.RecordBatch]
Work = Callable[[Batches], Iterator[pa.RecordBatch]]
"""Gets batches with a column `item` of pickled items."""


def tasks_for(spark: SparkSession, num_items: int, items_a_task: int) -> int:
    """How many tasks there should be: enough for every slot known, and more for more work.

    Slots come and go under dynamic allocation, and Spark Connect does not tell of them.
    """
    return max(parallelism(spark) * _TASKS_PER_SLOT, -(-num_items // items_a_task))


def map_items(
    spark: SparkSession, items: Sequence[Any], work: Work, ddl: str, num_tasks: int | None = None
) -> DataFrame:
    """What tasks make of the items, as rows of the types that `ddl` names.

    Few items travel with the function: rows that Spark has to bring into order cost two more
    stages, which is all the time that a small job takes. Many would be sent to every task.
    """
    tasks = min(len(items), num_tasks or parallelism(spark) * _TASKS_PER_SLOT)
    pickled = [pickle.dumps(item) for item in items]
    if sum(map(len, pickled)) <= _MAX_CARRIED_BYTES:
        first = [-(-task * len(items) // tasks) for task in range(tasks + 1)]
        parts = [pickled[start:stop] for start, stop in pairwise(first)]
        return map_batches(spark.range(0, tasks, 1, tasks), partial(_carried, parts, work), ddl)
    table = pa.table(
        {
            "task": pa.array([at * tasks // len(items) for at in range(len(items))], pa.int64()),
            "item": pa.array(pickled, pa.binary()),
        }
    )
    rows = spark.createDataFrame(table, _ITEMS).repartitionByRange(tasks, "task")
    return map_batches(rows, work, ddl)


def _carried(parts: list[list[bytes]], work: Work, batches: Batches) -> Iterator[pa.RecordBatch]:
    yield from work(
        pa.record_batch([BlobColumn.from_values(parts[task]).to_arrow()], ["item"])
        for batch in batches
        for task in batch.column("id").to_pylist()
    )
