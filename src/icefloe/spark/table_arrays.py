"""The arrays that rows of a DataFrame go into: their grid, columns and types."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr
from numpy.typing import NDArray

from icefloe import paths
from icefloe.api.session import Session
from icefloe.errors import AlreadyExistsError, ErrorKind, FormatError, InvalidInputError
from icefloe.geometry import Region, cells_of, shrink_chunks
from icefloe.scans.variables import Coding, find_coding, find_duration_units
from icefloe.spark.dataset_writer import Grid, common_grid, dimension_names

_TIME_UNITS = "microseconds since 1970-01-01"
_CALENDAR = "proleptic_gregorian"
TIME = pa.timestamp("us")
_NAN = base64.standard_b64encode(struct.pack("<d", np.nan)).decode()  # as xarray writes it

Taken = Mapping[str, frozenset[int]]
"""Which of the integers that may stand for missing ones (`spare_integers`) columns have."""
_SPARE_AT_EACH_END = 8


class NewArray(NamedTuple):
    """How a column is stored when its array does not exist yet."""

    dtype: Any
    fill_value: Any
    attributes: dict[str, Any]


def new_array(
    name: str, kind: pa.DataType, *, is_coordinate: bool, taken: frozenset[int] = frozenset()
) -> NewArray:
    """What to store a column as.

    Coordinates have no missing values, so they get no `_FillValue`, which would turn integers
    into floats for xarray.

    Args:
        taken: values the column has, as far as they are known, so that they cannot stand for a
            missing one.

    Raises:
        InvalidInputError: no array can hold the type, or no value is left for missing ones.
    """
    if is_time(kind) or pa.types.is_signed_integer(kind):
        attributes = {"units": _TIME_UNITS, "calendar": _CALENDAR} if is_time(kind) else {}
        stored = pa.int64() if is_time(kind) else kind
        dtype = np.dtype(stored.to_pandas_dtype())
        if is_coordinate:
            return NewArray(dtype, 0, attributes)
        fill = _spare(name, stored, taken)
        return NewArray(dtype, fill, {"_FillValue": fill, **attributes})
    if pa.types.is_boolean(kind) and not is_coordinate:
        return NewArray(np.dtype("bool"), False, {})
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        missing = {} if is_coordinate else {"_FillValue": _NAN}
        return NewArray(np.dtype(kind.to_pandas_dtype()), np.nan, missing)
    if is_text(kind):
        return NewArray(str, "", {})
    possible = "integers, float, double, timestamp, date or string"
    raise InvalidInputError(
        f"column {name!r} is {kind}, expected {possible}{'' if is_coordinate else ' or boolean'}; "
        "cast it first"
    )


def _spare(name: str, kind: pa.DataType, taken: frozenset[int]) -> int:
    for value in spare_integers(kind):
        if value not in taken:
            return value
    raise InvalidInputError(
        f"column {name!r} has all {len(taken)} values of {kind} that may stand for missing cells, "
        "the smallest and the largest ones; cast it to a wider type or to string"
    )


def spare_integers(kind: pa.DataType) -> tuple[int, ...]:
    """Integers that may stand for a missing one in a column, the best first; none for other types.

    They are those at the ends of a type, where columns seldom have values, or all of 8 bits.
    """
    if not pa.types.is_signed_integer(kind):
        return ()
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = int(limits.min), int(limits.max)
    count = 128 if kind.bit_width == 8 else _SPARE_AT_EACH_END
    return tuple(end for step in range(count) for end in (low + step, high - step))


def taken_of(table: pa.Table, request: RowsRequest) -> Taken:
    """What variables of integers have of the values that may stand for missing ones."""
    found = {}
    for name in request.variables:
        if spare := spare_integers(request.types[name]):
            column = table[name]
            is_spare = pc.is_in(column, value_set=pa.array(spare, column.type))
            found[name] = frozenset(pc.unique(column.filter(is_spare)).to_pylist())
    return found


def is_time(kind: pa.DataType) -> bool:
    """Whether a column holds instants or dates."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def key_type(kind: pa.DataType) -> pa.DataType:
    """The type in which coordinates of a column's type are compared."""
    if is_time(kind):
        return TIME
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.string() if is_text(kind) else kind


def as_keys(name: str, column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """A column in a type of keys: times without zone (UTC), no negative zero.

    Raises:
        InvalidInputError: a value does not exist in that type.
    """
    column = combined(column)
    given = column.type
    if is_time(given) != is_time(kind) or is_text(given) != is_text(kind):
        raise InvalidInputError(
            f"column {name!r} is {given}, the coordinates of {name!r} are {kind}; cast it first"
        )
    try:
        keys = column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"column {name!r} has a value that is no {kind}, as its coordinates are: {error}"
        ) from None
    return pc.add(keys, pa.scalar(0.0, kind)) if pa.types.is_floating(kind) else keys


# -- From columns of a table to the values an array stores: the way back of `Coding`.
#
# What would be read as another value, or as a missing one, is refused.


_FLOAT_TIME_ERROR_US = 10
"""How much times may move in arrays of floats: what float64 does to days since the year 1."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """Turns a column into the values that a stored array has for it."""

    name: str
    dtype: np.dtype[Any]
    coding: Coding
    missing: Any
    """What is stored for null; None if the array has no value for it."""

    @classmethod
    def of(cls, name: str, array: zarr.Array[Any]) -> Encoder:
        """The encoder of an array that exists."""
        dtype = np.dtype(array.dtype)
        # Columns of durations cannot be written: their numbers are, in the units of the array.
        attributes = {
            key: value
            for key, value in array.attrs.items()
            if key != "dtype" or find_duration_units({"dtype": value, "units": "days"}) is None
        }
        coding = find_coding(name, dtype, attributes, decode=True)
        if coding.view is not None:
            raise InvalidInputError(
                f"array {name!r} stores unsigned numbers as signed ones (_Unsigned); tables cannot "
                "be written into it"
            )
        missing: Any = coding.fill_values[0] if coding.fill_values else None
        if missing is None and dtype.kind == "f":
            missing = np.nan
        elif missing is None and dtype.kind in "UTO":
            missing = ""
        return cls(name, dtype, coding, missing)

    def check(self, kind: pa.DataType) -> None:
        """Refuse a column whose type does not fit the array."""
        wanted = self.coding.arrow_type
        if is_time(wanted):
            fits = is_time(kind) and self.coding.time is not None
        elif pa.types.is_floating(wanted) or self._is_scaled:
            fits = pa.types.is_floating(kind) or pa.types.is_integer(kind)
        elif pa.types.is_integer(wanted):
            fits = pa.types.is_integer(kind)
        elif pa.types.is_boolean(wanted):
            fits = pa.types.is_boolean(kind)
        else:
            fits = is_text(wanted) and is_text(kind)
        if not fits:
            raise InvalidInputError(
                f"column {self.name!r} is {kind}, the array {self.name!r} holds {wanted} (stored "
                f"as {self.dtype}); cast the column first"
            )

    @property
    def _is_scaled(self) -> bool:
        return self.coding.scale is not None or self.coding.offset is not None

    @property
    def _is_rounding(self) -> bool:
        """Whether times may come back a few microseconds away."""
        return self.coding.time is not None and (self.dtype.kind == "f" or self._is_scaled)

    def rounded(self, keys: pa.Array) -> pa.Array:
        """Times as the array would give them back."""
        if not self._is_rounding or not len(keys):
            return keys
        return self.coding.to_arrow(self.coding.decode(self.encode(keys)))

    def encode(self, column: pa.Array) -> NDArray[Any]:
        """The stored form of a column.

        Raises:
            InvalidInputError: a value would be read as another one, or as a missing one.
        """
        if column.null_count and self.missing is None:
            raise InvalidInputError(
                f"column {self.name!r} has null, for which the array {self.name!r} of {self.dtype} "
                "has no _FillValue; drop those rows or replace the nulls"
            )
        if self.dtype.kind in "UTO":
            texts = np.asarray(column.drop_null().to_numpy(zero_copy_only=False), object)
            self._check_present(texts, texts)
            return np.asarray(column.fill_null(self.missing).to_numpy(zero_copy_only=False), object)
        given = _numbers(column)
        is_absent = np.asarray(column.is_null())
        if given.dtype.kind == "f" and self.dtype.kind in "iu":
            is_nan = np.isnan(given)
            if bool(is_nan.any()) and self.missing is None:
                raise InvalidInputError(
                    f"column {self.name!r} has NaN, for which the array {self.name!r} of "
                    f"{self.dtype} has no _FillValue"
                )
            is_absent = is_absent | is_nan
        if not is_absent.any():
            return self._checked(given)
        stored = np.full(given.shape, self.missing, self.dtype)
        stored[~is_absent] = self._checked(given[~is_absent])
        return stored

    def _checked(self, given: NDArray[Any]) -> NDArray[Any]:
        """Values that are there, in their stored form."""
        stored = self._fitted(given, self._converted(given))
        self._check_present(given, stored)
        if self.coding.time is not None:
            self._check_times(given, stored)
        return stored

    def _converted(self, values: NDArray[Any]) -> NDArray[Any]:
        """In the units of the array, not yet in its data type."""
        coding = self.coding
        if coding.time is not None:
            moved = values - coding.time.reference_us
            unit = coding.time.unit_ns
            if self._is_rounding:
                values = moved / (unit / 1000)
            else:  # what does not come out even shows when the times are read again
                values = moved // (unit // 1000) if unit >= 1000 else moved * (1000 // unit)
        if self._is_scaled:
            values = (values.astype(np.float64) - (coding.offset or 0.0)) / (coding.scale or 1.0)
            if self.dtype.kind in "iu":
                values = np.rint(values)
        return values

    def _fitted(self, given: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        """In the data type of the array, whose range they have to be in."""
        is_lost: Any = np.zeros(values.shape, np.bool_)
        if self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            is_lost = (values < limits.min) | (values > limits.max)
        elif self.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                stored = values.astype(self.dtype)
                if values.dtype.kind in "iu":
                    is_lost = stored.astype(values.dtype) != values
                else:
                    is_lost = np.isinf(stored) & np.isfinite(values)
        if is_lost.any():
            raise self._refused(given[is_lost][0], "does not fit")
        return values.astype(self.dtype)

    def _check_times(self, given: NDArray[Any], stored: NDArray[Any]) -> None:
        try:
            found = self.coding.decode(stored).data.astype(np.int64)
        except FormatError as error:
            worst = given[np.argmax(np.abs(given))]
            raise self._refused(worst, "cannot be read again from") from error
        tolerance = _FLOAT_TIME_ERROR_US if self._is_rounding else 0
        is_moved = (np.abs(found - given) > tolerance) | (found > given + tolerance)
        if is_moved.any():
            raise self._refused(given[is_moved][0], "lies between the steps of")

    def _check_present(self, given: NDArray[Any], stored: NDArray[Any]) -> None:
        for fill in self.coding.fill_values:
            is_hidden = np.asarray(stored == fill, np.bool_)
            if is_hidden.any():
                raise self._refused(
                    given[is_hidden][0], "stands for a missing value (_FillValue, missing_value) in"
                )

    def _refused(self, value: Any, why: str) -> InvalidInputError:
        if self.coding.time is not None:
            value = np.datetime64(int(value), "us")
        shown = repr(value) if isinstance(value, str) else str(value)
        return InvalidInputError(
            f"column {self.name!r} has {shown}, which {why} the array {self.name!r} of "
            f"{self.dtype}; drop or change such rows, or write an array of another type"
        )


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Numbers or truth values; times as microseconds since 1970. Nulls are zero."""
    if is_time(column.type):
        column = column.cast(TIME).cast(pa.int64())
    empty: Any = False if pa.types.is_boolean(column.type) else 0
    filled = column.fill_null(pa.scalar(empty, column.type)) if column.null_count else column
    return np.array(filled.to_numpy(zero_copy_only=False))


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


MODES = ("error", "append", "overwrite")
_COORDINATE_CHUNK = (1024, 65536)  # room for appends, and no more than half a megabyte of them

Arrays: TypeAlias = "dict[str, zarr.Array[Any]]"  # as text: Zarr 3.1.3 has no Array[Any]


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """What a caller asked for, checked as far as it can be without the repository."""

    group: str
    dims: tuple[str, ...]
    coordinates: Mapping[str, pa.Array]
    """Those that were given; all others are found in the rows."""
    variables: tuple[str, ...]
    chunks: Mapping[str, int]
    mode: str
    types: Mapping[str, pa.DataType]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.dims, *self.variables)


def table_request(
    schema: pa.Schema, group: Any, dims: Any, variables: Any, chunks: Any, mode: Any
) -> RowsRequest:
    """A request from what a caller gave.

    Raises:
        InvalidInputError: something is not as expected; says what.
    """
    if not isinstance(group, str):
        raise InvalidInputError(f"group is {group!r:.80}, expected the path of a group")
    if mode not in MODES:
        raise InvalidInputError(f"mode is {mode!r:.80}, expected one of {', '.join(MODES)}")
    given = dict(dims) if isinstance(dims, Mapping) else {}
    names = _names("dims", list(dims) if isinstance(dims, Mapping) else dims)
    wanted = _names("variables", variables)
    both = [name for name in wanted if name in names]
    if both:
        raise InvalidInputError(f"{both[0]!r} is in dims and in variables, expected in one of them")
    for name in (*names, *wanted):
        if name not in schema.names:
            raise InvalidInputError(
                f"the table has no column {name!r}; columns are "
                f"{', '.join(map(repr, schema.names))}"
            )
        if "/" in name:
            raise InvalidInputError(f"column {name!r} cannot be the name of an array: it has a '/'")
    types = {name: schema.field(name).type for name in (*names, *wanted)}
    for name, kind in types.items():
        new_array(name, kind, is_coordinate=name in names)
    known = {
        name: _given_keys(name, values, types[name])
        for name, values in given.items()
        if values is not None
    }
    path = paths.validate("/" + group.strip("/"))
    return RowsRequest(path, names, known, wanted, checked_chunks(chunks, names), mode, types)


def _names(what: str, given: Any) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"{what} is {given!r:.80}, expected a list of names of columns")
    if not names:
        raise InvalidInputError(f"{what} is empty, expected at least one name of a column")
    if len(set(names)) < len(names):
        raise InvalidInputError(f"{what} has a name twice: {list(names)}")
    return tuple(names)


def _given_keys(name: str, values: Any, kind: pa.DataType) -> pa.Array:
    try:
        column = pa.array(np.asarray(values) if not isinstance(values, pa.Array) else values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInputError(f"the coordinates given for {name!r} are no column: {error}") from (
            error
        )
    keys = as_keys(name, column, key_type(kind))
    check_present(name, keys)
    if len(pc.unique(keys)) < len(keys):
        raise InvalidInputError(f"the coordinates given for {name!r} have a value twice")
    return keys


def check_present(name: str, keys: pa.Array) -> None:
    """Refuse null and NaN as coordinates."""
    if keys.null_count or (pa.types.is_floating(keys.type) and pc.any(pc.is_nan(keys)).as_py()):
        raise InvalidInputError(
            f"column {name!r} has null or NaN, which is no coordinate; drop those rows"
        )


def check_target(session: Session, request: RowsRequest) -> RowsRequest:
    """Refuse what the repository shows to be impossible; dimensions come in the arrays' order.

    Raises:
        AlreadyExistsError: an array exists, and the mode is "error".
    """
    arrays = stored_arrays(session, request.group)
    existing = [name for name in request.variables if name in arrays]
    if existing and request.mode == "error":
        raise AlreadyExistsError(
            f"array {existing[0]!r} exists in group {request.group!r}; give mode='append' to write "
            "into it, or mode='overwrite' to replace it"
        )
    if request.mode != "append":
        return request
    for name in existing:
        names = dimension_names(arrays[name])
        if set(names) != set(request.dims) or len(names) != len(request.dims):
            raise InvalidInputError(
                f"array {name!r} has the dimensions {names}, dims are {request.dims}"
            )
        Encoder.of(name, arrays[name]).check(request.types[name])
        request = replace(request, dims=names)
        without = [dim for dim in names if dim not in arrays]
        if without:
            raise InvalidInputError(
                f"array {name!r} has no coordinates along {without[0]!r}: rows cannot be located; "
                f"write an array {without[0]!r} of that dimension first"
            )
    return request


def stored_arrays(session: Session, group: str) -> Arrays:
    """The arrays directly in a group, which need not exist."""
    node = session.workspace.state.find_node(group)
    if node is None:
        return {}
    if node.array is not None:
        raise InvalidInputError(
            f"{group!r} is an array, expected the path of a group", ErrorKind.NOT_A_GROUP
        )
    return dict(zarr.open_group(session.store, path=group.strip("/"), mode="r").arrays())


def prepare(
    session: Session, request: RowsRequest, values: Mapping[str, pa.Array], taken: Taken
) -> RowGrid:
    """Make the arrays ready for rows with these coordinates, in the session.

    Args:
        values: for each dimension the distinct values of the rows, in the order in which new
            coordinates are to be.
        taken: of the integers among the variables, as far as it is known.

    Raises:
        InvalidInputError: a value is not a coordinate and cannot become one.
    """
    request = check_target(session, request)
    arrays = stored_arrays(session, request.group)
    folder = zarr.open_group(session.store, path=request.group.strip("/"), mode="a")
    if request.mode == "overwrite":
        _remove_replaced(folder, arrays, request)
    axes = [_axis(folder, arrays, request, dim, values[dim]) for dim in request.dims]
    shape = tuple(len(axis.keys) for axis in axes)
    for name in request.variables:
        if name not in arrays:
            used = taken.get(name, frozenset())
            arrays[name] = _create_variable(folder, request, name, shape, used)
    targets = {
        name: zarr.open_array(session.store, path=f"{request.group}/{name}".strip("/"), mode="r")
        for name in request.variables
    }
    encoders = tuple(Encoder.of(name, array) for name, array in targets.items())
    return RowGrid(request.group, tuple(axes), common_grid(targets), encoders)


def _remove_replaced(folder: zarr.Group, arrays: Arrays, request: RowsRequest) -> None:
    """Take away the variables, and coordinates that no other array uses."""
    in_use = {
        dim
        for name, array in arrays.items()
        if name not in request.columns
        for dim in dimension_names(array)
    }
    for name in (*request.variables, *request.dims):
        if name in arrays and name not in in_use:
            del folder[name]
            del arrays[name]


def _axis(
    folder: zarr.Group, arrays: Arrays, request: RowsRequest, dim: str, values: pa.Array
) -> RowAxis:
    stored = arrays.get(dim)
    if stored is None:
        arrays[dim] = _create_coordinate(folder, request, dim, values)
        return RowAxis(dim, values)
    keys, encoder = locate_axis(arrays, request, dim)
    new = new_keys(dim, keys, encoder, values)
    if not len(new):
        return RowAxis(dim, keys, encoder)
    if request.mode != "append":
        raise out_of_range(dim, new[0].as_py(), keys)
    new = _after_last(dim, keys, new)
    keys = pa.concat_arrays([keys, new])
    for name, array in arrays.items():
        names = dimension_names(array)
        if dim in names:
            longer = list(array.shape)
            longer[names.index(dim)] = len(keys)
            target: Any = folder[name]
            target.resize(tuple(longer))
            arrays[name] = target
    arrays[dim][len(keys) - len(new) :] = encoder.encode(new)
    return RowAxis(dim, keys, encoder)


def locate_axis(arrays: Arrays, request: RowsRequest, dim: str) -> tuple[pa.Array, Encoder]:
    """The coordinates that a dimension has, as they are compared, and how they are stored.

    Raises:
        InvalidInputError: the array of its name holds no coordinates, or of another type.
    """
    stored = arrays[dim]
    if dimension_names(stored) != (dim,):
        raise InvalidInputError(
            f"array {dim!r} has the dimensions {dimension_names(stored)}, expected ({dim!r},): it "
            f"holds no coordinates of {dim!r}"
        )
    encoder = Encoder.of(dim, stored)
    encoder.check(request.types[dim])
    keys = encoder.coding.to_arrow(encoder.coding.decode(np.asarray(stored[:])))
    return as_keys(dim, keys, key_type(keys.type)), encoder


def new_keys(dim: str, keys: pa.Array, encoder: Encoder, values: pa.Array) -> pa.Array:
    """The values that are not among the coordinates."""
    wanted = encoder.rounded(as_keys(dim, values, keys.type))
    return wanted.filter(pc.is_null(pc.index_in(wanted, value_set=keys)))


def is_falling(keys: pa.Array) -> bool:
    """Whether coordinates become smaller."""
    return len(keys) > 1 and keys[-1].as_py() < keys[0].as_py()


def _after_last(dim: str, keys: pa.Array, new: pa.Array) -> pa.Array:
    """New coordinates in the direction of those there are; refuses any that lie before the end."""
    new = pc.unique(new)
    new = new.take(pc.sort_indices(new))
    if is_falling(keys):
        new = new[::-1]
    if len(keys):
        first, last = new[0].as_py(), keys[-1].as_py()
        if (first > last) if is_falling(keys) else (first < last):
            raise out_of_range(dim, first, keys)
    return new


def _create_coordinate(
    folder: zarr.Group, request: RowsRequest, dim: str, values: pa.Array
) -> zarr.Array[Any]:
    low, high = _COORDINATE_CHUNK
    made = new_array(dim, request.types[dim], is_coordinate=True)
    chunks = (max(low, min(len(values), high)),)
    array: zarr.Array[Any] = folder.create_array(
        dim, shape=(len(values),), chunks=chunks, dimension_names=(dim,), **made._asdict()
    )
    if len(values):
        array[:] = Encoder.of(dim, array).encode(values)
    return array


def _create_variable(
    folder: zarr.Group,
    request: RowsRequest,
    name: str,
    shape: tuple[int, ...],
    taken: frozenset[int],
) -> zarr.Array[Any]:
    made = new_array(name, request.types[name], is_coordinate=False, taken=taken)
    itemsize = 16 if made.dtype is str else made.dtype.itemsize
    given = [request.chunks.get(dim) for dim in request.dims]
    whole = shrink_chunks([g or n for g, n in zip(given, shape, strict=True)], itemsize)
    chunks = tuple(g or size for g, size in zip(given, whole, strict=True))
    array: zarr.Array[Any] = folder.create_array(
        name, shape=shape, chunks=chunks, dimension_names=request.dims, **made._asdict()
    )
    return array
