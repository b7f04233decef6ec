"""Lazy datasets: a source, a selection, a function of blocks. A block is computed by pulling.

Expressions are immutable and travel to tasks by pickle. `describe` is what identifies a computation
across versions of its source: operations and functions, without sizes and values.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from icefloe.api.session import Session
from icefloe.blocks.fingerprints import fingerprint
from icefloe.blocks.layout import (
    Edges,
    Grid,
    Index,
    Layout,
    array_edges,
    as_slice,
    as_template,
    as_type,
    box_of,
    chunk_edges,
    edges_of_result,
    grid_from,
    is_aligned,
    new_template,
    regular_edges,
    stand_in,
    template_of,
    unknown_coords,
)
from icefloe.blocks.places import Place
from icefloe.errors import InvalidInputError
from icefloe.geometry import shape_of
from icefloe.scans.scan import PinnedSnapshot

Given = Mapping["Expression", xr.Dataset]
"""Blocks that are already there, for expressions that cannot be pulled."""
Positions = Mapping[str, NDArray[np.int64]]
"""Cells along some dimensions; all cells along the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A lazy dataset: its layout, and how to compute one of its blocks."""

    layout: Layout = field(repr=False)
    inputs: tuple[Expression, ...]
    """What this expression is computed from."""

    @property
    def input(self) -> Expression:
        """The only input, or the first."""
        return self.inputs[0]

    @property
    def followed(self) -> tuple[Expression, ...]:
        """Inputs of which a block needs the one of the same place, and no other."""
        return self.inputs

    def block(self, index: Index, given: Given) -> xr.Dataset:
        """One block, with its coordinates, in memory."""
        raise NotImplementedError(f"{type(self).__name__} is computed by a shuffle")

    def needed(self, wanted: Collection[int]) -> list[set[int]]:
        """The numbers of the blocks of each input that some blocks are computed from."""
        indices = [self.layout.index(number) for number in wanted]
        return [
            {each.layout.number(self.beside(each, index)) for index in indices}
            for each in self.inputs
        ]

    def describe(self) -> Any:
        """The operation and its arguments, without sizes and values."""
        raise NotImplementedError

    def places(self) -> list[Place]:
        """Where cells come from, as far as sizes and values decide it."""
        return []

    def affected(self, changed: Positions, of: Expression) -> list[Positions]:
        """The cells that may change when those of an input do; unless said, the same."""
        return [{dim: cells for dim, cells in changed.items() if dim in self.layout.grid}]

    def beside(self, source: Expression, index: Index) -> Index:
        """The block of an input at the place of a block; the first along what it has alone."""
        return index_in(source.layout, self.layout, index)

    def pulled(self, source: Expression, index: Index, given: Given) -> xr.Dataset:
        """The block of an input at the place of a block."""
        return pull(source, self.beside(source, index), given)


def pull(expression: Expression, index: Index, given: Given) -> xr.Dataset:
    """A block that is given, or computed."""
    block = given.get(expression)
    return expression.block(index, given) if block is None else block


# -- Sources


_KEPT_BYTES = 16 << 20
"""What a process keeps of variables that many blocks share."""
SourceKey = tuple[str, str, str, tuple[str, ...] | None]
"""The URL of a repository, the id of a snapshot, a group, and its variables."""


@dataclass(frozen=True, eq=False)
class Source(Expression):
    """Variables of a group at one snapshot."""

    snapshot: PinnedSnapshot
    group: str
    variables: tuple[str, ...] | None

    @property
    def key(self) -> SourceKey:
        """What a source is, however often it is opened."""
        return (*self.place, self.variables)

    @property
    def place(self) -> tuple[str, str, str]:
        """The URL of the repository, the id of the snapshot, and the group."""
        return (self.snapshot.url, self.snapshot.snapshot_id, self.group)

    def block(self, index: Index, given: Given) -> xr.Dataset:
        """Read the chunks of a block."""
        return self.read(self.layout.region(index))

    def read(self, region: Mapping[str, Any]) -> xr.Dataset:
        """Read a part of the dataset."""
        dataset = _opened(os.getpid(), self.snapshot, self.group, self.variables)
        for name in _kept(dataset):
            dataset.variables[name].load()
        return dataset.isel(dict(region)).load()

    def describe(self) -> Any:
        """The group; its version and place may change."""
        return ["source", self.group, self.variables and list(self.variables)]


@dataclass(frozen=True, eq=False)
class ArraySource(Expression):
    """The stored values of one array, which need not have names of dimensions."""

    snapshot: PinnedSnapshot
    path: str

    @classmethod
    def of(cls, snapshot: PinnedSnapshot, path: str) -> ArraySource:
        """An array in the blocks of its chunks."""
        array = zarr.open_array(snapshot.open().store, path=path, mode="r")
        dims = [f"dim_{at}" for at in range(array.ndim)]
        grid = dict(zip(dims, array_edges(array), strict=True))
        cell = xr.Variable([], np.zeros((), array.dtype))
        sizes = dict(zip(dims, array.shape, strict=True))
        template = xr.Dataset({"values": stand_in(cell, sizes, dims)})
        return cls(Layout.of(template, grid), (), snapshot, path)

    def block(self, index: Index, given: Given) -> xr.Dataset:
        """Read the chunks of a block."""
        region = self.layout.region(index)
        array = zarr.open_array(self.snapshot.open().store, path=self.path, mode="r")
        values = np.asarray(array[tuple(region.values())])
        return self.layout.labelled(region, {"values": values})


def _kept(dataset: xr.Dataset) -> list[Hashable]:
    """Variables that many blocks share, such as a mesh of latitudes: a process reads them once."""
    shared = [
        (variable.nbytes, str(name), name)
        for name, variable in dataset.variables.items()
        if len(variable.dims) < len(dataset.dims)
    ]
    total = itertools.accumulate(size for size, *_ in sorted(shared))
    pairs = zip(total, sorted(shared), strict=True)
    return [name for size, (*_, name) in pairs if size <= _KEPT_BYTES]


def stored_dataset(session: Session, group: str) -> xr.Dataset:
    """A group as it is stored, read when values are wanted."""
    dataset: xr.Dataset = xr.open_zarr(
        session.store, group=group or None, chunks=None, consolidated=False
    )
    return dataset


# By process: connections do not survive the fork by which Spark makes workers.
@functools.lru_cache(maxsize=8)
def _opened(
    _process: int, snapshot: PinnedSnapshot, group: str, variables: tuple[str, ...] | None
) -> xr.Dataset:
    dataset = stored_dataset(snapshot.open(), group)
    if variables is None:
        return dataset
    missing = sorted(set(variables) - set(map(str, dataset.variables)))
    if missing:
        raise InvalidInputError(
            f"group {group!r} has no variables {missing}; it has {sorted(map(str, dataset))}"
        )
    chosen: xr.Dataset = dataset[list(variables)]
    return chosen


def open_source(
    snapshot: PinnedSnapshot, group: str, variables: Sequence[str] | None, chunks: Any
) -> tuple[Source, Grid]:
    """A group as its chunks cut it, and the grid that the caller wants."""
    names = None if variables is None else tuple(variables)
    dataset = _opened(os.getpid(), snapshot, group, names)
    sizes = {str(dim): size for dim, size in dataset.sizes.items()}
    stored = _stored_grid(dataset, sizes)
    wanted = grid_from(sizes, chunks, stored)
    # A block of several chunks is read at once; a part of a chunk would be read twice.
    edges = {
        dim: wanted[dim] if is_aligned(wanted[dim], stored[dim]) else stored[dim] for dim in sizes
    }
    return Source(Layout.of(as_template(dataset), edges), (), snapshot, group, names), wanted


def _stored_grid(dataset: xr.Dataset, sizes: Mapping[str, int]) -> Grid:
    """Along each dimension the borders that all stored chunks share."""
    found: Grid = {}
    for name, variable in dataset.variables.items():
        lengths = variable.encoding.get("shards") or variable.encoding.get("chunks")
        if lengths is None or name in dataset.xindexes:
            continue
        for dim, length in zip(variable.dims, lengths, strict=True):
            edges = chunk_edges(sizes[str(dim)], length)
            known = found.setdefault(str(dim), edges)
            if known is not edges and not np.array_equal(known, edges):
                found[str(dim)] = np.intersect1d(known, edges)
    return {dim: found.get(dim, regular_edges(size, size)) for dim, size in sizes.items()}


# -- Selections


@dataclass(frozen=True, eq=False)
class Select(Expression):
    """Cells of another dataset, by position. A block is cut out of one block of the input."""

    positions: dict[str, NDArray[np.int64] | int]
    blocks: dict[str, NDArray[np.int64]]
    """Which block of the input each block lies in, along the dimensions that are selected."""
    asked: Any
    """The arguments of the caller."""

    @property
    def followed(self) -> tuple[Expression, ...]:
        """The dataset, if no block is left out, repeated or moved."""
        shape = dict(zip(self.input.layout.dims, self.input.layout.shape, strict=True))
        is_same = all(
            np.array_equal(blocks, np.arange(shape[dim]))
            for dim, blocks in self.blocks.items()
            if dim in self.layout.grid
        )
        return self.inputs if is_same else ()

    def beside(self, source: Expression, index: Index) -> Index:
        """The block of the input that a block lies in."""
        outer = super().beside(source, index)
        return tuple(
            int(self.blocks[dim][at]) if dim in self.blocks else at
            for dim, at in zip(source.layout.dims, outer, strict=True)
        )

    def block(self, index: Index, given: Given) -> xr.Dataset:
        """Cut the block out of the one it lies in."""
        mine, outer = self.layout.region(index), self.beside(self.input, index)
        local, whole = {}, {}
        for (dim, edges), number in zip(self.input.layout.grid.items(), outer, strict=True):
            picked = self.positions.get(dim)
            if picked is None:
                whole[dim] = mine[dim]
                continue
            part = picked if isinstance(picked, int) else picked[mine[dim]]
            whole[dim], local[dim] = as_slice(part), part - int(edges[number])
        if isinstance(self.input, Source):
            return self.input.read(whole)
        return pull(self.input, outer, given).isel(local)

    def describe(self) -> Any:
        """The indexers."""
        return ["select", self.asked, self.input.describe()]

    def places(self) -> list[Place]:
        """The positions: the same indexer may choose others in a longer dataset."""
        chosen = sorted(self.positions.items())
        return [Place("" if isinstance(at, int) else dim, np.atleast_1d(at)) for dim, at in chosen]

    def affected(self, changed: Positions, of: Expression) -> list[Positions]:
        """The selected cells among those that changed."""
        found = dict(changed)
        for dim, picked in self.positions.items():
            if dim not in changed:
                continue
            hit = np.flatnonzero(np.isin(picked, changed[dim]))
            if not len(hit):
                return []
            del found[dim]
            if not isinstance(picked, int):
                found[dim] = hit
        return [found]


def select(expression: Expression, indexers: Mapping[str, Any], asked: Any) -> Expression:
    """Select by position: whole numbers, slices, or one-dimensional arrays of whole numbers."""
    layout = expression.layout
    template, grid = layout.template, layout.grid
    positions: dict[str, NDArray[np.int64] | int] = {}
    blocks: dict[str, NDArray[np.int64]] = {}
    edges_of: Grid = dict(grid)
    for dim, indexer in indexers.items():
        if dim not in grid:
            raise InvalidInputError(f"{dim!r} is not a dimension of the dataset: {list(grid)}")
        size = int(template.sizes[dim])
        picked: Any = indexer
        if not isinstance(indexer, slice):
            picked = np.asarray(indexer)
            dims = getattr(indexer, "dims", (dim,))
            is_fitting = picked.dtype.kind in "iu" or (picked.dtype.kind == "b" and picked.ndim)
            if picked.ndim > 1 or dims not in ((), (dim,)) or (picked.size and not is_fitting):
                raise InvalidInputError(
                    f"the indexer of {dim!r} is {indexer!r:.80}, expected a whole number, a slice, "
                    "or a list of whole numbers along the same dimension"
                )
            picked = picked if picked.size else picked.astype(np.int64)
        picked = np.arange(size, dtype=np.int64)[picked]
        number = np.searchsorted(grid[dim], np.atleast_1d(picked), "right") - 1
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        blocks[dim] = number[starts] if picked.size else np.zeros(1, np.int64)
        if picked.ndim:
            positions[dim] = picked
            edges_of[dim] = np.append(starts if picked.size else 0, picked.size)
        else:
            positions[dim] = int(picked)
            del edges_of[dim]
    chosen = layout.known.isel(positions, missing_dims="ignore")
    sizes = {dim: int(edges[-1]) for dim, edges in edges_of.items()}
    like = template.isel({dim: at for dim, at in positions.items() if isinstance(at, int)})
    made = template_of(like, chosen.variables, sizes)
    out = Layout.of(made, edges_of, layout.unknown)
    return Select(out, (expression,), positions, blocks, asked)


@dataclass(frozen=True, eq=False)
class Variables(Expression):
    """Some variables of another dataset."""

    names: tuple[str, ...]

    def block(self, index: Index, given: Given) -> xr.Dataset:
        """The chosen variables of the block, in the order of their names in the selection."""
        block = self.pulled(self.input, index, given)
        coords = set(self.layout.template.coords)
        return new_template({n: block.variables[n] for n in self.names}, coords, block.attrs)

    def describe(self) -> Any:
        """The names."""
        return ["variables", list(self.names), self.input.describe()]


def choose_variables(expression: Expression, template: xr.Dataset) -> Expression:
    """Only the variables and coordinates of a template."""
    layout, names = expression.layout, tuple(map(str, template.variables))
    if isinstance(expression, Source):
        # What is not wanted is not read.
        read = layout.template[list(names)]
        source = Layout.of(read, layout.grid, layout.unknown)
        expression = replace(expression, layout=source, variables=names)
        if set(read.variables) == set(names):
            return expression
    return Variables(Layout.of(template, layout.grid, layout.unknown), (expression,), names)


def index_in(layout: Layout, mine: Layout, index: Index) -> Index:
    """The block of an input that has the same place; the first along dimensions it has alone."""
    at = dict(zip(mine.dims, index, strict=True))
    return tuple(at.get(dim, 0) for dim in layout.dims)


# -- Functions of blocks


@dataclass(frozen=True, eq=False)
class Apply(Expression):
    """A function of the blocks that several datasets have at the same place."""

    func: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    names: tuple[str, ...] = ()
    """What the operation is called in messages and in `describe`."""
    asked: Any = None
    """The arguments of the caller, where the function has more than these."""
    borders: tuple[Place, ...] = ()
    """Where blocks are cut, if results depend on it."""

    def block(self, index: Index, given: Given) -> xr.Dataset:
        """Call the function."""
        blocks = [self.pulled(dataset, index, given) for dataset in self.inputs]
        made = as_dataset(self.func(*blocks, *self.arguments[0], **self.arguments[1]))
        region = self.layout.region(index)
        values = {}
        for name in self.layout.computed:
            variable = self.layout.template.variables[name]
            if name not in made.variables:
                raise InvalidInputError(
                    f"the function returned {sorted(map(str, made))}, expected {name!r} too"
                )
            part = made.variables[name]
            shape = tuple(part.sizes.get(dim, -1) for dim in variable.dims)
            wanted = shape_of(box_of(region, variable.dims))
            if shape != wanted or part.ndim != variable.ndim:
                raise InvalidInputError(
                    f"the function returned {name!r} with {dict(part.sizes)} for block {index}, "
                    f"expected {dict(zip(variable.dims, wanted, strict=True))}"
                )
            values[name] = as_type(name, part.transpose(*variable.dims).values, variable.dtype)
        return self.layout.labelled(region, values)

    def describe(self) -> Any:
        """The function's code and arguments."""
        call = (self.func, self.arguments) if self.asked is None else self.asked
        return ["apply", *self.names, fingerprint(call), *(each.describe() for each in self.inputs)]

    def places(self) -> list[Place]:
        """Where blocks are cut."""
        return [*self.borders]

    def affected(self, changed: Positions, of: Expression) -> list[Positions]:
        """All cells of the blocks in which something changed."""
        found = {}
        for dim, cells in changed.items():
            if dim in self.layout.grid:
                found[dim] = _cells_at(of.layout.grid[dim], self.layout.grid[dim], cells)
        return [found]


@dataclass(frozen=True, eq=False)
class GroupArithmetic(Expression):
    """An operation between every cell and its group in another dataset, as a month's mean."""

    dim: str
    name: str
    codes: NDArray[np.int64]
    """The position of every cell's group in the other dataset."""
    operation: Callable[[Any, Any], Any]
    asked: Any

    @property
    def other(self) -> Expression:
        """The dataset with the groups."""
        return self.inputs[1]

    @property
    def followed(self) -> tuple[Expression, ...]:
        """The dataset with the cells: its groups are anywhere in the other."""
        return self.inputs[:1]

    def _others(self, index: Index) -> list[Index]:
        """The blocks of the other dataset with the groups of a block."""
        codes = self.codes[self.layout.region(index)[self.dim]]
        edges = self.other.layout.grid[self.name]
        numbers = np.unique(np.searchsorted(edges, codes, "right") - 1).tolist()
        at = {**dict(zip(self.layout.dims, index, strict=True)), self.name: 0}
        return [
            tuple(number if dim == self.name else at[dim] for dim in self.other.layout.dims)
            for number in numbers or [0]
        ]

    def needed(self, wanted: Collection[int]) -> list[set[int]]:
        """The same blocks of the input, and those with their groups."""
        indices = [self.layout.index(number) for number in wanted]
        other = {self.other.layout.number(at) for index in indices for at in self._others(index)}
        mine = {self.input.layout.number(self.beside(self.input, index)) for index in indices}
        return [mine, other]

    def block(self, index: Index, given: Given) -> xr.Dataset:
        """Bring every cell and its group together."""
        block = self.pulled(self.input, index, given)
        numbers = self._others(index)
        regions = [self.other.layout.region(number)[self.name] for number in numbers]
        parts = [pull(self.other, number, given) for number in numbers]
        groups = parts[0]
        if len(parts) > 1:
            groups = xr.concat(parts, self.name, data_vars="minimal", coords="minimal")
        there = np.concatenate([np.arange(part.start, part.stop) for part in regions])
        region = self.layout.region(index)
        at = np.searchsorted(there, self.codes[region[self.dim]])
        rest = [name for name in groups.coords if name != self.name]
        groups = groups.drop_vars(rest).isel({self.name: xr.Variable(self.dim, at)})
        made = self.operation(block, groups)
        values = {
            name: made[name].transpose(*self.layout.template[name].dims).values
            for name in self.layout.computed
        }
        return self.layout.labelled(region, values)

    def describe(self) -> Any:
        """The operation, the group and both inputs."""
        return ["groups", self.asked, self.input.describe(), self.other.describe()]

    def places(self) -> list[Place]:
        """The groups of cells."""
        return [Place("", self.codes)]

    def affected(self, changed: Positions, of: Expression) -> list[Positions]:
        """The same cells; or all cells of groups that changed."""
        if of is self.input:
            return super().affected(changed, of)
        found = {dim: cells for dim, cells in changed.items() if dim != self.name}
        if self.name in changed:
            found[self.dim] = np.flatnonzero(np.isin(self.codes, changed[self.name]))
        return [found] if len(found.get(self.dim, (0,))) else []


def combine_groups(
    expression: Expression, other: Expression, group: str, name: str, operation: Callable[..., Any]
) -> Expression:
    """Every cell and its group in another dataset, which has one cell for each group.

    Raises:
        InvalidInputError: the other dataset lacks the dimension, a group, or has other blocks.
    """
    layout = expression.layout
    if name not in other.layout.grid or name not in other.layout.template.coords:
        raise InvalidInputError(
            f"the other dataset has the dimensions {list(other.layout.grid)}, expected {name!r} "
            "with its labels, as a reduction of the same groups has"
        )
    for dim, edges in other.layout.grid.items():
        if dim != name and (dim not in layout.grid or not np.array_equal(layout.grid[dim], edges)):
            raise InvalidInputError(
                f"the datasets have different blocks along {dim!r}; rechunk one like the other"
            )
    labels = layout.template[group]
    codes = other.layout.template.indexes[name].get_indexer(labels.values)
    if (codes < 0).any():
        missing = sorted(set(map(str, labels.values[codes < 0])))
        raise InvalidInputError(
            f"the other dataset has no groups {missing} of {name!r}; leave out the cells "
            "of such groups with isel"
        )
    dim = str(labels.dims[0])
    few = {each: slice(0, 1) for each in layout.grid if each != dim}
    small = other.layout.template.isel(
        {each: few[each] for each in other.layout.grid if each in few}
    )
    cut = set(map(str, few)) & set(map(str, small.dims))
    known = set(other.layout.template.coords) - other.layout.unknown
    drop = [
        coord
        for coord, labels in small.coords.items()
        if coord not in known or (cut & set(labels.dims) and coord not in layout.template.coords)
    ]

    def call(block: xr.Dataset) -> Any:
        # xarray changes the scalars of what it gets.
        return operation(block.groupby(group), small.drop_vars(drop).copy())

    template = result_template(layout, call, (dim,))
    asked = [getattr(operation, "__name__", ""), group]
    return GroupArithmetic(
        Layout.of(template, layout.grid, layout.unknown),
        (expression, other),
        dim,
        name,
        codes.astype(np.int64),
        operation,
        asked,
    )


def _cells_at(inner: Edges, outer: Edges, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """The cells of the blocks that have the same numbers as those in which cells lie."""
    numbers = np.unique(np.searchsorted(inner, cells, "right") - 1)
    parts = [np.arange(outer[n], outer[n + 1]) for n in numbers if n + 1 < len(outer)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def as_dataset(made: Any) -> xr.Dataset:
    """What a function returned, as a Dataset."""
    if isinstance(made, xr.Dataset):
        return made
    if isinstance(made, xr.DataArray):
        return made.to_dataset(name="data" if made.name is None else made.name)
    raise InvalidInputError(
        f"the function returned a {type(made).__name__}, expected a Dataset or DataArray"
    )


def apply_blocks(
    func: Callable[..., Any],
    datasets: Sequence[Expression],
    template: xr.Dataset | None = None,
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}),
    names: tuple[str, ...] = (),
) -> Expression:
    """A function of the blocks of datasets; without a template it is tried on empty blocks.

    Dimensions that datasets share have the same blocks. A dimension that only one of several
    datasets has, or that the result lacks, must be one block, unless it is of the first dataset.
    """
    grid: Grid = {}
    for dataset in datasets:
        for dim, edges in dataset.layout.grid.items():
            known = grid.setdefault(dim, edges)
            if not np.array_equal(known, edges):
                raise InvalidInputError(
                    f"the datasets have different blocks along {dim!r}: {len(known) - 1} and "
                    f"{len(edges) - 1}; rechunk one of them like the other"
                )
    if template is None:
        template = _try_on_empty(func, datasets, arguments, grid)
    out = as_template(as_dataset(template))
    edges_of = {
        str(dim): edges_of_result(str(dim), int(size), grid.get(str(dim)))
        for dim, size in out.sizes.items()
    }
    dropped = [dim for dim in grid if dim not in edges_of and len(grid[dim]) > 2]
    alone = [
        dim
        for dataset in datasets[1:]
        for dim, edges in dataset.layout.grid.items()
        if len(edges) > 2 and dim not in datasets[0].layout.grid
    ]
    if dropped or alone:
        who, dims = ("the result", dropped) if dropped else ("the first dataset", alone)
        raise InvalidInputError(
            f"{who} lacks the dimensions {dims}, which have several blocks: make them one block "
            f"first, by rechunk({{{dims[0]!r}: -1}})"
        )
    borders = tuple(Place("", grid[dim], has_borders=True) for dim in sorted(grid))
    return Apply(Layout.of(out, edges_of), tuple(datasets), func, arguments, names, borders=borders)


def _try_on_empty(
    func: Callable[..., Any],
    datasets: Sequence[Expression],
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    grid: Grid,
) -> xr.Dataset:
    """The template of the result, found by calling the function with empty blocks."""
    empty = []
    for dataset in datasets:
        template = dataset.layout.template
        empty.append(template.isel({dim: slice(0, 0) for dim in template.sizes}))
    try:
        made = as_dataset(func(*empty, *arguments[0], **arguments[1]))
    except Exception as error:
        raise InvalidInputError(
            f"{getattr(func, '__name__', func)!r} failed on empty blocks, by which its result is "
            f"found out: {type(error).__name__}: {error}; give template=, a Dataset with the "
            "variables, dimensions and types of the whole result"
        ) from error
    sizes = {}
    for dim, size in ((str(dim), size) for dim, size in made.sizes.items()):
        if dim not in grid and size == 0:
            raise InvalidInputError(
                f"the length of the new dimension {dim!r} is not known; give template=, a Dataset "
                "with the variables, dimensions and types of the whole result"
            )
        sizes[dim] = int(grid[dim][-1]) if dim in grid and size == 0 else int(size)
    found: dict[Hashable, xr.Variable] = {}
    unknown = unknown_coords(made)
    sources = [dataset.layout.known.variables for dataset in datasets]
    for name in [name for name in made.coords if name not in unknown]:
        variable = made.variables[name]
        known = next((each[name] for each in sources if name in each), None)
        if variable.size:
            found[name] = variable
        elif known is not None and known.dims == variable.dims:
            found[name] = known
        else:
            raise InvalidInputError(
                f"the values of the new coordinate {name!r} are not known; give template=, a "
                "Dataset with the coordinates of the whole result"
            )
    return template_of(made, found, sizes)


def result_template(
    layout: Layout, call: Callable[[xr.Dataset], Any], kept: Sequence[str]
) -> xr.Dataset:
    """The template of what an operation of xarray makes, found by trying it on a few cells.

    Dimensions in `kept` have their full length there, because their coordinates decide the result.
    """
    template = layout.template
    small = template.isel({dim: slice(0, 1) for dim in template.sizes if dim not in kept})
    result = as_dataset(tried(call, small))
    sizes = {
        str(dim): int(template.sizes[dim] if dim in template.sizes and dim not in kept else size)
        for dim, size in result.sizes.items()
    }
    variables = {}
    unknown = unknown_coords(result, layout.unknown)
    for name, made in result.variables.items():
        variable = _as_wide(made, template.variables.get(name))
        is_cut = any(dim in template.sizes and dim not in kept for dim in variable.dims)
        if name not in result.coords or name in unknown:
            variables[name] = stand_in(variable, sizes)
        else:
            variables[name] = template.variables[name] if is_cut else variable
    return new_template(variables, set(result.coords), result.attrs)


def tried(call: Callable[[xr.Dataset], Any], small: xr.Dataset) -> Any:
    """What an operation of xarray makes of a few cells."""
    try:
        return call(small.copy(deep=True))
    except TypeError as error:
        types = {str(name): str(each.dtype) for name, each in small.data_vars.items()}
        raise InvalidInputError(
            f"xarray cannot do this with {types}: {error}; leave out what it is not for"
        ) from error


def _as_wide(made: xr.Variable, before: xr.Variable | None) -> xr.Variable:
    """Text of the type that it had before: the width of what was made of stand-ins says nothing."""
    if made.dtype.kind in "US" and before is not None and before.dtype.kind in "USOT":
        return made.astype(before.dtype)
    return made


def sources_of(expression: Expression) -> list[Source]:
    """The sources that an expression is computed from, each once."""
    if isinstance(expression, Source):
        return [expression]
    found = [source for each in expression.inputs for source in sources_of(each)]
    keys = [source.key for source in found]
    return [source for at, source in enumerate(found) if keys.index(keys[at]) == at]
