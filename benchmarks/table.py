"""From measured steps to the rows of the table, and their printed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.cases import (
    FRESH_GROUP,
    LARGEST_SIZE_RATIO,
    REPOSITORIES_GROUP,
    Case,
    ScenarioName,
    Side,
)
from benchmarks.measure import Steps
from benchmarks.store_cases import NO_SLOWER

_MEGA = 1_000_000


@dataclass(frozen=True, slots=True)
class Figures:
    """One side of a row; times are for doing the thing once."""

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    file_bytes: int | None
    requests: dict[str, int] | None

    @classmethod
    def of(cls, side: Side, measured: Mapping[ScenarioName, Steps]) -> Figures:
        steps = [measured[side.scenario][name] for name in side.steps]
        sizes = [step.size_bytes for step in steps if step.size_bytes is not None]
        return cls(
            sum(step.cpu_seconds / step.times for step in steps),
            sum(step.wall_seconds / step.times for step in steps),
            max(step.memory_peak for step in steps) - steps[0].memory_before,
            sizes[0] if sizes else None,
            _sum_requests([step.requests for step in steps if step.requests is not None]),
        )

    @property
    def num_requests(self) -> int | None:
        return None if self.requests is None else sum(self.requests.values())


@dataclass(frozen=True, slots=True)
class Row:
    """A case with its figures."""

    case: Case
    official: Figures | None
    ours: Figures
    official_file_bytes: int | None

    @classmethod
    def of(cls, case: Case, measured: Mapping[ScenarioName, Steps]) -> Row:
        official = None if case.official is None else Figures.of(case.official, measured)
        size = None
        if case.official_file is not None:
            size = Figures.of(case.official_file, measured).file_bytes
        return cls(case, official, Figures.of(case.ours, measured), size)

    @property
    def ratio(self) -> float | None:
        """How many times more CPU official needs."""
        return None if self.official is None else self.official.cpu_seconds / self.ours.cpu_seconds

    @property
    def wall_ratio(self) -> float | None:
        """How many times longer official takes."""
        if self.official is None:
            return None
        return self.official.wall_seconds / self.ours.wall_seconds

    @property
    def requests_ratio(self) -> float | None:
        """How many times more requests official makes, where they are counted."""
        if self.official is None or not self.official.num_requests or not self.ours.num_requests:
            return None
        return self.official.num_requests / self.ours.num_requests

    @property
    def size_ratio(self) -> float | None:
        """Our file against official's, in cases that write one."""
        if self.official_file_bytes is None or self.ours.file_bytes is None:
            return None
        return self.ours.file_bytes / self.official_file_bytes

    @property
    def verdicts(self) -> dict[str, bool]:
        """The targets of this row, and whether they are met."""
        found: dict[str, bool] = {}
        if self.case.ratio_target is not None and self.ratio is not None:
            found[f"{self.case.ratio_target:.2g}x"] = self.ratio >= self.case.ratio_target
        if self.case.wall_target is not None and self.wall_ratio is not None:
            found[f"wall {self.case.wall_target:.2g}x"] = self.wall_ratio >= self.case.wall_target
        if self.case.requests_target is not None and self.requests_ratio is not None:
            met = self.requests_ratio >= self.case.requests_target
            found[f"requests {self.case.requests_target:.2g}x"] = met
        if self.case.has_memory_target and self.official is not None:
            found["memory"] = self.ours.peak_bytes <= self.official.peak_bytes
        if self.case.has_size_target and self.size_ratio is not None:
            largest = self.case.largest_size
            name = "size" if largest is None else f"size {largest:.2g}"
            found[name] = self.size_ratio <= (largest or LARGEST_SIZE_RATIO)
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything about the row, as plain values."""
        return {
            "group": self.case.group,
            "case": self.case.name,
            "note": self.case.note,
            "official": None if self.official is None else asdict(self.official),
            "icefloe": asdict(self.ours),
            "official_file_bytes": self.official_file_bytes,
            "cpu_ratio": self.ratio,
            "wall_ratio": self.wall_ratio,
            "requests_ratio": self.requests_ratio,
            "size_ratio": self.size_ratio,
            "targets_met": self.verdicts,
        }

    def cells(self) -> list[str]:
        """The row as text, in the order of `HEADINGS`."""
        official, ours = self.official, self.ours
        has_file = self.size_ratio is not None
        return [
            self.case.name,
            "-" if official is None else _duration(official.cpu_seconds),
            _duration(ours.cpu_seconds),
            _times(self.ratio, "x"),
            "-" if official is None else _duration(official.wall_seconds),
            _duration(ours.wall_seconds),
            _times(self.wall_ratio, "x"),
            _megabytes(None if official is None else official.peak_bytes, 1),
            _megabytes(ours.peak_bytes, 1),
            _megabytes(self.official_file_bytes if has_file else None, 2),
            _megabytes(ours.file_bytes if has_file else None, 2),
            _times(self.size_ratio, ""),
            _count(None if official is None else official.num_requests),
            _count(ours.num_requests),
            "  ".join(f"{name} {'ok' if met else 'MISSED'}" for name, met in self.verdicts.items()),
        ]


HEADINGS = [
    ("", "case"),
    ("CPU", "official"),
    ("", "icefloe"),
    ("", "ratio"),
    ("wall", "official"),
    ("", "icefloe"),
    ("", "ratio"),
    ("peak MB", "official"),
    ("", "icefloe"),
    ("file MB", "official"),
    ("", "icefloe"),
    ("", "ratio"),
    ("requests", "official"),
    ("", "icefloe"),
    ("", "targets"),
]


def render(rows: list[Row], about: Mapping[str, Any]) -> str:
    """The tables, what they were measured with, and what to know when reading them."""
    groups = dict.fromkeys(row.case.group for row in rows)
    missed = [
        f"{row.case.name} ({name})" for row in rows for name, met in row.verdicts.items() if not met
    ]
    return "\n".join(
        [
            f"icechunk {about['icechunk']} and icefloe {about['icefloe']}, {about['rows']:,} refs",
            "",
            *(
                line
                for group in groups
                for line in _table(group, [row for row in rows if row.case.group == group])
            ),
            "CPU is user and system time of all threads, peak is growth over what was in use",
            f"before ({about['peak_memory']}). Least of {about['rounds']} rounds in new processes,",
            f"of at most 2 for {REPOSITORIES_GROUP}.",
            f"In {FRESH_GROUP} a whole program is measured, and peak is all that is resident.",
            "Requests are those that the S3 server got; it is a process of its own, not measured.",
            "Targets, at 1,000,000 refs: the CPU ratio given, or that of wall time or requests",
            f"({NO_SLOWER:g} is called no slower); memory no higher than official's;",
            f"manifests at most {LARGEST_SIZE_RATIO:g} times as large.",
            "",
            *_notes(rows),
            "",
            "missed: " + "; ".join(missed) if missed else "all targets met",
        ]
    )


def _table(group: str, rows: list[Row]) -> list[str]:
    """The rows of one group, without the columns that have nothing to say about it."""
    columns = [
        (top, below, *cells)
        for (top, below), cells in zip(
            HEADINGS, zip(*(row.cells() for row in rows), strict=True), strict=True
        )
        if set(cells) != {"-"}
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = [_line(list(cells), widths) for cells in zip(*columns, strict=True)]
    return [f"-- {group}", *lines, ""]


def _notes(rows: list[Row]) -> list[str]:
    """What to know about single rows; said once where several have it in common."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.case.note:
            names.setdefault(row.case.note, []).append(row.case.name)
    return [f"- {' / '.join(having)}: {note}" for note, having in names.items()]


def _line(cells: list[str], widths: list[int]) -> str:
    first, *rest, last = zip(cells, widths, strict=True)
    middle = "  ".join(cell.rjust(width) for cell, width in rest)
    return f"{first[0].ljust(first[1])}  {middle}  {last[0]}".rstrip()


def _duration(seconds: float) -> str:
    if seconds >= 1e-3:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e6:.1f} us"


def _megabytes(size: int | None, digits: int) -> str:
    return "-" if size is None else f"{size / _MEGA:.{digits}f}"


def _sum_requests(counted: list[dict[str, int]]) -> dict[str, int] | None:
    """Requests of several steps, by method; None where none were counted."""
    methods = dict.fromkeys(method for requests in counted for method in requests)
    if not counted:
        return None
    return {method: sum(requests.get(method, 0) for requests in counted) for method in methods}


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _times(ratio: float | None, unit: str) -> str:
    return "-" if ratio is None else f"{ratio:.2f}{unit}"
