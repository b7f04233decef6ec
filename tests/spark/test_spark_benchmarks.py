"""The Spark benchmarks still run and agree with official; not how fast they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import spark_files, spark_ingest, spark_read
from benchmarks.spark_rows import Row, Times, measure, render


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::Warning:xarray")
def test_values_are_copied_as_official_copies_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("icechunk", reason="the benchmarks compare with official icechunk")
    monkeypatch.setattr(spark_files, "ROWS", 40)
    rows = list(spark_ingest.native_rows(spark, tmp_path, 2, 1))
    assert [row.target for row in rows] == [1.5] * 4
    assert all(row.ours.wall_seconds > 0 < row.other.wall_seconds for row in rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_files_are_referred_to_as_official_does(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("icechunk", reason="the benchmarks compare with official icechunk")
    rows = list(spark_ingest.virtual_rows(spark, tmp_path, 3, 1))
    assert [row.amount for row in rows] == [3, 3]


@pytest.mark.long
def test_cells_and_chunks_are_read(spark: SparkSession, tmp_path: Path) -> None:
    rows = list(spark_read.read_rows(spark, tmp_path, 0.1, 1))
    assert [row.unit for row in rows] == ["Mcells"] * 4 + ["chunks"]


def test_a_row_says_whether_its_target_is_met() -> None:
    fast, slow = Times(1.0, 2.0), Times(1.4, 1.4)
    met = Row("one", fast, "other", Times(1.5, 1.5), 30, "MB", 1.5)
    missed = Row("two", fast, "other", slow, 30, "MB", 1.5)
    free = Row("three", fast, "other", slow, 30, "MB")
    assert [row.is_missed for row in (met, missed, free)] == [False, True, False]
    heading, *lines = render([met, missed, free])
    assert heading.startswith("case")
    assert [line.split()[-1] for line in lines] == ["ok", "MISSED", "0.70x"]
    assert "30.0 MB/s" in lines[0]
    assert met.as_json()["wall_ratio"] == 1.5


def test_the_least_of_some_rounds_counts_and_the_first_may_not() -> None:
    seen: list[str] = []
    times = measure(
        lambda number: seen.append(f"a{number}"),
        lambda number: seen.append(f"b{number}"),
        rounds=2,
        warm_up=True,
    )
    assert seen == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert all(0 < side.wall_seconds < 10 for side in times)
