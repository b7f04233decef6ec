"""How functions run on workers, over items, with their errors."""

from __future__ import annotations

import gc
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, types

from icefloe import errors
from icefloe.format.columns import BlobColumn
from icefloe.spark.start import parallelism
from icefloe.spark.versions import from_arrow, to_arrow

Batches = Iterable[pa.RecordBatch]
_known_modules = 0


def map_batches(
    rows: DataFrame, work: Callable[..., Any], schema: types.StructType | str
) -> DataFrame:
    """What `work` makes of the rows, batch by batch: `mapInArrow`, with less to pay per task."""
    return rows.mapInArrow(partial(_run, work), schema)


def _run(work: Callable[..., Any], batches: Batches) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    yield from work(batches)


def prepare_worker() -> None:
    """What a task does first: it spares the garbage collector what modules consist of.

    Spark lets a worker collect garbage after every task. Looking through the modules of Arrow, Zarr
    and Spark takes 40 to 80 ms, more than a small task does. None of them is ever garbage, so they
    are set aside when a task starts, and again after a task that imported more.
    """
    global _known_modules  # noqa: PLW0603 - workers run one task at a time
    if len(sys.modules) > _known_modules:
        gc.freeze()
        _known_modules = len(sys.modules)
    be_quiet_about_pipes()


def be_quiet_about_pipes() -> None:
    """In a worker: let Spark's daemon, from which it was forked, print no closed pipes."""
    daemon: Any = sys.modules["__main__"]
    if getattr(getattr(daemon, "__spec__", None), "name", "") == "pyspark.daemon":
        daemon.traceback = _QuietAboutPipes


class _QuietAboutPipes:
    """The module `traceback`, as Spark's daemon uses it, without pipes that Spark has closed.

    A query that has enough rows (`LIMIT`, `first`, `show`) closes the pipe of a task that has more
    to say, and a driver that knows a source's schema or plan does so before the last byte. From
    version 4.1 on Spark's own daemon prints a traceback of that. It prints no errors of tasks: they
    go to the driver.
    """

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the exception that ends a worker."""
        if not isinstance(sys.exception(), ConnectionError):
            traceback.print_exc()


# -- Jobs that write: errors of tasks come back as they were, lost executors repeat the job.
#
# Spark hands on the text of a task's traceback, inside an exception of its own.


_RAISED = re.compile(r"\bicefloe\.errors\.(\w+): (.*)")
_ABANDONED = "indeterminate output"
_MAX_RUNS = 3


@contextmanager
def as_raised() -> Iterator[None]:
    """Raise the error of icefloe that made a task fail, instead of Spark's report of it."""
    try:
        yield
    except PySparkException as report:
        error = _find_error(str(report))
        if error is None:
            raise
        raise error from report


def collect_repeatable(rows: DataFrame) -> pa.Table:
    """The rows of a job whose tasks may run any number of times.

    New chunks have random ids, so a repeated task never returns what it returned before. Spark
    gives a job up if an executor is lost whose rows some tasks of the next stage have read and
    others have not. The whole job then runs again, a few times at most; only its last run counts.
    """
    for _ in range(_MAX_RUNS - 1):
        try:
            with as_raised():
                return to_arrow(rows)
        except (PySparkException, Py4JJavaError) as report:
            if _ABANDONED not in str(report):
                raise
    with as_raised():
        return to_arrow(rows)


def _find_error(text: str) -> errors.IcechunkError | None:
    """The last error in the text: what was raised before it is its cause."""
    for name, message in reversed(_RAISED.findall(text)):
        kind: type[errors.IcechunkError] | None = getattr(errors, name, None)
        # A conflict is made of more than its message, and no task commits.
        if kind is not None and not issubclass(kind, errors.ConflictError):
            return kind(message.strip())
    return None


_TASKS_PER_SLOT = 4
_MAX_CARRIED_BYTES = 1 << 20

ItemWork = Callable[[Batches], Iterator[pa.RecordBatch]]
"""Gets batches with a column `item` of pickled items."""
ResultWork = Callable[[Iterator[Any]], Iterator[Any]]
"""Gets the items themselves, and makes any number of results of them."""


def usual_tasks(spark: SparkSession) -> int:
    """Enough tasks for every slot, and more, so that a slow one does not leave others idle."""
    return parallelism(spark) * _TASKS_PER_SLOT


def tasks_for(spark: SparkSession, num_items: int, items_a_task: int) -> int:
    """How many tasks there should be: enough for every slot known, and more for more work.

    Slots come and go under dynamic allocation, and Spark Connect does not tell of them.
    """
    return max(usual_tasks(spark), -(-num_items // items_a_task))


def map_items(
    spark: SparkSession,
    items: Sequence[Any],
    work: ItemWork,
    schema: types.StructType | str,
    num_tasks: int | None = None,
) -> DataFrame:
    """What tasks make of the items, as rows of a schema.

    Few items travel with the function: rows that Spark has to bring into order cost two more
    stages, which is all the time that a small job takes. Many would be sent to every task.
    """
    tasks = min(len(items), num_tasks or usual_tasks(spark))
    pickled = [pickle.dumps(item) for item in items]
    if sum(map(len, pickled)) <= _MAX_CARRIED_BYTES:
        first = [-(-task * len(items) // tasks) for task in range(tasks + 1)]
        parts = [pickled[start:stop] for start, stop in pairwise(first)]
        return map_batches(spark.range(0, tasks, 1, tasks), partial(_carried, parts, work), schema)
    table = pa.table(
        {
            "task": pa.array([at * tasks // len(items) for at in range(len(items))], pa.int64()),
            "item": pa.array(pickled, pa.binary()),
        }
    )
    rows = from_arrow(spark, table)
    return map_batches(rows.repartitionByRange(tasks, "task"), work, schema)


def _carried(
    parts: list[list[bytes]], work: ItemWork, batches: Batches
) -> Iterator[pa.RecordBatch]:
    yield from work(
        pa.record_batch([BlobColumn.from_values(parts[task]).to_arrow()], ["item"])
        for batch in batches
        for task in batch.column("id").to_pylist()
    )


def items_in(batches: Batches) -> Iterator[Any]:
    """The items of a task."""
    return (pickle.loads(item.as_py()) for batch in batches for item in batch.column("item"))


def map_results(
    spark: SparkSession, items: Sequence[Any], work: ResultWork, num_tasks: int | None = None
) -> Iterator[Any]:
    """What tasks make of the items, in no particular order. Results are few, and pickled."""
    if items:
        rows = map_items(spark, items, partial(_pickled, work), "result binary", num_tasks)
        with as_raised():
            found = to_arrow(rows)
        yield from map(pickle.loads, found["result"].to_pylist())


def _pickled(work: ResultWork, batches: Batches) -> Iterator[pa.RecordBatch]:
    for result in work(items_in(batches)):
        pickled = BlobColumn.from_values([pickle.dumps(result)])
        yield pa.record_batch([pickled.to_arrow()], ["result"])
