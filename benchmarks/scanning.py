"""Many small files become one virtual dataset: VirtualiZarr and official icechunk, and icefloe.

    python -m benchmarks.scanning --files 2000

prints CPU milliseconds a file for opening or scanning alone and for everything up to the commit,
each side in a process of its own, and checks that both repositories hold the same references.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import icechunk
import netCDF4
import numpy as np
import xarray as xr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser

import icefloe
from icefloe.virtual import ingest_local, scan

ROOT = Path(__file__).parents[1]
TARGET = 1.5
"""How many times less CPU than the others icefloe is to need."""


def main() -> None:
    """Make the files, measure both sides, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scanning", description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--side", choices=("official", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        measured = {"official": official, "ours": ours}[arguments.side](arguments.folder)
        print(json.dumps(measured))
        return
    with tempfile.TemporaryDirectory(prefix="icefloe-scanning-") as name:
        folder = Path(name)
        make_files(folder, arguments.files)
        results = {side: _measured(side, folder) for side in ("official", "ours")}
    if results["official"]["refs"] != results["ours"]["refs"]:
        sys.exit(f"the two sides hold different references: {results}")
    for step in ("scan", "all"):
        theirs, mine = (results[side][step] / arguments.files * 1e3 for side in results)
        verdict = "" if theirs / mine >= TARGET else f"  below the target of {TARGET}x"
        print(
            f"{step:5} VirtualiZarr + official {theirs:6.1f} ms/file   icefloe {mine:6.1f} ms/file"
            f"   {theirs / mine:.1f}x{verdict}"
        )


def _measured(side: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scanning", "--side", side, "--folder", str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def make_files(folder: Path, count: int) -> None:
    """NetCDF 4 files of two variables on a small grid, a time step each."""
    values = np.random.default_rng(1).random((20, 30), np.float32)
    for number in range(count):
        with netCDF4.Dataset(folder / f"{number:06}.nc", "w") as file:
            file.title = "a step"
            file.createDimension("time", None)
            file.createDimension("lat", 20)
            file.createDimension("lon", 30)
            time_ = file.createVariable("time", "i8", ("time",), chunksizes=(1,))
            time_.units = "days since 2000-01-01"
            time_[:] = [number]
            file.createVariable("lat", "f8", ("lat",))[:] = np.arange(20)
            file.createVariable("lon", "f8", ("lon",))[:] = np.arange(30)
            for name in ("temperature", "pressure"):
                options: Any = {"zlib": True, "chunksizes": (1, 10, 30)}
                data = file.createVariable(name, "f4", ("time", "lat", "lon"), **options)
                data.units = "1"
                data[:] = values[None]


def ours(folder: Path) -> dict[str, Any]:
    """Scan alone, then an ingest from the start."""
    config = icefloe.RepositoryConfig()
    place = icefloe.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"file://{folder}/", place))
    paths = sorted(folder.glob("*.nc"))
    scan(paths[0], references=True)  # imports
    started = time.process_time()
    for path in paths:
        scan(path, references=True, concat_dims=("time",))
    scanned = time.process_time() - started
    with tempfile.TemporaryDirectory() as name:
        repository = icefloe.Repository.create(icefloe.local_filesystem_storage(name), config)
        started = time.process_time()
        ingest_local(paths, repository, concat_dim="time", mode="virtual")
        spent = time.process_time() - started
        locations = repository.readonly_session("main").all_virtual_chunk_locations()
    return {"scan": scanned, "all": spent, "refs": _count(locations)}


def official(folder: Path) -> dict[str, Any]:
    """Open all files as virtual datasets, then join, write and commit them."""
    warnings.simplefilter("ignore")
    registry: Any = ObjectStoreRegistry({"file://": LocalStore()})
    config = icechunk.RepositoryConfig.default()
    place = icechunk.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"file://{folder}/", place))
    urls = [f"file://{path}" for path in sorted(folder.glob("*.nc"))]
    options: dict[str, Any] = {
        "registry": registry,
        "parser": HDFParser(),
        "loadable_variables": ["time", "lat", "lon"],
    }
    open_virtual_dataset(urls[0], **options)
    with tempfile.TemporaryDirectory() as name:
        repository = icechunk.Repository.create(icechunk.local_filesystem_storage(name), config)
        started = time.process_time()
        parts = [open_virtual_dataset(url, **options) for url in urls]
        scanned = time.process_time() - started
        choices: dict[str, Any] = {"coords": "minimal", "data_vars": "minimal"}
        choices |= {"compat": "override", "combine_attrs": "override", "join": "override"}
        joined = xr.concat(parts, dim="time", **choices)
        session = repository.writable_session("main")
        joined.vz.to_icechunk(session.store)
        session.commit("files")
        spent = time.process_time() - started
        locations = repository.readonly_session("main").all_virtual_chunk_locations()
    return {"scan": scanned, "all": spent, "refs": _count(locations)}


def _count(locations: list[str]) -> list[int]:
    return [len(locations), len(set(locations))]


if __name__ == "__main__":
    main()
