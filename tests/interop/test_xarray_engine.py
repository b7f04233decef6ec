"""The xarray engine: versions of a repository by path or URL."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.interop.xarray_engine import IcefloeBackendEntrypoint as Engine
from icefloe.xarray import to_icechunk

FIRST = xr.Dataset(
    {"t2m": (("time", "x"), np.arange(6, dtype="f4").reshape(2, 3))},
    coords={"time": np.array(["2026-01-01", "2026-01-02"], "datetime64[ns]")},
)


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    """One dataset in two versions, the first tagged, and one below it."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "weather")))
    session = repo.writable_session("main")
    to_icechunk(FIRST, session)
    to_icechunk(FIRST.isel(time=[0]), session, group="day")
    repo.create_tag("v1", session.commit("first"))
    session = repo.writable_session("main")
    to_icechunk(FIRST + 1, session, mode="w")
    session.commit("second")
    return repo


@pytest.mark.parametrize(
    "form", ["{}@v1", "icefloe+file://{}@v1", "file://{}|icechunk:@tag.v1", "{}@tag.v1"]
)
def test_a_version_is_opened_by_its_address(
    repo: icefloe.Repository, tmp_path: Path, form: str
) -> None:
    with xr.open_dataset(form.format(tmp_path / "weather"), engine=Engine) as found:
        xr.testing.assert_identical(found.load(), FIRST)


def test_without_a_ref_it_is_main(repo: icefloe.Repository, tmp_path: Path) -> None:
    sources: list[Any] = [tmp_path / "weather", repo, repo.readonly_session("main")]
    for source in sources:
        with xr.open_dataset(source, engine=Engine) as found:
            xr.testing.assert_identical(found.load(), FIRST + 1)
    with xr.open_dataset(sources[1], engine=Engine, ref="v1", decode_times=False) as found:
        assert found.time.dtype.kind == "i"


def test_groups(repo: icefloe.Repository, tmp_path: Path) -> None:
    address = f"{tmp_path / 'weather'}@v1"
    with xr.open_dataset(address, engine=Engine, group="day") as day:
        assert day.sizes == {"time": 1, "x": 3}
    assert set(xr.open_groups(address, engine=Engine)) == {"/", "/day"}


def test_trees(tmp_path: Path) -> None:
    repo: Any = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    to_icechunk(FIRST, session)
    to_icechunk(FIRST * 2, session, group="twice")
    session.commit("two")
    with xr.open_datatree(repo, engine=Engine) as tree:
        xr.testing.assert_identical(tree["twice"].to_dataset().load(), FIRST * 2)


def test_dask_reads_it(repo: icefloe.Repository, tmp_path: Path) -> None:
    # A URL: older xarray looks for the time of change of what may be a local file.
    found = xr.open_dataset(f"file://{tmp_path / 'weather'}@v1", engine=Engine, chunks={})
    xr.testing.assert_identical(found.compute(scheduler="threads"), FIRST)


def test_mistakes_are_explained(repo: icefloe.Repository, tmp_path: Path) -> None:
    session: Any = repo.readonly_session("main")
    with pytest.raises(icefloe.RefNotFoundError, match="there are main, v1"):
        xr.open_dataset(f"{tmp_path / 'weather'}@v2", engine=Engine)
    with pytest.raises(icefloe.InvalidInputError, match="give one of them"):
        xr.open_dataset(f"{tmp_path / 'weather'}@v1", engine=Engine, ref="main")
    with pytest.raises(icefloe.InvalidInputError, match="at a version already"):
        xr.open_dataset(session, engine=Engine, ref="v1")
    with pytest.raises(icefloe.RepositoryNotFoundError):
        xr.open_dataset(tmp_path / "elsewhere", engine=Engine)


def test_xarray_finds_the_engine(repo: icefloe.Repository, tmp_path: Path) -> None:
    (found,) = entry_points(group="xarray.backends", name="icefloe")
    assert found.load() is Engine
    address = f"icefloe+file://{tmp_path / 'weather'}@v1"
    with xr.open_dataset(address) as guessed:  # no other engine claims such an address
        xr.testing.assert_identical(guessed.load(), FIRST)
