"""A map of the chunks of an array along two dimensions, drawn as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe import paths
from icefloe.api.enums import ChunkType
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_index import box_rows
from icefloe.format.nodes import ArrayData
from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.maintenance.blame import blame_chunks
from icefloe.repo.session import Workspace, all_chunks
from icefloe.storage.driver import instant

Dim = int | str

MISSING = 0
"""The cell of a chunk that was never written."""
_KINDS = (ChunkType.native, ChunkType.inline, ChunkType.virtual)
_KIND_COLOURS = ("#2b7fb8", "#e0a300", "#8b5cd6")
_MISSING_COLOUR = "#e6ecf1"
_MOST_CELLS = 160
"""Squares of a picture along one dimension; beyond that, one square stands for several chunks."""
_PIXELS = 640
_LARGEST = 28
_MESSAGE = 60


class LegendEntry(NamedTuple):
    """One line of the legend. Cells with the number `cell` have its colour."""

    cell: int
    label: str
    colour: str
    num_chunks: int
    snapshot_id: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChunkMap:
    """The chunks of an array along two of its dimensions. Notebooks draw it.

    It has the chunks that were written, and takes memory for those only.
    """

    path: str
    dimensions: tuple[str, ...]
    """A name for each dimension of the map: two, one, or none."""
    grid: tuple[int, int]
    """The number of chunks along both dimensions, written or not; 1 for a dimension less."""
    index: NDArray[np.int64]
    """Row and column of every chunk that was written."""
    entry: NDArray[np.int64]
    """The number of its entry in `legend`."""
    legend: tuple[LegendEntry, ...]
    place: str
    """The position along the other dimensions, as text."""

    @property
    def cells(self) -> NDArray[np.unsignedinteger[Any]]:
        """The map as an array of the size of `grid`.

        A cell is 0 where no chunk was written, else the number of an entry of `legend`.
        """
        highest = max((entry.cell for entry in self.legend), default=MISSING)
        cells = np.zeros(self.grid, np.min_scalar_type(highest))
        cells[self.index[:, 0], self.index[:, 1]] = self.entry
        return cells

    @property
    def counts(self) -> dict[str, int]:
        """How many chunks of the map are missing, and of each entry of the legend."""
        found = {entry.label: entry.num_chunks for entry in self.legend}
        return {**found, "missing": prod(self.grid) - len(self.index)}

    def coarser(self, most: int) -> tuple[NDArray[np.int64], tuple[int, int]]:
        """At most `most` cells along each dimension, and how many chunks a cell stands for.

        A cell has the most frequent kind of chunk in its block. It is missing only if the whole
        block is.

        >>> cells, size = session.chunk_map("/t2m", axes=["time", "y"]).coarser(2)
        >>> size
        (2, 1)
        """
        down, across = (max(1, -(-size // most)) for size in self.grid)
        rows, columns = -(-self.grid[0] // down), -(-self.grid[1] // across)
        block = self.index[:, 0] // down * columns + self.index[:, 1] // across
        pairs, count = np.unique(np.stack([block, self.entry], axis=1), axis=0, return_counts=True)
        cells = np.full(rows * columns, MISSING, np.int64)
        order = np.argsort(-count, kind="stable")
        block, first = np.unique(pairs[order, 0], return_index=True)
        cells[block] = pairs[order, 1][first]
        return cells.reshape(rows, columns), (down, across)

    def to_svg(self) -> str:
        """The map as an SVG document.

        >>> svg = session.chunk_map("/t2m", by="commit").to_svg()
        """
        cells, factor = self.coarser(_MOST_CELLS)
        rows, columns = cells.shape
        wide, high = (max(2, min(_LARGEST, _PIXELS // max(size, 1))) for size in (columns, rows))
        labels = [len(entry.label) for entry in self.legend]
        width = max(columns * wide, 8 * max(labels, default=0) + 80, 320)
        caption = f"{self.path}{self.place}"
        each = "one chunk" if factor == (1, 1) else f"{factor[0]} × {factor[1]} chunks"
        axes = " × ".join(self.dimensions) or "a single chunk"
        height = rows * high + 58 + 18 * (len(self.legend) + 1)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="12" fill="currentColor">'
            f'<text x="0" y="14" font-weight="bold">{escape(caption)}</text>'
            f'<text x="0" y="32">{escape(axes)}; one square is {each}</text>'
            f'<g transform="translate(0 42)">{self._squares(cells, wide, high)}</g>'
            f'<g transform="translate(0 {rows * high + 60})">{self._legend_lines()}</g></svg>'
        )

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _squares(self, cells: NDArray[np.int64], wide: int, high: int) -> str:
        colours = {entry.cell: entry.colour for entry in self.legend}
        gap = 1 if min(wide, high) >= 8 else 0
        shapes = []
        for at, row in enumerate(cells):
            # Neighbours of one colour are one shape, unless there is a gap between them.
            cuts = np.flatnonzero(np.diff(row)) + 1 if not gap else np.arange(1, len(row))
            for run in np.split(np.arange(len(row)), cuts):
                colour = colours.get(int(row[run[0]]), _MISSING_COLOUR) if len(run) else ""
                if colour:
                    shapes.append(
                        f'<rect x="{run[0] * wide}" y="{at * high}" '
                        f'width="{len(run) * wide - gap}" height="{high - gap}" fill="{colour}"/>'
                    )
        return "".join(shapes)

    def _legend_lines(self) -> str:
        missing = LegendEntry(MISSING, "missing", _MISSING_COLOUR, self.counts["missing"])
        return "".join(
            f'<rect x="0" y="{18 * at - 10}" width="12" height="12" fill="{entry.colour}"/>'
            f'<text x="18" y="{18 * at}">{escape(entry.label)}: {entry.num_chunks:,}</text>'
            for at, entry in enumerate((*self.legend, missing))
        )


async def read_chunk_map(
    workspace: Workspace,
    array_path: str,
    axes: Sequence[Dim] | None,
    at: Mapping[Dim, int] | None,
    by: str,
    max_commits: int,
) -> ChunkMap:
    """See `Session.chunk_map`."""
    if by not in ("kind", "commit"):
        raise InvalidInputError(f"by is {by!r}, expected 'kind' or 'commit'")
    view = workspace.state.view
    node, array = view.array(paths.validate(array_path, view.find_node))
    shown = _axes(array, array_path, axes)
    start, stop, place = _box(array, array_path, shown, at or {})
    refs = await all_chunks(workspace.handle, view, node)
    rows = np.arange(len(refs))[box_rows(refs.index, start, stop)]
    if by == "kind":
        numbers, legend = _by_kind(refs.kind[rows])
    else:
        found = await blame_chunks(workspace.handle, workspace, node.path, max_commits=max_commits)
        numbers, legend = _by_commit(found.number[rows], found.commits)
    sides = [array.shape[axis].num_chunks for axis in shown]
    columns = refs.index[rows][:, shown].astype(np.int64)
    missing = 2 - len(shown)  # dimensions that the array lacks, in front
    index = np.hstack([np.zeros((len(rows), missing), np.int64), columns])
    names = tuple(_name(array, axis) for axis in shown)
    down, across = [1] * missing + sides
    return ChunkMap(array_path, names, (down, across), index, numbers, legend, place)


def _by_kind(kinds: NDArray[np.uint8]) -> tuple[NDArray[np.int64], tuple[LegendEntry, ...]]:
    numbers = np.zeros(len(kinds), np.int64)
    legend = []
    for number, (kind, colour) in enumerate(zip(_KINDS, _KIND_COLOURS, strict=True), 1):
        is_kind = kinds == kind
        numbers[is_kind] = number
        legend.append(LegendEntry(number, kind.name, colour, int(is_kind.sum())))
    return numbers, tuple(legend)


def _by_commit(
    commit: NDArray[np.int64], commits: Sequence[SnapshotInfo]
) -> tuple[NDArray[np.int64], tuple[LegendEntry, ...]]:
    older = len(commits) + 1
    numbers = np.where(commit < 0, older, commit + 1)
    count = np.bincount(numbers, minlength=older + 1).tolist()
    legend = [
        LegendEntry(
            number,
            _commit_label(info),
            _age_colour(number - 1, len(commits)),
            count[number],
            info.id.text,
        )
        for number, info in enumerate(commits, 1)
        if count[number]
    ]
    if count[older]:
        legend.append(LegendEntry(older, "an older commit", "#8a97a3", count[older]))
    return numbers, tuple(legend)


def _commit_label(info: SnapshotInfo) -> str:
    title = info.message.partition("\n")[0][:_MESSAGE]
    return f"{info.id.text[:8]} {instant(info.flushed_at):%Y-%m-%d %H:%M} {title}"


def _age_colour(number: int, total: int) -> str:
    """Newer commits are darker; neighbours differ in hue as well."""
    hue = (205 + 47 * number) % 360
    light = 38 + 34 * number // max(total - 1, 1)
    return f"hsl({hue} 45% {light}%)"


def _name(array: ArrayData, axis: int) -> str:
    name = array.dimension_names[axis] if array.dimension_names else None
    return name or f"dimension {axis}"


def _axes(array: ArrayData, path: str, given: Sequence[Dim] | None) -> list[int]:
    ndim = len(array.shape)
    if given is None:
        return default_axes([dimension.num_chunks for dimension in array.shape])
    found = [_axis(array, path, each) for each in given]
    if len(found) != min(ndim, 2) or len(set(found)) != len(found):
        raise InvalidInputError(
            f"axes are {list(given)}, expected {min(ndim, 2)} different dimensions of {path!r}"
        )
    return found


def default_axes(grid: Sequence[int]) -> list[int]:
    """The last two dimensions that have several chunks. Others fill up, the last ones first.

    >>> default_axes([5, 7, 1, 1]), default_axes([5, 1, 1]), default_axes([3])
    ([0, 1], [0, 2], [0])
    """
    best = sorted(range(len(grid)), key=lambda axis: (grid[axis] > 1, axis))
    return sorted(best[-2:])


def _axis(array: ArrayData, path: str, given: Dim) -> int:
    ndim = len(array.shape)
    names = array.dimension_names or ()
    if isinstance(given, str):
        if given not in names:
            known = ", ".join(name for name in names if name) or "no names"
            raise InvalidInputError(f"array {path!r} has no dimension {given!r}: it has {known}")
        return names.index(given)
    if not 0 <= given < ndim:
        raise InvalidInputError(f"dimension {given} of {path!r}: expected 0 to {ndim - 1}")
    return given


def _box(
    array: ArrayData, path: str, shown: Sequence[int], at: Mapping[Dim, int]
) -> tuple[list[int], list[int], str]:
    """The chunks of the map as a box of the chunk grid, and where that is."""
    fixed = {_axis(array, path, given): number for given, number in at.items()}
    if any(axis in shown for axis in fixed):
        raise InvalidInputError("`at` is for the dimensions that the map does not show")
    start, stop = [], []
    for axis, dimension in enumerate(array.shape):
        number = fixed.get(axis, 0)
        if axis in shown:
            start.append(0)
            stop.append(dimension.num_chunks)
            continue
        if not 0 <= number < max(dimension.num_chunks, 1):
            raise InvalidInputError(
                f"chunk {number} of {_name(array, axis)}: {path!r} has {dimension.num_chunks}"
            )
        start.append(number)
        stop.append(number + 1)
    others = [axis for axis in range(len(array.shape)) if axis not in shown]
    place = ", ".join(f"{_name(array, axis)} chunk {start[axis]}" for axis in others)
    return start, stop, f", {place}" if place else ""
