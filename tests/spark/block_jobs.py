"""Every operation on datasets of blocks, as jobs. The same plan in one process is the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from pyspark.sql import SparkSession

import icefloe.spark
from icefloe import Repository
from icefloe.blocks.dataset import BlockDataset
from icefloe.blocks.expressions import open_source
from icefloe.blocks.plan import LocalEngine
from icefloe.scans.scan import pin
from icefloe.xarray import to_icechunk
from tests.spark.fault_jobs import HANDED_OVER, Job, Place

DAYS = 48


def _warmer(block: xr.Dataset) -> xr.Dataset:
    return block + 1


def _difference(block: xr.Dataset, other: xr.Dataset) -> xr.Dataset:
    return block - other


def _anomalies(data: Any) -> Any:
    return data.groupby("time.month") - data.groupby("time.month").mean()


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "sel": lambda data: data.sel(time=slice("2001-01-10", "2001-02-09")),
    "isel": lambda data: data.isel(time=slice(3, 40, 2), y=slice(1, 7)),
    "map_blocks": lambda data: data.map_blocks(_warmer),
    "several datasets": lambda data: data.map_blocks(_difference, [data.map_blocks(_warmer)]),
    "rechunk": lambda data: data.rechunk({"time": -1, "y": 2, "x": 3}),
    "mean": lambda data: data.mean("time"),
    "sum": lambda data: data.sum("y"),
    "min": lambda data: data.min("time"),
    "max": lambda data: data.max(["y", "x"]),
    "count": lambda data: data.count("time"),
    "std": lambda data: data.std("time"),
    "var": lambda data: data.var("y"),
    "quantile": lambda data: data.quantile(0.9, "time"),
    "groupby": lambda data: data.groupby("time.month").mean(),
    "groupby arithmetic": _anomalies,
    "resample": lambda data: data.resample(time="4D").max(),
    "coarsen": lambda data: data.coarsen(y=2, x=2).mean(),
}


def _begin(place: Place, repository: Repository) -> None:
    random = np.random.default_rng(5)
    values = random.normal(280, 5, (DAYS, 8, 6))
    values[random.random(values.shape) < 0.05] = np.nan
    data = xr.Dataset(
        {"t": (("time", "y", "x"), values)},
        {
            "time": xr.date_range("2001-01-01", periods=DAYS),
            "y": np.arange(8.0),
            "x": np.arange(6.0),
        },
    )
    session = repository.writable_session("main")
    to_icechunk(data, session, encoding={"t": {"chunks": (6, 4, 6)}})
    session.commit("days")


def _on_spark(operation: Callable[[Any], Any]) -> Any:
    def on_spark(spark: SparkSession, place: Place, repository: Repository) -> None:
        dataset = icefloe.spark.open_dataset(spark, repository, num_tasks=3)
        operation(dataset).write(repository, group="result", transaction=("result", 1))

    return on_spark


def _alone(operation: Callable[[Any], Any]) -> Any:
    def alone(place: Place, repository: Repository) -> None:
        source, _ = open_source(pin(repository), "", None, None)
        result = operation(BlockDataset(source, LocalEngine()))
        chunks = {dim: max(lengths) for dim, lengths in result.chunks.items()}
        values = result.to_xarray()
        encoding: Any = {"t": {"chunks": tuple(chunks[str(dim)] for dim in values["t"].dims)}}
        for variable in values.variables.values():
            for key in ("chunks", "preferred_chunks", "shards"):
                variable.encoding.pop(key, None)
        session = repository.writable_session("main")
        to_icechunk(
            values, session, group="result", encoding=encoding if values["t"].dims else None
        )
        session.commit("result")

    return alone


# Small results are stored in manifests, so a fault meets the hand-over of a task's chunks.
BLOCK_JOBS = {
    f"blocks: {name}": Job(_begin, _on_spark(operation), _alone(operation), HANDED_OVER)
    for name, operation in OPERATIONS.items()
}
