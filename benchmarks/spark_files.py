"""The files that Spark ingests in the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np

STEPS, ROWS, COLUMNS = 24, 361, 720
REFS_PER_FILE = 50_000
CHUNKY_STEPS = 50
_CHUNKY_CELLS = 33


def make_grids(folder: Path, count: int, kind: str) -> int:
    """Steps of a global grid of 0.5 degrees, a day a file; returns the bytes of their values.

    `packed` values are 16 bits and compressed, as archives have them; `floats` are 32 bits and
    not compressed. Neighbours are alike, as in a measured field, with noise on top.
    """
    folder.mkdir()
    dtype = "i2" if kind == "packed" else "f4"
    noise = np.random.default_rng(0).standard_normal((STEPS, ROWS, COLUMNS), np.float32)
    field = np.cumsum(noise, axis=2)
    options: dict[str, Any] = {"chunksizes": (4 if kind == "packed" else 2, ROWS, COLUMNS)}
    if kind == "packed":
        field = np.round(field * 20)
        options |= {"zlib": True, "complevel": 1, "shuffle": True}
    for number in range(count):
        values = np.roll(field, number * 7, axis=2).astype(dtype)
        with netCDF4.Dataset(folder / f"{number:05}.nc", "w") as file:
            _coordinate(file, "time", np.arange(number * STEPS, (number + 1) * STEPS, dtype="i4"))
            _coordinate(file, "lat", np.linspace(90, -90, ROWS, dtype="f4"))
            _coordinate(file, "lon", np.arange(COLUMNS, dtype="f4") / 2)
            file["time"].units = "hours since 2000-01-01"
            variable = file.createVariable("v", dtype, ("time", "lat", "lon"), **options)
            variable.set_auto_maskandscale(False)
            if kind == "packed":
                variable.scale_factor = 0.05
            variable[:] = values
    return count * values.nbytes


def _coordinate(file: netCDF4.Dataset, name: str, values: Any) -> None:
    file.createDimension(name, None if name == "time" else len(values))
    file.createVariable(name, values.dtype, (name,))[:] = values


def make_steps(folder: Path, count: int) -> None:
    """Many small NetCDF 4 files of two variables on a small grid, a time step each."""
    folder.mkdir()
    values = np.random.default_rng(1).random((20, 30), np.float32)
    for number in range(count):
        with netCDF4.Dataset(folder / f"{number:06}.nc", "w") as file:
            file.title = "a step"
            file.createDimension("time", None)
            time = file.createVariable("time", "i8", ("time",), chunksizes=(1,))
            time.units = "days since 2000-01-01"
            time[:] = [number]
            _coordinate(file, "lat", np.arange(20, dtype="f8"))
            _coordinate(file, "lon", np.arange(30, dtype="f8"))
            for name in ("temperature", "pressure"):
                options: Any = {"zlib": True, "chunksizes": (1, 10, 30)}
                data = file.createVariable(name, "f4", ("time", "lat", "lon"), **options)
                data.units = "1"
                data[:] = values[None]


def make_chunky(folder: Path, count: int) -> None:
    """Files of `REFS_PER_FILE` small chunks, which differ in their times only.

    Smaller chunks would be copied: references would be larger than they are.

    Files that are there stay, so that a run that was broken off can go on.
    """
    folder.mkdir(exist_ok=True)
    template = folder / "template"
    rows = REFS_PER_FILE // CHUNKY_STEPS
    steps = np.arange(CHUNKY_STEPS, dtype="i8")
    with netCDF4.Dataset(template, "w") as file:
        file.createDimension("time", CHUNKY_STEPS)
        file.createDimension("y", rows * _CHUNKY_CELLS)
        file.createVariable("time", "i8", ("time",), contiguous=True)[:] = steps
        values = np.arange(CHUNKY_STEPS * rows * _CHUNKY_CELLS) % 9
        made = file.createVariable("v", "i2", ("time", "y"), chunksizes=(1, _CHUNKY_CELLS))
        made[:] = values.reshape(CHUNKY_STEPS, -1)
    with h5py.File(template) as made:
        at = made["time"].id.get_offset()
    data = bytearray(template.read_bytes())
    for number in range(count):
        path = folder / f"{number:05}.nc"
        if not path.exists():
            times = steps + number * CHUNKY_STEPS
            data[at : at + times.nbytes] = times.tobytes()
            template.write_bytes(data)
            template.rename(path)
    template.unlink(missing_ok=True)
