"""A refresh equals a full computation, and computes no more blocks than have to change."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from pyspark.sql import SparkSession

import icefloe
import icefloe.spark
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.xarray import to_icechunk


def days(first: str, count: int, seed: int = 3) -> xr.Dataset:
    """Values four times a day."""
    rng = np.random.default_rng(seed)
    values = rng.normal(280, 5, size=(4 * count, 4, 6)).astype("float32")
    return xr.Dataset(
        {"t": (("time", "y", "x"), values), "height": (("y", "x"), rng.normal(size=(4, 6)))},
        {
            "time": xr.date_range(first, periods=4 * count, freq="6h"),
            "y": np.arange(4.0),
            "x": np.arange(6.0),
        },
    )


@pytest.fixture
def source(tmp_path: Path) -> icefloe.Repository:
    """Two years and a few days, a chunk of time for each ten days."""
    storage = icefloe.local_filesystem_storage(str(tmp_path / "source"))
    repository = icefloe.Repository.create(storage)
    session = repository.writable_session("main")
    encoding = {"t": {"chunks": (40, 4, 3)}, "time": {"chunks": (4096,)}}
    to_icechunk(days("2001-01-01", 740), session, encoding=encoding)
    session.commit("two years")
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


def add_day(repository: icefloe.Repository) -> None:
    """The next day."""
    session = repository.writable_session("main")
    new = days("2003-01-11", 1, seed=9).drop_vars("height")
    to_icechunk(new, session, append_dim="time")
    session.commit("a day")


def correct(repository: icefloe.Repository) -> None:
    """Other values in one chunk of July 2001."""
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t")[800:803, 0, 0] = 300
    session.commit("July 2001")


def daily(data: Any) -> Any:
    """Daily means."""
    return data[["t"]].resample(time="1D").mean()


def climatology(data: Any) -> Any:
    """Monthly means."""
    return data[["t"]].groupby("time.month").mean()


def anomalies(data: Any) -> Any:
    """Values without the mean of their month."""
    return data[["t"]].groupby("time.month") - climatology(data)


def kelvin(data: Any) -> Any:
    """A function of blocks."""
    if isinstance(data, xr.Dataset):
        return data - 273.15
    return data.map_blocks(kelvin)


COMPUTATIONS: dict[str, Callable[[Any], Any]] = {
    "daily": daily,
    "climatology": climatology,
    "anomalies": anomalies,
    "kelvin": kelvin,
}
# Blocks that a new day in January and a corrected chunk in July change, of how many.
BLOCKS = {
    "daily": (1, 1, 75),
    "climatology": (1, 1, 12),
    "anomalies": (10, 8, 75),
    "kelvin": (1, 1, 75),
}


def refreshed(
    name: str, spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> icefloe.spark.RefreshReport:
    """Refresh a group, and require what a full computation gives."""
    dataset = icefloe.spark.open_dataset(spark, source)
    result = COMPUTATIONS[name](dataset)
    report = icefloe.spark.refresh(result, target, group=name)
    expected = COMPUTATIONS[name](read(source, ""))
    xr.testing.assert_allclose(read(target, name), expected, rtol=1e-5, atol=1e-3)
    return report


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_only_what_changed_is_computed(
    name: str, spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    dataset = icefloe.spark.open_dataset(spark, source)
    COMPUTATIONS[name](dataset).write(target, group=name)
    tip = target.lookup_branch("main")
    again = refreshed(name, spark, source, target)
    assert (again.blocks, again.full, target.lookup_branch("main")) == (0, "", tip)
    add_day(source)
    day = refreshed(name, spark, source, target)
    correct(source)
    chunk = refreshed(name, spark, source, target)
    found = (day.blocks, chunk.blocks, chunk.total_blocks)
    assert (day.full, chunk.full) == ("", "")
    assert found == BLOCKS[name]
    assert 0 < chunk.bytes_read < dataset.nbytes // 2
    derived: Any = next(iter(target.ancestry(branch="main"))).metadata["icefloe.derived"]
    assert derived["sources"][0]["snapshot_id"] == source.lookup_branch("main")


def overwrite(repository: icefloe.Repository, change: Callable[[icefloe.Session], Any]) -> None:
    """Commit a change."""
    is_move = change is moved
    session = (repository.rearrange_session if is_move else repository.writable_session)("main")
    change(session)
    session.commit("another change")


def other_chunks(session: icefloe.Session) -> None:
    """The same values in other chunks."""
    values = np.asarray(zarr.open_array(session.store, path="t")[:])
    array = zarr.create_array(
        session.store,
        name="t",
        data=values,
        chunks=(37, 4, 6),
        dimension_names=("time", "y", "x"),
        overwrite=True,
    )
    array.attrs.put({})


def other_labels(session: icefloe.Session) -> None:
    """Another place for the first row."""
    zarr.open_array(session.store, path="y")[0] = -1.0


def moved(session: icefloe.Session) -> None:
    """Another name for an array of the group."""
    session.move("/height", "/elevation")


def other_units(session: icefloe.Session) -> None:
    """Attributes that may change what values mean."""
    zarr.open_array(session.store, path="t").attrs["scale_factor"] = 2.0


FULL: dict[str, tuple[Callable[[icefloe.Session], None], str]] = {
    "chunks": (other_chunks, "arrays of the source were|definition of /t changed"),
    "coordinates": (other_labels, "coordinate 'y' changed"),
    "moved nodes": (moved, "were moved"),
    "attributes": (other_units, "definition of /t changed"),
}


@pytest.mark.parametrize("why", FULL)
def test_other_changes_of_a_source_mean_a_full_computation(
    why: str, spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    climatology(icefloe.spark.open_dataset(spark, source)).write(target, group="climatology")
    change, reason = FULL[why]
    overwrite(source, change)
    report = refreshed("climatology", spark, source, target)
    assert report.blocks == report.total_blocks
    assert re.search(reason, report.full)
    again = refreshed("climatology", spark, source, target)
    assert (again.blocks, again.full) == (0, "")


def test_a_lost_or_other_history_means_a_full_computation(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    first = source.lookup_branch("main")
    add_day(source)
    climatology(icefloe.spark.open_dataset(spark, source)).write(target, group="climatology")
    source.reset_branch("main", first)
    correct(source)
    other = refreshed("climatology", spark, source, target)
    assert "is not an ancestor" in other.full
    correct(source)
    source.expire_snapshots(older_than=next(iter(source.ancestry(branch="main"))).written_at)
    expired = refreshed("climatology", spark, source, target)
    assert "expired" in expired.full


def test_another_computation_is_full(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    dataset = icefloe.spark.open_dataset(spark, source, variables=["t"])
    dataset.map_blocks(lambda block: block + 1).write(target, group="sum")
    same = icefloe.spark.refresh(dataset.map_blocks(lambda block: block + 1), target, group="sum")
    assert (same.blocks, same.full) == (0, "")
    other = icefloe.spark.refresh(dataset.map_blocks(lambda block: block + 2), target, group="sum")
    assert other.full == "the computation is another one than before"
    xr.testing.assert_identical(read(target, "sum"), read(source, "")[["t"]] + 2)


def test_a_group_that_was_edited_or_never_computed_is_refused(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    result = climatology(icefloe.spark.open_dataset(spark, source))
    with pytest.raises(InvalidInputError, match="says how /climatology was computed"):
        icefloe.spark.refresh(result, target, group="climatology")
    result.write(target, group="climatology")
    overwrite(target, lambda session: zarr.create_group(session.store, path="beside"))
    assert icefloe.spark.refresh(result, target, group="climatology").blocks == 0

    def edit(session: icefloe.Session) -> None:
        zarr.open_array(session.store, path="climatology/t")[0, 0, 0] = 0

    overwrite(target, edit)
    with pytest.raises(ConflictError, match="/climatology/t changed since snapshot"):
        icefloe.spark.refresh(result, target, group="climatology")


def test_a_result_beside_its_source_is_refreshed(
    spark: SparkSession, source: icefloe.Repository
) -> None:
    result = climatology(icefloe.spark.open_dataset(spark, source))
    result.write(source, group="climatology")
    correct(source)
    report = refreshed("climatology", spark, source, source)
    assert (report.blocks, report.full) == (1, "")


def test_a_refresh_on_a_branch_happens_once_for_a_transaction(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    target.create_branch("next", target.lookup_branch("main"))

    def refreshed_as(number: int) -> icefloe.spark.RefreshReport:
        result = climatology(icefloe.spark.open_dataset(spark, source))
        transaction = ("climate", number)
        return icefloe.spark.refresh(
            result, target, group="climatology", branch="next", transaction=transaction
        )

    result = climatology(icefloe.spark.open_dataset(spark, source))
    first = result.write(target, group="climatology", branch="next", transaction=("climate", 1))
    assert refreshed_as(1).snapshot_id == first.snapshot_id
    correct(source)
    second = refreshed_as(2)
    assert (second.blocks, second.full) == (1, "")
    again = refreshed_as(2)
    assert (again.snapshot_id, again.blocks) == (second.snapshot_id, 0)
    assert target.lookup_branch("next") == second.snapshot_id
    assert len([*target.ancestry(branch="main")]) == 1


def test_what_was_derived_from_a_derived_group_follows_it(
    spark: SparkSession, source: icefloe.Repository, target: icefloe.Repository
) -> None:
    def celsius() -> icefloe.spark.SparkDataset:
        kelvins = icefloe.spark.open_dataset(spark, target, group="climatology")
        return kelvins.map_blocks(lambda block: block - 273.15)

    climatology(icefloe.spark.open_dataset(spark, source)).write(target, group="climatology")
    celsius().write(target, group="celsius")
    assert icefloe.spark.refresh(celsius(), target, group="celsius").blocks == 0
    correct(source)
    assert refreshed("climatology", spark, source, target).blocks == 1
    report = icefloe.spark.refresh(celsius(), target, group="celsius")
    assert (report.blocks, report.full) == (1, "")
    expected = read(target, "climatology") - 273.15
    xr.testing.assert_identical(read(target, "celsius"), expected)


@pytest.fixture
def weeks(tmp_path: Path) -> icefloe.Repository:
    """Three weeks, a chunk for each seven days; whole numbers too."""
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(tmp_path / "weeks"))
    session = repository.writable_session("main")
    data = days("2001-02-20", 21)[["t"]].isel(time=slice(None, None, 4), x=slice(0, 2))
    data["n"] = data["t"].astype("int16")
    encoding: Any = {"t": {"chunks": (7, 4, 2)}, "time": {"chunks": (512,)}}
    to_icechunk(data, session, group="in/days", encoding=encoding)
    session.commit("three weeks")
    return repository


def add_two_days(repository: icefloe.Repository) -> None:
    """The next two days."""
    session = repository.writable_session("main")
    new = days("2001-03-13", 2, seed=9)[["t"]].isel(time=slice(None, None, 4), x=slice(0, 2))
    new["n"] = new["t"].astype("int16")
    to_icechunk(new.drop_vars(["y", "x"]), session, group="in/days", append_dim="time")
    session.commit("two days")


MOVED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "all but the last days": (lambda data: data.isel(time=slice(None, -3)).mean("time"), ""),
    "one of the last days": (lambda data: data.isel(time=-3).drop_vars("time"), "moved cells"),
    "backwards": (
        lambda data: data.isel(time=slice(None, None, -1)).drop_vars("time"),
        "moved cells",
    ),
    "windows from the right": (
        lambda data: (
            data[["t"]].drop_vars("time").coarsen(time=7, boundary="pad", side="right").max()
        ),
        "moved cells",
    ),
    "windows that are cut off": (
        lambda data: data.drop_vars("time").coarsen(time=2, boundary="trim").max(),
        "",
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_an_append_moves_what_counts_from_the_end(
    name: str, spark: SparkSession, weeks: icefloe.Repository, target: icefloe.Repository
) -> None:
    computation, reason = MOVED[name]
    for step in range(2):
        result = computation(icefloe.spark.open_dataset(spark, weeks, group="in/days"))
        if not step:
            result.write(target, group="result")
            add_two_days(weeks)
            continue
        report = icefloe.spark.refresh(result, target, group="result")
        xr.testing.assert_allclose(read(target, "result"), computation(read(weeks, "in/days")))
        assert reason in report.full
        assert bool(reason) == bool(report.full)


def test_a_function_of_other_blocks_is_full(
    spark: SparkSession, weeks: icefloe.Repository, target: icefloe.Repository
) -> None:
    def first(block: xr.Dataset) -> xr.Dataset:
        return block - block.isel(time=slice(0, 1)).max("time")

    def result(chunks: Any) -> Any:
        data = icefloe.spark.open_dataset(
            spark, weeks, group="in/days", chunks=chunks, variables=["t"]
        )
        return data.map_blocks(first, template=data)

    result(None).write(target, group="result")
    assert icefloe.spark.refresh(result(None), target, group="result").blocks == 0
    report = icefloe.spark.refresh(result({"time": -1}), target, group="result")
    assert "blocks are cut otherwise" in report.full
    expected = first(read(weeks, "in/days")[["t"]])
    xr.testing.assert_allclose(read(target, "result"), expected)


def test_text_labels_and_narrow_types_are_refreshed(
    spark: SparkSession, weeks: icefloe.Repository, target: icefloe.Repository
) -> None:
    def season() -> Any:
        data = icefloe.spark.open_dataset(spark, weeks, group="in/days")
        return data[["t"]].groupby("time.season").mean()

    def doubled() -> Any:
        data = icefloe.spark.open_dataset(spark, weeks, group="in/days", variables=["n"])
        return data.map_blocks(lambda block: block * 2)

    season().write(target, group="season", encoding={"t": {"dtype": "float64"}})
    assert icefloe.spark.refresh(season(), target, group="season").full == ""
    doubled().write(target, group="n", encoding={"n": {"dtype": "int32"}})
    add_two_days(weeks)
    report = icefloe.spark.refresh(doubled(), target, group="n")
    assert (report.full, read(target, "n")["n"].dtype) == ("", np.dtype("int32"))

    def fractions(session: icefloe.Session) -> None:
        names, values = ("time", "y", "x"), np.full((23, 4, 2), 0.25)
        store, path = session.store, "in/days/n"
        zarr.create_array(store, name=path, data=values, dimension_names=names, overwrite=True)

    overwrite(weeks, fractions)
    assert icefloe.spark.refresh(doubled(), target, group="n").full
    assert float(read(target, "n")["n"].min()) == 0.5


def test_a_group_that_came_with_a_move_is_refused(
    spark: SparkSession, weeks: icefloe.Repository, target: icefloe.Repository
) -> None:
    result = icefloe.spark.open_dataset(spark, weeks, group="in/days").mean("time")
    result.write(target, group="other/mean")
    result.write(target, group="out/mean")
    session = target.rearrange_session("main")
    session.move("/out", "/old")
    session.move("/other", "/out")
    session.commit("exchange")
    with pytest.raises(ConflictError, match="/out"):
        icefloe.spark.refresh(result, target, group="out/mean")
