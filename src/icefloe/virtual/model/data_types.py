"""numpy's data types, fill values and attributes in the words of zarr.json."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import numpy as np

from icefloe.virtual.model.description import Json

_NAMES = {
    np.dtype(name): name
    for name in (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
}


def data_type_of(dtype: np.dtype[Any]) -> Json | None:
    """The `data_type` of a numpy type; None when Zarr has none for it."""
    if dtype.kind in "OT":
        return "string"
    if dtype.kind == "S":
        if not dtype.itemsize:
            return None
        return {"name": "null_terminated_bytes", "configuration": {"length_bytes": dtype.itemsize}}
    if dtype.kind == "U":
        return {"name": "fixed_length_utf32", "configuration": {"length_bytes": dtype.itemsize}}
    if dtype.kind in "mM":
        unit, count = np.datetime_data(dtype)
        name = "numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64"
        return {"name": name, "configuration": {"unit": unit, "scale_factor": count}}
    return _NAMES.get(dtype.newbyteorder("="))


def fill_value_json(value: Any, dtype: np.dtype[Any]) -> Json:
    """A fill value as zarr.json spells it; None stands for zero, or empty text."""
    if dtype.kind in "OTU":
        return _text(value)
    if dtype.kind == "S":
        raw = value if isinstance(value, bytes) else b""
        return base64.standard_b64encode(raw.rstrip(b"\0")).decode()
    scalar = np.zeros((), dtype)[()] if value is None else np.asarray(value).astype(dtype)[()]
    match dtype.kind:
        case "b":
            return bool(scalar)
        case "i" | "u":
            return int(scalar)
        case "m" | "M":
            return int(scalar.astype(np.int64))
        case "c":
            return [_float_json(scalar.real), _float_json(scalar.imag)]
    return _float_json(scalar)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None or isinstance(value, int | float) else str(value)


def _float_json(value: Any) -> Json:
    number = float(value)
    if math.isfinite(number):
        return number
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    # No reader compares missing values bit by bit, but a NaN keeps its payload.
    bits = np.asarray(value).astype(np.asarray(value).dtype.newbyteorder(">")).tobytes()
    usual = np.asarray(np.nan, np.asarray(value).dtype.newbyteorder(">")).tobytes()
    return "NaN" if bits == usual else "0x" + bits.hex()


def encode_cf_fill_value(value: Any, dtype: np.dtype[Any]) -> Json:
    """The attribute `_FillValue` as xarray keeps it beside Zarr arrays.

    Floating point numbers become base64 there, so that NaN and all digits survive JSON.
    """
    array = np.asarray(value)
    if dtype.kind == "S":
        raw = array.reshape(-1)[0] if array.size else b""
        raw = raw.encode() if isinstance(raw, str) else bytes(raw)
        return base64.standard_b64encode(raw).decode()
    if dtype.kind in "OTU":
        return _text(array.reshape(-1)[0] if array.size else "")
    scalar = array.reshape(-1)[0] if array.size else 0
    if dtype.kind == "f":
        return base64.standard_b64encode(struct.pack("<d", float(scalar))).decode()
    if dtype.kind == "c":
        parts = (float(np.real(scalar)), float(np.imag(scalar)))
        return [base64.standard_b64encode(struct.pack("<d", part)).decode() for part in parts]
    if dtype.kind == "b":
        return bool(scalar)
    return int(scalar)


def attribute_json(value: Any) -> Json:
    """An attribute's value for JSON; arrays of one element become that element."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.longdouble | np.clongdouble):
        # Their `item` gives them back, because Python has no such number.
        value = complex(value) if isinstance(value, np.clongdouble) else float(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "S":
            value = np.char.decode(value, "utf-8", "replace")
        if value.size == 1:
            return attribute_json(value.reshape(-1)[0])
        return [attribute_json(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return attribute_json(value.item())
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, list | tuple):
        return [attribute_json(item) for item in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)


def little_endian(dtype: str) -> str:
    """The type native chunks are written in."""
    return dtype if dtype == "string" else np.dtype(dtype).newbyteorder("<").str


def bytes_codec(dtype: np.dtype[Any]) -> Json:
    """Zarr's codec between values and bytes, in the byte order of the values."""
    if dtype.itemsize == 1 or dtype.kind == "S":
        return {"name": "bytes"}
    is_big = dtype != dtype.newbyteorder("<")
    return {"name": "bytes", "configuration": {"endian": "big" if is_big else "little"}}


def bytes_codec_of(dtype: str) -> Json:
    """Zarr's codec for a type in the byte order of native chunks."""
    return bytes_codec(np.dtype(little_endian(dtype)))


def canonical_dtype(dtype: str) -> str:
    """The name of a type whatever its byte order."""
    return dtype if dtype == "string" else np.dtype(dtype).newbyteorder("<").str.lstrip("<|")
