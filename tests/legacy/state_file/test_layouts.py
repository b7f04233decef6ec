"""Section "Chunk Files" of document 003: how chunks may be arranged in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
import zarr

import icefloe
from icefloe.config import RepositoryConfig
from icefloe.config.repository import PackingConfig
from icefloe.credentials import LocalFileSystemAccess
from tests.legacy.state_file.datasets import create


def write(repo: icefloe.Repository, names: str) -> dict[str, Any]:
    session = repo.writable_session("main")
    top: Any = zarr.create_group(session.store)
    expected = {}
    for seed, name in enumerate(names):
        values = np.random.default_rng(seed).integers(0, 2**30, 600).astype("<i4")
        top.create_array(name, shape=(600,), chunks=(100,), dtype="<i4", compressors=None)[:] = (
            values
        )
        expected[name] = values
    session.commit("data")
    return expected


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ds.dataset(folder / "i", format="parquet").to_table().to_pylist()
    return found


def check(folder: Path, expected: dict[str, Any]) -> None:
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(folder))
    group: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    for name, values in expected.items():
        np.testing.assert_array_equal(group[name][:], values)


def config(**packing: Any) -> RepositoryConfig:
    return RepositoryConfig(
        inline_chunk_threshold_bytes=0, packing=PackingConfig(**packing) if packing else None
    )


def test_one_chunk_per_file(tmp_path: Path) -> None:
    """ "One chunk per chunk file (i.e. standard Zarr)"."""
    storage = icefloe.local_filesystem_storage(tmp_path)
    expected = write(create(storage, config=config()), "ab")
    files = [row["chunk_file"] for row in rows(tmp_path)]
    assert len(set(files)) == len(files) == 12
    assert {row["offset"] for row in rows(tmp_path)} == {0}
    check(tmp_path, expected)


def test_several_chunks_of_one_array_in_a_file(tmp_path: Path) -> None:
    """ "Multiple contiguous chunks from the same array in a single chunk file"."""
    storage = icefloe.local_filesystem_storage(tmp_path)
    packed = config(target_size_bytes=1200, max_chunk_size_bytes=400)
    expected = write(create(storage, config=packed), "a")
    found = rows(tmp_path)
    assert len({row["chunk_file"] for row in found}) < len(found) == 6
    assert len(list((tmp_path / "c").iterdir())) == len({row["chunk_file"] for row in found})
    check(tmp_path, expected)


def test_chunks_of_several_arrays_in_a_file(tmp_path: Path) -> None:
    """ "Chunks from multiple different arrays in the same file"."""
    storage = icefloe.local_filesystem_storage(tmp_path)
    packed = config(target_size_bytes=1_000_000, max_chunk_size_bytes=400)
    expected = write(create(storage, config=packed), "abc")
    found = rows(tmp_path)
    assert len({row["array_id"] for row in found}) == 3
    assert len({row["chunk_file"] for row in found}) == 1
    assert len({row["offset"] for row in found}) == 18
    check(tmp_path, expected)


def test_inline_chunks(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(tmp_path)
    inline = RepositoryConfig(inline_chunk_threshold_bytes=400)
    expected = write(create(storage, config=inline), "a")
    assert all(len(row["inline_data"]) == 400 == row["length"] for row in rows(tmp_path))
    assert not (tmp_path / "c").exists()
    check(tmp_path, expected)


def test_chunks_in_foreign_files(tmp_path: Path) -> None:
    """ "Other file types (e.g. NetCDF, HDF5) which contain Zarr-compatible chunks"."""
    values = np.arange(40, dtype="<i4")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.bin").write_bytes(b"header" + values.tobytes())
    prefix = f"file://{tmp_path}/files/"
    foreign = RepositoryConfig()
    foreign.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(
            prefix, icefloe.local_filesystem_store(str(tmp_path / "files"))
        )
    )
    storage = icefloe.local_filesystem_storage(tmp_path / "data")
    create(storage)
    access = {prefix: LocalFileSystemAccess}
    repo = icefloe.Repository.open(storage, foreign, authorize_virtual_chunk_access=access)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(40,), chunks=(20,), dtype="<i4", compressors=None
    )
    for at in range(2):
        session.store.set_virtual_ref(f"a/c/{at}", prefix + "x.bin", offset=6 + 80 * at, length=80)
    session.commit("references")
    assert [row["chunk_file"] for row in rows(tmp_path / "data")] == [prefix + "x.bin"] * 2
    again = icefloe.Repository.open(storage, foreign, authorize_virtual_chunk_access=access)
    found: Any = zarr.open_array(again.readonly_session("main").store, path="a")
    np.testing.assert_array_equal(found[:], values)


@pytest.mark.parametrize("widths", ["strict", "wide"])
def test_the_widths_of_a_dataset_stay(tmp_path: Path, widths: Any) -> None:
    storage = icefloe.local_filesystem_storage(tmp_path)
    icefloe.Repository.create(storage, generation=icefloe.StateFileDataset(widths))
    repo = icefloe.Repository.open(storage)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(70_000,), chunks=(70_000,), dtype="i1")
    if widths == "strict":
        with pytest.raises(icefloe.InvalidInputError, match="70,000"):
            session.commit("too long")
        return
    session.commit("long")
    schemas = [ds.dataset(path, format="parquet").schema for path in (tmp_path / "s").iterdir()]
    assert {str(schema.field("id").type) for schema in schemas} == {"uint32"}
