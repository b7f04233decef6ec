"""Datasets to be read, and what a scan reads without Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icefloe import Repository
from icefloe.scans.chunk_rows import plan_read
from icefloe.scans.scan import PinnedSnapshot, Scan, pin, read_options

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
pd: Any = pytest.importorskip("pandas", reason="comes with xarray")


def write(repository: Repository, data: Any, **options: Any) -> str:
    session = repository.writable_session("main")
    data.to_zarr(session.store, zarr_format=3, **{"consolidated": False, **options})
    return session.commit("written by xarray")


def weather() -> Any:
    """Three ranks, three kinds of coordinate, chunks that do not divide the shape, a gap."""
    shape = (5, 3, 4)
    temperature = np.arange(60, dtype="f8").reshape(shape) / 4
    temperature[1, 1, 1] = np.nan
    return xr.Dataset(
        {
            "temperature": (("time", "lat", "station"), temperature),
            "height": (("lat", "station"), np.arange(12, dtype="i4").reshape(3, 4)),
            "run": ((), np.int64(7)),
        },
        coords={
            "time": pd.date_range("2001-01-30", periods=5, freq="18h"),
            "lat": np.array([52.5, 50.0, 47.5], "f4"),
            "station": ["a", "bb", "ccc", "ü"],
        },
    )


WEATHER_ENCODING: dict[str, Any] = {
    "temperature": {
        "dtype": "int16",
        "scale_factor": 0.25,
        "add_offset": 5.0,
        "_FillValue": -999,
        "chunks": (2, 2, 3),
    },
    "height": {"chunks": (3, 4)},
    "time": {"units": "hours since 2000-06-01", "calendar": "standard", "dtype": "int64"},
}


def source_of(repository: Repository, **ref: Any) -> PinnedSnapshot:
    return pin(repository, **ref)


def scan_of(repository: Repository, **options: Any) -> Scan:
    return plan_read(pin(repository), read_options(**options))


def rows_of(scan: Scan) -> pa.Table:
    batches = [batch for part in range(scan.num_partitions) for batch in scan.read(part)]
    return pa.Table.from_batches(batches, scan.schema)


def rows(repository: Repository, **options: Any) -> pa.Table:
    return rows_of(scan_of(repository, **options))


def as_frame(table: Any, by: list[str]) -> Any:
    """Rows in an order that does not depend on partitions."""
    frame = table.to_pandas() if isinstance(table, pa.Table) else table
    return frame.sort_values(by, ignore_index=True)
