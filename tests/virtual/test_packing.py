"""Files that pack a variable differently, or whose coordinates differ by rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe import InvalidInputError, Repository
from icefloe.virtual import ingest_local
from icefloe.virtual.model.data_types import missing_value_of
from icefloe.virtual.model.description import VariableDescription
from icefloe.virtual.planning.plan import packing_of
from tests.cf_cases import CASES, Case, comparable, write_case, xarray_values
from tests.virtual.datasets import read

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
pytest.importorskip("netCDF4", reason="makes NetCDF files")

pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
)


def write(path: Path, day: int, encoding: dict[str, Any], **attributes: Any) -> Path:
    values = 270 + np.linspace(0, 20, 12).reshape(2, 6) + day
    values[0, 1] = np.nan
    data = xr.Dataset(
        {"t2m": (("time", "x"), values, {"units": "K", **attributes})},
        {"time": [2 * day, 2 * day + 1], "x": np.arange(6.0)},
    )
    data.to_netcdf(path, encoding={"t2m": encoding})
    return path


def era(day: int) -> dict[str, Any]:
    return {"dtype": "i2", "scale_factor": 0.001 * (day + 1), "add_offset": 280.0 + day,
            "_FillValue": -32767 + day}  # fmt: skip


def contents(repository: Repository, **options: Any) -> Any:
    return read(repository.readonly_session("main").store, **options)


def test_files_with_scales_of_their_own_are_unpacked(
    tmp_path: Path, repository: Repository
) -> None:
    paths = [write(tmp_path / f"{day}.nc", day, era(day)) for day in range(3)]
    result = ingest_local(paths[:2], repository, concat_dim="time")
    ingest_local(paths[2], repository, concat_dim="time", append=True)
    parts = [xr.open_dataset(path).load() for path in paths]
    wanted = xr.concat(parts, "time")
    found = contents(repository)
    xr.testing.assert_equal(found, wanted)
    assert found.t2m.dtype == np.float64
    assert np.isnan(found.t2m.values[0, 1])
    assert result.notes == (
        "variable 't2m': files pack it differently, so that it is stored unpacked, as float64",
    )


def test_types_that_differ_are_widened(tmp_path: Path, repository: Repository) -> None:
    kinds: list[dict[str, Any]] = [{"dtype": "f4", "_FillValue": None}, {"dtype": "f8"}]
    for day, kind in enumerate(kinds):
        write(tmp_path / f"{day}.nc", day, {"_FillValue": None, **kind})
    ingest_local(tmp_path / "*.nc", repository, concat_dim="time")
    parts = [xr.open_dataset(tmp_path / f"{day}.nc").load() for day in range(2)]
    xr.testing.assert_equal(contents(repository), xr.concat(parts, "time"))
    assert contents(repository).t2m.dtype == np.float64


def test_other_units_are_never_joined(tmp_path: Path, repository: Repository) -> None:
    write(tmp_path / "a.nc", 0, era(0))
    write(tmp_path / "b.nc", 1, era(0), units="degC")
    with pytest.raises(InvalidInputError, match="variable 't2m' has units"):
        ingest_local(tmp_path / "*.nc", repository, concat_dim="time")


def test_references_cannot_be_unpacked(tmp_path: Path, repository: Repository) -> None:
    for day in range(2):
        write(tmp_path / f"{day}.nc", day, era(day))
    with pytest.raises(InvalidInputError, match="variable 't2m' has _FillValue"):
        ingest_local(tmp_path / "*.nc", repository, concat_dim="time", mode="virtual")


@pytest.mark.parametrize("is_named", [True, False])
def test_coordinates_that_differ_by_rounding_are_the_same(
    tmp_path: Path, repository: Repository, is_named: bool
) -> None:
    for day in range(3):
        x = np.linspace(0, 1, 7) * (1 + day * 1e-14) + day * 1e-13
        data = xr.Dataset({"t": (("time", "x"), np.ones((1, 7)))}, {"time": [day], "x": x})
        data.to_netcdf(tmp_path / f"{day}.nc")
    ingest_local(tmp_path / "*.nc", repository, concat_dim="time" if is_named else None)
    found = contents(repository)
    assert dict(found.sizes) == {"time": 3, "x": 7}
    np.testing.assert_array_equal(found.x, np.linspace(0, 1, 7))


def test_coordinates_that_differ_by_more_are_not(tmp_path: Path, repository: Repository) -> None:
    for day in range(2):
        data = xr.Dataset(
            {"t": (("time", "x"), np.ones((1, 7)))},
            {"time": [day], "x": np.linspace(0, 1, 7) + day * 1e-6},
        )
        data.to_netcdf(tmp_path / f"{day}.nc")
    with pytest.raises(InvalidInputError, match="variable 'x' has other values than"):
        ingest_local(tmp_path / "*.nc", repository, concat_dim="time")


def test_an_array_that_is_packed_stays_so_when_others_are_appended(
    tmp_path: Path, repository: Repository
) -> None:
    first = write(tmp_path / "0.nc", 0, {**era(0), "scale_factor": 0.01})
    second = write(tmp_path / "1.nc", 1, era(1))
    ingest_local(first, repository, concat_dim="time")
    report = ingest_local(second, repository, concat_dim="time", append=True)
    wanted = xr.concat([xr.open_dataset(path).load() for path in (first, second)], "time")
    found = contents(repository)
    assert np.isnan(found.t2m.values[[0, 2], 1]).all()
    np.testing.assert_allclose(found.t2m, wanted.t2m, rtol=0, atol=0.005 + 1e-9)
    np.testing.assert_array_equal(found.t2m[:2], wanted.t2m[:2])
    assert found.t2m.encoding["dtype"] == np.dtype("i2")
    assert "rounded to its steps of 0.01" in report.notes[0]


def test_an_array_with_an_offset_alone_stays_packed_too(
    tmp_path: Path, repository: Repository
) -> None:
    for day in range(2):
        values = np.array([[270.0, 280.0, np.nan]]) + day
        data = xr.Dataset({"t": (("time", "x"), values)}, {"time": [day], "x": np.arange(3)})
        packed = {"dtype": "i2", "add_offset": 250.0 + day, "_FillValue": -9}
        data.to_netcdf(tmp_path / f"{day}.nc", encoding={"t": packed})
    ingest_local(tmp_path / "0.nc", repository, concat_dim="time")
    report = ingest_local(tmp_path / "1.nc", repository, concat_dim="time", append=True)
    np.testing.assert_array_equal(
        contents(repository).t, [[270.0, 280.0, np.nan], [271.0, 281.0, np.nan]]
    )
    assert "rounded to its steps of 1" in report.notes[0]


def test_values_out_of_the_range_of_a_packed_array_are_refused(
    tmp_path: Path, repository: Repository
) -> None:
    first = write(tmp_path / "0.nc", 0, {**era(0), "scale_factor": 0.0005})
    ingest_local(first, repository, concat_dim="time")
    far = xr.Dataset(
        {"t2m": (("time", "x"), np.full((2, 6), 400.0), {"units": "K"})},
        {"time": [2, 3], "x": np.arange(6.0)},
    )
    far.to_netcdf(tmp_path / "1.nc", encoding={"t2m": era(2)})
    with pytest.raises(InvalidInputError, match=r"1\.nc: 't2m' has values that cannot be packed"):
        ingest_local(tmp_path / "1.nc", repository, concat_dim="time", append=True)


PACKED = {
    name: case
    for name, case in CASES.items()
    if case.dtype[0] in "iuf" and "dtype" not in case.attributes and "since" not in str(case)
}


@pytest.mark.parametrize("case", PACKED.values(), ids=PACKED)
def test_files_are_unpacked_as_xarray_does(case: Case, repository: Repository) -> None:
    write_case(repository, case)
    stored = np.array(case.values, case.dtype)
    variable = VariableDescription(
        "a", stored.dtype.str, (3,), (3,), ("x",), case.attributes, case.dtype, None, ()
    )
    packing = packing_of(variable)
    assert packing is not None
    expected = np.array(xarray_values(repository), "f8")
    np.testing.assert_array_equal(packing.unpack(stored, np.dtype("f8")), expected)
    missing = missing_value_of(case.attributes, case.dtype)
    if missing is not None:  # what holes are filled with is missing for xarray, too
        write_case(repository, case._replace(values=[missing] * 3))
        assert comparable(xarray_values(repository)) == [None] * 3
