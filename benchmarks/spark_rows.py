"""Rows of the Spark table: one thing done by icefloe on Spark, and by something else."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

psutil: Any = importlib.import_module("psutil")  # it ships no types


@dataclass(frozen=True, slots=True)
class Times:
    """The least of some runs. CPU is that of this process, Java and Spark's Python workers."""

    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """What was done, how much of it, and how long both sides took."""

    name: str
    ours: Times
    other_name: str
    other: Times
    amount: float
    unit: str
    target: float | None = None
    """How many times faster icefloe is to be."""

    @property
    def ratio(self) -> float:
        return self.other.wall_seconds / self.ours.wall_seconds

    @property
    def is_missed(self) -> bool:
        return self.target is not None and self.ratio < self.target

    def as_json(self) -> dict[str, Any]:
        """Everything about the row, as plain values."""
        ratios = {
            "wall_ratio": self.ratio,
            "cpu_ratio": self.other.cpu_seconds / self.ours.cpu_seconds,
        }
        return asdict(self) | ratios

    def cells(self) -> list[str]:
        """The row as text, in the order of `_HEADINGS`."""
        verdict = "" if self.target is None else f"{self.target:g}x "
        if self.target is not None:
            verdict += "MISSED" if self.is_missed else "ok"
        return [
            self.name,
            *_figures(self.ours, self.amount, self.unit),
            self.other_name,
            *_figures(self.other, self.amount, self.unit),
            f"{self.ratio:.2f}x",
            f"{self.other.cpu_seconds / self.ours.cpu_seconds:.2f}x",
            verdict,
        ]


_SIDE = ["wall s", "CPU s", "rate"]
_HEADINGS = ["case", *_SIDE, "against", *_SIDE, "wall", "CPU", "target"]


def _figures(times: Times, amount: float, unit: str) -> list[str]:
    rate = f"{amount / times.wall_seconds:,.1f} {unit}/s"
    return [f"{times.wall_seconds:.2f}", f"{times.cpu_seconds:.2f}", rate]


def render(rows: Sequence[Row]) -> list[str]:
    """The lines of the table."""
    cells = [_HEADINGS, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_text = {0, 4, len(widths) - 1}
    return [
        "  ".join(
            cell.ljust(width) if at in is_text else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def measure(*sides: Callable[[int], Any], rounds: int, warm_up: bool = False) -> list[Times]:
    """The times of each side, in turns, so that both share what else the machine does."""
    best = [Times(float("inf"), float("inf"))] * len(sides)
    for number in range(rounds + warm_up):
        for at, run in enumerate(sides):
            before, wall = cpu_seconds(), time.perf_counter()
            run(number)
            wall = time.perf_counter() - wall
            # Workers that ended meanwhile are not known any more, and had nothing to do.
            cpu = sum(spent - before.get(key, 0.0) for key, spent in cpu_seconds().items())
            if number or not warm_up:
                best[at] = Times(
                    min(best[at].wall_seconds, wall), min(best[at].cpu_seconds, max(cpu, 0.01))
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
