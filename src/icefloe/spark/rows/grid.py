"""Where the rows of a table belong: coordinates by value, blocks of chunks, cells in a block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr
from numpy.typing import NDArray

from icefloe.api.session import Session
from icefloe.errors import InvalidInputError
from icefloe.geometry import Region, cells_of
from icefloe.spark.rows.columns import as_keys
from icefloe.spark.rows.encoder import Encoder
from icefloe.spark.writes.regions import Grid

BLOCK = "__block"
CELL = "__cell"


@dataclass(frozen=True, slots=True)
class RowAxis:
    """A dimension and its coordinates, in the type in which they are compared."""

    name: str
    keys: pa.Array
    encoder: Encoder | None = None
    """Of the array they were read from."""

    def locate(self, column: pa.Array) -> NDArray[np.int64]:
        """The index of each value along the axis.

        Raises:
            InvalidInputError: a value is null or no coordinate; names the value.
        """
        if column.null_count:
            raise InvalidInputError(
                f"column {self.name!r} has null in a row, expected a coordinate; drop those rows"
            )
        keys = as_keys(self.name, column, self.keys.type)
        if self.encoder is not None:
            keys = self.encoder.rounded(keys)
        found = pc.index_in(keys, value_set=self.keys)
        if found.null_count:
            value = keys.filter(found.is_null())[0].as_py()
            raise out_of_range(self.name, value, self.keys)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)


def out_of_range(name: str, value: Any, keys: pa.Array) -> InvalidInputError:
    """The error for a value that is no coordinate."""
    span = f"from {keys[0].as_py()} to {keys[-1].as_py()}" if len(keys) else "none"
    return InvalidInputError(
        f"column {name!r} has the value {value}, which is not among the {len(keys):,} coordinates "
        f"of {name!r} ({span}); filter such rows out, or, to add coordinates, append values that "
        "lie after the last one"
    )


@dataclass(frozen=True, slots=True)
class RowGrid:
    """The arrays that a table is written into; travels to the tasks."""

    group: str
    axes: tuple[RowAxis, ...]
    grid: Grid
    encoders: tuple[Encoder, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        return self.grid.dims

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(encoder.name for encoder in self.encoders)

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many blocks there are along each axis."""
        return tuple(
            -(-length // step)
            for length, step in zip(self.grid.shape, self.grid.chunks, strict=True)
        )

    def locate(self, batch: pa.RecordBatch | pa.Table) -> pa.Table:
        """The variables of some rows, with the number of the block and the cell in it."""
        block = np.zeros(batch.num_rows, np.int64)
        cell = np.zeros(batch.num_rows, np.int64)
        shape = (self.axes, self.grid.shape, self.grid.chunks, self.blocks)
        for axis, length, step, count in zip(*shape, strict=True):
            at = axis.locate(combined(batch.column(axis.name)))
            number = at // step
            block = block * count + number
            cell = cell * np.minimum(step, length - number * step) + at % step
        columns = [combined(batch.column(name)) for name in self.variables]
        return pa.table([pa.array(block), pa.array(cell), *columns], [BLOCK, CELL, *self.variables])

    def region(self, block: int) -> Region:
        """The cells of a block."""
        at = np.unravel_index(block, self.blocks) if self.dims else ()
        place = tuple(slice(int(i), int(i) + 1) for i in at)
        return Region.of(self.dims, cells_of(place, self.grid.chunks, self.grid.shape))

    def write_block(self, session: Session, block: int, rows: pa.Table) -> None:
        """Write the rows of one block; cells without a row keep what they have.

        Raises:
            InvalidInputError: two rows are for one cell; names its coordinates.
        """
        region = self.region(block)
        cells = np.asarray(rows[CELL])
        if len(cells) > 1:
            ordered = np.sort(cells)
            again = np.flatnonzero(ordered[1:] == ordered[:-1])
            if len(again):
                raise self._duplicate(region, int(ordered[again[0]]))
        is_whole = len(cells) == math.prod(region.shape)
        for encoder in self.encoders:
            path = f"{self.group}/{encoder.name}".strip("/")
            array = zarr.open_array(session.store, path=path, mode="r+")
            values = encoder.encode(combined(rows[encoder.name]))
            if is_whole:
                kept = np.empty(region.shape, values.dtype)
            else:
                kept = np.array(array[region.slices])
            kept.reshape(-1)[cells] = values
            array[region.slices] = kept

    def _duplicate(self, region: Region, cell: int) -> InvalidInputError:
        at = np.unravel_index(cell, region.shape) if region.shape else ()
        where = ", ".join(
            f"{axis.name}={axis.keys[low + int(i)].as_py()}"
            for axis, low, i in zip(self.axes, region.start, at, strict=True)
        )
        return InvalidInputError(
            f"two rows are for the cell {where}; make rows unique first, for example with "
            f"groupBy({', '.join(map(repr, self.dims))}).agg(...)"
        )


def combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def checked_chunks(chunks: Any, dims: Sequence[str]) -> dict[str, int]:
    """Lengths of chunks by dimension, as far as they were given."""
    if chunks is None:
        return {}
    if isinstance(chunks, Mapping):
        found = dict(chunks)
    elif isinstance(chunks, Sequence) and not isinstance(chunks, str) and len(chunks) == len(dims):
        found = dict(zip(dims, chunks, strict=True))
    else:
        raise InvalidInputError(
            f"chunks is {chunks!r:.80}, expected a length for each of {tuple(dims)}, or a mapping"
        )
    for dim, length in found.items():
        if dim not in dims:
            raise InvalidInputError(f"chunks names {dim!r}, dimensions are {tuple(dims)}")
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
            raise InvalidInputError(
                f"chunks has {length!r} along {dim!r}, expected a number from 1 on"
            )
    return {dim: int(length) for dim, length in found.items()}
