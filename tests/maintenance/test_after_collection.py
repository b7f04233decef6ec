"""After a collection by another process: what is still there can be used, what is gone cannot.

A repository object that was open all the time remembers snapshots that were collected meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.errors import ErrorKind, IcechunkError, SnapshotNotFoundError
from icefloe.format import layout
from icefloe.ids import SnapshotId
from icefloe.repo import lifecycle, refs, replay
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.replay import ReplayRequest
from icefloe.storage.run import run_blocking
from icefloe.testing.faults import FaultyDriver
from tests.safety.worlds import driver_of, open_handle

SPECS = pytest.mark.parametrize("spec", [1, 2])
FUTURE = timedelta(days=1)


def repository(spec: int, storage: icefloe.Storage | None = None) -> icefloe.Repository:
    """The array `a` on `main`, and a commit on `dev` that sets a[1]."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    storage = storage or icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    session = repo.writable_session("main")
    made = zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="<i8")
    made[:] = 7
    repo.create_branch("dev", session.commit("first"))
    put(repo, "dev", 1, 11)
    return repo


def put(repo: icefloe.Repository, branch: str, at: int, value: int) -> str:
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path="a", mode="r+")[at] = value
    return session.commit(f"a[{at}] = {value}")


def values(repo: icefloe.Repository, branch: str = "main", path: str = "a") -> list[int]:
    found: Any = zarr.open_array(repo.readonly_session(branch).store, path=path, mode="r")
    return [int(each) for each in found[:]]


def collect(repo: icefloe.Repository) -> None:
    """As another process does it, with a cutoff that takes everything unreferenced."""
    icefloe.Repository.open(repo.storage).garbage_collect(datetime.now(UTC) + FUTURE)


# -- chunks that are older than the fence


@SPECS
@pytest.mark.parametrize("verb", ["merge", "cherry_pick", "undo"])
def test_chunks_older_than_a_collection_are_merged_at_the_first_try(spec: int, verb: str) -> None:
    repo = repository(spec)
    picked = repo.lookup_branch("dev")
    undone = put(repo, "main", 0, 5)
    session = repo.writable_session("dev")
    zarr.create_array(session.store, name="new", shape=(2,), chunks=(1,), dtype="<i8")[:] = 3
    session.commit("another array")
    collect(repo)
    driver = FaultyDriver(driver_of(repo.storage))
    opened = open_handle(repo.storage)
    handle = lifecycle.make_handle(repo.storage, driver, opened.format, opened.config, Clock())
    request = ReplayRequest("main")
    if verb == "merge":
        source = handle.snapshot_id(repo.lookup_branch("dev"))
        run_blocking(replay.merge(handle, source, "dev", request))
    elif verb == "cherry_pick":
        run_blocking(replay.cherry_pick(handle, handle.snapshot_id(picked), request))
    else:
        run_blocking(replay.undo(handle, handle.snapshot_id(undone), request))
    uploaded = [one for one in driver.log if one.method.startswith("put")]
    assert sum(one.key.startswith(layout.SNAPSHOTS) for one in uploaded) == 1, uploaded
    collect(repo)
    expected = [7 if verb == "undo" else 5, 7 if verb == "undo" else 11, *[7] * 6]
    assert values(icefloe.Repository.open(repo.storage)) == expected
    if verb == "merge":
        assert values(icefloe.Repository.open(repo.storage), path="new") == [3, 3]
    assert icefloe.Repository.open(repo.storage).verify().is_healthy


def test_chunks_of_a_snapshot_that_no_ref_leads_to_are_not_picked() -> None:
    repo = repository(1)
    picked = repo.lookup_branch("dev")
    other = icefloe.Repository.open(repo.storage)
    # The collection keeps `dev`, so its chunks are older than the fence. Then `dev` goes.
    collect(repo)
    other.delete_branch("dev")
    driver = FaultyDriver(driver_of(repo.storage))
    opened = open_handle(repo.storage)
    handle = lifecycle.make_handle(repo.storage, driver, opened.format, opened.config, Clock())
    before = repo.lookup_branch("main")
    with pytest.raises(SnapshotNotFoundError, match="no branch or tag leads to snapshot"):
        run_blocking(replay.cherry_pick(handle, handle.snapshot_id(picked), ReplayRequest("main")))
    assert repo.lookup_branch("main") == before


@SPECS
def test_a_snapshot_that_was_collected_long_ago_is_not_picked_from_memory(
    tmp_path: Path, spec: int
) -> None:
    """Its chunks are gone, and the session was opened long after the collection."""
    storage = icefloe.local_filesystem_storage(tmp_path / "repository", durable=False)
    repo = repository(spec, storage)
    picked = repo.lookup_branch("dev")
    values(repo, "dev")  # snapshot and manifests are in memory
    repo.delete_branch("dev")
    yesterday = datetime.now(UTC) - FUTURE
    for path in (tmp_path / "repository").rglob("*"):
        if path.is_file() and spec == 1:
            os.utime(path, (yesterday.timestamp(), yesterday.timestamp()))
    cutoff = datetime.now(UTC) - (FUTURE / 2 if spec == 1 else -FUTURE)
    icefloe.Repository.open(storage).garbage_collect(cutoff)
    before = repo.lookup_branch("main")
    with pytest.raises(SnapshotNotFoundError):
        repo.cherry_pick(picked, branch="main")
    assert icefloe.Repository.open(storage).lookup_branch("main") == before


# -- refs at snapshots that were collected


def at_collected(repo: icefloe.Repository, snapshot_id: str) -> list[Callable[[], object]]:
    return [
        lambda: repo.create_branch("new", snapshot_id),
        lambda: repo.create_tag("new", snapshot_id),
        lambda: repo.reset_branch("main", snapshot_id),
    ]


@SPECS
def test_refs_are_not_set_at_a_snapshot_that_another_process_has_collected(spec: int) -> None:
    repo = repository(spec)
    lost = repo.lookup_branch("dev")
    repo.readonly_session(snapshot_id=lost)  # it is in memory
    repo.delete_branch("dev")
    collect(repo)
    tip = repo.lookup_branch("main")
    for change in at_collected(repo, lost):
        with pytest.raises(SnapshotNotFoundError):
            change()
    found = icefloe.Repository.open(repo.storage)
    assert found.list_branches() == {"main"}
    assert found.list_tags() == set()
    assert found.lookup_branch("main") == tip


def test_refs_are_set_at_old_snapshots_that_a_ref_leads_to() -> None:
    repo = repository(1)
    ids = [put(repo, "main", 2, number) for number in range(3)]
    repo.create_tag("kept", repo.lookup_branch("dev"))
    collect(repo)
    repo.delete_branch("dev")
    for number, snapshot_id in enumerate([*ids, repo.lookup_tag("kept")]):
        repo.create_branch(f"b{number}", snapshot_id)
        repo.create_tag(f"t{number}", snapshot_id)
    repo.reset_branch("b0", repo.lookup_tag("kept"))
    collect(repo)
    assert icefloe.Repository.open(repo.storage).verify().is_healthy


def test_a_flushed_snapshot_can_be_tagged_unless_its_objects_were_collected() -> None:
    repo = repository(1)
    collect(repo)
    session = repo.writable_session("dev")
    zarr.open_array(session.store, path="a", mode="r+")[3] = 33
    flushed = session.flush("flushed")
    repo.create_tag("flushed", flushed)
    session = repo.writable_session("dev")
    zarr.open_array(session.store, path="a", mode="r+")[4] = 44
    again = session.flush("flushed again")
    collect(repo)  # takes it
    for change in at_collected(repo, again):
        with pytest.raises(SnapshotNotFoundError):
            change()
    collect(repo)
    assert icefloe.Repository.open(repo.storage).verify().is_healthy


def test_a_flushed_snapshot_whose_base_was_collected_is_not_tagged() -> None:
    """Its own file is young, and the chunks that it shares with its base are gone."""
    repo = repository(1)
    session = repo.writable_session("dev")
    zarr.open_array(session.store, path="a", mode="r+")[3] = 33
    base = repo.lookup_branch("dev")
    flushed = session.flush("flushed")
    repo.delete_branch("dev")
    cutoff = stored(repo)[layout.snapshot_key(SnapshotId.parse(flushed))]
    icefloe.Repository.open(repo.storage).garbage_collect(cutoff)
    keys = stored(repo)
    assert layout.snapshot_key(SnapshotId.parse(flushed)) in keys
    assert layout.snapshot_key(SnapshotId.parse(base)) not in keys
    for change in at_collected(repo, flushed):
        with pytest.raises(SnapshotNotFoundError, match="objects that it needs"):
            change()


def stored(repo: icefloe.Repository) -> dict[str, datetime]:
    return {one.key: one.created_at for one in run_blocking(driver_of(repo.storage).list(""))}


@SPECS
@pytest.mark.parametrize("is_base_gone", [False, True])
def test_a_flush_after_a_collection_is_refused(spec: int, is_base_gone: bool) -> None:
    repo = repository(spec)
    session = repo.writable_session("dev")
    zarr.open_array(session.store, path="a", mode="r+")[3] = 33
    if is_base_gone:
        repo.delete_branch("dev")
    collect(repo)
    if is_base_gone and spec == 1:
        zarr.open_array(session.store, path="a", mode="r+")[3] = 34  # newer than the collection
    with pytest.raises(IcechunkError) as caught:
        session.flush("too late")
    assert is_base_gone or caught.value.kind == ErrorKind.OBJECTS_COLLECTED


def test_a_tag_that_a_collection_has_missed_is_taken_back() -> None:
    """The collection becomes final between the check and the write of the tag."""
    repo = repository(1)
    lost = repo.lookup_branch("dev")
    repo.delete_branch("dev")

    class Overtaken(FaultyDriver):
        async def before(self, method: str, key: str) -> None:
            if (method, key) == ("put_if", layout.tag_key("late")):
                collect(repo)
            await super().before(method, key)

    driver = Overtaken(driver_of(repo.storage))
    opened = open_handle(repo.storage)
    handle: RepoHandle = lifecycle.make_handle(
        repo.storage, driver, opened.format, opened.config, Clock()
    )
    with pytest.raises(SnapshotNotFoundError):
        run_blocking(refs.create_tag(handle, "late", handle.snapshot_id(lost)))
    assert icefloe.Repository.open(repo.storage).list_tags() == set()
