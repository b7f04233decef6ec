"""Virtual chunks of a session: setting references, matching locations, what has to be authorised.

References are set singly, or by the million as columns. Almost all locations of real data are
plain: nothing to encode, no odd segments. A few passes of Arrow over the distinct values match them
with containers. The others are handled one by one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe import paths
from icefloe.config import stores
from icefloe.config.containers import (
    VCC,
    ContainerSet,
    has_odd_segments,
    parse_url,
    stored_location,
)
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError, check_text
from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import (
    ChunkKind,
    ChunkRef,
    ChunkRefs,
    index_from_arrow,
    whole_numbers,
)
from icefloe.format.columns import BlobColumn, mask_from_arrow, numbers_from_arrow, numbers_to_arrow
from icefloe.format.locations import Coded, Locations, seems_distinct
from icefloe.repo.session import Workspace
from icefloe.store.operations import (
    ChunkKey,
    check_chunk,
    parse_key,
    require_writable,
    virtual_refs,
)

Failed = list[tuple[int, ...]] | None
"""Chunks whose location no container covers; None when there is none."""

_MAX_SECONDS = 2**32 - 1
_NO_CONTAINERS = ContainerSet([])
# Encoded or odd characters, a second "//", segments of dots.
_NOT_PLAIN = r"[%?#\\\x00-\x20\x7f]|://.*//|/\.{1,2}/|/\.{1,2}$"
_WELL_FORMED = r"^[a-z][a-z0-9+.-]*://[^/]"
_KEPT_IN_FILE_URL = r"^file:///[-!$&'()*+,./:;=@\[\]_|~A-Za-z0-9]*$"
_S3 = (stores.S3, stores.S3Compatible, stores.Tigris)


@dataclass(frozen=True, slots=True)
class VirtualChunkSpec:
    """One virtual reference: `length` bytes at `offset` of the object at `location`.

    The object's key is the path of the URL; `?`, `#` and `%` in it have to be percent-encoded.
    With `etag_checksum` or `last_updated_at_checksum`, reads fail once the object has changed.

    >>> chunk = icefloe.VirtualChunkSpec([0, 0, 0], "s3://archive/a.nc", offset=4096, length=256)
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
    location: str,
    offset: int,
    length: int,
    checksum: str | datetime | None = None,
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
    check_chunk(key, array, parsed.coordinates, length)
    containers = handle.assets.virtual.access.containers
    matched = match_containers(_texts([location]), containers)
    if validate_container:
        if matched.number[0] < 0:
            containers.resolve(location)  # says what is missing
        check_keys(matched, containers)
    whole_numbers("offset", offset, np.uint64)
    whole_numbers("length", length, np.uint64)
    etag, modified = checksum_parts(None if checksum == "" else checksum)
    ref = ChunkRef(
        ChunkKind.VIRTUAL,
        offset,
        length,
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


# -- locations and containers


class Matched(NamedTuple):
    """Locations in stored form, with the number of the container of each, or -1."""

    values: pa.Array
    number: NDArray[np.int32]


def distinct(column: pa.Array) -> tuple[pa.Array, NDArray[np.int32] | None]:
    """Distinct values, and the value of each row; None if every row is a value."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary, numbers_from_arrow(column.indices.cast(pa.int32()))
    if seems_distinct(BlobColumn.from_arrow(column)):
        return column, None
    encoded = column.dictionary_encode()
    return encoded.dictionary, numbers_from_arrow(encoded.indices)


def match_containers(values: pa.Array, containers: ContainerSet) -> Matched:
    """Match every location. A location without a container is not an error.

    Raises:
        InvalidInputError: a location is not an absolute URL, kind `invalid-virtual-ref`.
    """
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.string())
    number = np.full(len(values), -1, np.int32)
    if not len(values):
        return Matched(values, number)
    plain = ~mask_from_arrow(pc.match_substring_regex(values, _NOT_PLAIN))
    settled = np.zeros(len(values), np.bool_)
    has_odd_prefix = False
    for at, container in enumerate(containers):
        prefix = container.url_prefix
        if re.search(_NOT_PLAIN, prefix) or not re.match(_WELL_FORMED[:-4], prefix):
            has_odd_prefix = True
            continue
        hit = mask_from_arrow(pc.starts_with(values, prefix))
        if isinstance(container.store, stores.LocalFileSystem) and hit.any():
            hit &= mask_from_arrow(pc.match_substring_regex(values, _KEPT_IN_FILE_URL))
        if container.name is not None:
            hit |= mask_from_arrow(pc.starts_with(values, f"{VCC}://{container.name}/"))
        hit &= plain & ~settled
        number[hit] = at
        settled |= hit
        if settled.all():
            return Matched(values, number)
    if not has_odd_prefix:  # a plain location would have been found
        is_known = plain & mask_from_arrow(pc.match_substring_regex(values, _WELL_FORMED))
        settled |= is_known & ~mask_from_arrow(pc.match_substring_regex(values, f"^(file|{VCC}):"))
    rest = np.flatnonzero(~settled)
    if len(rest):
        values = _settle_singly(values, rest, containers, number)
    return Matched(values, number)


def _settle_singly(
    values: pa.Array, rest: NDArray[np.int64], containers: ContainerSet, number: NDArray[np.int32]
) -> pa.Array:
    places = {container.url_prefix: at for at, container in enumerate(containers)}
    stored = []
    given = BlobColumn.from_arrow(values)
    for row, location in zip(rest.tolist(), given.take(rest), strict=True):
        stored.append(stored_location(location))
        try:
            number[row] = places[containers.resolve(location).container.url_prefix]
        except InvalidInputError as error:
            if error.kind != ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK:
                raise
    both = BlobColumn.concat([given, BlobColumn.from_values(stored, is_text=True)])
    place = np.arange(len(given))
    place[rest] = len(given) + np.arange(len(rest))
    return both.take(place).to_arrow()


def check_keys(matched: Matched, containers: ContainerSet) -> None:
    """Refuse keys that a container's store cannot address.

    S3 takes any key, and official readers address it without normalising keys.
    """
    odd = mask_from_arrow(pc.match_substring_regex(matched.values, _NOT_PLAIN))
    odd &= matched.number >= 0
    for row in np.flatnonzero(odd).tolist():
        container = list(containers)[int(matched.number[row])]
        location = matched.values[row].as_py()
        if location.startswith(f"{VCC}://"):
            location = container.url_prefix + location.partition("://")[2].partition("/")[2]
        url = parse_url(location)
        if not isinstance(container.store, _S3) and has_odd_segments(url.path):
            raise InvalidInputError(
                f"virtual chunk location {location!r}: its key has empty, '.' or '..' segments, "
                f"which a {type(container.store).__name__} store cannot address",
                ErrorKind.INVALID_VIRTUAL_REF,
            )


# -- what a reader has to authorise


@dataclass(frozen=True, slots=True)
class RequiredAccess:
    """One container, or one prefix without a container, and its chunks."""

    url_prefix: str
    """What to authorise: a key of `authorize_virtual_chunk_access`."""
    num_chunks: int
    num_bytes: int
    is_authorized: bool
    has_container: bool
    """Whether the configuration has a container. Without one these chunks cannot be read."""
    name: str | None = None
    store: str | None = None
    """The kind of store: S3, Gcs, Azure, Http, LocalFileSystem, ..."""
    endpoint_url: str | None = None
    """The endpoint of requests, if the configuration has one."""


async def required_access(workspace: Workspace) -> list[RequiredAccess]:
    """Every prefix of a session's virtual chunks, the one with most chunks first."""
    access = workspace.handle.assets.virtual.access
    containers = list(access.containers)
    counts, sizes = Counter[int](), Counter[int]()
    lost_counts, lost_sizes = Counter[str](), Counter[str]()
    async for refs, location, is_virtual in virtual_refs(workspace):
        used, row_of = np.unique(location.codes[is_virtual], return_inverse=True)
        count = np.bincount(row_of)
        size = np.bincount(row_of, weights=refs.length[is_virtual].astype(np.float64))
        values = location.values.strings().take(used).to_arrow()
        number = _container_numbers(values, access.containers)
        for at in np.unique(number).tolist():
            rows = number == at
            if at >= 0:
                counts[at] += int(count[rows].sum())
                sizes[at] += int(size[rows].sum())
                continue
            for row in np.flatnonzero(rows).tolist():
                place = _place(values[row].as_py())
                lost_counts[place] += int(count[row])
                lost_sizes[place] += int(size[row])
    found = [
        RequiredAccess(
            containers[at].url_prefix,
            counts[at],
            sizes[at],
            access.is_authorized(containers[at]),
            has_container=True,
            name=containers[at].name,
            store=type(containers[at].store).__name__,
            endpoint_url=_endpoint(containers[at].store),
        )
        for at in counts
    ]
    found += [
        RequiredAccess(place, lost_counts[place], lost_sizes[place], False, has_container=False)
        for place in lost_counts
    ]
    return sorted(found, key=lambda each: (-each.num_chunks, each.url_prefix))


def _container_numbers(values: pa.Array, containers: ContainerSet) -> NDArray[np.int32]:
    try:
        return match_containers(values, containers).number
    except InvalidInputError:
        # Another writer stored a location that is not a URL. Handle the locations one by one.
        number = np.full(len(values), -1, np.int32)
        for row in range(len(values)):
            try:
                number[row] = match_containers(values.slice(row, 1), containers).number[0]
            except InvalidInputError:
                continue
        return number


def _place(location: str) -> str:
    try:
        url = parse_url(location)
    except InvalidInputError:
        return location
    return f"{url.scheme}://{url.authority}/"


def _endpoint(store: stores.ObjectStoreConfig) -> str | None:
    if isinstance(store, stores.S3 | stores.S3Compatible):
        return store.options.endpoint_url
    if isinstance(store, stores.Tigris):
        return store.opts.endpoint_url
    if isinstance(store, stores.Azure):
        return f"account {store.opts.get('account')}"
    return None
