"""Kerchunk reference sets, as JSON or Parquet, as sources."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.errors import IcefloeError
from icefloe.storage.calls import DaemonThreads
from icefloe.virtual import sources
from icefloe.virtual.formats import zarr_source
from icefloe.virtual.model.description import (
    GroupDescription,
    Json,
    SourceDescription,
    SourceError,
    SourceVersion,
    VariableDescription,
    make_references,
    mark_gaps,
    wants_values,
    with_values,
)
from icefloe.virtual.sources import Place, SourceAccess

Entry = bytes | tuple[str, int, int]
"""The bytes themselves, or a URL, an offset and a length. No length (0) means the whole file."""

METADATA_NAMES = frozenset({".zgroup", ".zarray", ".zattrs", "zarr.json"})
_BASE64 = b"base64:"


class ChunkColumns(NamedTuple):
    """The chunks of one array: one row for each, a URL or bytes, and null for the other."""

    place: NDArray[np.int64]
    url: pa.DictionaryArray
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    inline: pa.Array


class ReferenceSet(Protocol):
    """A set that has been opened."""

    location: str
    version: SourceVersion
    documents: dict[str, Entry]
    """Metadata of groups and arrays, by key."""

    def columns(self, variable: VariableDescription, keys: zarr_source.ChunkKeys) -> ChunkColumns:
        """All chunks of an array.

        Raises:
            SourceError: some cannot be chunks of it.
        """

    def find(self, key: str) -> Entry | None: ...

    def check_owners(self, paths: frozenset[str]) -> None:
        """Refuse chunks that belong to none of these arrays."""


def inline_bytes(data: bytes) -> bytes:
    """The bytes of a chunk that is in the set; they may be written in base64."""
    if not data.startswith(_BASE64):
        return data
    try:
        return base64.b64decode(data[len(_BASE64) :], validate=True)
    except binascii.Error as error:
        raise ValueError(f"it is not base64 ({error})") from None


def texts_to_arrow(texts: Any) -> pa.DictionaryArray:
    """A column of texts that repeat."""
    return pa.array(texts, pa.string()).dictionary_encode()


# A set is a Zarr hierarchy whose chunks are ranges of bytes in other files. In a virtual ingest
# they become references of the repository, with checksums: every file that is referred to is
# looked at once (a `stat`, or a HEAD request), which also tells whether the ranges are inside of
# it. Chunks that the set itself holds are stored. In a native ingest values are read with zarr.
#
# URLs mean what they mean to fsspec: a path without a scheme is a local file, a relative one
# starts at the working directory of the process; names of files and keys of buckets are taken
# literally, those of web servers are percent-encoded. A set is data from elsewhere: one that is
# not a local file itself may not refer to local files.

_LOCAL = ("file", "local")
_PLAIN_CODECS = ("bytes", "transpose")


def locate(url: str, source: str) -> str:
    """The location that a URL of a set stands for.

    Raises:
        SourceError: the set is remote and the URL is a local file.
    """
    scheme, mark, rest = sources.hadoop_free(url).partition("://")
    scheme = scheme.lower()
    if not mark or scheme in _LOCAL:
        if sources.local_path(source) is None:
            raise SourceError(
                f"{source}: it refers to the local file {url!r}, which a set of references from "
                "elsewhere may not; copy the set to a disk if that is meant"
            )
        return Path(os.path.abspath(rest if mark else url)).as_uri()  # noqa: PTH100 - no '..' left
    if scheme in ("http", "https"):
        return f"{scheme}://{rest}"
    bucket, _, key = rest.partition("/")
    return sources.location_of_key(f"{'gs' if scheme == 'gcs' else scheme}://{bucket}", key)


class KerchunkReader:
    """An open set whose arrays can be read."""

    def __init__(self, references: ReferenceSet, access: SourceAccess) -> None:
        self._set, self._access = references, access

    def open_array(self, path: str) -> zarr.Array[Any]:
        return zarr.open_array(_ReferenceStore(self), path=path, mode="r")

    def documents(self) -> dict[str, dict[str, Json]]:
        """The metadata of all groups and arrays, by key."""
        keys = [key for key in self._set.documents if _is_metadata(key)]
        return {
            key: zarr_source.parse_json(self._set.location, key, self.bytes_of(key)) for key in keys
        }

    def bytes_of(self, key: str) -> bytes | None:
        """What is behind a key: metadata, or an encoded chunk. None if there is nothing.

        Raises:
            SourceError: there is a reference to something that cannot be read.
        """
        found = self._set.documents.get(key) if _is_metadata(key) else self._set.find(key)
        if found is None or isinstance(found, bytes):
            return found
        url, offset, length = found
        location = locate(url, self._set.location)
        try:
            return self._access.read(location, offset, length or None)
        except IcefloeError as error:
            raise SourceError(
                f"{self._set.location}: {key!r} refers to {location}, which cannot be read: {error}"
            ) from error


def _is_metadata(key: str) -> bool:
    return key.rpartition("/")[2] in METADATA_NAMES


def scan_kerchunk(
    found: ReferenceSet,
    access: SourceAccess,
    *,
    references: bool,
    concat_dims: tuple[str, ...] | None,
) -> SourceDescription:
    """Describe a set of references.

    Raises:
        SourceError: it cannot be right, or refers to files that are not there.
    """
    location, reader = found.location, KerchunkReader(found, access)
    groups: dict[str, GroupDescription] = {}
    arrays: dict[str, tuple[VariableDescription, zarr_source.ChunkKeys]] = {}
    for path, is_array, document, attributes in zarr_source.nodes_of(reader.documents()):
        if is_array and not path:
            raise SourceError(f"{location}: it is a single array, expected a group of arrays")
        if is_array:
            arrays[path] = zarr_source.describe_array(location, path, document, attributes)
            _check_shape(location, arrays[path][0])
        else:
            groups[path] = GroupDescription(attributes)
    if not arrays:
        raise SourceError(f"{location}: there is no array in it: no key ends with '.zarray'")
    found.check_owners(frozenset(arrays))
    placer = _Placer(location, access)
    variables, tables = {}, {}
    for path, (variable, keys) in arrays.items():
        columns = found.columns(variable, keys)
        locations = [locate(url, location) for url in columns.url.dictionary.to_pylist()]
        if references and variable.codecs is not None:
            tables[path] = placer.place(variable, columns, locations)
        if variable.data_type is not None and wants_values(variable, concat_dims):
            variable = with_values(variable, zarr_source.read_region(reader.open_array(path), ()))  # noqa: PLW2901
        variables[path] = variable
    groups.setdefault("", GroupDescription())
    zarr_source.name_dimensions(groups, variables)
    mark_gaps(variables, tables)
    return SourceDescription(
        location,
        "kerchunk",
        found.version,
        groups,
        variables,
        tables if references else None,
    )


def _check_shape(location: str, variable: VariableDescription) -> None:
    sizes, chunks = variable.shape, variable.chunks
    are_whole = all(type(number) is int for number in (*sizes, *chunks))
    if len(sizes) != len(chunks) or not are_whole or min(sizes, default=0) < 0 or 0 in chunks:
        raise SourceError(
            f"{location}: array {variable.path!r} has the shape {sizes} and chunks of {chunks}"
        )


class _Placer:
    """Makes tables of references; looks at every file once."""

    def __init__(self, location: str, access: SourceAccess) -> None:
        self._location, self._access = location, access
        self._versions: dict[str, SourceVersion] = {}

    def place(
        self, variable: VariableDescription, columns: ChunkColumns, locations: list[str]
    ) -> pa.Table:
        """The table of an array; `locations` are those of the dictionary of URLs."""
        self._look_at(variable.path, locations)
        versions = [self._versions[location] for location in locations]
        is_inline = columns.inline.is_valid().to_numpy(zero_copy_only=False)
        code = columns.url.indices.fill_null(0).to_numpy().astype(np.int64)
        sizes = np.array([version.size_bytes for version in versions] or [0], np.int64)[code]
        length = np.where(columns.length == 0, sizes, columns.length)
        inline_length = pc.binary_length(columns.inline).fill_null(0).to_numpy()
        self._check(variable, columns, np.where(is_inline, inline_length, length), sizes, is_inline)
        etags = pa.array([version.etag for version in versions], pa.string())
        seconds = [None if version.etag else version.last_modified for version in versions]
        take = columns.url.indices
        more = {"last_modified": pa.array(seconds, pa.uint32()).take(take)}
        if etags.null_count < len(etags):
            more["etag"] = pa.DictionaryArray.from_arrays(take, etags)
        if is_inline.any():
            more["inline"] = columns.inline
        found = pa.DictionaryArray.from_arrays(take, pa.array(locations, pa.string()))
        table = make_references(columns.place, found, columns.offset, length, **more)
        order = np.lexsort(columns.place.T[::-1]) if columns.place.shape[1] else [0] * len(table)
        return table.take(pa.array(order, pa.int64()))

    def _look_at(self, path: str, locations: Iterable[str]) -> None:
        new = [location for location in locations if location not in self._versions]
        try:
            if len(new) > 1 and sources.local_path(new[0]) is None:
                pool = DaemonThreads(sources.READS_AT_ONCE, "icefloe-reads")
                found = list(pool.map(self._access.look, new))
            else:
                found = list(map(self._access.look, new))
        except IcefloeError as error:
            raise SourceError(
                f"{self._location}: array {path!r} refers to a file that cannot be read: {error}"
            ) from error
        self._versions |= dict(zip(new, found, strict=True))

    def _check(
        self,
        variable: VariableDescription,
        columns: ChunkColumns,
        length: NDArray[np.int64],
        sizes: NDArray[np.int64],
        is_inline: NDArray[np.bool_],
    ) -> None:
        """Refuse ranges outside of files, and chunks that cannot have the right size."""
        outside = ~is_inline & ((columns.offset + length > sizes) | (length == 0))
        if outside.any():
            row = int(np.argmax(outside))
            raise SourceError(
                f"{self._location}: chunk {tuple(columns.place[row].tolist())} of array "
                f"{variable.path!r} is said to be {length[row]} bytes at {columns.offset[row]} of "
                f"{columns.url[row].as_py()}, which has {sizes[row]} bytes"
            )
        assert variable.codecs is not None
        is_plain = all(codec["name"] in _PLAIN_CODECS for codec in variable.codecs)
        expected = math.prod(variable.chunks) * variable.itemsize
        if is_plain and (length != expected).any():
            row = int(np.argmax(length != expected))
            raise SourceError(
                f"{self._location}: chunk {tuple(columns.place[row].tolist())} of array "
                f"{variable.path!r} has {length[row]} bytes; it is not compressed, so that "
                f"{expected} were expected"
            )


class _ReferenceStore(MemoryStore):
    """What zarr reads arrays of a set from."""

    def __init__(self, reader: KerchunkReader) -> None:
        super().__init__(read_only=True)
        self._reader = reader

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        # Files are read by blocking calls; several chunks are waited for at once.
        data = await asyncio.to_thread(self._reader.bytes_of, key)
        if data is None:
            return None
        prototype = prototype or default_buffer_prototype()
        found = MemoryStore({key: prototype.buffer.from_bytes(data)})
        return await found.get(key, prototype, byte_range)


# In a folder of Parquet files `.zmetadata` holds the metadata of all groups and arrays, and how
# many references a file has (`record_size`). The chunks of an array, counted in C order, are the
# rows of `PATH/refs.0.parq`, `PATH/refs.1.parq` and so on: `path`, `offset` and `size`, or the
# bytes themselves in `raw`. A row without either, and a file that is not there, mean chunks that
# were never written.


_METADATA = ".zmetadata"
_RECORD = re.compile(r"(.+)/refs\.([0-9]+)\.parq")


def is_parquet_set(place: Place) -> bool:
    """Whether a folder is a set of references, rather than a Zarr store with such a file."""
    data = place.find(_METADATA)
    return data is not None and b'"record_size"' in data


class ParquetReferences:
    """A set from a folder; its files are read on first access."""

    def __init__(self, place: Place) -> None:
        """Read the metadata of a set and list its files.

        Raises:
            SourceError: it is none.
        """
        self.location, self._place = place.location, place
        listing = place.list_all()
        self.version = listing.version()
        document = zarr_source.parse_json(self.location, _METADATA, place.find(_METADATA))
        match document:
            case {"metadata": dict(), "record_size": int(size)} if size > 0:
                self._record_size = size
            case _:
                raise SourceError(
                    f"{self.location}: {_METADATA!r} has no 'metadata', or no 'record_size' above 0"
                )
        self.documents: dict[str, Entry] = {
            key: json.dumps(item).encode() for key, item in document["metadata"].items()
        }
        self._records: dict[str, list[int]] = {}
        for key in listing.keys:
            if found := _RECORD.fullmatch(key):
                self._records.setdefault(found[1], []).append(int(found[2]))
        self._layouts: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._loaded: tuple[str, int, pa.Table] | None = None

    def check_owners(self, paths: frozenset[str]) -> None:
        if strange := sorted(self._records.keys() - paths):
            reason = f"there are references of {strange[0]!r}, but no .zarray for it"
            raise SourceError(f"{self.location}: {reason}")

    def columns(self, variable: VariableDescription, keys: zarr_source.ChunkKeys) -> ChunkColumns:
        grid = zarr_source.grid_of(variable.shape, variable.chunks)
        count = math.prod(grid)
        parts, numbers = [], [np.empty(0, np.int64)]
        for record in sorted(self._records.get(variable.path, [])):
            table = self._table(variable.path, record)
            first = record * self._record_size
            is_there = pc.or_(pc.is_valid(table["path"]), pc.is_valid(table["raw"]))
            rows = np.flatnonzero(is_there.to_numpy(zero_copy_only=False))
            if len(rows) and first + int(rows[-1]) >= count:
                found = f"chunks outside of the grid of {grid}: there are {count}"
                raise self._wrong(variable.path, record, found)
            needed = min(self._record_size, count - first)
            if table.num_rows < needed:
                found = f"{table.num_rows} rows, expected {needed}"
                raise self._wrong(variable.path, record, found)
            numbers.append(first + rows)
            parts.append(table.take(pa.array(rows)))
        whole = pa.concat_tables(parts) if parts else _SCHEMA.empty_table()
        number = np.concatenate(numbers)
        index = np.zeros((len(number), len(grid)), np.int64)
        for axis, at in enumerate(np.unravel_index(number, grid) if grid and count else ()):
            index[:, axis] = at
        inline = [None if raw is None else inline_bytes(raw) for raw in whole["raw"].to_pylist()]
        return ChunkColumns(
            index,
            texts_to_arrow(whole["path"].combine_chunks()),
            whole["offset"].to_numpy(),
            whole["size"].to_numpy(),
            pa.array(inline, pa.binary()),
        )

    def find(self, key: str) -> Entry | None:
        path, number = self._number(key)
        if path is None:
            return None
        record, row = divmod(number, self._record_size)
        if record not in self._records.get(path, []):
            return None
        loaded = self._loaded  # other threads may replace it meanwhile
        if loaded is None or loaded[:2] != (path, record):
            self._loaded = loaded = path, record, self._table(path, record)
        table = loaded[2]
        if row >= table.num_rows:
            found = f"{table.num_rows} rows, and none for chunk {key!r}"
            raise self._wrong(path, record, found)
        values = {name: table[name][row].as_py() for name in table.column_names}
        if values["raw"] is not None:
            return inline_bytes(values["raw"])
        if values["path"] is None:
            return None
        return values["path"], values["offset"], values["size"]

    def _number(self, key: str) -> tuple[str | None, int]:
        """The array a key of zarr belongs to, and the position of the chunk in C order."""
        parts = key.split("/")
        for at in range(len(parts) - 1, 0, -1):
            path = "/".join(parts[:at])
            if (layout := self._layout(path)) is not None:
                separator, grid = layout
                index = "/".join(parts[at:]).split(separator)
                number = 0
                for position, length in zip(index, grid, strict=False):
                    number = number * length + int(position)
                return path, number
        return None, 0

    def _layout(self, path: str) -> tuple[str, tuple[int, ...]] | None:
        if path not in self._layouts:
            data = self.documents.get(f"{path}/.zarray")
            if not isinstance(data, bytes):
                return None
            found = json.loads(data)
            separator = found.get("dimension_separator") or "."
            self._layouts[path] = separator, zarr_source.grid_of(found["shape"], found["chunks"])
        return self._layouts[path]

    def _table(self, path: str, record: int) -> pa.Table:
        """The references of one file, in columns of known types."""
        data = self._place.find(f"{path}/refs.{record}.parq")
        if data is None:
            raise self._wrong(path, record, "gone: it disappeared while it was read")
        try:
            found = pq.read_table(io.BytesIO(data))
            columns = [_column(found, field) for field in _SCHEMA]
        except (pa.ArrowException, OSError) as error:
            raise self._wrong(path, record, f"not readable ({error})") from error
        table = pa.Table.from_arrays(columns, schema=_SCHEMA)
        offset, size = table["offset"].to_numpy(), table["size"].to_numpy()
        is_wrong = (offset < 0) | (size < 0) | ((size == 0) & (offset > 0))
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            found_there = f"offset {offset[row]} and size {size[row]} in row {row}"
            raise self._wrong(path, record, found_there)
        return table

    def _wrong(self, path: str, record: int, found: str) -> SourceError:
        return SourceError(f"{self.location}: '{path}/refs.{record}.parq' has {found}")


_SCHEMA = pa.schema(
    [("path", pa.string()), ("offset", pa.int64()), ("size", pa.int64()), ("raw", pa.binary())]
)


def _column(table: pa.Table, field: pa.Field) -> pa.Array:
    """A column as the schema has it. Writers leave out empty ones, or store them as numbers."""
    is_number = pa.types.is_integer(field.type)
    if field.name not in table.column_names:
        found: pa.Array = pa.nulls(table.num_rows, field.type)
    else:
        given = table[field.name].combine_chunks()
        given = given.chunk(0) if isinstance(given, pa.ChunkedArray) else given
        if not is_number and pa.types.is_floating(given.type) and pc.all(pc.is_nan(given)).as_py():
            given = pa.nulls(len(given), field.type)
        found = given if given.type == field.type else given.cast(field.type)
    if is_number:
        return found.fill_null(0)
    # An empty text is written by those who have no null.
    return pc.if_else(pc.equal(pc.binary_length(found), 0), None, found)
