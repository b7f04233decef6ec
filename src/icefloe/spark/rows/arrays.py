"""The arrays that a table is written into: found, created, replaced or made longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr

from icefloe import paths
from icefloe.api.session import Session
from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.geometry import shrink_chunks
from icefloe.spark.rows.columns import Taken, as_keys, key_type, new_array
from icefloe.spark.rows.encoder import Encoder
from icefloe.spark.rows.grid import RowAxis, RowGrid, checked_chunks, out_of_range
from icefloe.spark.writes.write_regions import common_grid, dimension_names

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
            arrays[name] = _create(folder, request, name, shape, taken.get(name, frozenset()))
    targets = {
        name: zarr.open_array(session.store, path=f"{request.group}/{name}".strip("/"), mode="r")
        for name in request.variables
    }
    encoders = tuple(Encoder.of(name, array) for name, array in targets.items())
    return RowGrid(request.group, tuple(axes), common_grid(targets), encoders)


def _remove_replaced(folder: zarr.Group, arrays: Arrays, request: RowsRequest) -> None:
    """Take away the variables, and coordinates that no other array uses."""
    others = {name: array for name, array in arrays.items() if name not in request.variables}
    in_use = {
        dim
        for name, array in others.items()
        if name not in request.dims
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
    wanted = encoder.rounded(as_keys(dim, values, keys.type))
    new = wanted.filter(pc.is_null(pc.index_in(wanted, value_set=keys)))
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


def _after_last(dim: str, keys: pa.Array, new: pa.Array) -> pa.Array:
    """New coordinates in the direction of those there are; refuses any that lie before the end."""
    is_falling = len(keys) > 1 and keys[-1].as_py() < keys[0].as_py()
    new = pc.unique(new)
    new = new.take(pc.sort_indices(new))
    if is_falling:
        new = new[::-1]
    if len(keys):
        first, last = new[0].as_py(), keys[-1].as_py()
        if (first > last) if is_falling else (first < last):
            raise out_of_range(dim, first, keys)
    return new


def _create_coordinate(
    folder: zarr.Group, request: RowsRequest, dim: str, values: pa.Array
) -> zarr.Array[Any]:
    low, high = _COORDINATE_CHUNK
    chunk = max(low, min(len(values), high))
    made = new_array(dim, request.types[dim], is_coordinate=True)
    array: zarr.Array[Any] = folder.create_array(
        dim,
        shape=(len(values),),
        chunks=(chunk,),
        dtype=made.dtype,
        fill_value=made.fill_value,
        attributes=made.attributes,
        dimension_names=(dim,),
    )
    if len(values):
        array[:] = Encoder.of(dim, array).encode(values)
    return array


def _create(
    folder: zarr.Group,
    request: RowsRequest,
    name: str,
    shape: tuple[int, ...],
    taken: frozenset[int],
) -> zarr.Array[Any]:
    made = new_array(name, request.types[name], is_coordinate=False, taken=taken)
    itemsize = 16 if made.dtype is str else made.dtype.itemsize
    whole = shrink_chunks(
        [request.chunks.get(dim, length) for dim, length in zip(request.dims, shape, strict=True)],
        itemsize,
    )
    chunks = [request.chunks.get(dim, size) for dim, size in zip(request.dims, whole, strict=True)]
    array: zarr.Array[Any] = folder.create_array(
        name,
        shape=shape,
        chunks=tuple(chunks),
        dtype=made.dtype,
        fill_value=made.fill_value,
        attributes=made.attributes,
        dimension_names=request.dims,
    )
    return array
