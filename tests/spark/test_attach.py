"""A repository as views: every group, every table, at one snapshot, until it is refreshed."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

import icefloe.spark
from icefloe import InvalidInputError, Repository, local_filesystem_storage
from icefloe.scans.metadata_tables import TABLES, plan_views
from icefloe.scans.scan import pin
from tests.spark.datasets import rows_of, weather, write, xr


def fill(repository: Repository) -> str:
    """A group of one set of dimensions, one of two, one that Spark has no columns for."""
    write(repository, weather())
    several = {"a": (("t", "x"), np.ones((2, 3))), "b": (("t", "y"), np.ones((2, 4)))}
    write(repository, xr.Dataset(several), group="sea/ice-2", mode="a")
    session = repository.writable_session("main")
    zarr.create_group(session.store, path="empty")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind: Any = np.dtype([("a", "i4")])
        zarr.create_array(session.store, name="odd/s", shape=(2,), dtype=kind)
        return session.commit("what Spark has no columns for")


def test_every_group_and_every_table_is_a_view(repository: Repository) -> None:
    tip = fill(repository)
    planned = plan_views(pin(repository), "w", "main", 2)
    tables = {f"w__{name}": f"table {name}" for name in TABLES}
    assert planned.titles == {
        **tables,
        "w": "group /",
        "w_sea_ice_2_t_x": "group /sea/ice-2 (t, x)",
        "w_sea_ice_2_t_y": "group /sea/ice-2 (t, y)",
    }
    assert planned.scans.keys() == planned.titles.keys() - {"w__files"}
    assert list(planned.left_out) == ["group /odd"]
    assert "no column type" in planned.left_out["group /odd"]
    assert rows_of(planned.scans["w_sea_ice_2_t_y"]).column_names == ["t", "y", "b"]
    assert rows_of(planned.scans["w__history"])["snapshot_id"][0].as_py() == tip


def test_a_repository_of_version_1_has_no_log_to_show(tmp_path: Path) -> None:
    storage = local_filesystem_storage(tmp_path / "old", durable=False)
    repository = Repository.create(storage, spec_version=1)
    planned = plan_views(pin(repository), "w", "main", 2)
    assert list(planned.left_out) == ["table ops"]
    assert planned.titles.keys() == {f"w__{name}" for name in TABLES} - {"w__ops"}


def test_views_of_one_name_are_refused(repository: Repository) -> None:
    for group in ("a-b", "a/B"):
        write(repository, xr.Dataset({"v": ("x", [1])}), group=group, mode="a")
    with pytest.raises(InvalidInputError, match=r"group /a-b and group /a/B would both be .*w_a_B"):
        plan_views(pin(repository), "w", "main", 2)


def test_sql_sees_one_snapshot_until_it_is_refreshed(
    spark: SparkSession, repository: Repository
) -> None:
    fill(repository)
    repository.create_tag("v1", snapshot_id=repository.lookup_branch("main"))
    made = icefloe.spark.attach(spark, repository, "w")
    tagged = icefloe.spark.attach(spark, repository, "old", tag="v1")

    def one(query: str) -> Any:
        (row,) = spark.sql(query).collect()
        return row[0]

    commits = one("SELECT count(*) FROM w__snapshots")
    assert one("SELECT max(temperature) FROM w WHERE station = 'a'") == 14.0
    assert one("SELECT count(*) FROM w_sea_ice_2_t_y, old__refs WHERE type = 'TAG'") == 8
    assert one("SELECT count(*) FROM w__files WHERE kind = 'snapshot'") == commits
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="temperature", mode="r+")[:] = 99.0
    del zarr.open_group(session.store, mode="r+")["sea"]
    tip = session.commit("changed")
    assert one("SELECT max(temperature) FROM w") == 14.75
    assert made.refresh() is made
    tagged.refresh()
    assert made.snapshot_id == tip
    assert one("SELECT max(temperature) FROM w") == 99.0
    assert one("SELECT max(temperature) FROM old") == 14.75
    assert one("SELECT count(*) FROM w__snapshots") == commits + 1
    assert not spark.catalog.tableExists("w_sea_ice_2_t_y")
    assert spark.catalog.tableExists("old_sea_ice_2_t_y")
    made.detach()
    tagged.detach()
    assert not [table.name for table in spark.catalog.listTables() if table.name[:2] == "w_"]


@pytest.mark.parametrize("name", ["", "a b", "1a", "a.b", None])
def test_a_name_is_one_that_sql_takes_without_quotes(repository: Repository, name: Any) -> None:
    session: Any = SimpleNamespace(range=None, createDataFrame=None)  # not used before that
    with pytest.raises(InvalidInputError, match="name is"):
        icefloe.spark.attach(session, repository, name)


def test_what_is_attached_shows_itself(spark: SparkSession, repository: Repository) -> None:
    tip = fill(repository)
    attached = icefloe.spark.attach(spark, repository, "seen")
    shown = repr(attached)
    assert shown.startswith("<icefloe.spark.Attached>\nname: seen\n")
    assert f"snapshot: {tip}\n" in shown
    assert "    seen_sea_ice_2_t_y: group /sea/ice-2 (t, y)\n" in shown
    assert "left out:\n    <1 without a view>\n    group /odd: " in shown
    html = attached._repr_html_()
    assert "seen__snapshots" in html
    assert tip in html
    attached.detach()
    assert "views: none\n" in repr(attached)
