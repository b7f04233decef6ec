"""Writers that are older than a collection: they commit, or they are told why not."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.repo import commit, lifecycle
from icefloe.repo import session as sessions
from icefloe.repo.handle import Clock
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.faults import FaultyDriver
from tests.places import KINDS, fresh_storage
from tests.safety.worlds import NATIVE_CHUNK, driver_of, open_handle

FUTURE = timedelta(days=1)
SPECS = pytest.mark.parametrize("spec", [1, 2])


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
        handle = lifecycle.make_handle(repo.storage, driver, opened.format, opened.config, Clock())
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
