"""Conversion of data types and fill values between `zarr.json` and the older generations."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.legacy.checked import Checked
from icefloe.legacy.numbered.model import DataType, FillValue

# struct letters; complex numbers are two floats
_FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
_COMPLEX = {"complex64": "f", "complex128": "d"}
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
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

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
        return _from_raw(fill.value, data_type)
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


def _from_raw(data: bytes, data_type: str) -> Any:
    """Floats that JSON numbers cannot represent are raw bytes, least significant first."""
    if data_type in _COMPLEX:
        half = len(data) // 2
        part = "float32" if data_type == "complex64" else "float64"
        return [_from_raw(data[:half], part), _from_raw(data[half:], part)]
    if data_type in _FLOATS:
        (value,) = struct.unpack("<" + _FLOATS[data_type], data)
        if math.isnan(value) and data != _pack(math.nan, data_type):
            return "0x" + data[::-1].hex()
        return _number_document(value)
    if data_type == "bool":
        return data != b"\0"
    return int.from_bytes(data, "little", signed=not data_type.startswith("u"))


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
    raise _refused(
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
        if data_type in _COMPLEX:
            part = "float32" if data_type == "complex64" else "float64"
            parts = [_parse_number(each, part) for each in value]
            if len(parts) != 2:
                raise ValueError("a complex number has two parts")
            return _with_bits(kind, parts, part)
        if data_type in _FLOATS:
            return _with_bits(kind, [_parse_number(value, data_type)], data_type)
        if data_type == "bool":
            if not isinstance(value, bool):
                raise ValueError("not a boolean")
            return FillValue(kind, value)
        lowest, highest = _INTEGERS[data_type]
        if isinstance(value, bool) or int(value) != value or not lowest <= value <= highest:
            raise ValueError("not in range")
        return FillValue(kind, int(value))
    except (ValueError, TypeError, OverflowError, struct.error):
        raise _refused(path, f"fill value {value!r} does not fit data type {data_type!r}") from None


def raw_fill_value(fill: FillValue, data_type: DataType) -> FillValue:
    """The same as raw bytes if it is a float that JSON numbers cannot represent, else itself."""
    parts = fill.value if isinstance(fill.value, tuple) else (fill.value,)
    if all(not isinstance(part, float) or math.isfinite(part) for part in parts):
        return fill
    assert isinstance(data_type, str)
    part_type = {"complex64": "float32", "complex128": "float64"}.get(data_type, data_type)
    return FillValue("RawBits", b"".join(_pack(part, part_type) for part in parts))


def _parse_number(value: Any, data_type: str) -> float | bytes:
    """A number, or the bits of a NaN with a payload."""
    if isinstance(value, str):
        if value in _WORDS:
            return _WORDS[value]
        if not value.startswith("0x"):
            raise ValueError("neither a number nor its bits")
        data = bytes.fromhex(value[2:])[::-1]
        (number,) = struct.unpack("<" + _FLOATS[data_type], data)
        return float(number) if not math.isnan(number) else data
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    (number,) = struct.unpack("<" + _FLOATS[data_type], _pack(float(value), data_type))
    return float(number)


def _with_bits(kind: str, parts: list[float | bytes], part_type: str) -> FillValue:
    if any(isinstance(part, bytes) for part in parts):
        bits = [part if isinstance(part, bytes) else _pack(part, part_type) for part in parts]
        return FillValue("RawBits", b"".join(bits))
    return FillValue(kind, tuple(parts) if len(parts) == 2 else parts[0])


def _pack(value: float, data_type: str) -> bytes:
    return struct.pack("<" + _FLOATS[data_type], value)


def _refused(path: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"zarr.json of {path!r}: {problem}", ErrorKind.BAD_METADATA)
