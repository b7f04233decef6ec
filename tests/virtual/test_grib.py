"""GRIB files: what cfgrib and xarray read of them is in the repository."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import eccodes
import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.virtual import SourceError, ingest_local, open_native, scan
from icefloe.virtual.formats import grib
from tests.servers import BUCKET, S3Server
from tests.virtual.test_remote_sources import access_to, upload

GRID = {
    "Ni": 6,
    "Nj": 4,
    "latitudeOfFirstGridPointInDegrees": 60,
    "latitudeOfLastGridPointInDegrees": 30,
    "longitudeOfFirstGridPointInDegrees": 0,
    "longitudeOfLastGridPointInDegrees": 50,
    "iDirectionIncrementInDegrees": 10,
    "jDirectionIncrementInDegrees": 10,
    "bitsPerValue": 24,
}


def write_grib(path: Path, messages: list[dict[str, Any]]) -> Path:
    """A file with a message for each set of keys; the fourth value of each is missing."""
    rng = np.random.default_rng(len(str(messages)))
    with path.open("wb") as file:
        for keys in messages:
            message = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
            for key, value in (GRID | {"shortName": "2t"} | keys).items():
                eccodes.codes_set(message, key, value)
            values = rng.normal(280, 3, 24)
            eccodes.codes_set(message, "bitmapPresent", 1)
            eccodes.codes_set(message, "missingValue", 9999)
            values[3] = 9999
            eccodes.codes_set_values(message, values)
            eccodes.codes_write(message, file)
            eccodes.codes_release(message)
    return path


def at(date: int, hour: int = 0, **more: Any) -> dict[str, Any]:
    return {"dataDate": date, "dataTime": 100 * hour, **more}


def read_with_xarray(files: list[Path]) -> xr.Dataset:
    opened = []
    for file in files:
        one = xr.open_dataset(
            file, engine="cfgrib", backend_kwargs={"indexpath": ""}, decode_timedelta=True
        ).load()
        if "time" not in one.sizes:
            moved = one["valid_time"].expand_dims("time")
            one = one.drop_vars("valid_time").expand_dims("time").assign_coords(valid_time=moved)
        opened.append(one)
    return xr.concat(
        sorted(opened, key=lambda one: one["time"].values[0]),
        "time",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="override",
    )


def ingested(files: list[Any], **options: Any) -> tuple[Any, xr.Dataset]:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    report = ingest_local(files, repository, **options)
    store = repository.readonly_session("main").store
    return report, xr.open_zarr(store, consolidated=False, decode_timedelta=True).load()


def require_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    expected.attrs.pop("history")
    xr.testing.assert_identical(found, expected)
    for name, variable in expected.variables.items():
        assert found[name].dtype == variable.dtype, name


def test_files_with_several_times_and_with_one(tmp_path: Path) -> None:
    files = [
        write_grib(tmp_path / "c.grib", [at(20200103)]),
        write_grib(tmp_path / "a.grib", [at(20200101), at(20200101, 6), at(20200101, 12)]),
        write_grib(tmp_path / "b.grib", [at(20200102, 18)]),
    ]
    _, found = ingested(files)
    assert found["t2m"].shape == (5, 4, 6)
    assert int(np.isnan(found["t2m"]).sum()) == 5
    require_same(found, read_with_xarray(files))


def test_steps_of_forecasts_and_several_variables(tmp_path: Path) -> None:
    messages = [
        at(20200101 + day, shortName=name, forecastTime=hour)
        for day in range(2)
        for name in ("2t", "2d")
        for hour in (3, 6, 9)
    ]
    files = [
        write_grib(tmp_path / "1.grib", messages[:6]),
        write_grib(tmp_path / "2.grib", messages[6:]),
    ]
    _, found = ingested(files)
    assert found["d2m"].dims == ("time", "step", "latitude", "longitude")
    assert found["valid_time"].dims == ("time", "step")
    require_same(found, read_with_xarray(files))


def test_files_on_s3_are_copied_while_they_are_read(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grib, "_COPY_BYTES", 100)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "data").mkdir()
    files = [
        write_grib(tmp_path / "data" / "1.grib", [at(20200101), at(20200102)]),
        write_grib(tmp_path / "data" / "2.grib", [at(20200103)]),
    ]
    upload(s3_server, tmp_path / "data", "grib")
    access = access_to(s3_server)
    _, found = ingested([f"s3://{BUCKET}/grib/*.grib"], access=access)
    require_same(found, read_with_xarray(files))
    location = f"s3://{BUCKET}/grib/1.grib"
    with open_native(location, access):
        assert len(list((tmp_path / "temporary").iterdir())) == 1
    (tmp_path / "data" / "1.grib").write_bytes(b"GRIB" + bytes(100))
    upload(s3_server, tmp_path / "data", "grib")
    with pytest.raises(SourceError, match=r"s3://.*/1\.grib: its messages"):
        scan(location, access=access)
    assert not list((tmp_path / "temporary").iterdir())


def test_in_virtual_mode_they_are_copied(tmp_path: Path) -> None:
    files = [write_grib(tmp_path / "1.grib", [at(20200101), at(20200102)])]
    report, found = ingested(files, mode="virtual")
    assert "GRIB messages" in " ".join(report.notes)
    require_same(found, read_with_xarray(files))


def test_messages_that_do_not_fit_are_not_left_out(tmp_path: Path) -> None:
    file = write_grib(tmp_path / "mixed.grib", [at(20200101), at(20200101, shortName="10u")])
    with pytest.raises(SourceError, match=r"mixed\.grib: its messages cannot be read as one set"):
        scan(file)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    file = write_grib(tmp_path / "cut.grib", [at(20200101), at(20200102)])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 4])
    with pytest.raises(SourceError, match=r"cut\.grib"):
        scan(file)
    file.write_bytes(b"GRIB" + bytes(100))
    with pytest.raises(SourceError, match=r"cut\.grib"):
        scan(file)
