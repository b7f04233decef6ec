"""Conversion of fill values between the bytes of a structure file and zarr.json.

Types of fixed width are big-endian values. Text is UTF-8. The value of any other type is the JSON
of zarr.json.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.legacy.state_file.names import checked

_WHOLE = {
    f"{sign}int{bits}": (sign == "", bits // 8) for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_FLOATS = {"float16": ">e", "float32": ">f", "float64": ">d"}
_COMPLEX = {"complex64": ">f", "complex128": ">d"}
_RAW = re.compile(r"r([1-9][0-9]*)")
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def encode_fill_value(data_type: Any, value: Any, where: str) -> bytes:
    """The bytes of a fill value of zarr.json."""
    try:
        return _encode(data_type, value)
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise InvalidInputError(
            f"{where}: fill_value {value!r:.80} is none of data type {data_type!r:.80} ({error})",
            ErrorKind.BAD_METADATA,
        ) from None


def _encode(data_type: Any, value: Any) -> bytes:
    if not isinstance(data_type, str):
        return json.dumps(value, separators=(",", ":")).encode()
    if data_type == "bool" or data_type in _WHOLE:
        return _encode_whole(data_type, value)
    if data_type in _FLOATS:
        return _encode_float(_FLOATS[data_type], value)
    if data_type in _COMPLEX:
        if not isinstance(value, list) or len(value) != 2:
            raise TypeError("expected two numbers")
        return b"".join(_encode_float(_COMPLEX[data_type], part) for part in value)
    size = _raw_size(data_type)
    if size is not None:
        raw = bytes(value)
        _check_size(raw, size)
        return raw
    if data_type == "string":
        if not isinstance(value, str):
            raise TypeError("expected text")
        return value.encode()
    return json.dumps(value, separators=(",", ":")).encode()


def _encode_whole(data_type: str, value: Any) -> bytes:
    expected = bool if data_type == "bool" else int
    if not isinstance(value, int) or isinstance(value, bool) != (expected is bool):
        raise TypeError(f"expected {expected.__name__}")
    if expected is bool:
        return bytes([value])
    signed, size = _WHOLE[data_type]
    return value.to_bytes(size, "big", signed=signed)


def _encode_float(layout: str, value: Any) -> bytes:
    if isinstance(value, str) and value in _NOT_FINITE:
        return struct.pack(layout, _NOT_FINITE[value])
    if isinstance(value, str):  # the bits themselves, for NaNs with a payload
        size = struct.calcsize(layout)
        if not value.startswith("0x") or len(value) != 2 + 2 * size:
            raise ValueError("expected a number, NaN, Infinity, -Infinity or all bits as 0x...")
        return bytes.fromhex(value[2:])
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("expected a number")
    return struct.pack(layout, value)


def decode_fill_value(data_type: Any, data: bytes | None, where: str) -> Any:
    """The fill value in zarr.json. Zarr requires one, so the default is zero."""
    try:
        return _decode(data_type, data)
    except (ValueError, struct.error, RecursionError) as error:
        raise checked(where).fail(
            f"fill_value {data!r:.80} is none of data type {data_type!r:.80} ({error})"
        ) from None


def _decode(data_type: Any, data: bytes | None) -> Any:
    if not isinstance(data_type, str):
        return None if data is None else json.loads(data)
    if data_type == "bool":
        if data not in (None, b"\0", b"\1"):
            raise ValueError("expected one byte, 0 or 1")
        return data == b"\1"
    if data_type in _WHOLE:
        signed, size = _WHOLE[data_type]
        _check_size(data, size)
        return int.from_bytes(data or b"", "big", signed=signed)
    if data_type in _FLOATS:
        layout = _FLOATS[data_type]
        if data_type == "float16" and data is not None and len(data) == 4:
            layout = ">f"  # a prototype stored half floats as single floats
        _check_size(data, struct.calcsize(layout))
        return 0.0 if data is None else _decode_float(layout, data)
    if data_type in _COMPLEX:
        layout = _COMPLEX[data_type]
        size = struct.calcsize(layout)
        _check_size(data, 2 * size)
        if data is None:
            return [0.0, 0.0]
        return [_decode_float(layout, data[:size]), _decode_float(layout, data[size:])]
    raw_size = _raw_size(data_type)
    if raw_size is not None:
        _check_size(data, raw_size)
        return list(bytes(raw_size) if data is None else data)
    if data_type == "string":
        return (data or b"").decode()
    return None if data is None else json.loads(data)


def _decode_float(layout: str, data: bytes) -> float | str:
    (value,) = struct.unpack(layout, data)
    for text, other in _NOT_FINITE.items():
        if struct.pack(layout, other) == data:
            return text
    return "0x" + data.hex() if value != value else float(value)


def _raw_size(data_type: str) -> int | None:
    found = _RAW.fullmatch(data_type)
    return None if found is None else -(-int(found[1]) // 8)


def _check_size(data: bytes | None, size: int) -> None:
    if data is not None and len(data) != size:
        raise ValueError(f"it has {len(data)} bytes, expected {size}")
