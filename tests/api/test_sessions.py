"""Sessions: what they see, commit, amend, flush, discard, and answer about chunks."""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe import (
    FIRST_SNAPSHOT_ID,
    ChunkType,
    ConflictError,
    FormatError,
    Repository,
    RepositoryConfig,
    Session,
    SessionMode,
    SessionStateError,
    Storage,
    in_memory_storage,
)
from tests.api.histories import clock_of, make, write

both_versions = pytest.mark.parametrize("spec_version", [1, 2])


def values(session: Session, name: str = "one") -> list[int]:
    found: Any = zarr.open_array(session.store, path=name, mode="r")[:]
    return [int(value) for value in found]


def set_values(session: Session, value: Any, name: str = "one") -> None:
    zarr.open_array(session.store, path=name, mode="r+")[:] = value


def coordinates(session: Session, path: str, **options: Any) -> list[tuple[int, ...]]:
    async def collect() -> list[tuple[int, ...]]:
        return [at async for at in session.chunk_coordinates(path, **options)]

    return asyncio.run(collect())


# -- what a session is


@both_versions
def test_a_writable_session(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    session = repository.writable_session("main")
    assert (session.branch, session.mode) == ("main", SessionMode.writable)
    assert not session.read_only
    assert not session.store.read_only
    assert session.snapshot_id == ids[-1]
    assert not session.has_uncommitted_changes
    assert session.status().is_empty()
    assert session.config == repository.config
    assert session.store is session.store
    assert "read_only: False" in repr(session)


@both_versions
def test_a_committed_session_is_freed_without_a_collection(
    storage: Storage, spec_version: int
) -> None:
    repository, _ = make(storage, spec_version)
    gc.disable()
    try:
        session = repository.writable_session("main")
        session.store.set_virtual_ref(
            "one/c/0", "s3://bucket/key", offset=0, length=8, validate_container=False
        )
        session.commit("changed")
        is_alive = weakref.ref(session)
        del session
        assert is_alive() is None
    finally:
        gc.enable()


@both_versions
def test_read_only_sessions(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    repository.create_tag("v1", ids[2])
    for session, expected in (
        (repository.readonly_session("main"), ids[3]),
        (repository.readonly_session(tag="v1"), ids[2]),
        (repository.readonly_session(snapshot_id=ids[1]), ids[1]),
    ):
        assert session.snapshot_id == expected
        assert session.read_only
        assert session.store.read_only
        assert session.branch is None
        assert session.mode == SessionMode.readonly
        assert values(session) == [0, 1, 2, 3]


@both_versions
def test_a_session_stays_at_its_snapshot(storage: Storage, spec_version: int) -> None:
    repository, _ = make(storage, spec_version)
    reader = repository.readonly_session("main")
    writer = repository.writable_session("main")
    set_values(writer, 7)
    assert values(writer) == [7, 7, 7, 7]
    assert values(reader) == [0, 1, 2, 3]
    writer.commit("sevens")
    assert values(reader) == [0, 1, 2, 3]
    assert values(repository.readonly_session("main")) == [7, 7, 7, 7]


# -- commit


@both_versions
def test_after_a_commit_the_session_reads_the_new_snapshot(
    storage: Storage, spec_version: int
) -> None:
    repository, ids = make(storage, spec_version)
    session = repository.writable_session("main")
    set_values(session, 7)
    assert session.status().updated_chunks == {"/one": [[0], [1]]}
    snapshot = session.commit("sevens", {"a": [1, {"b": None}]})
    assert session.snapshot_id == snapshot == Repository.open(storage).lookup_branch("main")
    assert (session.read_only, session.branch) == (True, None)
    assert not session.has_uncommitted_changes
    assert session.store.read_only
    assert values(session) == [7, 7, 7, 7]
    info = repository.lookup_snapshot(snapshot)
    assert (info.message, info.metadata, info.parent_id) == (
        "sevens",
        {"a": [1, {"b": None}]},
        ids[-1],
    )


@both_versions
def test_an_empty_commit_has_to_be_asked_for(spec_version: int) -> None:
    repository, ids = make(in_memory_storage(), spec_version)
    session = repository.writable_session("main")
    with pytest.raises(SessionStateError):
        session.commit("nothing")
    assert not session.read_only
    snapshot = session.commit("nothing", allow_empty=True)
    assert repository.lookup_snapshot(snapshot).parent_id == ids[-1]
    assert repository.diff(from_snapshot_id=ids[-1], to_snapshot_id=snapshot).is_empty()


@both_versions
def test_who_commits_second_is_told_both_parents(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    slow = repository.writable_session("main")
    set_values(slow, 7)
    tip = write(Repository.open(storage), "four")
    with pytest.raises(ConflictError) as caught:
        slow.commit("too late")
    assert caught.value.kind == "commit-conflict"
    assert (caught.value.expected_parent, caught.value.actual_parent) == (ids[-1], tip)
    assert slow.has_uncommitted_changes
    assert values(slow) == [7, 7, 7, 7]
    assert [info.id for info in repository.ancestry(branch="main")] == [tip, *ids[::-1]]


@both_versions
def test_commits_to_different_branches_do_not_conflict(spec_version: int) -> None:
    repository, ids = make(in_memory_storage(), spec_version)
    repository.create_branch("dev", ids[-1])
    session = repository.writable_session("dev")
    set_values(session, 7)
    write(repository, "four")
    session.commit("on dev")
    assert values(repository.readonly_session("main")) == [0, 1, 2, 3]
    assert values(repository.readonly_session("dev")) == [7, 7, 7, 7]


@both_versions
def test_changes_of_every_kind_survive_a_commit(storage: Storage, spec_version: int) -> None:
    repository, _ = make(storage, spec_version)
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    array: Any = root["one"]
    array.resize((6,))
    array[4:] = [8, 9]
    array.attrs["units"] = "K"
    del root["two"]
    root.create_group("deep/er", attributes={"a": 1})
    root.create_array("scalar", shape=(), dtype="f8")[()] = 1.5
    root.create_array("large", shape=(2000,), chunks=(1000,), dtype="u1", compressors=None)[:] = 1
    root.create_array("empty", shape=(0, 3), chunks=(1, 3), dtype="i2")
    session.commit("all kinds")
    found: Any = zarr.open_group(Repository.open(storage).readonly_session("main").store, mode="r")
    assert sorted(found.keys()) == ["deep", "empty", "large", "one", "scalar", "three"]
    assert found["one"][:].tolist() == [0, 1, 2, 3, 8, 9]
    assert found["one"].attrs["units"] == "K"
    assert found["deep/er"].attrs["a"] == 1
    assert found["scalar"][()] == 1.5
    assert np.all(found["large"][:] == 1)
    assert found["empty"].shape == (0, 3)


# -- amend


def test_amending_replaces_the_tip(storage: Storage) -> None:
    repository, ids = make(storage)
    session = repository.writable_session("main")
    set_values(session, 7)
    amended = session.amend("three and sevens", metadata={"a": 1})
    assert session.read_only
    assert session.snapshot_id == amended == repository.lookup_branch("main")
    history = [info.id for info in Repository.open(storage).ancestry(branch="main")]
    assert history == [amended, ids[2], ids[1], ids[0]]
    assert repository.lookup_snapshot(amended).message == "three and sevens"
    found = repository.diff(from_snapshot_id=ids[2], to_snapshot_id=amended)
    assert found.new_arrays == {"/three"}
    assert found.updated_chunks == {"/one": [[0], [1]], "/three": [[0], [1]]}
    assert values(repository.readonly_session("main"), "three") == [0, 1, 2, 3]


def test_amending_only_the_message() -> None:
    repository, ids = make(in_memory_storage())
    amended = repository.writable_session("main").amend("better words", allow_empty=True)
    [tip, parent, *_] = repository.ancestry(branch="main")
    assert (tip.id, tip.message, parent.id) == (amended, "better words", ids[2])


def test_amending_a_tip_that_moved_is_a_conflict() -> None:
    repository, ids = make(in_memory_storage())
    session = repository.writable_session("main")
    set_values(session, 7)
    tip = write(repository, "four")
    with pytest.raises(ConflictError) as caught:
        session.amend("too late")
    assert (caught.value.expected_parent, caught.value.actual_parent) == (ids[-1], tip)
    assert session.has_uncommitted_changes


# -- flush and discard


@both_versions
def test_a_flushed_snapshot_belongs_to_no_branch(storage: Storage, spec_version: int) -> None:
    repository, ids = make(storage, spec_version)
    session = repository.writable_session("main")
    set_values(session, 7)
    snapshot = session.flush("aside", metadata={"a": 1})
    assert repository.lookup_branch("main") == ids[-1]
    assert session.read_only
    found = Repository.open(storage).readonly_session(snapshot_id=snapshot)
    assert values(found) == [7, 7, 7, 7]
    info = repository.lookup_snapshot(snapshot)
    assert (info.message, info.metadata, info.parent_id) == ("aside", {"a": 1}, ids[-1])
    repository.create_branch("from-flush", snapshot)
    write(repository, "four", "from-flush")
    history = [info.id for info in repository.ancestry(branch="from-flush")]
    assert history[1:] == [snapshot, *ids[::-1]]


def test_an_empty_flush_is_allowed() -> None:
    repository, ids = make(in_memory_storage())
    snapshot = repository.writable_session("main").flush("nothing")
    assert repository.lookup_snapshot(snapshot).parent_id == ids[-1]


@both_versions
def test_discarded_changes_are_gone(spec_version: int) -> None:
    repository, ids = make(in_memory_storage(), spec_version)
    session = repository.writable_session("main")
    set_values(session, 7)
    zarr.open_group(session.store, mode="a").create_group("new")
    zarr.open_group(session.store, mode="a").__delitem__("two")
    session.discard_changes()
    assert not session.has_uncommitted_changes
    assert session.status().is_empty()
    assert values(session) == [0, 1, 2, 3]
    root = zarr.open_group(session.store, mode="r")
    assert sorted(root.keys()) == ["one", "three", "two"]
    assert session.snapshot_id == ids[-1]
    set_values(session, 8)
    session.commit("eights")
    assert values(repository.readonly_session("main")) == [8, 8, 8, 8]


@both_versions
def test_status_tells_uncommitted_changes(spec_version: int) -> None:
    repository, _ = make(in_memory_storage(), spec_version)
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_group("new")
    root.create_array("fresh", shape=(2,), dtype="i4")[:] = 1
    array: Any = root["one"]
    array[0] = 5
    array.attrs["a"] = 1
    del root["two"]
    status = session.status()
    assert status.new_groups == {"/new"}
    assert status.new_arrays == {"/fresh"}
    assert status.updated_arrays == {"/one"}
    assert status.deleted_arrays == {"/two"}
    assert status.updated_chunks == {"/one": [[0]], "/fresh": [[0]]}
    session.commit("all of it")
    assert session.status().is_empty()


# -- questions about nodes and chunks


@both_versions
def test_chunks_and_nodes_are_told(storage: Storage, spec_version: int) -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=10)
    repository = Repository.create(storage, config, spec_version=spec_version)
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    array = root.create_array(
        "deep/a", shape=(20, 30), chunks=(10, 10), dtype="u1", compressors=None
    )
    small = root.create_array("small", shape=(4,), chunks=(2,), dtype="u1", compressors=None)
    array[:10, :20] = 1
    array[10:, 20:] = 2
    small[2:] = 1
    root.create_array("scalar", shape=(), dtype="u1")[()] = 3
    for found in (session, _committed(session)):
        assert coordinates(found, "/deep/a") == [(0, 0), (0, 1), (1, 2)]
        assert coordinates(found, "/deep/a", batch_size=2) == [(0, 0), (0, 1), (1, 2)]
        assert coordinates(found, "/small") == [(1,)]
        assert coordinates(found, "/scalar") == [()]
        assert found.chunk_type("/deep/a", [0, 0]) == ChunkType.native
        assert found.chunk_type("/deep/a", (1, 0)) == ChunkType.uninitialized
        assert found.chunk_type("/small", [1]) == ChunkType.inline
        assert found.chunk_type("/small", [0]) == ChunkType.uninitialized
        assert found.chunk_type("/small", [100]) == ChunkType.uninitialized
        assert found.all_virtual_chunk_locations() == []
    ids = {path: session.get_node_id(path) for path in ("/", "/deep", "/deep/a", "/small")}
    assert len(set(ids.values())) == 4
    again = repository.writable_session("main")
    zarr.open_array(again.store, path="small", mode="r+")[:] = 0
    again.commit("changed")
    assert again.get_node_id("/small") == ids["/small"]


def _committed(session: Session) -> Session:
    session.commit("written")
    return session


# -- pickling


@both_versions
def test_read_only_sessions_pickle_and_writable_ones_do_not(
    storage: Storage, spec_version: int
) -> None:
    repository, ids = make(storage, spec_version)
    writable = repository.writable_session("main")
    for refused in (writable, writable.store, writable.store.with_read_only(read_only=True)):
        with pytest.raises(ValueError, match="cannot be pickled"):
            pickle.dumps(refused)
    reader = repository.readonly_session(snapshot_id=ids[1])
    loaded = pickle.loads(pickle.dumps(reader))
    assert loaded == reader
    assert loaded.snapshot_id == ids[1]
    assert loaded.read_only
    assert values(loaded) == [0, 1, 2, 3]
    store = pickle.loads(pickle.dumps(reader.store))
    assert store == reader.store
    assert type(store) is type(reader.store)
    found = asyncio.run(store.get("one/zarr.json", default_buffer_prototype()))
    assert found is not None


@both_versions
def test_a_session_that_committed_pickles(spec_version: int) -> None:
    repository, _ = make(in_memory_storage(), spec_version)
    session = repository.writable_session("main")
    set_values(session, 7)
    session.commit("sevens")
    assert values(pickle.loads(pickle.dumps(session))) == [7, 7, 7, 7]


# -- the clock


@both_versions
@pytest.mark.parametrize("method", ["commit", "flush"])
def test_a_commit_before_its_parent_is_refused(spec_version: int, method: str) -> None:
    repository, ids = make(in_memory_storage(), spec_version)
    session = repository.writable_session("main")
    set_values(session, 7)
    with clock_of(repository) as clock:
        clock.ahead_us = -60_000_000
        with pytest.raises(FormatError, match="set the clock right") as caught:
            getattr(session, method)("before")
        assert caught.value.kind == "snapshot-timestamp"
        assert session.has_uncommitted_changes
        assert repository.lookup_branch("main") == ids[-1]
        clock.ahead_us = 0
        getattr(session, method)("now")


@both_versions
@pytest.mark.parametrize("minutes", [-11, 11])
def test_a_commit_far_from_the_storage_clock_is_refused(
    storage: Storage, spec_version: int, minutes: int
) -> None:
    repository = Repository.create(storage, spec_version=spec_version)
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a")
    with clock_of(repository) as clock:
        clock.ahead_us = minutes * 60_000_000
        with pytest.raises(FormatError, match="set the clock right") as caught:
            session.commit("another time")
    assert caught.value.kind == "snapshot-timestamp"
    assert Repository.open(storage).lookup_branch("main") == FIRST_SNAPSHOT_ID.text
    session.commit("now")


@both_versions
def test_a_commit_a_little_ahead_is_fine(spec_version: int) -> None:
    repository, _ = make(in_memory_storage(), spec_version)
    session = repository.writable_session("main")
    set_values(session, 7)
    with clock_of(repository) as clock:
        clock.ahead_us = 9 * 60_000_000
        session.commit("nine minutes ahead")
    assert values(repository.readonly_session("main")) == [7, 7, 7, 7]


def test_asking_for_what_is_not_there_costs_no_memory() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    view = session._state.view
    for number in range(1000):
        assert view.find_node(f"/missing/{number}") is None
    assert not view._nodes
