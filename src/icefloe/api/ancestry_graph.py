"""The history as a graph, drawn as text or, in notebooks, as SVG.

Each snapshot is one row. Each branch of the history is one column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from icefloe.api.values import to_datetime
from icefloe.format.repo_info.snapshots import SnapshotInfo
from icefloe.ids import SnapshotId

_COLOURS = (36, 33, 35, 32, 34, 31)
_SVG_COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#66a61e", "#1f78b4", "#e7298a")
_STEP = 24
"""Pixels between two rows, and between two columns."""


class _Row(NamedTuple):
    info: SnapshotInfo
    names: list[str]
    column: int
    marks: list[str]

    @property
    def label(self) -> str:
        refs = f" ({', '.join(self.names)})" if self.names else ""
        when = to_datetime(self.info.flushed_at).strftime("%Y-%m-%d %H:%M:%S")
        return f"{self.info.id.text}{refs} {when} {self.info.message}".rstrip()


class AncestryGraph:
    """The graph. `print` draws it in a terminal; `plain=True` omits colours."""

    def __init__(
        self, snapshots: Sequence[tuple[SnapshotInfo, list[str]]], *, plain: bool = False
    ) -> None:
        self._snapshots = snapshots
        self._plain = plain

    def __str__(self) -> str:
        return "\n".join(
            f"{' '.join(self._colour(at, mark) for at, mark in enumerate(row.marks))} {row.label}"
            for row in self._rows()
        )

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        rows = list(self._rows())
        place = {row.info.id: (row.column, at) for at, row in enumerate(rows)}
        right = (max((len(row.marks) for row in rows), default=0) + 1) * _STEP
        lines, dots = [], []
        for at, row in enumerate(rows):
            x, y = _pixels(row.column, at)
            colour = _SVG_COLOURS[row.column % len(_SVG_COLOURS)]
            parent = row.info.parent_id
            if parent is not None and parent in place:
                to_x, to_y = _pixels(*place[parent])
                lines.append(
                    f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{colour}" '
                    'stroke-width="2"/>'
                )
            dots.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>')
            dots.append(f'<text x="{right}" y="{y + 4}">{escape(row.label)}</text>')
        width = right + 9 * max((len(row.label) for row in rows), default=0)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
            f'height="{(len(rows) + 1) * _STEP}" font-family="monospace" font-size="13" '
            f'fill="currentColor">{"".join(lines + dots)}</svg>'
        )

    def _rows(self) -> Iterator[_Row]:
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
            while lanes and lanes[-1] is None:
                lanes.pop()
            yield _Row(info, names, column, marks)

    def _colour(self, column: int, mark: str) -> str:
        if self._plain:
            return mark
        return f"\033[{_COLOURS[column % len(_COLOURS)]}m{mark}\033[0m"


def _pixels(column: int, row: int) -> tuple[int, int]:
    return (column + 1) * _STEP // 2 + column * _STEP // 2, (row + 1) * _STEP
