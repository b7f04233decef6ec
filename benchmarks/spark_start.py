"""Fresh Spark sessions: the time to the first row, and ingests with more and more executors.

    python -m benchmarks.spark_start first       a job of one task, until its row is here
    python -m benchmarks.spark_start executors   an ingest with 1, 2 and 4 executors of one slot

Each figure is taken in a process of its own. The time that Spark itself takes to start is not part
of it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr

import icefloe
import icefloe.spark
from benchmarks.measure import run_in_process
from benchmarks.spark_files import make_grids
from benchmarks.spark_rows import Row, Times, cpu_seconds

EXECUTORS = (1, 2, 4)
_FILES = 16


# --- the first row ----------------------------------------------------------------------------


def _plain(_: Any) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array(np.zeros(4, "f4"))], ["v"])


def first_row(side: str, folder: str) -> Times:
    """A job of one task in a session that has run none."""
    spark = icefloe.spark.session("local[1]", progress=False)
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(folder))
    before, started = sum(cpu_seconds().values()), time.perf_counter()
    if side == "ours":
        frame = icefloe.spark.read(spark, repository, variables=["v"], columns=["v"])
    elif side == "table":
        frame = icefloe.spark.table(spark, repository, "chunks")
    else:
        frame = spark.range(0, 1, 1, 1).mapInArrow(_plain, "v float")
    assert frame.head() is not None
    seconds = time.perf_counter() - started
    used = sum(cpu_seconds().values()) - before
    spark.stop()
    return Times(seconds, used)


def first_rows(rounds: int) -> Iterator[Row]:
    """Ours against a function that yields one small batch and imports Arrow alone."""
    with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as folder:
        storage = icefloe.local_filesystem_storage(folder, durable=False)
        session = icefloe.Repository.create(storage).writable_session("main")
        root = zarr.open_group(session.store, mode="w")
        root.create_array("v", data=np.ones(4, "f4"), dimension_names=("x",))
        session.commit("an array")
        found: dict[str, list[Times]] = {"plain": [], "ours": [], "table": []}
        for _ in range(rounds):
            for side, times in found.items():
                times.append(_in_process("row", side, folder))
    plain = _least(found["plain"])
    for side, name in (("ours", "first row of an array"), ("table", "first row of `chunks`")):
        yield Row(name, _least(found[side]), "plain PySpark", plain, 1, "rows")


# --- executors --------------------------------------------------------------------------------


def ingest_with(executors: str, folder: str) -> Times:
    """The second ingest of a session: the first one starts the workers."""
    files = Path(folder) / "files"
    spark = icefloe.spark.session(f"local-cluster[{executors},1,1024]", progress=False)
    for number in range(2):
        target = Path(folder) / f"{executors} {number}"
        storage = icefloe.local_filesystem_storage(str(target), durable=False)
        repository = icefloe.Repository.create(storage)
        before, started = sum(cpu_seconds().values()), time.perf_counter()
        icefloe.spark.ingest(spark, str(files / "*.nc"), repository, concat_dim="time")
        seconds = time.perf_counter() - started
        used = sum(cpu_seconds().values()) - before
    spark.stop()
    return Times(seconds, used)


def scaling_rows(rounds: int) -> Iterator[Row]:
    """More executors against one. More of them than cores can only show that nothing breaks."""
    found: dict[int, list[Times]] = {count: [] for count in EXECUTORS}
    with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as name:
        nbytes = make_grids(Path(name) / "files", _FILES, "floats")
        for _ in range(rounds):
            for count, times in found.items():
                with tempfile.TemporaryDirectory(dir=name) as folder:
                    (Path(folder) / "files").symlink_to(Path(name) / "files")
                    times.append(_in_process("ingest", str(count), folder))
    one = _least(found[EXECUTORS[0]])
    for count in EXECUTORS[1:]:
        yield Row(
            f"native ingest of {_FILES} files by {count} executors",
            _least(found[count]),
            "1 executor",
            one,
            nbytes / 1e6,
            "MB",
            target=None,
            note=f"icefloe against itself, on {os.cpu_count()} cores",
        )


# --- processes --------------------------------------------------------------------------------


def _in_process(what: str, *arguments: str) -> Times:
    printed = run_in_process(__spec__.name, what, *arguments)
    (line,) = (one for one in printed.splitlines() if one.startswith("times "))
    return Times(*json.loads(line.removeprefix("times ")))


def _least(times: list[Times]) -> Times:
    return Times(min(each.wall_seconds for each in times), min(each.cpu_seconds for each in times))


def main(what: str = "", *arguments: str) -> None:
    """Print rows, or the times of one side."""
    measured = {"row": first_row, "ingest": ingest_with}
    tables = {"first": first_rows, "executors": scaling_rows}
    if what in measured:
        times = measured[what](*arguments)
        print("times " + json.dumps([times.wall_seconds, times.cpu_seconds]))
    elif what in tables:
        for row in tables[what](int(arguments[0]) if arguments else 1):
            print(row.name, row.ours, row.other_name, row.other, sep="  ", flush=True)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
