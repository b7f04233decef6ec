"""A frame gives every query all its rows, whatever was done with the frame before.

Spark plans the scan of a frame once and shares it among the frame's queries. Spark 4.1 to 4.3 also
keep there what a source has made of one query's filters (`pushFilters`), so that later queries, and
other parts of the same query, would read only what that one wanted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark.sql.datasource", reason="Spark 4.0 brought data sources in Python")

import zarr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader

from icefloe import Repository
from icefloe.spark.data_source import IcefloeDataSource

Rows = list[tuple[Any, ...]]
ROWS: Rows = [(x, y, 10 * x + y) for x in range(1, 5) for y in range(3)]

FILTERS: dict[str, Callable[[int, int, int], bool]] = {
    "x >= 3": lambda x, y, v: x >= 3,
    "x < 2": lambda x, y, v: x < 2,
    "x = 2 AND y > 0": lambda x, y, v: x == 2 and y > 0,
    "x IN (1, 4)": lambda x, y, v: x in (1, 4),
    "x > 99": lambda x, y, v: False,
    "v BETWEEN 12 AND 31": lambda x, y, v: 12 <= v <= 31,
    "true": lambda x, y, v: True,
}


def kept(text: str) -> Rows:
    return [row for row in ROWS if FILTERS[text](*row)]


def collected(frame: DataFrame) -> Rows:
    return sorted(tuple(row) for row in frame.collect())


@pytest.fixture
def url(repository: Repository) -> str:
    """A chunk for every x, so that whatever is spared is missed."""
    session = repository.writable_session("main")
    for name, dims, chunks, values in (
        ("x", ("x",), (4,), np.arange(1, 5)),
        ("y", ("y",), (3,), np.arange(3)),
        ("v", ("x", "y"), (1, 3), np.array([v for *_, v in ROWS]).reshape(4, 3)),
    ):
        zarr.create_array(
            session.store, name=name, data=values, chunks=chunks, dimension_names=dims
        )
    session.commit("twelve rows")
    return repository.storage.url


OFFER = "spark.sql.python.filterPushdown.enabled"
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "plain": ("false", {}),
    "filters are offered": ("true", {}),
    "pushdown": ("true", {"pushdown": "true"}),
    "pushdown, none offered": ("false", {"pushdown": "true"}),
}


@pytest.fixture(params=CASES)
def options(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Options of the source, while Spark's own setting is on or off."""
    offer, given = CASES[request.param]
    spark.conf.set(OFFER, offer)
    yield given
    spark.conf.unset(OFFER)


def loaded(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("icefloe").options(**options).load(url)


def view(spark: SparkSession, url: str, **options: str) -> DataFrame:
    given = ", ".join(f"{key} '{value}'" for key, value in {"path": url, **options}.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sequence USING icefloe OPTIONS ({given})")
    return spark.table("sequence")


def with_columns(spark: SparkSession, url: str, **options: str) -> DataFrame:
    reader = spark.read.format("icefloe").schema("x bigint, y bigint, v bigint")
    return reader.options(**options).load(url)


@pytest.mark.parametrize(
    ("options", "make"),
    [*((case, loaded) for case in CASES), ("pushdown", view), ("pushdown", with_columns)],
    indirect=["options"],
)
def test_queries_on_one_frame_in_any_order(
    spark: SparkSession, url: str, options: dict[str, str], make: Callable[..., DataFrame]
) -> None:
    frame = make(spark, url, **options)
    assert frame.where("x >= 3").count() == 6
    assert frame.count() == 12
    queries = {text: frame.where(text) for text in FILTERS}
    order = [*FILTERS, *FILTERS]  # each planned once and run twice, with others in between
    random.Random(make.__name__).shuffle(order)
    for text in order:
        assert collected(queries[text]) == kept(text), (text, order)
    assert collected(frame) == ROWS


@pytest.mark.parametrize("options", ["plain", "pushdown"], indirect=True)
def test_several_parts_of_one_frame_in_one_query(
    spark: SparkSession, url: str, options: dict[str, str]
) -> None:
    frame = loaded(spark, url, **options)
    for first, second in product(("x >= 3", "x < 2", "true"), repeat=2):
        both = frame.where(first).union(frame.where(second))
        assert collected(both) == sorted(kept(first) + kept(second)), (first, second)
    left, right = frame.where("x >= 3").alias("l"), frame.where("x < 2").alias("r")
    joined = left.join(right, on="y").selectExpr("l.x", "r.x", "y")
    assert collected(joined) == sorted((x, 1, y) for x in (3, 4) for y in range(3))
    total = frame.agg({"v": "sum"}).collect()[0][0]
    assert total == sum(v for *_, v in ROWS)
    frame.createOrReplaceTempView("parts")
    above = spark.sql("SELECT x, y, v FROM parts WHERE v > (SELECT avg(v) FROM parts WHERE x < 3)")
    assert collected(above) == [row for row in ROWS if row[2] > 16]


@pytest.mark.parametrize("options", ["plain", "pushdown"], indirect=True)
def test_frames_that_are_cached(spark: SparkSession, url: str, options: dict[str, str]) -> None:
    frame = loaded(spark, url, **options)
    part = frame.where("x >= 3").cache()
    try:
        assert collected(part) == kept("x >= 3")
        assert collected(frame) == ROWS
        frame.cache()
        assert frame.where("x IN (1, 4)").count() == 6
        assert collected(frame.where("x < 2")) == kept("x < 2")
        assert collected(frame) == ROWS
        frame.unpersist()
        part.unpersist()
        for text in FILTERS:
            assert collected(frame.where(text)) == kept(text), text
        assert collected(frame) == ROWS
    finally:
        frame.unpersist()
        part.unpersist()


@pytest.mark.parametrize("options", ["pushdown"], indirect=True)
@pytest.mark.usefixtures("options")
def test_tables_of_sql(spark: SparkSession, url: str) -> None:
    place = url.removeprefix("file://")
    spark.sql(f"CREATE TABLE twelve USING icefloe OPTIONS (pushdown 'true') LOCATION '{place}'")
    try:
        table = spark.table("twelve")
        for text in ("x >= 3", "true", "x < 2", "true"):
            assert collected(table.where(text)) == kept(text), text
            assert collected(spark.sql(f"SELECT * FROM twelve WHERE {text}")) == kept(text), text
    finally:
        spark.sql("DROP TABLE twelve")


@pytest.mark.parametrize("options", ["pushdown"], indirect=True)
@pytest.mark.usefixtures("options")
def test_chunks_and_tables_of_metadata(spark: SparkSession, url: str) -> None:
    chunks = loaded(spark, url, layout="chunks", pushdown="true", variables="v")
    assert chunks.where("offset[0] >= 2 AND path = '/v'").count() == 2
    assert chunks.count() == 4
    nodes = loaded(spark, url, table="nodes", pushdown="true")
    assert nodes.where("path = '/v'").count() == 1
    assert nodes.where("path = '/x'").count() == 1
    assert nodes.count() == 4


def test_a_stream_with_filters_leaves_other_streams_alone(
    spark: SparkSession, repository: Repository, url: str, tmp_path: Path
) -> None:
    stream = spark.readStream.format("icefloe").option("table", "changes").load(url)
    for name, text in (("all", "true"), ("some", "path = '/v'"), ("again", "true")):
        query = stream.where(text).writeStream.format("memory").queryName(f"sequence_{name}")
        at = str(tmp_path / name)
        query.option("checkpointLocation", at).trigger(availableNow=True).start().awaitTermination()
    every, some, again = (
        spark.table(f"sequence_{name}").count() for name in ("all", "some", "again")
    )
    assert every == again > some > 0


def test_a_reader_takes_no_filters(url: str) -> None:
    source = IcefloeDataSource({"path": url, "pushdown": "true"})
    with pytest.warns(UserWarning, match="option pushdown .* does nothing.* option where"):
        schema = source.schema()
    reader: Any = source.reader(schema)
    # Since Spark 4.1 every reader has the method; none of ours is to answer it.
    name = "pushFilters"
    assert getattr(type(reader), name, None) is getattr(DataSourceReader, name, None)
