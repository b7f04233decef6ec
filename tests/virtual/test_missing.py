"""Variables that some files lack, and holes of a grid: read as missing, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe import InvalidInputError, Repository
from icefloe.virtual import ingest_local
from tests.virtual.datasets import read

netCDF4: Any = pytest.importorskip("netCDF4", reason="makes NetCDF files")  # noqa: N816
xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
)

KINDS = ["NETCDF4", "NETCDF3_CLASSIC"]
MODES = ["native", "virtual"]


def write(
    path: Path, times: list[int], kind: str = "NETCDF4", x: range = range(4), **variables: Any
) -> Path:
    """A file with times and x, and variables given as (type, attributes) or values."""
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.createDimension("time", None)
        file.createDimension("x", len(x))
        file.createVariable("time", "i4", ("time",))[:] = times
        file["time"].units = "days since 2000-01-01"
        file.createVariable("x", "i4", ("x",))[:] = list(x)
        for name, (dtype, attributes) in variables.items():
            fill = attributes.get("_FillValue")
            chunks = {"chunksizes": (1, len(x))} if kind == "NETCDF4" else {}
            made = file.createVariable(name, dtype, ("time", "x"), fill_value=fill, **chunks)
            made.set_auto_maskandscale(False)
            made.setncatts({k: v for k, v in attributes.items() if k != "_FillValue"})
            steps = np.array(times)[:, None] * 10 + np.array(list(x))
            made[:] = steps.astype(str).astype(object) if dtype is str else steps.astype(dtype)
    return path


def contents(repository: Repository) -> Any:
    return read(repository.readonly_session("main").store)


FLOATS: dict[str, dict[str, Any]] = {
    "unmarked": {},
    "marked": {"_FillValue": -1.0},
    "marked by missing_value": {"missing_value": np.float32(-5)},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("marks", FLOATS)
def test_what_a_file_lacks_is_missing(
    tmp_path: Path, repository: Repository, marks: str, kind: str, mode: Any
) -> None:
    write(tmp_path / "a.nc", [0, 1], kind, sst=("f4", FLOATS[marks]), t=("f4", {}))
    write(tmp_path / "b.nc", [2, 3], kind, t=("f4", {}))
    write(tmp_path / "c.nc", [4], kind, sst=("f4", FLOATS[marks]), t=("f4", {}))
    ingest_local(tmp_path / "*.nc", repository, mode=mode)
    found = contents(repository)
    assert np.isnan(found.sst.isel(time=[2, 3])).all()
    wanted = np.array([0, 1, 4])[:, None] * 10.0 + np.arange(4)
    np.testing.assert_array_equal(found.sst.isel(time=[0, 1, 4]), wanted)
    assert found.sst.dtype == np.float32
    assert not np.isnan(found.t).any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("marks", FLOATS)
def test_a_file_without_a_variable_of_the_group_is_appended(
    tmp_path: Path, repository: Repository, marks: str, kind: str, mode: Any
) -> None:
    first = write(tmp_path / "a.nc", [0, 1], kind, sst=("f4", FLOATS[marks]), t=("f4", {}))
    options: dict[str, Any] = {"mode": mode, "append": True, "concat_dim": "time"}
    ingest_local(first, repository, **options)
    ingest_local(write(tmp_path / "b.nc", [2], kind, t=("f4", {})), repository, **options)
    both = write(tmp_path / "c.nc", [3, 4], kind, sst=("f4", FLOATS[marks]), t=("f4", {}))
    ingest_local(both, repository, **options)
    found = contents(repository)
    assert found.sst.shape == found.t.shape == (5, 4)
    assert np.isnan(found.sst.isel(time=2)).all()
    assert not np.isnan(found.sst.isel(time=[0, 1, 3, 4])).any()
    np.testing.assert_array_equal(found.t, np.arange(5)[:, None] * 10.0 + np.arange(4))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hole_in_a_grid_is_missing(
    tmp_path: Path, repository: Repository, kind: str, mode: Any
) -> None:
    for day in range(2):
        for tile in range(2):
            if (day, tile) != (1, 0):
                x = range(4 * tile, 4 * tile + 4)
                write(tmp_path / f"{day}{tile}.nc", [day], kind, x, t=("f4", {}))
    ingest_local(tmp_path / "*.nc", repository, mode=mode)
    found = contents(repository)
    assert np.isnan(found.t.values[1, :4]).all()
    np.testing.assert_array_equal(found.t.values[0], np.arange(8))
    np.testing.assert_array_equal(found.t.values[1, 4:], 10 + np.arange(4, 8))


INTEGERS: dict[str, dict[str, Any]] = {
    "packed": {"_FillValue": np.int16(-9), "scale_factor": 0.5},
    "unmarked": {},
    "packed, unmarked": {"scale_factor": 0.5, "add_offset": 1.0},
}


@pytest.mark.parametrize("marks", INTEGERS)
def test_integers_that_are_missing(tmp_path: Path, repository: Repository, marks: str) -> None:
    write(tmp_path / "a.nc", [0, 1], n=("i2", INTEGERS[marks]), t=("f4", {}))
    write(tmp_path / "b.nc", [2], t=("f4", {}))
    ingest_local(tmp_path / "*.nc", repository)
    found = contents(repository).n
    assert np.isnan(found.isel(time=2)).all()
    scale, offset = INTEGERS[marks].get("scale_factor", 1), INTEGERS[marks].get("add_offset", 0)
    wanted = (np.arange(2)[:, None] * 10.0 + np.arange(4)) * scale + offset
    np.testing.assert_array_equal(found.isel(time=[0, 1]), wanted)


def test_a_value_that_would_become_missing_is_refused(
    tmp_path: Path, repository: Repository
) -> None:
    path = write(tmp_path / "a.nc", [0, 1], n=("i2", {}), t=("f4", {}))
    with netCDF4.Dataset(path, "a") as file:
        file["n"].set_auto_maskandscale(False)
        file["n"][1, 2] = -32767
    write(tmp_path / "b.nc", [2], t=("f4", {}))
    with pytest.raises(
        InvalidInputError, match=r"a\.nc: 'n' holds -32767, which has to mean missing"
    ):
        ingest_local(tmp_path / "*.nc", repository)
    result = ingest_local(tmp_path / "*.nc", repository, on_error="skip")
    assert [problem.location for problem in result.problems] == [path.as_uri()]


@pytest.mark.parametrize(("dtype", "mode"), [("i1", "native"), ("u1", "native"), ("i2", "virtual")])
def test_types_without_a_value_to_spare_are_refused(
    tmp_path: Path, repository: Repository, dtype: str, mode: Any
) -> None:
    write(tmp_path / "a.nc", [0, 1], n=(dtype, {}), t=("f4", {}))
    without = write(tmp_path / "b.nc", [2], t=("f4", {}))
    with pytest.raises(InvalidInputError, match="variable 'n' would have places that no file"):
        ingest_local(tmp_path / "*.nc", repository, mode=mode)
    result = ingest_local(tmp_path / "*.nc", repository, mode=mode, on_error="skip")
    assert [problem.location for problem in result.problems] == [without.as_uri()]
    assert contents(repository).n.dtype == dtype


def test_appending_without_an_integer_variable_is_refused(
    tmp_path: Path, repository: Repository
) -> None:
    ingest_local(write(tmp_path / "a.nc", [0], n=("i2", {}), t=("f4", {})), repository)
    without = write(tmp_path / "b.nc", [1], t=("f4", {}))
    with pytest.raises(InvalidInputError, match=r"b\.nc: variable 'n' would have places"):
        ingest_local(without, repository, append=True, concat_dim="time")
    assert contents(repository).n.shape == (1, 4)


@pytest.mark.parametrize("mode", MODES)
def test_text_that_is_missing(tmp_path: Path, repository: Repository, mode: Any) -> None:
    write(tmp_path / "a.nc", [0, 1], label=(str, {}), t=("f4", {}))
    write(tmp_path / "b.nc", [2], t=("f4", {}))
    ingest_local(tmp_path / "*.nc", repository, mode=mode)
    found = contents(repository).label
    assert found.isel(time=0).values.tolist() == ["0", "1", "2", "3"]
    assert all(isinstance(item, float) and np.isnan(item) for item in found.values[2].tolist())


def test_chunks_never_written_stay_what_the_file_says(
    tmp_path: Path, repository: Repository
) -> None:
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 8)
        made = file.createVariable("t", "f4", ("x",), chunksizes=(4,))
        made.set_auto_maskandscale(False)
        made[:4] = 1
    for mode in ("native", "virtual"):
        target: Any = mode
        ingest_local(path, repository, group=mode, mode=target)
        found = read(repository.readonly_session("main").store, group=mode)
        wanted = xr.open_dataset(path)
        np.testing.assert_array_equal(found.t, wanted.t)
