"""Packed objects: what is dead in them is reported, and the rest can be packed anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe

ROWS = 100
CHUNK = 8 * ROWS


def repository(spec: int) -> icefloe.Repository:
    """Eight chunks in two packs of four; three of the first pack are replaced afterwards."""
    packing = icefloe.PackingConfig(target_size_bytes=4 * CHUNK)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, packing=packing)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, spec_version=spec)
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="a",
        shape=(8 * ROWS,),
        chunks=(ROWS,),
        dtype="<i8",
        compressors=None,
    )
    for at in range(8):
        array[at * ROWS : (at + 1) * ROWS] = at + 1
    session.commit("first")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[: 3 * ROWS] = 9
    session.commit("second")
    return repo


def values(repo: Any) -> list[int]:
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    found: list[int] = np.asarray(array[::ROWS]).tolist()
    return found


@pytest.mark.parametrize("spec", [1, 2])
def test_dead_bytes_are_reported_and_repacked(spec: int) -> None:
    repo = repository(spec)
    later = datetime.now(UTC) + timedelta(days=1)
    assert repo.packed_objects().dead_bytes.sum() == 0  # the first snapshot still has all of them
    assert repo.repack_chunks("nothing to do", branch="main") is None
    repo.expire_snapshots(later)
    repo.garbage_collect(later)
    found = repo.packed_objects()
    assert max(found.dead_bytes.tolist()) == 3 * CHUNK
    assert f"{3 * CHUNK:,} of them dead" in str(found)
    before = values(repo)
    assert repo.repack_chunks("packed anew", branch="main", min_dead_fraction=0.5) is not None
    assert values(icefloe.Repository.open(repo.storage)) == before == [9, 9, 9, 4, 5, 6, 7, 8]
    repo.expire_snapshots(later)
    summary = repo.garbage_collect(later)
    assert summary.chunks_deleted == 1
    assert repo.packed_objects().dead_bytes.sum() == 0
    assert values(icefloe.Repository.open(repo.storage)) == before
    with pytest.raises(icefloe.InvalidInputError, match="min_dead_fraction"):
        repo.repack_chunks("x", branch="main", min_dead_fraction=0.0)
