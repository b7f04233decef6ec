"""HDF5 and NetCDF 4 files: described right, and every chunk decoded by zarr to what h5py reads."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe.virtual.formats.opening import open_native, scan
from icefloe.virtual.model.description import SourceError
from tests.virtual.decoding import decode

h5py: Any = pytest.importorskip("h5py", reason="h5py is an optional dependency")
nc: Any = pytest.importorskip("netCDF4", reason="makes NetCDF files")

hdf5: Any = pytest.importorskip("icefloe.virtual.formats.hdf5")
plain_chunk, read_plain_chunk = hdf5.plain_chunk, hdf5.read_plain_chunk

GRID = np.arange(7 * 10, dtype="f8").reshape(7, 10)

KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (3, 4)},
    "deflate": {"chunks": (3, 4), "compression": "gzip", "compression_opts": 1},
    "shuffle": {"chunks": (3, 4), "compression": "gzip", "shuffle": True},
    "checked": {"chunks": (3, 4), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "only checked": {"chunks": (3, 4), "fletcher32": True},
}
DTYPES = ["i1", "u1", "<i2", ">i2", "<u4", ">i4", "<i8", ">u8", "<f2", ">f4", "<f8", ">f8", "<c8"]

FILLS = {dtype: 1 for dtype in DTYPES if dtype != "<c8"}
"""Fill values other than zero, where h5py can set them."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "source file.h5"  # a space, because locations are URLs


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_every_type_decode_to_the_values(path: Path, kind: str) -> None:
    expected = {dtype: GRID.astype(dtype) for dtype in DTYPES} | {"bool": GRID > 30}
    with h5py.File(path, "w") as file:
        for name, values in expected.items():
            file.create_dataset(name, data=values, **KINDS[kind])
    source = scan(path, references=True)
    for name, values in expected.items():
        assert source.variables[name].is_contiguous == (kind == "contiguous")
        found = decode(source, name)
        np.testing.assert_array_equal(found, values)
        assert found.dtype == values.dtype.newbyteorder("=")
    with open_native(path) as reader:
        for name, values in expected.items():
            part = reader.read(name, (slice(2, 5), slice(1, 9)))
            np.testing.assert_array_equal(part, values[2:5, 1:9])


@pytest.mark.parametrize("compression", ["zstd", "blosc_lz4", "blosc_zstd", "bzip2"])
def test_filters_that_netcdf_brings_along(path: Path, compression: str) -> None:
    # The import of netCDF4 names its folder of filters in the environment. h5py before 3.16 looks
    # there only when it is imported, which may have been earlier.
    h5py.h5pl.append(os.environ["HDF5_PLUGIN_PATH"].encode())
    with nc.Dataset(path, "w") as file:
        file.createDimension("y", 7)
        file.createDimension("x", 10)
        options = {"chunksizes": (7, 5), "compression": compression}
        file.createVariable("values", "f4", ("y", "x"), **options)[:] = GRID
    np.testing.assert_array_equal(decode(scan(path, references=True), "values"), GRID)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compression": "szip"}, "szip"),
        ({"scaleoffset": 0}, "scale-offset"),
        ({"compression": "lzf"}, "LZF"),
    ],
)
def test_filters_zarr_does_not_know_are_named_and_read_natively(
    path: Path, options: dict[str, Any], reason: str
) -> None:
    if options.get("compression") == "szip" and not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        pytest.skip("this HDF5 has no szip")
    with h5py.File(path, "w") as file:
        file.create_dataset("values", data=GRID.astype("i4"), chunks=(7, 10), **options)
    variable = scan(path, references=True).variables["values"]
    assert variable.codecs is None
    assert variable.reason is not None
    assert reason in variable.reason
    with open_native(path) as reader:
        np.testing.assert_array_equal(reader.read("values", (slice(None), slice(None))), GRID)


def test_chunks_never_written_are_the_fill_value(path: Path) -> None:
    with h5py.File(path, "w") as file:
        some = file.create_dataset("some", (6, 6), "i4", chunks=(2, 3), fillvalue=-7)
        some[2:4, 3:6] = 5
        file.create_dataset("none", (6,), "f4", chunks=(2,), fillvalue=np.nan)
        file.create_dataset("nothing contiguous", (6,), "f4", fillvalue=2.5)
        expected = {name: file[name][()] for name in file}
    source = scan(path, references=True)
    assert source.references is not None
    assert source.references["some"].num_rows == 1
    assert source.references["none"].num_rows == 0
    for name, values in expected.items():
        np.testing.assert_array_equal(decode(source, name), values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
def test_regions_are_what_hdf5_reads(path: Path, kind: str, dtype: str) -> None:
    values = GRID.astype(dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("values", data=values, **KINDS[kind])
        made = file.create_dataset(
            "holes", (6, 8), dtype, chunks=(3, 4), fillvalue=FILLS.get(dtype)
        )
        made[3:, 4:] = values[3:6, 4:8]
        holes = made[()]
    with open_native(path) as reader:
        for first, last in ((0, 3), (3, 6), (6, 7), (1, 4), (0, 6)):
            for left, right in ((0, 4), (4, 8), (8, 10), (2, 6)):
                found = reader.read("values", (slice(first, last), slice(left, right)))
                np.testing.assert_array_equal(found, values[first:last, left:right], strict=True)
                last_row, last_column = min(last, 6), min(right, 8)
                if first < last_row and left < last_column:
                    region = slice(first, last_row), slice(left, last_column)
                    np.testing.assert_array_equal(
                        reader.read("holes", region), holes[region], strict=True
                    )


def test_chunks_without_filters_are_read_as_they_are_stored(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, options in KINDS.items():
            file.create_dataset(name, data=GRID, **options)
        odd = h5py.h5t.IEEE_F32LE.copy()
        odd.set_fields(31, 20, 11, 0, 20)  # as long as a float32, with another exponent
        space = h5py.h5s.create_simple((4,))
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((2,))
        h5py.h5d.create(file.id, b"odd", odd, space, plist)
        assert {name: plain_chunk(file[name].id) for name in file} == {
            **dict.fromkeys((*KINDS, "odd")),
            "chunked": (3, 4),
        }
        chunked = file["chunked"].id
        one = read_plain_chunk(chunked, (3, 4), (slice(3, 6), slice(4, 8)))
        np.testing.assert_array_equal(one, GRID[3:6, 4:8], strict=True)
        for region in ((slice(6, 7), slice(4, 8)), (slice(3, 6), slice(4, 7))):
            assert read_plain_chunk(chunked, (3, 4), region) is None


def test_chunks_stored_without_their_filters_are_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_dataset("values", (4,), "i4", chunks=(2,), compression="gzip")
        data.id.write_direct_chunk((0,), np.arange(2, dtype="i4").tobytes(), filter_mask=1)
    variable = scan(path, references=True).variables["values"]
    assert variable.codecs is None
    assert "1 of its chunks were stored without" in str(variable.reason)


def test_a_user_block_and_compact_and_empty_arrays(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=1024) as file:
        file.create_dataset("chunked", data=np.arange(10), chunks=(4,))
        file.create_dataset("plain", data=np.arange(10))
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        kind = h5py.h5t.NATIVE_INT32
        small = h5py.h5d.create(file.id, b"compact", kind, space, plist)
        small.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, 2, 3], "i4"))
        file.create_dataset("empty", (0, 3), "f4", maxshape=(None, 3), chunks=(1, 3))
        file.create_dataset("scalar", data=np.float32(1.5))
    source = scan(path, references=True)
    np.testing.assert_array_equal(decode(source, "chunked"), np.arange(10))
    np.testing.assert_array_equal(decode(source, "plain"), np.arange(10))
    np.testing.assert_array_equal(decode(source, "compact"), [1, 2, 3])
    assert decode(source, "empty").shape == (0, 3)
    assert decode(source, "scalar") == np.float32(1.5)
    assert source.references is not None
    assert source.references["compact"].column_names == ["index", "inline"]


@pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")
def test_text(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("fixed", data=np.array([b"ab", b"c", b""], "S4"))
        file.create_dataset("any", data=["eins", "", "zwölf"], dtype=h5py.string_dtype())
    source = scan(path, references=True)
    np.testing.assert_array_equal(decode(source, "fixed"), np.array([b"ab", b"c", b""], "S4"))
    text = source.variables["any"]
    assert (text.dtype, text.data_type, text.codecs) == ("string", "string", None)
    assert "heap" in str(text.reason)
    assert text.values is None  # not the coordinate of a dimension, so only compared
    with open_native(path) as reader:
        assert reader.read("any", (slice(1, 3),)).tolist() == ["", "zwölf"]


def test_enums_are_their_numbers_and_compounds_are_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        kind = h5py.enum_dtype({"CLEAR": 0, "CLOUDY": 1}, "u1")
        file.create_dataset("clouds", data=np.array([0, 1, 1], "u1"), dtype=kind)
        file.create_dataset("pairs", data=np.zeros(3, [("a", "i4"), ("b", "f8")]))
        file.create_dataset("lists", (2,), h5py.vlen_dtype("i4"))
        file.create_dataset("links", (2,), h5py.ref_dtype)
    source = scan(path, references=True)
    np.testing.assert_array_equal(decode(source, "clouds"), [0, 1, 1])
    assert source.variables["clouds"].dtype == "|u1"
    for name, reason in {"pairs": "compound (a, b)", "lists": "lists", "links": "ref"}.items():
        assert source.variables[name].data_type is None
        assert reason in str(source.variables[name].reason)


def test_a_netcdf_file_with_everything(path: Path) -> None:
    with nc.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.createDimension("no_values", 2)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "hours since 2000-01-01"
        time[:] = [0.0, 6.0]
        packed = file.createVariable("packed", "i2", ("time", "x"), fill_value=-99, zlib=True)
        packed.set_auto_maskandscale(False)
        packed.scale_factor, packed.add_offset = 0.5, 10.0
        packed[:] = np.arange(6).reshape(2, 3)
        packed.flag_values = np.array([1, 2, 3], "i2")
        file.createVariable("plain", "f4", ("no_values", "x"))[:] = 1
        # Named like a dimension it does not span: NetCDF stores it under another name.
        file.createVariable("x", "i4", ("no_values",))[:] = [7, 8]
        file.title, file.number, file.nothing = "all of it", np.int32(5), ""
        group = file.createGroup("inner").createGroup("most")
        group.createDimension("z", 2)
        group.createVariable("deep", "i8", ("time", "z"))[:] = [[1, 2], [3, 4]]
        group.about = "depth"
    source = scan(path, references=True)
    root = source.groups[""]
    assert root.dimensions == {"time": 2, "x": 3, "no_values": 2}
    assert root.unlimited == {"time"}
    assert root.attributes == {"title": "all of it", "number": 5, "nothing": ""}
    assert set(source.groups) == {"", "inner", "inner/most"}
    assert source.groups["inner/most"].attributes == {"about": "depth"}
    assert set(source.variables) == {"time", "packed", "plain", "x", "inner/most/deep"}
    packed_found = source.variables["packed"]
    assert packed_found.dimensions == ("time", "x")
    assert packed_found.attributes == {
        "_FillValue": -99,
        "scale_factor": 0.5,
        "add_offset": 10.0,
        "flag_values": [1, 2, 3],
    }
    assert packed_found.fill_value == -99
    np.testing.assert_array_equal(decode(source, "packed"), [[0, 1, 2], [3, 4, 5]])
    deep = source.variables["inner/most/deep"]
    assert deep.dimensions == ("time", "z")
    np.testing.assert_array_equal(decode(source, "inner/most/deep"), [[1, 2], [3, 4]])
    assert source.variables["x"].dimensions == ("no_values",)
    np.testing.assert_array_equal(decode(source, "x"), [7, 8])
    with open_native(path) as reader:
        np.testing.assert_array_equal(reader.read("x", (slice(None),)), [7, 8])
    coordinate = source.variables["time"]
    assert coordinate.values is not None
    np.testing.assert_array_equal(coordinate.values, [0.0, 6.0])


def test_a_description_survives_pickling_and_is_small(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("values", data=np.zeros((100, 100)), chunks=(1, 100))
    source = scan(path, references=True)
    again = pickle.loads(pickle.dumps(source))
    assert again.references["values"].equals(source.references["values"])  # type: ignore[index]
    assert len(pickle.dumps(source.without_references())) < 1000


def test_links_and_data_in_other_files_are_not_followed(path: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["secret"] = np.arange(3)
    (tmp_path / "raw.bin").write_bytes(b"secret..")
    with h5py.File(path, "w") as file:
        file["mine"] = np.arange(2)
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["linked"] = h5py.ExternalLink("other.h5", "/secret")
        file["outside"] = h5py.ExternalLink("other.h5", "/")
        file["through"] = h5py.SoftLink("/outside/secret")
        file.create_dataset("raw", (8,), "i1", external=[(str(tmp_path / "raw.bin"), 0, 8)])
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "secret", (3,))
        file.create_virtual_dataset("put together", layout)
    source = scan(path, references=True)
    assert set(source.variables) == {"mine", "raw", "put together"}
    for name in ("raw", "put together"):
        assert source.variables[name].data_type is None
        assert "other" in str(source.variables[name].reason)


def test_soft_links_are_followed_inside_the_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["group/mine"] = np.arange(6).reshape(2, 3)
        file["group/near"] = h5py.SoftLink("mine")
        file["far"] = h5py.SoftLink("/group/./near")
        file["folder"] = h5py.SoftLink("group")
        file["circle"] = h5py.SoftLink("/circle")
        file["deeper/back"] = h5py.SoftLink("/")
    source = scan(path, references=True)
    assert set(source.variables) == {"far", "group/mine", "group/near"}
    for name in source.variables:
        np.testing.assert_array_equal(decode(source, name), np.arange(6).reshape(2, 3))
        with open_native(path) as reader:
            np.testing.assert_array_equal(
                reader.read(name, (slice(0, 2), slice(0, 3))), decode(source, name)
            )


def test_the_last_of_several_scales_names_a_dimension(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name in ("first", "last"):
            file[name] = np.arange(3)
            file[name].make_scale()
        file["data"] = np.arange(3.0)
        for name in ("first", "last"):
            file["data"].dims[0].attach_scale(file[name])
    assert scan(path).variables["data"].dimensions == ("last",)
    with nc.Dataset(path) as file:
        assert file["data"].dimensions == ("last",)


def test_a_dimension_without_a_name_is_one_of_the_same_size(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, size in (("y", 4), ("x", 3)):
            file[name] = np.arange(size)
            file[name].make_scale()
        file["data"] = np.zeros((4, 3, 3, 7))
    found = scan(path).variables["data"].dimensions
    assert found == ("y", "x", "phony_dim_0", "phony_dim_1")
    with nc.Dataset(path) as file:
        assert file["data"].dimensions[:2] == ("y", "x")


def test_variables_that_were_written_less_far_than_others(path: Path) -> None:
    """NetCDF gives all of them the length of the longest, and fill values."""
    with nc.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 2)
        file.createVariable("long", "i4", ("time", "x"))[0:5] = 1
        file.createVariable("short", "f4", ("time", "x"), fill_value=-1.0)[0:2] = 7
        file.createVariable("time", "f8", ("time",))[0:3] = [1.0, 2.0, 3.0]
        file.createGroup("g").createVariable("inner", "i2", ("time",), fill_value=-3)[0:1] = 4
    source = scan(path, references=True)
    assert source.groups[""].dimensions["time"] == 5
    with nc.Dataset(path) as file, open_native(path) as reader:
        for name in ("long", "short", "time", "g/inner"):
            found = file[name]
            found.set_auto_mask(False)
            expected = found[:]
            assert source.variables[name].shape == expected.shape
            np.testing.assert_array_equal(decode(source, name), expected)
            region = (slice(1, 5), *(slice(0, size) for size in expected.shape[1:]))
            np.testing.assert_array_equal(reader.read(name, region), expected[1:5])
    values = source.variables["time"].values
    assert values is not None
    assert len(values) == 5


def test_a_group_inside_itself_is_met_once(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["group/values"] = np.arange(3)
        file["group/again"] = file["group"]
    assert set(scan(path).variables) == {"group/values"}


def test_damaged_files_say_which_and_why(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("values", data=np.arange(10_000))
    whole = path.read_bytes()
    for cut in (0, 4, 100, len(whole) - 1000):
        path.write_bytes(whole[:cut])
        with pytest.raises(SourceError, match="source%20file"):
            scan(path, references=True)
    path.write_bytes(b"something else")
    with pytest.raises(SourceError, match="not NetCDF, HDF5, GRIB, Zarr"):
        scan(path)


def _close_degree_of_netcdf(path: Path) -> Any:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_SEMI)
    return h5py.h5f.open(bytes(path), h5py.h5f.ACC_RDONLY, access)


OPEN_BEFORE: dict[str, Any] = {
    "h5py": lambda path: h5py.File(path, "r"),
    "to be written": lambda path: h5py.File(path, "r+"),
    "locked": lambda path: h5py.File(path, "r", locking=True),
    "not locked": lambda path: h5py.File(path, "r", locking=False),
    "swmr": lambda path: h5py.File(path, "r", swmr=True, libver="latest"),
    "as netCDF opens it": _close_degree_of_netcdf,
    "h5netcdf": lambda path: pytest.importorskip("h5netcdf").File(path, "r"),
    "netCDF4": lambda path: pytest.importorskip("netCDF4").Dataset(path, "r"),
}


@pytest.mark.parametrize("how", OPEN_BEFORE)
def test_a_file_that_is_open_in_the_same_process(path: Path, how: str) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("values", data=np.arange(6), chunks=(2,))
    opened = OPEN_BEFORE[how](path)
    try:
        assert scan(path, references=True).references is not None
        with open_native(path) as reader:
            np.testing.assert_array_equal(reader.read("values", (slice(0, 6),)), np.arange(6))
        if isinstance(opened, h5py.File):  # and stays open
            np.testing.assert_array_equal(opened["values"][...], np.arange(6))
    finally:
        opened.close()


def test_values_that_the_same_process_has_not_flushed(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("values", data=np.arange(6), chunks=(2,))
    with h5py.File(path, "r+") as file:
        file["values"][0] = 100
        with open_native(path) as reader:
            assert reader.read("values", (slice(0, 6),))[0] == 100
