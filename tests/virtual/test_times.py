"""Units of time mean what xarray makes of them, for both of its readers."""

from __future__ import annotations

import importlib
import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe import Repository
from icefloe.cf.times import parse_time_units
from icefloe.virtual import ingest_local
from tests.virtual.datasets import read

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
cftime: Any = pytest.importorskip("cftime", reason="comes with netCDF4")

pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
    "ignore:this date/calendar/year zero convention",
)

WORDS = [
    *("days", "day", "d", "hours", "hour", "h", "hr", "hrs", "minutes", "min", "mins"),
    *("seconds", "sec", "secs", "s", "milliseconds", "msec", "ms", "microseconds", "us"),
    *("nanoseconds", "ns", "weeks", "week", "months", "years", "common_years", "Days", "HOURS"),
    "fortnights",
]
DATES = [
    "2000-01-01",
    "2000-1-1",
    "2000-01-01 06",
    "2000-01-01 6",
    "2000-01-01T06",
    "2000-01-01 06:30",
    "2000-1-1 6:3:2.25",
    "2000-01-01T06:30:15Z",
    "2000-01-01 06:30:15 UTC",
    "2000-01-01 00:00:00 GMT",
    "2000-01-01 00:00:00 -6:00",
    "2000-01-01 00:00:00 +5:30",
    "2000-01-01 00:00:00 -06:00",
    "2000-01-01 00:00:00-06",
    "2000-01-01 00:00:00 -5",
    "2000-01-01 00:00 +0530",
    "2000-01-01 00:00:00.0 -0",
    "2000-01-01, 12:00",
    "2000/01/02",
    "01-02-2000",
    "20000101",
    "20000101T06",
    "2000",
    "2000-03",
    "1900-02-29",
    "2000-02-30",
    "2000-13-01",
    "2000-01-01 24:00:00",
    "2000-01-01 00:00:60",
    "1-1-1",
    "0001-01-01 00:00:00",
    "0-1-1",
    "1582-10-10",
    "1582-10-04",
    "1500-02-29",
    "-4713-01-01",
    "now",
    "200001",
    "1-Jan-1900",
    "01 JAN 1985 06:30",
    "2000-Jan-31 00:00:00",
    "2000-1-31T060000 +5:30",
    "20000131T060000Z",
    "2000-01-31T0600",
    "2000-01-31 12:00:00 PM",
    "2000-01-31 6:00 pm -0600",
    "2000.01.31 06:00",
    "2000 1 31 6:00",
    "2000-01-31 00:00:00 EST",
    "2000-01-31 00:00:00 (UTC)",
    "2000-01-31 23:59:59.9999999",
    "0001-01-31 23:59:59.9999999",
    "2000-01-01 00:00:00 +24:00",
    "January 2000",
    "today",
]
CALENDARS = [None, "gregorian", "proleptic_gregorian", "julian", "noleap", "all_leap", "360_day"]


def by_xarray(units: str, calendar: str | None, value: int) -> Any:
    """The year to the microsecond that xarray shows; None if it shows no date."""
    attributes = {"units": units} | ({} if calendar is None else {"calendar": calendar})
    variable = xr.Variable(("time",), np.array([value], "i8"), attributes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = xr.conventions.decode_cf_variable("time", variable).values
    except ValueError:
        return None
    if found.dtype.kind == "i":
        return None
    if found.dtype.kind == "M":
        return found.astype("M8[us]").astype(str).tolist()[0]
    moment = found[0]
    clock = f"{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d}.{moment.microsecond:06d}"
    return f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}T{clock}"


def by_icefloe(units: str, calendar: str | None, value: int) -> Any:
    """The same, by way of cftime, which only has to count days here."""
    found = parse_time_units(units, calendar)
    if found is None:
        return None
    name = calendar or "standard"
    since = int(found.decode(np.array([value]))[0])
    days, rest = divmod(since, 86400 * 10**6)
    first = "1969-12-19" if name == "julian" else "1970-01-01"  # the same day
    day = cftime.num2date(days, f"days since {first}", name)
    seconds, micros = divmod(rest, 10**6)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d}"
    return f"{day.year:04d}-{day.month:02d}-{day.day:02d}T{clock}"


@pytest.mark.parametrize("calendar", CALENDARS)
def test_every_date_is_the_one_that_xarray_reads(calendar: str | None) -> None:
    for date, word in itertools.product(DATES, ["days", "hrs"]):
        units = f"{word} since {date}"
        assert by_icefloe(units, calendar, 3) == by_xarray(units, calendar, 3), units


@pytest.mark.parametrize("calendar", CALENDARS)
def test_every_unit_is_the_one_that_xarray_knows(calendar: str | None) -> None:
    for word in WORDS:
        for form in ("{} since 2000-01-01", " {}  since  2000-01-01 ", "{} after 2000-01-01"):
            units = form.format(word)
            assert by_icefloe(units, calendar, 7000) == by_xarray(units, calendar, 7000), units
    for units in ("days Since 2000-01-01", "DAYS SINCE 2000-01-01", "day as %Y%m%d.%f", "", "1"):
        assert by_icefloe(units, calendar, 1) is by_xarray(units, calendar, 1) is None, units


def test_spark_means_the_same() -> None:
    pytest.importorskip("pyspark", reason="Spark is an optional dependency")
    cf_time = importlib.import_module("icefloe.scans.variables")
    for date in DATES:
        attributes = {"units": f"hours since {date}"}
        found, wanted = cf_time.find_time_units(attributes), by_xarray(attributes["units"], None, 5)
        if found is None:
            assert wanted is None, date
        elif wanted is not None and wanted >= "1582-10-15":
            assert str(found.decode(np.array([5]), None)[0]) == wanted


@pytest.mark.parametrize("zones", [("-6:00", "+5:30"), ("-06:00", "Z")])
def test_zones_decide_the_order_of_files(
    tmp_path: Path, repository: Repository, zones: tuple[str, str]
) -> None:
    for name, zone, values in zip("ab", zones, ([0, 1], [20, 21]), strict=True):
        units = f"hours since 2000-01-01 00:00:00 {zone}"
        data = xr.Dataset({"t": ("time", np.array(values, "f4"))}, {"time": np.array(values, "f8")})
        data.time.attrs["units"] = units
        data.to_netcdf(tmp_path / f"{name}.nc")
    ingest_local(tmp_path / "*.nc", repository)
    found = read(repository.readonly_session("main").store)
    parts = [xr.open_dataset(tmp_path / f"{name}.nc").load() for name in "ab"]
    wanted = xr.concat(parts, "time").sortby("time")
    xr.testing.assert_equal(found, wanted)


def test_bounds_are_written_in_the_units_of_their_times(
    tmp_path: Path, repository: Repository
) -> None:
    for day, name in enumerate("ab"):
        bounds = np.array([[0.0, 24.0]])
        data = xr.Dataset({"time_bnds": (("time", "nv"), bounds)}, {"time": [12.0]})
        attributes = {"units": f"hours since 2000-01-0{day + 1}", "bounds": "time_bnds"}
        data.time.attrs.update(attributes, calendar="noleap")
        data.to_netcdf(tmp_path / f"{name}.nc")
    ingest_local(tmp_path / "*.nc", repository)
    raw = read(repository.readonly_session("main").store, decode_cf=False)
    assert raw.time.values.tolist() == [12.0, 36.0]
    assert raw.time_bnds.values.tolist() == [[0.0, 24.0], [24.0, 48.0]]
