"""`num_bytes_chunks`: chunks that were read are kept in memory, up to so many bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.store.operations import get
from icefloe.testing.wrapping import WrappingDriver

CHUNK_BYTES = 8_000


class Recording(WrappingDriver):
    """Counts reads of chunk objects."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.reads: Counter[str] = Counter()

    async def before(self, method: str, key: str) -> None:
        if key.startswith("chunks/"):
            self.reads[method] += 1


class Reader:
    """A read-only session whose reads of chunks are counted."""

    def __init__(self, folder: Path, num_bytes_chunks: int | None) -> None:
        storage = icefloe.local_filesystem_storage(str(folder))
        if not any(folder.iterdir()):
            _make(storage)
        caching = icefloe.CachingConfig(num_bytes_chunks=num_bytes_chunks)
        config = icefloe.RepositoryConfig(caching=caching)
        session = icefloe.Repository.open(storage, config).readonly_session("main")
        handle, state = session.workspace
        self.driver = Recording(handle.driver)
        assets = replace(handle.assets, driver=self.driver)
        self.workspace = Workspace(replace(handle, assets=assets), state)

    def read(self, number: int, byte_range: tuple[int, int] | None = None) -> bytes:
        data = run_blocking(get(self.workspace, f"a/c/{number}", byte_range))
        assert data is not None
        return bytes(data)

    @property
    def num_reads(self) -> int:
        return self.driver.reads.total()


def _make(storage: icefloe.Storage) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    session = icefloe.Repository.create(storage, config).writable_session("main")
    array: Any = zarr.create_array(
        session.store, name="a", shape=(4_000,), chunks=(1_000,), dtype="i8", compressors=None
    )
    array[:] = np.arange(4_000)
    session.commit("made")


def expected(number: int) -> bytes:
    return np.arange(number * 1_000, (number + 1) * 1_000, dtype="i8").tobytes()


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path) -> None:
    reader = Reader(tmp_path, None)
    assert [reader.read(0) for _ in range(3)] == [expected(0)] * 3
    assert reader.num_reads == 3


def test_a_chunk_is_fetched_once(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 10 * CHUNK_BYTES)
    assert [reader.read(0) for _ in range(3)] == [expected(0)] * 3
    assert reader.num_reads == 1
    assert reader.read(1) == expected(1)
    assert reader.num_reads == 2


def test_a_range_is_kept_as_what_it_is(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 10 * CHUNK_BYTES)
    assert reader.read(2, (8, 24)) == expected(2)[8:24]
    assert reader.read(2, (8, 24)) == expected(2)[8:24]
    assert reader.num_reads == 1
    assert reader.read(2, (8, 32)) == expected(2)[8:32]
    assert reader.read(2) == expected(2)
    assert reader.num_reads == 3


def test_the_oldest_goes_when_there_is_no_room(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2 * CHUNK_BYTES)
    for number in (0, 1, 0, 2):  # 2 takes the place of 1, which was read before 0
        reader.read(number)
    assert reader.num_reads == 3
    assert reader.read(0) == expected(0)
    assert reader.num_reads == 3
    assert reader.read(1) == expected(1)
    assert reader.num_reads == 4
    assert sum(map(len, _kept(reader))) <= 2 * CHUNK_BYTES


def test_a_chunk_larger_than_the_cache_is_read_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path, CHUNK_BYTES - 1)
    assert [reader.read(0) for _ in range(2)] == [expected(0)] * 2
    assert reader.num_reads == 2
    assert _kept(reader) == []


def _kept(reader: Reader) -> list[bytes]:
    return [entry.value for entry in reader.workspace.handle.assets.caches.chunks._entries.values()]
