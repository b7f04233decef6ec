"""History as a picture made of text: one line a snapshot, one column a line of descent."""

from __future__ import annotations

from collections.abc import Sequence

from icefloe.api.values import to_datetime
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.ids import SnapshotId

_COLOURS = (36, 33, 35, 32, 34, 31)


class AncestryGraph:
    """`print` it for a terminal; `plain=True` leaves colours out."""

    def __init__(
        self, snapshots: Sequence[tuple[SnapshotInfo, list[str]]], *, plain: bool = False
    ) -> None:
        self._snapshots = snapshots
        self._plain = plain

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> list[str]:
        lines = []
        lanes: list[SnapshotId | None] = []  # which snapshot each column waits for
        for info, names in self._snapshots:
            waiting = [column for column, wanted in enumerate(lanes) if wanted == info.id]
            if not waiting:
                lanes.append(info.id)
                waiting = [len(lanes) - 1]
            column = waiting[0]
            marks = ["●" if at == column else "│" for at in range(len(lanes))]
            for merged in waiting[1:]:
                marks[merged] = "╯"
            lanes[column] = info.parent_id
            lanes = [wanted for at, wanted in enumerate(lanes) if at not in waiting[1:]]
            drawn = " ".join(self._colour(at, mark) for at, mark in enumerate(marks))
            refs = f" ({', '.join(names)})" if names else ""
            when = to_datetime(info.flushed_at).strftime("%Y-%m-%d %H:%M:%S")
            lines.append(f"{drawn} {info.id.text}{refs} {when} {info.message}".rstrip())
            while lanes and lanes[-1] is None:
                lanes.pop()
        return lines

    def _colour(self, column: int, mark: str) -> str:
        if self._plain:
            return mark
        return f"\033[{_COLOURS[column % len(_COLOURS)]}m{mark}\033[0m"
