"""The columns of a table: what new arrays store them as, in which type they are compared."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError

_TIME_UNITS = "microseconds since 1970-01-01"
_CALENDAR = "proleptic_gregorian"
TIME = pa.timestamp("us")
_NAN = base64.standard_b64encode(struct.pack("<d", np.nan)).decode()  # as xarray writes it

Taken = Mapping[str, frozenset[int]]
"""Which of the integers that may stand for missing ones (`spare_integers`) columns have."""
_SPARE_AT_EACH_END = 8


@dataclass(frozen=True, slots=True)
class NewArray:
    """How a column is stored when its array does not exist yet."""

    dtype: Any
    fill_value: Any
    attributes: dict[str, Any]


def new_array(
    name: str, kind: pa.DataType, *, is_coordinate: bool, taken: frozenset[int] = frozenset()
) -> NewArray:
    """What to store a column as.

    Coordinates have no missing values, so they get no `_FillValue`, which would turn integers
    into floats for xarray.

    Args:
        taken: values the column has, as far as they are known, so that they cannot stand for a
            missing one.

    Raises:
        InvalidInputError: no array can hold the type, or no value is left for missing ones.
    """
    if is_time(kind):
        attributes: dict[str, Any] = {"units": _TIME_UNITS, "calendar": _CALENDAR}
        fill = None if is_coordinate else _spare(name, pa.int64(), taken)
        return _integers(np.dtype("i8"), attributes, fill)
    if pa.types.is_boolean(kind) and not is_coordinate:
        return NewArray(np.dtype("bool"), False, {})
    if pa.types.is_signed_integer(kind):
        dtype = np.dtype(kind.to_pandas_dtype())
        return _integers(dtype, {}, None if is_coordinate else _spare(name, kind, taken))
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        missing = {} if is_coordinate else {"_FillValue": _NAN}
        return NewArray(np.dtype(kind.to_pandas_dtype()), np.nan, missing)
    if is_text(kind):
        return NewArray(str, "", {})
    possible = "integers, float, double, timestamp, date or string"
    raise InvalidInputError(
        f"column {name!r} is {kind}, expected {possible}{'' if is_coordinate else ' or boolean'}; "
        "cast it first"
    )


def _integers(dtype: np.dtype[Any], attributes: dict[str, Any], fill: int | None) -> NewArray:
    if fill is None:
        return NewArray(dtype, 0, attributes)
    return NewArray(dtype, fill, {"_FillValue": fill, **attributes})


def _spare(name: str, kind: pa.DataType, taken: frozenset[int]) -> int:
    for value in spare_integers(kind):
        if value not in taken:
            return value
    raise InvalidInputError(
        f"column {name!r} has all {len(taken)} values of {kind} that may stand for missing cells, "
        "the smallest and the largest ones; cast it to a wider type or to string"
    )


def spare_integers(kind: pa.DataType) -> tuple[int, ...]:
    """Integers that may stand for a missing one in a column, the best first; none for other types.

    They are those at the ends of a type, where columns seldom have values, or all of 8 bits.
    """
    if not pa.types.is_signed_integer(kind):
        return ()
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = int(limits.min), int(limits.max)
    count = 128 if kind.bit_width == 8 else _SPARE_AT_EACH_END
    return tuple(end for step in range(count) for end in (low + step, high - step))


def is_time(kind: pa.DataType) -> bool:
    """Whether a column holds instants or dates."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def key_type(kind: pa.DataType) -> pa.DataType:
    """The type in which coordinates of a column's type are compared."""
    if is_time(kind):
        return TIME
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
