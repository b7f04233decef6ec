"""A thread that goes on writing while the session is committed: what was accepted is there."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import ReadOnlyError

COUNT = 20_000


@pytest.mark.parametrize("ending", ["commit", "rebasing", "amend", "flush"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_every_accepted_chunk_is_in_the_commit(ending: str, *, is_packed: bool) -> None:
    config = icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=0 if is_packed else 512,
        packing=icefloe.PackingConfig() if is_packed else None,
    )
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    session = repository.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(COUNT,), chunks=(1,), dtype="i4", compressors=None
    )
    session.commit("an array")
    session = repository.writable_session("main")
    store: Any = session.store
    accepted: list[int] = []
    refused: list[ReadOnlyError] = []
    has_begun = threading.Event()

    def write() -> None:
        buffer = zarr.core.buffer.default_buffer_prototype().buffer
        try:
            for number in range(COUNT):
                value = buffer.from_bytes(np.int32(number + 1).tobytes())
                store.set_sync(f"a/c/{number}", value)
                accepted.append(number)
                if number == 500:
                    has_begun.set()
        except ReadOnlyError as error:
            refused.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    assert has_begun.wait(60)
    if ending == "commit":
        snapshot_id = session.commit("while writing")
    elif ending == "rebasing":
        snapshot_id = session.commit("while writing", rebase_with=icefloe.ConflictDetector())
    elif ending == "amend":
        snapshot_id = session.amend("while writing")
    else:
        snapshot_id = session.flush("while writing")
    thread.join(60)
    assert not thread.is_alive()
    assert len(refused) == 1
    committed = repository.readonly_session(snapshot_id=snapshot_id)
    found = asyncio.run(_coordinates(committed))
    assert sorted(found) == [(number,) for number in accepted]
    array: Any = zarr.open_array(committed.store, path="a", mode="r")
    last = accepted[-1]
    assert array[last - 9 : last + 1].tolist() == [number + 1 for number in accepted[-10:]]


async def _coordinates(session: icefloe.Session) -> list[tuple[int, ...]]:
    return [tuple(index) async for index in session.chunk_coordinates("/a")]


def test_a_failed_commit_leaves_the_session_open() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    zarr.create_group(session.store)
    session.commit("a group")
    first, second = (repository.writable_session("main") for _ in range(2))
    zarr.create_group(first.store, path="one")
    zarr.create_group(second.store, path="two")
    first.commit("first")
    with pytest.raises(icefloe.ConflictError):
        second.commit("second")
    zarr.create_group(second.store, path="three")
    second.commit("both", rebase_with=icefloe.ConflictDetector())
    names = sorted(zarr.open_group(repository.readonly_session("main").store, mode="r"))
    assert names == ["one", "three", "two"]
