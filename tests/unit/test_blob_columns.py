"""Columns of texts: as values, and as numbers into their distinct values."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.columns import BlobColumn
from icefloe.format.locations import distinct_values

ROWS = 10_000  # more than one piece, and more than a Python dictionary is used for


def texts_of(pattern: str) -> list[str | None]:
    rows: range = range(ROWS)
    made: dict[str, list[str | None]] = {
        "runs": [f"file-{row // 100}" for row in rows],
        "runs that come back": [f"file-{row // 100 % 7}" for row in rows],
        "runs of several lengths": ["x" * (row // 250 % 9) for row in rows],
        "runs with absent rows": [None if row // 50 % 3 == 0 else f"f{row // 500}" for row in rows],
        "taking turns": [f"file-{row % 100}" for row in rows],
        "distinct": [f"file-{row:06d}" for row in rows],
        "one": ["the only one"] * ROWS,
        "empty texts": [""] * ROWS,
        "umlauts": [f"fílé-{row // 10}" for row in rows],
        "line breaks": [f"{row // 10:05d}\n" for row in rows],
        "no text at all": [None] * ROWS,
    }
    return made[pattern]


PATTERNS = [
    "runs",
    "runs that come back",
    "runs of several lengths",
    "runs with absent rows",
    "taking turns",
    "distinct",
    "one",
    "empty texts",
    "umlauts",
    "line breaks",
    "no text at all",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_values_come_back(pattern: str) -> None:
    texts = texts_of(pattern)
    column = BlobColumn.from_values(texts, is_text=True)
    assert column.to_list() == texts
    assert column[7:9000].to_list() == texts[7:9000]
    plain = BlobColumn.from_values([None if text is None else text.encode() for text in texts])
    assert plain.to_list() == [None if text is None else text.encode() for text in texts]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_numbers_into_distinct_values(pattern: str) -> None:
    texts = texts_of(pattern)
    codes, values = distinct_values(BlobColumn.from_values(texts, is_text=True))
    distinct = [*values.to_list(), None]  # -1 leads to the last
    assert [distinct[code] for code in codes.tolist()] == texts
    assert len(values) == len(set(texts) - {None})


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "ab", None]), st.integers(1, 3000))))
def test_runs_of_any_length(runs: list[tuple[str | None, int]]) -> None:
    texts = [text for text, count in runs for _ in range(count)]
    column = BlobColumn.from_values(texts, is_text=True)
    codes, values = distinct_values(column)
    distinct = np.array([*values.to_list(), None], object)
    assert distinct[codes].tolist() == texts == column.to_list()


def test_arrow_is_not_loaded_for_runs() -> None:
    program = """
import sys
from icefloe.format.columns import BlobColumn
from icefloe.format.locations import distinct_values
texts = [b"%d" % (row // 100) for row in range(10_000)]
codes, values = distinct_values(BlobColumn.from_values(texts))
print(len(values), "pyarrow" in sys.modules)
"""
    printed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert printed.split() == ["100", "False"]
