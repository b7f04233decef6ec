"""Conversion between zarr.json and the columns of a structure file.

A structure file has one column per array member of Zarr's core specification. Members without a
column are refused. The store always uses the default chunk keys, whatever encoding the file names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.legacy.generation import Generation
from icefloe.legacy.state_file.fill_values import decode_fill_value, encode_fill_value
from icefloe.legacy.state_file.names import checked

_GROUP_MEMBERS = {"zarr_format", "node_type", "attributes"}
_ARRAY_MEMBERS = _GROUP_MEMBERS | {
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "dimension_names",
    "storage_transformers",
}
_DEFAULT_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}]
_DEFAULT_KEYS = {"name": "default", "configuration": {"separator": "/"}}


def split_document(user_data: bytes, path: str) -> tuple[dict[str, Any] | None, bytes | None]:
    """A zarr.json as `array_metadata` (None for a group) and attributes (None if there are none).

    Raises:
        InvalidInputError: the structure file has no column for a part of it.
    """
    document = json.loads(user_data)  # already checked by `parse_zarr_json`
    attributes = document.get("attributes")
    if attributes is not None and not isinstance(attributes, dict):
        raise _refused(path, f"attributes are {attributes!r:.80}, expected an object")
    packed = None if attributes is None else compact_json(attributes)
    is_array = document.get("node_type") == "array"
    unknown = document.keys() - (_ARRAY_MEMBERS if is_array else _GROUP_MEMBERS)
    for member in sorted(unknown):
        if document[member] is not None:
            raise _no_place(path, f"member {member!r}")
    if document.get("storage_transformers"):
        raise _no_place(path, "storage transformers")
    return (_array_metadata(document, path) if is_array else None), packed


def _array_metadata(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    grid = document["chunk_grid"]
    if grid["name"] != "regular":
        raise _no_place(path, f"chunk grid {grid['name']!r}")
    data_type, fill = document.get("data_type"), document.get("fill_value")
    if not isinstance(data_type, str | dict):
        raise _refused(path, f"data_type is {data_type!r:.80}")
    where = f"zarr.json of {path!r}"
    keys: Any = document.get("chunk_key_encoding") or _DEFAULT_KEYS
    keys = {"name": keys} if isinstance(keys, str) else keys
    separator = (keys.get("configuration") or {}).get("separator")
    codecs = document.get("codecs")
    if not isinstance(codecs, list):
        raise _refused(path, f"codecs are {codecs!r:.80}, expected a list")
    names = document.get("dimension_names")
    return {
        "shape": document["shape"],
        # The column holds text. The name of a type that is not Zarr's own is a JSON object.
        "data_type": data_type if isinstance(data_type, str) else compact_json(data_type).decode(),
        "fill_value": None if fill is None else encode_fill_value(data_type, fill, where),
        "dimension_names": names,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": grid["configuration"]["chunk_shape"]},
        },
        "chunk_key_encoding": {
            "name": keys.get("name", "default"),
            "configuration": {
                "separator": separator or ("." if keys.get("name") == "v2" else "/"),
            },
        },
        "codecs": [_split_codec(codec, path) for codec in codecs],
    }


def _split_codec(codec: Any, path: str) -> dict[str, Any]:
    if isinstance(codec, str):
        return {"name": codec, "configuration": None}
    if not isinstance(codec, dict) or not isinstance(codec.get("name"), str):
        raise _refused(path, f"a codec is {codec!r:.80}, expected a name and a configuration")
    for member in codec.keys() - {"name", "configuration"}:
        raise _no_place(path, f"member {member!r} of codec {codec['name']!r}")
    configuration = codec.get("configuration")
    packed = None if configuration is None else compact_json(configuration)
    return {"name": codec["name"], "configuration": packed}


def join_document(
    array: Mapping[str, Any] | None, attributes: bytes | None, where: str
) -> dict[str, Any]:
    """The zarr.json of a row. `where` is the name of the row in errors.

    Raises:
        FormatError: the columns are not consistent.
    """
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "group" if array is None else "array",
    }
    if attributes is not None:
        document["attributes"] = _object(attributes, "attributes", where)
    if array is None:
        return document
    data_type: Any = array["data_type"]
    if data_type.startswith("{"):
        data_type = _object(data_type.encode(), "data_type", where)
    grid = array["chunk_grid"]
    if grid is None:
        raise checked(where).fail("the array has no chunk_grid")
    if grid["name"] != "regular":
        raise checked(where).fail(f"chunk grid {grid['name']!r} is not known, expected 'regular'")
    codecs = array["codecs"]
    document |= {
        "shape": array["shape"],
        "data_type": data_type,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": grid["configuration"]["chunk_shape"]},
        },
        "chunk_key_encoding": _DEFAULT_KEYS,
        "fill_value": decode_fill_value(data_type, array["fill_value"], where),
        "codecs": _DEFAULT_CODECS
        if codecs is None
        else [_join_codec(codec, where) for codec in codecs],
    }
    if array["dimension_names"] is not None:
        document["dimension_names"] = array["dimension_names"]
    return document


def _join_codec(codec: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    if codec is None:
        raise checked(where).fail("a codec is null")
    if codec["configuration"] is None:
        return {"name": codec["name"]}
    found = _object(codec["configuration"], f"configuration of codec {codec['name']!r}", where)
    return {"name": codec["name"], "configuration": found}


def readable_document(user_data: bytes, path: str) -> bytes:
    """The canonical zarr.json that readers build from the columns.

    Raises:
        InvalidInputError: the structure file has no column for a part of it.
    """
    return compact_json(join_document(*split_document(user_data, path), path))


def compact_json(value: Any) -> bytes:
    """JSON of the columns. Numbers that JSON lacks are encoded as in Zarr."""
    return json.dumps(value, separators=(",", ":")).encode()


def _object(data: bytes, what: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise checked(where).fail(f"{what} are not JSON ({error})") from None
    if not isinstance(found, dict):
        raise checked(where).fail(f"{what} are a JSON {type(found).__name__}, expected an object")
    return found


def _refused(path: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"zarr.json of {path!r}: {problem}", ErrorKind.BAD_METADATA)


def _no_place(path: str, what: str) -> InvalidInputError:
    return _refused(
        path,
        f"{Generation.STATE_FILE.noun} has no place for {what}; leave it out, or migrate the "
        "repository",
    )
