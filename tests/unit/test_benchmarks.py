"""The benchmarks still run, agree with official and judge their targets; not how fast they are."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import store_checks, stores
from benchmarks.cases import REPOSITORIES_GROUP, Case, Side
from benchmarks.data import Corpus
from benchmarks.measure import (
    WARM_UP_ROWS,
    Measurement,
    Steps,
    best,
    run_in_process,
    run_steps,
)
from benchmarks.places import S3, announce_endpoint, count_requests
from benchmarks.store_cases import STORE_CASES
from benchmarks.table import Row, render
from tests.servers import S3Server

ROOT = Path(__file__).parents[2]

OFFICIAL = Side(("official", "write", "files"), ("commit",))
OURS = Side(("ours", "write", "files"), ("manifest", "rest"))
ABOUT = {"icechunk": "2", "icefloe": "0", "rows": 1, "rounds": 1, "peak_memory": "VmHWM"}
CASE = Case("encode", OFFICIAL, OURS, "a note", 3.0, True, OFFICIAL, True)


@pytest.mark.parametrize(
    ("only", "cases"),
    [
        ("decode native", ["decode native"]),
        pytest.param(
            "1000 files, spec 2", ["encode and write 1000 files, spec 2"], marks=pytest.mark.long
        ),
        pytest.param(
            "keys of 13 arrays, S3",
            ["open, list 13,014 keys of 13 arrays, S3"],
            marks=pytest.mark.long,
        ),
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
            if case["group"] == "files":
                assert case[side]["file_bytes"] > 1000
            else:
                # The repo object, the snapshot and 13 manifests at least, and nothing else.
                assert case[side]["requests"]["GET"] >= 15
                assert not case[side]["requests"].get("PUT")


SCENARIOS = list(dict.fromkeys(side.scenario for case in STORE_CASES for side in case.sides))
DATASETS = sorted({dataset for _, _, dataset, *_ in SCENARIOS})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Corpus:
    """Tiny repositories in a directory and on the server."""
    pytest.importorskip("icechunk", reason="the benchmarks compare with official icechunk")
    folder = tmp_path_factory.mktemp("corpus")
    announce_endpoint(folder, s3_server.endpoint_url)
    for module in ("benchmarks.repositories", "benchmarks.s3_copies"):
        run_in_process(module, str(folder), str(WARM_UP_ROWS), *DATASETS)
    return Corpus(folder, WARM_UP_ROWS)


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=" ".join)
def test_a_repository_scenario_finds_what_it_should(
    scenario: tuple[str, ...], corpus: Corpus
) -> None:
    _, function, dataset, side, kind = scenario
    is_remote = kind == S3
    steps = run_steps(
        getattr(stores, function)(corpus, dataset, side, kind),
        touched_bytes=0,
        count=(lambda: count_requests(corpus.folder)) if is_remote else None,
    )
    wanted = {
        name
        for case in STORE_CASES
        for side_ in case.sides
        if side_.scenario == scenario
        for name in side_.steps
    }
    assert wanted
    assert wanted <= steps.keys()
    for step in steps.values():
        assert (step.requests is not None) == is_remote
        assert step.requests is None or min(step.requests.values()) >= 0
    if is_remote:
        assert sum(sum((step.requests or {}).values()) for step in steps.values()) > 0


CHECKS = [
    f"{function}:{dataset}:{kind}"
    for _, function, dataset, side, kind in SCENARIOS
    if side == "ours"
]


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS)
def test_either_library_finds_what_the_other_wrote(check: str, corpus: Corpus) -> None:
    store_checks.main(str(corpus.folder), str(corpus.rows), check)


def test_a_check_finds_that_keys_differ(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"official": ["a", "b"], "ours": ["a"]}
    monkeypatch.setattr(stores, "list_keys", lambda place, storage: listed[place.side])
    with pytest.raises(AssertionError, match="keys differ"):
        store_checks.main(str(corpus.folder), str(corpus.rows), "keys:few arrays:local")
    listed |= {"official": ["a", "a"], "ours": ["a", "a"]}
    with pytest.raises(AssertionError, match="twice"):
        store_checks.main(str(corpus.folder), str(corpus.rows), "keys:few arrays:local")


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


def test_a_row_about_repositories_is_judged_by_wall_time_and_shows_requests() -> None:
    official = Side(("stores", "keys", "a", "official", S3), ("list",))
    ours = Side(("stores", "keys", "a", "ours", S3), ("list",))
    case = Case("list", official, ours, wall_target=2.0, group=REPOSITORIES_GROUP)
    counted = {"GET": 1000, "PUT": 234}
    figures: dict[tuple[str, ...], Steps] = {
        official.scenario: {"list": Measurement(1.0, 2.0, 0, 0, 1, None, counted)},
        ours.scenario: {"list": Measurement(1.0, 1.0, 0, 0, 1, None, {"GET": 7})},
    }
    row = Row.of(case, figures)
    assert row.verdicts == {"wall 2x": True}
    assert row.as_json()["official"]["requests"] == counted
    printed = render([row], ABOUT)
    assert "-- repositories" in printed
    assert "file MB" not in printed  # a column that none of the rows has anything for
    assert "1234        7  wall 2x ok" in printed
    figures[ours.scenario] = {"list": Measurement(1.0, 1.01, 0, 0, 1, None, {"GET": 7})}
    assert Row.of(case, figures).verdicts == {"wall 2x": False}
    for target, is_met in ((176.0, True), (177.0, False)):
        fewer = replace(case, wall_target=None, requests_target=target)
        assert Row.of(fewer, figures).verdicts == {f"requests {target:.2g}x": is_met}


def test_a_group_can_be_named_as_well_as_a_case() -> None:
    case = Case("list", None, OURS, group=REPOSITORIES_GROUP)
    assert all(map(case.is_about, ("list", "repositories", "")))
    assert not case.is_about("files")


def test_a_row_that_misses_its_targets_says_so() -> None:
    row = Row.of(CASE, measured(cpu=1.01, peak=101, size=1051))
    assert row.verdicts == {"3x": False, "memory": False, "size": False}
    printed = render([row], ABOUT)
    assert "3x MISSED  memory MISSED  size MISSED" in printed
    assert "missed: encode (3x); encode (memory); encode (size)" in printed


def test_the_best_of_several_rounds_is_the_least_of_each_figure() -> None:
    rounds = [{"a": step(2.0, 10, 30, 7), "b": step(1.0, 0, 0)} for _ in range(2)]
    rounds[1]["a"] = step(1.0, 50, 90, 6)
    assert best(rounds) == {"a": step(1.0, 10, 30, 6), "b": step(1.0, 0, 0)}


def test_the_best_of_several_rounds_has_the_fewest_requests() -> None:
    numbers = [{"GET": 3, "PUT": 1}, {"GET": 2, "PUT": 1}]
    rounds = [{"a": Measurement(1.0, 1.0, 0, 0, 1, None, requests)} for requests in numbers]
    assert best(rounds)["a"].requests == {"GET": 2, "PUT": 1}
