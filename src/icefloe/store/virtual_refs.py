"""Setting virtual references: one, or millions as columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe import paths
from icefloe.config.container_set import ContainerSet
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError, check_text
from icefloe.format.columns.arrow_columns import numbers_from_arrow, numbers_to_arrow
from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.chunk_index import Index
from icefloe.format.manifest.chunk_input import index_from_arrow, whole_numbers
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.manifest.coded import Coded
from icefloe.format.manifest.locations import Locations
from icefloe.on_demand import on_demand
from icefloe.repo.workspace import Workspace
from icefloe.store.location_columns import Matched, check_keys, distinct, match_containers
from icefloe.store.operations import check_chunk, require_writable
from icefloe.store.zarr_keys import ChunkKey, parse_key

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = on_demand("pyarrow")

Failed = list[tuple[int, ...]] | None
"""Chunks whose location no container covers; None when there is none."""

_MAX_SECONDS = 2**32 - 1
_NO_CONTAINERS = ContainerSet([])


@dataclass(frozen=True, slots=True)
class VirtualChunkSpec:
    """One virtual reference: `length` bytes at `offset` of the object at `location`.

    The object's key is the path of the URL; `?`, `#` and `%` in it have to be percent-encoded.
    With `etag_checksum` or `last_updated_at_checksum`, reads fail once the object has changed.
    """

    index: Sequence[int]
    location: str
    offset: int
    length: int
    etag_checksum: str | None = None
    last_updated_at_checksum: datetime | None = None


@dataclass(frozen=True, slots=True)
class RefColumns:
    """References of one array as columns, not checked yet."""

    index: Index
    location: pa.Array
    offset: NDArray[Any]
    length: NDArray[Any]
    etag: pa.Array | None = None
    last_modified: NDArray[np.uint32] | None = None


def set_virtual_ref(
    workspace: Workspace,
    key: str,
    spec: VirtualChunkSpec,
    *,
    validate_container: bool,
) -> None:
    """Set the chunk at a key. A location without a container is an error if that is checked."""
    handle, state = workspace
    require_writable(state)
    parsed = parse_key(key, state.find_node)
    if not isinstance(parsed, ChunkKey):
        raise SessionStateError(
            f"key {key!r} is no chunk, and only chunks can be virtual", ErrorKind.NOT_ALLOWED
        )
    node, array = state.array(parsed.path)
    check_chunk(key, array, parsed.coordinates, spec.length)
    containers = handle.assets.virtual.access.containers
    matched = match_containers(_texts([spec.location]), containers)
    if validate_container:
        if matched.number[0] < 0:
            containers.resolve(spec.location)  # says what is missing
        check_keys(matched, containers)
    for name in ("offset", "length"):
        whole_numbers(name, getattr(spec, name), np.uint64)
    etag, modified = checksum_parts(spec.etag_checksum or spec.last_updated_at_checksum)
    ref = ChunkRef(
        ChunkKind.VIRTUAL,
        spec.offset,
        spec.length,
        location=matched.values[0].as_py(),
        etag=etag,
        last_modified=modified,
    )
    with state.writing():
        if (edits := state.edits(node)) is not None:
            edits.set(parsed.coordinates, ref)


def set_virtual_refs(
    workspace: Workspace,
    array_path: str,
    columns: RefColumns,
    *,
    validate_containers: bool,
) -> Failed:
    """Set many chunks of an array. If an index occurs several times, the last one counts.

    Locations without a container are left out and their indices returned, if that is checked.
    """
    handle, state = workspace
    require_writable(state)
    node, array = state.array(paths.validate("/" + array_path.strip("/")))
    if not len(columns.index):
        return None
    _check_grid(array_path, columns, [dimension.num_chunks for dimension in array.shape])
    if columns.location.null_count:
        raise InvalidInputError(
            f"{columns.location.null_count} virtual chunks have no location (null)",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    values, codes = distinct(columns.location)
    containers = handle.assets.virtual.access.containers if validate_containers else _NO_CONTAINERS
    matched = match_containers(values, containers)
    failed: Failed = None
    if validate_containers:
        check_keys(matched, containers)
        columns, codes, failed = _leave_out(columns, matched, codes)
    codes = np.arange(len(values), dtype=np.int32) if codes is None else codes
    refs = ChunkRefs.virtual(
        columns.index,
        Coded(codes, Locations(BlobColumn.from_arrow(matched.values))),
        columns.offset,
        columns.length,
        columns.etag,
        columns.last_modified,
    )
    with state.writing():
        if (edits := state.edits(node)) is not None:
            edits.set_table(refs)
    return failed


def _leave_out(
    columns: RefColumns, matched: Matched, codes: NDArray[np.int32] | None
) -> tuple[RefColumns, NDArray[np.int32] | None, Failed]:
    has_container = matched.number >= 0
    if has_container.all():
        return columns, codes, None
    codes = np.arange(len(columns.index), dtype=np.int32) if codes is None else codes
    is_good = has_container[codes]
    failed = list(map(tuple, columns.index[~is_good].tolist()))
    if not failed:
        return columns, codes, None
    rows = numbers_to_arrow(np.flatnonzero(is_good))
    kept = replace(
        columns,
        index=columns.index[is_good],
        offset=columns.offset[is_good],
        length=columns.length[is_good],
        etag=None if columns.etag is None else columns.etag.take(rows),
        last_modified=None if columns.last_modified is None else columns.last_modified[is_good],
    )
    return kept, codes[is_good], failed


def _check_grid(array_path: str, columns: RefColumns, grid: Sequence[int]) -> None:
    index = columns.index
    if index.ndim != 2 or index.shape[1] != len(grid):
        raise InvalidInputError(
            f"chunk indices have {index.shape[-1]} dimensions, array {array_path!r} has "
            f"{len(grid)}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    # A dimension without chunks still accepts index 0, because writers use it before resizing.
    outside = (index >= np.maximum(np.array(grid, np.int64), 1)).any(axis=1)
    if bool(outside.any()):
        raise InvalidInputError(
            f"chunk {tuple(index[int(np.argmax(outside))].tolist())} is not in the grid of "
            f"{tuple(grid)} chunks of array {array_path!r}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    lengths = np.asarray(columns.length)
    if len(lengths) and not lengths.all():
        at = tuple(index[int(np.argmin(lengths != 0))].tolist())
        raise InvalidInputError(
            f"virtual chunk {at} has no bytes; delete the chunk instead",
            ErrorKind.ZERO_LENGTH_CHUNK,
        )


# -- columns from the arguments of callers


def columns_of_specs(specs: Sequence[VirtualChunkSpec]) -> RefColumns:
    """Columns from a list of references."""
    if not specs:
        none = np.empty(0, np.uint64)
        return RefColumns(np.empty((0, 0), np.uint32), _texts([]), none, none)
    wrong = set(map(type, specs)) - {VirtualChunkSpec}
    if wrong:
        raise TypeError(f"expected VirtualChunkSpec, found {wrong.pop().__name__}")
    ranks = {len(spec.index) for spec in specs}
    if len(ranks) > 1:
        raise InvalidInputError(
            f"chunk indices have {sorted(ranks)} dimensions, expected the same number for all",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    # One pass per column: tuples of all fields would cost more than everything else together.
    flat = list(chain.from_iterable([spec.index for spec in specs]))
    etag = [spec.etag_checksum for spec in specs]
    modified = [spec.last_updated_at_checksum for spec in specs]
    count = len(specs)
    return RefColumns(
        whole_numbers("chunk indices", np.array(flat).reshape(count, ranks.pop()), np.uint32),
        _texts([spec.location for spec in specs]),
        whole_numbers("offsets", np.array([spec.offset for spec in specs]), np.uint64),
        whole_numbers("lengths", np.array([spec.length for spec in specs]), np.uint64),
        None if etag.count(None) == count else _texts(etag),
        None
        if modified.count(None) == count
        else np.array([_seconds(time) for time in modified], np.uint32),
    )


def columns_of_grid(
    chunk_grid_shape: Sequence[int],
    locations: Any,
    offsets: Any,
    lengths: Any,
    arr_offset: Sequence[int] | None,
    checksum: str | datetime | None,
) -> RefColumns:
    """Columns from arrays over a grid in C order. Empty locations are left out."""
    shape = tuple(int(size) for size in chunk_grid_shape)
    column = locations if isinstance(locations, pa.Array) else _texts(locations)
    offset = whole_numbers("offsets", offsets, np.uint64)
    length = whole_numbers("lengths", lengths, np.uint64)
    for name, found in (("locations", column), ("offsets", offset), ("lengths", length)):
        if len(found) != math.prod(shape):
            raise ValueError(
                f"{name}: {len(found)} given, expected {math.prod(shape)}, the product of "
                f"chunk_grid_shape {shape}"
            )
    if arr_offset is not None and len(arr_offset) != len(shape):
        raise ValueError(
            f"arr_offset has {len(arr_offset)} dimensions, chunk_grid_shape has {len(shape)}"
        )
    rows = np.arange(len(column))
    is_there = np.ones(len(column), np.bool_)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        is_there = BlobColumn.from_arrow(column).length > 0
    if not is_there.all():
        rows = np.flatnonzero(is_there)
        column, offset, length = column.take(numbers_to_arrow(rows)), offset[rows], length[rows]
    index = np.empty((len(rows), len(shape)), np.int64)
    for axis, at in enumerate(np.unravel_index(rows, shape) if shape else ()):
        index[:, axis] = at + (0 if arr_offset is None else int(arr_offset[axis]))
    etag, modified = checksum_parts(checksum)
    count = len(rows)
    return RefColumns(
        whole_numbers("chunk indices", index, np.uint32),
        column,
        offset,
        length,
        None if etag is None else _repeated(etag, count),
        None if modified is None else np.full(count, modified, np.uint32),
    )


def columns_of_table(table: pa.Table | pa.RecordBatch, ndim: int) -> RefColumns:
    """Columns from an Arrow table; see `IcechunkStore.set_virtual_refs_table`."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise TypeError(f"expected a pyarrow Table, found {type(table).__name__}")
    axes = [f"i{axis}" for axis in range(ndim)]
    wanted = ["location", "offset", "length"]
    wanted += [] if "index" in table.column_names else axes
    known = {*wanted, "index", "etag", "last_modified"}
    if missing := [name for name in wanted if name not in table.column_names]:
        raise InvalidInputError(
            f"the table has no column {missing[0]!r}; expected 'index' or {axes}, and 'location', "
            f"'offset', 'length'; found {table.column_names}"
        )
    if unknown := [name for name in table.column_names if name not in known]:
        raise InvalidInputError(f"the table has a column {unknown[0]!r} that means nothing here")
    column = {name: _whole(table, name) for name in table.column_names}
    if "index" in column:
        index = index_from_arrow(column["index"])
    else:
        index = np.empty((table.num_rows, ndim), np.uint32)
        for axis, name in enumerate(axes):
            index[:, axis] = whole_numbers(name, _numbers(column, name), np.uint32)
    location = column["location"]
    text = location.type.value_type if pa.types.is_dictionary(location.type) else location.type
    if not (pa.types.is_string(text) or pa.types.is_large_string(text)):
        raise InvalidInputError(f"column 'location' is {location.type}, expected text")
    etag = column.get("etag")
    return RefColumns(
        index,
        location,
        whole_numbers("offset", _numbers(column, "offset"), np.uint64),
        whole_numbers("length", _numbers(column, "length"), np.uint64),
        None if etag is None or etag.null_count == len(etag) else etag,
        _seconds_column(column.get("last_modified")),
    )


def _whole(table: pa.Table, name: str) -> pa.Array:
    chunked = table.column(name)
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.unify_dictionaries()
    found = chunked.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _numbers(column: Mapping[str, pa.Array], name: str) -> NDArray[Any]:
    found = column[name]
    if found.null_count:
        raise InvalidInputError(f"column {name!r} has {found.null_count} nulls")
    return _numpy(found)


def _numpy(column: pa.Array) -> NDArray[Any]:
    # Other types are refused with an error that names the column.
    is_plain = pa.types.is_integer(column.type)
    return numbers_from_arrow(column) if is_plain else np.array(column.to_pylist())


def _seconds_column(column: pa.Array | None) -> NDArray[np.uint32] | None:
    if column is None or column.null_count == len(column):
        return None
    if pa.types.is_timestamp(column.type):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        ticks = numbers_from_arrow(column.cast(pa.int64()).fill_null(0))
        seconds = -(-ticks // per_second)
    else:
        seconds = _numpy(column.fill_null(0))
    found: NDArray[np.uint32] = whole_numbers("last_modified", seconds, np.uint32)
    return found


def _repeated(text: str, count: int) -> pa.Array:
    codes = numbers_to_arrow(np.zeros(count, np.int32))
    return pa.DictionaryArray.from_arrays(codes, _texts([text]))


def _texts(values: Any) -> pa.Array:
    try:
        return BlobColumn.from_values(values, is_text=True).to_arrow()
    except UnicodeEncodeError:
        for value in filter(None, values):
            check_text(value, "virtual chunk reference", ErrorKind.INVALID_VIRTUAL_REF)
        raise


def checksum_parts(checksum: object) -> tuple[str | None, int | None]:
    """An ETag, or the second an object was last modified in."""
    if checksum is None:
        return None, None
    if isinstance(checksum, str):
        return check_text(checksum, "checksum", ErrorKind.INVALID_VIRTUAL_REF), None
    if isinstance(checksum, datetime):
        return None, _seconds(checksum)
    raise TypeError(f"checksum is {checksum!r}, expected an ETag (str) or a datetime")


def _seconds(time: datetime | None) -> int:
    """Whole seconds, because the format has no fractions of a second.

    They are rounded up: a file modified at that very time would seem changed otherwise. A time to
    come is rounded down if that does not make it a past one. No file is as new as that, and who
    adds a second to the present time wants a change in the next one to be noticed.
    """
    if time is None:
        return 0
    if time.tzinfo is None:
        raise TypeError(f"checksum {time!r} has no time zone; pass datetime(..., tzinfo=UTC)")
    exact = time.timestamp()
    whole = math.floor(exact)
    seconds = whole if whole >= datetime.now(UTC).timestamp() else math.ceil(exact)
    if not 0 < seconds <= _MAX_SECONDS:
        raise InvalidInputError(
            f"checksum {time.isoformat()} cannot be stored: times run from 1970 to 2106",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    return seconds
