"""Reading arrays with Spark, against a Parquet scan of the same rows and against xarray.

    python -m benchmarks.spark_read [MILLION_CELLS]

CPU is that of this process, of Java and of Spark's Python workers together. The best of three runs
is shown; the first run of each line only warms up. Rates are of all cells, also in the line that
reads four time steps of them.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from pyspark.sql import DataFrame

import icefloe.spark
from icefloe import Repository, local_filesystem_storage

psutil: Any = importlib.import_module("psutil")  # it ships no types

CHUNK = (4, 256, 256)
RUNS = 3


def make(folder: Path, million_cells: float) -> Repository:
    """One float32 array of three dimensions with coordinates, uncompressed noise."""
    steps = max(int(million_cells * 1e6) // (512 * 512 * CHUNK[0]), 1) * CHUNK[0]
    repository = Repository.create(local_filesystem_storage(folder / "repository", durable=False))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="w")
    shape, names = (steps, 512, 512), ("time", "y", "x")
    for name, length in zip(names, shape, strict=True):
        root.create_array(name, data=np.arange(length, dtype="i4"), dimension_names=(name,))
    values = root.create_array(
        "v", shape=shape, chunks=CHUNK, dtype="f4", dimension_names=names, compressors=None
    )
    random = np.random.default_rng(0)
    for at in range(0, steps, CHUNK[0]):
        values[at : at + CHUNK[0]] = random.random((CHUNK[0], 512, 512), dtype="f4")
    session.commit("noise")
    return repository


def cpu_seconds() -> float:
    """Of this process and all it started that still run."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def consume(frame: DataFrame) -> None:
    """Produce every row and forget it."""
    frame.write.format("noop").mode("overwrite").save()


def lines(spark: Any, repository: Repository, folder: Path) -> dict[str, Callable[[], Any]]:
    """What is measured, by its title."""

    def cells(**options: Any) -> DataFrame:
        return icefloe.spark.read(spark, repository, variables=["v"], **options)

    parquet = str(folder / "parquet")
    cells().write.parquet(parquet)

    def dataset() -> Any:
        store = repository.readonly_session("main").store
        return xr.open_zarr(store, zarr_format=3, consolidated=False, chunks=None)

    middle = {"time": (0, 3)}
    return {
        "cells, 4 columns": lambda: consume(cells()),
        "cells, sum of 1 column": lambda: cells(columns=["v"]).selectExpr("sum(v)").collect(),
        "cells of 4 time steps, where=": lambda: consume(cells(where=middle)),
        "chunks": lambda: consume(cells(layout="chunks")),
        "parquet, 4 columns": lambda: consume(spark.read.parquet(parquet)),
        "parquet, sum of 1 column": lambda: (
            spark.read.parquet(parquet).selectExpr("sum(v)").collect()
        ),
        "xarray, load and sum": lambda: float(dataset().v.sum()),
        "xarray, to_dataframe": lambda: dataset().to_dataframe(),
    }


def main(million_cells: str = "16") -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as name:
        folder = Path(name)
        repository = make(folder, float(million_cells))
        count = int(
            np.prod(zarr.open_array(repository.readonly_session("main").store, path="v").shape)
        )
        spark = icefloe.spark.session("local[2]", progress=False)
        print(f"{count / 1e6:.1f} million cells in {count // int(np.prod(CHUNK))} chunks")
        print(f"{'':32} {'wall s':>8} {'cpu s':>8} {'Mcells/s':>9} {'Mcells/cpu s':>13}")
        for title, run in lines(spark, repository, folder).items():
            best = (float("inf"), float("inf"))
            for _ in range(RUNS + 1):
                wall, cpu = time.perf_counter(), cpu_seconds()
                run()
                best = min(best, (cpu_seconds() - cpu, time.perf_counter() - wall))
            rate = count / 1e6
            print(
                f"{title:32} {best[1]:8.2f} {best[0]:8.2f} {rate / best[1]:9.1f} "
                f"{rate / max(best[0], 1e-9):13.1f}"
            )
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
