"""Tables written by Spark: every cell in its place, one commit, or none."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from icefloe import AlreadyExistsError, InvalidInputError, Repository
from icefloe.spark import write_table
from icefloe.spark.versions import from_arrow
from tests.spark.test_table_grid import DIMS, VARIABLES, assert_same, cube, opened, rows_of

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")


def frame(spark: SparkSession, data: Any) -> Any:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return from_arrow(spark, rows_of(data)).repartition(3)


def commits(repository: Repository) -> int:
    return len(list(repository.ancestry(branch="main")))


def test_a_table_becomes_arrays_and_grows(spark: SparkSession, repository: Repository) -> None:
    options: dict[str, Any] = {"dims": DIMS, "variables": VARIABLES, "num_tasks": 3}
    report = write_table(
        frame(spark, cube(0, 5)),
        repository,
        chunks={"time": 3, "lat": 2},
        message="first",
        metadata={"who": "me"},
        **options,
    )
    assert_same(opened(repository), cube(0, 5))
    assert report.chunks_written == 4 * 2 * 2
    assert repository.lookup_branch("main") == report.snapshot_id
    last = next(iter(repository.ancestry(branch="main")))
    noted = {"who": "me", "__icechunk": {"rebase_attempts": 0}}
    assert (last.message, last.metadata) == ("first", noted)
    write_table(frame(spark, cube(5, 4)), repository.storage.url, mode="append", **options)
    whole = xr.concat([cube(0, 5), cube(5, 4)], "time")
    assert_same(opened(repository), whole)
    assert commits(repository) == 3
    icechunk = pytest.importorskip("icechunk", reason="the official implementation")
    path = repository.storage.url.removeprefix("file://")
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    store = official.readonly_session("main").store
    with xr.open_zarr(store, consolidated=False) as found:
        assert_same(found.load(), whole)


def test_bad_rows_commit_nothing(spark: SparkSession, repository: Repository) -> None:
    rows = frame(spark, cube(0, 2))
    options: dict[str, Any] = {"dims": DIMS, "variables": ["t"], "num_tasks": 2}
    with pytest.raises(InvalidInputError, match=r"two rows are for the cell time=2024-01-0"):
        write_table(rows.union(rows.limit(1)), repository, **options)
    outside = {"time": None, "lat": [10.5, 20.25], "site": None}
    with pytest.raises(InvalidInputError, match=r"'lat' has the value 30.125, .*the 2 coordinates"):
        write_table(rows, repository, **{**options, "dims": outside})
    with pytest.raises(InvalidInputError, match="no column 'nowhere'"):
        write_table(rows, repository, dims=["nowhere"], variables=["t"])
    with pytest.raises(InvalidInputError, match="df is a list"):
        write_table([], repository, **options)  # type: ignore[arg-type]
    assert commits(repository) == 1
    write_table(rows, repository, **options)
    with pytest.raises(AlreadyExistsError, match="array 't' exists"):
        write_table(rows, repository, **options)
    with pytest.raises(InvalidInputError, match="'time' has the value 2023-12-31"):
        write_table(frame(spark, cube(-1, 2)), repository, mode="append", **options)
    assert commits(repository) == 2
