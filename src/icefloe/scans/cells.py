"""`layout="cells"`: one row per cell, with the coordinates as columns.

Several variables of a group share rows by the dimensions they have in common; one with fewer
dimensions is repeated along the others. A dimension without a coordinate array has its index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.api.session import Session
from icefloe.errors import InvalidInputError
from icefloe.format.columns.arrow_columns import mask_to_arrow
from icefloe.geometry import Slices, shape_of
from icefloe.scans.blocks import BlockGrid, plan_blocks, slabs
from icefloe.scans.coding import Coding, Values
from icefloe.scans.dimension_sets import choose_variables
from icefloe.scans.options import ReadOptions
from icefloe.scans.pinned import PinnedSnapshot
from icefloe.scans.scan import ROWS_PER_BATCH
from icefloe.scans.variables import OpenArrays, Variable, cell_bytes, find_variables
from icefloe.scans.where import Condition, check_condition, holds

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
        kinds = {axis.name: axis.coding.arrow_type for axis in self.axes}
        for variable in self.variables:
            assert variable.coding is not None
            kinds[variable.name] = variable.coding.arrow_type
        return pa.schema([pa.field(name, kinds[name]) for name in self.columns])

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
        box = _Box(shape, self.schema)
        for number, (axis, values) in enumerate(zip(self.axes, coordinates, strict=True)):
            if values is not None and axis.name in self.columns:
                box.add(axis.name, axis.coding, values, (number,))
        for variable in self.variables:
            if variable.name in self.columns:
                self._add_variable(box, arrays, variable, region, keeps)
        rows = None if present is None else _keep_along(present, keeps)
        yield from box.batches(rows)

    def _add_variable(
        self,
        box: _Box,
        arrays: OpenArrays,
        variable: Variable,
        region: Slices,
        keeps: Sequence[NDArray[np.bool_] | None],
    ) -> None:
        assert variable.coding is not None
        places = self._places(variable)
        values = variable.read_decoded(arrays, tuple(region[at] for at in places))
        order = sorted(range(len(places)), key=places.__getitem__)
        kept = [keeps[places[at]] for at in order]

        def arranged(array: NDArray[Any]) -> NDArray[Any]:
            return _keep_along(np.transpose(array, order), kept)

        mask = None if values.mask is None else arranged(values.mask)
        box.add(
            variable.name,
            variable.coding,
            Values(arranged(values.data), mask),
            tuple(places[at] for at in order),
        )

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
            chunks = variable.present_chunks(session, own)
            for axis, (part, chunk) in enumerate(zip(own, variable.chunk_shape, strict=True)):
                of_cell = np.arange(part.start, part.stop) // chunk - part.start // chunk
                chunks = np.take(chunks, of_cell, axis)
            found |= np.transpose(chunks, np.argsort(places))
        return found


class _Box:
    """Columns of one block, each over some of its dimensions, spread out batch by batch."""

    def __init__(self, shape: Sequence[int], schema: pa.Schema) -> None:
        self.shape = list(shape)
        self.schema = schema
        self.columns: dict[str, tuple[Coding, Values, tuple[int, ...]]] = {}

    def add(self, name: str, coding: Coding, values: Values, axes: tuple[int, ...]) -> None:
        self.columns[name] = (coding, values, axes)

    def batches(self, rows: NDArray[np.bool_] | None) -> Iterator[pa.RecordBatch]:
        for slab in slabs(self.shape, ROWS_PER_BATCH):
            arrays = [self._column(*self.columns[name], slab) for name in self.schema.names]
            if arrays:
                batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            else:  # no columns at all, as for count(): the number of rows is what matters
                batch = _rows_only(_slab_shape(self.shape, slab), self.schema)
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


def _rows_only(shape: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
    filler = pa.nulls(int(np.prod(shape)), pa.int8())
    return pa.RecordBatch.from_arrays([filler], names=["_"]).select([])


def _take(values: Values, keep: NDArray[np.bool_]) -> Values:
    return Values(values.data[keep], None if values.mask is None else values.mask[keep])


def _keep_along(array: NDArray[Any], keeps: Sequence[NDArray[np.bool_] | None]) -> NDArray[Any]:
    for axis, keep in enumerate(keeps):
        if keep is not None and not keep.all():
            array = np.compress(keep, array, axis)
    return array


# -- planning


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
    wanted = [_wanted(session, axis) for axis in axes]
    widest = max(variables, key=lambda v: (len(v.dimensions), cell_bytes([v])), default=None)
    chunk_shape = [_chunk_length(axis, widest) for axis in axes]
    width = cell_bytes([v for v in variables if v.name in columns])
    width += sum(8 for axis in axes if axis.name in columns)
    blocks = plan_blocks(
        [axis.length for axis in axes],
        chunk_shape,
        bytes_per_cell=width,
        target_bytes=options.split_bytes,
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
        coordinate = None
        if name in coordinates:
            (coordinate,) = find_variables(
                session, options.group, [name], decode=options.decode, is_coded=True
            )
            if coordinate.shape != (lengths[name],):
                raise InvalidInputError(
                    f"coordinate {name!r} has {coordinate.shape[0]} cells, the dimension has "
                    f"{lengths[name]}"
                )
        elif any(v.name == name for v in variables):
            raise InvalidInputError(
                f"array {name!r} is named like a dimension but is no coordinate of it; choose "
                "others with variables=[...]"
            )
        found.append(CellAxis(name, lengths[name], coordinate))
    return found


def _with_conditions(
    axes: Sequence[CellAxis], variables: Sequence[Variable], conditions: Sequence[Condition]
) -> list[CellAxis]:
    by_name = {axis.name: axis for axis in axes}
    for condition in conditions:
        axis = by_name.get(condition.column)
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


def _wanted(session: Session, axis: CellAxis) -> NDArray[np.bool_] | None:
    if not axis.conditions:
        return None
    return axis.keep(axis.read(OpenArrays(session), slice(0, axis.length)))


def _chunk_length(axis: CellAxis, widest: Variable | None) -> int:
    if widest is not None and axis.name in widest.dimensions:
        return max(widest.chunk_shape[widest.dimensions.index(axis.name)], 1)
    return max(axis.coordinate.chunk_shape[0] if axis.coordinate else axis.length, 1)
