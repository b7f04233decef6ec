"""Measuring one scenario in a fresh process: CPU seconds, wall time, peak memory.

Started as `python -m benchmarks.measure FOLDER ROWS MODULE FUNCTION ARGUMENT...`, it prints the
steps as JSON. `measure` is the other end.
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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.data import ROWS_PER_STEP, Corpus
from benchmarks.places import S3, count_requests
from benchmarks.steps import PREPARED, Scenario

ROOT = Path(__file__).parents[1]

WARM_UP_ROWS = 2 * ROWS_PER_STEP
"""Scenarios run once at this size first, so that imports and thread pools are not counted."""

# A virtual machine may get its memory from the host only when a page is first touched, which
# costs far more than the step that happens to do it. Pages touched and freed just before are the
# first to be used again.
_TOUCHED_BYTES_PER_ROW = 512

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One step. CPU is user and system time of all threads; memory is resident bytes.

    Requests are counted by the S3 server, by method.
    """

    cpu_seconds: float
    wall_seconds: float
    memory_before: int
    memory_peak: int
    times: int
    size_bytes: int | None
    requests: dict[str, int] | None = None


Steps = dict[str, Measurement]


def run_in_process(module: str, *arguments: str) -> str:
    """Run `python -m module`; returns what it printed.

    Raises:
        RuntimeError: it ended with an error; says what it complained about.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"ICECHUNK_LOG": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"python -m {module} {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def measure(folder: Path, rows: int, scenario: Iterable[str]) -> Steps:
    """The steps of one scenario, in a fresh process."""
    printed = run_in_process("benchmarks.measure", str(folder), str(rows), *scenario)
    return {name: Measurement(**values) for name, values in json.loads(printed).items()}


def best(rounds: list[Steps]) -> Steps:
    """The least of every figure: what other users of the machine add is never negative."""
    return {
        name: Measurement(
            min(steps[name].cpu_seconds for steps in rounds),
            min(steps[name].wall_seconds for steps in rounds),
            *min(
                ((steps[name].memory_before, steps[name].memory_peak) for steps in rounds),
                key=lambda memory: memory[1] - memory[0],
            ),
            rounds[0][name].times,
            # Official trains a dictionary on a sample, so that its files differ from run to run.
            min((steps[name].size_bytes for steps in rounds), key=lambda size: size or 0),
            min(
                (steps[name].requests for steps in rounds),
                key=lambda requests: sum((requests or {}).values()),
            ),
        )
        for name in rounds[0]
    }


# --- inside the process -----------------------------------------------------------------------


def run_steps(
    scenario: Scenario, touched_bytes: int, count: Callable[[], dict[str, int]] | None = None
) -> Steps:
    """Run a scenario to its end, measuring every step; `count` tells the requests so far."""
    first = next(scenario)
    assert first == PREPARED, first
    np.empty(touched_bytes, np.uint8).fill(1)
    steps: Steps = {}
    while True:
        before, earlier = _settle(), count() if count else {}
        wall, cpu = time.perf_counter(), time.process_time()
        step = next(scenario, None)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if step is None:
            return steps
        peak, requests = peak_memory(), count() if count else None
        if requests is not None:
            requests = {
                method: number - earlier.get(method, 0) for method, number in requests.items()
            }
        steps[step.name] = Measurement(
            cpu, wall, before, peak, step.times, step.size_bytes, requests
        )


def memory_method() -> str:
    """How peak memory is found on this machine."""
    return "VmHWM" if _may_forget_peak() else "ru_maxrss, which keeps the peak of earlier steps"


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


def main(folder: str, rows: str, module: str, function: str, *arguments: str) -> None:
    """Warm up, measure, print."""
    scenario = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    for count in (WARM_UP_ROWS, int(rows)):
        corpus = Corpus(Path(folder), count)
        counter = partial(count_requests, corpus.folder) if S3 in arguments else None
        # Not for whole repositories: it takes longer than most of what is measured there.
        touched_bytes = 0 if module == "stores" else _TOUCHED_BYTES_PER_ROW * count
        steps = run_steps(scenario(corpus, *arguments), touched_bytes, counter)
    print(json.dumps({name: asdict(step) for name, step in steps.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
