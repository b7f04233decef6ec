"""Every operation on blocks equals xarray's, with plans run in this process."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.blocks.dataset import BlockDataset
from icefloe.blocks.expressions import Apply, open_source, sources_of
from icefloe.blocks.fingerprints import fingerprint
from icefloe.blocks.layout import Layout
from icefloe.blocks.plan import LocalEngine
from icefloe.blocks.stages import Rechunk, rechunk
from icefloe.errors import InvalidInputError
from icefloe.scans.scan import pin
from icefloe.xarray import to_icechunk

REDUCTIONS = ("mean", "sum", "min", "max", "count", "std", "var")
CALENDARS = ("standard", "noleap", "360_day")


def weather(calendar: str = "standard", dtype: str = "float32", days: int = 40) -> xr.Dataset:
    """A dataset with what occurs: missing values, other dimensions, scalars, 2-d coordinates."""
    rng = np.random.default_rng(7)
    time = xr.date_range("2000-01-20", periods=days, freq="9D", calendar=calendar)
    values = (rng.normal(size=(days, 7, 5)) * 100).astype(dtype)
    if values.dtype.kind == "f":
        values[rng.random(values.shape) < 0.1] = np.nan
        values[:, 2, 3] = np.nan
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), values, {"units": "K"}),
            "height": (("y", "x"), rng.normal(size=(7, 5))),
            "hours": ("time", np.arange(days)),
            "scale": ((), 2.5),
        },
        {
            "time": time,
            "y": np.arange(7.0),
            "x": np.arange(5) * 10,
            "lat": (("y", "x"), rng.normal(size=(7, 5))),
            "zone": ("y", ["a", "b", "a", "c", "b", "a", "c"]),
        },
        {"title": "weather"},
    )


def stored(dataset: xr.Dataset, chunks: dict[str, int]) -> icefloe.Repository:
    """A repository in memory with the dataset in chunks."""
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    encoding = {
        name: {"chunks": tuple(min(chunks[str(dim)], variable.sizes[dim]) for dim in variable.dims)}
        for name, variable in dataset.variables.items()
        if variable.dims and name not in dataset.xindexes
    }
    to_icechunk(dataset, session, encoding=encoding)
    session.commit("data")
    return repository


def opened(
    repository: icefloe.Repository, chunks: Any = None, memory: int = 256 << 20
) -> BlockDataset[Any]:
    """The repository as blocks, computed in this process."""
    source, grid = open_source(pin(repository), "", None, chunks)
    return BlockDataset(rechunk(source, grid, memory), LocalEngine(), memory)


def read(repository: icefloe.Repository) -> xr.Dataset:
    """The repository as xarray reads it."""
    store = repository.readonly_session("main").store
    dataset: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None)
    return dataset.load()


def require_equal(found: xr.Dataset, expected: xr.Dataset, *, exact: bool) -> None:
    """Refuse other names, dimensions, types, attributes and values."""
    if exact:
        xr.testing.assert_identical(found, expected)
    else:
        xr.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    for name, variable in expected.variables.items():
        assert found.variables[name].dims == variable.dims, name
        assert found.variables[name].dtype == variable.dtype, name


@pytest.fixture(scope="module")
def both() -> tuple[BlockDataset[Any], xr.Dataset]:
    """The same data as blocks and in memory."""
    repository = stored(weather(), {"time": 7, "y": 4, "x": 5})
    return opened(repository), read(repository)


SELECTIONS: dict[str, Callable[[Any], Any]] = {
    "all": lambda data: data.isel(),
    "slices": lambda data: data.isel(time=slice(3, 30, 2), y=slice(1, None)),
    "a position": lambda data: data.isel(time=11, y=-1),
    "positions in any order": lambda data: data.isel(time=[5, 1, 30, 30, 2]),
    "no cells": lambda data: data.isel(time=slice(0, 0)),
    "labels": lambda data: data.sel(time="2000-03", y=slice(2, 5)),
    "the nearest label": lambda data: data.sel(y=2.3, method="nearest"),
    "one after the other": lambda data: data.isel(time=slice(5, 25)).isel(time=slice(3, 9), x=2),
    "without a variable": lambda data: data.drop_vars("height"),
    "without a coordinate": lambda data: data.drop_vars("lat"),
    "some variables": lambda data: data[["t", "scale"]],
    "a variable of one dimension": lambda data: data[["hours"]],
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_equal_xarray(name: str, both: tuple[BlockDataset[Any], xr.Dataset]) -> None:
    blocks, whole = both
    require_equal(SELECTIONS[name](blocks).to_xarray(), SELECTIONS[name](whole), exact=True)


@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize("dim", [None, "time", ["y", "x"], "y"])
def test_reductions_equal_xarray(
    how: str, dim: Any, both: tuple[BlockDataset[Any], xr.Dataset]
) -> None:
    blocks, whole = both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # series without any value
        expected = getattr(whole, how)(dim)
    require_equal(getattr(blocks, how)(dim).to_xarray(), expected, exact=False)


@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize(
    "group", ["time.month", "time.season", "time.year", "time.dayofyear", "time.hour", "y", "zone"]
)
def test_reductions_of_groups_equal_xarray(
    how: str, group: str, both: tuple[BlockDataset[Any], xr.Dataset]
) -> None:
    blocks, whole = both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = getattr(whole.groupby(group), how)()
    require_equal(getattr(blocks.groupby(group), how)().to_xarray(), expected, exact=False)


@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize("span", ["1D", "20D", "1MS", "1YS"])
def test_resampling_equals_xarray(
    how: str, span: str, both: tuple[BlockDataset[Any], xr.Dataset]
) -> None:
    blocks, whole = both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = getattr(whole.resample(time=span), how)()
    require_equal(getattr(blocks.resample(time=span), how)().to_xarray(), expected, exact=False)


@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize(
    "window",
    [
        {"time": 4, "y": 2, "boundary": "trim"},
        {"time": 7, "boundary": "pad"},
        {"time": 5},
        {"y": 3, "boundary": "trim", "side": "right"},
    ],
)
def test_coarsening_equals_xarray(
    how: str, window: dict[str, Any], both: tuple[BlockDataset[Any], xr.Dataset]
) -> None:
    # Text has no mean, in xarray either.
    blocks, whole = both[0].drop_vars("zone"), both[1].drop_vars("zone")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = getattr(whole.coarsen(**window), how)()
    require_equal(getattr(blocks.coarsen(**window), how)().to_xarray(), expected, exact=False)


@pytest.mark.parametrize("q", [0.9, [0.1, 0.5]])
def test_quantiles_are_exact(q: Any, both: tuple[BlockDataset[Any], xr.Dataset]) -> None:
    blocks, whole = both[0][["t", "hours"]], both[1][["t", "hours"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = whole.quantile(q, "time")
        by_month = whole.groupby("time.month").quantile(q)
    require_equal(blocks.quantile(q, "time").to_xarray(), expected, exact=True)
    require_equal(blocks.groupby("time.month").quantile(q).to_xarray(), by_month, exact=True)


def anomalies(block: xr.Dataset, normal: xr.Dataset) -> xr.Dataset:
    """Values without the mean of their month."""
    return (block.groupby("time.month") - normal).drop_vars("month")


def test_a_function_of_several_datasets(both: tuple[BlockDataset[Any], xr.Dataset]) -> None:
    blocks, whole = both[0][["t"]], both[1][["t"]]
    normal = blocks.groupby("time.month").mean()
    found = blocks.map_blocks(anomalies, [normal], template=blocks).to_xarray()
    expected = anomalies(whole, whole.groupby("time.month").mean())
    require_equal(found, expected, exact=False)


def test_functions_may_change_names_lengths_and_dimensions(
    both: tuple[BlockDataset[Any], xr.Dataset],
) -> None:
    blocks, whole = both[0][["t"]], both[1][["t"]]
    renamed = blocks.map_blocks(lambda block: block.rename(t="kelvin") * 2)
    xr.testing.assert_identical(renamed.to_xarray(), whole.rename(t="kelvin") * 2)
    one = blocks.rechunk({"time": -1})
    dropped = one.map_blocks(lambda block: block.sum("time"))
    xr.testing.assert_identical(dropped.to_xarray(), whole.sum("time"))
    template = whole.isel(time=slice(0, 20))
    shorter = one.map_blocks(lambda block: block.isel(time=slice(0, 20)), template=template)
    xr.testing.assert_identical(shorter.to_xarray(), template)


def test_no_data_is_read_to_find_out_what_a_function_returns() -> None:
    repository = stored(weather(), {"time": 7, "y": 4, "x": 5})
    blocks = opened(repository)
    sizes = []

    def noticed(block: xr.Dataset) -> xr.Dataset:
        sizes.append(block.sizes["time"])
        return block

    made = blocks.map_blocks(noticed)
    assert sizes == [0]
    assert isinstance(made.expression, Apply)
    with pytest.raises(InvalidInputError, match=r"failed on empty blocks.*give template="):
        blocks.map_blocks(lambda block: block.isel(time=0))


def test_datasets_with_other_blocks_are_refused(both: tuple[BlockDataset[Any], xr.Dataset]) -> None:
    blocks = both[0][["t"]]
    with pytest.raises(InvalidInputError, match="different blocks along 'time'"):
        blocks.map_blocks(lambda a, b: a, [blocks.rechunk({"time": 20})])
    with pytest.raises(InvalidInputError, match="rechunk"):
        blocks.map_blocks(lambda block: block.max("time"), template=both[1][["t"]].max("time"))


@pytest.mark.parametrize("argument", [{"dim": "z"}, {"numeric_only": True}])
def test_arguments_that_are_not_supported_are_named(
    argument: dict[str, Any], both: tuple[BlockDataset[Any], xr.Dataset]
) -> None:
    with pytest.raises((InvalidInputError, TypeError), match=r"z|numeric_only"):
        both[0].mean(**argument)


def test_rechunking_reads_every_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = stored(weather(days=64), {"time": 4, "y": 7, "x": 5})
    blocks = opened(repository)[["t"]]
    (source,) = sources_of(blocks.expression)
    reads: list[Any] = []
    original = type(source).read

    def counted(self: Any, region: Any) -> xr.Dataset:
        reads.append(region)
        return original(self, region)

    monkeypatch.setattr(type(source), "read", counted)
    turned = blocks.rechunk({"time": -1, "y": 1, "x": 1})
    assert isinstance(turned.expression, Rechunk)
    whole = turned.to_xarray()
    assert len(reads) == 16
    xr.testing.assert_identical(whole, read(repository)[["t"]])


def test_rechunking_through_several_stages() -> None:
    repository = stored(weather(days=300), {"time": 1, "y": 7, "x": 5})
    blocks = opened(repository, memory=1 << 20)[["t"]]
    middle = blocks.rechunk({"time": 17, "y": 3}).rechunk({"time": -1, "y": 1, "x": 1})
    assert isinstance(middle.expression, Rechunk)
    assert isinstance(middle.expression.input, Rechunk)
    xr.testing.assert_identical(middle.to_xarray(), read(repository)[["t"]])


def test_blocks_larger_than_memory_are_refused() -> None:
    repository = stored(weather(dtype="float64", days=400), {"time": 7, "y": 4, "x": 5})
    with pytest.raises(InvalidInputError, match="memory=0 MB"):
        opened(repository, memory=64 << 10).rechunk({"time": -1, "y": -1, "x": -1})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.data(),
    st.sampled_from(CALENDARS),
    st.sampled_from(["float32", "float64", "int16", "int64"]),
    st.integers(1, 12),
    st.integers(1, 7),
    st.integers(1, 45),
)
def test_any_chain_equals_xarray(
    data: Any, calendar: str, dtype: str, time: int, space: int, days: int
) -> None:
    repository = stored(weather(calendar, dtype, days), {"time": time, "y": space, "x": 3})
    # Text has no mean.
    blocks, whole = opened(repository).drop_vars("zone"), read(repository).drop_vars("zone")
    for _ in range(data.draw(st.integers(0, 2))):
        first = data.draw(st.integers(0, max(whole.sizes["time"] - 1, 0)))
        kind = data.draw(st.sampled_from(["isel", "rechunk", "map"]))
        if kind == "isel":
            part = slice(first, None, data.draw(st.integers(1, 3)))
            blocks, whole = blocks.isel(time=part), whole.isel(time=part)
        elif kind == "rechunk":
            blocks = blocks.rechunk({"time": data.draw(st.integers(1, 50)), "y": -1})
        else:
            blocks = blocks.map_blocks(lambda block: block * 2)
            whole = whole * 2
    how = data.draw(st.sampled_from(REDUCTIONS))
    last = data.draw(st.sampled_from(["none", "time", "month", "resample", "skipna"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if last == "time":
            found, expected = getattr(blocks, how)("time"), getattr(whole, how)("time")
        elif last == "month":
            found = getattr(blocks.groupby("time.month"), how)()
            expected = getattr(whole.groupby("time.month"), how)()
        elif last == "resample":
            found = getattr(blocks.resample(time="20D"), how)()
            expected = getattr(whole.resample(time="20D"), how)()
        elif last == "skipna" and how != "count":
            found = getattr(blocks, how)("time", skipna=False)
            expected = getattr(whole, how)("time", skipna=False)
        else:
            found, expected = blocks, whole
    require_equal(found.to_xarray(), expected, exact=False)


def test_a_plan_that_travels_is_small() -> None:
    size = 1 << 14
    template = xr.Dataset({"t": (("y", "x"), np.broadcast_to(np.float32(0), (size, size)))})
    grid = {"y": np.array([0, size]), "x": np.array([0, size])}
    layout = Layout.of(template, grid)
    travelled = pickle.dumps(layout)
    assert len(travelled) < 10_000
    xr.testing.assert_identical(
        pickle.loads(travelled).template.isel(y=0), layout.template.isel(y=0)
    )


def every_type() -> xr.Dataset:
    """A variable of every kind, with what is easily computed wrongly."""
    rng, time = np.random.default_rng(3), 12
    wide = rng.integers(np.iinfo("i8").min, np.iinfo("i8").max, (time, 3), endpoint=True)
    hours = rng.integers(0, 10**6, (time, 3)) * np.timedelta64(1, "h").astype("m8[ns]")
    floats = rng.normal(280, 3, (time, 3)).astype("f4")
    floats[4, 1] = np.inf
    floats[2:6, 2] = np.nan
    missing = hours.copy()
    missing[3] = np.timedelta64("NaT", "ns")
    return xr.Dataset(
        {
            "wide": (("time", "x"), wide),
            "byte": (("time", "x"), wide.astype("i1")),
            "flag": (("time", "x"), wide > 0),
            "float": (("time", "x"), floats),
            "wave": (("time", "x"), floats * (1 + 2j)),
            "day": (("time", "x"), np.datetime64("2001-01-01", "ns") + missing),
            "nothing": ((), np.nan),
            "row": ("x", np.arange(3, dtype="i8") + 2**60),
        },
        {"time": xr.date_range("2001-01-01", periods=time), "x": [10, 20, 30], "run": 7},
    )


@pytest.mark.parametrize(
    ("how", "arguments"),
    [
        *((how, {}) for how in REDUCTIONS),
        *((how, {"dim": []}) for how in REDUCTIONS),
        *((how, {"skipna": False}) for how in REDUCTIONS if how != "count"),
        ("max", {"skipna": True}),
        ("std", {"ddof": 12}),
        ("var", {"ddof": 11, "skipna": True}),
    ],
)
def test_reductions_of_every_type_equal_xarray(how: str, arguments: dict[str, Any]) -> None:
    repository = stored(every_type(), {"time": 5, "x": 2})
    blocks, whole = opened(repository), read(repository)
    # Not in xarray either.
    gone = {"sum": ["day"], "std": ["day"], "var": ["day"], "min": ["wave"], "max": ["wave"]}
    blocks, whole = blocks.drop_vars(gone.get(how, [])), whole.drop_vars(gone.get(how, []))
    options: dict[str, Any] = {"dim": "time", **arguments}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = getattr(whole, how)(**options)
        found = getattr(blocks, how)(**options).to_xarray()
    for name in [name for name in expected if expected[name].dtype.kind == "M"]:
        # xarray takes the mean of times in floating point.
        gap = np.abs((found[name] - expected[name]).values)
        assert bool((found[name].isnull() == expected[name].isnull()).all())
        assert bool((gap[~np.isnat(gap)] < np.timedelta64(1, "us")).all())
        found, expected = found.drop_vars(name), expected.drop_vars(name)
    exact = how in ("sum", "min", "max", "count") and "float" not in expected
    require_equal(found, expected, exact=exact)


@pytest.mark.parametrize(
    "pick",
    [slice(None, None, -1), [2, 1, 0], np.array([3, 4, 0]), [0, 4, 2], np.arange(12) % 5],
)
def test_blocks_that_change_places_after_a_shuffle(pick: Any) -> None:
    repository = stored(every_type(), {"time": 12, "x": 3})
    blocks, whole = opened(repository)[["wide"]], read(repository)[["wide"]]
    turned = blocks.rechunk({"time": 2, "x": 1})
    require_equal(turned.isel(time=pick).to_xarray(), whole.isel(time=pick), exact=True)
    both = turned.isel(time=pick, x=[2, 0, 1]).sum("time").to_xarray()
    require_equal(both, whole.isel(time=pick, x=[2, 0, 1]).sum("time"), exact=True)


@pytest.mark.parametrize("names", ["t", "lat", "time", ["y", "t"], ["zone", "height"], ["hours"]])
def test_dropping_leaves_all_other_variables(
    names: Any, both: tuple[BlockDataset[Any], xr.Dataset]
) -> None:
    blocks, whole = both
    found = blocks.drop_vars(names)
    require_equal(found.to_xarray(), whole.drop_vars(names), exact=True)
    require_equal(found.count("x").to_xarray(), whole.drop_vars(names).count("x"), exact=True)


def test_arithmetic_of_groups_keeps_scalar_coordinates_as_xarray_does() -> None:
    repository = stored(every_type(), {"time": 5, "x": 2})
    blocks = opened(repository)[["wide", "row"]]
    whole = read(repository)[["wide", "row"]]
    groups, expected = blocks.groupby("time.month"), whole.groupby("time.month")
    require_equal((groups - groups.max()).to_xarray(), expected - expected.max(), exact=True)
    high = groups - groups.quantile(0.9)
    require_equal(high.to_xarray(), expected - expected.quantile(0.9), exact=True)


@pytest.mark.parametrize(("length", "window"), [(1, 2), (6, 4), (7, 2), (7, 9)])
@pytest.mark.parametrize("boundary", ["trim", "pad"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_windows_begin_from_either_side(length: int, window: int, boundary: str, side: str) -> None:
    data = every_type().drop_vars(["day", "wave", "time"]).isel(time=slice(0, length))
    repository = stored(data, {"time": 3, "x": 2})
    blocks, whole = opened(repository), read(repository)
    options: dict[str, Any] = {"time": window, "boundary": boundary, "side": side}
    expected = whole.coarsen(**options).sum(keep_attrs=False)
    found = blocks.coarsen(**options).sum(keep_attrs=False).to_xarray()
    require_equal(found, expected, exact=False)


def test_no_cells_at_all() -> None:
    repository = stored(every_type().drop_vars("day"), {"time": 5, "x": 2})
    blocks = opened(repository).isel(x=slice(0, 0)).rechunk({"time": 3, "x": 2})
    whole = read(repository).isel(x=slice(0, 0))
    require_equal(blocks.to_xarray(), whole, exact=True)
    require_equal(blocks.count("time").to_xarray(), whole.count("time"), exact=True)
    by_week = blocks.resample(time="5D").sum().to_xarray()
    require_equal(by_week, whole.resample(time="5D").sum(), exact=True)


def test_text_is_never_cut() -> None:
    data = xr.Dataset({"name": ((), "a longer one"), "n": ("time", np.arange(6))})
    data = data.assign_coords(time=xr.date_range("2001-01-01", periods=6))
    repository = stored(data, {"time": 2})
    blocks, whole = opened(repository), read(repository)
    found = blocks.resample(time="2D").max().to_xarray()
    assert found.name.values.tolist() == whole.resample(time="2D").max().name.values.tolist()

    def labelled(block: xr.Dataset) -> xr.Dataset:
        return block.assign(text=block.n.astype("U"), half=block.n // 1)

    made = blocks.map_blocks(lambda block: block.assign(n=block.n.astype("U9").astype("U1")))
    assert made.to_xarray().n.values.tolist() == list("012345")
    small = labelled(data.isel(time=slice(0, 0)))
    template = small.reindex(time=data.time).assign(text=("time", np.full(6, "", "U1")))
    template = template.assign(half=("time", np.zeros(6, "i8")), n=data.n)
    with pytest.raises(InvalidInputError, match=r"'text' as <U.*expected <U1.*give template="):
        blocks.map_blocks(
            lambda block: labelled(block.assign(n=block.n * 100)), template=template
        ).to_xarray()
    with pytest.raises(InvalidInputError, match=r"'n' as float64, expected int64"):
        blocks[["n"]].map_blocks(
            lambda block: block / 2 if block.sizes["time"] else block
        ).to_xarray()


def test_functions_get_variables_in_the_order_that_was_asked_for(
    both: tuple[BlockDataset[Any], xr.Dataset],
) -> None:
    def first(block: xr.Dataset) -> xr.Dataset:
        return block[[next(iter(block.data_vars))]].rename({next(iter(block.data_vars)): "first"})

    for names in (["hours", "t"], ["t", "hours"]):
        found = both[0].count("y")[names].map_blocks(first).to_xarray()
        xr.testing.assert_identical(found, first(both[1].count("y")[names]))


def test_groups_whose_labels_only_tasks_know_are_refused(
    both: tuple[BlockDataset[Any], xr.Dataset],
) -> None:
    with pytest.raises(InvalidInputError, match="'lat', whose values only tasks know"):
        both[0].isel(x=1).groupby("lat")


def test_long_selections_are_told_apart(both: tuple[BlockDataset[Any], xr.Dataset]) -> None:
    picks = np.zeros((2, 5000), np.int64)
    picks[1, 2500] = 1
    first, second = (both[0].isel(time=pick).expression.describe() for pick in picks)
    assert fingerprint(first) != fingerprint(second)
