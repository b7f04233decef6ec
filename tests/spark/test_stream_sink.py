"""The data source written by Spark itself: a table, and a stream that is stopped and repeated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icefloe import InvalidInputError, Repository
from icefloe.spark import write_stream, write_table
from icefloe.spark.versions import from_arrow
from tests.spark.test_table_grid import DIMS, assert_same, cube, opened, rows_of
from tests.spark.versions import needs_data_sources

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
pq: Any = pytest.importorskip("pyarrow.parquet", reason="a part of pyarrow")

COLUMNS = ["time", "lat", "site", "t"]


def messages(repository: Repository) -> list[str]:
    return [info.message for info in repository.ancestry(branch="main")]


@needs_data_sources
def test_a_table_is_saved_in_one_commit(spark: SparkSession, repository: Repository) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = from_arrow(spark, rows_of(cube()).select(COLUMNS)).repartition(2)
    save = (
        rows.write.format("icefloe")
        .option("dims", "time, lat,site")
        .option("variables", "t")
        .option("chunks", "time=2")
        .option("message", "saved")
    )
    save.mode("append").save(repository.storage.url)
    assert messages(repository)[:-1] == ["saved"]
    assert_same(opened(repository), cube()[["t"]])
    with pytest.raises(PySparkException, match="two rows are for the cell"):
        (
            rows.union(rows)
            .write.format("icefloe")
            .options(dims="time,lat,site", variables="t")
            .mode("overwrite")
            .save(repository.storage.url)
        )
    assert messages(repository)[:-1] == ["saved"]


class Stream:
    """A stream of files into a repository."""

    def __init__(self, spark: SparkSession, repository: Repository, folder: Path) -> None:
        self.spark, self.repository = spark, repository
        self.incoming, self.checkpoint = folder / "incoming", folder / "checkpoint"
        self.incoming.mkdir()

    def arrive(self, first: int) -> None:
        table = rows_of(cube(first, 2)).select(COLUMNS)
        pq.write_table(table, self.incoming / f"{first}.parquet")

    @property
    def frame(self) -> Any:
        schema = self.spark.read.parquet(str(self.incoming)).schema
        return self.spark.readStream.schema(schema).parquet(str(self.incoming))

    def run(self) -> None:
        """Everything that has arrived since the last run."""
        query = (
            self.frame.writeStream.format("icefloe")
            .option("dims", ",".join(DIMS))
            .option("variables", "t")
            .option("chunks", "3,3,2")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(self.repository.storage.url)
        )
        assert query.awaitTermination(300)
        assert query.exception() is None


@needs_data_sources
def test_a_stream_with_a_new_checkpoint_is_another_one(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    stream = Stream(spark, repository, tmp_path)
    stream.arrive(0)
    stream.run()
    shutil.rmtree(stream.checkpoint)
    shutil.rmtree(stream.incoming)
    stream.incoming.mkdir()
    stream.arrive(2)
    stream.run()  # batch 0 again, with other rows
    assert_same(opened(repository), xr.concat([cube(0, 2), cube(2, 2)], "time")[["t"]])
    newest, before, *_ = repository.ancestry(branch="main")
    apps = [info.metadata["icefloe.stream.app"] for info in (newest, before)]
    assert apps[0] == json.loads((stream.checkpoint / "metadata").read_text())["id"] != apps[1]


def test_all_tasks_write_a_stream_exactly_once(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    stream = Stream(spark, repository, tmp_path)

    def run() -> None:
        writer = write_stream(
            stream.frame,
            repository,
            checkpoint=str(stream.checkpoint),
            dims=DIMS,
            variables=["t"],
            chunks=(3, 3, 2),
            num_tasks=2,
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        assert query.exception() is None

    stream.arrive(0)
    run()
    (note,) = (stream.checkpoint / "commits").glob("0")
    note.unlink()
    (stream.checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    stream.arrive(2)
    run()
    assert len(messages(repository)) == 3
    newest = next(iter(repository.ancestry(branch="main")))
    name = json.loads((stream.checkpoint / "metadata").read_text())["id"]
    assert newest.metadata == {"icefloe.stream.app": name, "icefloe.stream.batch": 1}
    assert_same(opened(repository), xr.concat([cube(0, 2), cube(2, 2)], "time")[["t"]])
    with pytest.raises(InvalidInputError, match="df is not a stream"):
        write_stream(spark.range(1), repository, checkpoint="/c", dims=["id"], variables=["id"])


@needs_data_sources
def test_a_repeated_batch_is_not_written_twice(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    stream = Stream(spark, repository, tmp_path)
    stream.arrive(0)
    stream.run()
    checkpoint = stream.checkpoint
    (note,) = (checkpoint / "commits").glob("0")
    note.unlink()  # as if Spark had been stopped between our commit and its own note of it
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    tip = repository.lookup_branch("main")
    stream.arrive(2)
    stream.run()
    assert len(messages(repository)) == 3
    newest, before, *_ = repository.ancestry(branch="main")
    assert before.id == tip
    assert newest.metadata["icefloe.stream.batch"] == 1
    whole = xr.concat([cube(0, 2), cube(2, 2)], "time")[["t"]]
    assert_same(opened(repository), whole)
    again = from_arrow(spark, rows_of(cube(0, 2)).select(COLUMNS))
    report = write_table(
        again,
        repository,
        dims=DIMS,
        variables=["t"],
        mode="append",
        transaction=(newest.metadata["icefloe.stream.app"], 1),
    )
    assert (report.snapshot_id, report.chunks_written) == (newest.id, 0)
