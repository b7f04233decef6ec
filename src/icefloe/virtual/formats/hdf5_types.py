"""HDF5's data types: which numpy type values are read into, and whether they are stored like it."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from h5py import h5t

from icefloe.virtual.model.data_types import data_type_of

_NOTHING = np.dtype("V1")


def storable_dtype(dataset: Any) -> tuple[np.dtype[Any], str | None]:
    """The type of the values, and why it cannot be brought over, if it cannot."""
    try:
        dtype = dataset.dtype
    except Exception as error:  # noqa: BLE001 - h5py raises what it likes for types it has none for
        return _NOTHING, f"its HDF5 type has no counterpart in numpy ({error})"
    if h5py.check_enum_dtype(dtype) is not None:
        return np.dtype(dtype.str), None
    if dtype.kind == "O":
        if h5py.check_string_dtype(dtype):
            return dtype, None
        what = "references" if h5py.check_ref_dtype(dtype) else "lists of any length"
        return dtype, f"it holds {what}, which Zarr has no data type for"
    if dtype.names is not None:
        return dtype, f"it is compound ({', '.join(dtype.names)}), which is not supported"
    if dtype.subdtype is not None:
        return dtype, f"each value is an array ({dtype}), which is not supported"
    if data_type_of(dtype) is None:
        return dtype, f"its type {dtype} has no counterpart in Zarr"
    return dtype, None


def unusual_storage(stored: Any, dtype: np.dtype[Any]) -> str | None:
    """Why the stored bytes are not what numpy's type has in memory; None if they are.

    HDF5 converts such values when it reads them. A reader of the bytes cannot.
    """
    if dtype.kind == "O":
        return None
    if isinstance(stored, h5t.TypeEnumID):
        stored = stored.get_super()
    if isinstance(stored, h5t.TypeStringID):
        is_padded = stored.get_strpad() == h5t.STR_NULLPAD or stored.get_size() == 1
        return None if is_padded else "its text is not filled up with zero bytes"
    if isinstance(stored, h5t.TypeIntegerID):
        bits = 8 * stored.get_size()
        if stored.get_precision() == bits == 8 * dtype.itemsize:
            return None
        return (
            f"its integers have {stored.get_precision()} bits, from bit {stored.get_offset()} on, "
            f"in {stored.get_size()} bytes"
        )
    plain = dtype if dtype.kind != "b" else np.dtype("i1")
    if stored == h5t.py_create(plain):
        return None
    return f"its values are stored in a form of their own, not as {dtype}"


def holds_references(stored: Any) -> bool:
    """Whether values of a type are references, or have any inside."""
    kind = stored.get_class()
    if kind == h5t.REFERENCE:
        return True
    if kind in (h5t.VLEN, h5t.ARRAY):
        return holds_references(stored.get_super())
    if kind == h5t.COMPOUND:
        members = range(stored.get_nmembers())
        return any(holds_references(stored.get_member_type(number)) for number in members)
    return False
