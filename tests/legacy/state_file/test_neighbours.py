"""xarray and dask on datasets with a state file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import icefloe
from tests.legacy.state_file.datasets import create

xr = pytest.importorskip("xarray")
pytest.importorskip("dask")


def test_xarray_writes_and_reads_with_and_without_dask(tmp_path: Path) -> None:
    repo = create(icefloe.local_filesystem_storage(tmp_path))
    times = np.arange(30).astype("datetime64[D]").astype("datetime64[ns]")
    data = xr.Dataset(
        {"t": (("time", "x"), np.random.default_rng(3).random((30, 8)), {"units": "K"})},
        {"time": times, "name": ("x", [f"station {at}" for at in range(8)])},
        {"title": "made up"},
    )
    session = repo.writable_session("main")
    data.isel(time=slice(20)).to_zarr(session.store, consolidated=False)
    session.commit("first")
    session = repo.writable_session("main")
    data.isel(time=slice(20, None)).to_zarr(session.store, append_dim="time", consolidated=False)
    session.commit("appended")
    again = icefloe.Repository.open(repo.storage)
    ways: list[dict[str, int] | None] = [None, {}]  # at once, and with dask
    for chunks in ways:
        found = xr.open_zarr(
            again.readonly_session("main").store, consolidated=False, chunks=chunks
        )
        xr.testing.assert_identical(found.load(), data)
    before = [entry.id for entry in again.ancestry(branch="main")][1]
    old = xr.open_zarr(again.readonly_session(snapshot_id=before).store, consolidated=False)
    assert old.sizes["time"] == 20
