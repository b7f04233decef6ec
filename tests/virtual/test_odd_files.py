"""Files as archives have them: either equal to what others read, or refused by name."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import InvalidInputError, Repository
from icefloe.virtual import ingest_local, scan
from tests.virtual.datasets import dataset, expected, read, to_netcdf4

h5py: Any = pytest.importorskip("h5py", reason="h5py is an optional dependency")
netCDF4: Any = pytest.importorskip("netCDF4", reason="makes NetCDF files")  # noqa: N816
xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
    "ignore:.*:UserWarning:h5py",
)
h5t = h5py.h5t


def _of_type(path: Path, stored: Any, values: Any) -> None:
    """A dataset of a type that numpy has not, written from values that HDF5 converts."""
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(values.shape)
        made = h5py.h5d.create(file.id, b"odd", stored, space)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def time_type(path: Path) -> None:
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"odd", h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))


def references(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["odd"] = np.array([file.ref], h5py.ref_dtype)


def region_references(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.arange(4)
        made = file.create_dataset("odd", (1,), h5py.regionref_dtype)
        made[0] = file["data"].regionref[1:2]


def long_double(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["odd"] = np.arange(3, dtype=np.longdouble)


def array_type(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("odd", (2,), np.dtype(("f4", (3,))))


def bad_dimension_list(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["odd"] = np.arange(6.0).reshape(2, 3)
        file["odd"].attrs["DIMENSION_LIST"] = np.arange(5)


def dimension_list_to_nowhere(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
        file["x"].make_scale()
        file["odd"] = np.arange(3.0)
        file["odd"].dims[0].attach_scale(file["x"])
        del file["x"]


def name_not_utf8(path: Path) -> None:
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((3,))
        h5py.h5d.create(file.id, b"caf\xe9", h5t.NATIVE_INT32, space)


def attribute_name_not_utf8(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["odd"] = np.arange(3)
        h5py.h5a.create(
            file["odd"].id, b"caf\xe9", h5t.NATIVE_INT32, h5py.h5s.create(h5py.h5s.SCALAR)
        )


def name_with_backslash(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data\\set"] = np.arange(3)


def name_of_the_ledger(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file[".icefloe/odd"] = np.arange(3)


def too_large(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("odd", (2**40, 2**20), "i1", chunks=(1000, 1000))


def attributes_that_are_references(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["odd"] = np.arange(3)
        made = file["odd"].attrs
        made.create("object", file.ref, dtype=h5py.ref_dtype)
        made.create("region", file["odd"].regionref[1:], dtype=h5py.regionref_dtype)
        pair = np.dtype([("to", h5py.ref_dtype), ("n", "i4")])
        made.create("pair", np.array([(file.ref, 1)], pair), dtype=pair)


def damaged_inside(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("odd", data=np.arange(100_000), chunks=(1000,), compression="gzip")
        chunk = file["odd"].id.get_chunk_info(5)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xff" * chunk.size
    path.write_bytes(bytes(data))


REFUSED = [
    time_type,
    references,
    region_references,
    long_double,
    array_type,
    name_not_utf8,
    name_with_backslash,
    name_of_the_ledger,
]


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_cannot_be_brought_over_is_refused_by_name_and_left_out(
    tmp_path: Path, repository: Repository, make: Callable[[Path], None], mode: Any
) -> None:
    odd, good = tmp_path / "odd.nc", tmp_path / "good.nc"
    make(odd)
    to_netcdf4(dataset(0), good)
    with pytest.raises(InvalidInputError, match=odd.as_uri()):
        ingest_local([odd, good], repository, mode=mode)
    result = ingest_local([odd, good], repository, mode=mode, on_error="skip")
    assert [problem.location for problem in result.problems] == [odd.as_uri()]
    xr.testing.assert_identical(read(repository.readonly_session("main").store), expected([good]))


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_a_large_array_of_which_little_was_written(
    tmp_path: Path, repository: Repository, mode: Any
) -> None:
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("odd", (1000, 300_000), "i2", chunks=(1, 1000), fillvalue=7)
        made[3, 5000:5010] = np.arange(10)
        made[999, -1] = 5
    ingest_local(path, repository, mode=mode)
    store = repository.readonly_session("main").store
    found: Any = zarr.open_array(store, path="odd", mode="r")
    with h5py.File(path) as file:
        for rows in (slice(0, 5), slice(990, 1000)):
            np.testing.assert_array_equal(found[rows], file["odd"][rows])


def test_what_nobody_could_have_written_is_not_copied(
    tmp_path: Path, repository: Repository
) -> None:
    too_large(tmp_path / "odd.h5")
    with pytest.raises(InvalidInputError, match=r"odd\.h5: variable 'odd' would have 1,152,9"):
        ingest_local(tmp_path / "odd.h5", repository)
    ingest_local(tmp_path / "odd.h5", repository, mode="virtual")
    store = repository.readonly_session("main").store
    assert zarr.open_array(store, path="odd", mode="r").shape == (2**40, 2**20)


def test_a_file_damaged_inside_is_left_out(tmp_path: Path, repository: Repository) -> None:
    odd, good = tmp_path / "odd.nc", tmp_path / "good.nc"
    damaged_inside(odd)
    to_netcdf4(dataset(0), good)
    with pytest.raises(InvalidInputError, match=odd.as_uri()):
        ingest_local([odd, good], repository)
    result = ingest_local([odd, good], repository, on_error="skip")
    assert [problem.location for problem in result.problems] == [odd.as_uri()]
    assert "'odd' cannot be read" in result.problems[0].reason
    xr.testing.assert_identical(read(repository.readonly_session("main").store), expected([good]))


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize(
    "make",
    [
        bad_dimension_list,
        dimension_list_to_nowhere,
        attribute_name_not_utf8,
        attributes_that_are_references,
    ],
)
def test_marks_that_make_no_sense_are_no_obstacle(
    tmp_path: Path, repository: Repository, make: Callable[[Path], None], mode: Any
) -> None:
    path = tmp_path / "odd.nc"
    make(path)
    ingest_local(path, repository, mode=mode)
    found = read(repository.readonly_session("main").store)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(found["odd"].values, file["odd"][()])


def _integer(size: int, precision: int, offset: int) -> Any:
    made = h5t.STD_I32LE.copy() if size == 4 else h5t.STD_I16LE.copy()
    made.set_precision(precision)
    made.set_offset(offset)
    return made


def _bfloat16() -> Any:
    made = h5t.IEEE_F32LE.copy()
    made.set_fields(15, 7, 8, 0, 7)
    made.set_size(2)
    made.set_ebias(127)
    return made


def _text(padding: int) -> Any:
    made = h5t.C_S1.copy()
    made.set_size(6)
    made.set_strpad(padding)
    return made


STORED: dict[str, tuple[Callable[[], Any], Any]] = {
    "24 bits": (lambda: _integer(4, 24, 4), np.array([1, -2, 70_000], "i4")),
    "12 bits": (lambda: _integer(2, 12, 0), np.array([1, -2, 700], "i2")),
    "bfloat16": (_bfloat16, np.array([1.0, -2.5, 96.0], "f4")),
    "spaces": (lambda: _text(h5t.STR_SPACEPAD), np.array([b"a", b"bc", b"defg"], "S6")),
    "terminated": (lambda: _text(h5t.STR_NULLTERM), np.array([b"a", b"bc", b"defg"], "S6")),
}


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("kind", STORED)
def test_values_stored_otherwise_than_in_memory_are_read_as_hdf5_reads_them(
    tmp_path: Path, repository: Repository, kind: str, mode: Any
) -> None:
    path = tmp_path / "odd.h5"
    make, values = STORED[kind]
    _of_type(path, make(), values)
    result = ingest_local(path, repository, mode=mode)
    found = read(repository.readonly_session("main").store)["odd"].values
    with h5py.File(path) as file:
        np.testing.assert_array_equal(found, file["odd"][()])
    assert np.array_equal(found, values)
    assert bool(result.notes) == (mode == "virtual")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_chunks_of_any_unlimited_dimension_are_where_they_belong(
    tmp_path: Path, repository: Repository, libver: str, axis: int
) -> None:
    path = tmp_path / "odd.h5"
    values = np.arange(4 * 6 * 10).reshape(4, 6, 10)
    limits = [None if at == axis else size for at, size in enumerate(values.shape)]
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset(
            "odd", data=values, chunks=(2, 3, 4), maxshape=limits, compression="gzip"
        )
    ingest_local(path, repository, mode="virtual")
    session = repository.readonly_session("main")
    np.testing.assert_array_equal(read(session.store)["odd"].values, values)
    is_told = libver == "earliest" or axis == 0
    assert bool(session.all_virtual_chunk_locations()) == is_told


def test_chunks_at_the_edge_may_be_stored_without_filters(
    tmp_path: Path, repository: Repository
) -> None:
    path = tmp_path / "odd.h5"
    values = np.arange(10 * 7, dtype="i4").reshape(10, 7)
    found = sorted(Path(h5py.__file__).parent.parent.glob("h5py.libs/libhdf5-*.so*"))
    if not found:
        pytest.skip("h5py does not offer the option itself, and its HDF5 was not found")
    library = ctypes.CDLL(str(found[0]))
    library.H5Pset_chunk_opts.argtypes = [ctypes.c_int64, ctypes.c_uint]
    with h5py.File(path, "w", libver="latest") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((4, 4))
        plist.set_deflate(4)
        assert library.H5Pset_chunk_opts(plist.id, 2) == 0
        space = h5py.h5s.create_simple(values.shape)
        made = h5py.h5d.create(file.id, b"odd", h5t.STD_I32LE, space, plist)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    result = ingest_local(path, repository, mode="virtual")
    np.testing.assert_array_equal(
        read(repository.readonly_session("main").store)["odd"].values, values
    )
    assert result.notes == (
        "variable 'odd' is copied: chunks at its edges were stored without the filters",
    )


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("fill", [np.nan, 0.5, 1e30, -999.0])
@pytest.mark.parametrize("packing", [{}, {"scale_factor": 0.5, "add_offset": 3.0}])
def test_integers_with_a_fill_value_that_is_none(
    tmp_path: Path, repository: Repository, fill: float, packing: dict[str, float], mode: Any
) -> None:
    path = tmp_path / "odd.nc"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(4)
        file["x"].make_scale()
        made = file.create_dataset("odd", data=np.array([1, 2, -999, 0], "i2"))
        made.dims[0].attach_scale(file["x"])
        made.attrs.update({"_FillValue": fill, **packing})
    ingest_local(path, repository, mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that such a fill value does not conform
        wanted = xr.open_dataset(path, engine="h5netcdf").load()
        found = read(repository.readonly_session("main").store)
    xr.testing.assert_equal(found, wanted)
    assert found["odd"].dtype == wanted["odd"].dtype


@pytest.mark.parametrize("kind", ["NETCDF4", "NETCDF3_CLASSIC"])
@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_text_with_a_fill_value(
    tmp_path: Path, repository: Repository, kind: str, mode: Any
) -> None:
    path = tmp_path / "odd.nc"
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.createDimension("n", 3)
        file.createDimension("length", 4)
        name = file.createVariable("name", "S1", ("n", "length"), fill_value=b"-")
        name[:] = np.array([list("ab--"), list("----"), list("wxyz")], "S1")
        flag = file.createVariable("flag", "S1", ("n",), fill_value=b"-")
        flag[:] = np.array([b"a", b"b", b"c"])
        file.createVariable("value", "f4", ("n",))[:] = [1, 2, 3]
        if kind == "NETCDF4":
            text = file.createVariable("text", str, ("n",), fill_value="none")
            text[:] = np.array(["a", "none", "b"], object)
    result = ingest_local(path, repository, mode=mode)
    wanted = xr.open_dataset(path, engine="netcdf4").load()
    found = read(repository.readonly_session("main").store)
    for variable in wanted.variables:
        mine, theirs = found[variable].values.tolist(), wanted[variable].values.tolist()
        assert str(mine) == str(theirs), variable
    told = {note for note in result.notes if "_FillValue" in note}
    assert len(told) == 2
    assert "variable 'flag': text that is its _FillValue '-' is not read as missing" in told


@pytest.mark.parametrize("offset", [None, 3.0])
def test_float32_packing_decodes_to_float64_and_says_so(
    tmp_path: Path, repository: Repository, offset: float | None
) -> None:
    path = tmp_path / "odd.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 5)
        made = file.createVariable("odd", "i2", ("x",), fill_value=-9)
        made.set_auto_maskandscale(False)
        made.scale_factor = np.float32(0.1)
        if offset is not None:
            made.add_offset = np.float32(offset)
        made[:] = [1, 2, -9, 4, 500]
    result = ingest_local(path, repository)
    found = read(repository.readonly_session("main").store)["odd"]
    wanted = xr.open_dataset(path)["odd"]
    assert (wanted.dtype, found.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(found.values, wanted.values, rtol=1e-6)
    assert len(result.notes) == 1
    assert result.notes[0].startswith("variable 'odd': its scale_factor is a float32")


def test_attributes_of_long_floats_are_numbers(tmp_path: Path, repository: Repository) -> None:
    path = tmp_path / "odd.nc"
    with h5py.File(path, "w") as file:
        file["odd"] = np.arange(3)
        file["odd"].attrs["one"] = np.longdouble(1.5)
        file["odd"].attrs["many"] = np.array([1.5, 2.5], np.longdouble)
        file["odd"].attrs["complex"] = np.clongdouble(1.5 + 2j)
    ingest_local(path, repository)
    found = zarr.open_array(repository.readonly_session("main").store, path="odd", mode="r")
    kept = {key: found.attrs[key] for key in ("one", "many", "complex")}
    assert kept == {"one": 1.5, "many": [1.5, 2.5], "complex": [1.5, 2.0]}


def test_a_description_of_an_odd_type_says_why(tmp_path: Path) -> None:
    path = tmp_path / "odd.nc"
    time_type(path)
    variable = scan(path).variables["odd"]
    assert variable.data_type is None
    assert variable.reason is not None
    assert variable.reason.startswith("its HDF5 type has no counterpart in numpy")
