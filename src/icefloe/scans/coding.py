"""From the values an array stores to the values of a column.

With decoding on, a column has what xarray would show: scale and offset applied, times as
timestamps; where xarray has NaN for a missing value, there is null, and integers stay integers.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns.arrow_columns import numbers_to_arrow
from icefloe.scans.cf_time import TimestampUnits, find_duration_units, find_time_units

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
    scaled: str = "f8"
    """The dtype in which values are scaled and moved."""
    time: TimestampUnits | None = None
    """What one is; durations count from 0."""
    encoding: str | None = None
    """Of bytes that are text."""

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
            raw = raw.astype(self.scaled)
            with np.errstate(over="ignore", invalid="ignore"):  # missing values may be anything
                if self.scale is not None:
                    raw = raw * self.scale
                if self.offset is not None:
                    raw = raw + self.offset
        if self.time is not None:
            if raw.dtype.kind == "f":
                missing = ~np.isfinite(raw)
                mask = missing if mask is None else mask | missing
            return Values(self.time.decode(raw, mask).view(self.dtype), mask)
        if self.encoding is not None:
            texts = [item.decode(self.encoding, "replace") for item in raw.ravel().tolist()]
            return Values(np.array(texts, object).reshape(raw.shape), mask)
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
    fills = _fill_values(stored, view, attributes)
    stored = np.dtype(view) if view else stored
    scale, offset = (_number(attributes.get(key)) for key in ("scale_factor", "add_offset"))
    packing = fills, view, scale, offset
    if stored.kind in "iuf" and attributes.get("dtype") == "bool":
        return Coding(pa.bool_(), "bool", *packing)
    encoding = _text_encoding(stored, attributes)
    if encoding is not None:
        return Coding(pa.string(), "O", fills, encoding=encoding)
    if stored.kind not in "iuf":
        return Coding(_arrow_type(name, stored), _column_dtype(stored), fills, view)
    time = find_time_units(attributes, parent)
    duration = find_duration_units(attributes)
    if time is not None:
        return Coding(pa.timestamp("us"), "M8[us]", *packing, time=time)
    if duration is not None:
        return Coding(pa.duration("us"), "m8[us]", *packing, time=duration)
    if scale is not None or offset is not None:
        scaled = np.dtype(_scaled_dtype(stored, attributes))
        arrow_type = _arrow_type(name, scaled)
        return Coding(arrow_type, _column_dtype(scaled), *packing, scaled=scaled.str[1:])
    return Coding(_arrow_type(name, stored), _column_dtype(stored), fills, view)


def _scaled_dtype(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> str:
    """The dtype in which xarray scales: that of stored floats if NaN alone marks missing ones."""
    fills = [_float(value) for value in _given_fills(attributes).values()]
    is_nan_alone = fills and all(fill is not None and np.isnan(fill) for fill in fills)
    return stored.str[1:] if stored.kind == "f" and is_nan_alone else "f8"


def _text_encoding(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> str | None:
    """How to read bytes as text, if the attributes say so; an unknown encoding is left alone."""
    given = attributes.get("_Encoding")
    if stored.kind != "S" or not isinstance(given, str):
        return None
    try:
        return codecs.lookup(given).name
    except LookupError:
        return None


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
    said = attributes.get("_Unsigned")
    if stored.kind == "i" and said == "true":
        return f"u{stored.itemsize}"
    if stored.kind == "u" and said == "false":
        return f"i{stored.itemsize}"
    return None


def _given_fills(attributes: Mapping[str, Any]) -> dict[str, Any]:
    names = ("_FillValue", "missing_value")
    return {name: attributes[name] for name in names if attributes.get(name) is not None}


def _fill_values(
    stored: np.dtype[Any], view: str | None, attributes: Mapping[str, Any]
) -> tuple[Any, ...]:
    found: list[Any] = []
    for key, given in _given_fills(attributes).items():
        is_own_type = key == "_FillValue"
        is_pair = stored.kind == "c" and is_own_type
        for value in given if isinstance(given, list) and not is_pair else [given]:
            fill = _fill_value(stored, view, value, is_own_type=is_own_type)
            if fill is not None and fill not in found:
                found.append(fill)
    return tuple(found)


def _fill_value(stored: np.dtype[Any], view: str | None, value: Any, *, is_own_type: bool) -> Any:
    """A fill value in the type of the data; None for one that no value is equal to.

    xarray stores the `_FillValue` of floats as base64 of eight bytes. Where it refuses to read one
    (a number beside floats), the number `is_own_type` means is taken. A `missing_value` is compared
    as it is.
    """
    if stored.kind == "f":
        return _fitting(
            stored, _float(value), is_rounded=is_own_type and not isinstance(value, str)
        )
    if stored.kind == "c":
        parts = value if isinstance(value, list) and len(value) == 2 else [value, 0.0]
        real, imaginary = map(_float, parts)
        whole = None if real is None or imaginary is None else complex(real, imaginary)
        return _fitting(stored, whole, is_rounded=False)
    if stored.kind == "b" and isinstance(value, bool | int | float):
        return bool(value) if is_own_type or value in (0, 1) else None
    if stored.kind in "iu" and isinstance(value, int | float):
        if isinstance(value, float) and not value.is_integer():
            return None
        number, info = int(value), np.iinfo(view or stored)
        if view is not None and is_own_type:  # said in the stored type, meant in the other
            number = (number - int(info.min)) % (1 << info.bits) + int(info.min)
        return number if info.min <= number <= info.max else None
    if stored.kind in "UTO" and isinstance(value, str):
        return value
    if stored.kind == "S" and isinstance(value, str):
        try:
            return base64.standard_b64decode(value)
        except binascii.Error:
            return None
    return None


def _fitting(stored: np.dtype[Any], value: Any, *, is_rounded: bool) -> Any:
    """A number in a type of floats; one that it does not have is rounded, or None."""
    if value is None or np.isnan(value):
        return value
    with np.errstate(over="ignore"):
        fitted = stored.type(value).item()
    return fitted if is_rounded or fitted == value else None


def _float(value: Any) -> float | None:
    if not isinstance(value, str):
        return _number(value)
    try:
        found: float = struct.unpack("<d", base64.standard_b64decode(value))[0]
    except (ValueError, struct.error):
        try:
            return float(value)
        except ValueError:
            return None
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:  # an integer of more than 300 digits
        return None
