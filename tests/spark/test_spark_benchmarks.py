"""The Spark benchmarks still run and agree with official; not how fast they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import spark_files, spark_ingest, spark_read
from benchmarks.results import Figures
from benchmarks.spark_rows import Row, Times, measure


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::Warning:xarray")
def test_values_are_copied_as_official_copies_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("icechunk", reason="the benchmarks compare with official icechunk")
    monkeypatch.setattr(spark_files, "ROWS", 40)
    rows = list(spark_ingest.native_rows(spark, tmp_path, 2, 1))
    assert [row.target for row in rows] == [1.5, 1.5, None, 1.8, 1.8, None]
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
    assert [row.unit for row in rows] == ["Mcells"] * 5 + ["chunks"] * 3


def test_a_row_is_one_of_the_page() -> None:
    ours, other = Times(1.0, 2.0, Figures(3.0, 3.0)), Times(1.4, 1.4, Figures(6.0, 3.0))
    row = Row("one", ours, "other", other, 30, "MB", 1.5).as_result()
    assert row.key == "one; against other"
    assert row.missed == ["wall 1.5x"]
    assert row.ratio("cold", "wall") == 2.0
    assert Row("one", ours, "other", other, 30, "MB").as_result().missed == []


def test_the_least_of_some_rounds_counts_and_the_first_may_not() -> None:
    seen: list[str] = []
    times = measure(
        lambda number: seen.append(f"a{number}"),
        lambda number: seen.append(f"b{number}"),
        rounds=2,
        warm_up=True,
        prepare=lambda: seen.append("-"),
    )
    assert "".join(seen) == "-a0-b0-b1-a1-a2-b2"
    assert all(0 < side.wall_seconds < 10 for side in times)
    assert all(side.cold is not None for side in times)
