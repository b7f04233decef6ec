"""The benchmarks still run, agree with official and judge their targets; not how fast they are."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import growth, growth_repositories, store_checks, stores
from benchmarks.cases import CHUNKS, COLD, COMMITS, WARM, Case, Side, measured_together
from benchmarks.data import Corpus
from benchmarks.growth_table import curves, growth_lines
from benchmarks.measure import SMALL_ROWS, Fsyncs, Measurement, Runs, Steps, least, run_steps
from benchmarks.page import END, START, measured_lines, rendered
from benchmarks.places import LOCAL, Place, announce_endpoint, count_requests, is_remote
from benchmarks.results import Figures, Results, Row
from benchmarks.store_cases import STORE_CASES
from tests.servers import S3Server

ROOT = Path(__file__).parents[2]

OFFICIAL = Side(("stores", "keys", "a", "official", "S3"), ("list",))
OURS = Side(("stores", "keys", "a", "ours", "S3"), ("open", "list"))
CASE = Case("list", OFFICIAL, OURS, CHUNKS, "a note", 1.0, 2.0, 3.0)


def run_program(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A small run with a page of its own."""
    (folder / "page.md").write_text(f"by hand\n{START}\nold\n{END}\nmore by hand\n")
    files = ["--results", str(folder / "results.json"), "--page", str(folder / "page.md")]
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "--rows", "1001", "--rounds", "2", *files, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_row_is_measured_and_put_beside_those_of_earlier_runs(tmp_path: Path) -> None:
    pytest.importorskip("icechunk", reason="the benchmarks compare with official icechunk")
    pytest.importorskip("matplotlib", reason="the page has pictures")
    earlier = Row("an earlier row", COMMITS, {WARM: (Figures(2.0, 2.0), Figures(1.0, 1.0))})
    Results({}, {earlier.key: earlier}).save(tmp_path / "results.json")
    done = run_program(tmp_path, "--only", "as of a time")
    assert done.returncode == 0, done.stderr
    found = Results.load(tmp_path / "results.json")
    assert list(found.rows) == [earlier.key, "session as of a time, 10,000 snapshots, local"]
    for run in (COLD, WARM):
        for side in list(found.rows.values())[1].runs[run]:
            assert 0 < side.cpu_seconds < 60
            assert 0 < side.wall_seconds < 60
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("by hand\n")
    assert page.endswith("more by hand\n")
    assert "old" not in page.splitlines()
    assert "| an earlier row | 2 / 1 s 2.00x |" in page
    assert (tmp_path / "images" / "performance.svg").read_text().startswith("<?xml")


def test_a_row_that_fails_is_on_the_page_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results()

    def fail(*_: object) -> dict[tuple[str, ...], Runs]:
        raise RuntimeError("python -m x failed:\nthe last line")

    monkeypatch.setattr(program, "run", fail)
    arguments = ([CASE], tmp_path, 1000, 2, results)
    assert program._measure_cases(*arguments)
    assert results.rows["list"].failed == "the last line"
    monkeypatch.setattr(program, "run", lambda *_: measured(wall=1.0, requests=1))
    assert not program._measure_cases(*arguments)
    assert results.rows["list"].failed == ""
    lines = measured_lines(Results({}, {"x": Row.failure(CASE, "the last line")}))
    assert "- list: the last line" in lines


SCENARIOS = list(
    dict.fromkeys(
        scenario for case in STORE_CASES for scenario in case.scenarios if scenario[0] != "fresh"
    )
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Corpus:
    """Where tiny repositories are made, in a directory and on the server."""
    pytest.importorskip("icechunk", reason="the benchmarks compare with official icechunk")
    folder = tmp_path_factory.mktemp("corpus")
    announce_endpoint(folder, s3_server.endpoint_url)
    return Corpus(folder, SMALL_ROWS)


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=" ".join)
def test_a_scenario_finds_what_it_should(scenario: tuple[str, ...], corpus: Corpus) -> None:
    module, function, *arguments = scenario
    program.prepare([scenario], corpus.folder, corpus.rows)
    remote = is_remote(scenario[-1])
    steps = run_steps(
        getattr(importlib.import_module(f"benchmarks.{module}"), function)(corpus, *arguments),
        (lambda: count_requests(corpus.folder)) if remote else None,
    )
    wanted = {
        name
        for case in STORE_CASES
        for side in (case.official, case.ours)
        if side.scenario == scenario
        for name in side.steps
    }
    assert wanted
    assert wanted <= steps.keys()
    assert all((step.requests is not None) == remote for step in steps.values())
    if remote:
        assert sum(step.requests or 0 for step in steps.values()) > 0


CHECKS = [
    f"{function}:{dataset}:{kind}"
    for _, function, dataset, side, kind in SCENARIOS
    if side == "ours" and function in store_checks.CHECKS
]


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS)
def test_either_library_finds_what_the_other_wrote(check: str, corpus: Corpus) -> None:
    function, dataset, kind = check.split(":")
    program.prepare([("stores", function, dataset, "ours", kind)], corpus.folder, corpus.rows)
    store_checks.main(str(corpus.folder), str(corpus.rows), check)


@pytest.mark.long
@pytest.mark.parametrize("kind", growth.SIZES)
def test_growth_is_measured_with_both_libraries(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("icechunk", reason="the benchmarks compare with official icechunk")
    found = growth.measure_kind(kind, (200, 2000), 1, lambda _: None)
    assert [curve.operation for curve in curves({kind: found})] == list(growth.OPERATIONS)
    for curve in curves({kind: found}):
        assert all(0 < one < 60 for side in curve.seconds.values() for one in side)


@pytest.mark.parametrize("kind", growth.SIZES)
def test_a_repository_of_the_curves_has_the_number_that_grows(kind: str, tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, 150)
    growth_repositories.make(corpus, kind)
    found = growth.measured(kind, Place("ours", LOCAL, corpus), corpus.rows)
    assert list(found) == list(growth.OPERATIONS)
    manifests = list((corpus / kind / "manifests").iterdir())
    assert len(manifests) == (150 if kind == "manifests" else 1)


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


def test_an_unknown_row_is_refused_with_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "found")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "no such row"])
    with pytest.raises(SystemExit, match=r"'no such row'(.|\n)*100 small commits, memory"):
        program.main()


def measured(*, wall: float, requests: int) -> dict[tuple[str, ...], Runs]:
    """Official: 2 s and 9 requests, cold and warm; ours in two steps, cold with an import."""
    official = {"list": Measurement(1.0, 2.0, 50, 150, requests=9)}
    ours = {
        "open": Measurement(0.25, wall / 2, 10, 20, requests=0),
        "list": Measurement(0.75, wall / 2, 15, 110, requests=requests),
    }
    cold = {"import": Measurement(1.0, 1.0)}
    return {
        OFFICIAL.scenario: {COLD: cold | official, WARM: official},
        OURS.scenario: {COLD: cold | ours, WARM: ours},
    }


def test_a_row_takes_steps_together_and_meets_targets_exactly() -> None:
    row = Row.of(CASE, measured(wall=1.0, requests=3))
    assert row.runs[WARM] == (Figures(2.0, 1.0, 100, 9), Figures(1.0, 1.0, 100, 3))
    assert row.ratio(COLD, "wall") == 1.5
    assert row.missed == []
    assert row.least_ratio == 1.0
    row = Row.of(CASE, measured(wall=1.01, requests=4))
    assert row.missed == ["wall 2x", "requests 3x"]
    assert Row.of(CASE, measured(wall=2.5, requests=3)).least_ratio == 0.8


def test_where_official_does_not_wait_for_the_disk_wall_time_has_no_target() -> None:
    case = replace(CASE, wall_target=None)
    row = Row.of(case, measured(wall=4.0, requests=3))
    assert row.missed == []
    assert row.least_ratio == 1.0


@pytest.mark.parametrize(("wall", "is_behind"), [(1.9, False), (2.1, False), (3.0, True)])
def test_a_limit_is_to_be_come_close_to(wall: float, is_behind: bool) -> None:
    case = replace(CASE, wall_target=0.7)
    assert Row.of(case, measured(wall=wall, requests=3)).is_behind is is_behind


def test_results_are_the_same_after_a_file() -> None:
    row = Row.of(CASE, measured(wall=1.0, requests=3))
    assert Row.from_json(json.loads(json.dumps(row.as_json()))) == row


def test_rows_that_are_behind_come_first_the_worst_of_them_before_all() -> None:
    rows = [
        replace(Row.of(CASE, measured(wall=wall, requests=3)), name=name)
        for name, wall in (("ahead", 0.5), ("behind", 2.5), ("far behind", 5.0), ("near", 1.5))
    ]
    lines = measured_lines(Results({"Python": "3"}, {row.key: row for row in rows}))
    names = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert [name for name in names if name and name != "---"] == [
        "far behind",
        "behind",
        "near",
        "ahead",
    ]
    assert "### Rows in which icefloe is behind: 2 of 4" in lines
    assert "2 / 2.5 s **0.80x**" in next(line for line in lines if line.startswith("| behind"))
    assert "- Python: 3" in lines


def test_the_page_tells_of_fsync_lost_commits_and_rates() -> None:
    official = Figures(1.0, 1.0, lost=7)
    ours = Figures(2.0, 1.0, fsync_seconds=1.0, lost=0)
    row = Row("commits", COMMITS, {WARM: (official, ours)}, amount=10.0, unit="commits")
    lines = measured_lines(Results({}, {row.key: row}))
    assert "- commits: fsync is 50% of the time of icefloe." in lines
    assert "- commits: commits lost in all rounds: 7 / 0." in lines
    assert "- commits: 10.0 / 5.0 commits a second." in lines


def test_only_the_measured_part_of_the_page_is_made() -> None:
    page = rendered(f"before {START} old {END} after", measured_lines(Results()))
    assert page.startswith(f"before {START}\n")
    assert page.endswith(f"\n{END} after")
    assert rendered(page, measured_lines(Results())) == page


def test_a_curve_is_steeper_if_it_adds_more_and_grows_by_more() -> None:
    def curve(official: list[float], ours: list[float]) -> dict[str, object]:
        sides = {"official": official, "icefloe": ours}
        times = {side: [[one, one] for one in found] for side, found in sides.items()}
        return {"sizes": [1, 10], **times}

    growth = {
        "nodes": {
            "open": curve([1.0, 2.0], [1.0, 3.0]),
            "list": curve([1.0, 2.0], [0.1, 0.5]),  # from a tenth to a quarter of official's
            "commit": curve([1.0, 2.0], [5.0, 6.5]),
            "look up": curve([0.0006, 0.0005], [0.0007, 0.0008]),  # too short to tell
        }
    }
    assert [one.is_steeper for one in curves(growth)] == [True, False, False, False]
    lines = growth_lines(growth)
    assert "Steeper than official's: 1 of 4." in lines
    assert next(line for line in lines if "steeper**" in line).startswith("| nodes | open |")


def test_a_group_can_be_named_as_well_as_a_row() -> None:
    assert all(map(CASE.is_about, ("list", "chunks", "")))
    assert not CASE.is_about("commits")


def test_cases_that_share_a_scenario_are_measured_together() -> None:
    def case(name: str, official: str, ours: str) -> Case:
        return Case(name, Side((official,), ()), Side((ours,), ()), CHUNKS)

    cases = [case("a", "1", "2"), case("b", "3", "4"), case("c", "1", "5"), case("d", "4", "5")]
    found = [[one.name for one in cluster] for cluster in measured_together(cases[:3])]
    assert found == [["b"], ["a", "c"]]
    assert [len(cluster) for cluster in measured_together(cases)] == [4]


def test_every_second_round_has_the_opposite_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def note(_folder: Path, _rows: int, scenario: tuple[str, ...]) -> Runs:
        seen.append(scenario[3])
        return {WARM: {}}

    monkeypatch.setattr(program, "prepare", lambda *_: None)
    monkeypatch.setattr(program, "_measure_scenario", note)
    program.run([CASE], tmp_path, 1000, 3)
    assert seen == ["official", "ours", "ours", "official", "official", "ours"]
    seen.clear()
    monkeypatch.setattr(program, "ENOUGH_SECONDS", 0.0)
    program.run([CASE], tmp_path, 1000, 3)
    assert len(seen) == 4


def test_the_least_of_several_rounds_is_that_of_each_figure() -> None:
    def runs(one: Measurement) -> Runs:
        steps: Steps = {"a": one}
        return {WARM: steps}

    found = least(
        [
            runs(Measurement(2.0, 10.0, 10, 30, times=10, requests=3, lost=5)),
            runs(Measurement(3.0, 12.0, 50, 90, times=20, requests=2, lost=1)),
        ]
    )
    assert found == runs(Measurement(3.0, 12.0, 10, 30, times=20, requests=2, lost=6))


def test_waiting_of_several_threads_at_once_counts_once() -> None:
    Fsyncs.seen[:] = [(1.0, 3.0), (2.0, 4.0), (6.0, 7.0), (6.5, 6.6)]
    assert Fsyncs.seconds() == 4.0
    Fsyncs.seen.clear()
