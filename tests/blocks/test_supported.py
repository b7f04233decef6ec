"""The documented table of operations lists every method, and every argument of it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from icefloe.blocks.dataset import BlockDataset, GroupedBlocks

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
