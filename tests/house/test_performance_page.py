"""The pages of measurements are what their results render to."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.cases import WARM
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
from icefloe.cli.program import SECTIONS

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_are_made_from_the_results() -> None:
    results = Results.load(RESULTS)
    assert set(CHOSEN) <= results.rows.keys()
    for path, lines in ((PAGE, measured_lines(results)), (SHORT_PAGE, chosen_lines(results))):
        page = path.read_text()
        assert rendered(page, lines) == page, f"{path.name}: run python -m benchmarks --render"


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    results = Results.load(RESULTS)
    rows = results.rows
    lost = rows["50 commits by 10 processes, rebasing, local"].runs[WARM]
    one_process = "against VirtualiZarr + official, one process"
    virtual = rows[f"virtual ingest of 1,000 files, in one process; {one_process}"]
    native = rows[
        "native ingest of 48 files, plain float32; against xarray + official, one process"
    ]
    assert virtual.amount is not None
    assert native.amount is not None
    written, ours = rows["write 4000 x 8 KB, local"].runs[WARM]
    behind = [row for row in rows.values() if row.is_behind]
    text = " ".join((ROOT / "README.md").read_text().split())
    for figure in (
        f"icefloe lost {lost[1].lost or 0} commits, the original {lost[0].lost}",
        f"{virtual.amount / virtual.runs[WARM][1].wall_seconds:.0f} files a second by reference",
        f"{virtual.ratio(WARM, 'wall'):.1f} times VirtualiZarr",
        f"{native.amount / native.runs[WARM][1].wall_seconds:.0f} MB a second",
        f"{native.ratio(WARM, 'wall'):.1f} times xarray",
        f"takes {ours.wall_seconds:.2f} s with every file synced",
        f"takes {written.wall_seconds:.2f} s.",
        f"[all {len(rows)}](docs/measurements.md), with the {len(behind)} in which",
    ):
        assert figure in text, f"README: {figure}"


def test_the_readme_counts_the_commands_of_the_shell() -> None:
    also_by_another_name = {"repo", "ancestry", "completion"}
    commands = {name for names in SECTIONS.values() for name in names} - also_by_another_name
    assert f"{len(commands)} shell commands" in (ROOT / "README.md").read_text()


def test_the_pictures_are_made_from_the_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the pictures")
    results = Results.load(RESULTS)
    plots.draw(results, tmp_path)
    for name in (BARS, CURVES) if results.growth else (BARS,):
        made = (tmp_path / name).read_text()
        assert made == (PAGE.parent / name).read_text(), f"{name}: python -m benchmarks --render"
