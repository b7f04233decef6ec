"""Every view of the page shows the values that xarray shows, whatever the attributes say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

import icefloe
from icefloe.ui import PageServer, pictures
from tests.cf_cases import CASES, Case, comparable, write_case, xarray_values
from tests.ui.asking import ask, value
from tests.ui.conftest import serving
from tests.ui.test_pictures import picture

NUMBERS = {name: case for name, case in CASES.items() if case.dtype[0] not in "sUS"}


def shown(value: Any) -> Any:
    """A decoded value as the page gets it."""
    if isinstance(value, complex) or (isinstance(value, float) and np.isinf(value)):
        return str(value)
    if isinstance(value, int) and abs(value) > 2**53:
        return str(value)
    return value


def repository_of(case: Case) -> tuple[icefloe.Repository, str, list[Any]]:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    tip = write_case(repo, case)
    return repo, tip, comparable(xarray_values(repo))


def as_numbers(values: list[Any]) -> np.ndarray[Any, Any]:
    plain = [
        np.nan if one is None else abs(one) if isinstance(one, complex) else one for one in values
    ]
    return np.array(plain, np.float64)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_read_out_and_the_series_agree_with_xarray(case: Case) -> None:
    repo, tip, expected = repository_of(case)
    with serving(repo) as server:
        for at in range(3):
            line = value(server, "values", snapshot=tip, path="/a", at=at)
            plane = value(server, "values", snapshot=tip, path="/plane", at=f"1,{at}")
            found = None if line["value"] == "nan" else line["value"]
            assert found == shown(expected[at])
            assert line == plane
            is_time = line["kind"] in ("time", "duration")
            assert line["units"] == (None if is_time else case.attributes.get("units"))
        series = value(server, "values", snapshot=tip, path="/plane", axes=1, at="0,0")
        if not series["is_number"]:
            assert series["list"] == expected
            return
        numbers = as_numbers(expected)
        assert series["list"] == [None if np.isnan(one) else shown(one) for one in numbers.tolist()]
        check_statistics(series, numbers)


def check_statistics(about: dict[str, Any], numbers: np.ndarray[Any, Any]) -> None:
    finite = numbers[np.isfinite(numbers)]
    assert about["values"] == int((~np.isnan(numbers)).sum())
    assert about["infinite"] == int(np.isinf(numbers).sum())
    if not len(finite):
        assert (about["min"], about["mean"], about["max"]) == (None, None, None)
        return
    assert (about["min"], about["max"]) == (finite.min(), finite.max())
    assert about["mean"] == pytest.approx((finite / len(finite)).sum())


@pytest.mark.parametrize("case", NUMBERS.values(), ids=NUMBERS)
def test_the_picture_and_its_statistics_agree_with_xarray(case: Case) -> None:
    repo, tip, expected = repository_of(case)
    numbers = as_numbers(expected)
    with serving(repo) as server:
        about, pixels = picture(server, snapshot=tip, path="/plane", axes="0,1", at="0,0")
    check_statistics(about, np.stack([numbers] * 2))
    assert ((pixels[0] == pictures.NOTHING) == np.isnan(numbers)).all()
    order = np.argsort(numbers[~np.isnan(numbers)])
    steps = pixels[0][~np.isnan(numbers)][order].astype(int)
    assert (np.diff(steps) >= 0).all()
    if about["min"] != about["max"]:
        assert (steps[0], steps[-1]) == (0, pictures.NUM_STEPS - 1)


@pytest.mark.parametrize("case", NUMBERS.values(), ids=NUMBERS)
def test_the_difference_agrees_with_xarray(case: Case) -> None:
    repo, first, before = repository_of(case)
    with repo.transaction("main", message="turned round") as store:
        for name in ("a", "plane"):
            array = zarr.open_array(store, path=name)
            array[...] = np.roll(array[...], 1, -1)
    second = repo.lookup_branch("main")
    was, now = as_numbers(before), as_numbers(comparable(xarray_values(repo)))
    with np.errstate(all="ignore"):
        change = np.where(was == now, 0, now - was)
    given = {"from": first, "snapshot": second, "path": "/plane", "axes": "0,1", "at": "0,0"}
    with serving(repo) as server:
        about, pixels = picture(server, "difference", **given)
    appeared, vanished = np.isnan(was) & ~np.isnan(now), ~np.isnan(was) & np.isnan(now)
    assert (about["appeared"], about["vanished"]) == (2 * appeared.sum(), 2 * vanished.sum())
    assert about["changed"] == 2 * np.count_nonzero(change[~np.isnan(change)])
    amounts = np.abs(change[~np.isnan(change)]).max(initial=0)
    assert about["largest"] == min(amounts, np.finfo("f8").max)
    middle = pictures.NUM_STEPS // 2
    assert (pixels[0][change == 0] == middle).all()
    assert (pixels[0][change > 0] >= middle).all()
    assert (pixels[0][change < 0] <= middle).all()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_export_agrees_with_xarray(case: Case, tmp_path: Path) -> None:
    repo, _, expected = repository_of(case)
    icefloe.export_parquet(repo, f"file://{tmp_path}/cells", variables="a")
    column = pq.read_table(tmp_path / "cells")["a"]
    if str(column.type).startswith(("timestamp", "duration")):
        column = column.cast("int64")
    plain = [complex(*one.values()) if isinstance(one, dict) else one for one in column.to_pylist()]
    assert comparable(np.array(plain, object)) == expected


# --- coordinates


def test_packed_coordinates_are_unpacked_on_rulers() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="packed coordinates") as store:
        root = zarr.group(store)
        root.create_array("t2m", shape=(2, 3), dtype="f4", dimension_names=["lat", "time"])
        lat = root.create_array("lat", data=np.array([-5000, 5000], "i2"), dimension_names=["lat"])
        lat.attrs.update(scale_factor=0.01, units="degrees_north")
        time = root.create_array("time", data=np.array([0, -1, 12]), dimension_names=["time"])
        time.attrs.update(units="hours since 2020-01-01", _FillValue=-1, bounds="time_bnds")
        bounds = root.create_array(
            "time_bnds", data=np.array([[0, 6]] * 3), dimension_names=["time", "nv"]
        )
        assert not dict(bounds.attrs)
    tip = repo.lookup_branch("main")
    with serving(repo) as server:
        lat_axis, time_axis = value(server, "axes", snapshot=tip, path="/t2m")
        assert (lat_axis["labels"], lat_axis["units"]) == (["-50", "50"], "degrees_north")
        assert lat_axis["upside_down"] is True
        assert time_axis["labels"] == ["2020-01-01 00:00", "–", "2020-01-01 12:00"]
        assert time_axis["units"] is None
        told = value(server, "values", snapshot=tip, path="/time_bnds", at="0,1")
        six = np.datetime64("2020-01-01T06", "us").astype(int)
        assert told == {"value": six, "kind": "time", "units": None}


def test_dates_that_have_no_timestamp_are_numbers_with_their_units() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="long ago") as store:
        array = zarr.create_array(store, name="a", data=np.array([[1, 2]]))
        array.attrs.update(units="days since 0001-01-01", calendar="standard")
    tip = repo.lookup_branch("main")
    with serving(repo) as server:
        told = value(server, "values", snapshot=tip, path="/a", at="0,1")
        assert told == {"value": 2, "kind": "number", "units": "days since 0001-01-01"}
        about, _ = picture(server, snapshot=tip, path="/a", axes="0,1", at="0,0")
        assert (about["max"], about["units"]) == (2, "days since 0001-01-01")


# --- answers are JSON


def test_numbers_that_json_lacks_never_make_an_invalid_answer() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    odd: Any = {"missing_value": np.nan, "valid_range": [-np.inf, np.inf], "large": 10**400}
    array = zarr.create_array(session.store, name="a", shape=(2, 2), dtype="f8", attributes=odd)
    array[...] = [[1.7e308, -1.7e308], [np.inf, np.nan]]
    first = session.commit("odd numbers")
    with repo.transaction("main", message="the other way round") as store:
        zarr.open_array(store, path="a")[...] = [[-1.7e308, 1.7e308], [-np.inf, 1]]
    tip = repo.lookup_branch("main")
    given = {
        "from": first,
        "snapshot": tip,
        "path": "/a",
        "axes": "0,1",
        "at": "0,0",
        "index": "0,0",
    }

    def check(server: PageServer, address: str, **parameters: Any) -> Any:
        reply = ask(server, f"/api/{address}", **parameters)
        assert reply.status == 200, reply.body
        text = reply.headers["X-Icefloe-About"] or reply.body.decode()
        assert not [word for word in ("NaN,", "NaN}", ":Infinity", ":-Infinity") if word in text]
        return reply.value if reply.headers["X-Icefloe-About"] is None else None

    with serving(repo) as server:
        node = check(server, "node", snapshot=tip, path="/a")
        assert node["attributes"]["missing_value"] == "NaN"
        assert node["attributes"]["valid_range"] == ["-Infinity", "Infinity"]
        for address in ("picture", "difference", "changed-chunks", "chunk-map", "axes"):
            check(server, address, **given)
        check(server, "values", snapshot=tip, path="/a", axes="1", at="0,0")
