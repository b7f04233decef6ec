"""The history as a graph, drawn as text, as SVG or as HTML.

Each snapshot is one row. Each line of commits is one lane; see `graph_lanes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from html import escape

from icefloe.api.graph_lanes import LaneRow, children_first, lane_rows
from icefloe.api.values import to_datetime
from icefloe.repo.queries import GraphLines

_COLOURS = (36, 33, 35, 32, 34, 31)
_SVG_COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#66a61e", "#1f78b4", "#e7298a")
_STEP = 24
"""Pixels between two rows, and between two lanes."""


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
        """The graph and one line of text per snapshot, as an SVG document."""
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

    # -- parts

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
    return to_datetime(row.info.flushed_at).strftime("%Y-%m-%d %H:%M:%S")


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
"""
