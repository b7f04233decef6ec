"""Datasets written by the executors equal what xarray writes by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from pyspark.sql import SparkSession

from icefloe import ConflictDetector, ConflictError, InvalidInputError, Repository
from icefloe.geometry import shrink_chunks
from icefloe.spark import write_dataset

HOURS = 50
PACKING = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}


def weather(first: int = 0, hours: int = HOURS) -> xr.Dataset:
    """Packed, missing, plain and text variables on a time axis; more than a megabyte."""
    random = np.random.default_rng(first)
    shape = (hours, 60, 120)
    time = np.datetime64("2024-01-01", "ns") + np.arange(first, first + hours) * np.timedelta64(
        1, "h"
    )
    t2m = random.normal(280, 10, shape)
    t2m[random.random(shape) < 0.01] = np.nan
    return xr.Dataset(
        {
            "t2m": (
                ("time", "lat", "lon"),
                np.round(t2m, 2),
                {"units": "K", "long_name": "temperature"},
                PACKING,
            ),
            "rain": (("time", "lat", "lon"), random.random(shape).astype("f4")),
            "station": (("lat",), np.array([f"station {at}" for at in range(60)], dtype=object)),
            "height": ((), 2.0, {"units": "m"}),
        },
        {"time": time, "lat": np.linspace(-90, 90, 60), "lon": np.linspace(0, 357, 120)},
        {"title": "made up"},
    )


def opened(repository: Repository, **ref: Any) -> xr.Dataset:
    session = repository.readonly_session(**(ref or {"branch": "main"}))
    found: xr.Dataset = xr.open_zarr(session.store, consolidated=False)
    return found


ENCODING: dict[str, dict[str, Any]] = {
    "rain": {"chunks": (8, 60, 60)},
    "t2m": {"chunks": (10, 30, 120), **PACKING},
}


@pytest.mark.parametrize("lazy", ["numpy", "dask", "file"])
def test_a_dataset_arrives_as_xarray_would_write_it(
    spark: SparkSession, repository: Repository, tmp_path: Path, lazy: str
) -> None:
    plain = weather()
    if lazy == "dask":
        dataset = plain.chunk({"time": 7})
    elif lazy == "file":
        plain.to_netcdf(tmp_path / "weather.nc", engine="h5netcdf")
        dataset = xr.open_dataset(tmp_path / "weather.nc", engine="h5netcdf")
    else:
        dataset = plain
    report = write_dataset(spark, dataset, repository, encoding=ENCODING)
    assert report.chunks_written == 7 * 2 + 5 * 2
    assert repository.lookup_branch("main") == report.snapshot_id
    expected = dataset.load() if lazy == "file" else plain
    path = tmp_path / "by-xarray.zarr"
    expected.to_zarr(path, encoding=ENCODING, consolidated=False)
    with xr.open_zarr(path, consolidated=False) as reference, opened(repository) as found:
        xr.testing.assert_identical(found.load(), reference.load())
        for name in reference.variables:
            for key in ("dtype", "scale_factor", "_FillValue", "units", "chunks"):
                ours, theirs = found[name].encoding.get(key), reference[name].encoding.get(key)
                assert repr(ours) == repr(theirs), (name, key)  # NaN is not equal to itself


def test_appending_completes_the_last_chunk(spark: SparkSession, repository: Repository) -> None:
    write_dataset(spark, weather(0, 45), repository, encoding=ENCODING)
    write_dataset(spark, weather(45, 28).chunk({"time": 5}), repository, append_dim="time")
    with opened(repository) as found:
        whole = xr.concat([weather(0, 45), weather(45, 28)], "time", data_vars="minimal")
        xr.testing.assert_allclose(found.load(), whole, atol=0.006)
        np.testing.assert_array_equal(found["rain"], whole["rain"])
        np.testing.assert_array_equal(found["time"], whole["time"])
    assert len(list(repository.ancestry(branch="main"))) == 3


def test_a_region_is_written_and_the_rest_stays(
    spark: SparkSession, repository: Repository
) -> None:
    write_dataset(spark, weather(), repository, encoding=ENCODING)
    part = weather(100, 13)[["rain"]].drop_vars(["time", "lat", "lon"])
    write_dataset(spark, part, repository, region={"time": slice(5, 18)})
    expected = weather()["rain"].values
    expected[5:18] = part["rain"].values
    with opened(repository) as found:
        np.testing.assert_array_equal(found["rain"], expected)


def test_a_commit_meanwhile_is_a_conflict_or_rebased(
    spark: SparkSession, repository: Repository
) -> None:
    root = repository.writable_session("main")
    zarr.create_group(root.store)
    root.commit("a group for both")
    session = repository.writable_session("main")
    report = write_dataset(spark, weather(), session, group="a")
    assert report.snapshot_id is None
    write_dataset(spark, weather(), repository, group="b")
    with pytest.raises(ConflictError):
        session.commit("late")
    session.commit("late, but beside it", rebase_with=ConflictDetector())
    for group in ("a", "b"):
        store = repository.readonly_session("main").store
        with xr.open_zarr(store, group=group, consolidated=False) as found:
            np.testing.assert_array_equal(found["rain"], weather()["rain"])


def test_bad_arguments_change_nothing(spark: SparkSession, repository: Repository) -> None:
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="expected an xarray Dataset"):
        write_dataset(spark, [1, 2], repository)
    with pytest.raises(InvalidInputError, match="not a dimension of the dataset"):
        write_dataset(spark, weather(), repository, append_dim="level")
    with pytest.raises(InvalidInputError, match=r"expected an icefloe\.Repository"):
        write_dataset(spark, weather(), 3)  # type: ignore[arg-type]
    session = repository.writable_session("main")
    with pytest.raises(InvalidInputError, match="transaction is for a commit"):
        write_dataset(spark, weather(), session, transaction=("nightly", 1))
    with pytest.raises(InvalidInputError, match="expected the name of an application"):
        write_dataset(spark, weather(), repository, transaction=7)  # type: ignore[arg-type]
    write_dataset(spark, weather(), repository)
    with pytest.raises(Exception, match="already contains data"):
        write_dataset(spark, weather(), repository, mode="w-")
    assert len(list(repository.ancestry(branch="main"))) == 2
    assert repository.lookup_branch("main") != before


WITHOUT_DASK = """
import sys
import numpy as np
import xarray as xr
import icefloe
import icefloe.spark
try:
    import dask
except ImportError:
    pass
else:
    raise AssertionError("dask is there")
from tests.spark.test_write_dataset import ENCODING, opened, weather

spark = icefloe.spark.session("local[2]")
repo = icefloe.Repository.open(icefloe.local_filesystem_storage(sys.argv[1]))
weather().to_netcdf(sys.argv[2], engine="h5netcdf")
with xr.open_dataset(sys.argv[2], engine="h5netcdf") as stored:
    icefloe.spark.write_dataset(spark, stored, repo, encoding=ENCODING)
icefloe.spark.write_dataset(spark, weather(50, 30), repo, append_dim="time")
part = weather(10, 10).drop_vars(["lat", "lon", "station", "height"])
icefloe.spark.write_dataset(spark, part, repo, region={"time": slice(10, 20)})
times = weather()["rain"].astype("i8") + np.datetime64("2000-01-01", "s")
icefloe.spark.write_dataset(spark, times.to_dataset(name="t"), repo, group="times")
icefloe.spark.write_dataset(spark, weather()[["rain"]], repo, group="plain")
spark.stop()
"""


@pytest.mark.timeout(400)
def test_datasets_are_written_without_dask(repository: Repository, tmp_path: Path) -> None:
    """In the driver and in the workers: Python runs `sitecustomize` first."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    names = ("dask", "distributed")
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in names)]
    (hidden / "sitecustomize.py").write_text("\n".join(lines))
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DASK, repository.storage.url, str(tmp_path / "weather.nc")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(hidden), root))},
        capture_output=True,
        text=True,
        check=False,
        timeout=390,
    )
    assert done.returncode == 0, done.stderr
    first, second = weather(), weather(50, 30)
    with opened(repository) as found:
        for name in ("t2m", "rain"):
            values = np.concatenate([first[name], second[name]])
            values[10:20] = weather(10, 10)[name]
            np.testing.assert_allclose(found[name].values, values, atol=0.006)
        assert found["t2m"].encoding["chunks"] == (10, 30, 120)
        assert found["t2m"].encoding["dtype"] == "int16"
        assert np.array_equal(found["time"], np.concatenate([first["time"], second["time"]]))
    session = repository.readonly_session("main")
    with xr.open_zarr(session.store, group="times", consolidated=False, chunks=None) as times:
        wanted = first["rain"].values.astype("i8") + np.datetime64("2000-01-01", "s")
        assert np.array_equal(times["t"].values, wanted)
    with xr.open_zarr(session.store, group="plain", consolidated=False, chunks=None) as plain:
        assert np.array_equal(plain["rain"].values, first["rain"].values)
        assert plain["rain"].encoding["chunks"] == shrink_chunks((50, 60, 120), 4)
