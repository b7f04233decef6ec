"""Virtual datasets of VirtualiZarr in a repository: equal to the files they refer to."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from obstore.store import LocalStore

import icefloe
from icefloe.xarray import to_icechunk, virtual_to_icechunk

virtualizarr: Any = pytest.importorskip("virtualizarr", reason="the extra virtual is not installed")
# VirtualiZarr's own up to 2.3; later releases have it in a package that comes with them.
has_own = find_spec("obspec_utils") is None
registries: Any = import_module("virtualizarr.registry" if has_own else "obspec_utils.registry")
pytest.importorskip("h5netcdf", reason="makes the files")

parsers: Any = pytest.importorskip("virtualizarr.parsers", reason="as above")


def dataset(first: int, days: int = 4) -> xr.Dataset:
    values = np.arange(first * 6, (first + days) * 6, dtype="f8").reshape(days, 6) / 10
    values[0, 0] = np.nan
    return xr.Dataset(
        {
            "t": (("time", "x"), values, {"units": "K"}),
            "height": (("x",), np.arange(6, dtype="i4")),
        },
        coords={
            "time": np.datetime64("2026-01-01", "ns")
            + np.arange(first, first + days) * np.timedelta64(1, "D"),
            "x": np.arange(6.0),
        },
        attrs={"title": "weather"},
    )


ENCODING: dict[str, Any] = {
    "t": {
        "dtype": "i2",
        "scale_factor": 0.1,
        "add_offset": 5.0,
        "_FillValue": -1,
        "chunksizes": (2, 3),
        "zlib": True,
        "shuffle": True,
    },
    "time": {"units": "days since 2026-01-01", "dtype": "i4"},
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, first in (("a", 0), ("b", 4)):
        dataset(first).to_netcdf(tmp_path / f"{name}.nc", engine="h5netcdf", encoding=ENCODING)
    return tmp_path


def virtual(file: Path, **options: Any) -> Any:
    registry = registries.ObjectStoreRegistry({"file://": LocalStore()})
    return virtualizarr.open_virtual_dataset(
        f"file://{file}", registry=registry, parser=parsers.HDFParser(), **options
    )


@pytest.fixture
def repo(files: Path) -> icefloe.Repository:
    url = f"file://{files}/"
    container = icefloe.VirtualChunkContainer(url, icefloe.local_filesystem_store(str(files)))
    config = icefloe.RepositoryConfig(virtual_chunk_containers={url: container})
    access = icefloe.credentials.LocalFileSystemAccess
    return icefloe.Repository.create(
        icefloe.in_memory_storage(), config, authorize_virtual_chunk_access={url: access}
    )


def written(repo: icefloe.Repository, data: Any, **options: Any) -> str:
    session = repo.writable_session("main")
    virtual_to_icechunk(data, session, **options)
    return session.commit("virtual")


def test_it_reads_as_the_file(repo: icefloe.Repository, files: Path) -> None:
    written(repo, virtual(files / "a.nc", loadable_variables=["time", "x"]))
    with repo.to_xarray() as found, xr.open_dataset(files / "a.nc", engine="h5netcdf") as expected:
        xr.testing.assert_identical(found.load(), expected.load())
    session = repo.readonly_session("main")
    assert session.chunk_type("/t", [0, 0]) == icefloe.ChunkType.virtual


def test_all_variables_may_be_virtual(repo: icefloe.Repository, files: Path) -> None:
    written(repo, virtual(files / "a.nc", loadable_variables=[]), group="all/of/it")
    with (
        repo.to_xarray(group="all/of/it") as found,
        xr.open_dataset(files / "a.nc", engine="h5netcdf") as expected,
    ):
        xr.testing.assert_identical(found.load(), expected.load())


def test_appending_and_regions(repo: icefloe.Repository, files: Path) -> None:
    loaded = ["time", "x"]
    written(repo, virtual(files / "a.nc", loadable_variables=loaded))
    second = virtual(files / "b.nc", loadable_variables=loaded)
    written(repo, second.drop_vars("height"), append_dim="time")
    both = xr.concat([dataset(0), dataset(4)], "time", data_vars="minimal")
    with repo.to_xarray() as found:
        xr.testing.assert_allclose(found.load(), both)
        assert found.t.dims == ("time", "x")
    swapped = second.drop_vars(["height", "x"])
    written(repo, swapped, region={"time": slice(0, 4)})
    with repo.to_xarray() as found:
        np.testing.assert_allclose(found.t[:4], dataset(4).t)
        np.testing.assert_allclose(found.t[4:], dataset(4).t)
    session = repo.writable_session("main")
    with pytest.raises(icefloe.InvalidInputError, match="begin at multiples of 2, not at 1"):
        virtual_to_icechunk(swapped, session, region={"time": slice(1, 5)})


def test_chunks_that_do_not_fit_are_refused(repo: icefloe.Repository, files: Path) -> None:
    written(repo, virtual(files / "a.nc", loadable_variables=["time", "x"]))
    other = files / "other.nc"
    encoding = {**ENCODING, "t": {**ENCODING["t"], "chunksizes": (2, 2)}}
    dataset(4).to_netcdf(other, engine="h5netcdf", encoding=encoding)
    session = repo.writable_session("main")
    data = virtual(other, loadable_variables=["time", "x"]).drop_vars("height")
    with pytest.raises(icefloe.InvalidInputError, match="exists with another chunk_grid"):
        virtual_to_icechunk(data, session, append_dim="time")


def test_a_missing_container_is_named(files: Path) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    data = virtual(files / "a.nc", loadable_variables=["time", "x"])
    with pytest.raises(icefloe.InvalidInputError, match=r"no virtual chunk container .*a\.nc"):
        virtual_to_icechunk(data, session)


def test_to_icechunk_says_who_writes_virtual_datasets(
    repo: icefloe.Repository, files: Path
) -> None:
    data = virtual(files / "a.nc", loadable_variables=["time", "x"])
    with pytest.raises(TypeError, match="virtual_to_icechunk"):
        to_icechunk(data, repo.writable_session("main"))


def test_trees(repo: icefloe.Repository, files: Path) -> None:
    tree = xr.DataTree.from_dict(
        {
            f"/{name}": virtual(files / f"{name}.nc", loadable_variables=["time", "x"])
            for name in "ab"
        }
    )
    written(repo, tree)
    with repo.to_xarray_tree() as found:
        for name, first in (("a", 0), ("b", 4)):
            xr.testing.assert_allclose(found[name].to_dataset().load(), dataset(first))


def test_it_is_what_virtualizarr_writes_with_official_icechunk(
    repo: icefloe.Repository, files: Path
) -> None:
    icechunk = pytest.importorskip("icechunk", minversion="2", reason="needs Python 3.12 or later")
    url = f"file://{files}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(url, icechunk.local_filesystem_store(str(files)))
    )
    other = icechunk.Repository.create(icechunk.in_memory_storage(), config)
    data = virtual(files / "a.nc", loadable_variables=["time", "x"])
    session = other.writable_session("main")
    data.vz.to_icechunk(session.store)
    written(repo, data)
    here = repo.readonly_session("main").store
    stores = {"official": session.store, "icefloe": here}
    opened = {
        name: xr.open_dataset(store, engine="zarr", consolidated=False, decode_cf=False)
        for name, store in stores.items()
    }
    assert opened["official"].attrs == opened["icefloe"].attrs
    for name in opened["official"].variables:
        mine, theirs = opened["icefloe"][name], opened["official"][name]
        assert (mine.dims, mine.dtype) == (theirs.dims, theirs.dtype)
        np.testing.assert_equal(mine.attrs, theirs.attrs)
