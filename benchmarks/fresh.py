"""Measuring whole programs, each in a fresh process: what a user waits for, imports included.

`fresh_program` is the program. Its CPU and wall time are taken from outside, so that starting and
ending the interpreter count; memory is all that was resident.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.arrays import num_large
from benchmarks.cases import COLD
from benchmarks.data import Corpus
from benchmarks.measure import LONGEST_S, Measurement, Runs
from benchmarks.places import LIBRARIES

PROGRAM = Path(__file__).with_name("fresh_program.py")
STEP = "program"
_COMPILED = "compiled"


def measure_program(folder: Path, rows: int, task: str, dataset: str, side: str) -> Runs:
    """Run a task once to have everything compiled and cached, then once more."""
    corpus = Corpus(folder, rows)
    expected = num_large(rows) if task == "read" else corpus.grid[0]
    arguments = [LIBRARIES[side], task, str(corpus / dataset), str(expected)]
    _run(folder, arguments)
    return {COLD: {STEP: _run(folder, arguments)}}


def _run(folder: Path, arguments: list[str]) -> Measurement:
    environment = os.environ | {
        "ICECHUNK_LOG": "error",
        # Installed packages are compiled; one that is worked on may not be.
        "PYTHONPYCACHEPREFIX": str(folder / _COMPILED),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{PROGRAM.name} {' '.join(arguments)} failed:\n{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measurement(cpu, wall, 0, int(done.stdout))
