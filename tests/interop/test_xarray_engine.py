"""The xarray engine: versions of a repository by path or URL."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

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


def test_a_repository_shows_its_versions(repo: icefloe.Repository) -> None:
    with repo.to_xarray("v1") as found:
        xr.testing.assert_identical(found.load(), FIRST)
    with repo.to_xarray("v1", group="day", decode_times=False) as found:
        assert found.time.dtype.kind == "i"
    lazy = repo.to_xarray(chunks={})
    assert lazy.chunks
    xr.testing.assert_identical(lazy.compute(scheduler="threads"), FIRST + 1)


def test_pipelines_are_never_taken_for_a_prefix(repo: icefloe.Repository, tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'weather'}"
    store = icefloe.open_store(f"{url}|icechunk:@tag.v1")
    assert zarr.open_array(store, path="t2m", mode="r")[1, 2] == 5
    assert icefloe.open_store(repo).session.snapshot_id == repo.lookup_branch("main")
    for wrong in (f"{url}|icechunk:@main", "s3://b/p|icechunk:@branch.main", f"{url}|zarr3:"):
        with pytest.raises(icefloe.InvalidInputError, match="Zarr URL pipeline"):
            icefloe.storage_from_url(wrong)
    with pytest.raises(icefloe.InvalidInputError, match="Zarr URL pipeline"):
        icefloe.open_store(f"{url}|zarr3:")
    odd = tmp_path / "odd|zarr3:name"
    odd.mkdir()
    assert icefloe.storage_from_url(str(odd)) is not None


# -- trees


TREE = xr.DataTree.from_dict({"/": FIRST[["time"]], "/a": FIRST * 2, "/a/b": FIRST * 3})


def test_a_tree_is_written_and_read(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    to_icechunk(TREE, session, encoding={"/a": {"t2m": {"dtype": "f8"}}})
    to_icechunk(TREE["a"], session, group="copy/of", write_inherited_coords=True)
    session.commit("tree")
    with repo.to_xarray_tree() as found:
        xr.testing.assert_equal(found["a"].to_dataset().load(), FIRST * 2)
        assert found["a/t2m"].encoding["dtype"] == "float64"
        xr.testing.assert_identical(found["a/b"].to_dataset().load(), FIRST * 3)
        xr.testing.assert_identical(found["copy/of/b"].to_dataset().load(), FIRST * 3)


def test_a_tree_replaces_or_refuses_what_is_there() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    to_icechunk(FIRST, session, group="old")
    with pytest.raises(FileExistsError):
        to_icechunk(TREE, session)
    to_icechunk(TREE, session, mode="w")
    session.commit("tree")
    with repo.to_xarray_tree() as found:
        assert found.groups == ("/", "/a", "/a/b")
    with pytest.raises(ValueError, match="encoding has /nothing"):
        to_icechunk(TREE, repo.writable_session("main"), encoding={"/nothing": {}})


def test_a_tree_of_dask_arrays_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    forks, fork = [], icefloe.Session.fork

    def counted(session: icefloe.Session) -> icefloe.ForkSession:
        forks.append(session)
        return fork(session)

    monkeypatch.setattr(icefloe.Session, "fork", counted)
    to_icechunk(TREE.chunk({"x": 1}), session)
    session.commit("tree")
    assert len(forks) == 1
    with repo.to_xarray_tree() as found:
        xr.testing.assert_identical(found["a/b"].to_dataset().load(), FIRST * 3)


def test_chunked_arrays_without_values_are_written() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    empty = xr.Dataset({"x": (("a", "b"), np.empty((5, 0)))}).chunk({"a": 1})
    to_icechunk(empty, session)
    session.commit("empty")
    assert empty.chunks, "the caller's dataset is as it was"
    with repo.to_xarray() as found:
        xr.testing.assert_identical(found.load(), empty.compute())


# -- what is missing


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import icefloe.xarray", "pip install 'icefloe[xarray]'"),
        ("import icefloe.dask", "pip install 'icefloe[dask]'"),
        (
            "import icefloe; icefloe.Repository.create(icefloe.in_memory_storage()).to_xarray()",
            "pip install 'icefloe[xarray]'",
        ),
    ],
)
def test_missing_packages_are_named(program: str, said: str) -> None:
    hidden = "import sys; sys.modules.update({'xarray': None, 'dask': None, 'dask.array': None})"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}; {program}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]


def test_a_folder_that_has_a_repository_needs_no_engine(
    repo: icefloe.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places: list[Any] = ["weather", tmp_path / "weather", "weather/"]
    for place in places:
        with xr.open_dataset(place) as found:
            xr.testing.assert_identical(found.load(), FIRST + 1)
    with xr.open_dataset("weather@v1") as found:
        xr.testing.assert_identical(found.load(), FIRST)
    assert "/day" in xr.open_groups("weather@v1")
    icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "old")), spec_version=1
    )
    engine = Engine()
    assert engine.guess_can_open("old")
    (tmp_path / "empty").mkdir()
    FIRST.to_zarr(tmp_path / "plain", zarr_format=3, consolidated=False)
    for other in ("empty", "plain", "nothing", "weather/repo", "s3://bucket/weather", "", b"x", 5):
        assert not engine.guess_can_open(other), other


def test_the_folder_of_a_damaged_repository_is_recognised(
    repo: icefloe.Repository, tmp_path: Path
) -> None:
    (tmp_path / "weather/repo").write_bytes(b"damaged")
    with pytest.raises(icefloe.FormatError):
        xr.open_dataset(str(tmp_path / "weather"))
