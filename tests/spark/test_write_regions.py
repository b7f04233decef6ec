"""Arrays filled by functions that run on the executors."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from pyspark.sql import SparkSession

import icefloe.spark
from icefloe import InvalidInputError, ReadOnlyError, Repository
from icefloe.changes.splits import ChunkSpan
from icefloe.errors import SessionStateError
from icefloe.spark import Region, write_regions
from icefloe.spark.shared_write import share
from tests.spark.writing import number_of_objects


def cell_numbers(region: Region) -> np.ndarray[Any, Any]:
    """Every cell of a (30, 40) array has its own number."""
    rows, columns = np.ogrid[region.slices]
    return (rows * 40 + columns).astype("i4")


def two_variables(region: Region) -> dict[str, np.ndarray[Any, Any]]:
    return {"a": cell_numbers(region), "b": cell_numbers(region).astype("f8") / 2}


def as_dataset(region: Region) -> xr.Dataset:
    values = cell_numbers(region) / 10
    return xr.Dataset({"packed": (("y", "x"), values)})


def fails(region: Region) -> np.ndarray[Any, Any]:
    raise ValueError("no such weather")


def wrong(what: Any, region: Region) -> Any:
    return what


EXPECTED = np.arange(1200, dtype="i4").reshape(30, 40)


@pytest.fixture
def arrays(repository: Repository) -> Repository:
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="w")
    names = ["y", "x"]
    for name, chunks in (("a", (10, 10)), ("b", (5, 40))):
        kind = "i4" if name == "a" else "f8"
        group.create_array(
            name, shape=(30, 40), chunks=chunks, dtype=kind, dimension_names=names, fill_value=-1
        )
    packed = group.create_array(
        "packed", shape=(30, 40), chunks=(10, 40), dtype="i2", dimension_names=names
    )
    packed.attrs.update({"scale_factor": 0.1, "add_offset": 5.0})
    group.create_array(
        "sharded", shape=(30, 40), chunks=(5, 5), shards=(15, 20), dtype="i4", dimension_names=names
    )
    group.create_array("line", shape=(40,), chunks=(10,), dtype="i4", dimension_names=["x"])
    session.commit("arrays")
    return repository


@pytest.mark.parametrize("name", ["a", "sharded"])
def test_an_array_is_filled_region_by_region(
    spark: SparkSession, arrays: Repository, name: str
) -> None:
    session = arrays.writable_session("main")
    report = write_regions(
        spark, session, name, cell_numbers, region_shape=(15, 20) if name != "a" else (10, 20)
    )
    assert report.chunks_written == (12 if name == "a" else 4)
    assert report.bytes_written > 0
    np.testing.assert_array_equal(zarr.open_array(session.store, path=name, mode="r")[:], EXPECTED)
    session.commit("filled")
    read = zarr.open_array(arrays.readonly_session("main").store, path=name, mode="r")
    np.testing.assert_array_equal(read[:], EXPECTED)


def test_tasks_write_where_the_repository_was_opened(
    spark: SparkSession, arrays: Repository, tmp_path: Path
) -> None:
    link, other = tmp_path / "current", tmp_path / "other"
    link.symlink_to(tmp_path / "repository")
    shutil.copytree(tmp_path / "repository", other)
    before = number_of_objects(Repository.open(icefloe.local_filesystem_storage(other)))
    repository = Repository.open(icefloe.local_filesystem_storage(link))
    session = repository.writable_session("main")
    link.unlink()
    link.symlink_to(other)
    write_regions(spark, session, "a", cell_numbers)
    session.commit("after the link was switched")
    read = zarr.open_array(arrays.readonly_session("main").store, path="a", mode="r")
    np.testing.assert_array_equal(read[:], EXPECTED)
    assert number_of_objects(Repository.open(icefloe.local_filesystem_storage(other))) == before


def test_arrays_of_a_group_are_written_together(spark: SparkSession, arrays: Repository) -> None:
    session = arrays.writable_session("main")
    write_regions(spark, session, "/", two_variables, variables=["a", "b"], region_shape=(10, 40))
    session.commit("both")
    store = arrays.readonly_session("main").store
    for name, expected in (("a", EXPECTED), ("b", EXPECTED / 2)):
        found = zarr.open_array(store, path=name, mode="r")[:]
        np.testing.assert_array_equal(found, expected)


def test_a_dataset_is_encoded_as_the_arrays_say(spark: SparkSession, arrays: Repository) -> None:
    session = arrays.writable_session("main")
    write_regions(spark, session, "/", as_dataset, variables=["packed"])
    session.commit("packed")
    store = arrays.readonly_session("main").store
    np.testing.assert_array_equal(
        zarr.open_array(store, path="packed", mode="r")[:], np.round((EXPECTED / 10 - 5) / 0.1)
    )
    opened = xr.open_zarr(store, consolidated=False)
    np.testing.assert_allclose(opened["packed"].values, EXPECTED / 10)


def test_only_the_given_regions_are_written(spark: SparkSession, arrays: Repository) -> None:
    session = arrays.writable_session("main")
    boxes = [{"y": slice(0, 10), "x": slice(10, 20)}, (slice(20, 25), slice(30, 40))]
    write_regions(spark, session, "a", cell_numbers, regions=boxes)
    expected = np.full((30, 40), -1, "i4")
    expected[0:10, 10:20] = EXPECTED[0:10, 10:20]
    expected[20:25, 30:40] = EXPECTED[20:25, 30:40]
    np.testing.assert_array_equal(zarr.open_array(session.store, path="a", mode="r")[:], expected)


def test_a_part_of_a_chunk_keeps_its_other_cells(spark: SparkSession, arrays: Repository) -> None:
    session = arrays.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:] = 7
    session.commit("sevens")
    session = arrays.writable_session("main")
    write_regions(spark, session, "a", cell_numbers, regions=[(slice(3, 7), slice(0, 40))])
    expected = np.full((30, 40), 7, "i4")
    expected[3:7] = EXPECTED[3:7]
    np.testing.assert_array_equal(zarr.open_array(session.store, path="a", mode="r")[:], expected)


def test_chunks_that_hold_nothing_but_the_fill_value_are_deleted(
    spark: SparkSession, arrays: Repository
) -> None:
    session = arrays.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:] = 7
    session.commit("sevens")
    session = arrays.writable_session("main")
    blank = partial(wrong, np.full((10, 40), -1, "i4"))
    write_regions(spark, session, "a", blank, region_shape=(10, 40))
    session.commit("blank")
    session = arrays.readonly_session("main")
    assert session.chunk_type("/a", [0, 0]).name == "uninitialized"
    found = zarr.open_array(session.store, path="a", mode="r")[:]
    np.testing.assert_array_equal(found, np.full((30, 40), -1))


def test_a_task_that_fails_for_good_leaves_the_session_as_it_was(
    spark: SparkSession, arrays: Repository
) -> None:
    session = arrays.writable_session("main")
    with pytest.raises(Exception, match="no such weather"):
        write_regions(spark, session, "a", fails)
    assert not session.has_uncommitted_changes
    zarr.open_array(session.store, path="a", mode="r+")[:] = 1
    session.commit("still usable")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros((3, 3), "i4"), "expected \\(30, 40\\)"),
        (np.zeros((30, 40), "f8"), "the array holds int32"),
        ({"b": np.zeros((30, 40), "i4")}, "expected \\['a'\\]"),
    ],
)
def test_what_does_not_fit_is_refused(
    spark: SparkSession, arrays: Repository, result: Any, message: str
) -> None:
    session = arrays.writable_session("main")
    with pytest.raises(InvalidInputError, match=message):
        write_regions(spark, session, "a", partial(wrong, result))
    assert not session.has_uncommitted_changes


def test_bad_arguments_are_refused_before_any_work(spark: SparkSession, arrays: Repository) -> None:
    session = arrays.writable_session("main")
    before = number_of_objects(arrays)
    with pytest.raises(InvalidInputError, match="share a chunk"):
        write_regions(spark, session, "a", cell_numbers, regions=[(slice(0, 15), slice(0, 40))] * 2)
    with pytest.raises(InvalidInputError, match="multiple of 10"):
        write_regions(spark, session, "a", cell_numbers, region_shape=(7, 40))
    with pytest.raises(icefloe.NodeNotFoundError, match="nowhere"):
        write_regions(spark, session, "nowhere", cell_numbers)
    with pytest.raises(InvalidInputError, match="no arrays \\['zz'\\]"):
        write_regions(spark, session, "/", cell_numbers, variables=["zz"])
    with pytest.raises(InvalidInputError, match="need the same axes"):
        write_regions(spark, session, "/", cell_numbers, variables=["a", "line"])
    with pytest.raises(InvalidInputError, match="expected a function"):
        write_regions(spark, session, "a", 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="expected a writable Session"):
        write_regions(spark, arrays, "a", cell_numbers)  # type: ignore[arg-type]
    with pytest.raises(ReadOnlyError, match="writable_session"):
        write_regions(spark, arrays.readonly_session("main"), "a", cell_numbers)
    assert number_of_objects(arrays) == before


def test_an_array_deleted_while_it_was_written(arrays: Repository) -> None:
    session = arrays.writable_session("main")
    shared = share(session, {"a": ChunkSpan(1), "b": ChunkSpan(1)})
    for name in ("a", "b"):
        zarr.open_array(shared.tasks.fork.store, path=name, mode="r+")[:10, :20] = 1
    rows = pa.Table.from_batches([shared.tasks.drain()])
    del zarr.open_group(session.store, mode="r+")["b"]
    with pytest.raises(SessionStateError, match="an array was deleted"):
        shared.take(rows)
    assert session.chunk_type("/a", [0, 0]).name == "uninitialized"
