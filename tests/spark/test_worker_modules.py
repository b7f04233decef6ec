"""What Spark's Python workers import, what they pay for it after a task, and what they print."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from pyspark.sql import SparkSession

from icefloe import Repository
from icefloe.spark.tasks import map_batches
from tests.spark.versions import SPARK_VERSION


def _set_aside(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        count = [gc.get_freeze_count()] * batch.num_rows
        still = [len(gc.get_objects())] * batch.num_rows
        yield pa.record_batch({"aside": pa.array(count), "tracked": pa.array(still)})


def test_modules_are_set_aside_so_that_collecting_after_a_task_is_quick(
    spark: SparkSession,
) -> None:
    for _ in range(2):  # the first job imports what the second finds
        rows = map_batches(spark.range(0, 2, 1, 2), _set_aside, "aside bigint, tracked bigint")
        found = rows.collect()
    assert all(row.aside > 20_000 for row in found), found
    assert all(row.tracked < 5_000 for row in found), found


def _connection(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        is_local = os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() == "true"
        yield pa.record_batch({"is_local": pa.array([is_local] * batch.num_rows)})


@pytest.mark.skipif(SPARK_VERSION < (4, 1), reason="Spark 4.1 brought local sockets")
@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the system has no local sockets")
def test_workers_are_reached_without_the_delays_of_tcp(spark: SparkSession) -> None:
    [row] = map_batches(spark.range(0, 1, 1, 1), _connection, "is_local boolean").collect()
    assert row.is_local


@pytest.mark.parametrize(
    "module",
    ["icefloe.scans.scan", "icefloe.spark.tasks", "icefloe.spark.ingest_engine"],
)
def test_a_worker_imports_one_module_without_the_others(module: str) -> None:
    program = f"""
import sys
import {module}
for name in ("pandas", "xarray", "dask", "icefloe.spark.rows", "icefloe.spark.maintenance"):
    assert name not in sys.modules, name
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_numbers_and_times_are_read_without_pandas(repository: Repository) -> None:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="w")
    attributes: dict[str, dict[str, Any]] = {
        "x": {},
        "day": {"units": "days since 2000-01-01", "_FillValue": 3},
        "packed": {"scale_factor": 0.5, "_FillValue": 2},
    }
    for name, given in attributes.items():
        values = np.arange(6, dtype="i4")
        root.create_array(name, data=values, chunks=(2,), dimension_names=("x",), attributes=given)
    session.commit("numbers")
    program = f"""
import sys
from icefloe.scans.chunk_rows import plan_read
from icefloe.scans.scan import read_options
from icefloe.scans.scan import as_repository, pin
source = pin(as_repository({repository.storage.url!r}))
for layout in ("cells", "chunks"):
    for missing in ("fill", "skip"):
        options = read_options(layout=layout, missing=missing, where="x > 0")
        scan = plan_read(source, options)
        assert sum(batch.num_rows for batch in scan.read(0)) > 0
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


TAKES_SOME_ROWS = """
import sys
import icefloe
url = sys.argv[1]
spark = icefloe.spark.session("local[2]")
repo = icefloe.Repository.open(icefloe.storage_from_url(url))
frame = spark.read.format("icefloe").load(url)
frame.show(2)
assert frame.first() is not None
assert frame.limit(10).count() == 10
assert len(icefloe.spark.read(spark, repo).take(5)) == 5
assert len(icefloe.spark.read(spark, repo, layout="chunks").limit(3).collect()) == 3
spark.stop()
"""


@pytest.mark.timeout(600)
def test_a_query_that_needs_some_rows_only_prints_no_traceback(repository: Repository) -> None:
    writable = repository.writable_session("main")
    values = np.arange(2_000_000, dtype="f8").reshape(4, 500, 1000)
    zarr.create_array(writable.store, name="a", data=values, chunks=(1, 100, 1000))
    writable.commit("many batches")
    done = subprocess.run(
        [sys.executable, "-c", TAKES_SOME_ROWS, repository.storage.url],
        capture_output=True,
        text=True,
        check=False,
        timeout=590,
    )
    assert done.returncode == 0, done.stderr
    assert "only showing top 2 rows" in done.stdout
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
