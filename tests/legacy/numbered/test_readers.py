"""xarray and dask read older generations as they read any repository."""

from __future__ import annotations

from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe import NumberedRefs, Repository
from icefloe.xarray import to_icechunk
from tests.legacy.numbered.releases import RELEASES, Release
from tests.legacy.numbered.test_old_releases import built


def dataset() -> xr.Dataset:
    temperature = np.arange(24, dtype="f4").reshape(4, 6)
    temperature[0, 0] = np.nan
    return xr.Dataset(
        {"temperature": (("time", "x"), temperature, {"units": "K"})},
        coords={"time": np.arange("2024-01-01", "2024-01-05", dtype="M8[D]").astype("M8[ns]")},
        attrs={"title": "ünïcode"},
    )


@pytest.mark.parametrize("encoding", ["json", "msgpack", "binary"])
def test_xarray_writes_and_reads_numbered_refs(encoding: Any) -> None:
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, generation=NumberedRefs(encoding))
    session = repo.writable_session("main")
    to_icechunk(dataset(), session, encoding={"temperature": {"chunks": (2, 3)}})
    session.commit("a dataset")
    again = Repository.open(storage).readonly_session("main")
    xr.testing.assert_identical(xr.open_zarr(again.store, consolidated=False).load(), dataset())
    session = Repository.open(storage).writable_session("main")
    later = dataset().assign_coords(time=dataset().time + np.timedelta64(4, "D"))
    to_icechunk(later, session, append_dim="time")
    session.commit("appended")
    both = xr.open_zarr(Repository.open(storage).readonly_session("main").store, consolidated=False)
    xr.testing.assert_identical(both.load(), xr.concat([dataset(), later], "time"))


@pytest.mark.parametrize("release", RELEASES.values(), ids=lambda release: release.name)
def test_dask_reads_old_releases(release: Release, tmp_path: Any) -> None:
    world, repo = built(release, tmp_path, 9)
    store = repo.readonly_session("main").store
    state = world.branches["main"].state
    assert state.arrays
    for path, array in state.arrays.items():
        read: Any = dask.array.from_zarr
        lazy = read(zarr.open_array(store, path=path.strip("/"), mode="r"))
        np.testing.assert_array_equal(lazy.compute(scheduler="threads"), array.values)
