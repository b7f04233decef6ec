"""`layout="chunks"`: one row per chunk, its decoded values as bytes.

For code that continues in numpy: one row per chunk, values not expanded.
`np.frombuffer(row.data, row.dtype).reshape(row.shape)` is the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.geometry import Slices, cells_of, cut, inside, shape_of
from icefloe.scans.cells import BlockGrid, Mask, axis_of, plan_blocks, plan_cells
from icefloe.scans.scan import (
    PinnedSnapshot,
    ReadOptions,
    Scan,
    columns,
    index_column,
    repeated_text,
)
from icefloe.scans.variables import OpenArrays, Variable, find_variables
from icefloe.scans.where import Condition, check_condition

_BATCH_BYTES = 16 << 20
"""Of values in a batch. Measured: batches of one chunk take Spark longer."""

_FEWEST_CHUNKS = 4
"""Fewer in a piece, unless it is full, cost more calls than a copy takes."""

_MAX_CHUNK_BYTES = 1 << 31

SCHEMA = columns(
    "path string, chunk_index index, offset index, shape index, dtype string, data binary"
)


class ArrayChunks(NamedTuple):
    """The chunks of one array that are wanted; blocks are boxes of chunk indices."""

    variable: Variable
    blocks: BlockGrid
    wanted: tuple[Mask | None, ...]


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The scan: the blocks of one array after those of another."""

    source: PinnedSnapshot
    arrays: tuple[ArrayChunks, ...]
    skips_missing: bool

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def num_partitions(self) -> int:
        return sum(array.blocks.num_partitions for array in self.arrays)

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        opened = OpenArrays(self.source.open())
        for array in self.arrays:
            if partition < array.blocks.num_partitions:
                for box in array.blocks.regions(partition):
                    yield from self._read_box(opened, array, box)
                return
            partition -= array.blocks.num_partitions

    def _read_box(
        self, opened: OpenArrays, array: ArrayChunks, box: Slices
    ) -> Iterator[pa.RecordBatch]:
        variable = array.variable
        region = cells_of(box, variable.chunk_shape, variable.shape)
        is_wanted = np.ones(shape_of(box), np.bool_)
        if self.skips_missing:
            is_wanted &= variable.present_chunks(opened.session, box)
        for axis, (part, mask) in enumerate(zip(box, array.wanted, strict=True)):
            if mask is not None:
                spread = [1] * is_wanted.ndim
                spread[axis] = -1
                is_wanted = is_wanted & mask[part].reshape(spread)
        if not is_wanted.any():
            return
        most = max(_BATCH_BYTES // max(prod(variable.chunk_shape) * variable.dtype.itemsize, 1), 1)
        if is_wanted.all() and (pieces := _in_memory_order(box, variable, most)):
            for piece in pieces:
                cells = variable.read(opened, cells_of(piece, variable.chunk_shape, variable.shape))
                yield _batch(variable, _indices(piece, np.True_), np.ravel(cells))
            return
        values = variable.read(opened, region)
        index = _indices(box, is_wanted)
        for start in range(0, len(index), most):
            some = index[start : start + most]
            yield _batch(variable, some, _chunk_by_chunk(variable, some, values, region))


def _indices(box: Slices, is_wanted: Any) -> NDArray[np.int64]:
    """The wanted chunks of a box, in C order."""
    first = np.array([part.start for part in box], np.int64)
    return np.argwhere(np.broadcast_to(is_wanted, shape_of(box))) + first


def _in_memory_order(box: Slices, variable: Variable, most: int) -> list[Slices]:
    """The box in pieces of at most `most` chunks, which lie one behind the other in an array of
    their values: what is read need not be copied. Empty if pieces would be tiny.

    That is so for neighbours along one axis, if chunks have length 1 along all axes before it.
    """
    counts = shape_of(box)
    axes = [axis for axis in range(len(counts)) if prod(variable.chunk_shape[:axis]) == 1]
    if not axes:
        return []
    axis = max(axes, key=lambda axis: counts[axis])
    steps = [1] * len(counts)
    steps[axis] = min(most, counts[axis])
    if steps[axis] < min(_FEWEST_CHUNKS, most):
        return []
    return list(cut(box, steps))


def _chunk_bounds(
    variable: Variable, index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each chunk starts, and its shape: less at the edges of the array."""
    chunk_shape, whole = (np.array(n, np.int64) for n in (variable.chunk_shape, variable.shape))
    offset = index * chunk_shape
    return offset, np.minimum(offset + chunk_shape, whole) - offset


def _chunk_by_chunk(
    variable: Variable, index: NDArray[np.int64], values: NDArray[Any], region: Slices
) -> NDArray[Any]:
    """The values of some chunks of a region, one chunk after the other."""
    offset, shape = _chunk_bounds(variable, index)
    ends = np.zeros(len(index) + 1, np.int64)
    np.cumsum(shape.prod(axis=1), out=ends[1:])
    data = np.empty(int(ends[-1]), variable.dtype.newbyteorder("<"))
    for row in range(len(index)):
        cells = tuple(map(slice, offset[row].tolist(), (offset[row] + shape[row]).tolist()))
        data[ends[row] : ends[row + 1]].reshape(shape[row])[...] = values[inside(cells, region)]
    return data


def _batch(variable: Variable, index: NDArray[np.int64], data: NDArray[Any]) -> pa.RecordBatch:
    """Rows of some chunks. Their values become the buffer that Arrow hands on."""
    count = len(index)
    offset, shape = _chunk_bounds(variable, index)
    dtype = variable.dtype.newbyteorder("<")
    data = np.ascontiguousarray(data, dtype)
    places = np.zeros(count + 1, np.int32)
    np.cumsum(shape.prod(axis=1) * dtype.itemsize, out=places[1:])
    raw = data.view(np.uint8) if data.nbytes else b""
    buffers = [None, pa.py_buffer(places), pa.py_buffer(raw)]
    arrays = [
        repeated_text(variable.path, count),
        *map(index_column, (index, offset, shape)),
        repeated_text(dtype.str, count),
        pa.Array.from_buffers(pa.binary(), count, buffers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def plan_chunk_rows(source: PinnedSnapshot, options: ReadOptions) -> ChunkRows:
    """Decide what to read.

    Raises:
        InvalidInputError: an array's values have no fixed size, so chunks of it have no bytes.
    """
    session = source.open()
    group = options.group
    chosen = find_variables(session, group, options.variables, decode=False, is_coded=False)
    if not chosen:
        raise InvalidInputError(
            f"group {group or '/'!r} has no arrays to read", ErrorKind.NODE_NOT_FOUND
        )
    for variable in chosen:
        if variable.edges is not None:
            raise InvalidInputError(
                f"array {variable.path!r} has chunks of several sizes (a rectilinear grid), and "
                "layout='chunks' reads chunks of one size; read it with layout='cells', or choose "
                "others with variables=[...]",
                ErrorKind.INVALID_ARRAY_METADATA,
            )
        if variable.dtype.kind in "OT":
            raise InvalidInputError(
                f"array {variable.path!r} holds values of any length, so its chunks are no plain "
                "bytes; read it with layout='cells', or choose others with variables=[...]"
            )
    wanted = _wanted_cells(session, chosen, options)
    arrays = []
    for variable in chosen:
        masks = tuple(
            _wanted_chunks(wanted.get(name), chunk)
            for name, chunk in zip(variable.dimensions, variable.chunk_shape, strict=True)
        )
        counts = [-(-n // c) for n, c in zip(variable.shape, variable.chunk_shape, strict=True)]
        size = prod(variable.chunk_shape) * variable.dtype.itemsize
        if size >= _MAX_CHUNK_BYTES:
            raise InvalidInputError(
                f"array {variable.path!r} has chunks of {size:,} bytes, and a row of Spark holds "
                f"less than {_MAX_CHUNK_BYTES:,}; read it with layout='cells'"
            )
        blocks = plan_blocks(
            counts,
            [1] * len(counts),
            bytes_per_cell=size,
            target_bytes=options.split_size,
            min_blocks=options.min_partitions,
            wanted=masks,
        )
        arrays.append(ArrayChunks(variable, blocks, masks))
    return ChunkRows(source, tuple(arrays), options.missing == "skip")


def _wanted_cells(
    session: Session, chosen: Sequence[Variable], options: ReadOptions
) -> dict[str, NDArray[np.bool_]]:
    """For each dimension that conditions name, which cells they hold for."""
    lengths: dict[str, int] = {}
    for variable in chosen:
        lengths |= dict(zip(variable.dimensions, variable.shape, strict=True))
    by_name: dict[str, list[Condition]] = {}
    for condition in options.where:
        if condition.column not in lengths:
            raise InvalidInputError(
                f"where names {condition.column!r}; dimensions are "
                f"{', '.join(map(repr, lengths)) or 'none'}"
            )
        by_name.setdefault(condition.column, []).append(condition)
    known = find_variables(session, options.group, None, decode=options.decode, is_coded=False)
    coordinates = {v.name for v in known if v.is_coordinate}
    found = {}
    for name, conditions in by_name.items():
        axis = axis_of(session, name, lengths[name], coordinates, options)
        checked = tuple(check_condition(condition, axis.coding) for condition in conditions)
        keep = replace(axis, conditions=checked).wanted(session)
        assert keep is not None
        found[name] = keep
    return found


def _wanted_chunks(cells: Mask | None, chunk: int) -> Mask | None:
    if cells is None:
        return None
    found = np.zeros(-(-len(cells) // chunk), np.bool_)
    found[np.flatnonzero(cells) // chunk] = True
    return found


def plan_read(source: PinnedSnapshot, options: ReadOptions) -> Scan:
    """The scan that a read asks for."""
    if options.layout == "chunks":
        return plan_chunk_rows(source, options)
    return plan_cells(source, options)
