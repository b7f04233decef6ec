"""Classic NetCDF files: our own reading against scipy's, and references decoded by zarr."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe.virtual.formats.opening import open_native, scan
from icefloe.virtual.model.description import SourceError
from tests.virtual.decoding import decode

scipy_io: Any = pytest.importorskip("scipy.io", reason="scipy reads NetCDF 3 beside us")
nc: Any = pytest.importorskip("netCDF4", reason="makes NetCDF files")

FORMATS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "source.nc"


def write(path: Path, kind: str, records: int = 3) -> None:
    with nc.Dataset(path, "w", format=kind) as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.createDimension("y", 2)
        file.createDimension("letters", 5)
        file.title, file.numbers = "classic", np.array([1.5, 2.5])
        for name, dtype in {"b": "i1", "h": "i2", "i": "i4", "f": "f4", "d": "f8"}.items():
            fixed = file.createVariable(f"fixed_{name}", dtype, ("y", "x"), fill_value=9)
            fixed[:] = np.arange(6).reshape(2, 3)
            several = file.createVariable(f"records_{name}", dtype, ("time", "x"))
            several.units = "m"
            if records:
                several[:] = np.arange(3 * records).reshape(records, 3)
        file.createVariable("scalar", "f8", ())[:] = 2.5
        text = file.createVariable("text", "S1", ("y", "letters"))
        text[:] = nc.stringtochar(np.array([b"ab", b"cdefg"], "S5"))
        if records:
            file.createVariable("time", "i4", ("time",))[:] = np.arange(records) * 10


@pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("records", [0, 1, 3])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_variable_is_read_as_others_read_it(path: Path, kind: str, records: int) -> None:
    write(path, kind, records)
    source = scan(path, references=True)
    assert source.format == "netcdf3"
    root = source.groups[""]
    assert root.attributes == {"title": "classic", "numbers": [1.5, 2.5]}
    assert root.dimensions == {"time": records, "x": 3, "y": 2, "letters": 5}
    assert root.unlimited == {"time"}
    with nc.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        assert set(source.variables) == set(file.variables)
        for name, expected in file.variables.items():
            variable = source.variables[name]
            assert variable.shape == expected.shape
            assert variable.dimensions == expected.dimensions
            np.testing.assert_array_equal(decode(source, name), expected[...])
            with open_native(path) as reader:
                whole = tuple(slice(None) for _ in expected.shape)
                np.testing.assert_array_equal(reader.read(name, whole), expected[...])
                if name == "records_h" and records == 3:
                    part = reader.read(name, (slice(1, 3), slice(0, 2)))
                    np.testing.assert_array_equal(part, expected[1:3, 0:2])


@pytest.mark.parametrize("kind", FORMATS[:2])
def test_attributes_and_values_agree_with_scipy(path: Path, kind: str) -> None:
    write(path, kind)
    source = scan(path, references=True)
    with scipy_io.netcdf_file(path, "r", mmap=False) as file:
        for name, expected in file.variables.items():
            if name == "text":
                continue
            np.testing.assert_array_equal(decode(source, name), expected[...])
            assert set(expected._attributes) == set(source.variables[name].attributes)
    assert source.variables["records_f"].attributes == {"units": "m"}
    assert source.variables["fixed_h"].fill_value == 9
    assert source.variables["fixed_h"].attributes["_FillValue"] == 9


def test_a_single_record_variable_is_not_padded(path: Path) -> None:
    with nc.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.createVariable("odd", "i1", ("time", "x"))[:] = np.arange(15).reshape(5, 3)
    source = scan(path, references=True)
    assert source.references is not None
    offsets = source.references["odd"]["offset"].to_numpy()
    assert set(np.diff(offsets).tolist()) == {3}
    np.testing.assert_array_equal(decode(source, "odd"), np.arange(15).reshape(5, 3))


def test_a_count_left_open_is_found_from_the_size_of_the_file(path: Path) -> None:
    write(path, "NETCDF3_CLASSIC")
    data = bytearray(path.read_bytes())
    data[4:8] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert scan(path).groups[""].dimensions["time"] == 3


def test_a_file_cut_off_is_refused_wherever_it_was_cut(path: Path) -> None:
    write(path, "NETCDF3_64BIT_OFFSET")
    whole = path.read_bytes()
    for cut in range(4, len(whole) - 8, 29):
        path.write_bytes(whole[:cut])
        with pytest.raises(SourceError, match=r"source\.nc"):
            scan(path, references=True)


def test_a_damaged_header_gives_an_error_and_nothing_else(path: Path) -> None:
    write(path, "NETCDF3_CLASSIC")
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for at in random.integers(4, 400, 4):
            damaged[at] = int(random.integers(0, 256))
        path.write_bytes(damaged)
        try:
            scan(path, references=True)
        except SourceError:
            refused += 1
    assert refused > 50
