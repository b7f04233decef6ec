"""One piece of a plan, in this process or on an executor: chunks copied or referred to."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr
from numcodecs import Blosc, Zstd
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.dtype import parse_dtype

from icefloe.cf.times import convert_times
from icefloe.config.containers import ContainerSet
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.geometry import Slices, chunks_of, cut, inside, shape_of
from icefloe.storage.calls import DaemonThreads
from icefloe.storage.run import run_blocking
from icefloe.store.operations import set_key
from icefloe.store.virtual import match_containers
from icefloe.store.zarr_store import IcechunkStore
from icefloe.virtual.formats.opening import NativeReader, open_native
from icefloe.virtual.model.data_types import little_endian
from icefloe.virtual.model.description import (
    Json,
    SourceDescription,
    SourceError,
    SourceVersion,
    VariableDescription,
    cut_leading,
    index_of,
    join_path,
    only,
    shift_references,
    with_checksums,
)
from icefloe.virtual.planning.agreement import group_document
from icefloe.virtual.planning.file_boxes import Existing
from icefloe.virtual.planning.plan import ArrayPlan, IngestPlan, Packing
from icefloe.virtual.planning.planner import target_of
from icefloe.virtual.sources import SourceAccess

# Errors of libraries do not say which file they are about. The copy has to know: with
# `on_error="skip"` that file is left out, and the others are copied.

MAX_OPEN_FILES = 64


class DamagedSourceError(SourceError):
    """A file that could be described cannot be read."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"{location}: {reason}")
        self.location, self.reason = location, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location, self.reason)


class OpenFiles:
    """Opens files when they are first read; closes them when there are too many, and at the end."""

    def __init__(self, access: SourceAccess) -> None:
        self._access = access
        self._stack = ExitStack()
        self._readers: dict[str, NativeReader] = {}

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, location: str, path: str, region: Slices) -> NDArray[Any]:
        """Part of a variable of a file.

        Raises:
            DamagedSourceError: it cannot be read.
        """
        try:
            return self._open(location).read(path, region)
        except Exception as error:
            reason = f"{path!r} cannot be read: {reason_of(error, location)}"
            raise DamagedSourceError(location, reason) from error

    def _open(self, location: str) -> NativeReader:
        if location not in self._readers:
            if len(self._readers) >= MAX_OPEN_FILES:
                self._stack.close()
                self._readers.clear()
            opened = open_native(location, self._access)
            self._readers[location] = self._stack.enter_context(opened)
        return self._readers[location]


def reason_of(error: Exception, location: str) -> str:
    """What went wrong, in one line and without the name of the file."""
    text = " ".join(str(error).removeprefix(f"{location}: ").split())
    if isinstance(error, IcefloeError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def collecting(damaged: dict[str, str]) -> Iterator[None]:
    """Enter a file that turns out to be damaged, with the reason, rather than fail."""
    try:
        yield
    except DamagedSourceError as error:
        damaged.setdefault(error.location, error.reason)


def write_metadata(store: Store, plan: IngestPlan) -> None:
    """Write the zarr.json of every group and array of a plan.

    Attributes that a group has already stay as they are.
    """
    inside = (array.target.rpartition("/")[0] for array in plan.arrays)
    with_parents = (accumulate(path.split("/"), join_path) for path in [*plan.groups, *inside])
    for path in dict.fromkeys(path for paths in with_parents for path in paths if path):
        write_document(store, path, group_document(plan.groups.get(path, {})), may_replace=False)
    for path, attributes in plan.groups.items():
        there = read_document(store, path).get("attributes") or {}
        if attributes.keys() - there.keys():
            write_document(store, path, group_document({**attributes, **there}))
    for array in plan.arrays:
        write_document(store, array.target, array.metadata)


def read_document(store: Store, path: str) -> dict[str, Json]:
    """The zarr.json of a node; empty if it is not there."""
    data = sync(store.get(join_path(path, "zarr.json"), default_buffer_prototype()))
    document: dict[str, Json] = {} if data is None else json.loads(data.to_bytes())
    return document


def write_document(
    store: Store, path: str, document: dict[str, Json], *, may_replace: bool = True
) -> None:
    """Write one zarr.json."""
    key = join_path(path, "zarr.json")
    data = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    sync(store.set(key, data) if may_replace else store.set_if_not_exists(key, data))


def write_values(store: Store, array: ArrayPlan) -> None:
    """Write a small coordinate, whose values are in the plan."""
    assert array.values is not None
    target = zarr.open_array(store, path=array.target, mode="r+", zarr_format=3)
    first, last = array.starts[0], array.starts[0] + array.shapes[0]
    region = tuple(map(slice, first.tolist(), last.tolist()))
    if array.values.size:
        target[region or ...] = array.values


def read_block(
    plan: IngestPlan,
    array: ArrayPlan,
    region: Slices,
    files: OpenFiles,
    target: zarr.Array[Any] | None = None,
) -> NDArray[Any]:
    """The values of a region of the target, from the files that have them.

    Values are as stored: packed ones stay packed. Only times are converted, where their units
    differ between files. What no file has is what the `target` has, if given, else the fill value.
    """
    native, fill = _stored_type(array)
    dtype = np.dtype(object) if native.kind in "OT" else native
    shape = shape_of(region)
    block: NDArray[Any] | None = None
    for part in array.parts(region):
        source = plan.sources[part.source]
        values = files.read(source.location, array.path, part.source_region)
        units = array.source_times.get(part.source)
        if units is not None:
            values = _converted(source, array, values, units)
        if (packing := array.packings.get(part.source)) is not None:
            values = _repacked(source, array, packing, values, dtype)
        if array.reserved is not None and bool((values == array.reserved).any()):
            raise DamagedSourceError(
                source.location,
                f"{array.path!r} holds {array.reserved!r}, which has to mean missing here: other "
                "files lack the variable, and no value of it is marked as missing",
            )
        if part.target_region == region and region:
            return values.reshape(shape).astype(dtype, copy=False)
        if block is None and target is not None:
            block = np.array(target[region], dtype)
        elif block is None:
            block = np.full(shape, fill, dtype)
        place = inside(part.target_region, region)
        block[place] = values.reshape(shape_of(place))
    return np.full(shape, fill, dtype) if block is None else block


def _stored_type(array: ArrayPlan) -> tuple[np.dtype[Any], Any]:
    """The type of the values, and the fill value."""
    kind = parse_dtype(array.metadata["data_type"], zarr_format=3)
    fill = kind.from_json_scalar(array.metadata["fill_value"], zarr_format=3)
    return kind.to_native_dtype(), fill


def _converted(
    source: SourceDescription, array: ArrayPlan, values: NDArray[Any], units: Any
) -> NDArray[Any]:
    assert array.times is not None
    variable = source.variables[array.path]
    dtype = np.dtype(little_endian(variable.dtype))
    fill = variable.attributes.get("_FillValue")
    missing = fill if isinstance(fill, int) else None
    found = convert_times(values, units, array.times, dtype, missing)
    if found is None:
        raise DamagedSourceError(
            source.location,
            f"times of {array.path!r} cannot be written exactly as {dtype} in the units of "
            + ("the first file" if array.old_shape is None else "the repository"),
        )
    return found


def _repacked(
    source: SourceDescription,
    array: ArrayPlan,
    packing: Packing,
    values: NDArray[Any],
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    own = array.packed_as
    if own is None:
        return packing.unpack(values, dtype)
    found = own.pack(packing.unpack(values, np.dtype("f8")), dtype)
    if found is None:
        raise DamagedSourceError(
            source.location,
            f"{array.path!r} has values that cannot be packed as {dtype} with the scale_factor "
            "and add_offset of the array in the repository",
        )
    return found


def check_missing(
    plan: IngestPlan, array: ArrayPlan, region: Slices, target: zarr.Array[Any]
) -> None:
    """Refuse files of which a region of the target has values already.

    Raises:
        DamagedSourceError: names the file.
    """
    for part in array.parts(region) if array.guarded else ():
        if part.source not in array.guarded:
            continue
        there = np.asarray(target[part.target_region])
        fill = np.asarray(target.fill_value, there.dtype)
        is_missing = there == fill
        if there.dtype.kind in "fc":
            is_missing |= np.isnan(there) & bool(np.isnan(fill))
        if not bool(np.all(is_missing)):
            raise DamagedSourceError(
                plan.sources[part.source].location,
                f"{array.path!r} has values at its place already, in the repository",
            )


def write_references(store: IcechunkStore, target: str, placed: pa.Table) -> None:
    """Hand references over to a session; chunks that travel in the table are written.

    Raises:
        InvalidInputError: no virtual chunk container of the repository covers a location.
    """
    if "inline" in placed.column_names:
        buffer = default_buffer_prototype().buffer
        inline = placed.filter(pc.is_valid(placed["inline"]))
        chunks = zip(index_of(inline).tolist(), inline["inline"].to_pylist(), strict=True)
        for index, data in chunks:
            key = "/".join([target, "c", *map(str, index)])
            sync(store.set(key, buffer.from_bytes(data)))
        placed = placed.filter(pc.is_null(placed["inline"])).drop_columns("inline")
        if not placed.num_rows:
            return
    if (failed := store.set_virtual_refs_table(target, placed)) is not None:
        is_first = (index_of(placed) == np.array(failed[0])).all(axis=1)
        location = placed["location"][int(np.argmax(is_first))].as_py()
        raise _uncovered(location)


def _uncovered(location: str) -> InvalidInputError:
    return InvalidInputError(
        f"no virtual chunk container covers {location}; add_containers=True (--add-containers) "
        "adds those of sources; for files that a set of references names, add one to the "
        "configuration of the repository, with set_virtual_chunk_container, and save it",
        ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
    )


def sources_of_references(plan: IngestPlan) -> list[SourceDescription]:
    """Sources that references lead to. Those of Zarr stores and of sets lead elsewhere."""
    virtual = [array for array in plan.arrays if array.storage == "virtual"]
    numbers = {number for array in virtual for number in array.sources.tolist()}
    sources = (plan.sources[number] for number in sorted(numbers))
    return [source for source in sources if source.format not in ("zarr", "kerchunk")]


def require_containers(locations: Sequence[str], containers: ContainerSet) -> None:
    """Refuse files that no container covers, before any work is done.

    Raises:
        InvalidInputError: names one of them.
    """
    if not locations:
        return
    is_covered = match_containers(pa.array(locations, pa.string()), containers).number >= 0
    if not is_covered.all():
        raise _uncovered(locations[int(np.argmin(is_covered))])


class Placement(NamedTuple):
    """Where the references of one variable of one source go: all that placing them needs."""

    target: str
    location: str
    first_chunk: tuple[int, ...]
    cut: tuple[tuple[int, ...], tuple[int, ...]] | None
    """The shape of a contiguous variable, and that of the chunks it is cut into."""
    version: SourceVersion
    is_guarded: bool = False
    """Whether the target may have no chunks there."""

    def place(self, table: pa.Table, store: Store) -> pa.Table | None:
        """What scanning gave, at its place in the target, with checksums; None without chunks.

        Raises:
            DamagedSourceError: the target, in `store`, has chunks there already.
        """
        if not table.num_rows:
            return None
        if self.cut is not None and "offset" in table.column_names:
            table = cut_leading(table, *self.cut)
        placed = with_checksums(shift_references(table, self.first_chunk), self.version)
        for index in index_of(placed).tolist() if self.is_guarded else ():
            if sync(store.exists("/".join([self.target, "c", *map(str, index)]))):
                raise DamagedSourceError(
                    self.location, f"{self.target!r} has values at its place already"
                )
        return placed


def placement_of(plan: IngestPlan, array: ArrayPlan, row: int) -> Placement:
    """Where the file of `array.sources[row]` goes."""
    number = int(array.sources[row])
    source = plan.sources[number]
    variable = source.variables[array.path]
    chunks = np.maximum(np.array(array.chunks, np.int64), 1)
    own = array.chunks[array.num_new_axes :]
    is_cut = variable.is_contiguous and 0 not in variable.shape and own != variable.shape
    return Placement(
        array.target,
        source.location,
        tuple((array.starts[row] // chunks).tolist()),
        (variable.shape, own) if is_cut else None,
        source.version,
        number in array.guarded,
    )


def place_references(
    store: IcechunkStore,
    found: Iterable[tuple[Placement, pa.Table]],
    damaged: dict[str, str],
) -> None:
    """Hand what scans found over to a session; files that do not fit are added to `damaged`."""
    tables: dict[str, list[pa.Table]] = {}
    for placement, table in found:
        placed = None
        with collecting(damaged):
            placed = placement.place(table, store)
        if placed is None:
            continue
        if "inline" in placed.column_names:
            write_references(store, placement.target, placed)
        else:
            tables.setdefault(placement.target, []).append(placed)
    for target, parts in tables.items():
        # All at once: a session lays every table it is given over the ones before.
        whole = pa.concat_tables(parts, promote_options="default")
        write_references(store, target, whole)


# Reading, compressing and storing overlap: a thread reads, a few others compress
# and store what it read. Zarr would do the same through its event loop, which costs as much as
# the compression of an ordinary chunk; it is asked where a chunk is completed rather than written
# whole, and for data types and codecs that are not plain numbers in a plain chain.

STORING_THREADS = 4
_MAX_WAITING_BYTES = 64 << 20  # read, but not stored so far
_SHUFFLES = {"noshuffle": Blosc.NOSHUFFLE, "shuffle": Blosc.SHUFFLE, "bitshuffle": Blosc.BITSHUFFLE}

Encode = Callable[[NDArray[Any]], Any]


def copy_region(
    store: IcechunkStore, plan: IngestPlan, array: ArrayPlan, region: Slices, files: OpenFiles
) -> None:
    """Fill a region of the target, which no other writer shares a chunk of."""
    encode = _chunk_encoder(array)
    target = zarr.open_array(store, path=array.target, mode="r+", zarr_format=3)
    check_missing(plan, array, region, target)
    is_inside = array.old_shape is not None and all(
        span.start < size for span, size in zip(region, array.old_shape, strict=True)
    )
    kept = target if is_inside and region else None
    if encode is None or not region:
        target[region or ...] = read_block(plan, array, region, files, kept)
        return
    # Single chunks are read, where no file decodes twice then: what was read last is still in the
    # processor's cache when it is compressed.
    units = [region] if _cuts_source_chunks(plan, array) else cut(region, array.chunks)
    with _Storing(store, array, encode) as storing:
        for unit in units:
            if kept is None or len(array.rows_in(unit)):
                storing.add(unit, read_block(plan, array, unit, files, kept))


def _chunk_encoder(array: ArrayPlan) -> Encode | None:
    """What turns the values of a chunk into stored bytes; None where only Zarr can tell."""
    codecs = array.metadata["codecs"]
    if _stored_type(array)[0].kind not in "biufc" or len(codecs) != 2:
        return None
    serializer, compressor = codecs
    settings = compressor.get("configuration", {})
    is_little = serializer.get("configuration", {}).get("endian", "little") == "little"
    if serializer["name"] != "bytes" or not is_little:
        return None
    codec: Zstd | Blosc | None = None
    if compressor["name"] == "zstd":
        codec = Zstd(settings["level"], settings["checksum"])
    elif compressor["name"] == "blosc":
        codec = Blosc(**{**settings, "shuffle": _SHUFFLES[settings["shuffle"]]})
    return None if codec is None else codec.encode


def _cuts_source_chunks(plan: IngestPlan, array: ArrayPlan) -> bool:
    """Whether a border between chunks of the target lies inside a chunk of a file."""
    new = array.num_new_axes
    variables = [plan.sources[number].variables[array.path] for number in array.sources.tolist()]
    lengths = array.shapes[:, new:]
    # A file without chunks may be read anywhere.
    own = np.array([[1] * len(v.shape) if v.is_contiguous else v.chunks for v in variables])
    target = np.array(array.chunks[new:], np.int64)
    first_cut = -array.starts[:, new:] % target
    first_cut = np.where(first_cut == 0, target, first_cut)
    is_one = first_cut % own == 0
    are_others = (target % own == 0) | (first_cut + target >= lengths)
    return not bool(((first_cut >= lengths) | (is_one & are_others)).all())


class _Storing:
    """The threads that compress and store; errors of theirs are raised by `add`, or at the end."""

    def __init__(self, store: IcechunkStore, array: ArrayPlan, encode: Encode) -> None:
        native, fill = _stored_type(array)
        self._dtype = native.newbyteorder("<")
        self._fill = np.asarray(fill, self._dtype)
        self._store, self._array, self._encode = store, array, encode
        self._pool = DaemonThreads(STORING_THREADS, "icefloe-stores")
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._waiting_bytes = 0

    def __enter__(self) -> _Storing:
        return self

    def __exit__(self, failed: Any, *_: object) -> None:
        try:
            while self._waiting and failed is None:
                self._wait()
        finally:
            left = [done for done, _ in self._waiting if not done.cancel()]
            if failed is not KeyboardInterrupt:
                wait(left)

    def add(self, region: Slices, block: NDArray[Any]) -> None:
        for box in cut(region, self._array.chunks):
            values = block[inside(box, region)]
            while self._waiting and self._waiting_bytes + values.nbytes > _MAX_WAITING_BYTES:
                self._wait()
            done = self._pool.submit(self._store_chunk, box, values)
            self._waiting.append((done, values.nbytes))
            self._waiting_bytes += values.nbytes

    def _wait(self) -> None:
        done, nbytes = self._waiting.popleft()
        done.result()
        self._waiting_bytes -= nbytes

    def _store_chunk(self, box: Slices, values: NDArray[Any]) -> None:
        chunks = self._array.chunks
        index = [span.start for span in chunks_of(box, chunks)]
        if not self._is_whole(box):
            self._complete(box, values)
            return
        if self._is_empty(values):
            if self._array.old_shape is not None:
                self._complete(box, values)  # there may be something to be removed
            return
        if values.shape != chunks:
            padded = np.full(chunks, self._fill, self._dtype)
            padded[tuple(slice(0, size) for size in values.shape)] = values
            values = padded
        data = self._encode(np.ascontiguousarray(values, self._dtype))
        key = "/".join([self._array.target, "c", *map(str, index)])
        run_blocking(set_key(self._store.session.workspace, key, data))

    def _is_whole(self, box: Slices) -> bool:
        """Whether a box is all that its chunk has inside of the array."""
        return all(
            span.start % length == 0 and span.stop in (span.start + length, size)
            for span, length, size in zip(box, self._array.chunks, self._array.shape, strict=True)
        )

    def _is_empty(self, values: NDArray[Any]) -> bool:
        """Whether all values are the fill value, bit for bit: such chunks are not stored."""
        if values[(0,) * values.ndim].astype(self._dtype).tobytes() != self._fill.tobytes():
            return False
        bits = f"u{min(8, self._dtype.itemsize)}"
        stored = np.ascontiguousarray(values, self._dtype).reshape(-1, 1).view(bits)
        return bool((stored == self._fill.reshape(1, 1).view(bits)).all())

    def _complete(self, box: Slices, values: NDArray[Any]) -> None:
        target = zarr.open_array(self._store, path=self._array.target, mode="r+", zarr_format=3)
        target[box] = values


# Whether large variables that every file repeats are the same in all of them: a scan reads small
# ones. Of large ones only the plan knows whether files are joined along one of
# their dimensions; those that are not are read once more, where the files are, and hashed.
# Without that the first file would speak for all.


_BLOCK_BYTES = 16 * 1024 * 1024

Digests = dict[tuple[str, str], bytes]
"""By location and path."""
Digested = tuple[Digests, dict[str, str]]
"""Digests, and files that cannot be read, with the reasons."""
FileToRead = tuple[SourceDescription, list[str]]
"""A file, and the variables of it that are read."""


def _digest_variable(read: Callable[[Slices], Any], variable: VariableDescription) -> bytes:
    """The digest that `description.digest_of` has for all values, of which few are in memory."""
    hashed = hashlib.blake2b(digest_size=16)
    dtype = np.dtype(variable.dtype)
    rows = max(1, _BLOCK_BYTES // max(1, prod(variable.shape[1:]) * dtype.itemsize))
    whole = tuple(slice(0, size) for size in variable.shape[1:])
    for start in range(0, variable.shape[0], rows):
        span = slice(start, min(start + rows, variable.shape[0]))
        values = np.asarray(read((span, *whole)))
        hashed.update(np.ascontiguousarray(values, dtype.newbyteorder("<")).tobytes())
    return hashed.digest()


def digest_files(access: SourceAccess, items: Iterable[FileToRead]) -> Iterator[Digested]:
    """The digests of some variables of files."""
    for source, paths in items:
        found: Digests = {}
        try:
            with OpenFiles(access) as files:
                for path in paths:
                    read = partial(files.read, source.location, path)
                    found[source.location, path] = _digest_variable(read, source.variables[path])
            yield found, {}
        except DamagedSourceError as error:
            yield {}, {source.location: error.reason}


def files_to_read(
    uncompared: Mapping[str, Sequence[str]], sources: Sequence[SourceDescription]
) -> list[FileToRead]:
    """The files that have to be read, with the paths that are wanted of each."""
    wanted: dict[str, list[str]] = {}
    for path, locations in uncompared.items():
        for location in locations:
            wanted.setdefault(location, []).append(path)
    return [
        (only(source, *wanted[source.location]), wanted[source.location])
        for source in sources
        if source.location in wanted
    ]


def with_digests(sources: Sequence[SourceDescription], digests: Digests) -> list[SourceDescription]:
    """Descriptions that also say what was found out."""
    changed: dict[str, dict[str, VariableDescription]] = {}
    by_location = {source.location: source.variables for source in sources}
    for (location, path), digest in digests.items():
        variable = replace(by_location[location][path], digest=digest)
        changed.setdefault(location, {})[path] = variable
    return [
        replace(source, variables={**source.variables, **changed[source.location]})
        if source.location in changed
        else source
        for source in sources
    ]


def digest_existing(
    store: Store, group: str, existing: Existing | None, paths: Sequence[str]
) -> Existing | None:
    """What is appended to, with digests of these arrays as well."""
    if existing is None:
        return None
    variables = dict(existing.description.variables)
    for path in paths:
        variable = variables.get(path)
        if variable is not None and variable.digest is None:
            array = zarr.open_array(store, path=target_of(group, path), mode="r", zarr_format=3)
            try:
                digest = _digest_variable(array.__getitem__, variable)
            except InvalidInputError as error:
                if error.kind != ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER:
                    raise
                continue  # references that may not be read here
            variables[path] = replace(variable, digest=digest)
    return replace(existing, description=replace(existing.description, variables=variables))
