"""Datasets of blocks on Spark: results equal xarray's, writes are one commit with their lineage."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from pyspark.sql import SparkSession

import icefloe
import icefloe.spark
from icefloe.errors import InvalidInputError
from icefloe.xarray import to_icechunk
from tests.proxy import misbehaving_proxy
from tests.servers import S3Server, serving


def days(count: int = 60) -> xr.Dataset:
    """Daily values, one variable without time."""
    rng = np.random.default_rng(3)
    values = rng.normal(280, 5, size=(count, 8, 6)).astype("float32")
    values[rng.random(values.shape) < 0.05] = np.nan
    return xr.Dataset(
        {"t": (("time", "y", "x"), values), "height": (("y", "x"), rng.normal(size=(8, 6)))},
        {
            "time": xr.date_range("2001-01-01", periods=count),
            "y": np.arange(8.0),
            "x": np.arange(6.0),
            "lat": (("y", "x"), rng.normal(size=(8, 6))),
        },
    )


def anomalies(block: xr.Dataset, normal: xr.Dataset) -> xr.Dataset:
    """Values without the mean of their month."""
    return (block.groupby("time.month") - normal).drop_vars("month")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> icefloe.Repository:
    """A repository with the days in chunks of a week."""
    root = tmp_path_factory.mktemp("days")
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(root)))
    session = repository.writable_session("main")
    to_icechunk(days(), session, encoding={"t": {"chunks": (7, 4, 6)}})
    session.commit("days")
    return repository


@pytest.fixture
def target(tmp_path: Path) -> icefloe.Repository:
    """An empty repository."""
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "target")))


def read(repository: icefloe.Repository, group: str) -> xr.Dataset:
    """A group as xarray reads it."""
    store = repository.readonly_session("main").store
    dataset: xr.Dataset = xr.open_zarr(store, group=group, consolidated=False, chunks=None)
    return dataset.load()


def test_a_dataset_is_pinned_and_shows_itself(
    spark: SparkSession, source: icefloe.Repository
) -> None:
    dataset = icefloe.spark.open_dataset(spark, source)
    assert dataset.sizes == {"time": 60, "y": 8, "x": 6}
    assert dataset.chunks["time"] == (7,) * 8 + (4,)
    assert "time: 60 in 9 blocks of 7" in repr(dataset)
    with pytest.raises(InvalidInputError, match="no variables"):
        icefloe.spark.open_dataset(spark, source, variables=["u"])


def test_results_equal_xarray(spark: SparkSession, source: icefloe.Repository) -> None:
    dataset, whole = icefloe.spark.open_dataset(spark, source), read(source, "")
    xr.testing.assert_allclose(dataset.mean("time").to_xarray(), whole.mean("time"))
    xr.testing.assert_identical(
        dataset[["t"]].quantile(0.9, "time").to_xarray(), whole[["t"]].quantile(0.9, "time")
    )
    some = dataset.sel(time=slice("2001-01-05", "2001-02-03")).isel(y=slice(1, 6))
    expected = whole.sel(time=slice("2001-01-05", "2001-02-03")).isel(y=slice(1, 6))
    xr.testing.assert_identical(some.to_xarray(), expected)


def test_anomalies_are_one_commit_with_lineage(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    dataset = icefloe.spark.open_dataset(spark, source, variables=["t"])
    normal = dataset.groupby("time.month").mean()
    result = dataset.map_blocks(anomalies, [normal], template=dataset)
    before = len([*target.ancestry(branch="main")])
    report = result.write(target, group="anomalies", message="anomalies")
    history = [*target.ancestry(branch="main")]
    assert len(history) == before + 1
    assert history[0].id == report.snapshot_id
    derived: Any = history[0].metadata["icefloe.derived"]
    assert derived["group"] == "/anomalies"
    assert [each["snapshot_id"] for each in derived["sources"]] == [source.lookup_branch("main")]
    whole = read(source, "")[["t"]]
    expected = anomalies(whole, whole.groupby("time.month").mean())
    xr.testing.assert_allclose(read(target, "anomalies"), expected, atol=1e-3)
    # The climatology waited in the scratch place of the target, which is empty again.
    for root in (Path(source.storage.url), Path(target.storage.url)):
        assert not [path for path in root.glob("icefloe/scratch/**/*") if path.is_file()]


def test_a_source_that_cannot_be_written_to(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository, tmp_path: Path
) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=source.storage.url)
    with serving(handler) as url:  # type: ignore[arg-type]
        published = icefloe.Repository.open(icefloe.http_storage(url))
        spare = icefloe.local_filesystem_storage(tmp_path / "spare")
        dataset = icefloe.spark.open_dataset(spark, published, variables=["t"], scratch=spare)
        normal = dataset.groupby("time.month").mean()
        result = dataset.map_blocks(anomalies, [normal], template=dataset)
        result.write(target, group="anomalies")
        xr.testing.assert_identical(result.to_xarray(), read(target, "anomalies"))
        dataset = icefloe.spark.open_dataset(spark, published, variables=["t"])
        normal = dataset.groupby("time.month").mean()
        with pytest.raises(InvalidInputError, match="give open_dataset scratch="):
            dataset.map_blocks(anomalies, [normal], template=dataset).to_xarray()
    assert not [path for path in (tmp_path / "spare").rglob("*") if path.is_file()]


def test_rechunked_data_is_written_in_its_new_chunks(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    dataset = icefloe.spark.open_dataset(spark, source)
    series = dataset.rechunk({"time": -1, "y": 3, "x": 2})
    first = series.write(target, group="series", transaction=("series", 1))
    again = series.write(target, group="series", transaction=("series", 1))
    assert again.snapshot_id == first.snapshot_id
    assert again.blocks == 0
    written = read(target, "series")
    xr.testing.assert_identical(written, read(source, ""))
    assert written["t"].encoding["chunks"] == (60, 3, 2)


def test_a_rechunk_fetches_and_stores_every_chunk_once(
    spark: SparkSession, s3_server: S3Server
) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    with misbehaving_proxy(s3_server) as proxy:
        source = icefloe.Repository.create(proxy.storage("daily"), config)
        session = source.writable_session("main")
        data = days()[["t"]].drop_vars("lat")
        to_icechunk(data, session, encoding={"t": {"chunks": (7, 4, 6)}})
        session.commit("days")
        target = icefloe.Repository.create(proxy.storage("series"), config)
        dataset = icefloe.spark.open_dataset(spark, source)
        # Coordinates are read when a dataset is opened, by each worker.
        coordinates = {one.path for one in proxy.seen if one.method == "GET"}
        proxy.seen.clear()
        dataset.rechunk({"time": -1, "y": 3, "x": 2}).write(target)
    chunks = [one for one in proxy.seen if "/chunks/" in one.path]
    fetched = [one.path for one in chunks if one.method == "GET" and one.path not in coordinates]
    stored = [one.path for one in chunks if one.method == "PUT"]
    assert len(fetched) == len(set(fetched)) == 9 * 2
    assert len(stored) == len(set(stored)) == 1 * 3 * 3 + len(dataset.coords)


def test_appends_and_regions(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    dataset, whole = icefloe.spark.open_dataset(spark, source), read(source, "")
    # The seam lies inside a chunk: the task of the seam completes it.
    dataset.isel(time=slice(0, 25)).write(target, group="grown")
    dataset.isel(time=slice(25, 60)).write(target, group="grown", mode="append", append_dim="time")
    xr.testing.assert_identical(read(target, "grown"), whole)
    warmer = dataset[["t"]].map_blocks(lambda block: block + 1).isel(time=slice(3, 20))
    warmer.write(target, group="grown", mode="region", region={"time": slice(3, 20)})
    expected = whole.copy(deep=True)
    expected["t"][3:20] += 1
    xr.testing.assert_allclose(read(target, "grown"), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "replace"}, "expected create, append or region"),
        ({"mode": "append"}, "needs append_dim"),
        ({"append_dim": "time"}, "no other mode takes it"),
        ({"mode": "region", "region": {"time": slice(0, 3)}}, "a slice of 60 cells"),
        ({"mode": "append", "append_dim": "month"}, "no dimensions"),
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: dict[str, Any],
    message: str,
    spark: SparkSession,
    source: icefloe.Repository,
    target: icefloe.Repository,
) -> None:
    dataset = icefloe.spark.open_dataset(spark, source)
    before = target.lookup_branch("main")
    with pytest.raises(InvalidInputError, match=message):
        dataset.write(target, group="new", **arguments)
    assert target.lookup_branch("main") == before


def test_an_error_of_a_function_reaches_the_caller_and_commits_nothing(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    dataset = icefloe.spark.open_dataset(spark, source, variables=["t"])

    def broken(block: xr.Dataset) -> xr.Dataset:
        return block.isel(time=slice(0, 1))  # shorter than the block

    before = target.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="the function returned 't'"):
        dataset.map_blocks(broken, template=dataset).write(target, group="broken")
    assert target.lookup_branch("main") == before


def test_an_error_leaves_nothing_in_the_scratch_place(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    dataset = icefloe.spark.open_dataset(spark, source, variables=["t"])

    def broken(block: xr.Dataset) -> xr.Dataset:
        if block.sizes["time"] and int(block["time"].dt.month.max()) > 1:
            raise ValueError("February")
        return block

    # The climatology waits until all of its blocks are there; the other one breaks meanwhile.
    normal = dataset.groupby("time.month").mean()
    late = dataset.map_blocks(broken).groupby("time.month").mean()
    result = (dataset.groupby("time.month") - normal).groupby("time.month") - late
    old = Path(source.storage.url) / "icefloe/scratch/20010101T000000-00000000/1"
    old.mkdir(parents=True)
    (old / "0").write_bytes(b"of a driver that died")
    with pytest.raises(Exception, match="February"):
        result.to_dataframe()
    root = Path(source.storage.url)
    assert not [path for path in root.glob("icefloe/scratch/**/*") if path.is_file()]
    with pytest.raises(Exception, match="February"):
        result.write(target, group="broken")
    assert not [path for path in root.glob("icefloe/scratch/**/*") if path.is_file()]


def test_cells_answer_questions_in_sql(spark: SparkSession, source: icefloe.Repository) -> None:
    dataset = icefloe.spark.open_dataset(spark, source)
    monthly = dataset[["t"]].groupby("time.month").mean()
    monthly.to_dataframe().createOrReplaceTempView("monthly")
    found = spark.sql("select month, count(*), max(t) from monthly group by month order by month")
    whole = read(source, "")[["t"]].groupby("time.month").mean()
    expected = [(month, 48, float(whole["t"].sel(month=month).max())) for month in (1, 2, 3)]
    assert [tuple(row) for row in found.collect()] == [pytest.approx(row) for row in expected]
    cells = dataset.isel(time=slice(0, 2)).to_dataframe()
    assert {*cells.columns} == {"time", "y", "x", "lat", "t", "height"}
    assert cells.count() == 2 * 8 * 6


def test_a_pyramid_has_levels_and_its_convention(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    dataset = icefloe.spark.open_dataset(spark, source, variables=["t"])
    before = target.lookup_branch("main")
    reports = icefloe.spark.pyramid(
        dataset, target, group="levels", factors={"y": 2, "x": 2}, levels=2
    )
    assert len(reports) == 3
    assert sorted(target.list_branches()) == ["main"]
    level = read(source, "")[["t"]]
    for number in range(3):
        xr.testing.assert_allclose(read(target, f"levels/{number}"), level)
        level = level.coarsen(y=2, x=2, boundary="pad").mean()
    attributes: Any = read(target, "levels").attrs
    layout = attributes["multiscales"]["layout"]
    assert [each["asset"] for each in layout] == ["0", "1", "2"]
    assert layout[2]["derived_from"] == "1"
    assert layout[2]["transform"] == {"scale": [2.0, 2.0], "translation": [0.5, 0.5]}
    assert attributes["zarr_conventions"][0]["name"] == "multiscales"
    # The finest level is where it belongs already, so only the coarser ones are written.
    finest = icefloe.spark.open_dataset(spark, target, group="levels/0")
    with pytest.raises(InvalidInputError, match="expected whole numbers from 2 on"):
        icefloe.spark.pyramid(finest, target, group="levels", factors={"y": 1}, levels=1)
    assert target.lookup_branch("main") != before
