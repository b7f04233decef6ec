"""The same rows through Spark: `read`, and the data source that Spark finds by itself."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import icefloe.spark
from icefloe import InvalidInputError, Repository, in_memory_storage
from tests.servers import S3Server
from tests.spark.datasets import WEATHER_ENCODING, as_frame, pd, rows, weather, write

DIMS = ["time", "lat", "station"]


@pytest.fixture
def written(repository: Repository) -> Repository:
    write(repository, weather(), encoding=WEATHER_ENCODING)
    return repository


def assert_same(found: Any, expected: Any) -> None:
    pd.testing.assert_frame_equal(
        as_frame(found.toArrow(), DIMS), as_frame(expected, DIMS), check_exact=True
    )


def test_read_gives_the_rows_of_the_scan(spark: SparkSession, written: Repository) -> None:
    assert_same(icefloe.spark.read(spark, written), rows(written))
    chosen = icefloe.spark.read(spark, written, where="lat > 48 AND station IN ('a', 'ü')")
    expected = rows(written, where={"lat": [52.5, 50.0], "station": ["a", "ü"]})
    assert expected.num_rows == 20
    assert_same(chosen, expected)


def test_the_data_source_gives_the_same(spark: SparkSession, written: Repository) -> None:
    reader = spark.read.format("icefloe").option("variables", "temperature,height,run")
    frame = reader.load(written.storage.url)
    assert_same(frame.select(*rows(written).column_names), rows(written))


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
