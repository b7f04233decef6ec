"""Items of work, spread over tasks that write into one session."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from icefloe.api.session import ForkSession, Session
from icefloe.changes.split_grid import ChunkSpan
from icefloe.display.shown import Picture, Shown, counted, qualified, size_text
from icefloe.errors import InvalidInputError, ReadOnlyError
from icefloe.spark.writes import ref_blocks
from icefloe.spark.writes.map_items import map_items
from icefloe.spark.writes.shared_write import TaskSide, share

Work = Callable[[ForkSession, Any], Any]
"""What is done for one item: writes through the fork's store. What it returns, unless it is empty,
comes back in `WriteReport.told`."""


class ShownWrite(Shown):
    """Reports of writes show what was written, and where to find it."""

    __slots__ = ()

    def _picture_(self) -> Picture:
        report: Any = self
        commit = getattr(report, "snapshot_id", None) or "none, the changes wait in the session"
        written = counted(report.chunks_written, "chunk")
        fields = [
            ("commit", commit),
            ("written", f"{written} ({size_text(report.bytes_written)})"),
            ("seconds", f"{report.seconds:.1f}"),
        ]
        return Picture(qualified(f"spark.{type(self).__name__}"), fields)


@dataclass(frozen=True, slots=True, repr=False)
class WriteReport(ShownWrite):
    """What a distributed write did. Nothing of it is visible before the session is committed."""

    chunks_written: int
    bytes_written: int
    seconds: float
    told: tuple[Any, ...] = ()


def write_items(
    spark: SparkSession,
    session: Session,
    items: Sequence[Any],
    work: Work,
    *,
    num_tasks: int | None = None,
    chunks: Mapping[str, ChunkSpan] | None = None,
) -> WriteReport:
    """Do `work` for every item on the executors, and put the outcome into the session.

    `chunks` are those that may be set, by path of array.
    """
    require_writable(session)
    started = time.monotonic()
    if not items:
        return WriteReport(0, 0, 0.0)
    shared = share(session, chunks or {})
    run = partial(_write_task, shared.tasks, work)
    counts, told = shared.run_told(map_items(spark, items, run, ref_blocks.DDL, num_tasks))
    return WriteReport(counts.chunks, counts.bytes, time.monotonic() - started, tuple(told))


def _write_task(
    tasks: TaskSide, work: Work, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for item in batch.column("item"):
            told = work(tasks.fork, pickle.loads(item.as_py()))
            yield tasks.drain()
            if told:
                yield ref_blocks.told_batch(told)


def require_writable(session: Session) -> None:
    """Refuse a session that could not take the changes, before any work is done."""
    if not isinstance(session, Session):
        raise InvalidInputError(
            f"session is a {type(session).__name__}, expected a writable Session "
            "(repository.writable_session(branch))"
        )
    if session.read_only:
        raise ReadOnlyError("the session only reads; open a writable_session to write with Spark")
