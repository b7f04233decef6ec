"""The documented table of operations lists every method, and every argument of it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from xarray.computation.rolling import DatasetCoarsen
from xarray.core.groupby import DatasetGroupBy

from icefloe.blocks.dataset import BlockDataset, CoarseBlocks, GroupedBlocks
from icefloe.errors import InvalidInputError
from tests.blocks.test_operations import opened, stored, weather

PAGE = Path(__file__).parents[2] / "docs" / "spark-datasets.md"
TABLE = PAGE.read_text().partition("## What is supported")[2]
ROWS = dict(re.findall(r"^\| (`.*?) \| (.*?) ?\|$", TABLE, re.MULTILINE))
OPERATIONS = {
    name: listed for names, listed in ROWS.items() for name in re.findall(r"`(\w+)`", names)
}
METHODS = {
    name: method
    for name, method in inspect.getmembers(BlockDataset, inspect.isfunction)
    if not name.startswith("_")
}


def test_the_table_has_every_operation() -> None:
    assert set(OPERATIONS) == set(METHODS) | {"to_dataframe"}


@pytest.mark.parametrize("name", METHODS)
def test_the_table_has_every_argument(name: str) -> None:
    parameters: list[Any] = [*inspect.signature(METHODS[name]).parameters.values()][1:]
    named = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    listed = OPERATIONS[name]
    assert [each for each in named if f"`{each}`" not in listed] == []
    has_keywords = len(named) < len(parameters)
    assert has_keywords == ("keyword" in listed)


@pytest.mark.parametrize("name", ["mean", "count", "var", "quantile"])
def test_an_unsupported_argument_is_refused_by_name(name: str) -> None:
    for owner in (BlockDataset, GroupedBlocks):
        with pytest.raises(TypeError, match="numeric_only"):
            getattr(owner, name)(None, numeric_only=True)


@pytest.fixture(scope="module")
def blocks() -> BlockDataset[Any]:
    """A small dataset."""
    return opened(stored(weather(), {"time": 7, "y": 4, "x": 5})).drop_vars("zone")


def arguments_of(method: Any) -> list[str]:
    """The arguments of a method that can be named."""
    parameters = [*inspect.signature(method).parameters.values()][1:]
    return [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]


EXAMPLES: dict[str, dict[str, Any]] = {
    "isel": {"time": 1},
    "sel": {"time": "2000-03"},
    "drop_vars": {"names": "t"},
    "map_blocks": {"func": abs},
    "quantile": {"q": 0.5},
    "groupby": {"group": "time.month"},
    "resample": {"time": "1MS"},
    "coarsen": {"time": 2},
}
OWNERS: list[tuple[Any, Any]] = [
    (BlockDataset, xr.Dataset),
    (GroupedBlocks, DatasetGroupBy),
    (CoarseBlocks, DatasetCoarsen),
]
ARGUMENTS = [
    (owner, name, argument)
    for owner, theirs in OWNERS
    for name, method in inspect.getmembers(owner, inspect.isfunction)
    if not name.startswith("_") and hasattr(theirs, name)
    for argument in [
        *arguments_of(getattr(theirs, name)),
        "min_count",
        "axis",
        "engine",
        "nonsense",
    ]
    if argument not in arguments_of(method)
]


@pytest.mark.parametrize(("owner", "name", "argument"), ARGUMENTS)
def test_every_other_argument_of_xarray_is_refused_by_name(
    owner: Any, name: str, argument: str, blocks: BlockDataset[Any]
) -> None:
    made = {BlockDataset: blocks, GroupedBlocks: blocks.groupby("time.month")}
    of = made.get(owner, blocks.coarsen(time=2))
    for value in (None, True, "time"):
        with pytest.raises((InvalidInputError, TypeError), match=argument):
            getattr(of, name)(**EXAMPLES.get(name, {}), **{argument: value})


def test_other_methods_of_xarray_are_missing_by_name(blocks: BlockDataset[Any]) -> None:
    others = sorted(set(dir(xr.Dataset)) - set(dir(BlockDataset)))
    assert {"where", "median", "merge"} < set(others)
    for name in others:
        with pytest.raises(AttributeError, match=name):
            getattr(blocks, name)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda data: data[{"time": 1}], "'time': 1"),
        (lambda data: data[None], "None"),
        (lambda data: data.drop_vars(3), "3 is no name"),
        (lambda data: data.drop_vars(["nope", 3]), r"'nope', 3"),
        (list, "no name"),
        (lambda data: data.isel(y=None), "indexer of 'y' is None"),
        (lambda data: data.isel(y=True), "indexer of 'y' is True"),
        (lambda data: data.isel(y=...), "indexer of 'y' is Ellipsis"),
        (lambda data: data.isel(y=1.5), "indexer of 'y' is 1.5"),
        (lambda data: data.isel(y=xr.DataArray([1, 2], dims="p")), "indexer of 'y'"),
        (lambda data: data.isel({"y": 1}, x=1), "mapping or keywords"),
        (lambda data: data.isel(3), "isel has 3"),
        (lambda data: data.sel(3), "sel has 3"),
        (lambda data: data.sel(y=xr.DataArray([1.0, 2], dims="p")), "dimensions .'p'"),
        (lambda data: data.sel(y=slice(1, 2), method="nearest"), "sel has slice"),
        (lambda data: data.sel(y="a"), "sel has 'a' for 'y'"),
        (lambda data: data.mean(3), "dim is 3"),
        (lambda data: data.groupby("time.month").mean(...), "dim is Ellipsis"),
        (lambda data: data.groupby(["y"]), "group is .'y'"),
        (lambda data: data.groupby("time.month") - 1, "groups and a int"),
        (lambda data: data.coarsen(time=0), "window of 'time' is 0"),
        (lambda data: data.coarsen(time=2.5), "window of 'time' is 2.5"),
        (lambda data: data.coarsen(3), "coarsen has 3"),
        (lambda data: data.map_blocks(len, 3), "args is 3"),
    ],
)
def test_values_that_mean_nothing_here_are_refused_by_name(
    ask: Any, told: str, blocks: BlockDataset[Any]
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        ask(blocks)


def test_labels_that_occur_more_than_once() -> None:
    data = weather().assign_coords(y=[0.0, 1, 1, 2, 3, 4, 5])
    blocks = opened(stored(data, {"time": 7, "y": 4, "x": 5}))
    assert blocks.sel(y=1).sizes["y"] == blocks.sel(y=slice(1, 1)).sizes["y"] == 2
    for label, method in (([1], None), ([0, 2], None), (0, "nearest")):
        with pytest.raises(InvalidInputError, match="'y' has labels that occur more than once"):
            blocks.sel(y=label, method=method)
    with pytest.raises(KeyError):
        blocks.sel(y=np.float64(9))
