"""Official icechunk and icefloe side by side: `python -m benchmarks`.

Measures, adds what was found to `results.json`, and makes the measured part of the page
`docs/performance.md` from all that is there. A row that fails is on the page as such, and makes the
program end with 1.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import icefloe
from benchmarks import growth, plots, spark
from benchmarks.about import about
from benchmarks.cases import COLD, WARM, Case, ScenarioName, measured_together
from benchmarks.data import ROWS_PER_STEP
from benchmarks.fresh import measure_program
from benchmarks.measure import Runs, least, measure, run_in_process
from benchmarks.page import PAGE, SHORT_PAGE, chosen_lines, measured_lines, rendered
from benchmarks.places import announce_endpoint, is_remote
from benchmarks.results import RESULTS, Results, Row
from benchmarks.store_cases import STORE_CASES
from tests.servers import s3_server_process

NEEDS_OFFICIAL = (
    "The benchmarks compare with official icechunk, which is not installed here. It needs "
    "Python 3.12 or newer: build the environment with such a Python (make setup PYTHON=...), "
    "or add it with: pip install 'icechunk>=2'"
)

LEAST_ROUNDS, ENOUGH_SECONDS = 2, 12.0
"""Two rounds have both orders. More follow as long as they have not taken so long."""

Measured = dict[ScenarioName, Runs]


def main() -> None:
    """Measure what is asked for, row by row, and make the page."""
    arguments = _arguments()
    if arguments.render:
        render(arguments.results, arguments.page)
        return
    if importlib.util.find_spec("icechunk") is None:
        sys.exit(NEEDS_OFFICIAL)
    jobs = list(_jobs(arguments))
    if not jobs:
        names = "\n  ".join([*(case.name for case in STORE_CASES), *spark.PARTS, *growth.SIZES])
        sys.exit(f"nothing has {arguments.only!r} in its name; there are:\n  {names}")
    # Installed packages are compiled; one that is worked on may not be, and each worker of Spark
    # would compile it anew.
    compileall.compile_dir(Path(icefloe.__file__).parent, quiet=1)
    results, failures = Results.load(arguments.results), 0
    with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as name, ExitStack() as stack:
        folder = Path(name)
        server = stack.enter_context(s3_server_process())
        announce_endpoint(folder, server.endpoint_url)
        for number, job in enumerate(jobs, 1):
            started = time.monotonic()
            failed = job(folder, results)
            failures += failed
            results.about = about()
            results.save(arguments.results)
            took = time.monotonic() - started
            say(f"{number} of {len(jobs)} done, {took:.0f} s{', FAILED' if failed else ''}")
    if not arguments.only:
        results.forget_others()
        results.save(arguments.results)
    render(arguments.results, arguments.page)
    if failures:
        sys.exit(f"{failures} could not be measured; {arguments.page} says which")


Job = Callable[[Path, Results], bool]
"""Measures something, puts it into the results; returns whether it failed."""


def _jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    only, rows, rounds = arguments.only, arguments.rows, arguments.rounds
    cases = [case for case in STORE_CASES if case.is_about(only)]
    for cluster in measured_together(cases):
        yield lambda folder, results, cluster=cluster: _measure_cases(  # type: ignore[misc]
            cluster, folder, rows, rounds, results
        )
    for part in spark.PARTS:
        if spark.is_about(part, only):
            yield lambda _, results, part=part: spark.measure_part(part, results, say)  # type: ignore[misc]
    for kind, sizes in growth.SIZES.items():
        if only in ("", "growth", f"growth of {kind}"):
            scaled = tuple(max(size * rows // 1_000_000, 2) for size in sizes)
            yield lambda _, results, kind=kind, scaled=scaled: _measure_growth(  # type: ignore[misc]
                kind, scaled, results
            )


def _measure_cases(
    cases: list[Case], folder: Path, rows: int, rounds: int, results: Results
) -> bool:
    for case in cases:
        say(f"  {case.name}")
    try:
        measured = run(cases, folder, rows, rounds)
    except Exception as error:  # noqa: BLE001 - whatever it was, the other rows are measured
        print(error, file=sys.stderr)
        reason = str(error).strip().splitlines()[-1]
        results.update(Row.failure(case, reason) for case in cases)
        return True
    results.update(Row.of(case, measured) for case in cases)
    return False


def run(cases: list[Case], folder: Path, rows: int, rounds: int) -> Measured:
    """Measure the scenarios of cases in rounds, every other one in the opposite order."""
    scenarios = list(dict.fromkeys(one for case in cases for one in case.scenarios))
    prepare(scenarios, folder, rows)
    measured: dict[ScenarioName, list[Runs]] = {scenario: [] for scenario in scenarios}
    started = time.monotonic()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.monotonic() - started > ENOUGH_SECONDS:
            break
        for scenario in scenarios if number % 2 == 0 else reversed(scenarios):
            measured[scenario].append(_measure_scenario(folder, rows, scenario))
    return {scenario: least(found) for scenario, found in measured.items()}


def _measure_scenario(folder: Path, rows: int, scenario: ScenarioName) -> Runs:
    module, function, dataset, side, *_ = scenario
    if module == "fresh":
        return measure_program(folder, rows, function, dataset, side)
    runs = (WARM,) if function == "crowd" else (COLD, WARM)  # a crowd warms itself up
    return measure(folder, rows, runs, scenario)


def prepare(scenarios: list[ScenarioName], folder: Path, rows: int) -> None:
    """Make the repositories that are only read, and copies of them where S3 is to be measured."""
    datasets = dict.fromkeys(dataset for _, _, dataset, *_ in scenarios)
    run_in_process("benchmarks.repositories", str(folder), str(rows), *datasets)
    for kind in dict.fromkeys(kind for *_, kind in scenarios if is_remote(kind)):
        copied = dict.fromkeys(dataset for _, _, dataset, *_, own in scenarios if own == kind)
        run_in_process("benchmarks.s3_copies", str(folder), str(rows), kind, *copied)


def _measure_growth(kind: str, sizes: tuple[int, ...], results: Results) -> bool:
    try:
        results.growth[kind] = growth.measure_kind(kind, sizes, LEAST_ROUNDS, say)
    except Exception as error:  # noqa: BLE001 - whatever it was, the others are measured
        print(error, file=sys.stderr)
        return True
    return False


def render(results: Path, page: Path) -> None:
    """Make the measured parts of both pages from the results, and the pictures beside them."""
    found = Results.load(results)
    page.write_text(rendered(page.read_text(), measured_lines(found)))
    short = page.with_name(SHORT_PAGE.name)
    if short.exists():
        short.write_text(rendered(short.read_text(), chosen_lines(found)))
    plots.draw(found, page.parent)
    say(f"{page.name} shows {len(found.rows)} rows")


def say(what: str) -> None:
    """Tell how far it is, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", type=_rows, default=1_000_000, help="references an array")
    parser.add_argument("--rounds", type=int, default=5, help="so many at most; two at least")
    parser.add_argument(
        "--only",
        default="",
        metavar="WORD",
        help="rows to measure: a part of their names, or a group; `growth` for the curves",
    )
    parser.add_argument("--render", action="store_true", help="only make the page")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="PATH", help="to add to")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="PATH", help="to make")
    return parser.parse_args()


def _rows(text: str) -> int:
    """At least as many as asked for, in whole steps of the grid."""
    return max(1, -(-int(text) // ROWS_PER_STEP)) * ROWS_PER_STEP


if __name__ == "__main__":
    main()
