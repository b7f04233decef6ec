"""The two operations that move data between blocks: rechunking, and reduction.

A stage emits pieces of the blocks of its input, each with the number of the task that needs it
(`key`) and its place among the pieces of that task (`order`). A shuffle brings the pieces of a key
together in that order, and `assemble` makes blocks of them. So every block of the input is computed
once, every block of the result is made once, and the order of additions is the plan's, whatever
tasks die.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from icefloe import geometry
from icefloe.blocks import aggregate
from icefloe.blocks.expressions import Expression, Positions, result_template
from icefloe.blocks.layout import (
    Edges,
    Grid,
    Index,
    Layout,
    box_of,
    index_of,
    longest,
    number_of,
    region_of,
    regular_edges,
    shape_of,
)
from icefloe.blocks.places import Place
from icefloe.errors import InvalidInputError
from icefloe.geometry import Slices, inside

DEFAULT_MEMORY = 256 << 20
"""Bytes of values that a task may hold."""
_MIN_PIECE_BYTES = 32 << 10
"""Smaller pieces cost more than another stage does."""
_MAX_PIECES = 1 << 20
_MAX_GROUP_BLOCKS = 1024


class Piece(NamedTuple):
    """A part of a block on its way to another task."""

    key: int
    order: int
    data: bytes


@dataclass(frozen=True, eq=False)
class Stage(Expression):
    """An expression whose blocks are made of pieces of blocks of its input."""

    @property
    def num_keys(self) -> int:
        """How many tasks of the second half there can be."""
        raise NotImplementedError

    def boxes(self) -> Grid:
        """Boxes of input blocks that one piece of work of the first half computes."""
        raise NotImplementedError

    def emit(
        self, boxes: Grid, box: Index, blocks: Iterable[tuple[Index, xr.Dataset]]
    ) -> Iterator[Piece]:
        """Cut the blocks of one box."""
        raise NotImplementedError

    @property
    def piece_bytes(self) -> int:
        """An upper bound of the size of a piece."""
        raise NotImplementedError

    def narrowed(self) -> Stage:
        """The same stage with one block per key, of which a few can be made by themselves."""
        return self

    def assemble(self, key: int, pieces: Iterable[bytes]) -> Iterator[tuple[Index, xr.Dataset]]:
        """Make blocks of all pieces of one key, in their order."""
        raise NotImplementedError


def coarser(edges: Edges, count: int) -> Edges:
    """The edges of boxes of `count` blocks each."""
    return np.append(edges[:-1:count], edges[-1])


def touching(edges: Edges, span: slice) -> range:
    """The blocks that share cells with a span."""
    first = min(int(np.searchsorted(edges, span.start, "right")) - 1, len(edges) - 2)
    last = int(np.searchsorted(edges, span.stop, "left"))
    return range(first, max(last, first + 1))


def blocks_in(layout: Layout, region: Mapping[str, slice]) -> Iterator[Index]:
    """The blocks that share cells with a region, in order."""
    return itertools.product(*(touching(layout.grid[dim], region[dim]) for dim in layout.grid))


# -- Rechunking


@dataclass(frozen=True, eq=False)
class Rechunk(Stage):
    """The same dataset, cut into other blocks.

    Blocks of the input are read in boxes and the result is made in boxes, both as large as memory
    allows, so that pieces are few.
    """

    read_boxes: Grid
    write_boxes: Grid

    @property
    def num_keys(self) -> int:
        """The boxes of the result."""
        return math.prod(shape_of(self.write_boxes))

    def boxes(self) -> Grid:
        """Boxes of blocks that are read together."""
        return self.read_boxes

    def narrowed(self) -> Stage:
        """With the blocks of the result as boxes."""
        return replace(self, write_boxes=self.layout.grid)

    @property
    def piece_bytes(self) -> int:
        """The bytes of the smaller box along each dimension."""
        read, write = self.read_boxes, self.write_boxes
        return self.layout.bytes_of({d: min(longest(read[d]), longest(write[d])) for d in read})

    def needed(self, wanted: Collection[int]) -> list[set[int]]:
        """The blocks that share cells with the wanted ones."""
        layout = self.input.layout
        found: set[int] = set()
        for number in wanted:
            region = self.layout.region(self.layout.index(number))
            found.update(map(layout.number, blocks_in(layout, region)))
        return [found]

    def emit(
        self, boxes: Grid, box: Index, blocks: Iterable[tuple[Index, xr.Dataset]]
    ) -> Iterator[Piece]:
        """Put the blocks of a box together, and cut them at the borders of the result's boxes."""
        layout, span = self.input.layout, region_of(boxes, box)
        dims_of = {name: layout.template[name].dims for name in layout.computed}
        beyond = {dim for dim, number in zip(boxes, box, strict=True) if number > 0}
        names = [name for name, dims in dims_of.items() if not beyond - set(dims)]
        values = _gather(layout, span, names, blocks)
        targets: dict[Index, list[str]] = {}
        for name in names:
            # A variable without a dimension is in every box along it.
            ranges = [
                touching(edges, span[dim]) if dim in dims_of[name] else range(len(edges) - 1)
                for dim, edges in self.write_boxes.items()
            ]
            for target in itertools.product(*ranges):
                targets.setdefault(target, []).append(name)
        order = number_of(boxes, box)
        for target, wanted in targets.items():
            region = region_of(self.write_boxes, target)
            common = {
                dim: slice(max(a.start, span[dim].start), min(a.stop, span[dim].stop))
                for dim, a in region.items()
            }
            piece = {}
            for name in wanted:
                cells, mine = (box_of(each, dims_of[name]) for each in (common, span))
                place = inside(cells, box_of(region, dims_of[name]))
                piece[name] = place, np.asarray(values[name][inside(cells, mine)], order="C")
            key = number_of(self.write_boxes, target)
            yield Piece(key, order, pickle.dumps(piece, pickle.HIGHEST_PROTOCOL))

    def assemble(self, key: int, pieces: Iterable[bytes]) -> Iterator[tuple[Index, xr.Dataset]]:
        """Put the pieces of a box together, and cut it into blocks."""
        layout = self.layout
        span = region_of(self.write_boxes, index_of(self.write_boxes, key))
        values = _empty(layout, span, layout.computed)
        for piece in pieces:
            for name, (place, part) in pickle.loads(piece).items():
                values[name][place] = part
        for index in blocks_in(layout, span):
            region = layout.region(index)
            parts = {
                name: whole[_cells_in(layout, name, region, span)] for name, whole in values.items()
            }
            yield index, layout.labelled(region, parts)

    def describe(self) -> Any:
        """Nothing: how a dataset is cut does not change its values."""
        return self.input.describe()


def _cells_in(
    layout: Layout, name: str, region: Mapping[str, slice], span: Mapping[str, slice]
) -> Slices:
    """The cells of a region among those of a span that has it in it, for one variable."""
    dims = layout.template[name].dims
    return inside(box_of(region, dims), box_of(span, dims))


def _empty(
    layout: Layout, span: Mapping[str, slice], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    like = layout.template.variables
    return {
        name: np.empty(geometry.shape_of(box_of(span, like[name].dims)), like[name].dtype)
        for name in names
    }


def _gather(
    layout: Layout,
    span: Mapping[str, slice],
    names: Sequence[str],
    blocks: Iterable[tuple[Index, xr.Dataset]],
) -> dict[str, NDArray[Any]]:
    """The values of several blocks in one array per variable; of one block as they are."""
    values: dict[str, NDArray[Any]] = {}
    for index, block in blocks:
        region = layout.region(index)
        if region == span:
            return {name: block[name].values for name in names}
        values = values or _empty(layout, span, names)
        for name in names:
            values[name][_cells_in(layout, name, region, span)] = block[name].values
    return values


def rechunk(expression: Expression, grid: Grid, memory: int = DEFAULT_MEMORY) -> Expression:
    """The dataset with other blocks: as it is, or through one or more shuffles.

    Raises:
        InvalidInputError: a block of the result, or of the input, does not fit into memory.
    """
    layout = expression.layout
    if all(np.array_equal(layout.grid[dim], grid[dim]) for dim in layout.grid):
        return expression
    room = memory // 4  # a box, its pieces, those on their way, and what codecs need
    for what, edges_of in (("blocks of the result", grid), ("blocks of the input", layout.grid)):
        lengths = {dim: longest(edges) for dim, edges in edges_of.items()}
        if layout.bytes_of(lengths) > room:
            raise InvalidInputError(
                f"{what} have up to {lengths}, {layout.bytes_of(lengths) >> 20} MB, more than a "
                f"quarter of memory={memory >> 20} MB that a task may use: choose smaller chunks, "
                "or give more memory"
            )
    read = _grown(layout, layout.grid, grid, room)
    write = _grown(layout, grid, read, room)
    whole = layout.bytes_of({dim: int(layout.template.sizes[dim]) for dim in layout.grid})
    pieces = math.prod(len(np.union1d(read[dim], write[dim])) - 1 for dim in layout.grid)
    if pieces > _MAX_PIECES and whole // pieces < _MIN_PIECE_BYTES:
        middle = {
            dim: regular_edges(
                int(layout.template.sizes[dim]),
                max(1, round(math.sqrt(longest(read[dim]) * longest(write[dim])))),
            )
            for dim in layout.grid
        }
        if not all(np.array_equal(middle[dim], grid[dim]) for dim in grid):
            return rechunk(rechunk(expression, middle, memory), grid, memory)
    return Rechunk(Layout.of(layout.template, grid, layout.unknown), (expression,), read, write)


def _grown(layout: Layout, grid: Grid, other: Grid, room: int) -> Grid:
    """Boxes of whole blocks, as large as memory allows, longest where the other grid is long."""
    counts = dict.fromkeys(grid, 1)

    def lengths(counted: Mapping[str, int]) -> dict[str, int]:
        return {dim: longest(coarser(grid[dim], counted[dim])) for dim in grid}

    while True:
        now = lengths(counts)
        wish = {
            dim: longest(other[dim]) / max(now[dim], 1)
            for dim in grid
            if counts[dim] < len(grid[dim]) - 1 and longest(other[dim]) > now[dim]
        }
        for dim in sorted(wish, key=lambda dim: -wish[dim]):
            more = {**counts, dim: min(counts[dim] * 2, len(grid[dim]) - 1)}
            if layout.bytes_of(lengths(more)) <= room:
                counts = more
                break
        else:
            return {dim: coarser(edges, counts[dim]) for dim, edges in grid.items()}


# -- Reduction


class Groups(NamedTuple):
    """How the cells of one dimension are grouped."""

    dim: str
    """The dimension that is grouped."""
    name: str
    """The dimension of the result."""
    codes: NDArray[np.int64]
    """The group of every cell; -1 where it has none."""

    def is_empty(self, code: int) -> bool:
        """Whether a group has no cell."""
        return not bool((self.codes == code).any())


COMMON = -1
"""The group of what is the same in all groups."""


@dataclass(frozen=True, eq=False)
class Reduce(Stage):
    """A reduction along dimensions, of all cells or of the cells of each group.

    Runs of blocks are reduced to partial results, and these are combined.
    """

    how: aggregate.Aggregation
    dims: tuple[str, ...]
    groups: Groups | None
    runs: Grid
    asked: Any = field(repr=False)

    @property
    def num_keys(self) -> int:
        """The blocks of the result."""
        return self.layout.num_blocks

    def boxes(self) -> Grid:
        """Runs of blocks along the reduced dimensions."""
        return self.runs

    @property
    def piece_bytes(self) -> int:
        """A block of the result, as up to three numbers in double precision."""
        return 24 * max(self.layout.bytes_of(), 1)

    def needed(self, wanted: Collection[int]) -> list[set[int]]:
        """All blocks along the reduced dimensions, those with a cell of a group along its own."""
        layout = self.input.layout
        found: set[int] = set()
        for key in wanted:
            at = dict(zip(self.layout.dims, self.layout.index(key), strict=True))
            ranges: list[Sequence[int]] = []
            for dim, edges in layout.grid.items():
                if self.groups is not None and dim == self.groups.dim:
                    span = self.layout.region(self.layout.index(key))[self.groups.name]
                    codes = self.groups.codes
                    cells = np.flatnonzero((codes >= span.start) & (codes < span.stop))
                    numbers = set((np.searchsorted(edges, cells, "right") - 1).tolist())
                    ranges.append(sorted(numbers | {0} if self._sends_first(span) else numbers))
                else:
                    ranges.append([at[dim]] if dim in at else range(len(edges) - 1))
            found.update(map(layout.number, itertools.product(*ranges)))
        return [found]

    def emit(
        self, boxes: Grid, box: Index, blocks: Iterable[tuple[Index, xr.Dataset]]
    ) -> Iterator[Piece]:
        """Reduce the blocks of a run to one partial result for each block of the result."""
        layout = self.input.layout
        order = number_of(boxes, box)
        found: dict[int, aggregate.Partials] = {}
        for index, block in blocks:
            names = layout.owned(self._without_kept(index))
            for key, part in self._partials(index, block, names):
                known = found.get(key)
                found[key] = part if known is None else self.how.combine(known, part)
        for key, part in found.items():
            yield Piece(key, order, pickle.dumps(part, pickle.HIGHEST_PROTOCOL))

    def _sends_first(self, span: slice) -> bool:
        """Whether the first block sends something to some groups: what has no group, or no cell."""
        assert self.groups is not None
        template = self.input.layout.template
        return (
            bool(self.layout.unknown)
            or any(self.groups.dim not in template[name].dims for name in self.layout.computed)
            or any(self.groups.is_empty(code) for code in range(span.start, span.stop))
        )

    def _without_kept(self, index: Index) -> Index:
        """The index with only the reduced dimensions: blocks along the others all count."""
        return tuple(
            at if dim in self.dims else 0
            for dim, at in zip(self.input.layout.dims, index, strict=True)
        )

    def _partials(
        self, index: Index, block: xr.Dataset, names: Sequence[str]
    ) -> Iterator[tuple[int, aggregate.Partials]]:
        layout, template = self.input.layout, self.layout.template
        at = dict(zip(layout.dims, index, strict=True))
        # Coordinates go to every block of the result, and pass through.
        carried = {name: block[name].variable for name in self.layout.unknown}
        reduced = {name: block[name].variable for name in names if name in template.data_vars}
        outer = {dim: at[dim] for dim in self.layout.dims if dim in at}
        if self.groups is None:
            key = self.layout.number([outer[dim] for dim in self.layout.dims])
            yield key, self.how.partial(0, reduced, self.dims, carried)
            return
        groups, grid = self.groups, self.layout.grid

        def key_of(number: int) -> int:
            place = [number if dim == groups.name else outer[dim] for dim in self.layout.dims]
            return self.layout.number(place)

        # What has no cells along the dimension is the same in every group. The first block sends
        # it, so that groups without a cell have a block as well.
        common = {name: value for name, value in reduced.items() if groups.dim not in value.dims}
        if not any(at[dim] for dim in self.dims):
            part = self.how.partial(COMMON, common, self.dims, carried)
            yield from ((key_of(number), part) for number in range(len(grid[groups.name]) - 1))
        codes = groups.codes[layout.region(index)[groups.dim]]
        for code in np.unique(codes[codes >= 0]).tolist():
            number = int(np.searchsorted(grid[groups.name], code, "right")) - 1
            cells = {groups.dim: _as_range(np.flatnonzero(codes == code))}
            own = {name: v.isel(cells) for name, v in reduced.items() if name not in common}
            yield key_of(number), self.how.partial(code, own, self.dims, carried)

    def assemble(self, key: int, pieces: Iterable[bytes]) -> Iterator[tuple[Index, xr.Dataset]]:
        """Combine the partial results of a block."""
        index = self.layout.index(key)
        whole: aggregate.Partials | None = None
        for piece in pieces:
            part = pickle.loads(piece)
            whole = part if whole is None else self.how.combine(whole, part)
        region = self.layout.region(index)
        values = self._finished(whole or aggregate.Partials({}, {}), region)
        yield index, self.layout.labelled(region, values)

    def _finished(
        self, whole: aggregate.Partials, region: Mapping[str, slice]
    ) -> dict[str, NDArray[Any]]:
        values: dict[str, NDArray[Any]] = {}
        for name in self.layout.computed:
            variable = self.layout.template.variables[name]
            if name in self.layout.unknown:
                values[name] = whole.carried[name].transpose(*variable.dims).values
            elif self.groups is None:
                values[name] = self.how.finish(whole.groups[0][name], variable.dims, variable.dtype)
            else:
                values[name] = self._by_group(name, variable, whole, region)
        return values

    def _by_group(
        self,
        name: str,
        variable: xr.Variable,
        whole: aggregate.Partials,
        region: Mapping[str, slice],
    ) -> NDArray[Any]:
        assert self.groups is not None
        span = region[self.groups.name]
        shape = [region[str(dim)].stop - region[str(dim)].start for dim in variable.dims]
        result = np.empty(shape, variable.dtype)
        axis = variable.dims.index(self.groups.name)
        rest = [dim for dim in variable.dims if dim != self.groups.name]
        common = whole.groups.get(COMMON, {}).get(name)
        for code in range(span.start, span.stop):
            parts = whole.groups.get(code, {}).get(name, common)
            cells = (slice(None),) * axis + (code - span.start,)
            if parts is None or self.groups.is_empty(code):
                result[cells] = self.how.nothing(variable.dtype)
            else:
                result[cells] = self.how.finish(parts, rest, variable.dtype)
        return result

    def describe(self) -> Any:
        """The reduction and its arguments."""
        return ["reduce", self.asked, self.input.describe()]

    def places(self) -> list[Place]:
        """The groups of cells."""
        return [] if self.groups is None else [Place("", self.groups.codes)]

    def affected(self, changed: Positions, of: Expression) -> list[Positions]:
        """The groups of the cells, in full along reduced dimensions."""
        found = dict(super().affected(changed, of)[0])
        if self.groups is not None and self.groups.dim in changed:
            codes = np.unique(self.groups.codes[changed[self.groups.dim]])
            found[self.groups.name] = codes[codes >= 0]
            if not len(found[self.groups.name]):
                return []
        return [found]


def _as_range(cells: NDArray[np.int64]) -> Any:
    """Cells as a slice where they follow each other, which needs no copy."""
    if len(cells) and int(cells[-1]) - int(cells[0]) + 1 == len(cells):
        return slice(int(cells[0]), int(cells[-1]) + 1)
    return cells


def reduce_blocks(
    expression: Expression,
    how: aggregate.Aggregation,
    dims: Sequence[str],
    groups: Groups | None,
    call: Callable[[xr.Dataset], xr.Dataset],
    asked: Any,
    memory: int = DEFAULT_MEMORY,
) -> Expression:
    """Reduce a dataset. `call` is the same operation of xarray, from which the template is made."""
    layout = expression.layout
    dates = [
        str(name)
        for name, variable in layout.template.data_vars.items()
        if variable.dtype.kind == "O" and set(variable.dims) & set(dims)
        if hasattr(next(variable.values.flat, None), "calendar")
    ]
    if dates and how.name in ("sum", "std", "var"):
        raise InvalidInputError(
            f"{dates} are dates, which have no {how.name}; leave them out with drop_vars"
        )
    made = result_template(layout, call, (groups.dim,) if groups else ())
    grid: Grid = {}
    for dim in map(str, made.sizes):
        if groups is not None and dim == groups.name:
            grid[dim] = _group_edges(made, layout, groups, memory)
        else:
            grid[dim] = layout.grid[dim]
    out = Layout.of(made, grid, layout.unknown)
    return Reduce(out, (expression,), how, tuple(dims), groups, _runs(layout, dims, memory), asked)


def _group_edges(template: xr.Dataset, layout: Layout, groups: Groups, memory: int) -> Edges:
    """Groups that recur, such as months, have a block each, so that a refresh makes few of them.

    Groups that follow each other, such as days, have blocks about as long as those of the input.
    """
    size, name = int(template.sizes[groups.name]), groups.name
    step = -(-size // _MAX_GROUP_BLOCKS)
    if bool((np.diff(groups.codes) >= 0).all()) and size:
        usual = int(np.median(np.bincount(groups.codes[groups.codes >= 0], minlength=size)))
        step = max(step, longest(layout.grid[groups.dim]) // max(usual, 1))
    lengths = {str(dim): longest(layout.grid[str(dim)]) for dim in template.sizes if dim != name}
    cell = Layout(template, {}).bytes_of({**lengths, name: 1})
    return regular_edges(size, max(1, min(step, memory // 8 // max(cell, 1))))


def _runs(layout: Layout, dims: Sequence[str], memory: int) -> Grid:
    """Boxes of blocks along the reduced dimensions.

    Their number of blocks depends on the size of blocks only, so that an append moves no border.
    """
    count = max(1, min(64, memory // max(layout.bytes_of(), 1)))
    boxes = dict(layout.grid)
    for dim in reversed(list(layout.grid)):
        if dim in dims and count > 1:
            boxes[dim] = coarser(layout.grid[dim], count)
            count = max(1, count // max(len(layout.grid[dim]) - 1, 1))
    return boxes
