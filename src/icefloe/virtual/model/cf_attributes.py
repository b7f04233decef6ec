"""Attributes of a file as zarr.json keeps them, so that xarray decodes the values as it does there.

JSON has neither float32 nor bytes, and xarray reads `_FillValue` beside Zarr arrays in a spelling
of its own, for numbers only. What cannot be said there is said in another way, or in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from icefloe.records import record
from icefloe.virtual.model.data_types import attribute_json, encode_cf_fill_value
from icefloe.virtual.model.description import Json

FILL, MISSING = "_FillValue", "missing_value"


@record(frozen=True)
class ZarrAttributes:
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
    scale, offset = (_dtype_of(given.get(name)) for name in ("scale_factor", "add_offset"))
    if scale != np.float32 or offset not in (None, np.float32):
        return False
    return offset is None or dtype.kind == "f" or dtype.itemsize != 4


def _dtype_of(value: Any) -> np.dtype[Any] | None:
    return None if value is None else np.asarray(value).dtype.newbyteorder("=")
