"""Sets of references, as kerchunk and VirtualiZarr write them, as sources.

A set is a Zarr hierarchy whose chunks are ranges of bytes in other files. In a virtual ingest they
become references of the repository, with checksums: every file that is referred to is looked at
once (a `stat`, or a HEAD request), which also tells whether the ranges are inside of it. Chunks
that the set itself holds are stored. In a native ingest values are read with zarr.

URLs mean what they mean to fsspec: a path without a scheme is a local file, a relative one starts
at the working directory of the process; names of files and keys of buckets are taken literally,
those of web servers are percent-encoded. A set is data from elsewhere: one that is not a local
file itself may not refer to local files.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from icefloe.errors import IcefloeError
from icefloe.on_demand import on_demand
from icefloe.storage.client.interruptible import DaemonThreads
from icefloe.virtual.formats.chunk_keys import ChunkKeys
from icefloe.virtual.formats.kerchunk_entries import (
    METADATA_NAMES,
    ChunkColumns,
    Entry,
    ReferenceSet,
)
from icefloe.virtual.formats.zarr_source import describe_array, name_dimensions, read_region
from icefloe.virtual.model.description import (
    GroupDescription,
    Json,
    SourceDescription,
    SourceError,
    SourceVersion,
    VariableDescription,
    mark_gaps,
    wants_values,
    with_values,
)
from icefloe.virtual.model.references import make_references
from icefloe.virtual.places.access import SourceAccess, hadoop_free, local_path, location_of_key
from icefloe.virtual.places.list_objects import READS_AT_ONCE

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = on_demand("pyarrow")
    pc = on_demand("pyarrow.compute")

_LOCAL = ("file", "local")
_PLAIN_CODECS = ("bytes", "transpose")


def locate(url: str, source: str) -> str:
    """The location that a URL of a set stands for.

    Raises:
        SourceError: the set is remote and the URL is a local file.
    """
    scheme, mark, rest = hadoop_free(url).partition("://")
    scheme = scheme.lower()
    if not mark or scheme in _LOCAL:
        if local_path(source) is None:
            raise SourceError(
                f"{source}: it refers to the local file {url!r}, which a set of references from "
                "elsewhere may not; copy the set to a disk if that is meant"
            )
        return Path(os.path.abspath(rest if mark else url)).as_uri()  # noqa: PTH100 - no '..' left
    if scheme in ("http", "https"):
        return f"{scheme}://{rest}"
    bucket, _, key = rest.partition("/")
    return location_of_key(f"{'gs' if scheme == 'gcs' else scheme}://{bucket}", key)


class KerchunkReader:
    """An open set whose arrays can be read."""

    def __init__(self, references: ReferenceSet, access: SourceAccess) -> None:
        self._set, self._access = references, access
        self._arrays: dict[str, Any] = {}

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        """Part of an array as stored."""
        if path not in self._arrays:
            store = _ReferenceStore(self)
            self._arrays[path] = zarr.open_array(store, path=path, mode="r")
        return read_region(self._arrays[path], region)

    def nodes(self) -> Iterator[tuple[str, bool, dict[str, Json], dict[str, Json]]]:
        """Of every group and array: path, whether it is an array, metadata and attributes."""
        for key in self._set.documents:
            path, _, name = key.rpartition("/")
            if name == "zarr.json":
                document = self._document(key)
                is_array = document.get("node_type") == "array"
                yield path, is_array, document, dict(document.get("attributes") or {})
            elif name in (".zgroup", ".zarray"):
                attributes = f"{path}/.zattrs" if path else ".zattrs"
                has_some = attributes in self._set.documents
                found = self._document(attributes) if has_some else {}
                yield path, name == ".zarray", self._document(key), found

    def _document(self, key: str) -> dict[str, Json]:
        data = self.bytes_of(key)
        assert data is not None
        try:
            document = json.loads(data)
        except ValueError as error:
            raise SourceError(f"{self._set.location}: {key!r} is not JSON ({error})") from None
        if not isinstance(document, dict):
            raise SourceError(f"{self._set.location}: {key!r} holds no JSON object")
        return document

    def bytes_of(self, key: str) -> bytes | None:
        """What is behind a key: metadata, or an encoded chunk. None if there is nothing.

        Raises:
            SourceError: there is a reference to something that cannot be read.
        """
        is_metadata = key.rpartition("/")[2] in METADATA_NAMES
        found: Entry | None = self._set.documents.get(key) if is_metadata else self._set.find(key)
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
    arrays: dict[str, tuple[VariableDescription, ChunkKeys]] = {}
    for path, is_array, document, attributes in reader.nodes():
        if is_array and not path:
            raise SourceError(f"{location}: it is a single array, expected a group of arrays")
        if is_array:
            arrays[path] = describe_array(location, path, document, attributes)
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
        locations = placer.locations(columns)
        if references and variable.codecs is not None:
            tables[path] = placer.place(variable, columns, locations)
        if variable.data_type is not None and wants_values(variable, concat_dims):
            variable = with_values(variable, reader.read(path, ()))  # noqa: PLW2901
        variables[path] = variable
    groups.setdefault("", GroupDescription())
    name_dimensions(groups, variables)
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

    def locations(self, columns: ChunkColumns) -> list[str]:
        """The files of an array, in the order of the dictionary of URLs."""
        return [locate(url, self._location) for url in columns.url.dictionary.to_pylist()]

    def place(
        self, variable: VariableDescription, columns: ChunkColumns, locations: list[str]
    ) -> pa.Table:
        """The table of an array, as `references.py` has it."""
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
        table = make_references(columns.index, found, columns.offset, length, **more)
        order = np.lexsort(columns.index.T[::-1]) if columns.index.shape[1] else [0] * len(table)
        return table.take(pa.array(order, pa.int64()))

    def _look_at(self, path: str, locations: Iterable[str]) -> None:
        new = [location for location in locations if location not in self._versions]
        try:
            if len(new) > 1 and local_path(new[0]) is None:
                pool = DaemonThreads(READS_AT_ONCE, "icefloe-reads")
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
                f"{self._location}: chunk {tuple(columns.index[row].tolist())} of array "
                f"{variable.path!r} is said to be {length[row]} bytes at {columns.offset[row]} of "
                f"{columns.url[row].as_py()}, which has {sizes[row]} bytes"
            )
        assert variable.codecs is not None
        is_plain = all(codec["name"] in _PLAIN_CODECS for codec in variable.codecs)
        expected = math.prod(variable.chunks) * variable.itemsize
        if is_plain and (length != expected).any():
            row = int(np.argmax(length != expected))
            raise SourceError(
                f"{self._location}: chunk {tuple(columns.index[row].tolist())} of array "
                f"{variable.path!r} has {length[row]} bytes; it is not compressed, so that "
                f"{expected} were expected"
            )


class _ReferenceStore(Store):
    """What zarr reads arrays of a set from."""

    def __init__(self, reader: KerchunkReader) -> None:
        super().__init__(read_only=True)
        self._reader = reader

    def __eq__(self, value: object) -> bool:
        return isinstance(value, _ReferenceStore) and value._reader is self._reader

    __hash__ = None  # type: ignore[assignment]

    @property
    def supports_writes(self) -> bool:
        return False

    @property
    def supports_deletes(self) -> bool:
        return False

    @property
    def supports_listing(self) -> bool:
        return False

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        # Files are read by blocking calls; several chunks are waited for at once.
        data = await asyncio.to_thread(self._reader.bytes_of, key)
        if data is None:
            return None
        match byte_range:
            case RangeByteRequest(start=start, end=end):
                data = data[start:end]
            case OffsetByteRequest(offset=offset):
                data = data[offset:]
            case SuffixByteRequest(suffix=suffix):
                data = data[max(0, len(data) - suffix) :]
        return prototype.buffer.from_bytes(data)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, span) for key, span in key_ranges]

    async def exists(self, key: str) -> bool:
        return await self.get(key, default_buffer_prototype()) is not None

    async def set(self, key: str, value: Buffer) -> None:
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        raise NotImplementedError

    def list(self) -> AsyncIterator[str]:
        raise NotImplementedError

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError
