"""Datasets on Spark as they grow: what a rechunk reads and writes, and the driver's memory.

    python -m benchmarks.datasets_at_scale rechunk [GIGABYTES...]   daily maps into time series
    python -m benchmarks.datasets_at_scale s3 [GIGABYTES]           the same on S3, with requests
    python -m benchmarks.datasets_at_scale driver [BLOCKS]          anomalies of many small blocks

Every size runs in a process of its own, with two cores. Bytes are those that the Python workers of
Spark read from files and wrote to them, Spark's own shuffle not included.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import xarray as xr

import icefloe
from benchmarks.measure import run_in_process
from benchmarks.spark_datasets import MEMORY, make, series
from icefloe.storage.run import run_blocking
from tests.servers import s3_server_process

_PROGRAM, _LONGEST_S = "benchmarks.datasets_at_scale", 7200.0
DEFAULT_GIGABYTES, DEFAULT_BLOCKS = ("1", "4", "8"), 200_000
_CELLS = 64


class Workers:
    """What Java and the Python workers of Spark did, looked at five times a second."""

    def __init__(self) -> None:
        self.bytes_of: dict[int, tuple[int, int]] = {}
        self.seconds_of: dict[int, float] = {}
        self.most_resident = 0

    def look(self) -> None:
        """Note the counters of every process there is."""
        for process in psutil.Process().children(recursive=True):
            try:
                times = process.cpu_times()
                self.seconds_of[process.pid] = times.user + times.system
                if "pyspark" in " ".join(process.cmdline()):
                    counters = process.io_counters()
                    self.bytes_of[process.pid] = counters.read_chars, counters.write_chars
                    self.most_resident = max(self.most_resident, process.memory_info().rss)
            except psutil.Error:
                continue  # it has ended

    def told(self) -> dict[str, int]:
        """CPU of Java and workers; megabytes of files, and those that one worker had resident."""
        read, written = (sum(column) for column in zip(*self.bytes_of.values(), strict=True))
        figures = {"read": read, "written": written, "worker": self.most_resident}
        seconds = {"CPU s": round(sum(self.seconds_of.values()))}
        return seconds | {f"{name} MB": value >> 20 for name, value in figures.items()}


@contextmanager
def watched() -> Iterator[Workers]:
    """Watch the workers meanwhile."""
    workers, done = Workers(), threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            workers.look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield workers
    finally:
        workers.look()
        done.set()
        watcher.join()


def local(folder: Path) -> icefloe.Storage:
    """A directory that is not synced: disks differ too much."""
    return icefloe.local_filesystem_storage(str(folder), durable=False)


def rechunk(source: icefloe.Storage, target: icefloe.Storage) -> dict[str, Any]:
    """Rechunk daily maps into time series, in this process and the workers that it starts."""
    spark = importlib.import_module("icefloe.spark")
    with watched() as workers:
        session = spark.session("local[2]", progress=False)
        started = time.monotonic()
        dataset = spark.open_dataset(session, icefloe.Repository.open(source), memory=MEMORY)
        report = series(dataset, True).write(icefloe.Repository.create(target))
        seconds = time.monotonic() - started
        workers.look()
        session.stop()
    about = {"seconds": round(seconds, 1), "chunks written": report.chunks_written}
    return about | workers.told()


def rechunk_in_directories(gigabytes: str) -> dict[str, Any]:
    """Of one size, from a directory into another."""
    with tempfile.TemporaryDirectory(prefix="icefloe-datasets-") as name:
        source, target = Path(name) / "source", Path(name) / "target"
        total = make(local(source), float(gigabytes))
        stored = [path.stat().st_size for path in (source / "chunks").iterdir()]
        about = {"GB": float(gigabytes), "values MB": total >> 20}
        about |= {"stored chunks": len(stored), "stored MB": sum(stored) >> 20}
        return about | rechunk(local(source), local(target))


def rechunk_on_s3(gigabytes: str) -> dict[str, Any]:
    """Of one size, on an S3 server of this machine, which counts requests."""
    with s3_server_process() as server:
        source, target = server.storage("source"), server.storage("target")
        make(source, float(gigabytes))
        stored = len(run_blocking(source.driver(blocking=True).list("chunks/")))
        before = server.requests()["methods"]
        found = rechunk(source, target)
        after = server.requests()["methods"]
    counted = {f"{method} requests": after[method] - before.get(method, 0) for method in after}
    return {"GB": float(gigabytes), "stored chunks": stored} | counted | found


def make_blocks(folder: str, blocks: str) -> dict[str, Any]:
    """A repository of hourly values at a few places, one chunk for each hour."""
    count = int(blocks)
    session = icefloe.Repository.create(local(Path(folder))).writable_session("main")
    values = np.arange(count * _CELLS, dtype="f4").reshape(count, _CELLS)
    hours = xr.date_range("1990-01-01", periods=count, freq="h")
    data = xr.Dataset({"t": (("time", "x"), values)}, {"time": hours})
    encoding = {"t": {"chunks": (1, _CELLS)}, "time": {"chunks": (count,)}}
    data.to_zarr(session.store, consolidated=False, encoding=encoding)
    return {"snapshot": session.commit("hours")}


def many_blocks(blocks: str) -> dict[str, Any]:
    """Anomalies of many small blocks, and the memory of the driver's Python."""
    spark = importlib.import_module("icefloe.spark")
    with tempfile.TemporaryDirectory(prefix="icefloe-datasets-") as name:
        source = Path(name) / "source"
        run_in_process(_PROGRAM, "one", "blocks", str(source), blocks, longest=_LONGEST_S)
        session = spark.session("local[2]", progress=False)
        before = _resident()
        started = time.monotonic()
        hours = spark.open_dataset(session, icefloe.Repository.open(local(source)))
        result = hours.groupby("time.month") - hours.groupby("time.month").mean()
        report = result.write(icefloe.Repository.create(local(Path(name) / "target")))
        seconds = time.monotonic() - started
        session.stop()
    return {
        "blocks": report.blocks,
        "seconds": round(seconds, 1),
        "driver before MB": before >> 20,
        "driver MB": _resident() >> 20,
    }


def _resident() -> int:
    """The most that this process had resident, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


FORMS: dict[str, Callable[..., dict[str, Any]]] = {
    "rechunk": rechunk_in_directories,
    "s3": rechunk_on_s3,
    "driver": many_blocks,
    "blocks": make_blocks,
}


def main(form: str, *sizes: str) -> None:
    """Run every size in a process of its own, and print what it found."""
    defaults = {"rechunk": DEFAULT_GIGABYTES, "s3": ("1",), "driver": (str(DEFAULT_BLOCKS),)}
    for size in sizes or defaults[form]:
        printed = run_in_process(_PROGRAM, "one", form, size, longest=_LONGEST_S)
        print(printed.splitlines()[-1], flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "one":
        print(json.dumps(FORMS[sys.argv[2]](*sys.argv[3:])))
    else:
        main(*sys.argv[1:])
