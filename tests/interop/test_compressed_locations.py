"""Locations as frames with a dictionary, where the configuration asks: official reads them too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import ManifestConfig, ManifestVirtualChunkLocationCompressionConfig, RepositoryConfig

icechunk: Any = pytest.importorskip("icechunk", minversion="2")

COUNT = 300
LONG = "x" * 1200
"""Readers do not inflate a location that is so long."""


def folder_with_refs(
    folder: Path, *, spec_version: int = 2, name: str = "year-{}/t2m.nc", **options: Any
) -> Any:
    """A repository with an array of virtual chunks and an ordinary one; returns it opened."""
    settings = ManifestVirtualChunkLocationCompressionConfig(**options) if options else None
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        manifest=ManifestConfig(virtual_chunk_location_compression=settings),
    )
    prefix = f"file://{folder}/data/"
    container = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    config.set_virtual_chunk_container(container)
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(folder / "repo")), config, spec_version=spec_version
    )
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(400,), chunks=(1,), dtype="i1")
    array[COUNT:] = 7
    other = zarr.create_array(session.store, name="b", shape=(2, 2), chunks=(1, 1), dtype="i1")
    other[:] = 3
    for number in range(COUNT):
        location = prefix + (LONG if number == 17 else name.format(number // 2))
        checksum = f"etag-{number}" if number % 2 else None
        session.store.set_virtual_ref(
            f"a/c/{number}", location, offset=number, length=1, checksum=checksum
        )
    session.commit("refs")
    return repo


def compression(repo: Any) -> dict[str, Any]:
    """What official says about the manifest with virtual chunks."""
    official = icechunk.Repository.open(
        icechunk.local_filesystem_storage(repo.storage.location.path)
    )
    files = official.list_manifest_files(official.lookup_branch("main"))
    found = [official.inspect_manifest(each.id) for each in files]
    return next(each["compression"] for each in found if each["total_virtual"])


def test_official_reads_them(tmp_path: Path) -> None:
    repo = folder_with_refs(tmp_path, min_num_chunks=COUNT)
    said = compression(repo)
    assert said["uses_location_compression"]
    assert said["num_compressed_refs"] == COUNT - 1  # the long one stays plain
    official = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(tmp_path / "repo"))
    ).readonly_session("main")
    ours = icefloe.Repository.open(repo.storage).readonly_session("main")
    expected = [f"file://{tmp_path}/data/year-{number // 2}/t2m.nc" for number in range(COUNT)]
    expected[17] = f"file://{tmp_path}/data/{LONG}"
    assert sorted(official.all_virtual_chunk_locations()) == sorted(expected)
    assert sorted(ours.all_virtual_chunk_locations()) == sorted(expected)
    group: Any = zarr.open_group(official.store, mode="r")
    assert (group["a"][COUNT:] == 7).all()
    assert (group["b"][:] == 3).all()


def test_they_are_written_again_by_later_commits(tmp_path: Path) -> None:
    repo = folder_with_refs(tmp_path, min_num_chunks=1, dictionary_max_size_bytes=512)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 1
    session.commit("one chunk less")
    said = compression(repo)
    assert said["num_compressed_refs"] == COUNT - 2
    assert said["dictionary_size_bytes"] <= 512


def test_the_largest_settings_are_taken(tmp_path: Path) -> None:
    repo = folder_with_refs(
        tmp_path,
        min_num_chunks=0,
        dictionary_max_training_samples=2**16 - 1,
        dictionary_max_size_bytes=2**32 - 1,
        compression_level=2**31 - 1,
    )
    assert compression(repo)["num_compressed_refs"] == COUNT - 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "nothing asks for it"),
        ({"min_num_chunks": COUNT + 1}, "too few"),
        ({"compression_level": 5}, "1000 unless given"),
        ({"min_num_chunks": 1, "spec_version": 1}, "no place in version 1"),
        ({"min_num_chunks": 1, "dictionary_max_size_bytes": 8}, "too small for a dictionary"),
        ({"min_num_chunks": 1, "dictionary_max_training_samples": 0}, "no samples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_they_stay_plain(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    assert compression(folder_with_refs(tmp_path, **options))["num_compressed_refs"] == 0, why
