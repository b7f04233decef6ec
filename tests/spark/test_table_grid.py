"""Rows and arrays without Spark: what is located where, what is created, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icefloe import AlreadyExistsError, InvalidInputError, Repository
from icefloe.geometry import shrink_chunks
from icefloe.spark.table_arrays import BLOCK, check_target, prepare, table_request, taken_of
from icefloe.spark.table_writer import sorted_keys, whole_blocks

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")


def put(repository: Repository, table: pa.Table, **options: Any) -> str:
    """Write a table the way tasks do, in this process."""
    given = {"group": "", "chunks": None, "mode": "error", **options}
    request = table_request(table.schema, **given)
    session = repository.writable_session("main")
    request = check_target(session, request)
    values = {
        dim: sorted_keys(dim, table[dim].combine_chunks(), request) for dim in request.dims
    } | dict(request.coordinates)
    grid = prepare(session, request, values, taken_of(table, request))
    located = grid.locate(table).sort_by(BLOCK)
    for block, rows in whole_blocks(located.to_batches(max_chunksize=7)):
        grid.write_block(session, block, rows)
    return session.commit("rows")


def opened(repository: Repository, group: str | None = None) -> Any:
    store = repository.readonly_session("main").store
    with xr.open_zarr(store, group=group, consolidated=False) as found:
        return found.load()


def cube(first: int = 0, days: int = 5) -> Any:
    """All kinds of columns and coordinates."""
    random = np.random.default_rng(abs(first))
    time = np.datetime64("2024-01-01T06:00", "us") + np.arange(
        first, first + days
    ) * np.timedelta64(1, "D")
    shape = (days, 3, 2)
    return xr.Dataset(
        {
            "t": (("time", "lat", "site"), random.normal(size=shape).astype("f4")),
            "n": (("time", "lat", "site"), random.integers(-5, 5, shape).astype("i2")),
            "label": (
                ("time", "lat", "site"),
                np.array([f"x{at}" for at in random.integers(0, 99, shape).reshape(-1)])
                .reshape(shape)
                .astype(object),
            ),
            "seen": (
                ("time", "lat", "site"),
                np.datetime64("2020-01-01", "us") + random.integers(0, 10**12, shape),
            ),
        },
        {"time": time, "lat": [10.5, 20.25, 30.125], "site": ["a", "bü"]},
    )


DIMS = ("time", "lat", "site")
VARIABLES = ("t", "n", "label", "seen")


def rows_of(data: Any, *, shuffled: bool = True) -> pa.Table:
    frame = data.to_dataframe().reset_index()
    if shuffled:
        frame = frame.sample(frac=1, random_state=3)
    return pa.Table.from_pandas(frame, preserve_index=False)


def assert_same(found: Any, expected: Any) -> None:
    # Older releases of xarray decode times to nanoseconds, and compare indexes with their unit.
    both = [data.assign_coords(time=data["time"].astype("M8[us]")) for data in (found, expected)]
    xr.testing.assert_equal(*(data.transpose(*DIMS) for data in both))


@pytest.mark.parametrize("chunks", [None, {"time": 2, "lat": 2}, (1, 3, 1)])
def test_rows_become_the_dataset_they_came_from(repository: Repository, chunks: Any) -> None:
    put(repository, rows_of(cube()), dims=DIMS, variables=VARIABLES, chunks=chunks)
    assert_same(opened(repository), cube())


def test_appending_extends_and_completes_chunks(repository: Repository) -> None:
    whole = xr.concat([cube(0, 5), cube(5, 4)], "time")
    options: dict[str, Any] = {"dims": DIMS, "variables": VARIABLES, "mode": "append"}
    put(repository, rows_of(cube(0, 5)), chunks={"time": 3}, **options)
    put(repository, rows_of(cube(5, 4)), **options)
    assert_same(opened(repository), whole)
    changed = whole.isel(time=[1, 7], lat=[0])
    changed["t"] = changed["t"] + 1
    put(repository, rows_of(changed), **options)
    whole["t"][{"time": [1, 7], "lat": 0}] += 1
    assert_same(opened(repository), whole)


def test_missing_cells_and_nulls_are_missing_values(repository: Repository) -> None:
    table = pa.table(
        {
            "x": pa.array([1, 2, 4], pa.int32()),
            "y": pa.array([0.0, 1.0, -0.0]),
            "n": pa.array([7, None, 9], pa.int32()),
            "f": pa.array([1.5, None, 2.5]),
        }
    )
    put(repository, table, dims=["x", "y"], variables=["n", "f"], group="a/b")
    found = opened(repository, "a/b")
    assert found.x.values.tolist() == [1, 2, 4]
    assert found.y.values.tolist() == [0.0, 1.0]
    expected = np.array([[7, np.nan], [np.nan, np.nan], [9, np.nan]])
    np.testing.assert_array_equal(found.n.values, expected)
    np.testing.assert_array_equal(found.f.values, [[1.5, np.nan], [np.nan] * 2, [2.5, np.nan]])


def test_packed_arrays_of_xarray_are_written_packed(repository: Repository) -> None:
    data = cube()[["t"]]
    session = repository.writable_session("main")
    encoding = {
        "t": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 1.0, "_FillValue": -999},
        "time": {"units": "hours since 2023-12-31", "dtype": "i4"},
    }
    data.to_zarr(session.store, encoding=encoding, consolidated=False, zarr_format=3)
    session.commit("packed")
    more = cube(5, 2)[["t"]]
    more["t"][0, 0, 0] = np.nan
    put(repository, rows_of(more), dims=DIMS, variables=["t"], mode="append")
    found = opened(repository)
    assert found.t.encoding["dtype"] == np.dtype("i2")
    np.testing.assert_array_equal(found.time, np.concatenate([data.time, more.time]))
    np.testing.assert_allclose(found.t[5:], more.t, atol=0.006)


def test_overwriting_replaces_the_grid_unless_others_need_it(repository: Repository) -> None:
    put(repository, rows_of(cube()), dims=DIMS, variables=["t"])
    put(repository, rows_of(cube(9, 2)), dims=DIMS, variables=["t"], mode="overwrite")
    assert_same(opened(repository), cube(9, 2)[["t"]])
    put(repository, rows_of(cube(9, 2)), dims=DIMS, variables=["n"])
    with pytest.raises(InvalidInputError, match="'time' has the value 2024-01-06 06:00:00"):
        put(repository, rows_of(cube(5, 2)), dims=DIMS, variables=["t"], mode="overwrite")
    assert_same(opened(repository), cube(9, 2)[["t", "n"]])


def test_given_coordinates_are_kept_in_their_order(repository: Repository) -> None:
    table = pa.table({"x": [3, 1], "v": [30.0, 10.0]})
    put(repository, table, dims={"x": [9, 3, 1]}, variables=["v"])
    found = opened(repository)
    assert found.x.values.tolist() == [9, 3, 1]
    np.testing.assert_array_equal(found.v, [np.nan, 30.0, 10.0])
    more = pa.table({"x": [0, 3], "v": [0.0, 31.0]})
    put(repository, more, dims=["x"], variables=["v"], mode="append")
    np.testing.assert_array_equal(opened(repository).v, [np.nan, 31.0, 10.0, 0.0])


def test_a_table_without_rows_makes_empty_arrays(repository: Repository) -> None:
    empty = rows_of(cube()).slice(0, 0)
    put(repository, empty, dims=DIMS, variables=["t"], chunks=(2, 3, 2))
    assert dict(opened(repository).sizes) == {"time": 0, "lat": 0, "site": 0}
    put(repository, rows_of(cube()), dims=DIMS, variables=["t"], mode="append")
    assert_same(opened(repository), cube()[["t"]])


def test_zones_and_dates_become_times_in_utc(repository: Repository) -> None:
    instants = pa.array([0, 3_600_000_000], pa.timestamp("us", tz="Europe/Berlin"))
    table = pa.table({"when": instants, "day": pa.array([1, None], pa.date32())})
    put(repository, table, dims=["when"], variables=["day"])
    found = opened(repository)
    expected = np.array(["1970-01-01T00", "1970-01-01T01"], "M8[ns]")
    np.testing.assert_array_equal(found.when.values.astype("M8[ns]"), expected)
    days = found.day.values.astype("M8[ns]")
    assert days[0] == np.datetime64("1970-01-02")
    assert np.isnat(days[1])
    dates = pa.table({"when": pa.array([1], pa.date32()), "day": pa.array([5], pa.date32())})
    put(repository, dates, dims=["when"], variables=["day"], mode="append")
    assert opened(repository).when.values[2] == np.datetime64("1970-01-02")


ONE = pa.table({"x": [1, 2], "v": [1.0, 2.0], "b": [True, None], "d": [[1], [2]]})


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        (ONE, {"dims": ["z"], "variables": ["v"]}, "no column 'z'"),
        (ONE, {"dims": ["x"], "variables": ["x"]}, "in dims and in variables"),
        (ONE, {"dims": [], "variables": ["v"]}, "dims is empty"),
        (ONE, {"dims": ["x", "x"], "variables": ["v"]}, "a name twice"),
        (ONE, {"dims": 3, "variables": ["v"]}, "dims is 3"),
        (ONE, {"dims": ["x"], "variables": ["d"]}, "column 'd' is list"),
        (ONE, {"dims": ["x"], "variables": ["b"]}, "has null, for which the array 'b'"),
        (ONE, {"dims": ["x"], "variables": ["v"], "mode": "replace"}, "mode is 'replace'"),
        (ONE, {"dims": ["x"], "variables": ["v"], "group": 1}, "group is 1"),
        (ONE, {"dims": ["x"], "variables": ["v"], "chunks": {"y": 1}}, "chunks names 'y'"),
        (ONE, {"dims": ["x"], "variables": ["v"], "chunks": [0]}, "chunks has 0"),
        (ONE, {"dims": ["x"], "variables": ["v"], "chunks": 5}, "chunks is 5"),
        (ONE, {"dims": {"x": [1]}, "variables": ["v"]}, "'x' has the value 2"),
        (ONE, {"dims": {"x": [1, 1]}, "variables": ["v"]}, "have a value twice"),
        (ONE, {"dims": {"x": ["a"]}, "variables": ["v"]}, "column 'x' is string"),
        (
            pa.table({"x": [1, None], "v": [1.0, 2.0]}),
            {"dims": ["x"], "variables": ["v"]},
            "null or NaN",
        ),
        (
            pa.table({"x": [4, 5, 4], "v": [1.0, 2.0, 3.0]}),
            {"dims": ["x"], "variables": ["v"]},
            r"two rows are for the cell x=4; .*groupBy\('x'\)",
        ),
    ],
)
def test_bad_input_is_refused(
    repository: Repository, table: pa.Table, options: dict[str, Any], said: str
) -> None:
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match=said):
        put(repository, table, **options)
    assert repository.lookup_branch("main") == before


def test_what_does_not_fit_the_stored_arrays_is_refused(repository: Repository) -> None:
    table = pa.table({"x": [1, 5], "y": [0, 0], "v": pa.array([1, 2], pa.int16())})
    put(repository, table, dims=["x", "y"], variables=["v"])
    with pytest.raises(AlreadyExistsError, match="mode='append'"):
        put(repository, table, dims=["x", "y"], variables=["v"])
    for changed, said in (
        (table.set_column(0, "x", [[1, 3]]), "'x' has the value 3, .*from 1 to 5"),
        (table.set_column(0, "x", [[0, 1]]), "'x' has the value 0"),
        (table.set_column(2, "v", [[1.5, 2.0]]), "column 'v' is double"),
        (table.set_column(2, "v", [[1, 70_000]]), "has 70000, which does not fit"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            put(repository, changed, dims=["x", "y"], variables=["v"], mode="append")
    with pytest.raises(InvalidInputError, match="has the dimensions"):
        put(repository, table, dims=["x"], variables=["v"], mode="append")


def test_default_chunks_are_shortened_from_the_first_axis() -> None:
    assert shrink_chunks((100, 1000, 1000), 8) == (1, 1000, 1000)
    assert shrink_chunks((4, 5), 8) == (4, 5)
