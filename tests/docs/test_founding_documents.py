"""Every section of the founding documents has tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "format" / "documents.md"
_ROW = re.compile(r"^\| (?P<section>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
ROWS = [
    (row["section"], row["tests"])
    for row in _ROW.finditer(PAGE.read_text())
    if row["section"] != "section"
]


@pytest.mark.parametrize(("section", "tests"), ROWS, ids=[section for section, _ in ROWS])
def test_a_section_names_tests_that_exist(section: str, tests: str) -> None:
    named = re.findall(r"`([^`]+)`", tests)
    assert named or tests == "background", f"{section} has no tests"
    for each in named:
        file, _, name = each.partition("::")
        assert (ROOT / file).exists(), each
        if name:
            text = (ROOT / file).read_text()
            assert re.search(rf"^(async )?(def|class) {re.escape(name)}\b", text, re.MULTILINE), (
                each
            )
