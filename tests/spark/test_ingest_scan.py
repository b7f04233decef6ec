"""Scans on executors: as many tasks as the work needs, several files at once, few bytes back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from icefloe import Repository
from icefloe.spark import ingest
from icefloe.spark import ingest_engine as ingest_copy
from icefloe.spark.ingest_engine import cut_pieces, descriptions_of, scan_frame
from icefloe.spark.tasks import tasks_for
from icefloe.spark.versions import to_arrow
from icefloe.virtual.ingest.run_ingest import SCANS_AT_ONCE
from icefloe.virtual.planning.plan import BLOCK_BYTES, IngestOptions
from icefloe.virtual.sources import SourceAccess
from tests.virtual.datasets import dataset, to_netcdf4
from tests.virtual.test_planning import plan, source, times, variable
from tests.virtual_sources import web_server

netCDF4: Any = pytest.importorskip("netCDF4", reason="makes NetCDF files")  # noqa: N816

OPTIONS = IngestOptions(concat_dims=("time",))
CONNECT: Any = SimpleNamespace()
"""A session that does not tell how many slots there are, as one of Spark Connect."""


def _same(found: Any) -> Any:
    return found


def num_copy_tasks(spark: SparkSession, num_files: int, bytes_a_file: int) -> int:
    """How many tasks copy files with one variable of this size."""
    width = bytes_a_file // 4
    chunks = (1, min(width, 1 << 20))
    files = [
        source(f"{day}", times([day]), variable("data", ("time", "x"), (1, width), chunks=chunks))
        for day in range(num_files)
    ]
    pieces = cut_pieces(plan(*files, concat_dims=("time",)), 2 * ingest_copy._PIECES_PER_SLOT)
    return min(len(pieces), tasks_for(spark, len(pieces), ingest_copy._PIECES_PER_TASK))


def test_tasks_of_a_scan_follow_the_number_of_files(spark: SparkSession) -> None:
    assert int(spark.sparkContext.defaultParallelism) == 2
    wanted = {1: 1, 8: 8, 400: 8, 2_000: 20, 20_000: 200}
    for num_files, num_tasks in wanted.items():
        names = [f"s3://bucket/{number}.nc" for number in range(num_files)]
        frame = scan_frame(spark, names, OPTIONS, SourceAccess())
        assert frame.rdd.getNumPartitions() == num_tasks, num_files


def test_tasks_of_a_copy_follow_the_bytes(spark: SparkSession) -> None:
    assert num_copy_tasks(spark, 4, 1 << 10) == 1
    assert num_copy_tasks(spark, 64, 1 << 20) == 8
    few, many = num_copy_tasks(spark, 64, 1 << 28), num_copy_tasks(spark, 64, 1 << 30)
    assert few >= 64 * (1 << 28) // (8 * BLOCK_BYTES)
    assert many >= 4 * few


@pytest.mark.parametrize(("num_files", "num_tasks"), [(10, 64), (6_400, 64), (200_000, 2_000)])
def test_tasks_follow_the_work_where_slots_are_not_known(num_files: int, num_tasks: int) -> None:
    assert tasks_for(CONNECT, num_files, 100) == num_tasks


def test_a_task_scans_several_remote_files_at_once(spark: SparkSession, tmp_path: Path) -> None:
    to_netcdf4(dataset(0), tmp_path / "a.nc")
    data = (tmp_path / "a.nc").read_bytes()
    num_parts = 4 * spark.sparkContext.defaultParallelism
    files = {f"/{number}.nc": data for number in range(num_parts * SCANS_AT_ONCE)}
    with web_server(files=files, pause_seconds=0.1) as server:
        locations = [server.url + path for path in files]
        frame = scan_frame(spark, locations, OPTIONS, SourceAccess())
        assert frame.rdd.getNumPartitions() == num_parts
        frame = frame.coalesce(1)  # one after the other, so that only threads are at work at once
        found, problems = descriptions_of(frame, locations)
    assert problems == []
    assert [source.location for source in found] == locations
    assert SCANS_AT_ONCE // 2 <= server.most_at_once <= SCANS_AT_ONCE


def make_file(path: Path, day: int, grid: int) -> None:
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.history = f"{day}: {np.random.default_rng(day).bytes(150).hex()}"
        file.createDimension("time", None)
        file.createDimension("lat", grid)
        file.createDimension("lon", grid)
        for name in ("lat", "lon"):
            file.createVariable(name, "f8", (name,))[:] = np.linspace(0, 1, grid)
        file.createVariable("time", "f8", ("time",))[:] = [day]
        file["time"].units = "days since 2000-01-01"
        for name in ("t", "u", "v"):
            file.createVariable(name, "f4", ("time",)).units = "1"


def test_a_further_file_adds_few_bytes_to_the_rows_of_a_scan(
    spark: SparkSession, tmp_path: Path
) -> None:
    grid = 10_000
    for day in range(96):
        make_file(tmp_path / f"{day:03}.nc", day, grid)
    locations = [path.as_uri() for path in sorted(tmp_path.glob("*.nc"))]
    sizes = []
    for count in (48, 96):  # of as many tasks, each of which sends what its files share
        frame = scan_frame(spark, locations[:count], OPTIONS, SourceAccess())
        assert frame.rdd.getNumPartitions() == 8
        rows = to_arrow(frame)
        sizes.append(rows.nbytes)
        grids = [row for row in rows["data"].to_pylist() if len(row) > 8 * grid]
        assert len(grids) == 8  # lat and lon are the same numbers
    assert (sizes[1] - sizes[0]) / 48 < 1_000
    found, _ = descriptions_of(frame, locations)
    histories = {source.attributes_of("")["history"] for source in found}
    assert len(histories) == 96


@pytest.mark.parametrize(
    ("arguments", "num_jobs"),
    [({}, 1), ({"num_tasks": 2}, 2), ({"preprocess": _same}, 2)],
    ids=["few files", "tasks asked for", "a function of the user"],
)
def test_few_files_of_one_machine_are_scanned_without_a_job(
    spark: SparkSession,
    tmp_path: Path,
    repository: Repository,
    arguments: dict[str, Any],
    num_jobs: int,
) -> None:
    for day in range(3):
        to_netcdf4(dataset(day), tmp_path / f"{day}.nc")
    (tmp_path / "3.nc").write_bytes(b"nothing")
    context = spark.sparkContext
    group = f"{tmp_path}"
    context.setJobGroup(group, "an ingest")
    try:
        report = ingest(
            spark,
            str(tmp_path / "*.nc"),
            repository,
            concat_dim="time",
            on_error="skip",
            **arguments,
        )
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert report.files_added == 3
    [problem] = report.problems
    assert problem.location.endswith("3.nc")
    assert len(context.statusTracker().getJobIdsForGroup(group)) == num_jobs
