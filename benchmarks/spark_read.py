"""Reading arrays with Spark, against a Parquet scan of the same rows and against xarray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xarray as xr
import zarr
from pyspark.sql import DataFrame

import icefloe.spark
from benchmarks.spark_rows import Row, measure, official
from icefloe import Repository, local_filesystem_storage
from icefloe.virtual.planning.agreement import native_codecs

CHUNK = (4, 256, 256)
READY = "a function that has its batches ready"
CLOSE = 0.7
"""How close to that limit of Spark reading is to come."""

Line = tuple[str, Callable[[], Any], str, Callable[[], Any], float, str]
"""A row before it is measured: its name, ours, the other's name, the other, amount, unit."""


def make(folder: Path, million_cells: float) -> tuple[Repository, int]:
    """Two float32 arrays with coordinates, and the cells of each.

    `v` is noise that is not compressed, `field` is compressed as an ingest does it.
    """
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
    field = root.create_array(
        "field",
        shape=shape,
        chunks=CHUNK,
        dtype="f4",
        dimension_names=names,
        compressors=native_codecs("<f4", CHUNK)[1],
    )
    random = np.random.default_rng(0)
    for at in range(0, steps, CHUNK[0]):
        noise = random.random((CHUNK[0], 512, 512), dtype="f4")
        values[at : at + CHUNK[0]] = noise
        field[at : at + CHUNK[0]] = np.cumsum(noise - 0.5, axis=2)
    session.commit("noise")
    return repository, prod(shape)


def dataset(folder: Path) -> Any:
    """What xarray opens by official icechunk, without Dask."""
    icechunk = official()
    storage = icechunk.local_filesystem_storage(str(folder / "cells"))
    store = icechunk.Repository.open(storage).readonly_session("main").store
    return xr.open_zarr(store, zarr_format=3, consolidated=False, chunks=None)


def consume(frame: DataFrame) -> None:
    """Produce every row and forget it."""
    frame.write.format("noop").mode("overwrite").save()


def read_rows(spark: Any, folder: Path, million_cells: float, rounds: int) -> Iterator[Row]:
    """Cells and chunks of one array."""
    repository, count = make(folder, million_cells)
    parquet = str(folder / "parquet")

    def cells(**options: Any) -> DataFrame:
        return icefloe.spark.read(spark, repository, variables=["v"], **options)

    cells().write.parquet(parquet)
    lines: list[Line] = [
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
            "cells, sum of 1 column",
            lambda: cells(columns=["v"]).selectExpr("sum(v)").collect(),
            READY,
            lambda: ready(spark, count, "v float").selectExpr("sum(v)").collect(),
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
            "xarray + official, to_dataframe",
            lambda: dataset(folder).v.to_dataframe(),  # noqa: PLW0108 - opened anew each time
            count / 1e6,
            "Mcells",
        ),
    ]
    yield from _rows(lines, count, rounds)
    yield from chunk_rows(spark, folder, repository, count, rounds)


def chunk_rows(
    spark: Any, folder: Path, repository: Repository, count: int, rounds: int
) -> Iterator[Row]:
    """Rows of whole chunks: of plain values, and of a field that is compressed."""
    chunks = count / prod(CHUNK)

    def read(name: str) -> DataFrame:
        return icefloe.spark.read(spark, repository, variables=[name], layout="chunks")

    xarray = "xarray + official, load and sum"
    lines: list[Line] = [
        (
            "chunks, plain",
            lambda: consume(read("v")),
            xarray,
            lambda: float(dataset(folder).v.sum()),
            chunks,
            "chunks",
        ),
        (
            "chunks, Blosc",
            lambda: consume(read("field")),
            xarray,
            lambda: float(dataset(folder).field.sum()),
            chunks,
            "chunks",
        ),
        (
            "chunks, plain",
            lambda: consume(read("v")),
            READY,
            lambda: consume(ready(spark, count, "data binary")),
            chunks,
            "chunks",
        ),
    ]
    yield from _rows(lines, count, rounds)


def many_chunk_rows(spark: Any, folder: Path, million_cells: float, rounds: int) -> Iterator[Row]:
    """The same of so much that what a job costs by itself hardly counts."""
    yield from chunk_rows(spark, folder, *make(folder, million_cells), rounds)


def _rows(lines: list[Line], count: int, rounds: int) -> Iterator[Row]:
    for name, ours, other_name, other, amount, unit in lines:
        times = measure(lambda _, f=ours: f(), lambda _, f=other: f(), rounds=rounds, warm_up=True)  # type: ignore[misc]
        target = CLOSE if other_name == READY else 1.0
        label = f"{name}, {count / 1e6:.1f} M"
        yield Row(label, times[0], other_name, times[1], amount, unit, target)


def ready(spark: Any, count: int, ddl: str) -> DataFrame:
    """As many cells out of a Python function that has them ready and reads nothing.

    What is left is what Spark takes: tasks, the socket from Python to Java, rows made of columns.
    """
    tasks = spark.sparkContext.defaultParallelism
    work = partial(_ready_batches, count // tasks, ddl)
    made: DataFrame = spark.range(0, tasks, 1, tasks).mapInArrow(work, ddl)
    return made


def _ready_batches(count: int, ddl: str, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    is_binary = ddl.endswith("binary")
    in_batch = prod(CHUNK) * (16 if is_binary else 1) // (1 if is_binary else 2)
    values = np.zeros(in_batch, "f4")
    column = pa.array(values)
    if is_binary:
        ends = np.arange(0, values.nbytes + 1, prod(CHUNK) * 4, dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(values)]
        column = pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)
    batch = pa.record_batch([column], [ddl.split(maxsplit=1)[0]])
    for _ in batches:
        for done in range(0, count, in_batch):
            left = min(count - done, in_batch) * batch.num_rows // in_batch
            yield batch.slice(0, left)
