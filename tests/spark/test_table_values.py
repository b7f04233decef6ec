"""Values of a table come back as they went in: extremes, nulls, far times; or they are refused."""

from __future__ import annotations

import base64
import struct
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icefloe import InvalidInputError, Repository
from tests.spark.datasets import rows
from tests.spark.test_table_grid import opened, put
from tests.spark.versions import needs_data_sources

NAN = base64.standard_b64encode(struct.pack("<d", np.nan)).decode()


def written(repository: Repository, column: pa.Array, **options: Any) -> list[Any]:
    """A column that was written as rows 0, 1, ... of a new array, read again by a scan."""
    table = pa.table({"x": np.arange(len(column)), "v": column})
    put(repository, table, dims=["x"], variables=["v"], **options)
    return values(repository)


def values(repository: Repository) -> list[Any]:
    return rows(repository).sort_by("x")["v"].to_pylist()  # type: ignore[no-any-return]


def stored(repository: Repository, data: Any, **attributes: Any) -> None:
    """An array `v` that is there before a table is written into it."""
    session = repository.writable_session("main")
    for name, content in (("v", data), ("x", np.arange(len(data)))):
        zarr.create_array(
            session.store,
            name=name,
            data=np.asarray(content),
            dimension_names=("x",),
            attributes=attributes if name == "v" else {},
        )
    session.commit("there before")


def append(repository: Repository, column: pa.Array, first: int = 0) -> None:
    table = pa.table({"x": np.arange(first, first + len(column)), "v": column})
    put(repository, table, dims=["x"], variables=["v"], mode="append")


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_the_smallest_and_the_largest_integer_are_values(
    repository: Repository, kind: pa.DataType
) -> None:
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = int(limits.min), int(limits.max)
    for group, given in (("low", [low, None, 3, high - 1]), ("high", [low + 1, None, high])):
        table = pa.table({"x": np.arange(len(given)), "v": pa.array(given, kind)})
        put(repository, table, dims=["x"], variables=["v"], group=group)
        found = rows(repository, group=group).sort_by("x")["v"]
        assert found.type == kind
        assert found.to_pylist() == given


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_both_ends_of_a_type_are_values(repository: Repository, kind: pa.DataType) -> None:
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = int(limits.min), int(limits.max)
    given = [low, high, None, low + 1, 0, high - 1, None]
    assert written(repository, pa.array(given, kind)) == given


def test_a_column_with_every_value_is_refused(repository: Repository) -> None:
    every = np.arange(-128, 128, dtype="i1")
    with pytest.raises(InvalidInputError, match=r"column 'v' has all 256 values of int8"):
        written(repository, pa.array(every))
    assert written(repository, pa.array([*every[every != 5].tolist(), None], pa.int8()))[-1] is None


@needs_data_sources
@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_the_data_source_spares_the_smallest_integer_too(
    repository: Repository, kind: pa.DataType
) -> None:
    from icefloe.spark.data_source import commit_pieces, stage
    from tests.spark.test_table_pieces import request_of

    low = int(np.iinfo(kind.to_pandas_dtype()).min)
    table = pa.table({"x": [0, 1, 2], "v": pa.array([5, low, None], kind)})
    request = request_of(table, dims=["x"], variables=["v"], chunks=None)
    pieces = [
        piece
        for start in range(3)
        for piece in stage(repository, request, table.slice(start, 1).to_batches())
    ]
    commit_pieces(repository, "main", request, pieces, "rows")
    assert values(repository) == [5, low, None]


def test_a_value_that_means_missing_is_refused(repository: Repository) -> None:
    assert written(repository, pa.array([1, None], pa.int8())) == [1, None]
    with pytest.raises(InvalidInputError, match=r"column 'v' has -128, .*missing.*'v' of int8"):
        append(repository, pa.array([-128], pa.int8()))
    append(repository, pa.array([127], pa.int8()))
    assert values(repository) == [127, None]


@pytest.mark.parametrize(
    ("data", "attributes", "column"),
    [
        (np.zeros(2, "f4"), {"_FillValue": -999.0}, pa.array([-999.0])),
        (np.zeros(2, "i2"), {"_FillValue": -1, "missing_value": -2}, pa.array([-2], pa.int16())),
        (np.zeros(2, "i2"), {"_FillValue": 50, "scale_factor": 0.5}, pa.array([25.1])),
        (
            np.zeros(2, "i4"),
            {"_FillValue": 24, "units": "hours since 2000-01-01"},
            pa.array([np.datetime64("2000-01-02", "us")]),
        ),
    ],
)
def test_values_that_stored_arrays_keep_for_missing_are_refused(
    repository: Repository, data: Any, attributes: dict[str, Any], column: pa.Array
) -> None:
    stored(repository, data, **attributes)
    with pytest.raises(InvalidInputError, match=r"column 'v' has .*stands for a missing value"):
        append(repository, column)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_null_in_a_float_is_null_again_and_xarray_has_nan(
    repository: Repository, kind: pa.DataType
) -> None:
    table = pa.table({"x": [0, 1, 3], "y": [0, 0, 1], "v": pa.array([1.5, None, 2.5], kind)})
    put(repository, table, dims=["x", "y"], variables=["v"])
    found = rows(repository).sort_by([("x", "ascending"), ("y", "ascending")])["v"]
    assert found.to_pylist() == [1.5, None, None, None, None, 2.5]
    np.testing.assert_array_equal(
        opened(repository).v, [[1.5, np.nan], [np.nan, np.nan], [np.nan, 2.5]]
    )
    array = zarr.open_array(repository.readonly_session("main").store, path="v", mode="r")
    assert array.attrs["_FillValue"] == NAN


def test_nulls_need_no_room_in_a_packed_array(repository: Repository) -> None:
    # As a number, null is 0: 273 degrees below what these arrays can hold.
    stored(
        repository,
        np.zeros(2, "i2"),
        _FillValue=-32768,
        scale_factor=0.001,
        add_offset=273.0,
    )
    append(repository, pa.array([None, 274.0]))
    assert values(repository) == [None, 274.0]


FAR = [np.datetime64(text, "us") for text in ("1700-05-01", "2300-07-01T12:00:00.000001", "9999")]


def test_far_times_are_stored_as_they_are(repository: Repository) -> None:
    column = pa.array(FAR)
    assert written(repository, column) == column.to_pylist()
    table = pa.table({"t": column, "v": [1, 2, 3]})
    put(repository, table, dims=["t"], variables=["v"], group="along")
    found = rows(repository, group="along").sort_by("t")
    assert found.to_pydict() == {"t": column.to_pylist(), "v": [1, 2, 3]}


@pytest.mark.parametrize(
    ("dtype", "units", "good", "bad"),
    [
        ("i8", "nanoseconds since 2000-01-01", "2200-01-01", "2300-01-01"),
        ("i8", "seconds since 2000-01-01", "2300-01-01", "2300-01-01T00:00:00.5"),
        ("i8", "microseconds since 2000-01-01", "9999-12-31", None),
        ("i4", "hours since 1900-01-01", "2300-01-01T07", "2300-01-01T07:01"),
        ("f4", "hours since 1900-01-01", "2024-01-01T07", "2024-01-01T07:01"),
        ("f4", "days since 2000-01-01", "2024-01-01T12", "2024-01-01T13"),
        ("f8", "days since 1800-01-01", "2024-01-01T13:07", None),
        ("f8", "days since 1600-01-01", "2024-01-01T13:07", None),
        ("i8", "days since 1900-01-01", "1900-01-02", "1400-01-01"),  # another calendar then
    ],
)
def test_times_are_stored_exactly_or_refused(
    repository: Repository, dtype: str, units: str, good: str, bad: str | None
) -> None:
    stored(repository, np.ones(2, dtype), units=units)
    append(repository, pa.array([np.datetime64(good, "us")]))
    found = np.datetime64(values(repository)[0], "us")
    assert abs(found - np.datetime64(good, "us")) <= np.timedelta64(10, "us")
    if bad is not None:
        said = rf"column 'v' has {bad[:10]}.*'v' of {np.dtype(dtype)}"
        with pytest.raises(InvalidInputError, match=said):
            append(repository, pa.array([np.datetime64(bad, "us")]))


def test_scaled_times_are_scaled_when_written(repository: Repository) -> None:
    stored(
        repository,
        np.zeros(2, "i4"),
        units="seconds since 2000-01-01",
        scale_factor=3600.0,
        add_offset=7200.0,
    )
    wanted = np.datetime64("2001-01-01T05", "us")
    append(repository, pa.array([wanted]))
    assert np.datetime64(values(repository)[0], "us") == wanted


def test_durations_are_written_as_numbers_in_their_units(repository: Repository) -> None:
    stored(repository, np.ones(2, "i8"), units="hours", dtype="timedelta64[ns]")
    append(repository, pa.array([5]))
    assert values(repository) == [timedelta(hours=5), timedelta(hours=1)]


@pytest.mark.parametrize("hour", [1, 7, 13])
def test_times_along_a_float_axis_are_found_again(repository: Repository, hour: int) -> None:
    # Days since year 1 have steps of ten microseconds: 13:00 is read as 12:59:59.999998.
    when = pa.array([np.datetime64("2024-01-01", "us") + np.timedelta64(hour, "h")])
    session = repository.writable_session("main")
    for name, attributes in (("t", {"units": "days since 0001-01-01"}), ("v", {})):
        zarr.create_array(
            session.store,
            name=name,
            data=np.zeros(1),
            dimension_names=("t",),
            attributes={"calendar": "proleptic_gregorian", **attributes},
        )
    session.commit("an axis of floats")
    for value in (1.0, 2.0):
        table = pa.table({"t": when, "v": [value]})
        put(repository, table, dims=["t"], variables=["v"], mode="append")
    assert rows(repository)["v"].to_pylist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("dtype", "column"),
    [
        ("f4", pa.array([2**24 + 1])),
        ("f8", pa.array([2**53 + 1])),
        ("f8", pa.array([2**63 - 1])),
        ("f4", pa.array([1e300])),
    ],
)
def test_numbers_that_floats_cannot_hold_are_refused(
    repository: Repository, dtype: str, column: pa.Array
) -> None:
    stored(repository, np.zeros(2, dtype))
    with pytest.raises(InvalidInputError, match=r"column 'v' has .*does not fit"):
        append(repository, column)
    append(repository, pa.array([2**24]))
    assert values(repository) == [2.0**24, 0.0]
