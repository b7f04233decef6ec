"""Spark writes that others overtake, and two real drivers that ingest at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from pyspark.sql import SparkSession

import icefloe
from icefloe import Repository
from icefloe.spark import write_dataset, write_table
from icefloe.storage.run import run_blocking
from tests.spark.clusters import ROOT, START_SECONDS, environment
from tests.virtual.test_side_by_side import Overtake, overtake, values_of, write_file

__all__ = ["overtake"]  # a fixture


def weather(first: int, steps: int = 4, name: str = "rain") -> xr.Dataset:
    time = np.arange(first, first + steps)
    values = np.random.default_rng(first).uniform(size=(steps, 600, 300))
    values[:, 0, 0] = time
    dataset = xr.Dataset({name: (("time", "y", "x"), values)}, {"time": time})
    dataset[name].encoding = {"chunks": (2, 600, 300)}
    return dataset


def seen(repository: Repository, name: str = "rain", group: str = "") -> tuple[list[int], Any]:
    store = repository.readonly_session("main").store
    top: Any = zarr.open_group(store, path=group, mode="r")
    return top["time"][:].tolist(), top[name][:]


def num_chunk_objects(repository: Repository) -> int:
    return len(run_blocking(repository.handle.driver.list("chunks/")))


@pytest.mark.parametrize(("growth", "num_tries"), [(2, 1), (3, 2)])
def test_datasets_appended_behind_each_other(
    spark: SparkSession, repository: Repository, overtake: Overtake, growth: int, num_tries: int
) -> None:
    """References move where chunks fit. Otherwise the large array is written again."""
    write_dataset(spark, weather(0), repository)
    theirs = weather(10, growth)
    overtake(lambda: write_dataset(spark, theirs, repository, append_dim="time"))
    before = num_chunk_objects(repository)
    report = write_dataset(spark, weather(20), repository, append_dim="time")
    times, rain = seen(repository)
    assert times == [*range(4), *range(10, 10 + growth), *range(20, 24)]
    parts = [weather(0), theirs, weather(20)]
    np.testing.assert_array_equal(rain, np.concatenate([part["rain"].values for part in parts]))
    assert report.tries == num_tries
    num_theirs = -(-growth // 2)
    written = num_theirs + report.chunks_written + report.chunks_redone
    assert num_chunk_objects(repository) == before + written
    assert (report.chunks_redone == 0) == (num_tries == 1)


def test_datasets_into_groups_and_variables_of_one_repository(
    spark: SparkSession, repository: Repository, overtake: Overtake
) -> None:
    first, second = weather(0), weather(0, name="snow")
    overtake(lambda: write_dataset(spark, first, repository, group="a/b"))
    write_dataset(spark, second, repository, group="a/c")
    overtake(lambda: write_dataset(spark, first, repository, group="g", mode="a"))
    report = write_dataset(spark, second, repository, group="g", mode="a")
    for name, groups in (("rain", ("a/b", "g")), ("snow", ("a/c", "g"))):
        for group in groups:
            np.testing.assert_array_equal(seen(repository, name, group)[1], first["rain"])
    assert report.tries == 2
    assert "tries: 2" in str(report)


def test_the_same_variable_is_still_a_conflict(
    spark: SparkSession, repository: Repository, overtake: Overtake
) -> None:
    overtake(lambda: write_dataset(spark, weather(0), repository, mode="a"))
    with pytest.raises(icefloe.RebaseFailedError, match="/rain"):
        write_dataset(spark, weather(10), repository, mode="a")
    assert seen(repository)[0] == [0, 1, 2, 3]


def rows(spark: SparkSession, *days: int) -> Any:
    return spark.createDataFrame([(day, float(day)) for day in days], "day long, t double")


def table(spark: SparkSession, repository: Repository, *days: int, **more: Any) -> Any:
    given: dict[str, Any] = {"dims": ["day"], "variables": ["t"], "chunks": [2], "mode": "append"}
    return write_table(rows(spark, *days), repository, group="s", **{**given, **more})


def days_of(repository: Repository) -> list[int]:
    top: Any = zarr.open_group(repository.readonly_session("main").store, path="s", mode="r")
    assert top["day"][:].tolist() == top["t"][:].tolist()
    return [int(day) for day in top["day"][:]]


def test_tables_appended_behind_each_other(
    spark: SparkSession, repository: Repository, overtake: Overtake
) -> None:
    table(spark, repository, 0, 1, mode="error")
    overtake(lambda: table(spark, repository, 10, 11))
    report = table(spark, repository, 20, 21)
    assert days_of(repository) == [0, 1, 10, 11, 20, 21]
    assert report.tries == 1  # references moved
    overtake(lambda: table(spark, repository, 40))
    with pytest.raises(icefloe.InvalidInputError, match="30"):
        table(spark, repository, 30)
    overtake(lambda: table(spark, repository, 50))
    report = table(spark, repository, 30, late="insert")
    assert days_of(repository) == [0, 1, 10, 11, 20, 21, 30, 40, 50]
    assert report.tries == 2


def test_tables_of_two_variables(
    spark: SparkSession, repository: Repository, overtake: Overtake
) -> None:
    overtake(lambda: table(spark, repository, 0, 1))
    frame = rows(spark, 0, 1).withColumnRenamed("t", "u")
    write_table(frame, repository, group="s", dims=["day"], variables=["u"], mode="append")
    top: Any = zarr.open_group(repository.readonly_session("main").store, path="s", mode="r")
    assert top["t"][:].tolist() == top["u"][:].tolist() == [0, 1]


def two_drivers(folder: Path, *orders: dict[str, Any]) -> list[dict[str, int]]:
    """Both meet before their first commit, so that one of them is overtaken."""
    programs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.spark.beside_program", name, str(folder), text],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(),
            text=True,
        )
        for name, text in zip("ab", map(json.dumps, orders), strict=True)
    ]
    try:
        printed = [program.communicate(timeout=START_SECONDS + 200)[0] for program in programs]
    finally:
        for program in programs:
            program.kill()
    assert [program.returncode for program in programs] == [0, 0]
    return [json.loads(text.splitlines()[-1]) for text in printed]


@pytest.mark.timeout(2 * START_SECONDS + 500)
@pytest.mark.parametrize(
    ("chunk", "groups"), [(2, ("g", "g")), (3, ("g", "g")), (2, ("a/b", "a/c"))]
)
def test_two_drivers_ingest_into_one_repository(
    tmp_path: Path, chunk: int, groups: tuple[str, str]
) -> None:
    url = str(tmp_path / "repo")
    files = [[write_file(tmp_path, first + step) for step in (0, 2, 4)] for first in (10, 20)]
    given: dict[str, Any] = {
        "repository": url,
        "concat_dim": "time",
        "chunks": {"time": chunk},
        "append": True,
    }
    if groups[0] == groups[1]:
        icefloe.ingest([write_file(tmp_path, 0)], group="g", **given)
    storage = icefloe.local_filesystem_storage(url)
    before = 0
    if groups[0] == groups[1]:
        before = len(run_blocking(Repository.open(storage).handle.driver.list("chunks/")))
    orders = [
        {**given, "sources": some, "group": group}
        for some, group in zip(files, groups, strict=True)
    ]
    reports = two_drivers(tmp_path, *orders)
    assert sorted(report["files_added"] for report in reports) == [3, 3]
    made = len(run_blocking(Repository.open(storage).handle.driver.list("chunks/"))) - before
    # Every chunk that was ever stored is in a commit, or was written again.
    assert made == sum(one["chunks_written"] + one["chunks_redone"] for one in reports)
    redone = sum(report["chunks_redone"] for report in reports)
    assert (sum(report["bytes_redone"] for report in reports) > 0) == (redone > 0)
    if groups[0] != groups[1]:
        assert [values_of(tmp_path, group) for group in groups] == [
            [*range(10, 16)],
            [*range(20, 26)],
        ]
        assert redone == 0
        return
    assert sorted(report["tries"] for report in reports) == [1, 2]
    order = values_of(tmp_path)
    blocks = [[*range(10, 16)], [*range(20, 26)]]
    assert order in ([0, 1, *blocks[0], *blocks[1]], [0, 1, *blocks[1], *blocks[0]])
    assert redone == (0 if chunk == 2 else 1)  # the old end is inside of a chunk of three
