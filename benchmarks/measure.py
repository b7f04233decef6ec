"""Measuring one scenario in a fresh process: CPU seconds, wall time, peak memory, requests.

Started as `python -m benchmarks.measure FOLDER ROWS RUNS MODULE FUNCTION DATASET SIDE ...`, it
imports the library, runs the scenario as often as RUNS has words, and prints the steps of each run
as JSON. `measure` is the other end.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.cases import COLD, WARM
from benchmarks.data import ROWS_PER_STEP, Corpus
from benchmarks.places import LIBRARIES, count_requests, is_remote
from benchmarks.steps import PREPARED, Scenario

ROOT = Path(__file__).parents[1]

SMALL_ROWS = 2 * ROWS_PER_STEP
"""The size at which tests run every scenario."""

IMPORT = "import"
"""The step before all others: the import of the library, and of Zarr where a store is needed."""

LONGEST_S = 600
"""A process that takes longer has failed."""

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One step. CPU is user and system time of all threads; memory is resident bytes.

    Requests are counted by the S3 server. `lost` are commits that were reported as made, and are
    not in the history.
    """

    cpu_seconds: float
    wall_seconds: float
    memory_before: int = 0
    memory_peak: int = 0
    times: int = 1
    size_bytes: int | None = None
    requests: int | None = None
    fsync_seconds: float = 0.0
    lost: int | None = None


Steps = dict[str, Measurement]
Runs = dict[str, Steps]
"""The steps of the cold run and of the warm one."""


def run_in_process(module: str, *arguments: str, longest: float = LONGEST_S) -> str:
    """Run `python -m module`; returns what it printed.

    Raises:
        RuntimeError: it ended with an error, or not in time; says what it complained about.
    """
    what = f"python -m {module} {' '.join(arguments)}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=os.environ | {"ICECHUNK_LOG": "error"},
            capture_output=True,
            text=True,
            check=False,
            timeout=longest,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{what} was stopped after {longest:.0f} s") from error
    if done.returncode:
        raise RuntimeError(f"{what} failed:\n{done.stderr}")
    return done.stdout


def measure(folder: Path, rows: int, runs: Iterable[str], scenario: Iterable[str]) -> Runs:
    """The steps of one scenario, in a fresh process."""
    arguments = [str(folder), str(rows), ",".join(runs), *scenario]
    printed = run_in_process("benchmarks.measure", *arguments)
    return {
        run: {name: Measurement(**values) for name, values in steps.items()}
        for run, steps in json.loads(printed).items()
    }


def least(rounds: list[Runs]) -> Runs:
    """The least of every figure: what other users of the machine add is never negative.

    Commits that were lost are those of all rounds.
    """
    return {
        run: {name: _least([runs[run][name] for runs in rounds]) for name in steps}
        for run, steps in rounds[0].items()
    }


def _least(measured: list[Measurement]) -> Measurement:
    quickest = min(measured, key=lambda one: one.wall_seconds / one.times)
    smallest = min(measured, key=lambda one: one.memory_peak - one.memory_before)
    return replace(
        quickest,
        cpu_seconds=min(one.cpu_seconds / one.times for one in measured) * quickest.times,
        memory_before=smallest.memory_before,
        memory_peak=smallest.memory_peak,
        requests=min((one.requests for one in measured), key=lambda number: number or 0),
        lost=None if quickest.lost is None else sum(one.lost or 0 for one in measured),
    )


# --- inside the process -----------------------------------------------------------------------


def run_steps(scenario: Scenario, count: Callable[[], int] | None = None) -> Steps:
    """Run a scenario to its end, measuring every step; `count` tells the requests so far."""
    first = next(scenario)
    assert first == PREPARED, first
    steps: Steps = {}
    while True:
        before, earlier = _settle(), count() if count else 0
        Fsyncs.seen.clear()
        wall, cpu = time.perf_counter(), time.process_time()
        step = next(scenario, None)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if step is None:
            return steps
        measured = Measurement(
            cpu,
            wall,
            before,
            peak_memory(),
            step.times,
            step.size_bytes,
            count() - earlier if count else None,
            Fsyncs.seconds(),
        )
        steps[step.name] = replace(measured, **step.correct()) if step.correct else measured


class Fsyncs:
    """When this process waited for a disk, in any of its threads."""

    seen: ClassVar[list[tuple[float, float]]] = []

    @classmethod
    def watch(cls) -> None:
        """Replace the functions of `os` that wait."""
        for name in ("fsync", "fdatasync", "sync"):
            if hasattr(os, name):
                setattr(os, name, partial(cls._timed, getattr(os, name)))

    @classmethod
    def _timed(cls, function: Callable[..., Any], *arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            cls.seen.append((started, time.perf_counter()))

    @classmethod
    def seconds(cls) -> float:
        """How long at least one thread has waited."""
        total = last = 0.0
        for started, ended in sorted(cls.seen):
            total += max(ended - max(started, last), 0.0)
            last = max(last, ended)
        return total


def _settle() -> int:
    """Give unused memory back and forget the peak so far; returns the memory in use."""
    gc.collect()
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # only glibc has it
            trim(0)
    if _may_forget_peak():
        _CLEAR.write_text(_FORGET_PEAK)
    return peak_memory()


def _may_forget_peak() -> bool:
    return os.access(_CLEAR, os.W_OK) and "VmHWM:" in _STATUS.read_text()


def peak_memory() -> int:
    """The most memory that this process has had."""
    # Linux hands ru_maxrss down to a program from the process that started it; VmHWM is its own.
    if _may_forget_peak():
        [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def timed_import(*modules: str) -> Measurement:
    """What the import of modules costs."""
    wall, cpu = time.perf_counter(), time.process_time()
    for module in modules:
        importlib.import_module(module)
    return Measurement(time.process_time() - cpu, time.perf_counter() - wall)


def main(folder: str, rows: str, runs: str, module: str, function: str, *arguments: str) -> None:
    """Import, run, print."""
    _, side, *_ = arguments
    place = f"benchmarks.{module}"
    imported = {COLD: {IMPORT: timed_import(LIBRARIES[side], place)}, WARM: Steps()}
    scenario = getattr(importlib.import_module(place), function)
    corpus = Corpus(Path(folder), int(rows))
    counter = partial(count_requests, corpus.folder) if is_remote(arguments[-1]) else None
    Fsyncs.watch()
    found = {
        run: imported[run] | run_steps(scenario(corpus, *arguments), counter)
        for run in runs.split(",")
    }
    print(
        json.dumps({run: {n: asdict(s) for n, s in steps.items()} for run, steps in found.items()})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
