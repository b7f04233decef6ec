"""Files that pack the same variable differently: what their numbers mean, as floating point.

Archives choose scale and offset anew for every file. Such files can be joined by copying: values
are unpacked as xarray does it, and stored as float64 with NaN for what is missing. Where only the
types differ, values are stored in the smallest type that holds all of them. An array that is packed
already stays so: what is appended is rounded to its steps, or refused if it lies out of its range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.records import record
from icefloe.scans.coding import find_coding
from icefloe.virtual.model.cf_attributes import FILL, MISSING
from icefloe.virtual.model.data_types import data_type_of, fill_value_json
from icefloe.virtual.model.description import Json, VariableDescription
from icefloe.virtual.model.missing import missing_values_of

_SCALES = ("scale_factor", "add_offset", "_Unsigned")
_RANGES = ("valid_min", "valid_max", "valid_range")
"""Said of packed values."""


@record(frozen=True)
class Packing:
    """How the numbers of one file become values."""

    scale: float | None
    offset: float | None
    missing: tuple[Any, ...]
    """As they are stored."""
    view: str | None
    scaled: str = "f8"
    """The type in which numbers are scaled and moved."""

    @property
    def is_plain(self) -> bool:
        """Whether the numbers are the values."""
        return self == Packing(None, None, (), None)

    def unpack(self, stored: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The values, in a type that holds them."""
        numbers = stored if self.view is None else stored.view(self.view)
        is_missing = np.zeros(numbers.shape, bool)
        for mark in self.missing:
            is_missing |= np.asarray(stored == mark)
        is_packed = self.scale is not None or self.offset is not None
        values = numbers.astype(self.scaled if is_packed else dtype)
        if self.scale is not None:
            values = values * self.scale
        if self.offset is not None:
            values = values + self.offset
        values = values.astype(dtype, copy=False)
        if is_missing.any():
            values[is_missing] = np.nan
        return values

    def pack(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Values as the nearest numbers that mean them; None if there are none of the type."""
        numbers = values.astype(np.float64)
        if self.offset is not None:
            numbers = numbers - self.offset
        if self.scale is not None:
            numbers = numbers / self.scale
        is_missing = np.isnan(numbers)
        kind = dtype if self.view is None else np.dtype(self.view)
        if kind.kind == "f":
            stored = numbers.astype(kind)
        else:
            rounded = np.rint(np.where(is_missing, 0, numbers))
            limits = np.iinfo(kind)
            if rounded.size and (rounded.min() < limits.min or rounded.max() > limits.max):
                return None
            stored = rounded.astype(kind)
        stored = stored.view(dtype)
        for mark in self.missing:
            if bool((stored[~is_missing] == mark).any()):
                return None
        if not is_missing.any():
            return stored
        if self.missing:
            stored[is_missing] = self.missing[0]
        elif kind.kind != "f":
            return None
        return stored


def packing_of(variable: VariableDescription) -> Packing | None:
    """How a variable is packed; None if its attributes make no sense."""
    attributes, kind = variable.attributes, np.dtype(variable.dtype)
    scale, offset = (attributes.get(name) for name in _SCALES[:2])
    if not all(isinstance(value, int | float | None) for value in (scale, offset)):
        return None
    if kind.kind not in "iuf":
        return Packing(scale, offset, (), None)
    said = {key: attributes[key] for key in (*_SCALES, FILL, MISSING) if key in attributes}
    coding = find_coding(variable.path, kind, said, decode=True)
    view = coding.view and f"{kind.byteorder.replace('|', '=')}{coding.view}"
    missing = missing_values_of(attributes, variable.dtype)
    return Packing(scale, offset, missing, view, coding.scaled)


def common_type(variables: Iterable[VariableDescription]) -> np.dtype[Any] | None:
    """The type that holds the values of all; None if there is none, or it would lose digits."""
    packings, kinds = [], []
    for variable in variables:
        if variable.dtype == "string" or np.dtype(variable.dtype).kind not in "iuf":
            return None
        packing = packing_of(variable)
        if packing is None:
            return None
        packings.append(packing)
        kinds.append(np.dtype(variable.dtype).newbyteorder("="))
    is_packed = any(not packing.is_plain for packing in packings)
    found = np.dtype("f8") if is_packed else np.result_type(*kinds)
    is_large = any(kind.kind in "iu" and kind.itemsize == 8 for kind in kinds)
    return None if found.kind == "f" and is_large else found


def unpacked(variable: VariableDescription, dtype: np.dtype[Any]) -> VariableDescription:
    """The variable as it is stored when files are unpacked."""
    gone = {*_SCALES, *_RANGES, FILL, MISSING}
    attributes: Mapping[str, Json] = {
        name: value for name, value in variable.attributes.items() if name not in gone
    }
    return replace(
        variable,
        dtype=dtype.newbyteorder("<").str,
        attributes=dict(attributes),
        data_type=data_type_of(dtype),
        fill_value=fill_value_json(np.nan if dtype.kind == "f" else None, dtype),
        notes=(f"files pack it differently, so that it is stored unpacked, as {dtype}",),
    )
