"""xarray datasets survive the way into a repository and back, on every storage."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from icefloe import Repository, Session, Storage

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
pd: Any = pytest.importorskip("pandas", reason="comes with xarray")


def dataset(first_day: int = 0, num_days: int = 4) -> Any:
    """Packed integers, a missing value, times, text-free coordinates, attributes, two ranks."""
    days = np.arange(first_day, first_day + num_days)
    temperature = 20 + 0.1 * days[:, None, None] + np.arange(12).reshape(1, 3, 4) / 100
    temperature[0, 0, 0] = np.nan
    return xr.Dataset(
        {
            "temperature": (("time", "y", "x"), temperature, {"units": "degC"}),
            "height": (("y", "x"), np.arange(12, dtype="f4").reshape(3, 4), {"long_name": "z"}),
            "count": ((), np.int64(7)),
        },
        coords={
            "time": pd.Timestamp("2001-01-01") + pd.to_timedelta(days, "D"),
            "y": [50.0, 51.0, 52.0],
            "x": ("x", np.arange(4, dtype="i4"), {"axis": "X"}),
        },
        attrs={"title": "a test", "version": 3},
    )


ENCODING: dict[str, dict[str, Any]] = {
    "temperature": {
        "dtype": "int16",
        "scale_factor": 0.01,
        "add_offset": 10.0,
        "_FillValue": -9999,
        "chunks": (2, 3, 2),
    },
    "time": {"units": "hours since 2000-06-01", "calendar": "standard", "dtype": "int64"},
}


@pytest.fixture
def repository(storage: Storage) -> Repository:
    return Repository.create(storage)


def write(repository: Repository, data: Any, **options: Any) -> str:
    session = repository.writable_session("main")
    data.to_zarr(session.store, zarr_format=3, **{"consolidated": False, **options})
    return session.commit("written by xarray")


def read(session: Session, **options: Any) -> Any:
    return xr.open_zarr(session.store, zarr_format=3, **{"consolidated": False, **options}).load()


def test_a_dataset_comes_back(repository: Repository) -> None:
    write(repository, dataset())
    found = read(Repository.open(repository.storage).readonly_session("main"), chunks=None)
    xr.testing.assert_identical(found, dataset())


def test_encodings_are_stored_and_undone(repository: Repository) -> None:
    write(repository, dataset(), encoding=ENCODING)
    session = repository.readonly_session("main")
    xr.testing.assert_allclose(read(session, chunks=None), dataset(), rtol=0, atol=0.00501)
    stored = read(session, chunks=None, decode_cf=False)
    assert stored.temperature.dtype == np.int16
    assert stored.temperature[0, 0, 0] == -9999
    assert stored.temperature.attrs["scale_factor"] == 0.01
    assert stored.temperature.attrs["add_offset"] == 10.0
    assert stored.time.attrs["units"] == "hours since 2000-06-01"
    assert stored.time[0] == 24 * 214
    found = read(session, chunks=None)
    assert np.isnan(found.temperature[0, 0, 0])
    assert found.temperature.encoding["chunks"] == (2, 3, 2)
    assert found.temperature.encoding["_FillValue"] == -9999
    xr.testing.assert_equal(found.time, dataset().time)


def test_appending_along_time_keeps_what_was_there(repository: Repository) -> None:
    first = write(repository, dataset(0, 4), encoding=ENCODING)
    write(repository, dataset(4, 3).drop_vars(["height", "count"]), append_dim="time", mode="a")
    found = read(repository.readonly_session("main"), chunks=None)
    xr.testing.assert_allclose(
        found.temperature,
        xr.concat([dataset(0, 4).temperature, dataset(4, 3).temperature], "time"),
        rtol=0,
        atol=0.00501,
    )
    assert found.time.values[-1] == np.datetime64("2001-01-07")
    xr.testing.assert_identical(found.height, dataset().height)
    before = read(repository.readonly_session(snapshot_id=first), chunks=None)
    assert before.sizes["time"] == 4


@pytest.mark.parametrize("region", [{"time": slice(2, 4)}, "auto"])
def test_a_region_is_written_in_place(repository: Repository, region: Any) -> None:
    write(repository, dataset(), encoding={"temperature": {"chunks": (2, 3, 4)}})
    part = dataset().isel(time=slice(2, 4))[["temperature"]] + 100
    part = part.drop_vars(["x", "y"]) if region != "auto" else part
    part = part.drop_vars("time") if region != "auto" else part
    write(repository, part, region=region, mode="r+")
    found = read(repository.readonly_session("main"), chunks=None)
    expected = dataset().temperature.values.copy()
    expected[2:4] += 100
    np.testing.assert_array_equal(found.temperature.values, expected)
    xr.testing.assert_identical(found.height, dataset().height)


def test_a_dataset_in_a_group_and_one_at_the_root(repository: Repository) -> None:
    write(repository, dataset())
    write(repository, dataset(10), group="later/on")
    session = repository.readonly_session("main")
    xr.testing.assert_identical(read(session, chunks=None), dataset())
    xr.testing.assert_identical(read(session, chunks=None, group="later/on"), dataset(10))


def test_overwriting_leaves_nothing_of_the_old_dataset(repository: Repository) -> None:
    first = write(repository, dataset())
    write(repository, dataset(50, 2)[["temperature"]], mode="w")
    found = read(repository.readonly_session("main"), chunks=None)
    xr.testing.assert_identical(found, dataset(50, 2)[["temperature"]])
    old = read(repository.readonly_session(snapshot_id=first), chunks=None)
    xr.testing.assert_identical(old, dataset())


def test_nobody_sees_a_dataset_before_it_is_committed(repository: Repository) -> None:
    first = repository.lookup_branch("main")
    session = repository.writable_session("main")
    dataset().to_zarr(session.store, zarr_format=3, consolidated=False)
    xr.testing.assert_identical(read(session, chunks=None), dataset())
    assert repository.lookup_branch("main") == first
    session.discard_changes()
    assert not session.has_uncommitted_changes


def test_consolidated_metadata_is_stored_in_the_root_document(repository: Repository) -> None:
    """zarr says what it thinks of consolidated metadata in version 3; it works all the same."""
    session = repository.writable_session("main")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset().to_zarr(session.store, zarr_format=3, consolidated=True)
        session.commit("consolidated")
        found = read(repository.readonly_session("main"), consolidated=True, chunks=None)
    xr.testing.assert_identical(found, dataset())
    xr.testing.assert_identical(read(repository.readonly_session("main"), chunks=None), dataset())


@pytest.mark.parametrize("spec_version", [1, 2])
def test_the_default_way_needs_no_options(storage: Storage, spec_version: int) -> None:
    repository = Repository.create(storage, spec_version=spec_version)
    session = repository.writable_session("main")
    dataset().to_zarr(session.store)
    session.commit("written by xarray")
    found = xr.open_zarr(repository.readonly_session("main").store, chunks=None).load()
    xr.testing.assert_identical(found, dataset())
    found = xr.open_dataset(
        repository.readonly_session("main").store, engine="zarr", chunks=None
    ).load()
    xr.testing.assert_identical(found, dataset())
