"""Readers that start at the same time load a manifest or a snapshot once between them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.assets.assets import Assets, Caches
from icefloe.assets.cache import InFlight
from icefloe.errors import StorageError
from icefloe.ids import SnapshotId
from icefloe.storage.calls import EventLoopCalls
from icefloe.storage.driver import Driver, Readable, Span
from icefloe.testing.wrapping import WrappingDriver
from tests.servers import S3Server

READERS = 10


class Place:
    """A repository on the S3 server, and how often it was asked for something."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._prefix = f"shared-loads-{uuid4().hex}"
        session = icefloe.Repository.create(server.storage(self._prefix)).writable_session("main")
        array = zarr.create_array(session.store, name="a", shape=(40,), chunks=(1,), dtype="i4")
        array[:] = range(1, 41)
        self.snapshot_id = session.commit("forty chunks")

    def open(self) -> tuple[icefloe.Repository, Callable[[], int]]:
        """The repository with nothing cached, and the requests since this call."""
        key = f"test-{uuid4().hex}"
        storage = self._server.storage(self._prefix, access_key_id=key, secret_access_key="-")
        repository = icefloe.Repository.open(storage)

        def count() -> int:
            return self._server.requests()["keys"].get(key, 0)

        before = count()
        return repository, lambda: count() - before


@pytest.fixture(scope="module")
def place(s3_server: S3Server) -> Place:
    return Place(s3_server)


def test_ten_readers_on_an_event_loop_fetch_a_manifest_once(place: Place) -> None:
    repository, count = place.open()
    store = repository.readonly_session(snapshot_id=place.snapshot_id).store
    before = count()

    async def read() -> list[Any]:
        prototype = default_buffer_prototype()
        return await asyncio.gather(*(store.get(f"a/c/{n}", prototype) for n in range(READERS)))

    found = asyncio.run(read())
    assert all(chunk is not None for chunk in found)
    assert count() - before == 1


def test_ten_threads_fetch_a_manifest_once(place: Place) -> None:
    repository, count = place.open()
    session = repository.readonly_session(snapshot_id=place.snapshot_id)
    before = count()
    with ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(lambda n: session.chunk_type("/a", [n]), range(READERS)))
    assert set(found) == {icefloe.ChunkType.inline}
    assert count() - before == 1


def test_ten_threads_fetch_a_snapshot_once(place: Place) -> None:
    repository, count = place.open()
    with ThreadPoolExecutor(READERS) as pool:
        sessions = list(
            pool.map(
                lambda _: repository.readonly_session(snapshot_id=place.snapshot_id),
                range(READERS),
            )
        )
    assert {session.snapshot_id for session in sessions} == {place.snapshot_id}
    # Each asks for the repo object anew, because a ref may have moved; the snapshot comes once.
    assert count() <= READERS + 1


class LoopDriver(WrappingDriver):
    """Really waits, on an event loop; the first read does not go on before it is told to."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.num_reads = 0
        self.may_go_on = asyncio.Event()
        self.does_fail = False

    async def get(self, key: str, span: Span | None = None) -> Readable:
        self.num_reads += 1
        if self.num_reads == 1:
            await self.may_go_on.wait()
            if self.does_fail:
                raise StorageError("the first read is lost")
        data: Readable = await super().get(key, span)
        return data

    async def wait_for(self, work: Future[Any], seconds: float) -> bool:
        return await EventLoopCalls(READERS).wait_for(work, seconds)


def assets_in_memory() -> tuple[Assets, LoopDriver, SnapshotId]:
    """A repository whose snapshot is not cached, through a `LoopDriver`."""
    storage = icefloe.in_memory_storage()
    session = icefloe.Repository.create(storage).writable_session("main")
    zarr.create_group(session.store)
    snapshot_id = SnapshotId.parse(session.commit("a group"))
    driver = LoopDriver(storage.driver(blocking=True))
    settings = icefloe.RepositoryConfig.default().resolved()
    return Assets(driver, settings, Caches(settings)), driver, snapshot_id


Ending = Callable[[asyncio.Task[Any], LoopDriver], None]


def _fail(_first: asyncio.Task[Any], driver: LoopDriver) -> None:
    driver.does_fail = True
    driver.may_go_on.set()


def _cancel(first: asyncio.Task[Any], _driver: LoopDriver) -> None:
    first.cancel()


@pytest.mark.parametrize("end_first", [_fail, _cancel])
def test_who_waits_for_a_load_that_ends_badly_loads_for_itself(end_first: Ending) -> None:
    async def scenario() -> None:
        assets, driver, snapshot_id = assets_in_memory()
        first, *others = [asyncio.create_task(assets.snapshot(snapshot_id)) for _ in range(READERS)]
        await asyncio.sleep(0)
        assert driver.num_reads == 1
        end_first(first, driver)
        found = await asyncio.wait_for(asyncio.gather(*others), 20)
        assert {snapshot.id for snapshot in found} == {snapshot_id}
        with pytest.raises((StorageError, asyncio.CancelledError)):
            await first
        assert assets.loading.claim(["anything else"])[1] == {}

    asyncio.run(scenario())


def test_a_reader_that_gives_up_does_not_disturb_the_load() -> None:
    async def scenario() -> None:
        assets, driver, snapshot_id = assets_in_memory()
        first, second, third = [asyncio.create_task(assets.snapshot(snapshot_id)) for _ in range(3)]
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second], timeout=300)
        assert second.cancelled()
        driver.may_go_on.set()
        found = await asyncio.wait_for(asyncio.gather(first, third), 20)
        assert found[0] is found[1]
        assert driver.num_reads == 1

    asyncio.run(scenario())


def test_loads_are_loaded_by_whoever_claims_them_first() -> None:
    loading = InFlight()
    assert loading.claim(["a", "b"]) == (["a", "b"], {})
    mine, theirs = loading.claim(["b", "c"])
    assert mine == ["c"]
    loading.finish(["a", "b"], {"b": 1})
    assert theirs["b"].result(0) == 1
    assert loading.claim(["a"]) == (["a"], {})


FORKING = """
import os, signal
from icefloe.assets.cache import InFlight

loading = InFlight()
loading.claim(["a"])
loading._lock.acquire()
child = os.fork()
if child == 0:
    signal.alarm(30)
    print(loading.claim(["a"]), flush=True)
    os._exit(0)
print("child ended with", os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_wait_for_its_parents_loads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines() == ["(['a'], {})", "child ended with 0"]
