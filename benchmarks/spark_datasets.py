"""Datasets on Spark against dask.distributed with official icechunk, and xarray in one process.

All have two cores, and dask's workers together the memory of Spark's. The data is 4 GB of daily
maps unless `ICEFLOE_BENCH_GB` says otherwise.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import icefloe
import icefloe.spark
from benchmarks.spark_rows import Row, measure, official, psutil

GIGABYTES = float(os.environ.get("ICEFLOE_BENCH_GB", "4"))
MAP = (256, 512)
DAYS_PER_CHUNK = 8
MEMORY = 256 << 20
"""Bytes of values that a task of ours may hold."""
DASK, ALONE = "dask.distributed with official icechunk", "xarray in one process"


def make(storage: icefloe.Storage, gigabytes: float = GIGABYTES) -> int:
    """A repository of daily maps, one chunk for eight days; returns its bytes."""
    days = int(gigabytes * 2**30 / 4 / MAP[0] / MAP[1]) // DAYS_PER_CHUNK * DAYS_PER_CHUNK
    session = icefloe.Repository.create(storage).writable_session("main")
    random = np.random.default_rng(0)
    normal = random.normal(280, 10, MAP).astype("f4")
    times = xr.date_range("1990-01-01", periods=days)
    labels = {"y": np.arange(MAP[0]), "x": np.arange(MAP[1])}
    for start in range(0, days, 64):
        some = times[start : start + 64]
        values = np.round(normal + random.normal(0, 3, (len(some), *MAP)), 1).astype("f4")
        part = xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": some, **labels})
        first: dict[str, Any] = {"encoding": {"t": {"chunks": (DAYS_PER_CHUNK, *MAP)}}}
        options = first if start == 0 else {"append_dim": "time"}
        part.to_zarr(session.store, consolidated=False, safe_chunks=False, **options)
    session.commit("days")
    return days * MAP[0] * MAP[1] * 4


def series(data: Any, is_ours: bool) -> Any:
    """Chunks for time series."""
    chunks = {"time": -1, "y": 16, "x": 16}
    return data.rechunk(chunks) if is_ours else data.chunk(chunks)


def climatology(data: Any, is_ours: bool) -> Any:
    """Monthly means."""
    return data.groupby("time.month").mean()


def anomalies(data: Any, is_ours: bool) -> Any:
    """Days without the mean of their month."""
    return data.groupby("time.month") - climatology(data, is_ours)


def quantile(data: Any, is_ours: bool) -> Any:
    """The 90 % quantile of every series."""
    whole = data if is_ours or data.chunks == {} else data.chunk({"time": -1, "y": 32, "x": 64})
    return whole.quantile(0.9, "time")


COMPUTATIONS: dict[str, Callable[[Any, bool], Any]] = {
    "rechunk from time to space": series,
    "monthly climatology": climatology,
    "daily anomalies": anomalies,
    "90 % quantile": quantile,
}


@contextmanager
def peak_memory(found: list[int]) -> Iterator[None]:
    """The most that one Python worker has resident meanwhile, in bytes."""
    done = threading.Event()

    def watch() -> None:
        most = 0
        while not done.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                try:
                    if "python" in process.name():
                        most = max(most, process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
        found.append(most)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def dataset_rows(spark: Any, folder: Path, rounds: int) -> Iterator[Row]:
    """Each computation, written as a new version."""
    from distributed import Client, LocalCluster

    options: Any = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": "2GB"}
    total = make(icefloe.local_filesystem_storage(str(folder / "source"), durable=False))
    with (
        LocalCluster(dashboard_address=None, **options) as cluster,  # type: ignore[no-untyped-call]
        Client(cluster),  # type: ignore[no-untyped-call]
    ):
        for name, compute in COMPUTATIONS.items():
            yield from _rows(spark, folder, rounds, total, name, compute)


def _rows(
    spark: Any, folder: Path, rounds: int, total: int, name: str, compute: Any
) -> Iterator[Row]:
    opened = icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder / "source")))
    library = official()
    theirs = library.Repository.open(library.local_filesystem_storage(str(folder / "source")))
    peaks: list[int] = []

    def ours(_: int) -> None:
        target = icefloe.Repository.create(
            icefloe.local_filesystem_storage(str(_new(folder / "ours")), durable=False)
        )
        dataset = icefloe.spark.open_dataset(spark, opened, memory=MEMORY)
        with peak_memory(peaks):
            compute(dataset, True).write(target)

    def dask(_: int) -> None:
        _write(library, compute(_open(theirs, {}), False), _new(folder / "dask"))

    def alone(_: int) -> None:
        _write(library, compute(_open(theirs, None), False), _new(folder / "alone"))

    sides = [ours, dask] if compute is series else [ours, dask, alone]
    found = measure(*sides, rounds=rounds)
    note = f"an icefloe worker had at most {max(peaks) >> 20} MB resident"
    yield Row(name, found[0], DASK, found[1], total / 1e6, "MB", note=note)
    if len(found) == 3:
        yield Row(name, found[0], ALONE, found[2], total / 1e6, "MB", None)


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _open(repository: Any, chunks: Any) -> xr.Dataset:
    store = repository.readonly_session("main").store
    dataset: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=chunks)
    return dataset


def _write(library: Any, result: xr.Dataset, folder: Path) -> None:
    """Write with official icechunk, from dask's workers where the result is lazy."""
    from icechunk.xarray import to_icechunk

    for variable in result.variables.values():
        variable.encoding.clear()
    repository = library.Repository.create(library.local_filesystem_storage(str(folder)))
    session = repository.writable_session("main")
    to_icechunk(result, session)
    session.commit("result")
