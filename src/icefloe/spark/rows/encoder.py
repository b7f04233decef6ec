"""From columns of a table to the values an array stores: the way back of `coding.py`.

What would be read as another value, or as a missing one, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray

from icefloe.errors import FormatError, InvalidInputError
from icefloe.scans.cf_time import find_duration_units
from icefloe.scans.coding import Coding, find_coding
from icefloe.spark.rows.columns import TIME, is_text, is_time

_FLOAT_TIME_ERROR_US = 10
"""How much times may move in arrays of floats: what float64 does to days since the year 1."""


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
        # Columns of durations cannot be written: their numbers are, in the units of the array.
        attributes = {
            key: value
            for key, value in array.attrs.items()
            if key != "dtype" or find_duration_units({"dtype": value, "units": "days"}) is None
        }
        coding = find_coding(name, dtype, attributes, decode=True)
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
        if is_time(wanted):
            fits = is_time(kind) and self.coding.time is not None
        elif pa.types.is_floating(wanted) or self._is_scaled:
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

    @property
    def _is_scaled(self) -> bool:
        return self.coding.scale is not None or self.coding.offset is not None

    @property
    def _is_rounding(self) -> bool:
        """Whether times may come back a few microseconds away."""
        return self.coding.time is not None and (self.dtype.kind == "f" or self._is_scaled)

    def rounded(self, keys: pa.Array) -> pa.Array:
        """Times as the array would give them back."""
        if not self._is_rounding or not len(keys):
            return keys
        return self.coding.to_arrow(self.coding.decode(self.encode(keys)))

    def encode(self, column: pa.Array) -> NDArray[Any]:
        """The stored form of a column.

        Raises:
            InvalidInputError: a value would be read as another one, or as a missing one.
        """
        if column.null_count and self.missing is None:
            raise InvalidInputError(
                f"column {self.name!r} has null, for which the array {self.name!r} of {self.dtype} "
                "has no _FillValue; drop those rows or replace the nulls"
            )
        if self.dtype.kind in "UTO":
            texts = np.asarray(column.drop_null().to_numpy(zero_copy_only=False), object)
            self._check_present(texts, texts)
            return np.asarray(column.fill_null(self.missing).to_numpy(zero_copy_only=False), object)
        given = _numbers(column)
        is_absent = self._absent(column, given)
        if is_absent is None:
            return self._checked(given)
        stored = np.full(given.shape, self.missing, self.dtype)
        stored[~is_absent] = self._checked(given[~is_absent])
        return stored

    def _absent(self, column: pa.Array, given: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Rows without a value: null, and NaN where integers are stored."""
        found = np.asarray(column.is_null()) if column.null_count else None
        if given.dtype.kind == "f" and self.dtype.kind in "iu":
            is_nan = np.isnan(given)
            if bool(is_nan.any()) and self.missing is None:
                raise InvalidInputError(
                    f"column {self.name!r} has NaN, for which the array {self.name!r} of "
                    f"{self.dtype} has no _FillValue"
                )
            found = is_nan if found is None else found | is_nan
        return found if found is not None and found.any() else None

    def _checked(self, given: NDArray[Any]) -> NDArray[Any]:
        """Values that are there, in their stored form."""
        stored = self._fitted(given, self._converted(given))
        self._check_present(given, stored)
        if self.coding.time is not None:
            self._check_times(given, stored)
        return stored

    def _converted(self, values: NDArray[Any]) -> NDArray[Any]:
        """In the units of the array, not yet in its data type."""
        coding = self.coding
        if coding.time is not None:
            moved = values - coding.time.reference_us
            unit = coding.time.unit_ns
            if self._is_rounding:
                values = moved / (unit / 1000)
            else:  # what does not come out even shows when the times are read again
                values = moved // (unit // 1000) if unit >= 1000 else moved * (1000 // unit)
        if self._is_scaled:
            values = (values.astype(np.float64) - (coding.offset or 0.0)) / (coding.scale or 1.0)
            if self.dtype.kind in "iu":
                values = np.rint(values)
        return values

    def _fitted(self, given: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        """In the data type of the array, whose range they have to be in."""
        is_lost: Any = np.zeros(values.shape, np.bool_)
        if self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            is_lost = (values < limits.min) | (values > limits.max)
        elif self.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                stored = values.astype(self.dtype)
                if values.dtype.kind in "iu":
                    is_lost = stored.astype(values.dtype) != values
                else:
                    is_lost = np.isinf(stored) & np.isfinite(values)
        if is_lost.any():
            raise self._refused(given[is_lost][0], "does not fit")
        return values.astype(self.dtype)

    def _check_times(self, given: NDArray[Any], stored: NDArray[Any]) -> None:
        try:
            found = self.coding.decode(stored).data.astype(np.int64)
        except FormatError as error:
            worst = given[np.argmax(np.abs(given))]
            raise self._refused(worst, "cannot be read again from") from error
        tolerance = _FLOAT_TIME_ERROR_US if self._is_rounding else 0
        is_moved = (np.abs(found - given) > tolerance) | (found > given + tolerance)
        if is_moved.any():
            raise self._refused(given[is_moved][0], "lies between the steps of")

    def _check_present(self, given: NDArray[Any], stored: NDArray[Any]) -> None:
        for fill in self.coding.fill_values:
            is_hidden = np.asarray(stored == fill, np.bool_)
            if is_hidden.any():
                raise self._refused(
                    given[is_hidden][0], "stands for a missing value (_FillValue, missing_value) in"
                )

    def _refused(self, value: Any, why: str) -> InvalidInputError:
        if self.coding.time is not None:
            value = np.datetime64(int(value), "us")
        shown = repr(value) if isinstance(value, str) else str(value)
        return InvalidInputError(
            f"column {self.name!r} has {shown}, which {why} the array {self.name!r} of "
            f"{self.dtype}; drop or change such rows, or write an array of another type"
        )


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Numbers or truth values; times as microseconds since 1970. Nulls are zero."""
    if is_time(column.type):
        column = column.cast(TIME).cast(pa.int64())
    empty: Any = False if pa.types.is_boolean(column.type) else 0
    filled = column.fill_null(pa.scalar(empty, column.type)) if column.null_count else column
    return np.array(filled.to_numpy(zero_copy_only=False))
