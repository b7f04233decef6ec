"""Small parts of large chunks: what is read and how much memory it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig, in_memory_storage
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.store import codecs, pipeline
from icefloe.store.codecs import length_of

pytestmark = pytest.mark.skipif(
    not hasattr(zarr.codecs.BytesCodec, "_decode_sync"),
    reason="codecs of this Zarr work in an event loop only, so Zarr's own pipeline reads",
)

PARTS: list[Any] = [
    (slice(0, 10), slice(None), slice(None)),
    (3, slice(5, 9), slice(None, None, 3)),
    (slice(2, 20, 4), 7, slice(1, 30)),
    (15, 2, 4),
    (slice(None), slice(None), 5),
    ([1, 5], slice(2, 9), slice(None)),
    (slice(10, 19), slice(None), slice(None)),
]


@pytest.mark.parametrize("place", ["memory", "directory", "virtual"])
def test_part_of_a_large_chunk_without_compression_is_fetched_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(codecs, "PARTS_FROM_BYTES", 1000)
    expected = np.arange(25 * 20 * 50, dtype=">i4").reshape(25, 20, 50)
    prefix = f"file://{tmp_path}/data/"
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    store = icefloe.local_filesystem_store(f"{tmp_path}/data")
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    is_memory = place == "memory"
    storage = in_memory_storage() if is_memory else icefloe.local_filesystem_storage(tmp_path / "r")
    repo = Repository.create(
        storage,
        config,
        authorize_virtual_chunk_access={prefix: icefloe.credentials.LocalFileSystemAccess},
    )
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="a",
        shape=expected.shape,
        chunks=(20, 20, 50),
        dtype=">i4",
        compressors=None,
    )
    array[:] = expected
    if place == "virtual":
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "f").write_bytes(b"head" + expected[:20].astype("<i4").tobytes())
        session.store.set_virtual_ref("a/c/0/0/0", f"{prefix}f", offset=4, length=80_000)
    fetched: list[int] = []
    fetch = pipeline.fetch_chunks

    async def counted(handle: Any, chunks: Any) -> Any:
        fetched.extend(map(length_of, chunks))
        return await fetch(handle, chunks)

    monkeypatch.setattr(pipeline, "fetch_chunks", counted)
    for part in PARTS:
        found = array.oindex[part] if isinstance(part[0], list) else array[part]
        wanted = expected[part]
        assert np.array_equal(found, wanted), part
    assert fetched[:4] == [10 * 4000, 4 * 200, 17 * 4000, 4]
    assert max(fetched) <= 80_000
    array[3, 5:9] = 7
    expected[3, 5:9] = 7
    assert np.array_equal(array[:], expected)


MEMORY = """
import resource, sys, zarr, icefloe
repo = icefloe.Repository.open(icefloe.local_filesystem_storage(sys.argv[1]))
array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
assert array[5:7].tolist() == [0, 0]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert array[200_000_000:200_000_010].tolist() == [0] * 9 + [1]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_of_a_small_read_is_not_that_of_its_chunk(tmp_path: Path) -> None:
    repo = Repository.create(icefloe.local_filesystem_storage(tmp_path / "r", durable=False))
    session = repo.writable_session("main")
    size = 250_000_000
    zarr.create_array(
        session.store, name="a", shape=(size,), chunks=(size,), dtype="u1", compressors=None
    )
    session.commit("an array")
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "f").open("wb") as file:  # a sparse file takes no time and room
        file.seek(200_000_009)
        file.write(b"\1")
        file.truncate(size)
    session = repo.writable_session("main")
    chunk = tmp_path / "r" / "chunks" / ("0" * 20)
    chunk.parent.mkdir(exist_ok=True)
    (tmp_path / "data" / "f").rename(chunk)
    node = session.workspace.state.view.array("/a")[0]
    refs = ChunkRefs.native(
        np.zeros((1, 1), np.uint32),
        np.zeros(12, np.uint8),
        np.zeros(1, np.uint64),
        np.full(1, size, np.uint64),
    )
    with session.workspace.state.writing():
        session.workspace.state.edits(node).set_table(refs, np.empty((0, 1), np.uint32))  # type: ignore[union-attr]
    session.commit("one chunk")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path / "r"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 50_000, f"{done.stdout} kB more"
