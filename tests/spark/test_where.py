"""Conditions on coordinates: what they keep, which chunks they spare, what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import InvalidInputError, Repository
from icefloe.scans.cells import Cells, plan_blocks, slabs
from icefloe.scans.chunk_rows import plan_read
from icefloe.scans.scan import pin, read_options
from icefloe.scans.where import Condition, parse_where
from tests.spark.datasets import WEATHER_ENCODING, pd, rows, rows_of, scan_of, weather, write, xr


@pytest.mark.parametrize(
    ("where", "query"),
    [
        ("lat = 50", "lat == 50"),
        ("lat BETWEEN 47.5 AND 50", "47.5 <= lat <= 50"),
        ("`lat` > 48 and station == 'bb'", "lat > 48 and station == 'bb'"),
        (
            "time >= '2001-01-31' AND time < TIMESTAMP '2001-02-01 06:00:00'",
            "time >= '2001-01-31' and time < '2001-02-01 06:00:00'",
        ),
        ("station IN ('a', 'ü', 'zzz')", "station in ['a', 'ü', 'zzz']"),
        ("lat > 1e3", "lat > 1000"),
        ("lat <> 50 AND station != 'a'", "lat != 50 and station != 'a'"),
        ("LAT = 50L and Station = 'bb'", "lat == 50 and station == 'bb'"),
        ("lat >= 47.5D and lat < 5e1f and lat <> 48.5BD", "47.5 <= lat < 50 and lat != 48.5"),
        ("lat <> 49.5 and lat > 1s", "lat != 49.5 and lat > 1"),
        ({"lat": (48, None), "station": ["a", "ccc"]}, "lat >= 48 and station in ['a', 'ccc']"),
        (
            {"time": ("2001-01-30T18:00", datetime(2001, 2, 1))},  # noqa: DTZ001 - as CF has them
            "'2001-01-30 18:00' <= time <= '2001-02-01'",
        ),
        ({"time": date(2001, 1, 30)}, "'2001-01-30' <= time <= '2001-01-30'"),
        ({"time": datetime(2001, 1, 30, tzinfo=UTC)}, "'2001-01-30' <= time <= '2001-01-30'"),
        ({"time": np.datetime64("2001-01-30")}, "'2001-01-30' <= time <= '2001-01-30'"),
        ({"lat": np.float32(50)}, "lat == 50"),
    ],
)
def test_conditions_keep_the_rows_a_query_keeps(
    repository: Repository, where: Any, query: str
) -> None:
    write(repository, weather(), encoding=WEATHER_ENCODING)
    columns = ["time", "lat", "station", "temperature"]
    expected = rows(repository, columns=columns).to_pandas().query(query)
    found = rows(repository, columns=columns, where=where).to_pandas()
    pd.testing.assert_frame_equal(
        found.sort_values(columns[:3], ignore_index=True),
        expected.sort_values(columns[:3], ignore_index=True),
    )


@pytest.mark.parametrize("two", [timedelta(hours=2), np.timedelta64(2, "h")])
def test_durations_are_compared_with_durations(repository: Repository, two: Any) -> None:
    steps = np.arange(4).astype("m8[h]").astype("m8[ns]")
    write(repository, xr.Dataset({"a": ("step", np.arange(4))}, coords={"step": steps}))
    assert rows(repository, where={"step": (two, None)})["a"].to_pylist() == [2, 3]
    with pytest.raises(InvalidInputError, match=r"expected a duration such as timedelta"):
        rows(repository, where={"step": 2})


def test_chunks_without_a_wanted_cell_are_not_read(repository: Repository) -> None:
    data = xr.Dataset(
        {"a": (("t", "x"), np.arange(100).reshape(20, 5))},
        coords={"t": np.roll(np.arange(20), 7)},  # not in order
    )
    write(repository, data, encoding={"a": {"chunks": (2, 5)}, "t": {"chunks": (20,)}})
    scan = scan_of(repository, where="t IN (3, 4)", min_partitions=100)
    assert isinstance(scan, Cells)
    assert scan.blocks.ranges[0].tolist() == [[10, 12]]
    assert rows(repository, where="t IN (3, 4)")["t"].to_pylist() == [3] * 5 + [4] * 5
    chunks = rows(repository, layout="chunks", variables=["a"], where={"t": [2, 3, 19]})
    assert chunks["chunk_index"].to_pylist() == [[3, 0], [4, 0], [5, 0]]
    nothing = scan_of(repository, where={"t": 99})
    assert nothing.num_partitions == 0


def test_null_and_nan_are_compared_as_spark_does(repository: Repository) -> None:
    session = repository.writable_session("main")
    for name, values in (("a", [1, 2, 3]), ("x", [1.0, np.nan, 3.0])):
        array = zarr.create_array(
            session.store, name=name, data=np.array(values), dimension_names=("x",)
        )
        if name == "x":
            array.attrs["_FillValue"] = 3.0
    session.commit("a number, NaN and null")
    assert rows(repository, where="x > 0")["a"].to_pylist() == [1, 2]
    assert rows(repository, where="x < 9")["a"].to_pylist() == [1]


def axis(repository: Repository, coordinate: Any, **attributes: Any) -> None:
    """An array `a` of 0, 1, ... along a coordinate `x`."""
    session = repository.writable_session("main")
    for name, data in (("a", np.arange(len(coordinate))), ("x", np.asarray(coordinate))):
        zarr.create_array(
            session.store,
            name=name,
            data=data,
            dimension_names=("x",),
            attributes=attributes if name == "x" else {},
        )
    session.commit("an axis")


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"x": np.nan}, [1]),
        ({"x": [np.nan, 3.0]}, [1, 2]),
        ({"x": (None, np.nan)}, [0, 1, 2]),
        ({"x": (np.nan, None)}, [1]),
        ((Condition("x", "<", np.nan),), [0, 2]),
        ((Condition("x", ">", np.nan),), []),
    ],
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nan_is_equal_to_itself_and_above_all_numbers(
    repository: Repository, dtype: str, where: Any, kept: list[int]
) -> None:
    axis(repository, np.array([1.0, np.nan, 3.0], dtype))
    options = read_options(where=None if isinstance(where, tuple) else where)
    if isinstance(where, tuple):  # as Spark's own filters come
        options = replace(options, where=where)
    found = rows_of(plan_read(pin(repository), options))
    assert found["a"].to_pylist() == kept


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("x = 50.1", []),
        ("x < 50.1", [0, 1]),
        ("x >= 50.1", [2]),
        ("x IN (50.1, 50.25)", [2]),
        ({"x": np.float32(50.1)}, [1]),
        ({"x": (np.float32(50.1), 50.25)}, [1, 2]),
    ],
)
def test_float32_coordinates_are_compared_as_doubles(
    repository: Repository, where: Any, kept: list[int]
) -> None:
    axis(repository, np.array([50, 50.1, 50.25], "f4"))
    assert rows(repository, where=where)["a"].to_pylist() == kept


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("x = 9007199254740992.0", []),
        ("x = 9007199254740993.0", [1]),
        ("x > 9007199254740992.5", [1, 2]),
        ("x >= 2.5", [1, 2]),
        ("x < 2.5", [0]),
        ("x <= 2.5 AND x = 2.0", [0]),
        ("x = 2.5", []),
        ("x IN (2.5, 2.0)", [0]),
        ("x < 99999999999999999999", [0, 1, 2]),
        ("x > -99999999999999999999.5", [0, 1, 2]),
    ],
)
def test_integers_are_compared_with_decimals_exactly(
    repository: Repository, where: str, kept: list[int]
) -> None:
    axis(repository, np.array([2, 2**53 + 1, 2**62]))
    assert rows(repository, where=where)["a"].to_pylist() == kept


TIMES = {"units": "hours since 2000-01-01"}


@pytest.mark.parametrize(
    "where",
    [
        "x >= '2000-01-01 10:00:00Z'",
        "x >= '2000-01-01T10:00+00:00'",
        "x >= TIMESTAMP_NTZ '2000-01-01 10:00'",
        {"x": (datetime(2000, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))), None)},
    ],
)
def test_times_in_utc_are_understood(repository: Repository, where: Any) -> None:
    axis(repository, np.array([9, 10, 11]), **TIMES)
    assert rows(repository, where=where)["a"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("x >= '2000-01-01 12:00:00+02:00'", "has a zone.*in UTC"),
        ({"x": "2000-01-01T12:00:00-05:00"}, "has a zone.*in UTC"),
        ("x >= TIMESTAMP '2000-01-01 12:00:00Z'", "has a zone.*in UTC"),
        ("x >= TIMESTAMP_NTZ '2000-01-01 12:00:00+01:00'", "has a zone.*in UTC"),
        ("x >= DATE '2000-01-01 12:00:00'", "DATE.*expected a day"),
        ("x >= TIMESTAMP '2000-13-01'", "expected a quoted time"),
        ("x >= '20000101'", "expected a time"),
        ("x >= '2000-W01-1'", "expected a time"),
    ],
)
def test_times_that_spark_reads_otherwise_are_refused(
    repository: Repository, where: Any, said: str
) -> None:
    # Spark drops the zone of a text, and brings that of a TIMESTAMP into the session's zone.
    axis(repository, np.array([9, 10, 11]), **TIMES)
    with pytest.raises(InvalidInputError, match=said):
        rows(repository, where=where)


def test_both_forms_mean_the_same() -> None:
    assert parse_where("a >= 1 AND a <= 2 AND b IN (1, 2) AND c = 'it''s'") == parse_where(
        {"a": (1, 2), "b": [1, 2], "c": "it's"}
    )
    assert parse_where("flag = TRUE AND z > -1.5") == (
        Condition("flag", "=", True),
        Condition("z", ">", -1.5),
    )
    assert parse_where(None) == ()


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("", "something is missing"),
        ("lat", "something is missing"),
        ("lat >", "something is missing"),
        ("lat > 1 OR lat < 0", "expected AND instead of 'OR'"),
        ("lat LIKE 'x'", "'LIKE' is not one of the comparisons"),
        ("lat + 1 > 2", r"cannot read|not one of"),
        ("5 < lat", "expected the name of a coordinate"),
        ("lat IN 5", r"expected \( instead of '5'"),
        ("lat IN (5", "something is missing"),
        ("lat IN (5 6)", r"expected , or \)"),
        ("lat = lon", "'lon' is not a value"),
        ("lat BETWEEN 1 OR 2", "expected AND"),
        ("time = TIMESTAMP 5", "expected a quoted time"),
        ("lat = 'north'", "'lat' is compared with 'north', expected a number"),
        ("time > 5", "expected a time"),
        ("time > 'soon'", "expected a time"),
        ("station = 3", "expected text"),
        ({"lat": (1, 2, 3)}, "expected .low, high."),
        ({"lat": None}, "expected a value"),
        ({"lat": slice(1, 2)}, "expected a value"),
        (["lat > 3"], "expected SQL text"),
        ({"lat": True}, "expected a number"),
    ],
)
def test_what_cannot_be_understood_is_refused(
    repository: Repository, where: Any, problem: str
) -> None:
    write(repository, weather())
    with pytest.raises(InvalidInputError, match=problem):
        scan_of(repository, where=where)


# -- blocks


@pytest.mark.parametrize("goal", [1, 10, 100, 10_000])
@pytest.mark.parametrize("min_blocks", [1, 7])
def test_blocks_cover_every_wanted_cell_once(goal: int, min_blocks: int) -> None:
    random = np.random.default_rng(goal)
    for _ in range(20):
        shape = tuple(random.integers(1, 12, 3).tolist())
        chunks = tuple(random.integers(1, 6, 3).tolist())
        masks = [random.random(length) < 0.4 if random.random() < 0.5 else None for length in shape]
        grid = plan_blocks(
            shape,
            chunks,
            bytes_per_cell=1,
            target_bytes=goal,
            min_blocks=min_blocks,
            wanted=masks,
        )
        seen = np.zeros(shape, int)
        for partition in range(grid.num_partitions):
            for region in grid.regions(partition):
                seen[region] += 1
        assert seen.max(initial=0) <= 1
        for axis, mask in enumerate(masks):
            if mask is not None:
                seen = np.compress(mask, seen, axis)
        assert (seen == 1).all()


def test_blocks_are_whole_chunks_of_about_the_wanted_size() -> None:
    grid = plan_blocks(
        (1000, 100, 100), (10, 50, 50), bytes_per_cell=4, target_bytes=1 << 20, min_blocks=1
    )
    assert [int(rows_[0, 1]) for rows_ in grid.ranges] == [20, 100, 100]
    many = plan_blocks((10**6, 10**6), (1, 10**6), bytes_per_cell=8, target_bytes=1, min_blocks=1)
    assert many.num_partitions <= 20_000
    assert many.num_blocks == 10**6
    assert plan_blocks((), (), bytes_per_cell=8, target_bytes=1, min_blocks=9).num_blocks == 1
    assert (
        plan_blocks((0, 5), (1, 1), bytes_per_cell=8, target_bytes=1, min_blocks=9).num_blocks == 0
    )


@pytest.mark.parametrize("slots", [2, 3, 4, 8])
def test_no_slot_waits_for_a_partition_that_is_left_over(slots: int) -> None:
    mb = 1 << 20
    grid = plan_blocks(
        (15, 2, 2), (1, 1, 1), bytes_per_cell=mb, target_bytes=128 * mb, min_blocks=slots
    )
    cells = [
        sum(int(np.prod([part.stop - part.start for part in region])) for region in regions)
        for regions in map(grid.regions, range(grid.num_partitions))
    ]
    assert sum(cells) == 60
    assert len(cells) == slots
    assert max(cells) <= 1.25 * 60 / slots + 1


@pytest.mark.parametrize("shape", [(), (1,), (1000,), (7, 300), (3, 1, 90), (2, 3, 4, 5)])
def test_slabs_follow_the_order_of_cells(shape: tuple[int, ...]) -> None:
    cells = np.arange(int(np.prod(shape))).reshape(shape)
    for most in (1, 7, 100, 10**6):
        parts = [cells[slab].reshape(-1) for slab in slabs(shape, most)]
        assert max(len(part) for part in parts) <= most
        assert np.array_equal(np.concatenate(parts), np.arange(cells.size))
