"""The history as a graph, drawn as text, as SVG or as HTML.

Each snapshot is one row. Each line of commits is one lane. A snapshot has one parent, so lanes part
only upwards: several children meet in the row of their parent. A lane keeps its place from its
first row to its last, and is then used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from html import escape
from typing import NamedTuple

from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.ids import SnapshotId
from icefloe.repo.refs import GraphLines
from icefloe.storage.driver import instant

_COLOURS = (36, 33, 35, 32, 34, 31)
_SVG_COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#66a61e", "#1f78b4", "#e7298a")
_STEP = 24
"""Pixels between two rows, and between two lanes."""


class LaneRow(NamedTuple):
    """One snapshot of the picture."""

    info: SnapshotInfo
    lane: int
    passing: tuple[int, ...]
    """Lanes that pass this row."""
    joining: tuple[int, ...]
    """Lanes of further children, which end in this row."""
    has_child: bool
    """Whether the lane continues upwards, to a child."""
    has_parent: bool
    """Whether the lane continues downwards, to a parent that is in the picture."""

    @property
    def width(self) -> int:
        """The number of lanes that are needed to draw this row."""
        return max(self.lane, *self.passing, *self.joining, 0) + 1


def children_first(snapshots: Iterable[SnapshotInfo]) -> list[SnapshotInfo]:
    """Reverse topological order, newest first, independent of clock skew."""
    found = {info.id: info for info in snapshots}
    waiting = dict.fromkeys(found, 0)  # children that are not placed yet
    for info in found.values():
        if info.parent_id in waiting:
            waiting[info.parent_id] += 1
    ready = [(-info.flushed_at, info.id) for info in found.values() if not waiting[info.id]]
    heapify(ready)
    placed = []
    while ready:
        info = found[heappop(ready)[1]]
        placed.append(info)
        parent = info.parent_id
        if parent in waiting:
            waiting[parent] -= 1
            if not waiting[parent]:
                heappush(ready, (-found[parent].flushed_at, parent))
    return placed


def lane_rows(snapshots: Sequence[SnapshotInfo]) -> list[LaneRow]:
    """The rows of a picture, for snapshots in the order of `children_first`."""
    known = {info.id for info in snapshots}
    lanes: dict[int, SnapshotId] = {}  # the parent that each lane leads to
    free: list[int] = []
    rows = []
    for info in snapshots:
        ending = sorted(lane for lane, wanted in lanes.items() if wanted == info.id)
        passing = tuple(sorted(lane for lane, wanted in lanes.items() if wanted != info.id))
        lane = ending[0] if ending else heappop(free) if free else len(lanes)
        for each in ending:
            del lanes[each]
            heappush(free, each)
        has_parent = info.parent_id is not None and info.parent_id in known
        if has_parent:
            assert info.parent_id is not None
            lanes[lane] = info.parent_id
            if lane in free:
                free.remove(lane)
                heapify(free)
        elif not ending:
            heappush(free, lane)
        rows.append(LaneRow(info, lane, passing, tuple(ending[1:]), bool(ending), has_parent))
    return rows


class AncestryGraph:
    """The graph. `print` draws it in a terminal; `plain=True` omits colours.

    Notebooks show it as HTML. `to_svg` and `to_html` return what can be saved in a file.
    """

    def __init__(self, lines: GraphLines, *, plain: bool = False) -> None:
        self._lines = lines
        self._plain = plain

    @cached_property
    def _rows(self) -> list[LaneRow]:
        return lane_rows(children_first(self._lines.infos()))

    def __str__(self) -> str:
        return "\n".join(f"{self._marks(row)} {self._label(row)}" for row in self._rows)

    __repr__ = __str__

    def to_svg(self) -> str:
        """The graph and one line of text per snapshot, as an SVG document.

        >>> svg = repo.ancestry_graph().to_svg()
        """
        labels = [self._label(row) for row in self._rows]
        left = self._width + _STEP // 2
        texts = "".join(
            f'<text x="{left}" y="{_middle(at) + 4}">{escape(label)}</text>'
            for at, label in enumerate(labels)
        )
        width = left + 9 * max(map(len, labels), default=0)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{self._height}" '
            f'font-family="monospace" font-size="13" fill="currentColor">'
            f"{''.join(self._shapes())}{texts}</svg>"
        )

    def to_html(self) -> str:
        """The graph and a table of snapshots with refs, time and message, as HTML.

        It needs no script and no other file. All text of the repository is escaped.

        >>> html = repo.ancestry_graph().to_html()
        """
        lines = "".join(map(self._table_row, self._rows))
        return (
            f'<div class="icefloe-graph"><style>{_STYLE}</style>'
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self._width}" '
            f'height="{self._height}">{"".join(self._shapes())}</svg>'
            f"<table>{lines}</table></div>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_svg_(self) -> str:
        return self.to_svg()

    @property
    def _width(self) -> int:
        return max((row.width for row in self._rows), default=0) * _STEP

    @property
    def _height(self) -> int:
        return len(self._rows) * _STEP

    def _label(self, row: LaneRow) -> str:
        names = self._refs(row)
        refs = f" ({', '.join(names)})" if names else ""
        return f"{row.info.id.text}{refs} {_time(row)} {row.info.message}".rstrip()

    def _refs(self, row: LaneRow) -> list[str]:
        return self._lines.names.get(row.info.id, [])

    def _marks(self, row: LaneRow) -> str:
        marks = [" "] * row.width
        for lane in row.passing:
            marks[lane] = "│"
        for lane in row.joining:
            marks[lane] = "╯"
        marks[row.lane] = "●"
        return " ".join(self._coloured(at, mark) for at, mark in enumerate(marks))

    def _coloured(self, lane: int, mark: str) -> str:
        if self._plain or mark == " ":
            return mark
        return f"\033[{_COLOURS[lane % len(_COLOURS)]}m{mark}\033[0m"

    def _shapes(self) -> Iterator[str]:
        """A line from every snapshot to its parent, then the dots."""
        place = {row.info.id: (row.lane, at) for at, row in enumerate(self._rows)}
        for at, row in enumerate(self._rows):
            if row.has_parent:
                assert row.info.parent_id is not None
                lane, below = place[row.info.parent_id]
                x, end = _centre(row.lane), _centre(lane)
                # Down its own lane, and over to the parent in the last step.
                path = f"M{x} {_middle(at)}V{_middle(below - 1)}"
                path += f"L{end} {_middle(below)}" if lane != row.lane else f"V{_middle(below)}"
                yield (
                    f'<path class="line" d="{path}" fill="none" stroke="{_svg_colour(row.lane)}" '
                    'stroke-width="2"/>'
                )
        for at, row in enumerate(self._rows):
            yield (
                f'<circle cx="{_centre(row.lane)}" cy="{_middle(at)}" r="5" '
                f'fill="{_svg_colour(row.lane)}"/>'
            )

    def _table_row(self, row: LaneRow) -> str:
        names = "".join(f"<b>{escape(name)}</b> " for name in self._refs(row))
        return (
            f"<tr><td><code>{row.info.id.text}</code></td><td>{_time(row)}</td>"
            f"<td>{names}{escape(row.info.message)}</td></tr>"
        )


def _time(row: LaneRow) -> str:
    return instant(row.info.flushed_at).strftime("%Y-%m-%d %H:%M:%S")


def _centre(lane: int) -> int:
    return lane * _STEP + _STEP // 2


def _middle(row: int) -> int:
    return row * _STEP + _STEP // 2


def _svg_colour(lane: int) -> str:
    return _SVG_COLOURS[lane % len(_SVG_COLOURS)]


_STYLE = f"""
.icefloe-graph {{ display: flex; gap: 0.5em; overflow: auto; font-size: 13px; }}
.icefloe-graph svg {{ flex: none; }}
.icefloe-graph table {{ border-collapse: collapse; margin: 0; }}
.icefloe-graph tr {{ height: {_STEP}px; }}
.icefloe-graph td {{ padding: 0 0.8em 0 0; white-space: nowrap; text-align: left; border: 0; }}
.icefloe-graph b {{ border: 1px solid; border-radius: 0.7em; padding: 0 0.5em; }}
@media (max-width: 40em) {{
  .icefloe-graph td:nth-child(2) {{ display: none; }}
  .icefloe-graph code {{ display: block; width: 8ch; overflow: hidden; }}
}}
"""
