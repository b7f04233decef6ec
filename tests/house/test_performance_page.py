"""The pages of measurements are what their results render to."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.page import (
    BARS,
    CHOSEN,
    CURVES,
    PAGE,
    SHORT_PAGE,
    chosen_lines,
    measured_lines,
    rendered,
)
from benchmarks.results import RESULTS, Results


def test_the_pages_are_made_from_the_results() -> None:
    results = Results.load(RESULTS)
    assert set(CHOSEN) <= results.rows.keys()
    for path, lines in ((PAGE, measured_lines(results)), (SHORT_PAGE, chosen_lines(results))):
        page = path.read_text()
        assert rendered(page, lines) == page, f"{path.name}: run python -m benchmarks --render"


def test_the_pictures_are_made_from_the_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the pictures")
    results = Results.load(RESULTS)
    plots.draw(results, tmp_path)
    for name in (BARS, CURVES) if results.growth else (BARS,):
        made = (tmp_path / name).read_text()
        assert made == (PAGE.parent / name).read_text(), f"{name}: python -m benchmarks --render"
