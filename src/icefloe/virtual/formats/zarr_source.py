"""Zarr stores of format 2 and 3 as sources."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from zarr.dtype import parse_dtype

from icefloe.errors import ErrorKind, StorageError
from icefloe.virtual.model.data_types import (
    bytes_codec,
    data_type_of,
    encode_cf_fill_value,
    fill_value_json,
)
from icefloe.virtual.model.description import (
    GroupDescription,
    Json,
    SourceDescription,
    SourceError,
    SourceVersion,
    VariableDescription,
    join_path,
    make_references,
    mark_gaps,
    wants_values,
    with_values,
)
from icefloe.virtual.sources import Listing, Place, SourceAccess, location_of_key

_ARRAY_FILTERS = frozenset(
    {"astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize"}
)
_BYTES_FILTERS = frozenset(
    {"adler32", "blosc", "bz2", "crc32", "crc32c", "fletcher32", "gzip", "jenkins_lookup3"}
    | {"lz4", "lzma", "shuffle", "zlib", "zstd"}
)
_TEXT_FILTER = "vlen-utf8"
_BLOSC_SHUFFLE = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def numpy_dtype(document: dict[str, Json]) -> np.dtype[Any] | None:
    """The type of a version 2 array; object for text of any length, None if it is not supported."""
    text = document.get("dtype")
    if text == "|O":
        names = [item.get("id") for item in document.get("filters") or []]
        return np.dtype(object) if names == [_TEXT_FILTER] else None
    return np.dtype(text) if isinstance(text, str) else None


def codecs_from_v2(
    document: dict[str, Json], dtype: np.dtype[Any]
) -> tuple[tuple[Json, ...] | None, str | None]:
    """The chain of version 3 that reads the chunks of a version 2 array, or why there is none."""
    codecs: list[Json] = []
    ndim = len(document["shape"])
    if document.get("order") == "F" and ndim > 1:
        order = list(range(ndim))[::-1]
        codecs.append({"name": "transpose", "configuration": {"order": order}})
    packed: list[Json] = []
    for item in document.get("filters") or []:
        name = item["id"]
        if name == _TEXT_FILTER:
            continue
        if name in _ARRAY_FILTERS and not packed:
            codecs.append(_numcodec(item))
        elif name in _BYTES_FILTERS:
            packed.append(_numcodec(item))
        else:
            return None, f"its chunks are stored with the filter {name!r}"
    codecs.append({"name": "vlen-utf8"} if dtype.kind == "O" else bytes_codec(dtype))
    codecs += packed
    compressor = document.get("compressor")
    if compressor is not None:
        if compressor["id"] not in _BYTES_FILTERS:
            return None, f"its chunks are stored with the compressor {compressor['id']!r}"
        codecs.append(_compressor(compressor, dtype))
    return tuple(codecs), None


def _numcodec(item: dict[str, Json]) -> Json:
    configuration = {key: value for key, value in item.items() if key != "id"}
    return {"name": f"numcodecs.{item['id']}", "configuration": configuration}


def _compressor(item: dict[str, Json], dtype: np.dtype[Any]) -> Json:
    """Codecs that version 3 has under another name get that name."""
    shuffle = item.get("shuffle")
    if item["id"] == "blosc" and shuffle in _BLOSC_SHUFFLE:
        configuration = {
            "cname": item.get("cname", "lz4"),
            "clevel": item.get("clevel", 5),
            "shuffle": _BLOSC_SHUFFLE[shuffle],
            "typesize": max(1, dtype.itemsize),
            "blocksize": item.get("blocksize", 0),
        }
        return {"name": "blosc", "configuration": configuration}
    if item["id"] == "gzip":
        return {"name": "gzip", "configuration": {"level": item.get("level", 1)}}
    if item["id"] == "zstd":
        configuration = {"level": item.get("level", 0), "checksum": bool(item.get("checksum"))}
        return {"name": "zstd", "configuration": configuration}
    return _numcodec(item)


def fill_value_from_v2(document: dict[str, Json], dtype: np.dtype[Any]) -> tuple[Json, Json | None]:
    """`fill_value` of version 3, and the attribute `_FillValue` that keeps its second meaning.

    In version 2 xarray takes the fill value for the mark of missing values; in version 3 only the
    attribute is that.
    """
    value = document.get("fill_value")
    if value is None:
        return fill_value_json(None, dtype), None
    if dtype.kind == "S":
        value = base64.standard_b64decode(value) if isinstance(value, str) else b""
    elif dtype.kind in "fc" and isinstance(value, str):
        value = float(value.replace("Infinity", "inf"))
    elif dtype.kind == "c" and isinstance(value, list):
        value = complex(*(float(str(part).replace("Infinity", "inf")) for part in value))
    elif dtype.kind in "mM":
        return fill_value_json(np.int64(value).view(dtype.newbyteorder("=")), dtype), None
    mark = None if dtype.kind in "OU" else encode_cf_fill_value(value, dtype)
    return fill_value_json(value, dtype), mark


_NUMBER = "(0|[1-9][0-9]{0,17})"  # fits into 64 bits, and has one spelling


class ChunkKeys(NamedTuple):
    """How the chunks of an array are named, below the path of the array."""

    separator: str
    starts_with_c: bool

    def parse(self, names: pa.Array, ndim: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Which of the names are chunks of an array with so many dimensions, and their indices."""
        separator = "\\." if self.separator == "." else self.separator
        numbers = separator.join([_NUMBER] * ndim)
        if self.starts_with_c:
            pattern = f"^c{separator}{numbers}$" if ndim else "^c$"
        else:
            pattern = f"^{numbers}$" if ndim else "^0$"
        is_chunk = pc.match_substring_regex(names, pattern).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(is_chunk)
        index = np.zeros((len(rows), ndim), np.int64)
        if ndim and len(rows):
            parts = pc.split_pattern(names.take(pa.array(rows)), self.separator).flatten()
            if self.starts_with_c:
                parts = parts.filter(pc.not_equal(parts, "c"))
            index = parts.cast(pa.int64()).to_numpy().reshape(len(rows), ndim)
        return rows, index


def grid_of(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    """How many chunks there are along each dimension."""
    return tuple(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))


# Each chunk object is one reference. A shard is one object and stays one chunk; the codec that
# reads it comes along with the metadata.

DIMENSIONS_V2 = "_ARRAY_DIMENSIONS"


def is_zarr(place: Place) -> bool:
    """Whether there is the root of a Zarr store."""
    return any(place.find(name) is not None for name in ("zarr.json", ".zgroup", ".zarray"))


def scan_zarr(
    location: str,
    access: SourceAccess,
    *,
    references: bool,
    concat_dims: tuple[str, ...] | None,
) -> SourceDescription:
    """Describe a store; with `references`, also list its chunks (one listing of the store)."""
    place = Place(location, access)
    try:
        listing = place.list_all()
    except StorageError as error:
        if error.kind != ErrorKind.OBJECT_STORE or references:
            raise
        listing = None
    groups: dict[str, GroupDescription] = {}
    variables, tables = {}, {}
    for path, _, document, attributes in _nodes(place, listing):
        if document.get("node_type") == "group" or "shape" not in document:
            groups[path] = GroupDescription(attributes)
            continue
        variable, keys = describe_array(location, path, document, attributes)
        if variable.data_type is not None and wants_values(variable, concat_dims):
            variable = with_values(variable, read_region(place.open_zarr(path), ()))
        variables[path] = variable
        if references and variable.codecs is not None:
            assert listing is not None
            tables[path] = _references(place.location, path, listing, variable, keys)
    if not groups and not variables:
        raise SourceError(f"{location}: there is no Zarr store")
    groups.setdefault("", GroupDescription())
    name_dimensions(groups, variables)
    mark_gaps(variables, tables)
    version = listing.version() if listing else SourceVersion(0)
    return SourceDescription(
        place.location, "zarr", version, groups, variables, tables if references else None
    )


def read_region(array: Any, region: tuple[slice, ...]) -> NDArray[Any]:
    """Part of an array as stored."""
    values = np.asarray(array[region or ...])
    return values.astype(object) if values.dtype.kind == "T" else values


Node = tuple[str, bool, dict[str, Json], dict[str, Json]]
"""Of a group or an array: path, whether it is an array, metadata and attributes."""


def nodes_of(documents: Mapping[str, dict[str, Json]]) -> Iterator[Node]:
    """The nodes that documents of either version, by key, tell of."""
    for key, document in documents.items():
        path, _, name = key.rpartition("/")
        if name == "zarr.json":
            is_array = document.get("node_type") == "array"
            yield path, is_array, document, dict(document.get("attributes") or {})
        elif name in (".zgroup", ".zarray"):
            attributes = documents.get(join_path(path, ".zattrs"))
            yield path, name == ".zarray", document, dict(attributes or {})


def _nodes(place: Place, listing: Listing | None) -> Iterator[Node]:
    root = place.find("zarr.json")
    if root is not None:
        document = parse_json(place.location, "zarr.json", root)
        inside = (document.get("consolidated_metadata") or {}).get("metadata")
        if inside is None:
            return nodes_of({"zarr.json": document, **_fetch_all(place, listing, "zarr.json")})
        found = {join_path(path, "zarr.json"): node for path, node in inside.items()}
        return nodes_of({"zarr.json": document, **found})
    consolidated = place.find(".zmetadata")
    if consolidated is not None:
        return nodes_of(parse_json(place.location, ".zmetadata", consolidated)["metadata"])
    names = (".zgroup", ".zarray", ".zattrs")
    return nodes_of({k: v for name in names for k, v in _fetch_all(place, listing, name).items()})


def _fetch_all(place: Place, listing: Listing | None, name: str) -> dict[str, dict[str, Json]]:
    if listing is None:
        raise SourceError(
            f"{place.location}: its metadata is not consolidated and the place cannot be listed, "
            "so its arrays cannot be found"
        )
    keys = [key for key in listing.keys if key == name or key.endswith("/" + name)]
    found = zip(keys, place.read_many(keys), strict=True)
    return {key: parse_json(place.location, key, data) for key, data in found}


def parse_json(location: str, key: str, data: bytes | None) -> dict[str, Json]:
    """A JSON object of a source.

    Raises:
        SourceError: it is none.
    """
    try:
        document = json.loads(data or b"")
    except ValueError as error:
        raise SourceError(f"{location}: {key!r} is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise SourceError(f"{location}: {key!r} holds no JSON object")
    return document


def describe_array(
    location: str, path: str, document: dict[str, Json], attributes: dict[str, Json]
) -> tuple[VariableDescription, ChunkKeys]:
    """An array of either version, and how its chunks are named.

    Raises:
        SourceError: its metadata makes no sense.
    """
    try:
        if document.get("zarr_format") == 2:
            return _from_v2(path, document, attributes)
        return describe_v3(path, document, attributes)
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"{location}: the metadata of array {path!r} cannot be used ({error!r})"
        ) from error


def _from_v2(
    path: str, document: dict[str, Json], attributes: dict[str, Json]
) -> tuple[VariableDescription, ChunkKeys]:
    dtype = numpy_dtype(document)
    names = attributes.pop(DIMENSIONS_V2, None) or ()
    keys = ChunkKeys(document.get("dimension_separator", "."), starts_with_c=False)
    variable = VariableDescription(
        path=path,
        dtype="V0",
        shape=tuple(document["shape"]),
        chunks=tuple(document["chunks"]),
        dimensions=tuple(names),
        attributes=attributes,
        data_type=None,
        fill_value=None,
        codecs=None,
        reason=f"its type {document.get('dtype')!r} has no counterpart in Zarr version 3",
    )
    data_type = None if dtype is None or dtype.names is not None else data_type_of(dtype)
    if dtype is None or data_type is None:
        return variable, keys
    fill, mark = fill_value_from_v2(document, dtype)
    plain = attributes.get("_FillValue")
    if mark is None and isinstance(plain, int | float) and dtype.kind in "iuf":
        # A plain number is right beside version 2; beside version 3 xarray wants it encoded.
        mark = encode_cf_fill_value(plain, dtype)
    if mark is not None:
        attributes["_FillValue"] = mark
    codecs, reason = codecs_from_v2(document, dtype)
    kind = "string" if dtype.kind == "O" else dtype.str
    stored = {"dtype": kind, "data_type": data_type, "fill_value": fill}
    return replace(variable, **stored, codecs=codecs, reason=reason), keys


def describe_v3(
    path: str, document: dict[str, Json], attributes: dict[str, Json]
) -> tuple[VariableDescription, ChunkKeys]:
    """An array of Zarr version 3, from its zarr.json."""
    dtype = parse_dtype(document["data_type"], zarr_format=3).to_native_dtype()
    shape = tuple(document["shape"])
    encoding = document.get("chunk_key_encoding") or {"name": "default"}
    starts_with_c = encoding["name"] == "default"
    default = "/" if starts_with_c else "."
    separator = (encoding.get("configuration") or {}).get("separator", default)
    grid = document["chunk_grid"]
    is_regular = grid["name"] == "regular"
    names = document.get("dimension_names") or ()
    variable = VariableDescription(
        path=path,
        dtype="string" if dtype.kind in "OT" else dtype.str,
        shape=shape,
        chunks=tuple(grid["configuration"]["chunk_shape"]) if is_regular else shape,
        dimensions=tuple(names) if all(names) else (),
        attributes=dict(attributes),
        data_type=document["data_type"],
        fill_value=document["fill_value"],
        codecs=tuple(document["codecs"]) if is_regular else None,
        reason=None if is_regular else f"its chunk grid is {grid['name']!r}, not regular",
    )
    return variable, ChunkKeys(separator, starts_with_c)


def name_dimensions(
    groups: dict[str, GroupDescription], variables: dict[str, VariableDescription]
) -> None:
    """Name what has no name, and give each group its dimensions."""
    for path, variable in variables.items():
        if len(variable.dimensions) != len(variable.shape):
            names = tuple(f"{variable.name}_dim_{axis}" for axis in range(len(variable.shape)))
            variables[path] = replace(variable, dimensions=names)
        named = variables[path]
        group = groups.setdefault(named.group, GroupDescription())
        for name, size in zip(named.dimensions, named.shape, strict=True):
            group.dimensions.setdefault(name, size)


def _references(
    location: str, path: str, listing: Listing, variable: VariableDescription, keys: ChunkKeys
) -> pa.Table:
    """The chunk objects of one array, as columns: key -> index happens for all at once."""
    prefix = join_path(path, "")
    rows = listing.below(prefix)
    names = pa.array(listing.keys[rows], pa.string())
    rest = pc.utf8_slice_codeunits(names, len(prefix))
    ndim = len(variable.shape)
    chosen, index = keys.parse(rest, ndim)
    grid = grid_of(variable.shape, variable.chunks)
    inside = (index < np.array(grid, np.int64)).all(axis=1)
    index, chosen = index[inside], chosen[inside]
    order = np.lexsort(index.T[::-1]) if ndim else np.arange(len(index))
    index, taken = index[order], pa.array(chosen[order])
    located = [location_of_key(location, key) for key in names.take(taken).to_pylist()]
    length = pa.array(listing.sizes[rows], pa.uint64()).take(taken).to_numpy()
    etags = pa.array(listing.etags[rows], pa.string()).take(taken)
    more: dict[str, pa.Array] = {}
    if etags.null_count == 0 and len(etags):
        more["etag"] = etags
    else:
        seconds = pa.array(listing.modified[rows], pa.uint32()).take(taken)
        more["last_modified"] = seconds.fill_null(0)
    return make_references(
        index, pa.array(located, pa.string()), np.zeros(len(index), np.uint64), length, **more
    )
