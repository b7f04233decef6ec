"""Runs simulated worlds for hours, in pieces that add up in one record.

    python tools/soak.py --hours 2            pieces of at most 40 minutes, until there are 2 hours
    python tools/soak.py --hours 0            prints what the record has
    python tools/soak.py --seed 1234          one world; if it breaks, the smallest like it as code

Hours are those of all workers in sum: two workers need one hour for two. Each piece begins behind
the seeds of the last one and is added to the record when it ends, and when it is interrupted.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.safety.simulation import draw_world, run_world, shrink, simulate

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "icefloe"
RECORD = ROOT / "build" / "soak.json"
STATES = ROOT / "build" / "soak-states.npy"
PIECE_S = 40 * 60
SHRINKING_RUNS = 200
COVERED = ("assets", "changes", "maintenance", "repo", "store/appends.py", "store/operations.py")
"""Of which the covered lines are counted."""

Result = dict[str, Any]


class Lines:
    """Which lines of icefloe have run. It costs little: each line tells of its first run only."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self._known: dict[Any, bool] = {}
        if sys.version_info < (3, 12):
            return  # nothing is counted
        monitor = sys.monitoring
        monitor.use_tool_id(monitor.COVERAGE_ID, "soak")
        monitor.register_callback(monitor.COVERAGE_ID, monitor.events.LINE, self._note)
        monitor.set_events(monitor.COVERAGE_ID, monitor.events.LINE)

    def _note(self, code: Any, line: int) -> Any:
        if code.co_filename.startswith(str(SOURCE)):
            self.seen.add((code.co_filename[len(str(SOURCE)) + 1 :], line))
        return sys.monitoring.DISABLE

    def sorted(self) -> list[tuple[str, int]]:
        """Files and lines."""
        return sorted(one for one in self.seen if one[0].startswith(COVERED))


def run_seeds(first: int, every: int, until: float) -> Result:
    """Run every so-many-th seed until a time. Ends early, and in order, on Ctrl-C."""
    lines, total = Lines(), Counter[str]()
    outcomes, faults, problems = Counter[str](), Counter[str](), []
    states, seed = set[int](), first
    try:
        while time.time() < until:
            report = simulate(seed)
            total += Counter(worlds=1, steps=report.steps, operations=report.outcomes.total())
            faults += report.faults
            states |= report.states
            for (name, outcome), count in report.outcomes.items():
                outcomes[f"{name}: {outcome}"] += count
            if report.problem is not None:
                print(f"seed {seed}: {report.problem}", flush=True)
                small = run_world(shrink(draw_world(seed), runs=SHRINKING_RUNS))
                problems.append(
                    {"seed": seed, "problem": small.problem, "program": small.world.as_code()}
                )
            seed += every
    except KeyboardInterrupt:
        pass
    return {
        "next": seed,
        "totals": total,
        "outcomes": outcomes,
        "faults": faults,
        "problems": problems,
        "states": np.array(sorted(states), np.uint64),
        "lines": lines.sorted(),
    }


def _work(first: int, every: int, until: float, results: Any) -> None:
    results.put(run_seeds(first, every, until))


def run_piece(first: int, workers: int, seconds: float) -> tuple[list[Result], float]:
    """Run worlds in so many processes. Returns what each has found, and the seconds of all."""
    began = time.time()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    jobs = [
        context.Process(target=_work, args=(first + n, workers, began + seconds, results))
        for n in range(workers)
    ]
    previous = signal.getsignal(signal.SIGINT)
    for job in jobs:
        job.start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the workers get it too, and end
    try:
        found = [results.get() for _ in jobs]
    finally:
        signal.signal(signal.SIGINT, previous)
    for job in jobs:
        job.join()
    return found, (time.time() - began) * workers


def add_piece(record: Result, found: list[Result], seconds: float) -> None:
    """Add what the workers of a piece have found, and write the record."""
    STATES.parent.mkdir(exist_ok=True)
    known = [np.load(STATES)] if STATES.exists() else []
    states = np.unique(np.concatenate([*known, *(one["states"] for one in found)]))
    np.save(STATES, states)
    totals = sum((Counter(one["totals"]) for one in found), Counter[str]())
    record["pieces"].append(
        {
            "commit": _commit(),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "seeds": [record["next_seed"], max(one["next"] for one in found) - 1],
            "seconds": round(seconds),
            **totals,
            "problems": [problem for one in found for problem in one["problems"]],
        }
    )
    for kind in ("outcomes", "faults"):
        counted: Counter[str] = sum((Counter(one[kind]) for one in found), Counter(record[kind]))
        record[kind] = dict(sorted(counted.items()))
    record["next_seed"] = max(one["next"] for one in found)
    record["distinct_states"] = len(states)
    lines = {tuple(line) for one in found for line in one["lines"]}
    record["lines"] = _coverage(lines) if lines else {}
    RECORD.write_text(json.dumps(record, indent=1))


def _coverage(lines: set[tuple[Any, ...]]) -> dict[str, list[int]]:
    """Lines of functions that ran in the last piece, and all there are, by folder or file."""
    found = {}
    for name in COVERED:
        place = SOURCE / name
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        known = {
            (path.relative_to(SOURCE).as_posix(), line)
            for path in files
            for line in _lines_of(compile(path.read_text(), str(path), "exec"))
        }
        found[name] = [len(lines & known), len(known)]
    return found


def _lines_of(code: Any) -> set[int]:
    inner = [one for one in code.co_consts if hasattr(one, "co_lines")]
    is_function = code.co_flags & inspect.CO_OPTIMIZED  # others run when they are imported
    own = {line for _, _, line in code.co_lines() if line and line > code.co_firstlineno}
    own = own if is_function else set()
    return own.union(*map(_lines_of, inner))


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout

    changed = " with changes" if git("status", "--porcelain", "-uno").strip() else ""
    return git("rev-parse", "HEAD").strip() + changed


def read_record() -> Result:
    """What was run so far."""
    if RECORD.exists():
        found: Result = json.loads(RECORD.read_text())
        return found
    return {"next_seed": 1_000_000, "pieces": [], "outcomes": {}, "faults": {}, "lines": {}}


def show(record: Result) -> None:
    """Print the sums."""
    sums = Counter[str]()
    for piece in record["pieces"]:
        sums += Counter({key: it for key, it in piece.items() if isinstance(it, int)})
    hours = sums.pop("seconds", 0) / 3600
    print(f"{len(record['pieces'])} pieces, {hours:.2f} hours of all workers in sum")
    for name, count in sums.items():
        print(f"{count:>12,} {name}")
    print(f"{record.get('distinct_states', 0):>12,} distinct states")
    for name, count in record["faults"].items():
        print(f"{count:>12,} x {name}")
    for name, (ran, known) in record["lines"].items():
        print(f"{ran / known:>12.0%} of the lines in functions of {name} in the last piece")
    problems = [problem for piece in record["pieces"] for problem in piece["problems"]]
    print(f"{len(problems)} worlds broke")
    for problem in problems:
        print(f"\nseed {problem['seed']}: {problem['problem']}\n\n{problem['program']}")


def show_world(seed: int) -> int:
    """Run one world. If it breaks, print the smallest like it."""
    report = simulate(seed)
    print(f"seed {seed}: {report.steps} steps, {report.digest}")
    if report.problem is None:
        return 0
    print(report.problem)
    small = run_world(shrink(draw_world(seed), runs=2 * SHRINKING_RUNS))
    print(f"\n{small.problem}\n\n{small.world.as_code()}")
    return 1


def main() -> int:
    """Run pieces, or one world."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int)
    wanted = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # So that a seed takes the same steps in every process.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    if wanted.seed is not None:
        return show_world(wanted.seed)
    record, left_s = read_record(), wanted.hours * 3600
    while left_s > 0:
        piece_s = min(PIECE_S, left_s / wanted.workers)
        found, seconds = run_piece(record["next_seed"], wanted.workers, piece_s)
        add_piece(record, found, seconds)
        left_s -= piece_s * wanted.workers
        if seconds < 0.9 * piece_s * wanted.workers:
            break  # interrupted
    show(record)
    return int(any(piece["problems"] for piece in record["pieces"]))


if __name__ == "__main__":
    sys.exit(main())
