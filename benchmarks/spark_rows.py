"""Rows about Spark: one thing done by icefloe on Spark, and by something else."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import results
from benchmarks.cases import COLD, SPARK, WARM

psutil: Any = importlib.import_module("psutil")  # it ships no types


@dataclass(frozen=True, slots=True)
class Times:
    """The least of some runs. CPU is that of this process, Java and Spark's Python workers."""

    wall_seconds: float
    cpu_seconds: float
    cold: results.Figures | None = None
    """What the first run took, where that only warms up."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was done, how much of it, and how long both sides took."""

    name: str
    ours: Times
    other_name: str
    other: Times
    amount: float
    unit: str
    target: float | None = 1.0
    """How many times faster icefloe is to be; any, if None."""
    cpu_target: float | None = None
    """How many times less CPU it is to need; any, if None: Spark has a Java and workers."""
    note: str = ""

    def as_result(self) -> results.Row:
        """The row as all others are."""
        sides = (self.other, self.ours)
        other, ours = (results.Figures(one.wall_seconds, one.cpu_seconds) for one in sides)
        runs = {WARM: (other, ours)}
        if self.other.cold is not None and self.ours.cold is not None:
            runs[COLD] = (self.other.cold, self.ours.cold)
        targets = {} if self.target is None else {"wall": self.target}
        if self.cpu_target is not None:
            targets["CPU"] = self.cpu_target
        return results.Row(
            self.name, SPARK, runs, targets, self.note, self.other_name, self.amount, self.unit
        )


def measure(
    *sides: Callable[[int], Any],
    rounds: int,
    warm_up: bool = False,
    prepare: Callable[[], Any] | None = None,
) -> list[Times]:
    """The times of each side, in turns and in both orders; `prepare` comes before each run."""
    infinite = Times(float("inf"), float("inf"))
    best = [infinite] * len(sides)
    for number in range(rounds + warm_up):
        turns = list(enumerate(sides))
        for at, run in turns if number % 2 == 0 else reversed(turns):
            if prepare is not None:
                prepare()
            before, wall = cpu_seconds(), time.perf_counter()
            run(number)
            wall = time.perf_counter() - wall
            # Workers that ended meanwhile are not known any more, and had nothing to do.
            cpu = sum(spent - before.get(key, 0.0) for key, spent in cpu_seconds().items())
            if number == 0 and warm_up:
                best[at] = replace(infinite, cold=results.Figures(wall, max(cpu, 0.01)))
            else:
                best[at] = Times(
                    min(best[at].wall_seconds, wall),
                    min(best[at].cpu_seconds, max(cpu, 0.01)),
                    best[at].cold,
                )
    return best


def cpu_seconds() -> dict[int, float]:
    """Of this process and each one it started that still runs, by its number."""
    found = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[process.pid] = times.user + times.system
    return found


def official() -> Any:
    """Official icechunk, with the log of errors only."""
    icechunk = importlib.import_module("icechunk")
    icechunk.set_logs_filter("error")
    return icechunk
