"""Datasets in files of every format, and what xarray reads from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
pd: Any = pytest.importorskip("pandas", reason="comes with xarray")
pytest.importorskip("h5py", reason="h5py is an optional dependency")
pytest.importorskip("netCDF4", reason="makes NetCDF files")

NAMES = ["c", "a", "d", "b"]
"""File names that do not sort like the times in them."""


def dataset(part: int, steps: int = 3, *, has_text: bool = True) -> Any:
    """One file's worth: packed values with gaps, times, text, a static field, a scalar."""
    rng = np.random.default_rng(part)
    time = pd.Timestamp("2001-01-30") + pd.to_timedelta(6 * (np.arange(steps) + steps * part), "h")
    packed = np.round(rng.uniform(0, 30, (steps, 4, 6)), 1)
    packed[0, 1, 2] = np.nan
    data = {
        "packed": (("time", "y", "x"), packed, {"units": "degC", "long_name": "temperature"}),
        "plain": (("time", "y"), rng.normal(size=(steps, 4)).astype("f4"), {"units": "m"}),
        "whole": (("time",), rng.integers(0, 100, steps).astype("i4")),
        "height": (("y", "x"), np.arange(24, dtype="f4").reshape(4, 6), {"positive": "up"}),
        "crs": ((), np.int32(7), {"grid_mapping_name": "latitude_longitude"}),
    }
    if has_text:
        data["label"] = (("time",), np.array([f"step {part}.{k}" for k in range(steps)], object))
    return xr.Dataset(
        data,
        coords={
            "time": ("time", time, {"axis": "T"}),
            "y": ("y", np.linspace(50, 53, 4), {"units": "degrees_north"}),
            "x": ("x", np.arange(6, dtype="i4")),
            "area": (("y", "x"), np.arange(24.0).reshape(4, 6)),
        },
        attrs={"title": "parts", "version": 3, "weights": [0.5, 1.5]},
    )


PACKED = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 10.0, "_FillValue": -999}
TIME = {"units": "hours since 2001-01-01", "dtype": "i4", "calendar": "standard"}
ENCODING: dict[str, Any] = {"packed": PACKED, "time": TIME}


def to_netcdf4(data: Any, path: Path, **encoding: Any) -> None:
    chunks = {"packed": {**PACKED, "chunksizes": (1, 2, 6), "zlib": True, "shuffle": True}}
    data.to_netcdf(path, unlimited_dims=["time"], encoding={**ENCODING, **chunks, **encoding})


def to_h5netcdf(data: Any, path: Path) -> None:
    data.to_netcdf(path, engine="h5netcdf", encoding=ENCODING)


def to_netcdf3(data: Any, path: Path) -> None:
    fixed = data.assign(label=data.label.astype("S8")) if "label" in data else data
    fixed.to_netcdf(path, format="NETCDF3_64BIT", unlimited_dims=["time"], encoding=ENCODING)


def to_netcdf3_fixed(data: Any, path: Path) -> None:
    fixed = data.assign(label=data.label.astype("S8"))
    fixed.to_netcdf(path, format="NETCDF3_CLASSIC", engine="scipy", encoding=ENCODING)


def to_zarr(version: int) -> Callable[[Any, Path], None]:
    def write(data: Any, path: Path) -> None:
        chunks = {"packed": {**PACKED, "chunks": (1, 2, 6)}}
        data.to_zarr(path, zarr_format=version, encoding={**ENCODING, **chunks})

    return write


FORMATS: dict[str, tuple[str, Callable[[Any, Path], None], dict[str, Any]]] = {
    "netcdf4": (".nc", to_netcdf4, {"engine": "netcdf4"}),
    "contiguous": (".nc", to_h5netcdf, {"engine": "h5netcdf"}),
    "netcdf3": (".nc", to_netcdf3, {"engine": "netcdf4"}),
    "netcdf3 fixed": (".nc", to_netcdf3_fixed, {"engine": "scipy"}),
    "zarr2": (".zarr", to_zarr(2), {"engine": "zarr"}),
    "zarr3": (".zarr", to_zarr(3), {"engine": "zarr"}),
}


def expected(paths: Sequence[Path], **options: Any) -> Any:
    """What xarray makes of the files, given in the right order."""
    choices = {
        "combine": "nested",
        "concat_dim": "time",
        "data_vars": "minimal",
        "coords": "minimal",
        "compat": "override",
        "combine_attrs": "override",
        "join": "exact",
        **options,
    }
    with xr.open_mfdataset([str(path) for path in paths], **choices) as found:
        return found.load()


def read(store: Any, **options: Any) -> Any:
    choices = {"consolidated": False, "chunks": None, "zarr_format": 3, **options}
    return xr.open_zarr(store, **choices).load()


def check(found: Any, wanted: Any) -> None:
    xr.testing.assert_identical(found, wanted)
    for name in wanted.variables:
        if wanted[name].dtype.kind not in "OTU":
            assert found[name].dtype == wanted[name].dtype.newbyteorder("="), name
        else:
            assert found[name].dtype.kind in "OTU", name
    for name in ("packed", "time"):
        for key in ("scale_factor", "add_offset", "_FillValue", "units", "calendar"):
            assert found[name].encoding.get(key) == wanted[name].encoding.get(key), (name, key)


def make_unreadable(path: Path) -> None:
    """Headers of HDF5 objects that are none, but ends, size and time of the last change stay."""
    before, data = path.stat(), path.read_bytes()
    inside = data[4096:-4096]
    assert b"OHDR" in inside
    path.write_bytes(data[:4096] + inside.replace(b"OHDR", b"gone") + data[-4096:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
