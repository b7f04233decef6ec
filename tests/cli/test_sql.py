"""`sql`: tables of a repository, in SQLite; the same on Spark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.cli.commands import sql
from tests.cli.calling import call, here, opened, told


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """t2m by time and lat, in a group, with coordinates."""
    place = tmp_path / "weather"
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(place)))
    with repo.transaction("main", message="values") as store:
        group = zarr.create_group(store, path="era5")
        for name, values, dims in (
            ("lat", np.array([40.0, 50.0]), ["lat"]),
            ("time", np.arange(3), ["time"]),
            ("t2m", np.arange(6, dtype="f4").reshape(3, 2), ["time", "lat"]),
        ):
            array = group.create_array(
                name, shape=values.shape, dtype=values.dtype, dimension_names=dims
            )
            array[:] = values
        group["time"].attrs["units"] = "days since 2024-01-01"
    return place


def test_cells_and_tables_are_asked(weather: Path) -> None:
    found = told("sql", weather, "SELECT lat, avg(t2m) AS mean FROM data_era5 GROUP BY lat")
    assert (found["columns"], found["rows"]) == (["lat", "mean"], [[40.0, 2.0], [50.0, 3.0]])
    assert "SQLite" in found["engine"]
    days = told("sql", weather, "SELECT DISTINCT time FROM data_era5 ORDER BY 1")["rows"]
    assert days[0][0].startswith("2024-01-01 00:00:00")
    joined = (
        "SELECT message, count(*) FROM data__changes JOIN data__snapshots USING (snapshot_id) "
        "GROUP BY message"
    )
    assert told("sql", weather, joined)["rows"] == [["values", 8]]
    assert told("sql", f"{weather}@main", "SELECT count(*) n FROM DATA__NODES")["rows"] == [[5]]
    [[branches]] = told("sql", weather, "SELECT branches FROM data__snapshots LIMIT 1")["rows"]
    assert json.loads(branches) == ["main"]
    done = here("sql", weather, "SELECT path, shape FROM data__nodes WHERE type = 'array'")
    assert done.stdout.splitlines()[0].split() == ["path", "shape"]
    assert "rows, by SQLite" in done.stderr


def test_every_table_can_be_read(weather: Path) -> None:
    listed = told("sql", weather)["views"]
    assert listed["data_era5"]["columns"] == ["time", "lat", "t2m"]
    for name, view in listed.items():
        found = told("sql", weather, f"SELECT * FROM {name}")
        assert found["columns"] == view["columns"], name
        assert found["rows"], name
    assert here("sql", weather).stdout.startswith("table ")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM snapshots", "Did you mean data__snapshots?"),
        ("SELECT nope FROM data__refs", "no such column: nope"),
        ("DROP TABLE data__refs", "expected SELECT"),
        ("ATTACH DATABASE '/tmp/other.db' AS other", "expected SELECT"),
        ("PRAGMA table_list", "expected SELECT"),
        ("SELEC 1", "syntax error"),
        ("SELECT 1; SELECT 2", "one statement"),
    ],
)
def test_a_query_that_cannot_be_run(weather: Path, query: str, said: str) -> None:
    done = here("sql", weather, query)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_table_of_version_1_that_is_not_there(tmp_path: Path) -> None:
    told("init", tmp_path / "old", "--spec-version", "1")
    done = here("sql", tmp_path / "old", "SELECT * FROM data__ops")
    assert done.returncode == 2
    assert "data__ops" in done.stderr


def test_large_tables_are_refused_before_they_are_read(
    weather: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MAX_ROWS", 5)
    done = here("sql", weather, "SELECT count(*) FROM data_era5", "--engine", "sqlite")
    assert done.returncode == 2
    assert "--engine spark" in done.stderr
    assert told("sql", weather, "SELECT count(*) FROM data__refs")["rows"] == [[1]]
    with opened(weather).transaction("main", message="more") as store:
        zarr.create_array(store, name="many", shape=(9,), chunks=(1,), dtype="i8")[:] = range(9)
    done = here("sql", weather, "SELECT count(*) FROM data__chunks", "--engine", "sqlite")
    assert "data__chunks has more than" in done.stderr


def test_values_of_every_kind() -> None:
    stored = sql.stored_value
    assert [stored(value) for value in (True, 1 << 63, [1, 2], [("a", None)], None, {"b": 1})] == [
        1,
        str(1 << 63),
        "[1, 2]",
        '{"a": null}',
        None,
        '{"b": 1}',
    ]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_spark_gives_the_same_answer(weather: Path) -> None:
    query = "SELECT lat, avg(t2m) AS mean FROM data_era5 GROUP BY lat ORDER BY lat"
    here_found = told("sql", weather, query)
    done = call("sql", weather, query, "--engine", "spark", "--master", "local[1]", "--json")
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert there["engine"].startswith("Spark")
    assert (there["columns"], there["rows"]) == (here_found["columns"], here_found["rows"])
    bad = call("sql", weather, "SELECT nope FROM data_era5", "--engine", "spark")
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr


def test_numbers_that_json_lacks_are_texts_in_json(tmp_path: Path) -> None:
    place = tmp_path / "odd"
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(place)))
    with repo.transaction("main", message="odd numbers") as store:
        zarr.create_array(store, name="a", data=np.array([np.inf, -np.inf, 1.5]))
    said = here("sql", place, "SELECT a FROM data", "--json").stdout
    assert json.loads(said, parse_constant=pytest.fail)["rows"] == [
        ["Infinity"],
        ["-Infinity"],
        [1.5],
    ]
