"""The same rows through Spark: `read`, and the data source that Spark finds by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

import icefloe.spark
from icefloe import InvalidInputError, Repository, in_memory_storage
from icefloe.spark.versions import to_arrow
from tests.servers import S3Server
from tests.spark.datasets import WEATHER_ENCODING, as_frame, pd, rows, weather, write, xr
from tests.spark.versions import SPARK_VERSION, needs_data_sources

DIMS = ["time", "lat", "station"]


@pytest.fixture
def written(repository: Repository) -> Repository:
    write(repository, weather(), encoding=WEATHER_ENCODING)
    return repository


def assert_same(found: Any, expected: Any) -> None:
    pd.testing.assert_frame_equal(
        as_frame(to_arrow(found), DIMS), as_frame(expected, DIMS), check_exact=True
    )


def test_read_gives_the_rows_of_the_scan(spark: SparkSession, written: Repository) -> None:
    assert_same(icefloe.spark.read(spark, written), rows(written))
    chosen = icefloe.spark.read(spark, written, where="lat > 48 AND station IN ('a', 'ü')")
    expected = rows(written, where={"lat": [52.5, 50.0], "station": ["a", "ü"]})
    assert expected.num_rows == 20
    assert_same(chosen, expected)


@needs_data_sources
def test_the_data_source_gives_the_same(spark: SparkSession, written: Repository) -> None:
    reader = spark.read.format("icefloe").option("variables", "temperature,height,run")
    frame = reader.load(written.storage.url)
    assert_same(frame.select(*rows(written).column_names), rows(written))


CONDITIONS = [
    "f = 50.1",
    "f < 50.1 AND f > 49",
    "f >= 50.1",
    "f IN (50.1, 50.25)",
    "f <= 50",
    "f > 16777217",
    "f = 16777217",
    "d = 50.1",
    "n = 9007199254740992.0",
    "n >= 9007199254740992.5",
    "n = 9007199254740992e0",
    "n < 2.5",
    "n > 99999999999999999999",
    "t >= '2000-01-01 10:00:00Z'",
    "t > '2000-01-01T10'",
    "t = TIMESTAMP '2000-01-01 10:00:00'",
    "t < TIMESTAMP_NTZ '2000-01-01 10:00'",
    "t > DATE '2000-01-01'",
]


def test_conditions_keep_what_spark_keeps(spark: SparkSession, repository: Repository) -> None:
    axes: dict[str, Any] = {
        "f": np.array([50, 50.1, 50.25, 2**24, np.nan], "f4"),
        "d": np.array([50, 50.1, np.nan]),
        "n": np.array([2, 2**53 + 1, 2**62]),
        "t": np.datetime64("2000-01-01", "s") + np.array([0, 10, 11]) * np.timedelta64(1, "h"),
    }
    shape = tuple(map(len, axes.values()))
    write(
        repository, xr.Dataset({"v": (tuple(axes), np.arange(np.prod(shape)).reshape(shape))}, axes)
    )
    everything = icefloe.spark.read(spark, repository).cache()
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "true")  # off in Spark 3.5, which rounds then
    try:
        for text in CONDITIONS:
            wanted = sorted(row.v for row in everything.where(text).collect())
            assert sorted(rows(repository, where=text)["v"].to_pylist()) == wanted, text
        if SPARK_VERSION < (4, 0):
            return
        source = spark.read.format("icefloe").option("pushdown", "true")
        pushed = source.load(repository.storage.url)
        for text in ("d < double('NaN')", "d >= double('NaN')", "d = double('NaN')", "f > 50.1"):
            wanted = sorted(row.v for row in everything.where(text).collect())
            assert sorted(row.v for row in pushed.where(text).collect()) == wanted, text
    finally:
        everything.unpersist()
        spark.conf.set("spark.sql.session.timeZone", str(zone))
        spark.conf.set("spark.sql.ansi.enabled", str(ansi))


@needs_data_sources
def test_sql_creates_tables(spark: SparkSession, written: Repository) -> None:
    first = written.lookup_branch("main")
    place = written.storage.url.removeprefix("file://")
    options = "OPTIONS (variables 'temperature', where 'lat > 48', `split-size` '1m')"
    spark.sql(
        f"CREATE TABLE cells USING icefloe {options} COMMENT 'all' TBLPROPERTIES ('team' = 'x') "
        f"LOCATION '{place}'"
    )
    try:
        before = rows(written, variables=["temperature"], where="lat > 48")
        session = written.writable_session("main")
        zarr.open_array(session.store, path="temperature", mode="r+")[:] = 0
        session.commit("later")
        now = rows(written, variables=["temperature"], where="lat > 48")
        assert_same(spark.sql("SELECT * FROM cells"), now)
        assert_same(spark.sql(f"SELECT * FROM cells WITH (snapshot = '{first}')"), before)
    finally:
        spark.sql("DROP TABLE cells")
    assert len(list(Repository.open(written.storage).ancestry(branch="main"))) == 3


def test_a_repository_on_s3_is_read_with_its_own_credentials(
    spark: SparkSession, s3_server: S3Server
) -> None:
    repository = Repository.create(s3_server.storage())
    write(repository, weather(), encoding=WEATHER_ENCODING)
    frame = icefloe.spark.read(spark, repository)
    assert_same(frame, rows(repository))
    plan = frame._jdf.queryExecution().toString()
    assert "test-secret" not in plan


def test_a_repository_in_memory_is_refused(spark: SparkSession) -> None:
    repository = Repository.create(in_memory_storage())
    with pytest.raises(InvalidInputError, match="memory of this process"):
        icefloe.spark.read(spark, repository)
