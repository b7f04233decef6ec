"""Official icechunk and icefloe side by side, as one table: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks import collecting, scale, spark
from benchmarks.cases import FILE_CASES, Case, ScenarioName
from benchmarks.data import ROWS_PER_STEP
from benchmarks.fresh import measure_program
from benchmarks.fresh_cases import FRESH_CASES
from benchmarks.measure import WARM_UP_ROWS, Steps, best, measure, memory_method, run_in_process
from benchmarks.places import S3, announce_endpoint
from benchmarks.store_cases import STORE_CASES
from benchmarks.table import Row, render
from tests.servers import s3_server_process

CASES = [*FILE_CASES, *STORE_CASES, *FRESH_CASES]

NEEDS_OFFICIAL = (
    "The benchmarks compare with official icechunk, which is not installed here. It needs "
    "Python 3.12 or newer: build the environment with such a Python (make setup PYTHON=...), "
    "or add it with: pip install 'icechunk>=2'"
)


def main() -> None:
    """Make the data, check that both sides agree on it, measure, print."""
    arguments = _arguments()
    if importlib.util.find_spec("icechunk") is None:
        sys.exit(NEEDS_OFFICIAL)
    if arguments.only == "scale":
        print("\n".join(scale.run(arguments.refs)))
        return
    if arguments.only == "collect":
        print("\n".join(collecting.run(collecting.DEFAULT_OBJECTS, _say)))
        return
    if arguments.only == "spark":
        spark.run(min(arguments.rounds, 2), _say)
        return
    cases = [case for case in CASES if case.is_about(arguments.only)]
    if not cases:
        names = "\n  ".join(case.name for case in CASES)
        sys.exit(f"no case has {arguments.only!r} in its name; there are:\n  {names}")
    with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as name, ExitStack() as stack:
        folder = Path(name)
        if any(S3 in side.scenario for case in cases for side in case.sides):
            server = stack.enter_context(s3_server_process())
            announce_endpoint(folder, server.endpoint_url)
        measured = run(cases, folder, arguments.rows, arguments.rounds)
    rows = [Row.of(case, measured) for case in cases]
    about = {
        "rows": arguments.rows,
        "rounds": arguments.rounds,
        "icechunk": importlib.metadata.version("icechunk"),
        "icefloe": importlib.metadata.version("icefloe"),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "peak_memory": memory_method(),
    }
    print(render(rows, about))
    found = about | {"cases": [row.as_json() for row in rows]}
    if not arguments.only:
        collected = collecting.run(collecting.DEFAULT_OBJECTS, _say)
        print("\n".join(["", *collected, ""]))
        found["collect"] = collected
        found["spark"] = spark.run(min(arguments.rounds, 2), _say)
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def run(cases: list[Case], folder: Path, rows: int, rounds: int) -> dict[ScenarioName, Steps]:
    """Measure every scenario that the cases need, in rounds, so that both sides share the noise."""
    scenarios = list(dict.fromkeys(side.scenario for case in cases for side in case.sides))
    most_rounds = {side.scenario: case.most_rounds for case in cases for side in case.sides}
    _prepare(scenarios, folder, rows)
    _say("checking that both sides yield the same")
    _check(scenarios, folder, rows)
    measured: dict[ScenarioName, list[Steps]] = {scenario: [] for scenario in scenarios}
    for number in range(rounds):
        for scenario, steps in measured.items():
            if number >= (most_rounds[scenario] or rounds):
                continue
            _say(f"round {number + 1} of {rounds}: {' '.join(scenario)}")
            if scenario[0] == "fresh":
                _, task, dataset, side = scenario
                steps.append(measure_program(folder, rows, task, dataset, side))
            else:
                steps.append(measure(folder, rows, scenario))
    _say("")
    return {scenario: best(steps) for scenario, steps in measured.items()}


def _prepare(scenarios: list[ScenarioName], folder: Path, rows: int) -> None:
    """Make the repositories that are only read, and copies of them where S3 is to be measured."""
    _say("making repositories")
    datasets = dict.fromkeys(dataset for _, _, dataset, *_ in scenarios)
    run_in_process("benchmarks.repositories", str(folder), str(WARM_UP_ROWS), *datasets)
    _run_each("benchmarks.repositories", folder, rows, datasets)
    copied = dict.fromkeys(dataset for _, _, dataset, *more in scenarios if S3 in more)
    if copied:
        for size in {WARM_UP_ROWS, rows}:
            run_in_process("benchmarks.s3_copies", str(folder), str(size), *copied)


def _check(scenarios: list[ScenarioName], folder: Path, rows: int) -> None:
    files, stores = dict[str, None](), dict[str, None]()
    for module, function, dataset, *more in scenarios:
        if module == "ours":
            files[f"{function}:{dataset}"] = None
        elif module == "stores" and "ours" in more:
            stores[":".join([function, dataset, more[-1]])] = None
    _run_each("benchmarks.checks", folder, rows, files)
    _run_each("benchmarks.store_checks", folder, rows, stores)


def _run_each(module: str, folder: Path, rows: int, items: Iterable[str]) -> None:
    """What is not measured may share the machine, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        started = [
            pool.submit(run_in_process, module, str(folder), str(rows), item) for item in items
        ]
        for job in started:
            job.result()


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", type=_rows, default=1_000_000, help="references an array")
    parser.add_argument("--rounds", type=int, default=3, help="the least of so many is shown")
    parser.add_argument(
        "--only",
        default="",
        metavar="SUBSTRING",
        help="cases to measure, or a group: files, repositories, fresh processes; or scale, "
        "collect or spark alone",
    )
    parser.add_argument(
        "--refs", type=int, default=scale.DEFAULT_REFS, help="references of the array of scale"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=Path(__file__).with_name("results.json"),
        metavar="PATH",
        help="where to write the figures",
    )
    return parser.parse_args()


def _rows(text: str) -> int:
    """At least as many as asked for, in whole steps of the grid."""
    return max(1, -(-int(text) // ROWS_PER_STEP)) * ROWS_PER_STEP


if __name__ == "__main__":
    main()
