"""Zarr stores, versions 2 and 3, as sources: each chunk object is one reference.

A shard is one object and stays one chunk; the codec that reads it comes along with the metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from zarr.dtype import parse_dtype

from icefloe.errors import ErrorKind, StorageError
from icefloe.on_demand import on_demand
from icefloe.virtual.formats.chunk_keys import ChunkKeys, grid_of
from icefloe.virtual.formats.zarr_v2 import (
    codecs_from_v2,
    fill_value_from_v2,
    numpy_dtype,
    supported,
)
from icefloe.virtual.model.data_types import data_type_of, encode_cf_fill_value
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
from icefloe.virtual.places.access import SourceAccess, location_of_key
from icefloe.virtual.places.list_objects import Listing, Place

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = on_demand("pyarrow")
    pc = on_demand("pyarrow.compute")

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
    documents = dict(_documents(place, listing))
    groups, variables, tables = {}, {}, {}
    for path, (document, attributes) in documents.items():
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
    if not documents:
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


# -- metadata documents

Documents = Iterator[tuple[str, tuple[dict[str, Json], dict[str, Json]]]]


def _documents(place: Place, listing: Listing | None) -> Documents:
    """Path, metadata and attributes of every node."""
    root = place.find("zarr.json")
    if root is not None:
        document = _parse(place, "zarr.json", root)
        whole = document.get("consolidated_metadata") or {}
        inside = whole.get("metadata")
        if inside is None:
            inside = _fetch_all(place, listing, "zarr.json")
        for path, found in {"": document, **inside}.items():
            yield path, (found, found.get("attributes") or {})
        return
    consolidated = place.find(".zmetadata")
    if consolidated is not None:
        inside = _parse(place, ".zmetadata", consolidated)["metadata"]
    else:
        inside = {}
        for name in (".zgroup", ".zarray", ".zattrs"):
            found = _fetch_all(place, listing, name)
            inside |= {f"{path}/{name}" if path else name: doc for path, doc in found.items()}
    for key, document in inside.items():
        path, _, name = key.rpartition("/")
        if name in (".zgroup", ".zarray"):
            attributes = inside.get(f"{path}/.zattrs" if path else ".zattrs") or {}
            yield path, (document, dict(attributes))


def _fetch_all(place: Place, listing: Listing | None, name: str) -> dict[str, dict[str, Json]]:
    if listing is None:
        raise SourceError(
            f"{place.location}: its metadata is not consolidated and the place cannot be listed, "
            "so its arrays cannot be found"
        )
    keys = [key for key in listing.keys if key == name or key.endswith("/" + name)]
    found = place.read_many(keys)
    return {
        key[: -len(name) - 1]: _parse(place, key, data)
        for key, data in zip(keys, found, strict=True)
    }


def _parse(place: Place, key: str, data: bytes) -> dict[str, Json]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise SourceError(f"{place.location}: {key!r} is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise SourceError(f"{place.location}: {key!r} holds no JSON object")
    return document


# -- arrays


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
    common: dict[str, Any] = {
        "path": path,
        "shape": tuple(document["shape"]),
        "chunks": tuple(document["chunks"]),
        "dimensions": tuple(names),
    }
    if dtype is None or not supported(dtype):
        why = f"its type {document.get('dtype')!r} has no counterpart in Zarr version 3"
        nothing: dict[str, Any] = {"data_type": None, "fill_value": None, "codecs": None}
        nothing["reason"] = why
        return VariableDescription(dtype="V0", attributes=attributes, **nothing, **common), keys
    fill, mark = fill_value_from_v2(document, dtype)
    plain = attributes.get("_FillValue")
    if mark is None and isinstance(plain, int | float) and dtype.kind in "iuf":
        # A plain number is right beside version 2; beside version 3 xarray wants it encoded.
        mark = encode_cf_fill_value(plain, dtype)
    if mark is not None:
        attributes["_FillValue"] = mark
    codecs, reason = codecs_from_v2(document, dtype)
    variable = VariableDescription(
        dtype="string" if dtype.kind == "O" else dtype.str,
        attributes=attributes,
        data_type=data_type_of(dtype),
        fill_value=fill,
        codecs=codecs,
        reason=reason,
        **common,
    )
    return variable, keys


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


# -- chunks


def _references(
    location: str, path: str, listing: Listing, variable: VariableDescription, keys: ChunkKeys
) -> pa.Table:
    """The chunk objects of one array, as columns: key -> index happens for all at once."""
    prefix = f"{path}/" if path else ""
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
