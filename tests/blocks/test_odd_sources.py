"""Sources that are not as most are: missing labels, dates of other calendars, uneven chunks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from xarray.backends.zarr import ZarrArrayWrapper

import icefloe
from icefloe.blocks.expressions import ArraySource
from icefloe.errors import InvalidInputError
from icefloe.scans.scan import pin
from tests.blocks.test_operations import REDUCTIONS, opened, read, require_equal, stored, weather

CALENDARS = ("noleap", "360_day")
NONE = np.datetime64("NaT", "ns")


def labelled() -> xr.Dataset:
    """Twelve days, with coordinates in which some labels are missing."""
    time = xr.date_range("2001-01-25", periods=12).values
    return xr.Dataset(
        {
            "v": (("time", "x"), np.random.default_rng(1).normal(size=(12, 3))),
            "n": ("time", np.arange(12)),
            "row": ("x", np.arange(3)),
            "one": ((), 2.5),
        },
        {
            "time": time,
            "x": [1, 2, 3],
            "class": ("time", [1.0, 2, np.nan, 1, 1, 2, np.nan, 3, 3, 1, 2, 2]),
            "seen": ("time", np.where(np.arange(12) % 5 == 3, NONE, time)),
            "a.b": ("time", np.array(list("abab") + [""] * 2 + list("aaaabb"), object)),
        },
    )


@pytest.mark.parametrize("group", ["class", "seen", "seen.month", "seen.season", "a.b"])
def test_cells_without_a_group_are_left_out(group: str) -> None:
    repository = stored(labelled(), {"time": 5, "x": 2})
    blocks, whole = opened(repository), read(repository)
    for how in REDUCTIONS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # variance of one cell
            expected = getattr(whole.groupby(group), how)()
        found = getattr(blocks.groupby(group), how)().to_xarray()
        require_equal(found, expected, exact=False)
    groups, expected = blocks.groupby(group), whole.groupby(group)
    require_equal((groups - groups.max()).to_xarray(), expected - expected.max(), exact=True)


def dated(calendar: str) -> xr.Dataset:
    """Bounds of times, as models of the climate have them."""
    time = xr.date_range("2001-01-20", periods=10, freq="3D", calendar=calendar)
    ends = xr.date_range("2001-01-23", periods=10, freq="3D", calendar=calendar)
    return xr.Dataset(
        {
            "bounds": (("time", "side"), np.stack([time.values, ends.values], 1)),
            "v": ("time", np.arange(10) * 1.5),
        },
        {"time": time},
    )


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize("how", ["mean", "min", "max", "count"])
def test_reductions_of_dates_of_other_calendars(calendar: str, how: str) -> None:
    repository = stored(dated(calendar), {"time": 4, "side": 2})
    blocks, whole = opened(repository), read(repository)
    asks: list[Callable[[Any], Any]] = [
        lambda data: getattr(data, how)("time"),
        lambda data: getattr(data[["bounds"]], how)("side"),
        lambda data: getattr(data.groupby("time.month"), how)(),
        lambda data: getattr(data.resample(time="6D"), how)(),
        lambda data: getattr(data.coarsen(time=2), how)(),
    ]
    for asked in asks:
        require_equal(asked(blocks).to_xarray(), asked(whole), exact=True)


@pytest.mark.parametrize("how", ["sum", "std", "var"])
def test_reductions_that_dates_do_not_have_are_refused(how: str) -> None:
    blocks = opened(stored(dated("noleap"), {"time": 4, "side": 2}))
    for owner in (blocks, blocks.groupby("time.month"), blocks.coarsen(time=2)):
        with pytest.raises(InvalidInputError, match=r"bounds"):
            getattr(owner, how)()
    assert getattr(blocks.drop_vars("bounds"), how)().data_vars == ("v",)
    real = opened(stored(labelled().reset_coords("seen"), {"time": 5, "x": 2}))
    with pytest.raises(InvalidInputError, match=r"'seen': 'datetime64"):
        getattr(real, how)("time")


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize(
    "label",
    ["2001-01", "2001", "2001-01-26", slice("2001-01-25", "2001-02"), slice("2001-02", None)],
)
def test_parts_of_dates_of_other_calendars_are_labels(calendar: str, label: Any) -> None:
    repository = stored(dated(calendar), {"time": 4, "side": 2})
    blocks, whole = opened(repository), read(repository)
    require_equal(blocks.sel(time=label).to_xarray(), whole.sel(time=label), exact=True)


@pytest.fixture
def uneven() -> icefloe.Repository:
    """Chunks of different lengths, one of which is missing, under names that are not usual."""
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        group = zarr.create_group(session.store)
        table: Any = group.create_array(
            "a",
            shape=(10, 6),
            chunks=[[2, 3, 5], [4, 2]],
            dtype="f8",
            dimension_names=["", "é b/c"],
        )
        table[:5] = np.arange(30.0).reshape(5, 6)
        row: Any = group.create_array(
            "b", shape=(10,), chunks=(5,), dtype="i4", fill_value=7, dimension_names=[""]
        )
        row[:5] = np.arange(5)
    session.commit("data")
    return repository


def test_chunks_of_different_lengths_are_blocks(uneven: icefloe.Repository) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        whole, blocks = read(uneven), opened(uneven)
        # The borders that the chunks of both arrays share.
        assert blocks.chunks == {"": (5, 5), "é b/c": (4, 2)}
        assert opened(uneven)[["a"]].chunks == blocks.chunks
        edges = ArraySource.of(pin(uneven), "a").layout.grid
        assert [each.tolist() for each in edges.values()] == [[0, 2, 5, 10], [0, 4, 6]]
        asks: list[Callable[[Any], Any]] = [
            lambda data: data.isel({"": slice(1, 9, 3), "é b/c": [5, 0]}),
            lambda data: data.mean("é b/c"),
            lambda data: data.std(""),
            lambda data: data.coarsen({"": 2, "é b/c": 3}).max(),
        ]
        for asked in asks:
            require_equal(asked(blocks).to_xarray(), asked(whole), exact=False)
            turned = blocks.rechunk({"": 3, "é b/c": -1})
            require_equal(asked(turned).to_xarray(), asked(whole), exact=False)


@pytest.mark.parametrize(
    "packing",
    [
        {"dtype": "i2", "scale_factor": 0.01, "add_offset": 5.0, "_FillValue": -9999},
        {"dtype": "i2", "scale_factor": 0.01, "missing_value": -32768},
        {"dtype": "u1", "scale_factor": 0.1, "missing_value": 255, "_FillValue": 255},
    ],
)
def test_packed_values_and_text_with_gaps(packing: dict[str, Any]) -> None:
    data = weather(days=9)[["t"]].assign(t=lambda data: np.abs(data.t) / 10)
    data["t"].encoding.update(packing)
    data["name"] = ("y", np.array(["a", "b", "", "c", "dd", "", "e"], object))
    repository = stored(data, {"time": 4, "y": 3, "x": 5})

    def with_gaps(block: xr.Dataset) -> xr.Dataset:
        return block.assign(name=block.name.astype(object).where(block.name != ""))

    blocks, whole = opened(repository).map_blocks(with_gaps), with_gaps(read(repository))
    require_equal(blocks.to_xarray(), whole, exact=True)

    def asks(how: str) -> list[Callable[[Any], Any]]:
        return [
            lambda data: getattr(data, how)("y"),
            lambda data: getattr(data.resample(time="18D"), how)(),
            lambda data: getattr(data.groupby("y"), how)(),
        ]

    for asked in [each for how in ("mean", "min", "max", "count") for each in asks(how)]:
        require_equal(asked(blocks).to_xarray(), asked(whole), exact=False)


def test_nothing_is_read_before_a_result_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = stored(weather(), {"time": 7, "y": 4, "x": 5})
    reads: list[str] = []
    original: Any = ZarrArrayWrapper.__getitem__

    def counted(self: Any, key: Any) -> Any:
        reads.append(self._array.name.strip("/"))
        result: Any = original(self, key)
        return result

    monkeypatch.setattr(ZarrArrayWrapper, "__getitem__", counted)
    blocks = opened(repository)
    months = blocks.isel(time=slice(3, 30)).sel(y=slice(1, 5)).groupby("time.month")
    chained = (months - months.mean()).rechunk({"time": -1}).map_blocks(lambda block: block * 2)
    made = [
        blocks,
        blocks.std(["y", "x"]),
        chained,
        chained.coarsen(x=5).max(),
        chained.resample(time="1MS").sum(),
        chained[["t"]].quantile(0.5, "time"),
        blocks.drop_vars("height"),
    ]
    assert all("Dimensions" in repr(each) and each.nbytes for each in made)
    stored_values = {"t", "height", "hours", "scale", "lat"}
    assert stored_values.isdisjoint(reads)
    assert blocks["t"].max().to_xarray().t.ndim == 0
    assert stored_values.intersection(reads) == {"t", "lat"}  # its coordinate
