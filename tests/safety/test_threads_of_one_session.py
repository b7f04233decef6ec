"""Threads that share a session or a fork: what they read is right, what they send can be read."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe import PackingConfig, Repository, RepositoryConfig

COUNT = 4000
PACKED = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig())


def repository_of(config: RepositoryConfig | None = None) -> Repository:
    repository = Repository.create(icefloe.in_memory_storage(), config)
    session = repository.writable_session("main")
    for name in ("a", "b"):
        zarr.create_array(
            session.store, name=name, shape=(COUNT,), chunks=(1,), dtype="i4", compressors=None
        )
    session.commit("arrays")
    return repository


def value_of(number: int) -> Any:
    return default_buffer_prototype().buffer.from_bytes(np.int32(number + 1).tobytes())


def start(work: Callable[[], None], problems: list[BaseException]) -> threading.Thread:
    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to see it
            problems.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread


@pytest.mark.parametrize("is_pickled", [True, False])
def test_a_fork_that_another_thread_writes_to_brings_chunks_that_can_be_read(
    *, is_pickled: bool
) -> None:
    repository = repository_of(PACKED)
    session = repository.writable_session("main")
    fork = session.fork()
    store: Any = fork.store
    problems: list[BaseException] = []
    has_begun = threading.Event()

    def write() -> None:
        for number in range(COUNT):
            store.set_sync(f"a/c/{number}", value_of(number))
            if number == 50:
                has_begun.set()

    thread = start(write, problems)
    assert has_begun.wait(60)
    while thread.is_alive():
        session.merge(pickle.loads(pickle.dumps(fork)) if is_pickled else fork)
    thread.join(60)
    assert problems == []
    session.merge(fork)
    session.commit("merged")
    array: Any = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    assert array[:].tolist() == list(range(1, COUNT + 1))


def test_a_snapshot_of_a_fork_holds_what_was_written_before_it() -> None:
    """Committed while the writer goes on: every chunk the commit has can be read."""
    repository = repository_of(PACKED)
    fork = repository.writable_session("main").fork()
    store: Any = fork.store
    problems: list[BaseException] = []

    def write() -> None:
        for number in range(COUNT):
            store.set_sync(f"a/c/{number}", value_of(number))

    thread = start(write, problems)
    sent = []
    while thread.is_alive():
        sent.append(pickle.dumps(fork))
    thread.join(60)
    assert problems == []
    for number, pickled in enumerate(sent[:: max(1, len(sent) // 5)]):
        repository.create_branch(f"b{number}", fork.snapshot_id)
        session = repository.writable_session(f"b{number}")
        session.merge(pickle.loads(pickled))
        session.commit("part", allow_empty=True)
        array: Any = zarr.open_array(session.store, path="a", mode="r")
        found = array[:]
        written = np.flatnonzero(found)
        assert (found[written] == written + 1).all()


def test_reads_go_on_while_the_session_is_committed() -> None:
    repository = repository_of()
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="b")[:] = 5
    session.commit("before")
    for _ in range(10):
        session = repository.writable_session("main")
        store: Any = session.store
        zarr.open_array(session.store, path="b")[:10] = 6
        problems: list[BaseException] = []
        is_done = threading.Event()

        def read(store: Any = store, is_done: threading.Event = is_done) -> None:
            number = 0
            while not is_done.is_set():
                number = (number + 7) % COUNT
                found = store.get_sync(f"b/c/{number}")
                assert found is not None, number
                assert store.get_sync(f"missing{number}/zarr.json") is None

        threads = [start(read, problems) for _ in range(2)]
        session.commit("committed", rebase_with=icefloe.ConflictDetector())
        is_done.set()
        for thread in threads:
            thread.join(60)
        assert problems == []


def test_an_array_deleted_by_another_thread_stops_no_commit() -> None:
    repository = repository_of()
    problems: list[BaseException] = []
    for _ in range(8):
        session = repository.writable_session("main")
        store: Any = session.store
        store.set_sync("a/c/1", value_of(1))

        def touch(session: icefloe.Session = session, store: Any = store) -> None:
            spec = icefloe.VirtualChunkSpec([3], "file:///data", 0, 4)
            try:
                for number in range(200):
                    store.set_sync(f"a/c/{number}", value_of(number))
                    store.set_virtual_refs("a", [spec], validate_containers=False)
                    session.shift_array("/a", [1])
            except icefloe.NodeNotFoundError:
                pass  # it is gone, and the thread is told so

        thread = start(touch, problems)
        store.delete_sync("a/zarr.json")
        thread.join(60)
        assert problems == []
        session.commit("without a")
        branch = repository.lookup_branch("main")
        assert sorted(zarr.open_group(session.store, mode="r")) == ["b"]
        [*_, arrays, _] = repository.ancestry(snapshot_id=branch)
        repository.reset_branch("main", arrays.id)
