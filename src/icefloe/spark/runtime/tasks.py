"""Functions that run on Spark's Python workers."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # workers have no use for them
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Work = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]

_known_modules = 0


def map_batches(rows: DataFrame, work: Callable[..., Any], schema: StructType | str) -> DataFrame:
    """What `work` makes of the rows, batch by batch: `mapInArrow`, with less to pay per task."""
    return rows.mapInArrow(partial(_run, work), schema)


def _run(work: Work, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    yield from work(batches)


def prepare_worker() -> None:
    """What a task does first."""
    _set_modules_aside()
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


def _set_modules_aside() -> None:
    """Spare the garbage collector what modules consist of.

    Spark lets a worker collect garbage after every task. Looking through the modules of Arrow, Zarr
    and Spark takes 40 to 80 ms, more than a small task does. None of them is ever garbage, so they
    are set aside when a task starts, and again after a task that imported more.
    """
    global _known_modules  # noqa: PLW0603 - workers run one task at a time
    if len(sys.modules) > _known_modules:
        gc.freeze()
        _known_modules = len(sys.modules)
