"""Data types, CF attributes and missing values of source variables."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from icefloe.scans.variables import find_coding
from icefloe.virtual.model.description import Json, VariableDescription


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
    is_known = dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    return dtype.name if is_known else None


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


def canonical_dtype(dtype: str) -> str:
    """The name of a type, ignoring its byte order."""
    return dtype if dtype == "string" else np.dtype(dtype).newbyteorder("<").str.lstrip("<|")


# JSON has neither float32 nor bytes, and xarray reads `_FillValue` beside Zarr arrays in a
# spelling of its own, for numbers only. What cannot be said there is said in another way, or in a
# note.

FILL, MISSING = "_FillValue", "missing_value"


class ZarrAttributes(NamedTuple):
    """Attributes for zarr.json, and what a reader has to know besides."""

    attributes: dict[str, Json]
    notes: tuple[str, ...] = ()


def zarr_attributes(given: Mapping[str, Any], dtype: np.dtype[Any]) -> ZarrAttributes:
    """The attributes of a variable. `given` has numpy's or Python's values, with their types."""
    found = {name: attribute_json(value) for name, value in given.items()}
    notes = []
    if FILL in given:
        del found[FILL]
        note = _put_fill_value(found, given[FILL], dtype)
        if note is not None:
            notes.append(note)
    if _decodes_to_float32(given, dtype):
        notes.append(
            "its scale_factor is a float32, which JSON does not tell from a float64: "
            "it decodes to float64"
        )
    return ZarrAttributes(found, tuple(notes))


def _put_fill_value(found: dict[str, Json], value: Any, dtype: np.dtype[Any]) -> str | None:
    """Say which stored value means missing; returns a note where that cannot be said."""
    array = np.asarray(value).reshape(-1)
    if not array.size:
        return None
    scalar = array[0]
    if dtype.kind == "S":
        # No spelling of it is understood; a group with any could not be opened.
        return f"text that is its _FillValue {attribute_json(scalar)!r} is not read as missing"
    if dtype.kind in "OTU":
        found.setdefault(MISSING, attribute_json(scalar))
        return None
    if scalar.dtype.kind not in "biufc":
        return f"its _FillValue {attribute_json(scalar)!r} is no number, so that it marks nothing"
    if dtype.kind in "iu" and not float(np.real(scalar)).is_integer():
        # No integer is equal to it; xarray makes floating point numbers of them, unless it is NaN.
        if not np.isnan(scalar):
            found.setdefault(MISSING, attribute_json(scalar))
        return None
    found[FILL] = encode_cf_fill_value(value, dtype)
    return None


def _decodes_to_float32(given: Mapping[str, Any], dtype: np.dtype[Any]) -> bool:
    """Whether xarray makes float32 of it: the type of scale and offset decides."""
    if dtype.kind not in "iuf":
        return False
    scale, offset = (
        None if given.get(name) is None else np.asarray(given[name]).dtype.newbyteorder("=")
        for name in ("scale_factor", "add_offset")
    )
    if scale != np.float32 or offset not in (None, np.float32):
        return False
    return offset is None or dtype.kind == "f" or dtype.itemsize != 4


# Files may lack a variable, and a grid of files may have holes. There an array has its fill
# value, so that has to be one which readers decode to NaN or null. It is the one that the
# attributes name; NaN for floating point numbers; and for integers that have none, the one NetCDF
# keeps free for it.

NO_TEXT = "\0"
"""Text of any length that is missing: no file can hold it, because it ends text in C."""

_UNSIGNED = "_Unsigned"
_RESERVED = {
    "i2": -32767,
    "u2": 65535,
    "i4": -2147483647,
    "u4": 4294967295,
    "i8": -9223372036854775806,
    "u8": 18446744073709551614,
}
"""The values NetCDF writes where nothing else was written. Bytes have none to spare."""


def missing_value_of(attributes: Mapping[str, Json], dtype: str) -> Any:
    """The stored value that the attributes say is missing; None if they name none of the type."""
    return next(iter(missing_values_of(attributes, dtype)), None)


def missing_values_of(attributes: Mapping[str, Json], dtype: str) -> tuple[Any, ...]:
    """The stored values that readers take for missing, `_FillValue` first."""
    if dtype == "string":
        given = (attributes.get(name) for name in (FILL, MISSING))
        lists = (value if isinstance(value, list) else [value] for value in given)
        return tuple(value for values in lists for value in values if isinstance(value, str))
    kind = np.dtype(dtype)
    if kind.kind not in "iuf":
        return ()
    said = {key: value for key, value in attributes.items() if key in (FILL, MISSING, _UNSIGNED)}
    coding = find_coding("", kind, said, decode=True)
    if coding.view is None:
        return coding.fill_values
    stored = np.array(coding.fill_values, coding.view).view(f"{kind.kind}{kind.itemsize}")
    return tuple(stored.tolist())


def natural_fill_value(variable: VariableDescription) -> Json | None:
    """The fill value that means missing without any addition; None if there is no such value."""
    if variable.dtype == "string":
        return missing_value_of(variable.attributes, "string")
    kind = np.dtype(variable.dtype)
    if kind.kind == "S":
        return variable.fill_value  # empty text: there is nothing else it could be
    if kind.kind in "mM":
        return fill_value_json(np.array("NaT", kind.newbyteorder("=")), kind)
    found = missing_value_of(variable.attributes, variable.dtype)
    if found is not None:
        return fill_value_json(found, kind)
    if kind.kind in "fc":
        return fill_value_json(np.nan, kind)
    return None


def _reserved_value(variable: VariableDescription) -> Any:
    """The value that means missing if no file holds it; None if there is none to spare."""
    if variable.dtype == "string":
        return NO_TEXT
    kind = np.dtype(variable.dtype)
    if variable.attributes.get(_UNSIGNED) == "true" or kind.kind not in "iu":
        return None
    return _RESERVED.get(f"{kind.kind}{kind.itemsize}")


def prepare_fill(
    variable: VariableDescription, *, has_holes: bool, has_gaps: bool
) -> tuple[VariableDescription, Any]:
    """The variable as a new array needs it: with a fill value that means missing.

    Also the value that then must not occur in any file, if it had to be made up. `has_gaps` says
    that there are chunks in files that were never written: these go on meaning what they meant,
    and there can be no holes besides.
    """
    natural = natural_fill_value(variable)
    if natural is not None:
        kept = has_gaps and not has_holes
        return (variable if kept else replace(variable, fill_value=natural)), None
    if not has_holes:
        return variable, None
    reserved = _reserved_value(variable)
    mark = MISSING if variable.dtype == "string" else FILL
    marked = {**variable.attributes, mark: reserved}
    return replace(variable, attributes=marked, fill_value=reserved), reserved


def find_unfillable(
    path: str,
    variable: VariableDescription,
    document: Mapping[str, Json] | None,
    *,
    is_virtual: bool,
) -> str | None:
    """Why places that no file fills cannot be distinguished from others; None if they can."""
    kind = "text" if variable.dtype == "string" else str(np.dtype(variable.dtype))
    natural = natural_fill_value(variable)
    if document is not None:
        if natural is not None and json_equal(document["fill_value"], natural):
            return None
        return (
            f"variable {path!r} would have places that no file fills, and its fill value in the "
            f"repository, {document['fill_value']!r}, does not mean missing"
        )
    if natural is not None:
        return None
    if _reserved_value(variable) is None:
        return (
            f"variable {path!r} would have places that no file fills, and its type {kind} has no "
            "value to spare for missing ones"
        )
    if is_virtual and kind != "text":
        return (
            f"variable {path!r} would have places that no file fills, and no value of it means "
            "missing; use mode='native', which finds out whether one can"
        )
    return None


def json_equal(one: Json, other: Json) -> bool:
    """Whether two fill values are the same, however their NaN is spelled."""
    return one == other or (_is_nan(one) and _is_nan(other))


def _is_nan(value: Json) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_nan, value))
    return isinstance(value, str) and (value == "NaN" or value.startswith(("0x7f", "0xff")))
