"""Reading arrays with Spark, against a Parquet scan of the same rows and against xarray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from pyspark.sql import DataFrame

import icefloe.spark
from benchmarks.spark_rows import Row, measure
from icefloe import Repository, local_filesystem_storage

CHUNK = (4, 256, 256)


def make(folder: Path, million_cells: float) -> tuple[Repository, int]:
    """One float32 array of three dimensions with coordinates, uncompressed noise; and its cells."""
    steps = max(int(million_cells * 1e6) // (512 * 512 * CHUNK[0]), 1) * CHUNK[0]
    repository = Repository.create(local_filesystem_storage(folder / "cells", durable=False))
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
    return repository, prod(shape)


def consume(frame: DataFrame) -> None:
    """Produce every row and forget it."""
    frame.write.format("noop").mode("overwrite").save()


def read_rows(spark: Any, folder: Path, million_cells: float, rounds: int) -> Iterator[Row]:
    """Cells and chunks of one array."""
    repository, count = make(folder, million_cells)
    parquet = str(folder / "parquet")

    def cells(**options: Any) -> DataFrame:
        return icefloe.spark.read(spark, repository, variables=["v"], **options)

    def dataset() -> Any:
        store = repository.readonly_session("main").store
        return xr.open_zarr(store, zarr_format=3, consolidated=False, chunks=None)

    cells().write.parquet(parquet)
    lines: list[tuple[str, Callable[[], Any], str, Callable[[], Any], float, str]] = [
        (
            "cells, 4 columns",
            lambda: consume(cells()),
            "Parquet on Spark",
            lambda: consume(spark.read.parquet(parquet)),
            count / 1e6,
            "Mcells",
        ),
        (
            "cells, sum of 1 column",
            lambda: cells(columns=["v"]).selectExpr("sum(v)").collect(),
            "Parquet on Spark",
            lambda: spark.read.parquet(parquet).selectExpr("sum(v)").collect(),
            count / 1e6,
            "Mcells",
        ),
        (
            "cells of 4 time steps, where=",
            lambda: consume(cells(where={"time": (0, 3)})),
            "Parquet on Spark",
            lambda: consume(spark.read.parquet(parquet).where("time <= 3")),
            4 * 512 * 512 / 1e6,
            "Mcells",
        ),
        (
            "cells, 4 columns",
            lambda: consume(cells()),
            "xarray, to_dataframe",
            lambda: dataset().to_dataframe(),
            count / 1e6,
            "Mcells",
        ),
        (
            "chunks",
            lambda: consume(cells(layout="chunks")),
            "xarray, load and sum",
            lambda: float(dataset().v.sum()),
            count / prod(CHUNK),
            "chunks",
        ),
    ]
    for name, ours, other_name, other, amount, unit in lines:
        times = measure(lambda _, f=ours: f(), lambda _, f=other: f(), rounds=rounds, warm_up=True)  # type: ignore[misc]
        yield Row(f"{name}, {count / 1e6:.1f} M", times[0], other_name, times[1], amount, unit)
