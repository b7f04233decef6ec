"""Ingests of other shapes than one file after another: appending, tiles, groups, odd files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import AlreadyExistsError, InvalidInputError, Repository
from icefloe.virtual import ingest_local, list_sources
from icefloe.virtual.model.description import cut_leading, index_of, make_references
from icefloe.virtual.planning.agreement import cut_chunks
from tests.virtual.datasets import (
    NAMES,
    PACKED,
    TIME,
    check,
    dataset,
    expected,
    make_unreadable,
    read,
    to_h5netcdf,
    to_netcdf3,
    to_netcdf4,
)

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
h5py: Any = pytest.importorskip("h5py", reason="h5py is an optional dependency")
nc: Any = pytest.importorskip("netCDF4", reason="makes NetCDF files")

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
)


def files(folder: Path, parts: range = range(4)) -> list[Path]:
    paths = [folder / f"{NAMES[part % 4]}{part}.nc" for part in parts]
    for part, path in zip(parts, paths, strict=True):
        to_netcdf4(dataset(part), path)
    return paths


def contents(repository: Repository, **options: Any) -> Any:
    return read(repository.readonly_session("main").store, **options)


# -- appending


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_appending_adds_new_files_and_running_again_adds_nothing(
    tmp_path: Path, repository: Repository, mode: Any
) -> None:
    options: dict[str, Any] = {"group": "obs/daily", "mode": mode, "append": True}
    if mode == "native":
        options["chunks"] = {"time": 4}  # so that appending starts inside a chunk
    paths = files(tmp_path, range(2))
    first = ingest_local(tmp_path / "*.nc", repository, concat_dim="time", **options)
    paths += files(tmp_path, range(2, 5))
    second = ingest_local(tmp_path / "*.nc", repository, concat_dim="time", **options)
    third = ingest_local(tmp_path / "*.nc", repository, concat_dim="time", **options)
    assert (first.files_added, second.files_added, third.files_added) == (2, 3, 0)
    assert second.files_skipped == 2
    assert third.snapshot_id is None
    assert third.files_skipped == 5
    check(contents(repository, group="obs/daily"), expected(paths))
    history = [entry.id for entry in repository.ancestry(branch="main")]
    assert history[:2] == [second.snapshot_id, first.snapshot_id]


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_a_file_that_is_known_is_not_opened_again(
    tmp_path: Path, repository: Repository, mode: Any
) -> None:
    paths = files(tmp_path, range(3))
    ingest_local(paths[:2], repository, concat_dim="time", mode=mode)
    make_unreadable(paths[1])
    result = ingest_local(paths, repository, concat_dim="time", mode=mode, append=True)
    assert (result.files_added, result.files_skipped) == (1, 2)
    with pytest.raises(InvalidInputError, match=r"a1\.nc"):
        ingest_local(paths, repository, group="other", concat_dim="time", mode=mode)


def test_a_changed_file_is_reported_and_the_ledger_stays_out_of_the_way(
    tmp_path: Path, repository: Repository
) -> None:
    paths = files(tmp_path, range(2))
    ingest_local(paths, repository, concat_dim="time")
    to_netcdf4(dataset(7), paths[0])
    os.utime(paths[0], (1, 1))
    paths += files(tmp_path, range(2, 3))
    with pytest.raises(InvalidInputError, match=r"c0\.nc: it has changed since it was ingested"):
        ingest_local(paths, repository, concat_dim="time", append=True)
    result = ingest_local(paths, repository, concat_dim="time", append=True, on_error="skip")
    assert [problem.location for problem in result.problems] == [paths[0].as_uri()]
    assert result.files_added == 1
    found = contents(repository)
    assert set(found.variables) == set(dataset(0).variables)
    assert found.attrs == dataset(0).attrs
    ledger = contents(repository, group=".icefloe/sources")
    assert dict(ledger.sizes) == {"source": 3}
    assert ledger.location.values.tolist() == [path.as_uri() for path in paths]
    assert ledger.size_bytes.values[1] == paths[1].stat().st_size


def test_a_file_that_changed_within_a_second_is_noticed(
    tmp_path: Path, repository: Repository
) -> None:
    paths = files(tmp_path, range(2))
    ingest_local(paths, repository, concat_dim="time")
    before, data = paths[0].stat(), bytearray(paths[0].read_bytes())
    second = before.st_mtime_ns // 10**9 * 10**9
    at = len(data) // 2
    data[at] ^= 1
    paths[0].write_bytes(data)
    os.utime(paths[0], ns=(second + 10**8, second + 10**8))
    other = bytearray(paths[1].read_bytes())
    other[-5] ^= 1  # even at the very same time
    stamp = paths[1].stat().st_mtime_ns
    paths[1].write_bytes(other)
    os.utime(paths[1], ns=(stamp, stamp))
    result = ingest_local(paths, repository, concat_dim="time", append=True, on_error="skip")
    assert {problem.location for problem in result.problems} == {p.as_uri() for p in paths}
    assert all("has changed" in problem.reason for problem in result.problems)


def test_a_ledger_without_fingerprints_is_still_understood(
    tmp_path: Path, repository: Repository
) -> None:
    paths = files(tmp_path, range(3))
    ingest_local(paths[:2], repository, concat_dim="time")
    session = repository.writable_session("main")
    del zarr.open_group(session.store, path=".icefloe/sources")["fingerprint"]
    session.commit("as earlier versions wrote it")
    result = ingest_local(paths, repository, concat_dim="time", append=True)
    assert (result.files_added, result.files_skipped) == (1, 2)
    again = ingest_local(paths, repository, concat_dim="time", append=True)
    assert again.files_skipped == 3
    ledger = contents(repository, group=".icefloe/sources")
    assert [bool(text) for text in ledger.fingerprint.values.tolist()] == [False, False, True]


def test_a_group_with_arrays_is_left_alone_without_append(
    tmp_path: Path, repository: Repository
) -> None:
    paths = files(tmp_path, range(1))
    before = ingest_local(paths, repository).snapshot_id
    with pytest.raises(AlreadyExistsError, match="append=True"):
        ingest_local(paths, repository)
    assert repository.lookup_branch("main") == before


# -- other ways to fit together


def test_variables_of_several_files_are_merged(tmp_path: Path, repository: Repository) -> None:
    data = dataset(0)
    to_netcdf4(data[["packed", "height"]], tmp_path / "a.nc")
    data[["plain", "whole"]].to_netcdf(tmp_path / "b.nc", encoding={"time": TIME})
    ingest_local(tmp_path / "*.nc", repository)
    found = contents(repository)
    for name in ("packed", "height", "plain", "whole"):
        np.testing.assert_allclose(found[name], data[name])
    assert found.packed.encoding["dtype"] == np.int16


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_tiles_along_two_dimensions(tmp_path: Path, repository: Repository, mode: Any) -> None:
    whole = xr.concat([dataset(0, has_text=False), dataset(1, has_text=False)], "time",
                      data_vars="minimal", coords="minimal", compat="override")  # fmt: skip
    whole = whole[["packed"]].drop_vars("area")
    for t in range(2):
        for x in range(3):
            part = whole.isel(time=slice(3 * t, 3 * t + 3), x=slice(2 * x, 2 * x + 2))
            chunks = {"packed": {"chunksizes": (3, 4, 2), "zlib": True}}
            part.to_netcdf(tmp_path / f"{x}{t}.nc", encoding={"time": TIME, **chunks})
    result = ingest_local(tmp_path / "*.nc", repository, mode=mode)
    assert result.notes == ()
    xr.testing.assert_identical(contents(repository), whole)


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_a_scalar_time_becomes_a_dimension(
    tmp_path: Path, repository: Repository, mode: Any
) -> None:
    parts = [dataset(part, has_text=False)[["packed", "plain"]].isel(time=0) for part in range(3)]
    for part, name in zip(parts, "bca", strict=True):
        part.to_netcdf(tmp_path / f"{name}.nc", encoding={"time": TIME})
    ingest_local(tmp_path / "*.nc", repository, concat_dim="time", mode=mode)
    wanted = xr.concat(parts, "time", coords="minimal", compat="override", join="override")
    found = contents(repository)
    for name in ("packed", "plain", "time", "y", "area"):
        assert found[name].dims == wanted[name].dims
        np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_groups_come_over_as_groups(tmp_path: Path, repository: Repository, mode: Any) -> None:
    for part in range(2):
        path = tmp_path / f"{1 - part}.nc"
        to_netcdf4(dataset(part), path)
        more = dataset(part + 10)[["plain", "whole"]]
        more.to_netcdf(path, mode="a", group="inner/most", encoding={"time": TIME})
    paths = [tmp_path / "1.nc", tmp_path / "0.nc"]
    ingest_local(paths, repository, group="all", concat_dim="time", mode=mode)
    check(contents(repository, group="all"), expected(paths))
    inner = contents(repository, group="all/inner/most")
    xr.testing.assert_identical(inner, expected(paths, group="inner/most"))


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_times_counted_from_each_file_on(tmp_path: Path, repository: Repository, mode: Any) -> None:
    """What many producers do: `hours since` the start of the file."""
    parts = [dataset(part, has_text=False) for part in range(3)]
    for part, (data, name) in enumerate(zip(parts, "bca", strict=True)):
        starts = str(data.time.values[0])[:19]
        bounds = np.stack([data.time.values, data.time.values + np.timedelta64(6, "h")], axis=1)
        data["time_bnds"] = (("time", "bnds"), bounds)
        data.time.attrs["bounds"] = "time_bnds"
        units = {"units": f"hours since {starts}", "dtype": "f8" if part else "i4"}
        units["dtype"] = "i8"
        data.to_netcdf(tmp_path / f"{name}.nc", encoding={"time": units})
    paths = [tmp_path / f"{name}.nc" for name in "bca"]
    ingest_local(tmp_path / "*.nc", repository, concat_dim="time", mode=mode)
    found, wanted = contents(repository), expected(paths)
    xr.testing.assert_identical(found, wanted)
    assert found.time.encoding["units"] == wanted.time.encoding["units"]


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "proleptic_gregorian"])
def test_calendars(tmp_path: Path, repository: Repository, calendar: str) -> None:
    for number, first in enumerate(["2001-02-27", "2001-03-01"]):
        with nc.Dataset(tmp_path / f"{2 - number}.nc", "w") as file:
            file.createDimension("time", None)
            time = file.createVariable("time", "f8", ("time",))
            time.units, time.calendar = f"days since {first}", calendar
            time[:] = [0.25, 1.25]
            file.createVariable("data", "i4", ("time",))[:] = [number, number]
    ingest_local(tmp_path / "*.nc", repository, concat_dim="time")
    options = {"decode_times": xr.coders.CFDatetimeCoder(use_cftime=True)}
    wanted = expected([tmp_path / "2.nc", tmp_path / "1.nc"], **options)
    xr.testing.assert_identical(contents(repository, **options), wanted)


@pytest.mark.parametrize("write", [to_h5netcdf, to_netcdf3])
def test_contiguous_files_of_different_lengths_are_referred_to(
    tmp_path: Path, repository: Repository, write: Any
) -> None:
    parts = [dataset(0, 4), dataset(2, 6), dataset(9, 2)]
    paths = [tmp_path / f"{name}.nc" for name in "cab"]
    for data, path in zip(parts, paths, strict=True):
        write(data, path)
    ingest_local(paths, repository, concat_dim="time", mode="virtual")
    check(contents(repository), expected(paths, engine="netcdf4"))
    session = repository.readonly_session("main")
    assert session.chunk_type("/packed", [0, 0, 0]).name == "virtual"


def test_a_large_contiguous_array_is_cut_along_its_first_axes() -> None:
    assert cut_chunks([1, 3000, 4000, 6], 8) == [1, 20, 4000, 6]
    assert cut_chunks([10, 5], 8) == [10, 5]
    assert cut_chunks([2**33, 2**27], 8) == [2**33, 2**27]  # nobody wrote that
    assert cut_chunks([7, 1009, 100_000], 8) == [1, 1, 100_000]  # 1009 is prime
    whole = make_references(
        np.zeros((1, 3), np.uint32), "file:///a", np.array([100]), np.array([2 * 6 * 4])
    )
    cut = cut_leading(whole, (2, 6, 4), (1, 3, 4))
    assert index_of(cut).tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]]
    assert cut["offset"].to_pylist() == [100, 112, 124, 136]


def test_references_to_a_large_contiguous_array(tmp_path: Path, repository: Repository) -> None:
    values = np.arange(9 * 1200 * 1000, dtype="f8").reshape(9, 1200, 1000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["large"] = values
    result = ingest_local(tmp_path / "a.h5", repository, mode="virtual")
    assert result.notes == ()
    store = repository.readonly_session("main").store
    found: Any = zarr.open_array(store, path="large", mode="r")
    assert found.chunks == (1, 1200, 1000)
    np.testing.assert_array_equal(found[3:5, 300:900], values[3:5, 300:900])
    np.testing.assert_array_equal(found[-1], values[-1])


def test_variables_and_chunks_can_be_chosen(tmp_path: Path, repository: Repository) -> None:
    files(tmp_path)
    chunks = {"time": 5, "x": 4}
    ingest_local(tmp_path / "*.nc", repository, variables=["packed"], chunks=chunks)
    found = contents(repository)
    assert set(found.variables) == {"packed", "time", "x", "y", "area"}
    assert found.packed.encoding["chunks"] == (5, 4, 4)


# -- odd files


def test_odd_files_are_named_and_left_out(tmp_path: Path, repository: Repository) -> None:
    paths = files(tmp_path)
    odd = dataset(8).isel(y=slice(0, 3))
    to_netcdf4(odd, tmp_path / "narrow.nc", packed={"chunksizes": (1, 2, 6)})
    other = dataset(9)
    other.packed.attrs["units"] = "K"
    to_netcdf4(other, tmp_path / "packed.nc", packed={**PACKED, "scale_factor": 0.5})
    to_netcdf4(dataset(1), tmp_path / "twice.nc")
    (tmp_path / "broken.nc").write_bytes(paths[0].read_bytes()[:3000])
    (tmp_path / "text.nc").write_text("not what it says")
    with pytest.raises(InvalidInputError, match=r"5 files cannot be ingested"):
        ingest_local(tmp_path / "*.nc", repository, concat_dim="time")
    result = ingest_local(tmp_path / "*.nc", repository, concat_dim="time", on_error="skip")
    told = {problem.location.rpartition("/")[2]: problem.reason for problem in result.problems}
    assert set(told) == {"narrow.nc", "packed.nc", "twice.nc", "broken.nc", "text.nc"}
    assert "size of y 3, other files 4" in told["narrow.nc"]
    assert 'units "K", other files "degC"' in told["packed.nc"]
    assert "it holds the same as" in told["twice.nc"]
    assert "HDF5 cannot read it" in told["broken.nc"]
    assert "not NetCDF, HDF5, GRIB, Zarr" in told["text.nc"]
    check(contents(repository), expected(paths))


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_large_fields_that_files_repeat_are_compared(
    tmp_path: Path, repository: Repository, mode: Any
) -> None:
    field = np.arange(20_000.0).reshape(100, 200)
    for part in range(4):
        other = field + (part == 2)  # more than 64 kB, and without the joined dimension
        data = xr.Dataset(
            {"t": ("time", [float(part)]), "area": (("y", "x"), other)}, {"time": [part]}
        )
        data.to_netcdf(tmp_path / f"{part}.nc", unlimited_dims=["time"])
    with pytest.raises(InvalidInputError, match=r"2\.nc: variable 'area' has other values than"):
        ingest_local(tmp_path / "*.nc", repository, mode=mode)
    names = [tmp_path / f"{part}.nc" for part in (0, 1)]
    ingest_local(names, repository, mode=mode, concat_dim="time")
    result = ingest_local(
        tmp_path / "*.nc", repository, mode=mode, append=True, concat_dim="time", on_error="skip"
    )
    assert [problem.location for problem in result.problems] == [(tmp_path / "2.nc").as_uri()]
    found = contents(repository)
    assert found.time.values.tolist() == [0, 1, 3]
    np.testing.assert_array_equal(found.area, field)


def test_paths_as_hadoop_writes_them(tmp_path: Path) -> None:
    (path,) = files(tmp_path, range(1))
    assert list_sources(f"file:{path}") == list_sources(path) == [path.as_uri()]
    assert list_sources(f"file:{tmp_path}/*.nc") == [path.as_uri()]
    assert list_sources("s3a://bucket/a.nc") == ["s3://bucket/a.nc"]


def test_patterns_and_lists(tmp_path: Path) -> None:
    for name in ("a1.nc", "a2.nc", "b1.nc", "deep/er/c1.nc", "with [brackets].nc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "store.zarr").mkdir()

    def found(*patterns: str) -> list[str]:
        sources = [str(tmp_path / pattern) for pattern in patterns]
        return [location.rpartition(tmp_path.name + "/")[2] for location in list_sources(sources)]

    assert found("a*.nc") == ["a1.nc", "a2.nc"]
    assert found("[ab]1.nc") == ["a1.nc", "b1.nc"]
    assert found("?1.nc", "a2.nc", "a1.nc") == ["a1.nc", "b1.nc", "a2.nc"]
    assert found("**/c*.nc") == ["deep/er/c1.nc"]
    assert found("*/er/*") == ["deep/er/c1.nc"]
    assert found("*.zarr") == ["store.zarr"]
    assert found("with [brackets].nc") == ["with%20%5Bbrackets%5D.nc"]
    with pytest.raises(InvalidInputError, match=r"no file matches"):
        found("*.grib")
    with pytest.raises(InvalidInputError, match="no sources"):
        list_sources([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both"}, "mode is 'both'"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"chunks": {"time": 0}}, "chunks is {'time': 0}"),
        ({"chunks": {"time": 1}, "mode": "virtual"}, "files have theirs"),
        ({"group": "a//b"}, "a//b"),
    ],
)
def test_bad_options_are_refused_before_anything_is_read(
    repository: Repository, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ingest_local("/nowhere/file.nc", repository, **options)
