"""Which stored value means "missing": what places have that no file fills.

Files may lack a variable, and a grid of files may have holes. There an array has its fill value, so
that has to be one which readers decode to NaN or null. It is the one that the attributes name; NaN
for floating point numbers; and for integers that have none, the one NetCDF keeps free for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from icefloe.scans.coding import find_coding
from icefloe.virtual.model.cf_attributes import FILL, MISSING
from icefloe.virtual.model.data_types import fill_value_json
from icefloe.virtual.model.description import Json, VariableDescription

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
        found = missing_value_of(variable.attributes, "string")
        return None if found is None else found
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


def reserved_value(variable: VariableDescription) -> Any:
    """The value that means missing if no file holds it; None if there is none to spare."""
    if variable.dtype == "string":
        return NO_TEXT
    kind = np.dtype(variable.dtype)
    if variable.attributes.get(_UNSIGNED) == "true" or kind.kind not in "iu":
        return None
    return _RESERVED.get(f"{kind.kind}{kind.itemsize}")


def with_reserved(variable: VariableDescription) -> VariableDescription:
    """The variable with its reserved value as the mark of missing values."""
    reserved = reserved_value(variable)
    if variable.dtype == "string":
        marked = {**variable.attributes, MISSING: reserved}
        return replace(variable, attributes=marked, fill_value=reserved)
    marked = {**variable.attributes, FILL: reserved}
    return replace(variable, attributes=marked, fill_value=reserved)


def means_missing(document: Mapping[str, Json], variable: VariableDescription) -> bool:
    """Whether the fill value of an array that is there already means missing."""
    fill = document["fill_value"]
    natural = natural_fill_value(variable)
    return natural is not None and json_equal(fill, natural)


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
    return with_reserved(variable), reserved_value(variable)


def find_unfillable(
    path: str,
    variable: VariableDescription,
    document: Mapping[str, Json] | None,
    *,
    is_virtual: bool,
) -> str | None:
    """Why places that no file fills cannot be distinguished from others; None if they can."""
    kind = "text" if variable.dtype == "string" else str(np.dtype(variable.dtype))
    if document is not None:
        if means_missing(document, variable):
            return None
        return (
            f"variable {path!r} would have places that no file fills, and its fill value in the "
            f"repository, {document['fill_value']!r}, does not mean missing"
        )
    if natural_fill_value(variable) is not None:
        return None
    if reserved_value(variable) is None:
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
