"""`zarr.json` taken apart and put together."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

from icefloe.legacy.checked import Checked, dump
from icefloe.legacy.numbered.model import ArrayMetadata, DataType, FillValue, NamedConfiguration
from icefloe.legacy.state_file.structure import (
    ARRAY_MEMBERS,
    GROUP_MEMBERS,
    fill_from_bytes,
    fill_to_bytes,
    refused,
)

# struct letters; complex numbers are two floats
_FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
_COMPLEX = {"complex64": "f", "complex128": "d"}
_LETTERS = _FLOATS | _COMPLEX
_INTEGERS = {
    f"{sign}int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if not sign else (0, 2**bits - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_KINDS = {
    "bool": "Bool",
    **{name: ("UInt" if name[0] == "u" else "Int") + name.lstrip("uint") for name in _INTEGERS},
    **{name: name.capitalize() for name in (*_FLOATS, *_COMPLEX)},
}
_ALPHA_KINDS = {"string": "String", "bytes": "Bytes"}

DATA_TYPES = frozenset(_KINDS)
"""The names that document 000 lists."""
ALPHA_DATA_TYPES = DATA_TYPES | {"string", "bytes"}


# -- from a file to zarr.json


def checked_data_type(value: Any, checked: Checked) -> DataType:
    """A data type of a file, checked."""
    if isinstance(value, str) and value in ALPHA_DATA_TYPES:
        return value
    if isinstance(value, dict) and value.keys() == {"rawbits"}:
        bits = checked.whole(value["rawbits"], "rawbits", 2**31)
        if bits and bits % 8 == 0:
            return {"rawbits": bits}
    raise checked.unexpected(
        "data type", value, "a name such as 'float32', or rawbits in whole bytes"
    )


def data_type_document(data_type: DataType) -> Any:
    """The data type in zarr.json."""
    if isinstance(data_type, str):
        return "variable_length_bytes" if data_type == "bytes" else data_type
    return {"name": "raw_bytes", "configuration": {"length_bytes": data_type["rawbits"] // 8}}


def checked_fill_value(kind: str, value: Any, data_type: DataType, checked: Checked) -> FillValue:
    """A fill value of a file, checked: of the array's kind, or raw bytes of the right length."""
    expected = _kind_of(data_type)
    if kind == "RawBits":
        data = checked.octets(value, "fill value RawBits")
        if len(data) != _num_bytes(data_type):
            raise checked.unexpected(
                "fill value RawBits", value, f"as many bytes as {data_type} has"
            )
        return FillValue(kind, data)
    if kind != expected:
        raise checked.fail(
            f"fill value is of kind {kind!r:.40}, data type {data_type!r} has {expected}"
        )
    if kind == "Bytes":
        return FillValue(kind, checked.octets(value, "fill value Bytes"))
    if kind == "String":
        return FillValue(kind, checked.text(value, "fill value String"))
    assert isinstance(data_type, str)
    if kind == "Bool":
        if not isinstance(value, bool):
            raise checked.unexpected("fill value Bool", value, "true or false")
    elif data_type in _INTEGERS:
        lowest, highest = _INTEGERS[data_type]
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not lowest <= value <= highest:
            raise checked.unexpected(f"fill value {kind}", value, f"{lowest} to {highest}")
    elif data_type in _COMPLEX:
        parts = checked.items(value, f"fill value {kind}", 2)
        value = tuple(_number(part, kind, checked) for part in parts)
    else:
        value = _number(value, kind, checked)
    return FillValue(kind, value)


def fill_value_document(fill: FillValue, data_type: DataType) -> Any:
    """The fill value in zarr.json."""
    if fill.kind == "RawBits" and isinstance(data_type, str):
        if data_type == "bool":
            return fill.value != b"\0"
        return fill_from_bytes(data_type, _reversed_bytes(fill.value, data_type))
    if fill.kind in ("RawBits", "Bytes"):
        return base64.b64encode(fill.value).decode()
    if fill.kind in ("Complex64", "Complex128"):
        return [_number_document(part) for part in fill.value]
    return _number_document(fill.value) if fill.kind.startswith("Float") else fill.value


def _number(value: Any, kind: str, checked: Checked) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise checked.unexpected(f"fill value {kind}", value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise checked.unexpected(f"fill value {kind}", value, "a number of 64 bits") from None


def _number_document(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def _reversed_bytes(data: bytes, data_type: str) -> bytes:
    """Raw bytes are the least significant first, in each part of a complex number."""
    size = len(data) // 2 if data_type in _COMPLEX else len(data)
    return data[:size][::-1] + data[size:][::-1]


def _kind_of(data_type: DataType) -> str:
    if not isinstance(data_type, str):
        return "RawBits"
    return _KINDS.get(data_type) or _ALPHA_KINDS[data_type]


def _num_bytes(data_type: DataType) -> int:
    if not isinstance(data_type, str):
        return data_type["rawbits"] // 8
    digits = data_type.lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) // 8 if digits else (1 if data_type == "bool" else -1)


# -- from zarr.json to a file


def data_type_of_document(value: Any, path: str) -> DataType:
    """The data type of a zarr.json, if document 000 has it."""
    if isinstance(value, str) and value in DATA_TYPES:
        return value
    if isinstance(value, dict) and value.get("name") == "raw_bytes":
        size = (value.get("configuration") or {}).get("length_bytes")
        if isinstance(size, int) and 0 < size < 2**28:
            return {"rawbits": size * 8}
    if isinstance(value, str) and value[:1] == "r" and value[1:].isdecimal():
        bits = int(value[1:])
        if bits and bits % 8 == 0:
            return {"rawbits": bits}
    raise refused(
        path,
        f"data type {value!r} has no place in a repository with numbered refs; it knows "
        "booleans, numbers and raw bytes",
    )


def fill_value_of_document(value: Any, data_type: DataType, path: str) -> FillValue:
    """The fill value of a zarr.json."""
    kind = _kind_of(data_type)
    try:
        if not isinstance(data_type, str):
            data = (
                base64.b64decode(value, validate=True) if isinstance(value, str) else bytes(value)
            )
            if len(data) != _num_bytes(data_type):
                raise ValueError("wrong number of bytes")
            return FillValue(kind, data)
        is_whole = data_type in _INTEGERS and not isinstance(value, bool) and int(value) == value
        scalar = int(value) if is_whole else value
        data = fill_to_bytes(data_type, scalar)
    except (ValueError, TypeError, OverflowError, struct.error):
        raise refused(path, f"fill value {value!r} does not fit data type {data_type!r}") from None
    if data_type not in _LETTERS:
        return FillValue(kind, scalar)
    given = value if data_type in _COMPLEX else [value]
    parts = struct.unpack(">" + _LETTERS[data_type] * len(given), data)
    if any(isinstance(bits, str) and bits[:2] == "0x" for bits in given) and any(
        map(math.isnan, parts)
    ):
        return FillValue("RawBits", _reversed_bytes(data, data_type))  # a NaN with a payload
    return FillValue(kind, parts if data_type in _COMPLEX else parts[0])


def raw_fill_value(fill: FillValue, data_type: DataType) -> FillValue:
    """The same as raw bytes if it is a float that JSON numbers cannot represent, else itself."""
    parts = fill.value if isinstance(fill.value, tuple) else (fill.value,)
    if all(not isinstance(part, float) or math.isfinite(part) for part in parts):
        return fill
    assert isinstance(data_type, str)
    data = fill_to_bytes(data_type, fill_value_document(fill, data_type))
    return FillValue("RawBits", _reversed_bytes(data, data_type))


_SLASH = {"name": "default", "configuration": {"separator": "/"}}


def group_document(attributes: Mapping[str, Any] | None) -> bytes:
    """The zarr.json of a group."""
    return dump({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes or {})})


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
    return dump(document)


def _named_document(named: NamedConfiguration) -> dict[str, Any]:
    document: dict[str, Any] = {"name": named.name}
    if named.configuration is not None:
        document["configuration"] = dict(named.configuration)
    return document


def parse_document(data: bytes, path: str) -> tuple[Mapping[str, Any] | None, ArrayMetadata | None]:
    """The attributes of a node and, if it is an array, its metadata.

    Raises:
        InvalidInputError: document 000 has no place for a part of it; kind `bad-metadata`.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise refused(path, f"it is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise refused(path, "it is not an object")
    attributes = document.get("attributes")
    if attributes is not None and not isinstance(attributes, dict):
        raise refused(path, f"attributes are {attributes!r:.60}, expected an object")
    is_array = document.get("node_type") == "array"
    known = ARRAY_MEMBERS if is_array else GROUP_MEMBERS
    others = {key for key in document.keys() - known if document[key] is not None}
    if others:
        raise refused(
            path,
            f"a repository with numbered refs has no place for {sorted(others)}; leave them out",
        )
    return attributes, _array_metadata(document, path) if is_array else None


def _array_metadata(document: Mapping[str, Any], path: str) -> ArrayMetadata:
    grid = document.get("chunk_grid") or {}
    if grid.get("name") != "regular":
        raise refused(path, f"chunk grid {grid.get('name')!r}, expected 'regular'")
    data_type = data_type_of_document(document.get("data_type"), path)
    chunk_shape = tuple(grid["configuration"]["chunk_shape"])
    if 0 in chunk_shape:
        raise refused(path, f"chunk shape {list(chunk_shape)}: chunks have at least one element")
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
        raise refused(path, f"chunk key encoding {value!r}, expected 'default' with '/' or '.'")
    return words[separator]


def _named(value: Any, path: str) -> NamedConfiguration:
    if isinstance(value, str):
        return NamedConfiguration(value)
    name = value.get("name") if isinstance(value, dict) else None
    configuration = value.get("configuration") if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(configuration, dict | None):
        raise refused(path, f"{value!r:.80} is no codec: expected a name and a configuration")
    return NamedConfiguration(name, configuration)


def stored_document(data: bytes, path: str) -> bytes:
    """The zarr.json as readers will find it, with the same meaning.

    Raises:
        InvalidInputError: document 000 has no place for a part of it; kind `bad-metadata`.
    """
    attributes, metadata = parse_document(data, path)
    if metadata is None:
        return group_document(attributes)
    if metadata.chunk_key_encoding == "Dot":
        raise refused(path, "its chunk keys have dots, the keys of this store have slashes")
    return array_document(metadata, attributes)
