"""Conversion between `zarr.json` and the parts that an old snapshot stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.legacy.numbered.model import ArrayMetadata, NamedConfiguration
from icefloe.legacy.numbered.zarr_values import (
    data_type_document,
    data_type_of_document,
    fill_value_document,
    fill_value_of_document,
)

_SLASH = {"name": "default", "configuration": {"separator": "/"}}
_ARRAY_MEMBERS = {
    "zarr_format",
    "node_type",
    "attributes",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "storage_transformers",
    "dimension_names",
}
_GROUP_MEMBERS = {"zarr_format", "node_type", "attributes"}


def group_document(attributes: Mapping[str, Any] | None) -> bytes:
    """The zarr.json of a group."""
    return _dumped({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes or {})})


def array_document(metadata: ArrayMetadata, attributes: Mapping[str, Any] | None) -> bytes:
    """The zarr.json of an array, with the members in the order of the alphas.

    Chunks are found by their indices, so the separator is always the slash of our own keys.
    """
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "attributes": dict(attributes or {}),
        "shape": list(metadata.shape),
        "data_type": data_type_document(metadata.data_type),
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(metadata.chunk_shape)},
        },
        "chunk_key_encoding": _SLASH,
        "fill_value": fill_value_document(metadata.fill_value, metadata.data_type),
        "codecs": [_named_document(codec) for codec in metadata.codecs],
    }
    if metadata.storage_transformers is not None:
        listed = [_named_document(each) for each in metadata.storage_transformers]
        document["storage_transformers"] = listed
    if metadata.dimension_names is not None:
        document["dimension_names"] = list(metadata.dimension_names)
    return _dumped(document)


def _named_document(named: NamedConfiguration) -> dict[str, Any]:
    document: dict[str, Any] = {"name": named.name}
    if named.configuration is not None:
        document["configuration"] = dict(named.configuration)
    return document


def _dumped(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def parse_document(data: bytes, path: str) -> tuple[Mapping[str, Any] | None, ArrayMetadata | None]:
    """The attributes of a node and, if it is an array, its metadata.

    Raises:
        InvalidInputError: document 000 has no place for a part of it; kind `bad-metadata`.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise _refused(path, "it is not an object")
    attributes = document.get("attributes")
    if attributes is not None and not isinstance(attributes, dict):
        raise _refused(path, f"attributes are {attributes!r:.60}, expected an object")
    is_array = document.get("node_type") == "array"
    known = _ARRAY_MEMBERS if is_array else _GROUP_MEMBERS
    others = {key for key in document.keys() - known if document[key] is not None}
    if others:
        raise _refused(
            path,
            f"a repository with numbered refs has no place for {sorted(others)}; leave them out",
        )
    return attributes, _array_metadata(document, path) if is_array else None


def _array_metadata(document: Mapping[str, Any], path: str) -> ArrayMetadata:
    grid = document.get("chunk_grid") or {}
    if grid.get("name") != "regular":
        raise _refused(path, f"chunk grid {grid.get('name')!r}, expected 'regular'")
    data_type = data_type_of_document(document.get("data_type"), path)
    chunk_shape = tuple(grid["configuration"]["chunk_shape"])
    if 0 in chunk_shape:
        raise _refused(path, f"chunk shape {list(chunk_shape)}: chunks have at least one element")
    transformers = document.get("storage_transformers")
    names = document.get("dimension_names")
    return ArrayMetadata(
        tuple(document["shape"]),
        data_type,
        chunk_shape,
        _chunk_key_encoding(document.get("chunk_key_encoding"), path),
        fill_value_of_document(document.get("fill_value"), data_type, path),
        tuple(_named(codec, path) for codec in document.get("codecs") or ()),
        None if transformers is None else tuple(_named(each, path) for each in transformers),
        None if names is None else tuple(names),
    )


def _chunk_key_encoding(value: Any, path: str) -> str:
    name = value if isinstance(value, str) else (value or {}).get("name")
    configuration = {} if isinstance(value, str) or not value else value.get("configuration") or {}
    separator = configuration.get("separator")
    words = {"/": "Slash", ".": "Dot", None: "Default"}
    if name != "default" or separator not in words:
        raise _refused(path, f"chunk key encoding {value!r}, expected 'default' with '/' or '.'")
    return words[separator]


def _named(value: Any, path: str) -> NamedConfiguration:
    if isinstance(value, str):
        return NamedConfiguration(value)
    name = value.get("name") if isinstance(value, dict) else None
    configuration = value.get("configuration") if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(configuration, dict | None):
        raise _refused(path, f"{value!r:.80} is no codec: expected a name and a configuration")
    return NamedConfiguration(name, configuration)


def _refused(path: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"zarr.json of {path!r}: {problem}", ErrorKind.BAD_METADATA)


def stored_document(data: bytes, path: str) -> bytes:
    """The zarr.json as readers will find it, with the same meaning.

    Raises:
        InvalidInputError: document 000 has no place for a part of it; kind `bad-metadata`.
    """
    attributes, metadata = parse_document(data, path)
    if metadata is None:
        return group_document(attributes)
    if metadata.chunk_key_encoding == "Dot":
        raise _refused(path, "its chunk keys have dots, the keys of this store have slashes")
    return array_document(metadata, attributes)
