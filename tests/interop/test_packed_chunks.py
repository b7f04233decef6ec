"""Official clients and chunks that icefloe has packed: reading, committing, collecting garbage."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

pytest.importorskip("icechunk", minversion="2")

import icechunk
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from tests.interop.sides import Place
from tests.servers import S3Server

CHUNK = 512  # numbers of 8 bytes
PACKED = icefloe.RepositoryConfig(packing=icefloe.PackingConfig(target_size_bytes=64 * CHUNK * 8))


def values(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(1, 2**62, (count, CHUNK))


def create(place: Place, count: int, spec: int = 2) -> tuple[icefloe.Repository, Any]:
    """A repository with `count` packed chunks."""
    repo = icefloe.Repository.create(place.storage(icefloe), PACKED, spec_version=spec)
    session = repo.writable_session("main")
    written = values(count)
    array = zarr.create_array(
        session.store,
        name="a",
        shape=written.shape,
        chunks=(1, CHUNK),
        dtype="<i8",
        compressors=None,
    )
    array[:] = written
    session.commit("packed")
    return repo, written


def read(repo: Any, **ref: str) -> Any:
    session = repo.readonly_session(**(ref or {"branch": "main"}))
    return zarr.open_array(session.store, path="a", mode="r")[:]


def chunk_objects(repo: icefloe.Repository) -> set[str]:
    return {key for key, _ in repo.storage.list_objects(prefix="chunks/")}


@pytest.mark.parametrize("spec", [1, 2])
def test_official_reads_packed_chunks_and_commits_on_top(place: Place, spec: int) -> None:
    repo, expected = create(place, 200, spec)
    assert len(chunk_objects(repo)) == 4
    official = place.open(icechunk)
    assert np.array_equal(read(official), expected)
    session = official.writable_session("main")
    zarr.open_array(session.store, path="a")[7:12] = expected[7:12] = values(5, 1)
    session.commit("on top")
    assert len(chunk_objects(repo)) == 9
    assert np.array_equal(read(place.open(icechunk)), expected)
    repo = place.open(icefloe)
    assert np.array_equal(read(repo), expected)
    assert repo.config.packing == PACKED.packing, "an official commit keeps what it does not know"
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[10:40] = expected[10:40] = values(30, 2)
    session.commit("packed again")
    assert np.array_equal(read(place.open(icechunk)), expected)
    assert len(chunk_objects(repo)) == 10


def test_official_garbage_collection_keeps_packs_in_use(place: Place) -> None:
    repo, expected = create(place, 200)
    in_use = chunk_objects(repo)
    repo.create_tag("first", repo.lookup_branch("main"))
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array[:64] = 1  # a full pack, stored at once
    session.discard_changes()
    [orphan] = chunk_objects(repo) - in_use
    zarr.open_array(session.store, path="a")[:100] = 2
    session.commit("the first pack of four is not referred to any more, half of the second is")
    newer = chunk_objects(repo) - in_use - {orphan}
    official, later = place.open(icechunk), datetime.now(UTC) + timedelta(days=1)

    summary = official.garbage_collect(later)
    assert summary.chunks_deleted == 1
    assert chunk_objects(repo) == in_use | newer
    assert np.array_equal(read(place.open(icefloe), tag="first"), expected)

    official.delete_tag("first")
    tip = official.lookup_branch("main")
    official.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
    assert official.lookup_branch("main") == tip
    summary = official.garbage_collect(later)
    assert summary.chunks_deleted == 1
    left = chunk_objects(repo)
    assert len(in_use - left) == 1
    assert newer <= left
    expected[:100] = 2
    assert np.array_equal(read(place.open(icefloe)), expected)
    assert np.array_equal(read(place.open(icechunk)), expected)


def test_official_statistics_count_a_pack_once_with_the_length_of_one_chunk(place: Place) -> None:
    """Too little, but nothing depends on it: see docs/differences.md."""
    repo, _ = create(place, 200)
    found = place.open(icechunk).chunk_storage_stats()
    assert found.native_bytes == len(chunk_objects(repo)) * CHUNK * 8


def test_many_small_chunks_take_few_requests(s3_server: S3Server) -> None:
    def count() -> Counter[str]:
        with urllib.request.urlopen(f"{s3_server.endpoint_url}/-/requests") as response:
            return Counter(json.load(response)["methods"])

    place, before = Place(server=s3_server, prefix=uuid.uuid4().hex), count()
    _, expected = create(place, 1000)
    written = count()
    assert written["PUT"] - before["PUT"] < 1000 / 30
    assert np.array_equal(read(place.open(icefloe)), expected)
    read_one_by_one = count()
    assert read_one_by_one["GET"] - written["GET"] < 1000 / 5
    store = place.open(icefloe).readonly_session("main").store
    wanted = [(f"a/c/{number}/0", RangeByteRequest(8, 16)) for number in range(1, 1000, 5)]
    found = sync(store.get_partial_values(default_buffer_prototype(), wanted))
    assert b"".join(part.to_bytes() for part in found) == expected[1:1000:5, 1].tobytes()
    assert count()["GET"] - read_one_by_one["GET"] < len(wanted) / 3
