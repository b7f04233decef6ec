"""Tables, SQL, filters and streams through a running Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zarr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

import icefloe.spark
from icefloe import IcechunkError, InvalidInputError, Repository
from icefloe.scans.metadata_tables import TABLES, plan_table
from icefloe.scans.scan import pin
from icefloe.spark.versions import to_arrow
from tests.servers import S3Server
from tests.spark.datasets import WEATHER_ENCODING, rows, rows_of, weather, write
from tests.spark.test_tables import history
from tests.spark.versions import needs_data_sources


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return history(tmp_path_factory.mktemp("past"), 2)


def sorted_rows(found: Any) -> list[str]:
    table = to_arrow(found) if isinstance(found, DataFrame) else found
    # As text, because UTC is another class with older versions of Spark.
    return sorted(json.dumps(row, default=str) for row in table.to_pylist())


def test_tables_are_the_same_through_spark(spark: SparkSession, past: Repository) -> None:
    for name in TABLES:
        expected = sorted_rows(rows_of(plan_table(pin(past), name, "main")))
        assert sorted_rows(icefloe.spark.table(spark, past, name)) == expected


@needs_data_sources
def test_tables_of_the_data_source(spark: SparkSession, past: Repository) -> None:
    reader = spark.read.format("icefloe").option("table", "chunks").option("tag", "filled")
    found = reader.load(past.storage.url)
    assert found.groupBy("kind").count().count() == 2
    files = spark.read.format("icefloe").option("table", "files").load(past.storage.url)
    assert files.where("is_referenced").count() > 10


def test_files_on_s3_are_listed_in_parts(spark: SparkSession, s3_server: S3Server) -> None:
    repository = Repository.create(s3_server.storage())
    write(repository, weather(), encoding=WEATHER_ENCODING)
    found = to_arrow(icefloe.spark.table(spark, repository, "files"))
    listed = dict(repository.storage.list_objects())
    assert (
        dict(zip(found["path"].to_pylist(), found["file_size_in_bytes"].to_pylist(), strict=True))
        == listed
    )


@needs_data_sources
def test_conditions_of_a_source_choose_the_chunks(
    spark: SparkSession, repository: Repository
) -> None:
    write(repository, weather(), encoding=WEATHER_ENCODING)
    reader = spark.read.format("icefloe").option("min-partitions", 100)
    assert reader.load(repository.storage.url).rdd.getNumPartitions() == 12
    text = "lat = 47.5 AND time >= '2001-02-01'"
    near = reader.option("where", text).load(repository.storage.url)
    assert near.rdd.getNumPartitions() == 4
    assert near.count() == rows(repository, where=text).num_rows > 0


@needs_data_sources
def test_sql_and_a_schema_that_chooses_columns(spark: SparkSession, repository: Repository) -> None:
    write(repository, weather(), encoding=WEATHER_ENCODING)
    url = repository.storage.url
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW weather USING icefloe OPTIONS (path '{url}', "
        "variables 'temperature', where 'lat > 48')"
    )
    [row] = spark.sql("SELECT count(*) n, max(temperature) top FROM weather").collect()
    assert (row.n, row.top) == (
        40,
        rows(repository, where="lat > 48")["temperature"].to_pandas().max(),
    )
    chosen = spark.read.format("icefloe").schema("height int, lat float").load(url)
    assert chosen.columns == ["height", "lat"]
    assert chosen.count() == 60


@needs_data_sources
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"layuot": "cells"}, "unknown option 'layuot'"),
        ({"table": "everything"}, "tables are snapshots"),
        ({"branch": "nowhere"}, "nowhere"),
        ({"as-of": "yesterday"}, "as-of is 'yesterday'"),
        ({"decode": "perhaps"}, "expected true or false"),
        ({"variables": "nothing"}, "array 'nothing' in group"),
        ({"path": ""}, "no repository"),
    ],
)
def test_bad_options_are_refused_when_the_source_is_asked_for_its_schema(
    past: Repository, options: dict[str, str], problem: str
) -> None:
    from pyspark.sql.datasource import CaseInsensitiveDict

    from icefloe.spark.data_source import IcefloeDataSource

    source = IcefloeDataSource(CaseInsensitiveDict({"path": past.storage.url, **options}))
    with pytest.raises(IcechunkError, match=problem):
        source.schema()


@needs_data_sources
def test_a_table_of_sql_carries_its_options_in_its_schema(past: Repository) -> None:
    from pyspark.sql.datasource import CaseInsensitiveDict

    from icefloe.spark.data_source import IcefloeDataSource

    path = past.storage.url.replace("file://", "file:")
    created = {"provider": "icefloe", "owner": "me", "location": path, "path": path, "team": "x"}
    given = {**created, "variables": "a", "option.variables": "a"}
    schema = IcefloeDataSource(CaseInsensitiveDict(given)).schema()
    later = IcefloeDataSource(CaseInsensitiveDict({"Branch": "main"}))  # all that Spark hands on
    stored = StructType.fromJson(json.loads(schema.json()))
    reader = later.reader(stored)
    assert [b for p in reader.partitions() for b in reader.read(p)]
    with pytest.raises(IcechunkError, match="nowhere"):
        IcefloeDataSource(CaseInsensitiveDict({"branch": "nowhere"})).reader(stored)
    misspelt = CaseInsensitiveDict({**created, "layuot": "x", "option.layuot": "x"})
    with pytest.raises(InvalidInputError, match="unknown option 'layuot'"):
        IcefloeDataSource(misspelt).schema()
    plain = StructType([StructField("a", DoubleType())])
    with pytest.raises(InvalidInputError, match="without a list of columns"):
        IcefloeDataSource(CaseInsensitiveDict({})).reader(plain)


@needs_data_sources
def test_a_schema_of_other_types_is_refused(past: Repository) -> None:
    from pyspark.sql.datasource import CaseInsensitiveDict

    from icefloe.spark.data_source import IcefloeDataSource

    options = CaseInsensitiveDict({"path": past.storage.url, "variables": "a"})
    source = IcefloeDataSource(options)
    for schema, problem in (
        (StructType([StructField("a", StringType())]), "is double, the schema says string"),
        (StructType([StructField("c", StringType())]), "no column 'c'"),
    ):
        with pytest.raises(InvalidInputError, match=problem):
            source.reader(schema)


@needs_data_sources
def test_bad_options_are_refused_before_a_job_starts(spark: SparkSession, past: Repository) -> None:
    reader = spark.read.format("icefloe").option("layuot", "cells")
    with pytest.raises(Exception, match="unknown option 'layuot'"):
        reader.load(past.storage.url)


@needs_data_sources
def test_a_stream_has_every_commit_once(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    write(repository, weather())
    stream = (
        spark.readStream.format("icefloe").option("table", "changes").load(repository.storage.url)
    )
    target, checkpoint = str(tmp_path / "changes"), str(tmp_path / "checkpoint")

    def drain() -> dict[str, int]:
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(target)
        )
        assert query.awaitTermination(120)
        counts = spark.read.parquet(target).groupBy("snapshot_id").count().collect()
        return {row["snapshot_id"]: row["count"] for row in counts}

    first = drain()
    assert set(first) == {repository.lookup_branch("main")}
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="height")[...] = 1
    second = session.commit("one array")
    assert drain() == first | {second: 1}


@needs_data_sources
def test_a_stream_of_arrays_is_refused(past: Repository) -> None:
    from pyspark.sql.datasource import CaseInsensitiveDict

    from icefloe.spark.data_source import IcefloeDataSource

    source = IcefloeDataSource(CaseInsensitiveDict({"path": past.storage.url, "variables": "a"}))
    with pytest.raises(InvalidInputError, match="cannot be read as a stream"):
        source.streamReader(source.schema())


def test_a_table_refuses_before_a_job_starts(spark: SparkSession, past: Repository) -> None:
    with pytest.raises(InvalidInputError, match="no table 'chunk'"):
        icefloe.spark.table(spark, past, "chunk")
    with pytest.raises(InvalidInputError, match="whole repository"):
        icefloe.spark.table(spark, past, "refs", branch="main")
    with pytest.raises(InvalidInputError, match=r"expected an icefloe\.Repository"):
        icefloe.spark.table(spark, past.storage, "refs")  # type: ignore[arg-type]
