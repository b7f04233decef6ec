"""The page of measurements is what its results render to."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.page import BARS, CURVES, PAGE, rendered
from benchmarks.results import RESULTS, Results


def test_the_page_is_made_from_the_results() -> None:
    page = PAGE.read_text()
    made = rendered(page, Results.load(RESULTS))
    assert made == page, "docs/performance.md: run python -m benchmarks --render"


def test_the_pictures_are_made_from_the_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the pictures")
    results = Results.load(RESULTS)
    plots.draw(results, tmp_path)
    for name in (BARS, CURVES) if results.growth else (BARS,):
        made = (tmp_path / name).read_text()
        assert made == (PAGE.parent / name).read_text(), f"{name}: python -m benchmarks --render"
