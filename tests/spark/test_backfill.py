"""Late files and rows, changed files, order by name and hooks, by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

from icefloe import InvalidInputError, Repository
from icefloe.spark import ingest, read, run_recipe, write_table
from icefloe.virtual.ingest.run_ingest import PROBLEMS
from tests.spark.test_ingest import contents, make_repository
from tests.spark.test_table_grid import DIMS, VARIABLES, assert_same, cube, opened
from tests.spark.test_write_table import frame
from tests.virtual.datasets import check, dataset, expected, to_netcdf4

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
pytest.importorskip("h5py", reason="h5py is an optional dependency")

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
)


def files(folder: Path, count: int = 5) -> list[Path]:
    paths = [folder / f"part{part}.nc" for part in range(count)]
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    return paths


@pytest.mark.parametrize(("mode", "chunks"), [("native", {"time": 4}), ("virtual", None)])
def test_late_and_changed_files_go_where_they_belong(
    spark: SparkSession, tmp_path: Path, mode: Any, chunks: Any
) -> None:
    repository = make_repository(tmp_path)
    paths = files(tmp_path)
    options: dict[str, Any] = {"concat_dim": "time", "mode": mode, "append": True}
    ingest(spark, [str(paths[1]), str(paths[3])], repository, chunks=chunks, **options)
    changed = xr.open_dataset(paths[3]).load()
    changed["packed"] += 1
    paths[3].unlink()
    to_netcdf4(changed, paths[3])
    pattern = f"{tmp_path}/*.nc"
    report = ingest(
        spark, pattern, repository, late="insert", changed="replace", num_tasks=3, **options
    )
    assert (report.files_added, report.files_skipped) == (4, 1)
    check(contents(repository), expected(paths))
    again = ingest(spark, pattern, repository, late="insert", changed="replace", **options)
    assert (again.snapshot_id, again.files_skipped) == (None, 5)


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_places_with_values_are_never_overwritten(
    spark: SparkSession, tmp_path: Path, mode: Any
) -> None:
    repository = make_repository(tmp_path)
    paths = files(tmp_path, 2)
    options: dict[str, Any] = {"concat_dim": "time", "mode": mode}
    ingest(spark, str(paths[0]), repository, **options)
    other = xr.open_dataset(paths[0]).load()
    other["packed"] += 1
    to_netcdf4(other, tmp_path / "other.nc")
    before = contents(repository)
    sources = [str(tmp_path / "other.nc"), str(paths[1])]
    more: dict[str, Any] = {"append": True, "late": "insert", **options}
    with pytest.raises(InvalidInputError, match=r"other\.nc: 'packed' has values at its place"):
        ingest(spark, sources, repository, **more)
    report = ingest(spark, sources, repository, on_error="quarantine", **more)
    assert (report.files_added, report.files_failed) == (1, 1)
    check(contents(repository).isel(time=slice(0, 3)), before)
    rows = read(spark, repository, group=PROBLEMS).collect()
    assert [row["location"].rpartition("/")[2] for row in rows] == ["other.nc"]


def test_a_recipe_says_order_access_and_tasks(spark: SparkSession, tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    for number in (10, 9, 1):
        data = xr.Dataset({"sst": (("t", "x"), np.full((1, 2), float(number)))}, {"t": np.zeros(1)})
        data.to_netcdf(tmp_path / f"run_{number}.nc")
    recipe = f"""
sources: {tmp_path}/*.nc
repository: {repository.storage.url}
order: run_{{t}}.nc
exclude: ["*_1.nc"]
access: {{region: us-east-1, anonymous: true}}
num_tasks: 2
late: fail
changed: fail
"""
    report = run_recipe(spark, recipe)
    assert report.files_added == 2
    assert contents(repository).sst.values.tolist() == [[9.0, 9.0], [10.0, 10.0]]
    with pytest.raises(InvalidInputError, match="access is 'public', expected options"):
        run_recipe(spark, recipe.replace("{region: us-east-1, anonymous: true}", "public"))


def test_a_function_runs_on_executors(spark: SparkSession, tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    paths = files(tmp_path, 3)

    def hook(data: Any) -> Any:
        return data.drop_vars("label").isel(x=slice(None, None, 2)).rename(packed="t2m")

    ingest(spark, f"{tmp_path}/*.nc", repository, concat_dim="time", preprocess=hook)
    wanted = expected(paths).drop_vars("label").isel(x=slice(None, None, 2))
    xr.testing.assert_equal(contents(repository), wanted.rename(packed="t2m"))


# -- rows


def test_late_rows_are_inserted(spark: SparkSession, repository: Repository) -> None:
    options: dict[str, Any] = {"dims": DIMS, "variables": VARIABLES, "num_tasks": 2}
    chunks = {"time": 3, "lat": 2}
    write_table(frame(spark, cube(2, 3)), repository, chunks=chunks, **options)
    early_and_after = xr.concat([cube(0, 1), cube(6, 1)], "time")
    options |= {"mode": "append", "late": "insert"}
    write_table(frame(spark, early_and_after), repository, **options)
    write_table(frame(spark, cube(1, 1)), repository, **options)
    parts = [cube(0, 1), cube(1, 1), cube(2, 3), cube(6, 1)]
    assert_same(opened(repository), xr.concat(parts, "time"))


def test_late_rows_are_set_aside(spark: SparkSession, repository: Repository) -> None:
    options: dict[str, Any] = {"dims": DIMS, "variables": VARIABLES, "num_tasks": 2}
    write_table(frame(spark, cube(2, 2)), repository, **options)
    options |= {"mode": "append", "late": "quarantine"}
    for _ in range(2):
        write_table(frame(spark, cube(0, 2)), repository, **options)
    write_table(frame(spark, xr.concat([cube(1, 1), cube(4, 1)], "time")), repository, **options)
    whole = xr.concat([cube(2, 2), cube(4, 1)], "time")
    assert_same(opened(repository), whole)
    rows = read(spark, repository, group=".icefloe/late_rows")
    step = cube(0, 1).sizes["lat"] * cube(0, 1).sizes["site"]
    assert rows.count() == 5 * step
    assert {*DIMS, *VARIABLES} <= set(rows.columns)
    store = repository.readonly_session("main").store
    number = zarr.open_array(store, path=".icefloe/late_rows/row", mode="r")
    assert np.asarray(number[:]).tolist() == list(range(5 * step))
    with pytest.raises(InvalidInputError, match="late is 'drop', expected one of fail"):
        write_table(frame(spark, cube(0, 1)), repository, **{**options, "late": "drop"})
