"""Copied chunks: what Zarr would have stored, nothing for empty ones, and errors that are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from icefloe import Repository
from icefloe.errors import StorageError
from icefloe.virtual import ingest_local, scan
from icefloe.virtual.formats.opening import NativeReader, open_native
from icefloe.virtual.ingest.request import make_options
from icefloe.virtual.ingest.transfer import OpenFiles, copy_region, write_metadata
from icefloe.virtual.planning.agreement import native_codecs
from icefloe.virtual.planning.planner import plan_ingest
from icefloe.virtual.sources import SourceAccess

FILL = 99


def write(path: Path, values: NDArray[Any], first: int, chunks: tuple[int, int]) -> None:
    """A file of one variable along time."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", values.shape[1])
        file.createVariable("time", "i4", ("time",))[:] = np.arange(first, first + len(values))
        options: Any = {"zlib": True, "chunksizes": chunks, "fill_value": FILL}
        file.createVariable("v", values.dtype, ("time", "x"), **options)[:] = values


def rows(count: int, dtype: str = "i2") -> NDArray[Any]:
    return (np.arange(count * 10).reshape(count, 10) % 500).astype(dtype)


def stored(repository: Repository) -> zarr.Array[Any]:
    store = repository.readonly_session("main").store
    return zarr.open_array(store, path="v", mode="r", zarr_format=3)


def chunks_of(repository: Repository) -> int:
    return int(stored(repository).nchunks_initialized)


@pytest.mark.parametrize("lengths", [(8, 8, 8), (3, 8, 2, 11)], ids=["aligned", "misaligned"])
@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "i1", "u4"])
def test_chunks_hold_the_values_of_all_files(
    tmp_path: Path, repository: Repository, lengths: tuple[int, ...], dtype: str
) -> None:
    values = rows(sum(lengths), dtype)
    first = 0
    for length in lengths:
        part = values[first : first + length]
        write(tmp_path / f"{first:03}.nc", part.astype(dtype), first, (min(4, length), 10))
        first += length
    ingest_local(tmp_path / "*.nc", repository, concat_dim="time", chunks={"time": 4, "x": 7})
    found = stored(repository)
    assert found.dtype == np.dtype(dtype)
    assert found.chunks == (4, 7)
    np.testing.assert_array_equal(found[:], values)


def test_a_chunk_is_stored_as_zarr_stores_it(tmp_path: Path, repository: Repository) -> None:
    write(tmp_path / "a.nc", rows(8), 0, (4, 10))
    ingest_local(tmp_path / "a.nc", repository, chunks={"time": 4})
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="v", mode="r+", zarr_format=3)
    ours = zarr.open_array(repository.readonly_session("main").store, path="v", zarr_format=3)
    before = _raw(ours, "v/c/1/0")
    array[4:8] = array[4:8]  # the same values again, through Zarr
    assert _raw(array, "v/c/1/0") == before
    assert array.metadata.to_dict()["codecs"][1]["configuration"]["shuffle"] == "shuffle"  # type: ignore[index,call-overload]


def _raw(array: zarr.Array[Any], key: str) -> bytes:
    found = sync(array.store.get(key, default_buffer_prototype()))
    assert found is not None
    return found.to_bytes()


@pytest.mark.parametrize("dtype", ["i2", "f4", "f8"])
def test_blocks_of_blosc_compress_better_than_those_it_chooses(dtype: str) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 512, 512))
    values = (np.cumsum(noise, axis=2) * 20).astype(dtype)
    _, chosen = native_codecs(f"<{dtype}", values.shape)
    settings = dict(chosen["configuration"], shuffle=Blosc.SHUFFLE)
    by_itself = Blosc(**{**settings, "clevel": 2, "blocksize": 0})
    assert len(Blosc(**settings).encode(values)) < len(by_itself.encode(values))


def test_chunks_of_fill_values_are_not_stored(tmp_path: Path, repository: Repository) -> None:
    values = rows(12)
    values[4:8] = FILL
    write(tmp_path / "a.nc", values, 0, (4, 10))
    ingest_local(tmp_path / "a.nc", repository, chunks={"time": 4})
    assert chunks_of(repository) == 2
    np.testing.assert_array_equal(stored(repository)[:], values)


def test_negative_zero_is_not_the_fill_value_zero(tmp_path: Path, repository: Repository) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", data=np.full((4, 4), -0.0, "f8"), chunks=(2, 4))
    ingest_local(tmp_path / "a.h5", repository, chunks={})
    assert np.signbit(stored(repository)[:]).all()


def test_an_appended_file_completes_the_last_chunk(tmp_path: Path, repository: Repository) -> None:
    values = rows(13)
    write(tmp_path / "a.nc", values[:6], 0, (2, 10))
    ingest_local(tmp_path / "a.nc", repository, concat_dim="time", chunks={"time": 4})
    write(tmp_path / "b.nc", values[6:], 6, (2, 10))
    ingest_local(tmp_path / "b.nc", repository, concat_dim="time", append=True)
    np.testing.assert_array_equal(stored(repository)[:], values)


class Recorded:
    """A reader of one file that remembers what it was asked for."""

    def __init__(self, reader: NativeReader) -> None:
        self.reader = reader
        self.rows: list[tuple[int, int]] = []

    def read(self, path: str, region: tuple[slice, ...]) -> NDArray[Any]:
        self.rows.append((region[0].start, region[0].stop))
        return self.reader.read(path, region)


@pytest.mark.parametrize(
    ("length", "reads"),
    [(12, [(0, 12), (12, 24)]), (24, [(0, 24)]), (5, [(0, 24)]), (8, [(0, 24)])],
    ids=["as in the file", "two chunks", "cut", "cut at other places"],
)
def test_no_chunk_of_a_file_is_read_twice(
    tmp_path: Path,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    reads: list[tuple[int, int]],
) -> None:
    values = rows(24)
    write(tmp_path / "a.nc", values, 0, (12, 10))
    plan = plan_ingest([scan(tmp_path / "a.nc")], make_options({"chunks": {"time": length}}))
    array = next(array for array in plan.arrays if array.path == "v")
    session = repository.writable_session("main")
    write_metadata(session.store, plan)
    with open_native(tmp_path / "a.nc") as reader:
        recorded = Recorded(reader)
        region = (slice(0, 24), slice(0, 10))
        files = OpenFiles(SourceAccess())
        monkeypatch.setattr(files, "read", lambda _, *part: recorded.read(*part))
        copy_region(session.store, plan, array, region, files)
    assert recorded.rows == reads
    session.commit("copied")
    np.testing.assert_array_equal(stored(repository)[:], values)


def test_what_cannot_be_stored_stops_the_ingest(tmp_path: Path) -> None:
    write(tmp_path / "a.nc", np.random.default_rng(0).random((4000, 10)), 0, (400, 10))
    folder = tmp_path / "repository"
    repository = Repository.create(icefloe.local_filesystem_storage(str(folder)))
    (folder / "chunks").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot write object 'chunks/"):
        ingest_local(tmp_path / "a.nc", repository)
    assert len(list(repository.ancestry(branch="main"))) == 1
