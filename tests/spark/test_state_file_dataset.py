"""Datasets with a state file, through Spark: their Parquet files, and the same calls as ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from pyspark.sql import SparkSession

import icefloe.spark
from icefloe import Repository, StateFileDataset, local_filesystem_storage
from icefloe.spark.versions import to_arrow
from tests.spark.datasets import WEATHER_ENCODING, as_frame, pd, rows, weather, write
from tests.spark.test_spark_reading import DIMS

# Spark has no unsigned numbers: it reads each as the next wider type.
STRUCTURE = (
    "struct<id:int,type:string,path:string,array_metadata:struct<shape:array<int>,"
    "data_type:string,fill_value:binary,dimension_names:array<string>,chunk_grid:struct<name:string,"
    "configuration:struct<chunk_shape:array<int>>>,chunk_key_encoding:struct<name:string,"
    "configuration:struct<separator:string>>,codecs:array<struct<name:string,"
    "configuration:binary>>>,inline_attrs:binary,attrs_reference:struct<attrs_file:string,row:int,"
    "flags:int>,inventories:array<struct<inventory_file:string,row:int,extent:array<array<int>>,"
    "flags:int>>>"
)
MANIFEST = (
    "struct<id:bigint,array_id:bigint,coord:binary,inline_data:binary,chunk_file:string,"
    "offset:decimal(20,0),length:bigint>"
)


@pytest.fixture
def dataset(tmp_path: Path) -> Repository:
    storage = local_filesystem_storage(tmp_path / "dataset", durable=False)
    repo = Repository.create(storage, generation=StateFileDataset())
    write(repo, weather(), encoding=WEATHER_ENCODING)
    return repo


def test_spark_reads_the_files_of_the_document(
    spark: SparkSession, dataset: Repository, tmp_path: Path
) -> None:
    structure = spark.read.parquet(f"{tmp_path}/dataset/s/{dataset.lookup_branch('main')}.parquet")
    assert structure.schema.simpleString() == STRUCTURE
    manifests = spark.read.parquet(f"{tmp_path}/dataset/i")
    assert manifests.schema.simpleString() == MANIFEST
    group: Any = zarr.open_group(dataset.readonly_session("main").store, mode="r")
    names = {"/" + name for name, _ in group.members()} | {"/"}
    found = structure.select("path", "type", "id").collect()
    assert {row.path for row in found} == names
    arrays = {row.id for row in found if row.type == "array"}
    assert {row.array_id for row in manifests.select("array_id").distinct().collect()} <= arrays


def test_the_same_calls_read_it(spark: SparkSession, dataset: Repository) -> None:
    found = icefloe.spark.read(spark, dataset)
    pd.testing.assert_frame_equal(
        as_frame(to_arrow(found), DIMS), as_frame(rows(dataset), DIMS), check_exact=True
    )


def test_a_dataset_written_by_tasks_is_one_commit(spark: SparkSession, dataset: Repository) -> None:
    values = xr.Dataset({"v": (("x", "y"), np.arange(600.0).reshape(20, 30))})
    encoding = {"v": {"chunks": (5, 10)}}
    icefloe.spark.write_dataset(spark, values, dataset, group="made", encoding=encoding)
    session = Repository.open(dataset.storage).readonly_session("main")
    found = xr.open_zarr(session.store, group="made", consolidated=False)
    xr.testing.assert_identical(found.load(), values)
    assert len(list(dataset.ancestry(branch="main"))) == 3
