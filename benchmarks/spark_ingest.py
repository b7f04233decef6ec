"""Ingests with Spark on two cores, against one process with xarray and official icechunk.

The figures are rows of `python -m benchmarks --only spark`.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

import icefloe
import icefloe.spark
from benchmarks.measure import run_in_process
from benchmarks.spark_files import make_grids, make_steps
from benchmarks.spark_rows import Row, Times, measure, official
from icefloe.virtual import ingest_local

FASTER = 1.5
"""How many times as fast as one process an ingest on two cores is to be."""

FLOATS_FASTER = 1.8
"""Of values that are only compressed."""

_OLD = " old"


def repository_at(library: Any, folder: Path, files: Path) -> Any:
    """A new repository that may refer to the files: ours or official's, neither with fsync.

    One that is there is set aside; `clear` deletes it when no time is taken.
    """
    if folder.exists():
        folder.rename(folder.with_name(folder.name + _OLD))
    config = library.RepositoryConfig.default()
    store = library.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(library.VirtualChunkContainer(f"file://{files}/", store))
    options = {"durable": False} if library is icefloe else {}  # official never waits for disks
    return library.Repository.create(
        library.local_filesystem_storage(str(folder), **options), config
    )


def clear(folder: Path) -> None:
    """Delete repositories that were set aside, and let the disk catch up."""
    for old in folder.glob("*" + _OLD):
        shutil.rmtree(old)
    os.sync()


# --- values are copied ------------------------------------------------------------------------


def native_rows(spark: Any, folder: Path, files: int, rounds: int) -> Iterator[Row]:
    """Files whose values are copied into the same chunks.

    Official is measured with the compression that icefloe chooses, and with its own default.
    """
    titles = {"packed": "packed int16 with zlib", "floats": "plain float32"}
    for kind, title in titles.items():
        places = [folder / f"{kind}{suffix}" for suffix in ("", " a", " b", " c")]
        sources, ours, theirs, theirs_by_default = places
        nbytes = make_grids(sources, files, kind)

        def copy_ours(_: int, ours: Path = ours, sources: Path = sources) -> None:
            repository = repository_at(icefloe, ours, sources)
            icefloe.spark.ingest(spark, str(sources / "*.nc"), repository, concat_dim="time")

        default = partial(_copy_official, theirs_by_default, sources, ours, is_alike=False)
        alike = partial(_copy_official, theirs, sources, ours, is_alike=True)
        mine, by_default, like_ours = measure(
            copy_ours,
            default,
            alike,
            rounds=rounds,
            warm_up=True,
            prepare=partial(clear, folder),
        )
        _check_same(ours, theirs)
        name = f"native ingest of {files} files, {title}"
        against = "xarray + official, one process"
        faster = FLOATS_FASTER if kind == "floats" else FASTER
        yield Row(name, mine, against, by_default, nbytes / 1e6, "MB", faster)
        alike_name = f"{against}, compressed alike"
        yield Row(name, mine, alike_name, like_ours, nbytes / 1e6, "MB", faster)
        on_one_core = _copy_pinned(theirs, sources, ours)
        yield Row(name, mine, f"{alike_name}, on one core", on_one_core, nbytes / 1e6, "MB")
        clear(folder)
        for made in places:
            shutil.rmtree(made)


def _copy_official(folder: Path, files: Path, ours: Path, _: int, *, is_alike: bool) -> None:
    """xarray reads stored values file by file, official icechunk appends them.

    Quicker than `open_mfdataset`, which takes half as much CPU again.
    """
    icechunk = official()
    to_icechunk = importlib.import_module("icechunk.xarray").to_icechunk
    like = _opened(icefloe, ours)["v"]
    encoding: dict[str, Any] = {"v": {"chunks": like.chunks}}
    if is_alike:
        encoding["v"]["compressors"] = like.compressors
    session = repository_at(icechunk, folder, files).writable_session("main")
    for number, path in enumerate(sorted(files.glob("*.nc"))):
        with xr.open_dataset(path, decode_cf=False) as dataset:
            for variable in dataset.variables.values():
                variable.encoding = {}
            # Appending to packed values, xarray would pack them a second time.
            dataset["v"].attrs.pop("scale_factor", None)
            if number == 0:
                to_icechunk(dataset, session, mode="w", encoding=encoding)
            else:
                to_icechunk(dataset.drop_vars(["lat", "lon"]), session, append_dim="time")
    session.commit("files")


def _copy_pinned(folder: Path, files: Path, ours: Path) -> Times:
    """The same in a process that may use one core only; what it imports is not counted."""
    printed = run_in_process(__spec__.name, "pinned", *map(str, (folder, files, ours)))
    return Times(*json.loads(printed.splitlines()[-1]))


def pinned_copy(folder: Path, files: Path, ours: Path) -> list[float]:
    """Wall and CPU seconds of a copy by official, once it has warmed up."""
    for _ in range(2):
        clear(folder.parent)
        wall, cpu = time.perf_counter(), time.process_time()
        _copy_official(folder, files, ours, 0, is_alike=True)
        found = [time.perf_counter() - wall, time.process_time() - cpu]
    return found


def _opened(library: Any, folder: Path) -> Any:
    repository = library.Repository.open(library.local_filesystem_storage(str(folder)))
    return zarr.open_group(repository.readonly_session("main").store, mode="r")


def _check_same(ours: Path, theirs: Path) -> None:
    mine, others = _opened(icefloe, ours), _opened(official(), theirs)
    assert mine["v"].compressors == others["v"].compressors
    for name in ("time", "lat", "lon", "v"):
        for start in range(0, mine[name].shape[0], 96):
            part = slice(start, start + 96)
            np.testing.assert_array_equal(mine[name][part], others[name][part], strict=True)


# --- values are referred to -------------------------------------------------------------------


def virtual_rows(spark: Any, folder: Path, files: int, rounds: int) -> Iterator[Row]:
    """Many small files that are only referred to."""
    sources = folder / "steps"
    make_steps(sources, files)
    pattern = str(sources / "*.nc")

    def on_spark(_: int) -> None:
        repository = repository_at(icefloe, folder / "spark", sources)
        icefloe.spark.ingest(spark, pattern, repository, concat_dim="time", mode="virtual")

    def in_one_process(_: int) -> None:
        repository = repository_at(icefloe, folder / "one", sources)
        ingest_local(pattern, repository, concat_dim="time", mode="virtual")

    def by_official(_: int) -> None:
        _refer_official(folder / "official", sources)

    on_spark(0)
    by_spark, by_one, theirs = measure(
        on_spark, in_one_process, by_official, rounds=rounds, prepare=partial(clear, folder)
    )
    counts = [
        _count_locations(icefloe, folder / "spark"),
        _count_locations(icefloe, folder / "one"),
        _count_locations(official(), folder / "official"),
    ]
    assert counts[0] == counts[1] == counts[2], counts
    against = "VirtualiZarr + official, one process"
    name = f"virtual ingest of {files:,} files"
    yield Row(name, by_spark, against, theirs, files, "files", FASTER)
    yield Row(f"{name}, in one process", by_one, against, theirs, files, "files", FASTER)


def _refer_official(folder: Path, files: Path) -> None:
    """VirtualiZarr scans, official icechunk stores the references."""
    virtualizarr = importlib.import_module("virtualizarr")
    parsers = importlib.import_module("virtualizarr.parsers")
    registry = importlib.import_module("obspec_utils.registry").ObjectStoreRegistry
    local = importlib.import_module("obstore.store").LocalStore
    options = {
        "registry": registry({"file://": local()}),
        "parser": parsers.HDFParser(),
        "loadable_variables": ["time", "lat", "lon"],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        urls = [path.as_uri() for path in sorted(files.glob("*.nc"))]
        parts = [virtualizarr.open_virtual_dataset(url, **options) for url in urls]
        choices: dict[str, Any] = {"coords": "minimal", "data_vars": "minimal"}
        choices |= {"compat": "override", "combine_attrs": "override", "join": "override"}
        dataset = xr.concat(parts, dim="time", **choices)
        session = repository_at(official(), folder, files).writable_session("main")
        dataset.vz.to_icechunk(session.store)
        session.commit("files")


def _count_locations(library: Any, folder: Path) -> tuple[int, int]:
    repository = library.Repository.open(library.local_filesystem_storage(str(folder)))
    locations = repository.readonly_session("main").all_virtual_chunk_locations()
    return len(locations), len(set(locations))


def main(what: str = "", *places: str) -> None:
    """The copy by official that may use one core only."""
    if what != "pinned":
        sys.exit(__doc__)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(json.dumps(pinned_copy(*map(Path, places))))


if __name__ == "__main__":
    main(*sys.argv[1:])
