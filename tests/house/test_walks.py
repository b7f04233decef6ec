"""The walks of ARCHITECTURE.md name the files that run, in the order in which they first do."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "icefloe"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
TOPICS = {
    1: ("changes/", "repo/"),
    2: ("repo/", "store/"),
    3: ("virtual/",),
    4: ("maintenance/",),
}
"""Packages that a walk is about: it names every file of them that runs."""


def trace(run: Callable[[], object]) -> list[str]:
    """Files of the package whose functions run in this thread, in the order of their first call."""
    seen: dict[str, None] = {}

    def note(frame: Any, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.setdefault(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    paths = [Path(name) for name in seen if name.startswith(str(PACKAGE))]
    return [path.relative_to(PACKAGE).as_posix() for path in paths]


def named_in(number: int) -> list[str]:
    """The files that the steps of a walk name, in order, each once."""
    walk = re.search(rf"^## Walk {number}: .*?(?=^## )", TEXT, re.MULTILINE | re.DOTALL)
    assert walk is not None
    steps = re.findall(r"^\d\. .*?(?=^\d\. |\n\n)", walk[0], re.MULTILINE | re.DOTALL)
    return list(dict.fromkeys(re.findall(r"`([\w/]+\.py)`", " ".join(steps))))


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    repository = icefloe.Repository.create(storage)
    session = repository.writable_session("main")
    array: Any = zarr.create_array(session.store, name="a", shape=9, chunks=3, dtype="i4")
    array[:3] = 1
    session.commit("first")
    return repository


def commit(repository: icefloe.Repository, _: Path) -> list[str]:
    session = repository.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    array[3:6] = 2
    return trace(lambda: session.commit("second"))


def read(repository: icefloe.Repository, _: Path) -> list[str]:
    again = icefloe.Repository.open(repository.storage)
    array: Any = zarr.open_array(again.readonly_session("main").store, path="a", mode="r")
    found = trace(lambda: asyncio.run(array.async_array.getitem(slice(0, 3))))
    assert array[:3].tolist() == [1, 1, 1]
    return found


def ingest(_: icefloe.Repository, folder: Path) -> list[str]:
    xarray = pytest.importorskip("xarray", reason="it makes the files")
    for day in range(2):
        coordinates = {"time": np.arange(4) + 4 * day}
        values = xarray.Dataset({"t": ("time", np.arange(4.0))}, coordinates)
        values.to_netcdf(folder / f"{day}.nc", engine="h5netcdf")
    sources, target = str(folder / "*.nc"), str(folder / "weather")
    return trace(lambda: icefloe.ingest(sources, target, concat_dim="time", mode="virtual"))


def collect(repository: icefloe.Repository, _: Path) -> list[str]:
    return trace(lambda: repository.garbage_collect(datetime.now(UTC)))


WALKS = {1: commit, 2: read, 3: ingest, 4: collect}


@pytest.mark.parametrize("number", WALKS)
def test_a_walk_names_the_files_that_run(
    number: int, repository: icefloe.Repository, tmp_path: Path
) -> None:
    for folder in (tmp_path / "first", tmp_path / "second"):  # the first call loads everything
        folder.mkdir()
        ran = WALKS[number](repository, folder)
    named = named_in(number)
    assert [name for name in named if name not in ran] == [], "named, but they do not run"
    topics = [name for name in ran if name.startswith(TOPICS[number])]
    assert [name for name in topics if name not in named] == [], "they run, but are not named"
    in_order = [name for name in named if not name.startswith("format/")]
    assert in_order == sorted(in_order, key=ran.index), "named in another order than they run"


def test_the_overview_is_short() -> None:
    assert len(TEXT.encode()) <= 12 * 1024
