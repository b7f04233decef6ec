"""Cells are what xarray shows, whatever the types, chunks and dimensions. No Spark is started."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icefloe import FormatError, InvalidInputError, NodeNotFoundError, Repository
from icefloe.scans.chunk_rows import plan_read
from icefloe.scans.scan import options_from_text, pin
from tests.cf_cases import CASES, Case, comparable, write_case, xarray_values
from tests.spark.datasets import (
    WEATHER_ENCODING,
    as_frame,
    pd,
    rows,
    rows_of,
    scan_of,
    weather,
    write,
    xr,
)


def shown_by_xarray(repository: Repository, **options: Any) -> Any:
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, zarr_format=3, consolidated=False, chunks=None, **options).load()


def test_cells_are_the_rows_of_xarray(repository: Repository) -> None:
    write(repository, weather(), encoding=WEATHER_ENCODING)
    dims = ["time", "lat", "station"]
    found = as_frame(rows(repository), dims)
    expected = as_frame(shown_by_xarray(repository).to_dataframe().reset_index(), dims)
    assert set(found.columns) == set(expected.columns)
    assert list(found.columns[:3]) == dims
    pd.testing.assert_frame_equal(
        found, expected[found.columns], check_dtype=False, check_exact=True
    )


def test_missing_values_are_null_and_integers_stay_integers(repository: Repository) -> None:
    data = xr.Dataset({"n": ("x", [1, -1, 3]), "f": ("x", [0.5, np.nan, np.inf])})
    write(repository, data, encoding={"n": {"_FillValue": -1, "dtype": "i2"}})
    table = rows(repository)
    assert table.schema.field("n").type == pa.int16()
    assert table["n"].to_pylist() == [1, None, 3]
    assert table["f"].to_pylist() == [0.5, None, np.inf]
    raw = rows(repository, decode=False)
    assert raw["n"].to_pylist() == [1, -1, 3]
    assert raw["f"].null_count == 0


def test_batches_are_small_and_partitions_follow_the_chunks(repository: Repository) -> None:
    root = zarr.open_group(repository_store := repository.writable_session("main").store, mode="w")
    array = root.create_array("a", shape=(70, 3001), chunks=(10, 1000), dtype="i4")
    array[...] = np.arange(70 * 3001, dtype="i4").reshape(70, 3001)
    repository_store.session.commit("large enough for several batches")
    scan = scan_of(repository, split_size="100k", min_partitions=1)
    assert scan.num_partitions > 7
    whole = scan_of(repository, min_partitions=1)
    assert whole.num_partitions == 1
    sizes = [batch.num_rows for batch in whole.read(0)]
    assert sum(sizes) == 70 * 3001
    assert max(sizes) <= 1 << 17
    assert len(sizes) == 2
    for each in (scan, whole):
        values = np.concatenate(
            [b["a"].to_numpy() for p in range(each.num_partitions) for b in each.read(p)]
        )
        assert np.array_equal(np.sort(values), np.arange(70 * 3001))
    both = rows(repository)
    assert np.array_equal(
        both["dim_0"].to_numpy() * 3001 + both["dim_1"].to_numpy(), both["a"].to_numpy()
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_decoded_cells_agree_with_xarray(repository: Repository, case: Case) -> None:
    write_case(repository, case)
    column = rows(repository, variables="a")["a"]
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        found = column.cast(pa.int64()).to_pylist()
    else:
        found = [
            complex(*one.values()) if isinstance(one, dict) else one for one in column.to_pylist()
        ]
    assert [None if one != one else one for one in found] == comparable(xarray_values(repository))


def test_a_time_that_is_infinite_is_missing(repository: Repository) -> None:
    hours = Case("f8", [1, np.inf, -np.inf], {"units": "hours since 2020-01-01"})
    write_case(repository, hours)
    assert rows(repository, variables="a")["a"].to_pylist() == [
        datetime(2020, 1, 1, 1),  # noqa: DTZ001 - as CF has them
        None,
        None,
    ]


DTYPES: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "bool": ("bool", pa.bool_(), [True, False]),
    "int8": ("i1", pa.int8(), [-128, 127]),
    "int16": ("i2", pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": ("i4", pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": ("i8", pa.int64(), [-(2**63), 2**63 - 1]),
    "uint8": ("u1", pa.int16(), [0, 255]),
    "uint16": ("u2", pa.int32(), [0, 65535]),
    "uint32": ("u4", pa.int64(), [0, 2**32 - 1]),
    "uint64": ("u8", pa.decimal128(20, 0), [0, 2**64 - 1]),
    "float16": ("f2", pa.float32(), [0.5, 65504.0]),
    "float32": ("f4", pa.float32(), [0.5, -1.25]),
    "float64": ("f8", pa.float64(), [0.1, 1e300]),
    "complex64": ("c8", None, [1 + 2j, -0.5j]),
    "complex128": ("c16", None, [1 + 2j, -0.5j]),
    "text": ("str", pa.string(), ["", "grün"]),
    "fixed text": ("U4", pa.string(), ["", "grün"]),
    "fixed bytes": ("S4", pa.binary(), [b"", b"\x00abc"]),
    "datetime": (
        "M8[ns]",
        pa.timestamp("us"),
        [np.datetime64("2020-02-29T12:34:56.789012", "ns"), np.datetime64("1900-01-01", "ns")],
    ),
    "timedelta": ("m8[s]", pa.duration("us"), [np.timedelta64(5, "s"), np.timedelta64(-1, "s")]),
}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("decode", [True, False])
def test_every_data_type_has_a_column(repository: Repository, name: str, decode: bool) -> None:
    dtype, kind, values = DTYPES[name]
    session = repository.writable_session("main")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Zarr calls some of these types unstable
        array = zarr.create_array(
            session.store, name="a", shape=(2,), chunks=(1,), dtype=dtype, dimension_names=("x",)
        )
        array[...] = np.array(values, None if dtype == "str" else dtype)
        session.commit("one type")
        table = rows(repository, decode=decode)
    if kind is not None:
        assert table.schema.field("a").type == kind
    if dtype.startswith("c"):
        values = [{"re": value.real, "im": value.imag} for value in values]
    elif dtype[0] in "mM":
        values = [value.astype(f"{dtype[0]}8[us]").item() for value in values]
    assert table["a"].to_pylist() == values
    assert table["x"].to_pylist() == [0, 1]


def test_bytes_are_read_as_the_byte_order_says(repository: Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(3,), dtype=">i4")
    array[...] = [1, 2, 3]
    session.commit("big-endian")
    assert rows(repository)["a"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("units", "calendar", "values"),
    [
        ("days since 2000-01-01", "standard", np.array([0, 1, 366])),
        ("hours since 1900-01-01 06:00:0.0", "gregorian", np.array([0.0, 0.5, 876577.25])),
        ("seconds since 1970-01-01T00:00:00Z", "proleptic_gregorian", np.array([-1, 0, 10**9])),
        ("minutes since 1999-12-31 23:00 +02:00", "standard", np.array([1, 2, 3], "i4")),
        ("milliseconds since 1970-01-01", "standard", np.array([1, 1500, 10**12])),
        ("nanoseconds since 1970-01-01", "standard", np.array([1000, 10**18, -(10**15)])),
        ("days since 0001-01-01", "standard", np.array([730121.25, 730122.5])),
        ("days since 0001-01-01", "proleptic_gregorian", np.array([730120, 730121])),
    ],
)
def test_times_are_those_of_xarray(
    repository: Repository, units: str, calendar: str, values: np.ndarray[Any, Any]
) -> None:
    data = xr.Dataset({"t": ("x", values, {"units": units, "calendar": calendar})})
    write(repository, data)
    table = rows(repository)
    assert table.schema.field("t").type == pa.timestamp("us")
    expected = shown_by_xarray(repository).t.values.astype("M8[us]")
    assert np.array_equal(table["t"].to_numpy(), expected)


@pytest.mark.parametrize(
    ("units", "calendar"),
    [("months since 2000-01-01", "noleap"), ("months since 2000-01-01", "standard"), ("m", None)],
)
def test_units_without_real_dates_stay_numbers(
    repository: Repository, units: str, calendar: str | None
) -> None:
    attributes = {"units": units} | ({"calendar": calendar} if calendar else {})
    write(repository, xr.Dataset({"t": ("x", [1, 2], attributes)}))
    table = rows(repository)
    assert table["t"].to_pylist() == [1, 2]
    assert table.schema.field("t").metadata[b"units"] == units.encode()


@pytest.mark.parametrize("calendar", ["noleap", "365_day", "all_leap", "360_day", "julian"])
@pytest.mark.parametrize("dtype", ["i8", "f8"])
def test_dates_of_other_calendars_are_texts_that_sort(
    repository: Repository, calendar: str, dtype: str
) -> None:
    hours = np.sort(np.random.default_rng(0).integers(-(10**7), 10**7, 500)).astype(dtype)
    attributes = {"units": "hours since 2000-02-28 06:30", "calendar": calendar}
    data = xr.Dataset({"v": ("time", np.arange(500))}, {"time": ("time", hours, attributes)})
    write(repository, data)
    table = rows(repository)
    dates = shown_by_xarray(repository).time.values
    assert table["time"].to_pylist() == [date.strftime("%Y-%m-%d %H:%M:%S") for date in dates]
    assert table["time"].to_pylist() == sorted(table["time"].to_pylist())
    assert table.schema.field("time").metadata == {
        b"units": attributes["units"].encode(),
        b"calendar": calendar.encode(),
    }
    found = rows(repository, where="time >= '2001-02-28' AND time < '2300'")
    later = [
        at
        for at, date in enumerate(dates)
        if (date.year, date.month, date.day) >= (2001, 2, 28) and date.year < 2300
    ]
    assert found["v"].to_pylist() == later


def test_dates_that_have_no_text_are_refused(repository: Repository) -> None:
    attributes = {"units": "days since 0001-01-01", "calendar": "noleap"}
    write(repository, xr.Dataset({"t": ("x", [0.5, np.nan, 1.25], attributes)}))
    texts = ["0001-01-01 12:00:00", None, "0001-01-02 06:00:00"]
    assert rows(repository)["t"].to_pylist() == texts
    write(repository, xr.Dataset({"u": ("x", [-1, 0, 1], attributes)}), mode="a")
    with pytest.raises(FormatError, match="years 1 to 9999; read the numbers with decode=False"):
        rows(repository, variables="u")
    assert rows(repository, variables="u", decode=False)["u"].to_pylist() == [-1, 0, 1]


def test_packed_unsigned_bytes_and_booleans_are_unpacked(repository: Repository) -> None:
    attributes = {"_Unsigned": "true", "scale_factor": 0.5, "_FillValue": -1}
    data = xr.Dataset(
        {
            "a": ("x", np.array([1, -2, -1], "i1"), attributes),
            "b": ("x", np.array([1, 0, 1], "i1"), {"dtype": "bool"}),
        }
    )
    write(repository, data)
    table = rows(repository)
    assert table["a"].to_pylist() == [0.5, 127.0, None]
    assert table["b"].to_pylist() == [True, False, True]


def test_a_dimension_order_of_its_own_is_followed(repository: Repository) -> None:
    values = np.arange(6).reshape(2, 3)
    write(repository, xr.Dataset({"a": (("y", "x"), values), "b": (("x", "y"), values.T * 10)}))
    table = rows(repository)
    assert table["b"].to_pylist() == [10 * value for value in table["a"].to_pylist()]


def test_scalars_alone_are_one_row_and_empty_arrays_none(repository: Repository) -> None:
    write(repository, xr.Dataset({"a": ((), 1.5), "e": ("x", np.empty(0))}))
    assert rows(repository, variables="a").to_pylist() == [{"a": 1.5}]
    assert rows(repository, variables="e").num_rows == 0


def test_shards_are_read_whole(repository: Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(10, 7), chunks=(2, 3), shards=(4, 6), dtype="f4"
    )
    array[...] = np.arange(70).reshape(10, 7)
    session.commit("shards")
    scan = scan_of(repository)
    assert scan.num_partitions == 6
    assert sorted(rows(repository)["a"].to_pylist()) == list(range(70))


def test_chunks_never_written_are_filled_or_skipped(repository: Repository) -> None:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="w")
    a = root.create_array("a", shape=(5, 5), chunks=(2, 2), dtype="i4", fill_value=-5)
    b = root.create_array("b", shape=(5, 5), chunks=(5, 1), dtype="i4", fill_value=0)
    a[2:4, 2:5] = 1
    b[:, 4] = 2
    session.commit("mostly holes")
    filled = rows(repository)
    assert filled.num_rows == 25
    assert filled["a"].to_pylist().count(-5) == 19
    skipped = rows(repository, missing="skip", columns=["dim_0", "dim_1", "a"])
    expected = {(2, 2), (2, 3), (3, 2), (3, 3)} | {(y, 4) for y in range(5)}
    places = zip(skipped["dim_0"].to_pylist(), skipped["dim_1"].to_pylist(), strict=True)
    assert set(places) == expected
    assert skipped.num_rows == len(expected)
    alone = rows(repository, missing="skip", variables=["a"])
    assert alone.num_rows == 6
    assert rows(repository, missing="skip", variables=["a"], where={"dim_0": 0}).num_rows == 0


@pytest.mark.skipif(
    "array.rectilinear_chunks" not in zarr.config, reason="this Zarr has no rectilinear grids"
)
@pytest.mark.parametrize("split_size", ["1", "200", "1m"])
def test_cells_of_a_rectilinear_grid(repository: Repository, split_size: str) -> None:
    lengths, shape = [[2, 3, 5], [4, 2]], (10, 6)
    values = np.arange(60, dtype="i4").reshape(shape)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        session = repository.writable_session("main")
        root = zarr.open_group(session.store, mode="w")
        dims: dict[str, Any] = {"dimension_names": ["y", "x"]}
        uneven: Any = root.create_array("t", shape=shape, chunks=lengths, dtype="i4", **dims)
        uneven[2:] = values[2:]
        even = root.create_array("n", shape=shape, chunks=(4, 4), dtype="i4", fill_value=-1, **dims)
        even[:4] = 7
        y = root.create_array("y", shape=(10,), chunks=(10,), dtype="i8", dimension_names=["y"])
        y[:] = np.arange(10) * 10
        session.commit("chunks of several sizes")
        found = rows(repository, where="y >= 10 and y <> 40", split_size=split_size)
        kept = [1, 2, 3, 5, 6, 7, 8, 9]
        told = {(row["y"] // 10, row["x"]): (row["t"], row["n"]) for row in found.to_pylist()}
        assert told == {
            (at, x): (values[at, x] if at >= 2 else 0, 7 if at < 4 else -1)
            for at in kept
            for x in range(6)
        }
        skipped = rows(repository, missing="skip", variables=["t"], split_size=split_size)
        assert sorted(skipped["t"].to_pylist()) == list(range(12, 60))
        with pytest.raises(InvalidInputError, match=r"several sizes.*layout='cells'"):
            scan_of(repository, layout="chunks", variables=["t"])


# -- bad input


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"group": 3}, "group is 3"),
        ({"group": "nowhere"}, "group '/nowhere' in snapshot"),
        ({"group": "temperature"}, r"variables=\['temperature'\]"),
        ({"variables": ["nothing"]}, "array 'nothing' in group"),
        ({"variables": []}, "variables is empty"),
        ({"variables": 5}, "variables is 5"),
        ({"columns": ["temperature", "x"]}, "no column 'x'"),
        ({"columns": ["lat", "lat"]}, "twice"),
        ({"layout": "rows"}, "cells or chunks"),
        ({"missing": "drop"}, "fill or skip"),
        ({"decode": "yes"}, "decode is 'yes'"),
        ({"split_size": "many"}, "split_size is 'many'"),
        ({"split_size": 0}, "split_size is 0"),
        ({"where": {"temperature": 3}}, "DataFrame.where"),
        ({"where": {"height_of": 3}}, "coordinates are 'time', 'lat', 'station'"),
    ],
)
def test_what_cannot_be_read_is_refused_in_planning(
    repository: Repository, options: dict[str, Any], problem: str
) -> None:
    write(repository, weather())
    with pytest.raises((InvalidInputError, NodeNotFoundError), match=problem):
        scan_of(repository, **options)


def test_variables_that_share_no_rows_are_refused_by_name(repository: Repository) -> None:
    write(repository, xr.Dataset({"a": ("x", [1]), "b": ("y", [1])}))
    with pytest.raises(InvalidInputError, match=r"'b' has the dimensions \('y',\)"):
        scan_of(repository, variables=["a", "b"])
    assert rows(repository, variables=["b"]).num_rows == 1


def test_a_structured_data_type_has_no_column(repository: Repository) -> None:
    session = repository.writable_session("main")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(session.store, name="s", shape=(2,), dtype=np.dtype([("a", "i4")]))
        session.commit("a structure")
        with pytest.raises(InvalidInputError, match="no column type"):
            scan_of(repository)
        assert rows(repository, layout="chunks").num_rows == 1


@pytest.mark.parametrize(
    ("values", "chunks"),
    [
        (np.arange(35, dtype="<f4").reshape(5, 7), (2, 3)),
        (np.arange(35, dtype=">i2").reshape(5, 7), (2, 3)),
        # Chunks in the order of their values, which are not copied: along axis 0, or behind a 1.
        (np.arange(154, dtype="<f4").reshape(22, 7), (2, 3)),
        (np.arange(154, dtype=">i2").reshape(22, 7), (2, 3)),
        (np.arange(190, dtype="i8").reshape(2, 19, 5), (1, 2, 3)),
        (np.asfortranarray(np.arange(190.0).reshape(19, 2, 5)), (1, 2, 5)),
        (np.array(["2001-01-16", "2001-02-15", "NaT"], "M8[ns]"), (2,)),
        (np.array([b"ab", b"", b"abc"]), (2,)),
        (np.array(3.5), ()),
    ],
)
def test_rows_of_chunks_are_the_chunks(
    repository: Repository, values: np.ndarray[Any, Any], chunks: tuple[int, ...]
) -> None:
    session = repository.writable_session("main")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bytes of a fixed length are no type of the standard yet
        zarr.create_array(session.store, name="v", data=values, chunks=chunks or "auto")
        session.commit("values")
        found = rows(repository, layout="chunks").to_pylist()
    seen = np.zeros(values.shape, int)
    for row in found:
        region = tuple(
            slice(start, start + size)
            for start, size in zip(row["offset"], row["shape"], strict=True)
        )
        chunk = np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"])
        np.testing.assert_array_equal(chunk, values[region])
        assert [start // size for start, size in zip(row["offset"], chunks, strict=True)] == (
            row["chunk_index"]
        )
        seen[region] += 1
    assert (seen == 1).all()


def test_a_group_without_arrays_is_refused(repository: Repository) -> None:
    with pytest.raises((InvalidInputError, NodeNotFoundError), match=r"no arrays|group '/' in"):
        scan_of(repository)


def test_a_time_before_the_calendar_changed_is_refused(repository: Repository) -> None:
    attributes = {"units": "days since 1500-01-01", "calendar": "standard"}
    write(repository, xr.Dataset({"t": ("x", [1], attributes)}))
    with pytest.raises(Exception, match="decode=False"):
        rows(repository)
    assert rows(repository, decode=False)["t"].to_pylist() == [1]


def climate() -> Any:
    """As CF archives are: bounds, a grid mapping, coordinates of two dimensions, a lone axis."""
    time = np.array(["2001-01-16", "2001-02-15"], "M8[ns]")
    return xr.Dataset(
        {
            "tas": (("time", "y", "x"), np.arange(12.0).reshape(2, 3, 2)),
            "orog": (("y", "x"), np.arange(6.0).reshape(3, 2)),
            "time_bnds": (("time", "bnds"), np.stack([time, time], 1)),
            "y_bnds": (("y", "bnds"), np.zeros((3, 2))),
            "season_bnds": (("season", "bnds"), np.zeros((4, 2))),
            "crs": ((), np.int32(0)),
            "lat": (("y", "x"), np.ones((3, 2))),
        },
        {
            "time": ("time", time, {"bounds": "time_bnds"}),
            "y": ("y", [1.0, 2.0, 3.0], {"bounds": "y_bnds"}),
            "season": ("season", [1, 2, 3, 4], {"climatology": "season_bnds"}),
        },
    )


def test_a_cf_file_with_bounds_is_read_without_arguments(repository: Repository) -> None:
    write(repository, climate())
    found = rows(repository)
    assert set(found.column_names) == {"time", "y", "x", "tas", "orog", "crs", "lat"}
    assert found.num_rows == 12
    bounds = rows(repository, variables=["y_bnds"])
    assert bounds.column_names == ["y", "bnds", "y_bnds"]


def test_one_of_several_sets_of_dimensions_is_chosen(repository: Repository) -> None:
    data = climate()
    data["obs"] = (("time", "station"), np.arange(10).reshape(2, 5))
    write(repository, data)
    said = (
        r"2 sets of dimensions: \(time, y, x\) of tas; \(time, station\) of obs; say which to "
        r"read, such as dims=\['time', 'y', 'x'\]"
    )
    with pytest.raises(InvalidInputError, match=said):
        rows(repository)
    assert rows(repository, dims=["station", "time"]).column_names == [
        "time",
        "station",
        "crs",
        "obs",
    ]
    options = options_from_text({"dims": "time, y,x", "columns": "tas"})
    assert rows_of(plan_read(pin(repository), options)).num_rows == 12
    assert rows(repository, dims="season").column_names == ["season", "crs"]
    assert rows(repository, dims=["y", "bnds"]).num_rows == 6
    with pytest.raises(InvalidInputError, match=r"dims is \['y', 'station'\], but no array"):
        rows(repository, dims=["y", "station"])
    with pytest.raises(InvalidInputError, match="leave it out where variables names them"):
        rows(repository, dims=["y"], variables=["tas"])


def test_no_chunk_is_read_by_two_blocks(repository: Repository) -> None:
    shape, chunks = (24, 12, 48), {"a": (4, 6, 6), "b": (6, 4, 12), "c": (24, 2, 3)}
    values = np.arange(float(np.prod(shape))).reshape(shape)
    data = dict.fromkeys(chunks, (("t", "y", "x"), values))
    write(repository, xr.Dataset(data), encoding={n: {"chunks": c} for n, c in chunks.items()})
    scan: Any = scan_of(repository, min_partitions=4)
    blocks = [region for at in range(scan.num_partitions) for region in scan.blocks.regions(at)]
    assert len(blocks) == 4
    for chunk in chunks.values():
        reads = 0
        for region in blocks:
            sides = zip(region, chunk, strict=True)
            reads += np.prod([-(-part.stop // n) - part.start // n for part, n in sides])
        assert reads == np.prod([-(-length // n) for length, n in zip(shape, chunk, strict=True)])
