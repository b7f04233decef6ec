"""What was measured, as a file that the page is made from: rows by their names, and curves.

A run replaces the rows that it measured and leaves the others as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import COLD, WARM, Case, Side
from benchmarks.measure import IMPORT, Runs, Steps

RESULTS = Path(__file__).with_name("results.json")
OFFICIAL = "official"
FIGURES = {"wall": "wall_seconds", "CPU": "cpu_seconds", "requests": "requests"}
"""What is compared, and the field it is in."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One side of a row; times are for doing the thing once."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int | None = None
    requests: int | None = None
    fsync_seconds: float = 0.0
    lost: int | None = None

    @classmethod
    def of(cls, side: Side, measured: Steps) -> Figures:
        steps = [measured[name] for name in side.steps]
        imported = [measured[IMPORT]] if IMPORT in measured else []
        counted = [step.requests for step in steps if step.requests is not None]
        return cls(
            sum(step.wall_seconds / step.times for step in [*imported, *steps]),
            sum(step.cpu_seconds / step.times for step in [*imported, *steps]),
            max(step.memory_peak for step in steps) - steps[0].memory_before,
            sum(counted) if counted else None,
            sum(step.fsync_seconds / step.times for step in steps),
            steps[-1].lost,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One thing, done by icefloe and by something else."""

    name: str
    group: str
    runs: Mapping[str, tuple[Figures, Figures]] = field(default_factory=dict)
    """Of the cold and the warm run: the other side, and icefloe."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """How many times less of each of `FIGURES` icefloe is to need; one that is missing may be
    any."""
    note: str = ""
    against: str = OFFICIAL
    amount: float | None = None
    """How much was done, in `unit`, where a rate says more than seconds."""
    unit: str = ""
    failed: str = ""
    """What went wrong, if nothing could be measured."""

    @classmethod
    def of(cls, case: Case, measured: Mapping[tuple[str, ...], Runs]) -> Row:
        official, ours = (measured[scenario] for scenario in case.scenarios)
        runs = {
            run: (Figures.of(case.official, official[run]), Figures.of(case.ours, ours[run]))
            for run in ours
        }
        return cls(case.name, case.group, runs, targets_of(case), case.note)

    @classmethod
    def failure(cls, case: Case, reason: str) -> Row:
        return cls(case.name, case.group, {}, targets_of(case), case.note, failed=reason)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Row:
        runs = {
            run: (Figures(**sides[0]), Figures(**sides[1])) for run, sides in found["runs"].items()
        }
        return cls(**{**found, "runs": runs})

    def as_json(self) -> dict[str, Any]:
        """Everything but what is empty."""
        found = asdict(self)
        found["runs"] = {
            run: [{key: _rounded(one) for key, one in side.items() if one} for side in sides]
            for run, sides in found["runs"].items()
        }
        return {key: value for key, value in found.items() if value or key == "runs"}

    @property
    def key(self) -> str:
        """What tells the row from all others."""
        return self.name if self.against == OFFICIAL else f"{self.name}; against {self.against}"

    def ratio(self, run: str, what: str) -> float | None:
        """How many times more the other side needs; None where it is not known."""
        if run not in self.runs:
            return None
        other, ours = (getattr(figures, FIGURES[what]) for figures in self.runs[run])
        return other / ours if other and ours else None

    @property
    def judged(self) -> str:
        """The run that targets are about."""
        return WARM if WARM in self.runs else COLD

    @property
    def missed(self) -> list[str]:
        """Targets that are not met."""
        found = {what: self.ratio(self.judged, what) for what in self.targets}
        return [
            f"{what} {self.targets[what]:g}x"
            for what, ratio in found.items()
            if ratio is not None and ratio < self.targets[what]
        ]

    @property
    def least_ratio(self) -> float:
        """The worst of those that have a target."""
        return min((ratio for _, ratio in self._ratios), default=1.0)

    @property
    def _ratios(self) -> list[tuple[str, float]]:
        known = [(what, self.ratio(run, what)) for run in self.runs for what in self.targets]
        return [(what, ratio) for what, ratio in known if ratio is not None]

    @property
    def is_behind(self) -> bool:
        """Whether one of them is below 1; a target below 1 says that the other side is a limit."""
        return any(ratio < min(1.0, self.targets[what]) for what, ratio in self._ratios)


def targets_of(case: Case) -> dict[str, float]:
    """The targets of a case, by the name of the figure."""
    found = {
        "wall": case.wall_target,
        "CPU": case.cpu_target,
        "requests": case.requests_target,
    }
    return {what: target for what, target in found.items() if target is not None}


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


@dataclass(slots=True)
class Results:
    """The file."""

    about: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    growth: dict[str, Any] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)

    @classmethod
    def load(cls, path: Path) -> Results:
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        rows = [Row.from_json(row) for row in found["rows"]]
        return cls(found["about"], {row.key: row for row in rows}, found["growth"])

    def save(self, path: Path) -> None:
        rows = [row.as_json() for row in self.rows.values()]
        found = {"about": self.about, "rows": rows, "growth": self.growth}
        path.write_text(json.dumps(found, indent=1) + "\n")

    def update(self, rows: Iterable[Row]) -> None:
        """Put rows in the place of those with their names."""
        found = {row.key: row for row in rows}
        self.rows |= found
        self.updated |= found.keys()

    def forget_others(self) -> None:
        """Keep only what was updated: rows that have other names now are no more."""
        self.rows = {key: row for key, row in self.rows.items() if key in self.updated}
