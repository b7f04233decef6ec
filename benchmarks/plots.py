"""The pictures of the page. Only this module needs matplotlib."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from benchmarks.cases import GROUPS
from benchmarks.growth_table import Curve, curves
from benchmarks.page import BARS, CURVES, PAGE
from benchmarks.results import Results

_STYLE = {
    "svg.hashsalt": "icefloe",  # the same results make the same file
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_WALL, _CPU, _OTHER = "#2a6f97", "#e07a1f", "#888888"


def draw(results: Results, folder: Path = PAGE.parent) -> None:
    """Write both pictures."""
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context(_STYLE):
        _save(_bars(figures, results), folder / BARS)
        if results.growth:
            _save(_curves(figures, curves(results.growth)), folder / CURVES)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    text = "\n".join(line.rstrip() for line in path.read_text().splitlines())
    path.write_text(text + "\n")


def _bars(figures: Any, results: Results) -> Any:
    """A line for each row: the ratios of wall and CPU time, on a logarithmic axis."""
    rows = [
        row
        for group in reversed(GROUPS)
        for row in reversed(list(results.rows.values()))
        if row.group == group and not row.failed
    ]
    figure = figures.Figure(figsize=(9, 1 + 0.17 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for what, colour, marker in (("wall", _WALL, "o"), ("CPU", _CPU, "d")):
        ratios = [(at, row.ratio(row.judged, what)) for at, row in enumerate(rows)]
        known = [(at, ratio) for at, ratio in ratios if ratio is not None]
        if what == "wall":
            axes.barh(
                [at for at, _ in known],
                [ratio - 1 for _, ratio in known],
                left=1,
                height=0.5,
                color=["#bcd6e4" if ratio >= 1 else "#f2b8b0" for _, ratio in known],
            )
        axes.plot(
            [ratio for _, ratio in known],
            [at for at, _ in known],
            marker,
            color=colour,
            markersize=4,
            label=what,
        )
    axes.set_yticks(range(len(rows)), [row.key for row in rows])
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20, 50]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", title="official / icefloe; right of 1 icefloe is ahead")
    return figure


def _curves(figures: Any, found: list[Curve]) -> Any:
    """A panel for each kind of growth and operation: CPU time of both sides."""
    kinds = list(dict.fromkeys(curve.kind for curve in found))
    operations = list(dict.fromkeys(curve.operation for curve in found))
    size = (2.4 * len(operations), 1.9 * len(kinds))
    figure = figures.Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(kinds), len(operations), squeeze=False, sharex="row")
    for line, kind in zip(panels, kinds, strict=True):
        for axes, operation in zip(line, operations, strict=True):
            for curve in found:
                if (curve.kind, curve.operation) == (kind, operation):
                    for side, colour in (("official", _OTHER), ("icefloe", _WALL)):
                        seconds = curve.seconds[side]
                        axes.loglog(curve.sizes, seconds, "o-", color=colour, label=side)
            axes.set_title(operation)
            axes.set_xlabel(kind)
            axes.grid(color="#dddddd", linewidth=0.5)
    panels[0][0].set_ylabel("CPU seconds")
    panels[0][0].legend()
    return figure
