from __future__ import annotations

import asyncio
import pickle
import time

import zarr

from icefloe import Repository, in_memory_storage
from icefloe.testing.latency import LatencyStorage


def test_reads_and_writes_wait_and_can_be_changed() -> None:
    storage = LatencyStorage(in_memory_storage(), write_latency_ms=20)
    begin = time.perf_counter()
    repo = Repository.create(storage)
    assert time.perf_counter() - begin > 0.02
    storage.write_latency_ms, storage.read_latency_ms = 0, 30
    begin = time.perf_counter()
    Repository.open(storage)
    assert time.perf_counter() - begin > 0.03
    storage.read_latency_ms = 0
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(2,), dtype="i4")[:] = 1
    session.commit("an array")
    assert Repository.open(storage.inner).lookup_branch("main") == session.snapshot_id


def test_an_event_loop_goes_on_while_requests_wait() -> None:
    storage = LatencyStorage(in_memory_storage(), read_latency_ms=100)
    Repository.create(storage)

    async def several() -> None:
        await asyncio.gather(*(Repository.open_async(storage) for _ in range(10)))

    begin = time.perf_counter()
    asyncio.run(several())
    assert time.perf_counter() - begin < 1.5


def test_a_pickle_keeps_the_pauses() -> None:
    inner = in_memory_storage()
    copy = pickle.loads(pickle.dumps(LatencyStorage(inner, read_latency_ms=3)))
    assert (copy.inner, copy.read_latency_ms, copy.write_latency_ms) == (inner, 3, 0)
    assert repr(copy) == "LatencyStorage(write_latency_ms=0, read_latency_ms=3)"
