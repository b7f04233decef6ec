"""From columns of a table to the values an array stores: the way back of `coding.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.spark.coding import Coding, find_coding

_TIME_UNITS = "microseconds since 1970-01-01"
_CALENDAR = "proleptic_gregorian"
_TIME = pa.timestamp("us")


@dataclass(frozen=True, slots=True)
class NewArray:
    """How a column is stored when its array does not exist yet."""

    dtype: Any
    fill_value: Any
    attributes: dict[str, Any]


def new_array(name: str, kind: pa.DataType, *, is_coordinate: bool) -> NewArray:
    """What to store a column as.

    Coordinates have no missing values, so they get no `_FillValue`, which would turn integers
    into floats for xarray.

    Raises:
        InvalidInputError: no array can hold the type.
    """
    if is_time(kind):
        attributes: dict[str, Any] = {"units": _TIME_UNITS, "calendar": _CALENDAR}
        return _integers(np.dtype("i8"), attributes, is_coordinate=is_coordinate)
    if pa.types.is_boolean(kind) and not is_coordinate:
        return NewArray(np.dtype("bool"), False, {})
    if pa.types.is_signed_integer(kind):
        return _integers(np.dtype(kind.to_pandas_dtype()), {}, is_coordinate=is_coordinate)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return NewArray(np.dtype(kind.to_pandas_dtype()), np.nan, {})
    if is_text(kind):
        return NewArray(str, "", {})
    possible = "integers, float, double, timestamp, date or string"
    raise InvalidInputError(
        f"column {name!r} is {kind}, expected {possible}{'' if is_coordinate else ' or boolean'}; "
        "cast it first"
    )


def _integers(dtype: np.dtype[Any], attributes: dict[str, Any], *, is_coordinate: bool) -> NewArray:
    if is_coordinate:
        return NewArray(dtype, 0, attributes)
    fill = int(np.iinfo(dtype).min)
    return NewArray(dtype, fill, {"_FillValue": fill, **attributes})


def is_time(kind: pa.DataType) -> bool:
    """Whether a column holds instants or dates."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def key_type(kind: pa.DataType) -> pa.DataType:
    """The type in which coordinates of a column's type are compared."""
    if is_time(kind):
        return _TIME
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.string() if is_text(kind) else kind


def as_keys(name: str, column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """A column in a type of keys: times without zone (UTC), no negative zero.

    Raises:
        InvalidInputError: a value does not exist in that type.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    given = column.type
    if is_time(given) != is_time(kind) or is_text(given) != is_text(kind):
        raise InvalidInputError(
            f"column {name!r} is {given}, the coordinates of {name!r} are {kind}; cast it first"
        )
    try:
        keys = column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"column {name!r} has a value that is no {kind}, as its coordinates are: {error}"
        ) from None
    return pc.add(keys, pa.scalar(0.0, kind)) if pa.types.is_floating(kind) else keys


@dataclass(frozen=True, slots=True)
class Encoder:
    """Turns a column into the values that a stored array has for it."""

    name: str
    dtype: np.dtype[Any]
    coding: Coding
    missing: Any
    """What is stored for null; None if the array has no value for it."""

    @classmethod
    def of(cls, name: str, array: zarr.Array[Any]) -> Encoder:
        """The encoder of an array that exists."""
        dtype = np.dtype(array.dtype)
        coding = find_coding(name, dtype, dict(array.attrs), decode=True)
        if coding.view is not None:
            raise InvalidInputError(
                f"array {name!r} stores unsigned numbers as signed ones (_Unsigned); tables cannot "
                "be written into it"
            )
        missing: Any = coding.fill_values[0] if coding.fill_values else None
        if missing is None and dtype.kind == "f":
            missing = np.nan
        elif missing is None and dtype.kind in "UTO":
            missing = ""
        return cls(name, dtype, coding, missing)

    def check(self, kind: pa.DataType) -> None:
        """Refuse a column whose type does not fit the array."""
        wanted = self.coding.arrow_type
        is_scaled = self.coding.scale is not None or self.coding.offset is not None
        if is_time(wanted):
            fits = is_time(kind) and self.coding.time is not None
        elif pa.types.is_floating(wanted) or is_scaled:
            fits = pa.types.is_floating(kind) or pa.types.is_integer(kind)
        elif pa.types.is_integer(wanted):
            fits = pa.types.is_integer(kind)
        elif pa.types.is_boolean(wanted):
            fits = pa.types.is_boolean(kind)
        else:
            fits = is_text(wanted) and is_text(kind)
        if not fits:
            raise InvalidInputError(
                f"column {self.name!r} is {kind}, the array {self.name!r} holds {wanted} (stored "
                f"as {self.dtype}); cast the column first"
            )

    def encode(self, column: pa.Array) -> NDArray[Any]:
        """The stored form of a column.

        Raises:
            InvalidInputError: a value cannot be stored in the array without loss.
        """
        if column.null_count and self.missing is None:
            raise InvalidInputError(
                f"column {self.name!r} has null, for which the array {self.name!r} of {self.dtype} "
                "has no _FillValue; drop those rows or replace the nulls"
            )
        if self.dtype.kind in "UTO":
            return np.asarray(column.fill_null(self.missing).to_numpy(zero_copy_only=False), object)
        is_null = np.asarray(column.is_null()) if column.null_count else None
        values = self._stored(_numbers(column))
        if is_null is not None:
            values[is_null] = self.missing
        return values

    def _stored(self, values: NDArray[Any]) -> NDArray[Any]:
        coding = self.coding
        if coding.time is not None:
            unit = coding.time.unit_ns
            moved = (values - coding.time.reference_us) * 1000
            if self.dtype.kind == "f":
                return (moved / unit).astype(self.dtype)
            if bool((moved % unit).any()):
                raise InvalidInputError(
                    f"column {self.name!r} has times between the steps of {unit} ns that the array "
                    f"{self.name!r} can store"
                )
            values = moved // unit
        elif coding.scale is not None or coding.offset is not None:
            values = (values.astype(np.float64) - (coding.offset or 0.0)) / (coding.scale or 1.0)
            if self.dtype.kind in "iu":
                is_nan = np.isnan(values)
                if bool(is_nan.any()) and self.missing is None:
                    raise InvalidInputError(
                        f"column {self.name!r} has NaN, for which the array {self.name!r} of "
                        f"{self.dtype} has no _FillValue"
                    )
                values = np.rint(np.where(is_nan, self.missing or 0, values))
        if self.dtype.kind in "iu" and len(values):
            low, high, limits = values.min(), values.max(), np.iinfo(self.dtype)
            if low < limits.min or high > limits.max:
                worst = low if low < limits.min else high
                raise InvalidInputError(
                    f"column {self.name!r} has {worst}, which does not fit the array "
                    f"{self.name!r} of {self.dtype}"
                )
        return values.astype(self.dtype)


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Numbers or truth values; times as microseconds since 1970. Nulls are zero."""
    if is_time(column.type):
        column = column.cast(_TIME).cast(pa.int64())
    empty: Any = False if pa.types.is_boolean(column.type) else 0
    filled = column.fill_null(pa.scalar(empty, column.type)) if column.null_count else column
    return np.array(filled.to_numpy(zero_copy_only=False))
