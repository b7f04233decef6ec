"""Repositories to break: copies of one that has a bit of everything, and what can be seen of it.

Storage is copied object by object, so every test starts from the same bytes; `portrait` shows
all that a user can see of a repository, apart from ids and times that differ from run to run.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.api.handles import Handles
from icefloe.format import layout
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.repo import lifecycle
from icefloe.repo import session as sessions
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.driver import Driver
from icefloe.storage.locations import LocalLocation
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations

Objects = dict[str, bytes]
Portrait = dict[str, Any]

NATIVE_CHUNK = 200  # numbers of 8 bytes: above the size up to which chunks go into the manifest


def new_storage(kind: str, folder: Path) -> Storage:
    """An empty place, in memory or in a new folder below `folder`."""
    if kind == "memory":
        return icefloe.in_memory_storage()
    number = len(list(folder.iterdir())) if folder.exists() else 0
    return icefloe.local_filesystem_storage(folder / str(number))


def driver_of(storage: Storage) -> Driver:
    return storage.driver(blocking=True)


def read_objects(storage: Storage) -> Objects:
    """All that is stored."""
    driver = driver_of(storage)
    listed = run_blocking(driver.list(""))
    return {entry.key: bytes(run_blocking(driver.get(entry.key))) for entry in listed}


def write_objects(storage: Storage, objects: Objects) -> None:
    """Store objects, without waiting for the disk: they are what was there long before."""
    location = storage.location
    if isinstance(location, LocalLocation):
        storage = icefloe.local_filesystem_storage(location.path, durable=False)
    run_blocking(driver_of(storage).put_many(list(objects.items())))


@cache
def furnished(spec: int, *, has_config: bool = False) -> Objects:
    """A repository with two commits on `main`, the branch `side`, and the tags `old` and `dead`."""
    storage = icefloe.in_memory_storage()
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=100) if has_config else None
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    session = repo.writable_session("main")
    top = zarr.create_group(session.store, attributes={"title": "furnished"})
    shape = (4 * NATIVE_CHUNK,)
    native = top.create_array("native", shape=shape, chunks=(NATIVE_CHUNK,), dtype="<i8")
    native[:] = np.arange(1, shape[0] + 1)
    top.create_array("inline", shape=(4,), chunks=(1,), dtype="<i8")[:] = 1
    top.create_array("doomed", shape=(2,), chunks=(1,), dtype="<i8")[:] = 1
    first = session.commit("first", {"n": 1})
    repo.create_tag("old", first)
    repo.create_tag("dead", first)
    repo.delete_tag("dead")
    repo.create_branch("side", first)
    for branch in ("main", "side"):
        session = repo.writable_session(branch)
        zarr.open_array(session.store, path="inline", mode="r+")[0] = 2
        session.commit(f"second on {branch}", {"n": 2})
    return read_objects(storage)


def copy_of(spec: int, kind: str, folder: Path, *, has_config: bool = False) -> Storage:
    """A fresh copy of the furnished repository."""
    storage = new_storage(kind, folder)
    write_objects(storage, furnished(spec, has_config=has_config))
    return storage


def open_handle(storage: Storage, driver: Driver | None = None) -> RepoHandle:
    """A handle with caches of its own, like another process has."""
    opening = lifecycle.open_repository(storage, driver or driver_of(storage), None, Clock())
    return run_blocking(opening)


# -- what can be seen


def portrait(storage: Storage) -> Portrait:
    """All a user can see, checked for soundness on the way."""
    handle = open_handle(storage)
    repo = icefloe.Repository(Handles(handle, is_blocking=True))
    config = icefloe.Repository.fetch_config(storage)
    seen: Portrait = {
        "spec": repo.spec_version,
        "config": config or icefloe.RepositoryConfig(),
        "branches": {},
        "tags": {},
        "retired tags": _retired_tags(storage, handle),
    }
    for name in sorted(repo.list_branches()):
        seen["branches"][name] = _seen_at(repo, handle, repo.lookup_branch(name))
    for name in sorted(repo.list_tags()):
        seen["tags"][name] = _seen_at(repo, handle, repo.lookup_tag(name))
    if repo.spec_version > 1:
        status = repo.get_status()
        seen |= {
            "metadata": repo.get_metadata(),
            "status": (status.availability, status.limited_availability_reason),
            "flags": repo.feature_flags(),
            "operations": _operations(repo),
            "snapshots": _all_snapshots(handle),
        }
    return seen


def contents(handle: RepoHandle, snapshot_id: str) -> dict[str, bytes]:
    """Every key of a snapshot with its value."""
    state = run_blocking(sessions.open_readonly(handle, SnapshotId.parse(snapshot_id)))
    found = {}
    for key in run_blocking(operations.list_prefix(Workspace(handle, state), "")):
        value = run_blocking(operations.get(Workspace(handle, state), key))
        assert value is not None, f"{key} is listed in snapshot {snapshot_id} and not there"
        found[key] = bytes(value)
    return found


def _seen_at(repo: icefloe.Repository, handle: RepoHandle, tip: str) -> Any:
    history = list(repo.ancestry(snapshot_id=tip))
    ids = [entry.id for entry in history]
    assert len(set(ids)) == len(ids)
    assert [entry.parent_id for entry in history] == [*ids[1:], None]
    assert ids[-1] == FIRST_SNAPSHOT_ID.text
    times = [entry.written_at for entry in history]
    assert times == sorted(times, reverse=True)
    for newer, older in pairwise(ids):
        repo.diff(from_snapshot_id=older, to_snapshot_id=newer)  # its transaction log is there
    return [(entry.message, entry.metadata) for entry in history], contents(handle, tip)


def _retired_tags(storage: Storage, handle: RepoHandle) -> set[str]:
    if handle.format.spec_version > 1:
        return set(run_blocking(handle.assets.repo_object()).info.deleted_tags)
    keys = [key for key, _ in storage.list_objects(prefix=layout.REFS) if key.endswith(".deleted")]
    return {key.removeprefix("tag.").partition("/")[0] for key in keys}


def _operations(repo: icefloe.Repository) -> list[str]:
    """The whole log; one that breaks off in the middle does not end with the beginning."""
    kinds = [type(entry.kind).__name__ for entry in repo.ops_log()]
    assert kinds[-1] == "RepoInitialized"
    assert kinds.count("RepoInitialized") == 1
    return kinds


def _all_snapshots(handle: RepoHandle) -> list[str]:
    """The messages of all snapshots, also of those that no branch leads to."""
    info = run_blocking(handle.assets.repo_object()).info
    for snapshot_id in info.snapshots:
        assert run_blocking(handle.assets.snapshot(snapshot_id)).id == snapshot_id
    return sorted(info.snapshots[key].message for key in info.snapshots)
