"""Arrays whose attributes say how to read their values, and what xarray makes of them."""

from __future__ import annotations

import base64
import struct
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr

from icefloe import Repository

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")


def b64(value: float) -> str:
    """A `_FillValue` of floats as xarray stores it."""
    return base64.standard_b64encode(struct.pack("<d", value)).decode()


NAN = b64(np.nan)
_F4 = float(np.float32(-9999.9))
_1E36 = b64(float(np.float32(1e36)))
_TENTH = {"scale_factor": 0.1}
_U = {"_Unsigned": "true"}
_HOURS = {"units": "hours since 2020-02-28", "calendar": "standard"}


class Case(NamedTuple):
    """A line of values, and the attributes beside them."""

    dtype: str
    values: list[Any]
    attributes: dict[str, Any]


CASES: dict[str, Case] = {
    "plain": Case("f4", [1, 2.5, -3], {"units": "K"}),
    "base64 fill of float32": Case("f4", [1, 1e36, 3], {"_FillValue": _1E36}),
    "base64 fill of float64": Case("f8", [1, 1e36, 3], {"_FillValue": b64(1e36), "units": "K"}),
    "base64 fill of float16": Case("f2", [1, 2, 3], {"_FillValue": b64(2)}),
    "base64 NaN": Case("f8", [1, np.nan, 3], {"_FillValue": NAN}),
    "base64 infinity": Case("f8", [1, np.inf, -np.inf], {"_FillValue": b64(np.inf)}),
    "a fill that float32 cannot hold": Case("f4", [1, 1e20, 3], {"_FillValue": b64(1e20)}),
    "packed": Case("i2", [0, 100, -5], {"scale_factor": 0.01, "add_offset": 273.15, "units": "K"}),
    "packed with a fill": Case(
        "i2", [0, -999, 7], {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -999}
    ),
    "packed without an offset": Case("i4", [3, 10**9, -7], {"scale_factor": 0.1}),
    "moved only": Case("i1", [1, 2, 3], {"add_offset": 5}),
    "scaled by a whole number": Case("i2", [1, 2, 3], {"scale_factor": 2}),
    "packed float32": Case("f4", [1, 2, 3], {"scale_factor": 0.1}),
    "packed float32 beside NaN": Case("f4", [1, np.nan, 3], {**_TENTH, "_FillValue": NAN}),
    "packed float32 with a fill": Case("f4", [1, 2, 3], {**_TENTH, "_FillValue": b64(2)}),
    "packed float16 beside NaN": Case("f2", [1, 2, 3], {**_TENTH, "_FillValue": NAN}),
    "unsigned": Case("i1", [1, -2, -1], _U),
    "unsigned and packed": Case("i1", [1, -2, -1], {**_U, "scale_factor": 0.5, "_FillValue": -1}),
    "unsigned with a missing value": Case("i1", [1, -2, -1], {**_U, "missing_value": 255}),
    "a negative missing value of unsigned": Case("i2", [1, -2, -1], {**_U, "missing_value": -1}),
    "unsigned in capitals": Case("i1", [1, -2, -1], {"_Unsigned": "TRUE"}),
    "signed": Case("u1", [1, 254, 255], {"_Unsigned": "false", "_FillValue": -1}),
    "a negative fill of unsigned": Case("u1", [1, 254, 255], {"_FillValue": -1}),
    "missing value": Case("i4", [1, -5, 3], {"missing_value": -5}),
    "missing value of float32": Case("f4", [1, -9999.9, 3], {"missing_value": _F4}),
    "a missing value beyond float32": Case("f4", [1, -9999.9, 3], {"missing_value": -9999.9}),
    "fill and missing values": Case("i4", [1, 2, 3], {"_FillValue": 2, "missing_value": [1, 9]}),
    "a missing value between integers": Case("i4", [1, 2, 3], {"missing_value": 2.5}),
    "valid range": Case("i4", [1, 2, 30], {"valid_range": [2, 3], "valid_min": 2}),
    "all missing": Case("i2", [-1, -1, -1], {"_FillValue": -1, "scale_factor": 0.5}),
    "infinities": Case("f8", [np.inf, -np.inf, np.nan], {}),
    "large numbers": Case("f8", [1.5e308, -1.5e308, 1.5e308], {}),
    "large integers": Case("i8", [2**63 - 1, -(2**63), 2**53 + 1], {}),
    "times": Case("i8", [0, 25, -7], _HOURS),
    "times with a fill": Case("i4", [0, -1, 7], {**_HOURS, "_FillValue": -1}),
    "times as floats": Case("f8", [0.5, np.nan, 7.25], {**_HOURS, "_FillValue": NAN}),
    "packed times": Case("i4", [0, 3, 7], {**_HOURS, "scale_factor": 0.5}),
    "times of another calendar": Case("i4", [0, 3, 7], {"units": "m", "calendar": "noleap"}),
    "durations": Case("i8", [0, 3, -7], {"units": "hours", "dtype": "timedelta64[s]"}),
    "durations as floats": Case("f8", [0.5, 3, -7], {"units": "days", "dtype": "timedelta64[s]"}),
    "durations with a fill": Case(
        "i8", [0, 3, -7], {"units": "minutes", "dtype": "timedelta64[ns]", "_FillValue": 3}
    ),
    "stored times": Case("M8[s]", ["2020-01-01", "NaT", "2021-05-06T07:08:09"], {}),
    "stored durations": Case("m8[s]", [1, 2, 90_061], {}),
    "bool": Case("bool", [True, False, True], {}),
    "bool with a fill": Case("bool", [True, False, True], {"_FillValue": True}),
    "bool as bytes": Case("i1", [1, 0, 1], {"dtype": "bool"}),
    "bool as floats": Case("f4", [1, 0, 1], {"dtype": "bool"}),
    "text": Case("str", ["a", "", "grün"], {}),
    "text with a missing value": Case("str", ["a", "", "grün"], {"missing_value": "a"}),
    "fixed text": Case("U4", ["a", "", "grün"], {}),
    "bytes that are text": Case("S5", [b"a", b"bb", "grün".encode()], {"_Encoding": "utf-8"}),
    "bool beside a number": Case("bool", [True, False, True], {"missing_value": -1}),
    "complex with missing values": Case("c8", [1 + 2j, 3, -1j], {"missing_value": [3, 9]}),
    "complex": Case("c8", [1 + 2j, 3, -1j], {"_FillValue": [b64(3), b64(0)]}),
}

if tuple(map(int, xr.__version__.split(".")[:2])) < (2026, 1):
    del CASES["complex"]  # xarray did not read such a fill before


def write_case(repository: Repository, case: Case) -> str:
    """Commit the line `a`, and `plane`, which has it in every row."""
    session = repository.writable_session("main")
    values = np.array(case.values, None if case.dtype == "str" else case.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Zarr calls some of these types unstable
        for name, data, dimensions in (("a", values, "x"), ("plane", np.stack([values] * 2), "yx")):
            array = zarr.create_array(
                session.store,
                name=name,
                shape=data.shape,
                dtype=case.dtype,
                dimension_names=list(dimensions),
                overwrite=True,
            )
            array[...] = data
            array.attrs.update(case.attributes)
        return session.commit("values with attributes")


def xarray_values(repository: Repository) -> Any:
    """The line as xarray decodes it."""
    store = repository.readonly_session("main").store
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = xr.open_zarr(store, zarr_format=3, consolidated=False, chunks=None)
        return data["a"].load().values


def comparable(values: Any) -> list[Any]:
    """Values as plain ones, None for those that are missing; times and durations in µs."""
    array = np.asarray(values)
    if array.dtype.kind in "mM":
        numbers = array.astype(f"{array.dtype.kind}8[us]")
        return [None if np.isnat(one) else int(one.astype(np.int64)) for one in numbers]
    return [None if _is_nan(one) else one for one in array.tolist()]


def _is_nan(value: Any) -> bool:
    return value is None or (isinstance(value, float | complex) and bool(np.isnan(value)))
