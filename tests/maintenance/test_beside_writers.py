"""Collections and expirations beside writers, in many orders of their storage calls, and cut off.

After every order whatever a branch or tag leads to can be read. A commit happened as a whole, or
its writer was told why not.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import ConflictError, ErrorKind, SessionStateError
from icefloe.ids import SnapshotId
from icefloe.maintenance import collect, expire
from icefloe.maintenance.collect import Options
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.retention import Rules
from icefloe.repo import commit, lifecycle, sessions
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.sessions import SessionState
from icefloe.repo.workspace import Workspace
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.faults import FaultyDriver
from icefloe.testing.schedule import Case, StepDriver, some_schedules
from tests.places import KINDS, fresh_storage
from tests.safety.worlds import (
    NATIVE_CHUNK,
    contents,
    copy_of,
    driver_of,
    open_handle,
    portrait,
    read_objects,
)

FUTURE = timedelta(days=1)
SPECS = pytest.mark.parametrize("spec", [1, 2])
Work = Callable[[RepoHandle], Coroutine[Any, Any, Any]]


def silent() -> Reporter:
    return Reporter(lambda _: None)


def cut() -> int:
    return Clock().now_us() + 86_400_000_000


async def collects(handle: RepoHandle) -> Any:
    return await collect.collect_garbage(handle, Options(cut()), silent())


async def expires(handle: RepoHandle) -> Any:
    return await expire.expire_snapshots(handle, Rules(older_than=cut()))


async def set_chunk(handle: RepoHandle, state: SessionState, at: int, value: int) -> None:
    data = value.to_bytes(8, "little") * NATIVE_CHUNK
    await operations.set_key(Workspace(handle, state), f"native/c/{at}", data)


async def commits(handle: RepoHandle) -> SnapshotId:
    state = await sessions.open_writable(handle, "main")
    await set_chunk(handle, state, 1, 77)
    return await commit.commit(Workspace(handle, state), "beside", None)


async def amends(handle: RepoHandle) -> SnapshotId:
    state = await sessions.open_writable(handle, "side")
    await set_chunk(handle, state, 2, 78)
    return await commit.amend(Workspace(handle, state), "beside", None)


async def flushes(handle: RepoHandle) -> SnapshotId:
    state = await sessions.open_writable(handle, "side")
    await set_chunk(handle, state, 2, 79)
    return await commit.flush(Workspace(handle, state), "beside", None)


async def resets(handle: RepoHandle) -> None:
    tip = await handle.family.lookup_tag(handle, "old")
    await handle.family.reset_branch(handle, "main", tip, None)


def race(spec: int, *works: Work) -> Callable[[], Case[Storage]]:
    def make() -> Case[Storage]:
        storage = copy_of(spec, "memory", Path())
        return Case(storage, [start(storage, work) for work in works])

    def start(storage: Storage, work: Work) -> Coroutine[Any, Any, Any]:
        opened = open_handle(storage)
        driver = StepDriver(driver_of(storage))
        handle = lifecycle.make_handle(storage, driver, opened.family, opened.config, Clock())
        return work(handle)

    return make


def check_outcome(storage: Storage, results: dict[int, Any]) -> None:
    """Nothing that is led to is missing; every snapshot that was reported is there."""
    for result in results.values():
        if isinstance(result, SessionStateError):
            assert result.kind == ErrorKind.OBJECTS_COLLECTED
        elif isinstance(result, Exception):
            assert isinstance(result, ConflictError), result
    handle = open_handle(storage)
    tips = run_blocking(handle.family.branches(handle)) | run_blocking(handle.family.tags(handle))
    for tip in tips.values():
        contents(handle, tip.text)
        for entry in run_blocking(handle.family.ancestry(handle, tip)):
            contents(handle, entry.id.text)
    if handle.family.has_repo_object:
        for one in run_blocking(handle.assets.repo_object()).info.snapshots:
            contents(handle, one.text)


RACES: dict[str, tuple[tuple[int, ...], tuple[Work, ...]]] = {
    "commit": ((1, 2), (collects, commits)),
    "amend": ((2,), (collects, amends)),
    "flush": ((2,), (collects, flushes)),
    "expiration": ((1, 2), (collects, expires)),
    "collection": ((1, 2), (collects, collects)),
    "reset and commit": ((2,), (collects, resets, commits)),
    "expiration and commit": ((2,), (collects, expires, commits)),
}
CASES = [(name, spec) for name, (specs, _) in RACES.items() for spec in specs]


@pytest.mark.parametrize(("name", "spec"), CASES)
def test_nothing_in_use_is_deleted_in_any_order(name: str, spec: int) -> None:
    for outcome in some_schedules(race(spec, *RACES[name][1]), number=12, seed=5):
        check_outcome(outcome.world, outcome.results)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "spec"), CASES)
def test_nothing_in_use_is_deleted_in_many_orders(name: str, spec: int) -> None:
    for outcome in some_schedules(race(spec, *RACES[name][1]), number=600, seed=6):
        check_outcome(outcome.world, outcome.results)


# -- a writer that is older than the cut


def repository(storage: Storage, spec: int) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(4 * NATIVE_CHUNK,), chunks=(NATIVE_CHUNK,), dtype="<i8"
    )
    array[:] = np.arange(1, 1 + 4 * NATIVE_CHUNK)
    session.commit("first")
    return repo


def write(session: Any, value: int, at: int = 0) -> None:
    zarr.open_array(session.store, path="a", mode="r+")[at] = value


def read(repo: icefloe.Repository) -> list[int]:
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    found: list[int] = np.asarray(array[:]).tolist()
    return found


@SPECS
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_whose_objects_were_collected_is_told(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, spec: int
) -> None:
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    repo = repository(fresh_storage(kind, tmp_path, server), spec)
    before = read(repo)
    slow = repo.writable_session("main")
    write(slow, -1)
    fork = repo.writable_session("main").fork()
    write(fork, -2)
    sent = pickle.dumps(fork)
    idle = repo.writable_session("main")
    other = icefloe.Repository.open(repo.storage)
    assert other.garbage_collect(datetime.now(UTC) + FUTURE).chunks_deleted == 2
    with pytest.raises(SessionStateError, match="Nothing was committed") as caught:
        slow.commit("too late")
    assert caught.value.kind == ErrorKind.OBJECTS_COLLECTED
    # The chunks of the fork are older than the session that they are merged into.
    late = icefloe.Repository.open(repo.storage).writable_session("main")
    late.merge(pickle.loads(sent))
    with pytest.raises(SessionStateError) as caught:
        late.commit("too late as well")
    assert caught.value.kind == ErrorKind.OBJECTS_COLLECTED
    assert read(icefloe.Repository.open(repo.storage)) == before
    if kind == "s3":
        return  # its clock has whole seconds: what follows would have to wait for the next one
    write(idle, -3)  # after the collection: a session that was open meanwhile is not in danger
    idle.commit("written afterwards")
    assert read(icefloe.Repository.open(repo.storage))[0] == -3


@SPECS
def test_a_commit_on_top_of_a_collection_asks_for_nothing_more(spec: int) -> None:
    """A session that was opened after it."""
    repo = repository(icefloe.in_memory_storage(), spec)
    numbers = []
    for number in range(3):
        if number == 2:
            repo.garbage_collect(datetime.now(UTC) - FUTURE)
        driver = FaultyDriver(driver_of(repo.storage))
        opened = open_handle(repo.storage)
        handle = lifecycle.make_handle(repo.storage, driver, opened.family, opened.config, Clock())
        state = run_blocking(sessions.open_writable(handle, "main"))
        chunk = bytes([number + 1]) * 8 * NATIVE_CHUNK
        run_blocking(operations.set_key(Workspace(handle, state), "a/c/0", chunk))
        run_blocking(commit.commit(Workspace(handle, state), "more", None))
        numbers.append(driver.num_requests)
    assert len(set(numbers)) == 1


def test_a_collection_by_official_is_noticed(official: Any, tmp_path: Path) -> None:
    repo = repository(fresh_storage("local", tmp_path), 2)
    slow = repo.writable_session("main")
    write(slow, -1)
    place = official.local_filesystem_storage(str(tmp_path / "repository"))
    assert official.Repository.open(place).garbage_collect(datetime.now(UTC)).chunks_deleted == 1
    with pytest.raises(SessionStateError) as caught:
        slow.commit("too late")
    assert caught.value.kind == ErrorKind.OBJECTS_COLLECTED


def test_chunks_that_were_only_moved_are_not_taken_for_lost() -> None:
    repo = repository(icefloe.in_memory_storage(), 2)
    slow = repo.writable_session("main")
    slow.shift_array("/a", (1,))
    icefloe.Repository.open(repo.storage).garbage_collect(datetime.now(UTC) + FUTURE)
    # Manifests and snapshot of the commit are younger than the collection, the chunks older.
    slow.commit("shifted")
    assert read(icefloe.Repository.open(repo.storage))[NATIVE_CHUNK] == 1


# -- cut off after every request


@SPECS
@pytest.mark.parametrize("kind", ["memory", pytest.param("local", marks=pytest.mark.long)])
@pytest.mark.parametrize("work", [collects, expires], ids=["collect", "expire"])
def test_a_crash_after_any_request_does_no_harm(
    tmp_path: Path, kind: str, spec: int, work: Work
) -> None:
    whole = copy_of(spec, kind, tmp_path)
    leave_garbage(whole)
    objects = read_objects(whole)
    expected_refs = {key: portrait(whole)[key] for key in ("branches", "tags", "retired tags")}
    run_blocking(work(open_handle(whole)))
    after = seen_refs(whole)
    number = 0
    while True:
        storage = copy_of(spec, kind, tmp_path)
        run_blocking(driver_of(storage).put_many(list(objects.items())))
        opened = open_handle(storage)
        driver = FaultyDriver(driver_of(storage), cut_after=number)
        handle = lifecycle.make_handle(storage, driver, opened.family, opened.config, Clock())
        with contextlib.suppress(icefloe.IcechunkError):
            run_blocking(work(handle))
        if work is collects:
            assert seen_refs(storage) == expected_refs
        check_outcome(storage, {})
        is_done = not driver.num_refused
        run_blocking(work(open_handle(storage)))  # it can be done again
        assert seen_refs(storage) == after
        if work is collects:
            assert kept(storage) == kept(whole)
        if is_done:
            break
        number += 1
    assert number >= 3


def leave_garbage(storage: Storage) -> None:
    """A session that nobody heard of again, and a branch that was reset."""
    repo = icefloe.Repository.open(storage)
    repo.reset_branch("side", repo.lookup_tag("old"))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="native", mode="r+")[0] = -5


def seen_refs(storage: Storage) -> dict[str, Any]:
    return {key: portrait(storage)[key] for key in ("branches", "tags", "retired tags")}


def kept(storage: Storage) -> set[str]:
    folders = ("snapshots/", "manifests/", "chunks/", "transactions/")
    return {key for key in read_objects(storage) if key.startswith(folders)}
