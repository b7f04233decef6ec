"""The benchmarks still run, agree with official and judge their targets; not how fast they are."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks.cases import Case, Side
from benchmarks.measure import Measurement, Steps, best
from benchmarks.table import Row, render

ROOT = Path(__file__).parents[2]

OFFICIAL = Side(("official", "write", "files"), ("commit",))
OURS = Side(("ours", "write", "files"), ("manifest", "rest"))
CASE = Case("encode", OFFICIAL, OURS, "a note", 3.0, True, OFFICIAL, True)


@pytest.mark.parametrize(
    ("only", "cases"),
    [
        ("decode native", ["decode native"]),
        ("1000 files, spec 2", ["encode and write 1000 files, spec 2"]),
    ],
)
def test_a_case_runs_and_is_written_as_json(only: str, cases: list[str], tmp_path: Path) -> None:
    pytest.importorskip("icechunk", reason="the benchmarks compare with official icechunk")
    results = tmp_path / "results.json"
    options = ["--rows", "1001", "--rounds", "1", "--only", only, "--json", str(results)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(results.read_text())
    assert figures["rows"] == 2000
    assert [case["case"] for case in figures["cases"]] == cases
    for case in figures["cases"]:
        assert case["case"] in done.stdout
        for side in ("official", "icefloe"):
            assert 0 < case[side]["cpu_seconds"] < 60
            assert case[side]["file_bytes"] > 1000


def test_without_official_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    with pytest.raises(SystemExit, match=r"official icechunk.*Python 3\.12"):
        program.main()


def test_an_unknown_case_is_refused_with_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "found")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "no such case"])
    with pytest.raises(SystemExit, match=r"'no such case'(.|\n)*decode native"):
        program.main()


def step(cpu: float, before: int, peak: int, size: int | None = None) -> Measurement:
    return Measurement(cpu, cpu, before, peak, 1, size)


def measured(*, cpu: float, peak: int, size: int) -> dict[tuple[str, ...], Steps]:
    """Official: 3 s, 100 bytes of memory, 1000 bytes of file; ours in two steps."""
    return {
        OFFICIAL.scenario: {"commit": step(3.0, 50, 150, 1000)},
        OURS.scenario: {
            "manifest": step(cpu / 2, 10, 20, size),
            "rest": step(cpu / 2, 15, 10 + peak),
        },
    }


def test_a_row_takes_steps_together_and_meets_targets_exactly() -> None:
    row = Row.of(CASE, measured(cpu=1.0, peak=100, size=1050))
    assert row.ours.cpu_seconds == 1.0
    assert row.ours.peak_bytes == 100
    assert row.verdicts == {"3x": True, "memory": True, "size": True}


def test_a_row_that_misses_its_targets_says_so() -> None:
    row = Row.of(CASE, measured(cpu=1.01, peak=101, size=1051))
    assert row.verdicts == {"3x": False, "memory": False, "size": False}
    about = {"icechunk": "2", "icefloe": "0", "rows": 1, "rounds": 1, "peak_memory": "VmHWM"}
    printed = render([row], about)
    assert "3x MISSED  memory MISSED  size MISSED" in printed
    assert "missed: encode (3x); encode (memory); encode (size)" in printed


def test_the_best_of_several_rounds_is_the_least_of_each_figure() -> None:
    rounds = [{"a": step(2.0, 10, 30, 7), "b": step(1.0, 0, 0)} for _ in range(2)]
    rounds[1]["a"] = step(1.0, 50, 90, 6)
    assert best(rounds) == {"a": step(1.0, 10, 30, 6), "b": step(1.0, 0, 0)}
