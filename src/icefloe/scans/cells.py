"""Arrays as rows of cells, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import mask_to_arrow
from icefloe.geometry import Slices, grow_chunks, shape_of
from icefloe.scans.scan import ROWS_PER_BATCH, PinnedSnapshot, ReadOptions
from icefloe.scans.variables import Coding, OpenArrays, Values, Variable, cell_bytes, find_variables
from icefloe.scans.where import Condition, check_condition, holds

Dimensions = tuple[str, ...]


def choose_variables(session: Session, options: ReadOptions) -> list[Variable]:
    """The arrays that a read of cells is about.

    Raises:
        InvalidInputError: the group has no arrays, or several sets of dimensions to choose from.
    """
    names = options.variables
    if names is None:
        group = options.group
        known = find_variables(session, group, None, decode=options.decode, is_coded=False)
        if not known:
            raise InvalidInputError(
                f"group {group or '/'!r} has no arrays to read", ErrorKind.NODE_NOT_FOUND
            )
        dims = _only_set(group, known) if options.dims is None else options.dims
        names = tuple(v.name for v in known if set(v.dimensions) <= set(dims))
        if not any(set(v.dimensions) == set(dims) for v in known):
            raise InvalidInputError(
                f"dims is {list(dims)}, but no array of group {group!r} has these dimensions; "
                f"there are {_described(known, _all_sets(known))}"
            )
    return find_variables(session, options.group, names, decode=options.decode, is_coded=True)


def dimension_sets(variables: Sequence[Variable]) -> list[Dimensions]:
    """The dimensions that rows can have so that every array is in some of them, widest first.

    Bounds of coordinates (`bounds`, `climatology` of CF) have a dimension of their own. They are
    left out unless they are named.
    """
    bounds = {v.bounds for v in variables}
    shown = [v for v in variables if v.name not in bounds]
    data = [v for v in shown if v.dimensions and not v.is_coordinate] or shown or list(variables)
    return [
        dims for dims in _all_sets(data) if not any(set(dims) < set(v.dimensions) for v in data)
    ]


def _only_set(group: str, variables: Sequence[Variable]) -> Dimensions:
    sets = dimension_sets(variables)
    if len(sets) > 1:
        raise InvalidInputError(
            f"group {group!r} has arrays of {len(sets)} sets of dimensions: "
            f"{_described(variables, sets)}; say which to read, such as dims={list(sets[0])}, or "
            "name arrays with variables=[...]"
        )
    return sets[0]


def _all_sets(variables: Sequence[Variable]) -> list[Dimensions]:
    """Each set once, in the order that its first array has, widest first."""
    found: dict[frozenset[str], Dimensions] = {}
    for variable in variables:
        found.setdefault(frozenset(variable.dimensions), variable.dimensions)
    return sorted(found.values(), key=len, reverse=True)


def _described(variables: Sequence[Variable], sets: Sequence[Dimensions]) -> str:
    parts = []
    for dims in sets:
        names = [v.name for v in variables if set(v.dimensions) == set(dims)]
        more = ", ..." if len(names) > 3 else ""
        parts.append(f"({', '.join(dims)}) of {', '.join(names[:3])}{more}")
    return "; ".join(parts)


# -- Cutting a grid of chunks into blocks: pure arithmetic, nothing that grows with the data.
#
# A block is a box of whole chunks, as many as make a task worth starting; at the edges, and where
# coordinates were chosen, it is cut down to the cells that are wanted. Blocks are numbered in C
# order, and a partition is a run of them.


Mask = NDArray[np.bool_]
_MANY = 4  # rounds of tasks, of which the last one may leave slots idle
_MAX_PARTITIONS = 20_000  # Spark keeps a few kilobytes for each on the driver


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """Blocks as the product of ranges along each dimension."""

    ranges: tuple[NDArray[np.int64], ...]
    """For each dimension rows of (start, stop), in cells."""
    num_partitions: int
    """At most as many as there are blocks; each has about as many of them."""

    @property
    def num_blocks(self) -> int:
        return math.prod(len(rows) for rows in self.ranges)

    def regions(self, partition: int) -> Iterator[Slices]:
        """The blocks of one partition."""
        counts = [len(rows) for rows in self.ranges]
        first, last = (
            at * self.num_blocks // self.num_partitions for at in (partition, partition + 1)
        )
        for number in range(first, last):
            place = np.unravel_index(number, counts)
            yield tuple(
                slice(int(rows[at, 0]), int(rows[at, 1]))
                for rows, at in zip(self.ranges, place, strict=True)
            )


def plan_blocks(
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    *,
    bytes_per_cell: int,
    target_bytes: int,
    min_blocks: int,
    wanted: Sequence[Mask | None] | None = None,
) -> BlockGrid:
    """Blocks of about `target_bytes`, or smaller ones if there would be fewer than `min_blocks`.

    A partition is one block, unless there are very many, or so few that most slots would wait for
    the last one: then blocks are smaller, and each of `min_blocks` slots gets as many partitions.

    Args:
        wanted: for each dimension which cells are wanted, None for all. Chunks without any are
            left out, and blocks shrink to the wanted cells at their ends.
    """
    masks = list(wanted) if wanted is not None else [None] * len(shape)
    sides = zip(shape, chunk_shape, masks, strict=True)
    counts = [len(_ranges(length, chunk, mask)) for length, chunk, mask in sides]
    cells = math.prod(
        min(count * chunk, length)
        for count, chunk, length in zip(counts, chunk_shape, shape, strict=True)
    )
    goal = min(target_bytes // max(bytes_per_cell, 1), cells // max(min_blocks, 1))

    def cut(most_cells: int, most_partitions: int) -> BlockGrid:
        steps = grow_chunks(shape, chunk_shape, most_cells, counts)
        ranges = tuple(map(_ranges, shape, steps, masks))
        return BlockGrid(ranges, min(math.prod(map(len, ranges)), most_partitions))

    grid = cut(goal, _MAX_PARTITIONS)
    slots = max(min_blocks, 1)
    if grid.num_blocks >= _MANY * slots or grid.num_blocks % slots == 0:
        return grid
    rounds = max(-(-cells * bytes_per_cell // (max(target_bytes, 1) * slots)), 1)
    return cut(goal // _MANY, rounds * slots)


def slabs(shape: Sequence[int], most_cells: int) -> Iterator[Slices]:
    """A box in pieces of at most `most_cells` that follow each other in C order."""
    axis = 0
    inner = math.prod(shape[1:])
    while axis < len(shape) and inner > most_cells:
        axis += 1
        inner = math.prod(shape[axis + 1 :])
    if axis == len(shape):
        yield ()
        return
    step = max(most_cells // max(inner, 1), 1)
    parts = -(-shape[axis] // step)
    step = -(-shape[axis] // max(parts, 1))  # equal pieces, instead of a crumb at the end
    rest = (slice(None),) * (len(shape) - axis - 1)
    for outer in np.ndindex(*shape[:axis]):
        lead = tuple(slice(at, at + 1) for at in outer)
        for start in range(0, shape[axis], max(step, 1)):
            yield (*lead, slice(start, min(start + step, shape[axis])), *rest)


def _ranges(length: int, step: int, mask: Mask | None) -> NDArray[Any]:
    if mask is None:
        start = np.arange(0, length, step, dtype=np.int64)
        return np.stack([start, np.minimum(start + step, length)], axis=1)
    rows = np.flatnonzero(mask)
    if not len(rows):
        return np.empty((0, 2), np.int64)
    _, first = np.unique(rows // step, return_index=True)
    last = np.append(first[1:], len(rows)) - 1
    return np.stack([rows[first], rows[last] + 1], axis=1).astype(np.int64)


# -- `layout="cells"`: one row per cell, with the coordinates as columns.
#
# Several variables of a group share rows by the dimensions they have in common; one with fewer
# dimensions is repeated along the others. A dimension without a coordinate array has its index.


_INDEX = Coding(pa.int64(), "i8")


@dataclass(frozen=True, slots=True)
class CellAxis:
    """One dimension of the rows, and the array that has its coordinates."""

    name: str
    length: int
    coordinate: Variable | None
    conditions: tuple[Condition, ...] = ()

    @property
    def coding(self) -> Coding:
        if self.coordinate is None:
            return _INDEX
        assert self.coordinate.coding is not None
        return self.coordinate.coding

    @property
    def field(self) -> pa.Field:
        if self.coordinate is None:
            return pa.field(self.name, _INDEX.arrow_type)
        return self.coordinate.field.with_name(self.name)

    def read(self, arrays: OpenArrays, part: slice) -> Values:
        """The coordinates of part of the dimension."""
        if self.coordinate is None:
            return Values(np.arange(part.start, part.stop, dtype=np.int64))
        return self.coordinate.read_decoded(arrays, (part,))

    def keep(self, values: Values) -> NDArray[np.bool_] | None:
        """Which of these coordinates are wanted; None when there are no conditions."""
        kept = None
        for condition in self.conditions:
            found = holds(condition, values)
            kept = found if kept is None else kept & found
        return kept

    def wanted(self, session: Session) -> NDArray[np.bool_] | None:
        """Which cells of the whole dimension are wanted; None when there are no conditions."""
        if not self.conditions:
            return None
        return self.keep(self.read(OpenArrays(session), slice(0, self.length)))


@dataclass(frozen=True, slots=True)
class Cells:
    """The scan."""

    source: PinnedSnapshot
    axes: tuple[CellAxis, ...]
    variables: tuple[Variable, ...]
    columns: tuple[str, ...]
    blocks: BlockGrid
    skips_missing: bool

    @property
    def schema(self) -> pa.Schema:
        fields = {axis.name: axis.field for axis in self.axes}
        fields |= {variable.name: variable.field for variable in self.variables}
        return pa.schema([fields[name] for name in self.columns])

    @property
    def num_partitions(self) -> int:
        return self.blocks.num_partitions

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        arrays = OpenArrays(self.source.open())
        for region in self.blocks.regions(partition):
            yield from self._read_block(arrays, region)

    def _read_block(self, arrays: OpenArrays, region: Slices) -> Iterator[pa.RecordBatch]:
        present = self._present(arrays.session, region) if self.skips_missing else None
        if present is not None and not present.any():
            return
        coordinates, keeps = [], []
        for axis, part in zip(self.axes, region, strict=True):
            needs_values = axis.name in self.columns or axis.conditions
            values = axis.read(arrays, part) if needs_values else None
            keep = None if values is None else axis.keep(values)
            keeps.append(keep)
            coordinates.append(values if keep is None or values is None else _take(values, keep))
        if any(keep is not None and not keep.any() for keep in keeps):
            return
        shape = [
            part.stop - part.start if keep is None else int(keep.sum())
            for part, keep in zip(region, keeps, strict=True)
        ]
        columns: dict[str, _Column] = {}
        for number, (axis, values) in enumerate(zip(self.axes, coordinates, strict=True)):
            if values is not None and axis.name in self.columns:
                columns[axis.name] = axis.coding, values, (number,)
        for variable in self.variables:
            if variable.name in self.columns:
                columns[variable.name] = self._column(arrays, variable, region, keeps)
        rows = None if present is None else _keep_along(present, keeps)
        yield from _Box(shape, self.schema, columns).batches(rows)

    def _column(
        self,
        arrays: OpenArrays,
        variable: Variable,
        region: Slices,
        keeps: Sequence[NDArray[np.bool_] | None],
    ) -> _Column:
        assert variable.coding is not None
        places = self._places(variable)
        values = variable.read_decoded(arrays, tuple(region[at] for at in places))
        order = sorted(range(len(places)), key=places.__getitem__)
        kept = [keeps[places[at]] for at in order]

        def arranged(array: NDArray[Any]) -> NDArray[Any]:
            return _keep_along(np.transpose(array, order), kept)

        mask = None if values.mask is None else arranged(values.mask)
        kept_values = Values(arranged(values.data), mask)
        return variable.coding, kept_values, tuple(places[at] for at in order)

    def _places(self, variable: Variable) -> list[int]:
        names = [axis.name for axis in self.axes]
        return [names.index(dimension) for dimension in variable.dimensions]

    def _present(self, session: Session, region: Slices) -> NDArray[np.bool_]:
        """Cells for which at least one variable of full rank has a stored chunk."""
        found = np.zeros(shape_of(region), np.bool_)
        for variable in self.variables:
            if len(variable.dimensions) < len(self.axes):
                continue
            places = self._places(variable)
            own = tuple(region[at] for at in places)
            found |= np.transpose(variable.present_cells(session, own), np.argsort(places))
        return found


_Column = tuple[Coding, Values, tuple[int, ...]]


class _Box(NamedTuple):
    """Columns of one block, each over some of its dimensions, spread out batch by batch."""

    shape: list[int]
    schema: pa.Schema
    columns: dict[str, _Column]

    def batches(self, rows: NDArray[np.bool_] | None) -> Iterator[pa.RecordBatch]:
        for slab in slabs(self.shape, ROWS_PER_BATCH):
            arrays = [self._column(*self.columns[name], slab) for name in self.schema.names]
            if arrays:
                batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            else:  # no columns at all, as for count(): the number of rows is what matters
                filler = pa.nulls(math.prod(_slab_shape(self.shape, slab)), pa.int8())
                batch = pa.RecordBatch.from_arrays([filler], names=["_"]).select([])
            if rows is not None:
                batch = batch.filter(mask_to_arrow(rows[slab].reshape(-1)))
            if batch.num_rows:
                yield batch

    def _column(
        self, coding: Coding, values: Values, axes: tuple[int, ...], slab: Slices
    ) -> pa.Array:
        shape = _slab_shape(self.shape, slab)
        part = tuple(slab[at] for at in axes)
        spread = [length if at in axes else 1 for at, length in enumerate(shape)]

        def flat(array: NDArray[Any]) -> NDArray[Any]:
            return np.broadcast_to(array[part].reshape(spread), shape).reshape(-1)

        if values.is_plain or len(axes) == len(shape):
            mask = None if values.mask is None else flat(values.mask)
            return coding.to_arrow(Values(flat(values.data), mask))
        own = values.data[part]
        mask = None if values.mask is None else values.mask[part].reshape(-1)
        once = coding.to_arrow(Values(own.reshape(-1), mask))
        places = np.broadcast_to(np.arange(own.size).reshape(spread), shape).reshape(-1)
        return once.take(pa.array(places))


def _slab_shape(shape: Sequence[int], slab: Slices) -> list[int]:
    return [len(range(*part.indices(n))) for part, n in zip(slab, shape, strict=True)]


def _take(values: Values, keep: NDArray[np.bool_]) -> Values:
    return Values(values.data[keep], None if values.mask is None else values.mask[keep])


def _keep_along(array: NDArray[Any], keeps: Sequence[NDArray[np.bool_] | None]) -> NDArray[Any]:
    for axis, keep in enumerate(keeps):
        if keep is not None and not keep.all():
            array = np.compress(keep, array, axis)
    return array


def plan_cells(source: PinnedSnapshot, options: ReadOptions) -> Cells:
    """Decide what to read. Needs the snapshot; coordinates only where conditions name them.

    Raises:
        InvalidInputError: the variables do not fit together, or a name is not a column.
    """
    session = source.open()
    decode = options.decode
    variables = choose_variables(session, options)
    everything = find_variables(session, options.group, None, decode=decode, is_coded=False)
    axes = _axes(session, variables, {v.name for v in everything if v.is_coordinate}, options)
    named = {axis.name for axis in axes}
    variables = [v for v in variables if v.name not in named]
    axes = _with_conditions(axes, variables, options.where)
    names = [*(axis.name for axis in axes), *(v.name for v in variables)]
    columns = _chosen(names, options.columns)
    wanted = [axis.wanted(session) for axis in axes]
    width = cell_bytes([v for v in variables if v.name in columns])
    width += sum(8 for axis in axes if axis.name in columns)
    lengths = [axis.length for axis in axes]
    most_cells = min(
        options.split_size // max(width, 1), math.prod(lengths) // options.min_partitions
    )
    chunk_shape = _chunk_shape(axes, variables, most_cells)
    blocks = plan_blocks(
        lengths,
        chunk_shape,
        bytes_per_cell=width,
        target_bytes=options.split_size,
        min_blocks=options.min_partitions,
        wanted=wanted,
    )
    return Cells(source, tuple(axes), tuple(variables), columns, blocks, options.missing == "skip")


def _axes(
    session: Session, variables: Sequence[Variable], coordinates: set[str], options: ReadOptions
) -> list[CellAxis]:
    widest = max(variables, key=lambda v: len(v.dimensions))
    names = widest.dimensions
    if len(set(names)) < len(names):
        raise InvalidInputError(
            f"array {widest.path!r} has dimensions {names}, of which two have the same name; "
            "read it with layout='chunks'"
        )
    lengths = dict(zip(names, widest.shape, strict=True))
    for variable in variables:
        for name, length in zip(variable.dimensions, variable.shape, strict=True):
            if name not in lengths:
                raise InvalidInputError(
                    f"{variable.name!r} has the dimensions {variable.dimensions}, which are not "
                    f"among those of {widest.name!r}, {names}: rows can be shared only along "
                    "common dimensions; choose with variables=[...]"
                )
            if lengths[name] != length:
                raise InvalidInputError(
                    f"dimension {name!r} has {lengths[name]} cells in {widest.name!r} and "
                    f"{length} in {variable.name!r}; choose with variables=[...]"
                )
    found = []
    for name in names:
        axis = axis_of(session, name, lengths[name], coordinates, options)
        if axis.coordinate is not None:
            if axis.coordinate.shape != (axis.length,):
                raise InvalidInputError(
                    f"coordinate {name!r} has {axis.coordinate.shape[0]} cells, the dimension has "
                    f"{axis.length}"
                )
        elif any(v.name == name for v in variables):
            raise InvalidInputError(
                f"array {name!r} is named like a dimension but is no coordinate of it; choose "
                "others with variables=[...]"
            )
        found.append(axis)
    return found


def axis_of(
    session: Session, name: str, length: int, coordinates: set[str], options: ReadOptions
) -> CellAxis:
    """A dimension, with its coordinates if they are among these."""
    named = [name] if name in coordinates else []
    found = find_variables(session, options.group, named, decode=options.decode, is_coded=True)
    return CellAxis(name, length, found[0] if found else None)


def _with_conditions(
    axes: Sequence[CellAxis], variables: Sequence[Variable], conditions: Sequence[Condition]
) -> list[CellAxis]:
    by_name = {axis.name: axis for axis in axes}
    for condition in conditions:
        axis = by_name.get(condition.column)
        if axis is None:  # as in Spark, where names are the same in any case
            same = [one for one in by_name if one.lower() == condition.column.lower()]
            axis = by_name[same[0]] if len(same) == 1 else None
        if axis is None:
            is_variable = any(v.name == condition.column for v in variables)
            reason = (
                "which is no coordinate: filter values with DataFrame.where"
                if is_variable
                else f"coordinates are {', '.join(map(repr, by_name)) or 'none'}"
            )
            raise InvalidInputError(f"where names {condition.column!r}; {reason}")
        checked = check_condition(condition, axis.coding)
        by_name[axis.name] = replace(axis, conditions=(*axis.conditions, checked))
    return list(by_name.values())


def _chosen(names: Sequence[str], columns: Sequence[str] | None) -> tuple[str, ...]:
    if columns is None:
        return tuple(names)
    for name in columns:
        if name not in names:
            raise InvalidInputError(
                f"no column {name!r}; columns are {', '.join(map(repr, names))}"
            )
    if len(set(columns)) < len(columns):
        raise InvalidInputError(f"columns {list(columns)} name a column twice")
    return tuple(columns)


def _chunk_shape(
    axes: Sequence[CellAxis], variables: Sequence[Variable], most_cells: int
) -> list[int]:
    """Blocks that cut no chunk of the widest variable, nor of others as far as cells allow.

    A chunk that blocks cut is fetched and decoded for each of them.
    """
    ordered = sorted(variables, key=lambda v: (-len(v.dimensions), -cell_bytes([v])))
    shape: list[int] = []
    for variable in ordered:
        lengths = dict(zip(variable.dimensions, variable.chunk_shape, strict=True))
        if not shape:
            shape = [max(lengths.get(axis.name, _own_length(axis)), 1) for axis in axes]
            continue
        joined = [
            min(math.lcm(length, max(lengths.get(axis.name, 1), 1)), max(axis.length, length))
            for axis, length in zip(axes, shape, strict=True)
        ]
        if math.prod(joined) <= most_cells:
            shape = joined
    return shape or [_own_length(axis) for axis in axes]


def _own_length(axis: CellAxis) -> int:
    return max(axis.coordinate.chunk_shape[0] if axis.coordinate else axis.length, 1)
