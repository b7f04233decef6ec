"""Ingests with Spark on two cores, against one process with xarray and official icechunk.

    python -m benchmarks.spark_ingest [native|virtual|refs] ...

`native` copies packed, compressed NetCDF files; the other side is `open_mfdataset` and official's
`to_icechunk`. `virtual` refers to many small files; the other side is VirtualiZarr. `refs` measures
the peak memory of the driver while references by the million come in, at two sizes.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import icefloe
import icefloe.spark
from icefloe import Repository

psutil: Any = importlib.import_module("psutil")  # it ships no types

NATIVE_FILES, NATIVE_SHAPE = 48, (24, 200, 400)
VIRTUAL_FILES = 2_000
REFS_CHUNKS = 50_000
"""In a file; the files differ in number."""


def make_files(folder: Path, count: int, shape: tuple[int, int, int], **encoding: Any) -> int:
    """Files along time; returns the bytes of their values."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    steps, rows, columns = shape
    values = rng.integers(0, 3000, shape).astype("i2")
    for number in range(count):
        dataset = xr.Dataset(
            {"v": (("time", "y", "x"), np.roll(values, number), {"scale_factor": 0.1})},
            {
                "time": np.arange(number * steps, (number + 1) * steps, dtype="i4"),
                "y": np.arange(rows, dtype="f4"),
                "x": np.arange(columns, dtype="f4"),
            },
        )
        dataset.to_netcdf(folder / f"{number:05}.nc", encoding={"v": encoding})
    return count * values.nbytes


def repository_at(folder: Path, files: Path) -> Repository:
    """A repository of ours that may refer to the files."""
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"file://{files}/", store))
    return Repository.create(icefloe.local_filesystem_storage(str(folder)), config)


def official_at(folder: Path, files: Path) -> Any:
    """The same of official icechunk."""
    icechunk = importlib.import_module("icechunk")
    icechunk.set_logs_filter("error")
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"file://{files}/", store))
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)), config)


def official_native(folder: Path, files: Path) -> None:
    """xarray reads packed values, official icechunk stores them."""
    to_icechunk = importlib.import_module("icechunk.xarray").to_icechunk
    paths = sorted(map(str, files.glob("*.nc")))
    options: dict[str, Any] = {"combine": "nested", "concat_dim": "time", "mask_and_scale": False}
    with xr.open_mfdataset(paths, **options) as dataset:
        session = official_at(folder, files).writable_session("main")
        to_icechunk(dataset, session, mode="w")
        session.commit("files")


def official_virtual(folder: Path, files: Path) -> None:
    """VirtualiZarr scans, official icechunk stores the references."""
    virtualizarr = importlib.import_module("virtualizarr")
    parsers = importlib.import_module("virtualizarr.parsers")
    registry = importlib.import_module("obspec_utils.registry").ObjectStoreRegistry
    local = importlib.import_module("obstore.store").LocalStore
    reach = registry({"file://": local()})
    paths = [path.as_uri() for path in sorted(files.glob("*.nc"))]
    dataset = virtualizarr.open_virtual_mfdataset(
        paths,
        registry=reach,
        parser=parsers.HDFParser(),
        combine="nested",
        concat_dim="time",
        coords="minimal",
        compat="override",
        loadable_variables=["time", "y", "x"],
    )
    session = official_at(folder, files).writable_session("main")
    dataset.vz.to_icechunk(session.store)
    session.commit("files")


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


def measure(title: str, runs: int, run: Callable[[int], Any], nbytes: int = 0) -> float:
    """Print the best of some runs."""
    best = float("inf")
    cpu_best = best
    for number in range(runs):
        wall, cpu = time.perf_counter(), cpu_seconds()
        run(number)
        best = min(best, time.perf_counter() - wall)
        cpu_best = min(cpu_best, cpu_seconds() - cpu)
    rate = f"{nbytes / best / 1e6:8.1f} MB/s" if nbytes else ""
    print(f"{title:44}{best:8.2f} s{cpu_best:8.2f} cpu s {rate}", flush=True)
    return best


def compare(spark: Any, folder: Path, mode: Any) -> None:
    """One mode against the other side, which gets the same files."""
    files = folder / mode
    if mode == "native":
        nbytes = make_files(files, NATIVE_FILES, NATIVE_SHAPE, zlib=True, chunksizes=(8, 200, 400))
        other, runs = official_native, 2
    else:
        nbytes = make_files(files, VIRTUAL_FILES, (4, 8, 8), chunksizes=(1, 8, 8))
        other, runs = official_virtual, 2

    def ours(number: int) -> None:
        repository = repository_at(folder / f"{mode} ours {number}", files)
        pattern = str(files / "*.nc")
        icefloe.spark.ingest(spark, pattern, repository, concat_dim="time", mode=mode)

    def official(number: int) -> None:
        other(folder / f"{mode} official {number}", files)

    shown = nbytes if mode == "native" else 0
    mine = measure(f"{mode}: icefloe on Spark, 2 cores", runs, ours, shown)
    theirs = measure(f"{mode}: one process, official icechunk", runs, official, shown)
    print(f"{mode}: {theirs / mine:.2f} times as fast", flush=True)


def peak_memory(folder: Path, number_of_files: int) -> None:
    """In a process of its own: the driver's peak resident memory for so many references."""
    resource = importlib.import_module("resource")
    files = folder / f"refs {number_of_files}"
    make_files(files, number_of_files, (REFS_CHUNKS, 1, 1), chunksizes=(1, 1, 1))
    repository = repository_at(folder / f"repository {number_of_files}", files)
    spark = icefloe.spark.session("local[2]", progress=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report = icefloe.spark.ingest(
        spark, str(files / "*.nc"), repository, concat_dim="time", mode="virtual"
    )
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spark.stop()
    print(
        f"refs: {report.refs_written:>10,} references in {report.seconds:6.1f} s, peak memory of "
        f"the driver {before:.0f} MB before, {after:.0f} MB after",
        flush=True,
    )


def main(*wanted: str) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as name:
        folder = Path(name)
        if wanted[:1] == ("peak",):
            peak_memory(folder, int(wanted[1]))
            return
        modes = [mode for mode in ("native", "virtual") if not wanted or mode in wanted]
        if modes:
            spark = icefloe.spark.session("local[2]", progress=False)
            for mode in modes:
                compare(spark, folder, mode)
            spark.stop()
        if not wanted or "refs" in wanted:
            for count in (20, 100):
                command = [sys.executable, "-m", "benchmarks.spark_ingest", "peak", str(count)]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
