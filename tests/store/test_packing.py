"""Chunks that wait in packs: a session shows them at once, and a commit stores all of them."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

from icefloe import (
    BasicConflictSolver,
    ChunkType,
    ConflictDetector,
    ConflictError,
    PackingConfig,
    ReadOnlyError,
    Repository,
    RepositoryConfig,
    Session,
    Storage,
    StorageError,
    StorageRetriesSettings,
    StorageSettings,
    VersionSelection,
    in_memory_storage,
    local_filesystem_storage,
)
from icefloe.api.handles import Handles
from icefloe.config.repository import NO_PACKING, ResolvedPacking
from icefloe.format import layout
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.repo import lifecycle
from icefloe.repo.handle import Clock
from icefloe.repo.session import all_chunks
from icefloe.storage.run import run_blocking
from icefloe.testing.faults import FaultyDriver
from tests.proxy import Seen, misbehaving_proxy
from tests.servers import S3Server

CHUNK = 100  # numbers of 8 bytes
PACK = 10  # chunks


def packing(chunks_per_pack: int = PACK) -> RepositoryConfig:
    section = PackingConfig(
        target_size_bytes=chunks_per_pack * CHUNK * 8, max_chunk_size_bytes=CHUNK * 8
    )
    return RepositoryConfig(packing=section)


def new_array(session: Session, count: int, name: str = "a", **options: Any) -> Any:
    return zarr.create_array(
        session.store,
        name=name,
        shape=(count * CHUNK,),
        chunks=(CHUNK,),
        dtype="<i8",
        compressors=None,
        **options,
    )


def open_array(repository: Repository, name: str = "a") -> Any:
    return zarr.open_array(repository.readonly_session("main").store, path=name, mode="r")


def put(session: Session, key: str, value: bytes) -> None:
    sync(session.store.set(key, cpu.Buffer.from_bytes(value)))


def read(session: Session, key: str, byte_range: Any = None) -> bytes | None:
    found = sync(session.store.get(key, default_buffer_prototype(), byte_range))
    return None if found is None else found.to_bytes()


def contents(session: Session, count: int) -> dict[int, bytes]:
    found = {number: read(session, f"a/c/{number}") for number in range(count)}
    return {number: value for number, value in found.items() if value is not None}


def chunk(number: int) -> bytes:
    return number.to_bytes(8, "little") * CHUNK


def objects(repository: Repository) -> dict[str, int]:
    """The chunk objects that are stored, with their sizes."""
    return dict(repository.storage.list_objects(prefix=layout.CHUNKS))


def refs_of(session: Session, path: str) -> ChunkRefs:
    state, handle = session._state, session._handles.blocking
    return run_blocking(all_chunks(handle, state.view, state.node(path)))


# -- what a session sees


def test_chunks_are_there_before_they_are_stored(storage: Storage) -> None:
    repository = Repository.create(storage, packing())
    session = repository.writable_session("main")
    array, values = new_array(session, 25), np.arange(25 * CHUNK)
    array[:] = values
    assert len(objects(repository)) == 2, "two packs are full, five chunks wait"
    assert np.array_equal(array[:], values)
    assert sync(session.store.exists("a/c/24"))
    assert sync(session.store.getsize("a/c/24")) == CHUNK * 8
    assert session.chunk_type("/a", [24]) == ChunkType.native
    assert read(session, "a/c/24", RangeByteRequest(8, 16)) == values[24 * CHUNK + 1].tobytes()
    assert len(refs_of(session, "/a")) == 25
    session.commit("packed")
    assert np.array_equal(open_array(repository)[:], values)
    stored = objects(repository)
    assert sorted(stored.values()) == [5 * CHUNK * 8, PACK * CHUNK * 8, PACK * CHUNK * 8]
    refs = refs_of(repository.readonly_session("main"), "/a")
    assert refs.chunk_id is not None
    assert len(np.unique(refs.chunk_id, axis=0)) == 3


def test_neighbours_lie_side_by_side_whatever_order_they_were_written_in() -> None:
    repository = Repository.create(in_memory_storage(), packing(100))
    session = repository.writable_session("main")
    new_array(session, 60)
    new_array(session, 60, "b")
    for number in np.random.default_rng(1).permutation(60).tolist():
        put(session, f"a/c/{number}", chunk(number))
        put(session, f"b/c/{number}", chunk(100 + number))
    session.commit("packed")
    for name in ("a", "b"):
        refs = refs_of(repository.readonly_session("main"), f"/{name}")
        ids = np.ascontiguousarray(refs.chunk_id).view("V12").ravel()
        for pack in np.unique(ids):
            inside = refs.offset[ids == pack].astype(int)
            assert set(np.diff(inside)) == {CHUNK * 8}


def test_sizes_decide_what_is_packed() -> None:
    repository = Repository.create(in_memory_storage(), packing())
    session = repository.writable_session("main")
    new_array(session, 4)
    values = [b"i" * 512, b"p" * 513, b"p" * CHUNK * 8, b"l" * (CHUNK * 8 + 1)]
    for number, value in enumerate(values):
        put(session, f"a/c/{number}", value)
    assert list(objects(repository).values()) == [CHUNK * 8 + 1]
    session.commit("all sizes")
    assert sorted(objects(repository).values()) == [CHUNK * 8 + 1, 513 + CHUNK * 8]
    session = repository.readonly_session("main")
    assert [read(session, f"a/c/{number}") for number in range(4)] == values


def test_the_last_of_several_writes_and_deletes_counts(storage: Storage) -> None:
    repository = Repository.create(storage, packing())
    session = repository.writable_session("main")
    new_array(session, 4 * PACK)
    for number in range(PACK + 5):  # ten are stored, five wait
        put(session, f"a/c/{number}", chunk(number))
    for number in (1, PACK + 1):
        put(session, f"a/c/{number}", chunk(77))
    for number in (2, PACK + 2):
        sync(session.store.delete(f"a/c/{number}"))
    put(session, f"a/c/{PACK + 3}", b"inline")
    sync(session.store.delete(f"a/c/{PACK + 4}"))
    put(session, f"a/c/{PACK + 4}", chunk(78))
    expected = {number: chunk(number) for number in range(PACK + 5)}
    expected |= {1: chunk(77), PACK + 1: chunk(77), PACK + 3: b"inline", PACK + 4: chunk(78)}
    del expected[2], expected[PACK + 2]
    assert contents(session, 4 * PACK) == expected
    session.commit("overwritten")
    assert contents(Repository.open(storage).readonly_session("main"), 4 * PACK) == expected
    waited = min(objects(repository).values())
    assert waited == 4 * CHUNK * 8, "chunks 1, 10, 11 and 14: nothing that was replaced is stored"


def test_an_array_deleted_with_waiting_chunks_leaves_nothing() -> None:
    repository = Repository.create(in_memory_storage(), packing())
    session = repository.writable_session("main")
    for _ in range(2):
        new_array(session, 4)[:] = 1
        sync(session.store.delete_dir("a"))
    session.commit("nothing", allow_empty=True)
    assert objects(repository) == {}


def test_discarded_chunks_are_forgotten() -> None:
    repository = Repository.create(in_memory_storage(), packing())
    session = repository.writable_session("main")
    new_array(session, 5)
    session.commit("array")
    session = repository.writable_session("main")
    put(session, "a/c/0", chunk(1))
    session.discard_changes()
    assert session._state.packs.num_bytes == 0
    assert read(session, "a/c/0") is None
    put(session, "a/c/1", chunk(2))
    session.commit("another")
    assert list(objects(repository).values()) == [CHUNK * 8]
    assert read(session, "a/c/1") == chunk(2)


# -- everything that writes a snapshot


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("how", ["commit", "amend", "flush"])
def test_every_way_to_make_a_snapshot_stores_what_waits(how: str, spec_version: int) -> None:
    if how == "amend" and spec_version == 1:
        pytest.skip("version 1 cannot amend")
    repository = Repository.create(in_memory_storage(), packing(), spec_version=spec_version)
    session = repository.writable_session("main")
    new_array(session, 3)
    session.commit("array")
    session = repository.writable_session("main")
    put(session, "a/c/1", chunk(5))
    snapshot = getattr(session, how)("chunks")
    assert read(repository.readonly_session(snapshot_id=snapshot), "a/c/1") == chunk(5)
    assert read(session, "a/c/1") == chunk(5)
    assert read(pickle.loads(pickle.dumps(session)), "a/c/1") == chunk(5)


def test_a_lost_race_keeps_the_chunks() -> None:
    repository = Repository.create(in_memory_storage(), packing())
    session = repository.writable_session("main")
    new_array(session, 3)
    session.commit("array")
    session, other = repository.writable_session("main"), repository.writable_session("main")
    put(session, "a/c/1", chunk(5))
    other.commit("first", allow_empty=True)
    with pytest.raises(ConflictError):
        session.commit("second")
    assert read(session, "a/c/1") == chunk(5)
    put(session, "a/c/2", chunk(6))
    snapshot = session.flush("second, elsewhere")
    session = repository.readonly_session(snapshot_id=snapshot)
    assert [read(session, f"a/c/{number}") for number in (1, 2)] == [chunk(5), chunk(6)]


@pytest.mark.parametrize("winner", ["ours", "theirs"])
def test_a_rebase_keeps_waiting_chunks_or_drops_them_as_the_solver_says(winner: str) -> None:
    repository = Repository.create(in_memory_storage(), packing())
    session = repository.writable_session("main")
    new_array(session, 4)
    session.commit("array")
    session, other = repository.writable_session("main"), repository.writable_session("main")
    for number in (1, 2):
        put(session, f"a/c/{number}", chunk(5))
    for number in (2, 3):
        put(other, f"a/c/{number}", chunk(6))
    other.commit("first")
    version = VersionSelection.UseOurs if winner == "ours" else VersionSelection.UseTheirs
    session.rebase(BasicConflictSolver(on_chunk_conflict=version))
    expected = {1: chunk(5), 2: chunk(5 if winner == "ours" else 6), 3: chunk(6)}
    assert contents(session, 4) == expected
    session.commit("second")
    assert contents(repository.readonly_session("main"), 4) == expected
    sizes = sorted(objects(repository).values())
    assert sizes == [8 * CHUNK * (2 if winner == "ours" else 1), 2 * 8 * CHUNK]


def test_a_commit_with_rebase_stores_waiting_chunks_once() -> None:
    repository = Repository.create(in_memory_storage(), packing())
    session = repository.writable_session("main")
    new_array(session, 4)
    session.commit("array")
    session, other = repository.writable_session("main"), repository.writable_session("main")
    put(session, "a/c/1", chunk(5))
    other.commit("first", allow_empty=True)
    session.commit("second", rebase_with=ConflictDetector())
    assert contents(repository.readonly_session("main"), 4) == {1: chunk(5)}
    assert len(objects(repository)) == 1


def test_pickling_and_merging_a_fork_store_what_waits(tmp_path: Path) -> None:
    storage = local_filesystem_storage(tmp_path, durable=False)
    repository = Repository.create(storage, packing())
    session = repository.writable_session("main")
    new_array(session, 6)
    session.commit("array")
    session = repository.writable_session("main")
    put(session, "a/c/0", chunk(10))
    forks = [session.fork() for _ in range(3)]
    assert len(objects(repository)) == 1, "what a fork starts from is stored"
    for number, fork in enumerate(forks):
        assert read(fork, "a/c/0") == chunk(10)
        put(fork, f"a/c/{1 + number}", chunk(11 + number))
    put(session, "a/c/4", chunk(14))
    sent = pickle.loads(pickle.dumps(forks[0]))
    assert read(sent, "a/c/1") == chunk(11)
    put(sent, "a/c/5", chunk(15))
    session.merge(sent, *forks[1:])
    expected = {number: chunk(10 + number) for number in range(6)}
    assert contents(session, 6) == expected
    session.commit("merged")
    assert contents(Repository.open(storage).readonly_session("main"), 6) == expected


def test_chunks_that_wait_change_places_with_their_array() -> None:
    repository = Repository.create(in_memory_storage(), packing())
    session = repository.writable_session("main")
    new_array(session, 4)
    for number in range(3):
        put(session, f"a/c/{number}", chunk(number))
    session.shift_array("/a", [1])
    put(session, "a/c/0", chunk(9))
    expected = {0: chunk(9), 1: chunk(0), 2: chunk(1), 3: chunk(2)}
    assert contents(session, 4) == expected
    session.commit("shifted")
    assert contents(repository.readonly_session("main"), 4) == expected


# -- failures


def faulty_repository() -> tuple[Repository, FaultyDriver]:
    storage = in_memory_storage()
    Repository.create(storage, packing())
    driver = FaultyDriver(storage.driver(blocking=True))
    handle = run_blocking(lifecycle.open_repository(storage, driver, None, Clock()))
    handles = Handles(handle, is_blocking=True)
    handles._eventloop = handle  # in memory nothing suspends
    return Repository(handles), driver


def test_what_could_not_be_stored_is_stored_by_the_next_chunk_or_the_commit() -> None:
    repository, driver = faulty_repository()
    session = repository.writable_session("main")
    new_array(session, 3 * PACK)
    for number in range(PACK - 1):
        put(session, f"a/c/{number}", chunk(number))
    driver.cut_after = driver.num_requests
    for number in range(PACK - 1, PACK + 5):
        with pytest.raises(StorageError, match="cut off"):
            put(session, f"a/c/{number}", chunk(number))
    held = session._state.packs.num_bytes
    assert held == PACK * CHUNK * 8, "a chunk that is refused is not kept"
    assert read(session, "a/c/3") == chunk(3)
    with pytest.raises(StorageError, match="cut off"):
        session.commit("cannot be")
    assert session.has_uncommitted_changes
    driver.cut_after = None
    put(session, f"a/c/{PACK}", chunk(PACK))
    assert len(objects(repository)) == 1
    session.commit("now it can")
    session = repository.readonly_session("main")
    found = [read(session, f"a/c/{number}") for number in range(PACK + 1)]
    assert found == [chunk(number) for number in range(PACK + 1)]


def test_a_commit_that_could_not_store_its_packs_can_be_repeated(s3_server: S3Server) -> None:
    with misbehaving_proxy(s3_server) as proxy:
        storage = proxy.storage()
        one_try = StorageSettings(retries=StorageRetriesSettings(max_tries=1))
        config = packing().merge(RepositoryConfig(storage=one_try))
        repository = Repository.create(storage, config)
        session = repository.writable_session("main")
        new_array(session, PACK)
        for number in range(PACK - 1):
            put(session, f"a/c/{number}", chunk(number))

        def refuse_chunks(seen: Seen) -> str:
            return "busy" if seen.method == "PUT" and "/chunks/" in seen.path else ""

        proxy.fault = refuse_chunks
        with pytest.raises(StorageError):
            session.commit("refused")
        proxy.fault = lambda _: ""
        assert objects(repository) == {}
        session.commit("accepted")
        assert list(objects(repository).values()) == [(PACK - 1) * CHUNK * 8]
        assert (open_array(repository)[:-CHUNK:CHUNK] == np.arange(PACK - 1)).all()


# -- several at a time


def test_many_threads_write_and_read_one_session(storage: Storage) -> None:
    repository = Repository.create(storage, packing(3))
    session = repository.writable_session("main")
    new_array(session, 8 * 24)
    mistakes: list[str] = []
    is_over = threading.Event()

    def check() -> None:
        while not is_over.is_set():
            for number in range(0, 8 * 24, 7):
                found = read(session, f"a/c/{number}")
                if found not in (None, chunk(number), chunk(1000 + number)):
                    mistakes.append(f"chunk {number}")

    def write(worker: int) -> None:
        for turn in (1000, 0):
            for number in range(worker, 8 * 24, 8):
                put(session, f"a/c/{number}", chunk(turn + number))

    reader = threading.Thread(target=check)
    reader.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
    finally:
        is_over.set()
        reader.join(60)
    assert mistakes == []
    session.commit("by eight")
    values = open_array(Repository.open(storage))[:]
    assert np.array_equal(values, np.repeat(np.arange(8 * 24), CHUNK))


def test_not_more_than_a_few_packs_are_under_way(s3_server: S3Server) -> None:
    repository = Repository.create(s3_server.storage(), packing(1))
    session = repository.writable_session("main")
    new_array(session, 60)
    seen: list[int] = []

    async def write(number: int) -> None:
        await session.store.set(f"a/c/{number}", cpu.Buffer.from_bytes(chunk(number)))

    async def write_all() -> None:
        writing = asyncio.gather(*map(write, range(60)))
        while not writing.done():
            seen.append(session._state.packs.num_bytes)
            await asyncio.sleep(0)
        await writing

    asyncio.run(write_all())
    assert max(seen) == 8 * CHUNK * 8, "eight packs of one chunk"
    session.commit("one by one")
    assert contents(session, 60) == {number: chunk(number) for number in range(60)}


def test_a_commit_in_the_middle_of_writing_refers_to_nothing_that_is_not_stored() -> None:
    """Chunks that come during a commit may miss it, but those in it are whole."""
    storage = in_memory_storage()
    repository = Repository.create(storage, packing(3))
    session = repository.writable_session("main")
    new_array(session, 400)
    session.commit("array")
    for _ in range(5):
        session = repository.writable_session("main")
        go = threading.Event()

        def write(session: Session = session, go: threading.Event = go) -> None:
            for number in range(400):
                if number == 40:
                    go.set()
                if session.read_only:
                    return
                put(session, f"a/c/{number}", chunk(number))

        writer = threading.Thread(target=_until_read_only, args=(write,))
        writer.start()
        assert go.wait(60)
        session.commit("in the middle")
        writer.join(60)
        array = open_array(Repository.open(storage))
        values = array[::CHUNK]
        assert np.array_equal(values[:40], np.arange(40))
        assert set(np.flatnonzero(values)) == set(values[values > 0])


def _until_read_only(write: Any) -> None:
    try:
        write()
    except ReadOnlyError:
        return


# -- the option


def test_packing_is_an_option_of_the_repository(tmp_path: Path) -> None:
    assert RepositoryConfig().resolved().packing == NO_PACKING
    assert RepositoryConfig(packing=PackingConfig()).resolved().packing == ResolvedPacking()
    storage = in_memory_storage()
    Repository.create(storage, packing())
    assert Repository.open(storage).config.packing == packing().packing
    off = RepositoryConfig(packing=PackingConfig(max_chunk_size_bytes=0))
    repository = Repository.open(storage, off)
    session = repository.writable_session("main")
    new_array(session, 3)[:] = 1
    assert len(objects(repository)) == 3
