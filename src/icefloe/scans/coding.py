"""From the values an array stores to the values of a column.

With decoding on, a column has what xarray would show: scale and offset applied, times as
timestamps; where xarray has NaN for a missing value, there is null, and integers stay integers.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns.arrow_columns import numbers_to_arrow
from icefloe.scans.cf_time import TimestampUnits, find_time_units

_WIDENED = {"u1": "i2", "u2": "i4", "u4": "i8", "f2": "f4"}
_UINT64 = pa.decimal128(20, 0)
_PLAIN = {
    "i1": pa.int8(),
    "i2": pa.int16(),
    "i4": pa.int32(),
    "i8": pa.int64(),
    "f4": pa.float32(),
    "f8": pa.float64(),
    "M8[us]": pa.timestamp("us"),
    "m8[us]": pa.duration("us"),
}
"""Numbers and times that Arrow keeps as numpy does."""
_COMPLEX_PARTS = {
    kind: pa.struct([pa.field("re", part), pa.field("im", part)])
    for kind, part in (("c8", pa.float32()), ("c16", pa.float64()))
}


@dataclass(frozen=True, slots=True)
class Values:
    """Part of an array, decoded: numbers (or objects), and which of them are missing."""

    data: NDArray[Any]
    mask: NDArray[np.bool_] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether numpy can repeat the values cheaply; text has to be repeated by Arrow."""
        return self.data.dtype.kind in "biufcmM"


@dataclass(frozen=True, slots=True)
class Coding:
    """How one array's values become a column of `arrow_type`."""

    arrow_type: pa.DataType
    dtype: str
    """Of the decoded values; `O` for objects."""
    fill_values: tuple[Any, ...] = ()
    view: str | None = None
    """Another dtype of the same size that the stored bytes really are."""
    scale: float | None = None
    offset: float | None = None
    time: TimestampUnits | None = None

    def decode(self, raw: NDArray[Any]) -> Values:
        """Decode part of the array."""
        if self.view is not None:
            raw = raw.view(self.view)
        mask = None
        for fill in self.fill_values:
            is_nan = isinstance(fill, float) and np.isnan(fill)
            found = np.isnan(raw) if is_nan else np.asarray(raw == fill)
            mask = found if mask is None else mask | found
        if self.scale is not None or self.offset is not None:
            raw = raw.astype(np.float64)
            if self.scale is not None:
                raw = raw * self.scale
            if self.offset is not None:
                raw = raw + self.offset
        if self.time is not None:
            if raw.dtype.kind == "f":
                missing = np.isnan(raw)
                mask = missing if mask is None else mask | missing
            return Values(self.time.decode(raw, mask), mask)
        if raw.dtype.kind in "mM":
            missing = np.isnat(raw)
            mask = missing if mask is None else mask | missing
        if self.dtype != "O":
            raw = raw.astype(self.dtype, copy=False)
        return Values(raw, mask)

    def to_arrow(self, values: Values) -> pa.Array:
        """A column of flat values."""
        data, mask = values.data, values.mask
        if mask is not None and not mask.any():
            mask = None
        if pa.types.is_struct(self.arrow_type):
            parts = [pa.array(np.ascontiguousarray(part)) for part in (data.real, data.imag)]
            missing = None if mask is None else pa.array(mask)
            return pa.StructArray.from_arrays(parts, fields=list(self.arrow_type), mask=missing)
        if self.arrow_type == _UINT64:
            return pa.array(data, mask=mask).cast(_UINT64)
        plain = _PLAIN.get(data.dtype.str[1:])
        if data.dtype.isnative and plain == self.arrow_type:
            return numbers_to_arrow(data, mask)
        if data.dtype.kind == "V":
            data = np.array([item.tobytes() for item in data], object)
        elif data.dtype.kind in "SUT":
            data = data.astype(object)
        return pa.array(data, self.arrow_type, mask=mask)


def find_coding(
    name: str,
    dtype: Any,
    attributes: Mapping[str, Any],
    *,
    decode: bool,
    parent: Mapping[str, Any] | None = None,
) -> Coding:
    """How to decode an array of this dtype with these attributes.

    `parent` are the attributes of the array whose bounds it holds, if it holds bounds.

    Raises:
        InvalidInputError: there is no column type for the dtype.
    """
    stored = np.dtype(dtype)
    if not decode:
        return Coding(_arrow_type(name, stored), _column_dtype(stored))
    view = _unsigned_view(stored, attributes)
    stored = np.dtype(view) if view else stored
    fills = _fill_values(stored, attributes)
    if stored.kind not in "iuf":
        return Coding(_arrow_type(name, stored), _column_dtype(stored), fills, view)
    if stored.kind in "iu" and attributes.get("dtype") == "bool":
        return Coding(pa.bool_(), "bool", fills, view)
    time = find_time_units(attributes, parent)
    scale, offset = (_number(attributes.get(key)) for key in ("scale_factor", "add_offset"))
    if time is not None:
        return Coding(pa.timestamp("us"), "M8[us]", fills, view, scale, offset, time)
    if scale is not None or offset is not None:
        return Coding(pa.float64(), "f8", fills, view, scale, offset)
    return Coding(_arrow_type(name, stored), _column_dtype(stored), fills, view)


def _column_dtype(stored: np.dtype[Any]) -> str:
    if stored.kind in "mM":
        return f"{stored.kind}8[us]"
    if stored.kind in "SUTVO":
        return "O" if stored.kind in "TO" else stored.newbyteorder("=").str
    plain = stored.str[1:]
    return _WIDENED.get(plain, plain)


def _arrow_type(name: str, stored: np.dtype[Any]) -> pa.DataType:
    plain = stored.str[1:]
    if plain == "u8":
        return _UINT64
    if plain in _COMPLEX_PARTS:
        return _COMPLEX_PARTS[plain]
    if stored.kind in "biuf" and plain != "f16":
        return pa.from_numpy_dtype(np.dtype(_WIDENED.get(plain, plain)))
    if stored.kind in "UT":
        return pa.string()
    if stored.kind == "S" or (stored.kind == "V" and stored.names is None):
        return pa.binary()
    if stored.kind == "O":
        return pa.string()
    if stored.kind in "mM":
        return pa.timestamp("us") if stored.kind == "M" else pa.duration("us")
    raise InvalidInputError(
        f"array {name!r} has the data type {stored}, for which Spark has no column type; leave it "
        "out with variables=..., or read its bytes with layout='chunks'",
        ErrorKind.INVALID_ARRAY_METADATA,
    )


def _unsigned_view(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> str | None:
    said = str(attributes.get("_Unsigned", "")).lower()
    if stored.kind == "i" and said == "true":
        return f"u{stored.itemsize}"
    if stored.kind == "u" and said == "false":
        return f"i{stored.itemsize}"
    return None


def _fill_values(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for key in ("_FillValue", "missing_value"):
        given = attributes.get(key)
        if given is None:
            continue
        for value in given if isinstance(given, list) and stored.kind != "c" else [given]:
            read = _fill_value(stored, value)
            if read is not None and read not in found:
                found.append(read)
    return tuple(found)


def _fill_value(stored: np.dtype[Any], value: Any) -> Any:
    """A fill value in the type of the data; xarray writes floats as base64 of eight bytes."""
    if stored.kind == "f":
        return _float(value)
    if stored.kind == "c":
        parts = value if isinstance(value, list) and len(value) == 2 else [value, 0.0]
        real, imaginary = map(_float, parts)
        return None if real is None or imaginary is None else complex(real, imaginary)
    if stored.kind in "iu" and isinstance(value, int | float):
        if not float(value).is_integer():
            return None  # no integer is equal to it
        bits = 8 * stored.itemsize
        number = int(value)
        if stored.kind == "u" and number < 0:
            number += 1 << bits  # stored as signed, meant as unsigned
        info = np.iinfo(stored)
        return number if info.min <= number <= info.max else None
    if stored.kind in "UTO" and isinstance(value, str):
        return value
    if stored.kind == "S" and isinstance(value, str):
        return base64.standard_b64decode(value)
    return None


def _float(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        found: float = struct.unpack("<d", base64.standard_b64decode(value))[0]
    except (binascii.Error, struct.error):
        try:
            return float(value)
        except ValueError:
            return None
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return float(value) if isinstance(value, int | float) else None
