"""Repairs and rescues that are cut off after every request, or run beside others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import ConflictError
from icefloe.format import layout
from icefloe.ids import ChunkId
from icefloe.maintenance import repair, rescue
from icefloe.repo import commit, lifecycle
from icefloe.repo import session as sessions
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.faults import FaultyDriver
from icefloe.testing.schedule import Case, StepDriver, some_schedules
from tests.safety.worlds import (
    NATIVE_CHUNK,
    copy_of,
    driver_of,
    open_handle,
    read_objects,
    write_objects,
)

SPECS = pytest.mark.parametrize("spec", [1, 2])
Work = Callable[[RepoHandle], Coroutine[Any, Any, Any]]


def opened(storage: Storage, driver: Driver | None = None) -> RepoHandle:
    opening = rescue.open_damaged(storage, driver or driver_of(storage), None, Clock())
    return run_blocking(opening)


def plain(storage: Storage) -> list[int]:
    store = icefloe.Repository.open(storage).readonly_session("main").store
    array: Any = zarr.open_array(store, path="plain", mode="r")
    found: list[int] = array[:].tolist()
    return found


def without_chunks(spec: int) -> Storage:
    """Two chunks of `plain` are lost, and the manifest of `inline` is damaged."""
    storage = copy_of(spec, "memory", Path())
    session = icefloe.Repository.open(storage).writable_session("main")
    shape = (4 * NATIVE_CHUNK,)
    plain = zarr.create_array(
        session.store,
        name="plain",
        shape=shape,
        chunks=(NATIVE_CHUNK,),
        dtype="<i8",
        compressors=None,
    )
    plain[:] = np.arange(1, shape[0] + 1)
    session.commit("plain")
    handle = open_handle(storage)
    state = run_blocking(sessions.open_writable(handle, "main"))
    (ref,) = state.array("/plain")[1].manifests
    refs = run_blocking(handle.assets.manifest(ref.id, 0)).arrays[0].refs
    lost = [layout.chunk_key(ChunkId(refs.row(row).chunk_id or b"")) for row in (0, 2)]
    run_blocking(driver_of(storage).delete_many(lost))
    (inline,) = state.array("/inline")[1].manifests
    run_blocking(driver_of(storage).put(layout.manifest_key(inline.id), b"damaged"))
    return storage


async def repairs(handle: RepoHandle) -> Any:
    plan = await repair.plan_repair(handle, "main", virtual_sources=False)
    return await repair.run_repair(handle, plan, None)


async def commits(handle: RepoHandle) -> Any:
    state = await sessions.open_writable(handle, "main")
    data = (77).to_bytes(8, "little") * NATIVE_CHUNK
    await operations.set_key(Workspace(handle, state), "plain/c/1", data)
    return await commit.commit(Workspace(handle, state), "beside", None)


def repaired(storage: Storage) -> bool:
    handle = open_handle(storage)
    return run_blocking(repair.plan_repair(handle, "main", virtual_sources=False)).is_empty


@SPECS
def test_a_repair_can_be_cut_off_anywhere(spec: int) -> None:
    damaged = without_chunks(spec)
    objects = read_objects(damaged)
    before = icefloe.Repository.open(damaged).lookup_branch("main")
    plan = run_blocking(repair.plan_repair(open_handle(damaged), "main", virtual_sources=False))
    assert not plan.is_empty
    number = 0
    while True:
        storage = icefloe.in_memory_storage()
        write_objects(storage, objects)
        first = open_handle(storage)
        driver = FaultyDriver(driver_of(storage), cut_after=number)
        handle = lifecycle.make_handle(storage, driver, first.format, first.config, Clock())
        with contextlib.suppress(icefloe.IcechunkError):
            run_blocking(repair.run_repair(handle, plan, None))
        is_done = not driver.num_refused
        line = [entry.id for entry in icefloe.Repository.open(storage).ancestry(branch="main")]
        assert before in line[:2]
        assert repaired(storage) == (line[0] != before)
        with contextlib.suppress(ConflictError):  # it was committed, and only the answer is lost
            run_blocking(repair.run_repair(open_handle(storage), plan, None))
        assert repaired(storage)
        again = [entry.id for entry in icefloe.Repository.open(storage).ancestry(branch="main")]
        assert again[1] == before  # once
        found = plain(storage)
        assert found[:NATIVE_CHUNK] == [0] * NATIVE_CHUNK
        assert found[NATIVE_CHUNK : 2 * NATIVE_CHUNK] != [0] * NATIVE_CHUNK
        if is_done:
            break
        number += 1
    assert number >= 4


def race(make_storage: Callable[[], Storage], *works: Work) -> Callable[[], Case[Storage]]:
    def make() -> Case[Storage]:
        storage = make_storage()
        return Case(storage, [start(storage, work) for work in works])

    def start(storage: Storage, work: Work) -> Coroutine[Any, Any, Any]:
        known = opened(storage)
        driver = StepDriver(driver_of(storage))
        return work(lifecycle.make_handle(storage, driver, known.format, known.config, Clock()))

    return make


@SPECS
@pytest.mark.parametrize("other", [commits, repairs], ids=["commit", "repair"])
def test_a_repair_beside_others_loses_nothing(spec: int, other: Work) -> None:
    for outcome in some_schedules(
        race(lambda: without_chunks(spec), repairs, other), number=8, seed=3
    ):
        for result in outcome.results.values():
            assert not isinstance(result, Exception) or isinstance(result, ConflictError), result
        repo = icefloe.Repository.open(outcome.world)
        line = [entry.id for entry in repo.ancestry(branch="main")]
        done = [one.text for one in outcome.results.values() if not isinstance(one, Exception)]
        assert done
        assert set(done) <= set(line)
        if other is commits and not isinstance(outcome.results[1], Exception):
            store = repo.readonly_session("main").store
            array: Any = zarr.open_array(store, path="plain", mode="r")
            assert array[NATIVE_CHUNK] == 77


# -- rescues


def lost_repo() -> Storage:
    storage = copy_of(2, "memory", Path())
    run_blocking(driver_of(storage).delete_many([layout.REPO]))
    return storage


def lost_tip() -> Storage:
    storage = copy_of(2, "memory", Path())
    tip = icefloe.Repository.open(storage).lookup_branch("main")
    run_blocking(driver_of(storage).delete_many([layout.SNAPSHOTS + tip]))
    return storage


def lost_branch() -> Storage:
    storage = copy_of(1, "memory", Path())
    run_blocking(driver_of(storage).delete_many([layout.branch_key("main")]))
    return storage


LOSSES = {"repo object": lost_repo, "tip": lost_tip, "branch of version 1": lost_branch}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_rescue_can_be_cut_off_anywhere(loss: str) -> None:
    lost = LOSSES[loss]()
    objects = read_objects(lost)
    plan = run_blocking(rescue.plan_rescue(opened(lost)))
    assert not plan.is_empty
    run_blocking(rescue.run_rescue(opened(lost), plan))
    expected = seen(lost)
    number = 0
    while True:
        storage = icefloe.in_memory_storage()
        write_objects(storage, objects)
        fresh = run_blocking(rescue.plan_rescue(opened(storage)))
        known = opened(storage)
        driver = FaultyDriver(driver_of(storage), cut_after=number)
        handle = lifecycle.make_handle(storage, driver, known.format, known.config, Clock())
        with contextlib.suppress(icefloe.IcechunkError):
            run_blocking(rescue.run_rescue(handle, fresh))
        is_done = not driver.num_refused
        run_blocking(rescue.run_rescue(opened(storage), fresh))  # the same plan, again
        assert seen(storage) == expected
        assert run_blocking(rescue.plan_rescue(opened(storage))).is_empty
        if is_done:
            break
        number += 1
    assert number >= 1


def seen(storage: Storage) -> dict[str, list[str]]:
    repo = icefloe.Repository.open(storage)
    report = repo.verify()
    assert report.is_healthy, str(report)
    return {
        name: [entry.id for entry in repo.ancestry(branch=name)]
        for name in sorted(repo.list_branches())
    }


async def rescues(handle: RepoHandle) -> Any:
    await rescue.run_rescue(handle, await rescue.plan_rescue(handle))


@pytest.mark.parametrize("loss", LOSSES)
def test_two_rescues_at_once_agree(loss: str) -> None:
    for outcome in some_schedules(race(LOSSES[loss], rescues, rescues), number=8, seed=4):
        errors = [one for one in outcome.results.values() if isinstance(one, Exception)]
        assert len(errors) < 2
        assert all(isinstance(one, ConflictError) for one in errors), errors
        assert seen(outcome.world)


def test_a_lost_ancestor_can_be_taken_out_of_the_history() -> None:
    storage = copy_of(2, "memory", Path())
    repo = icefloe.Repository.open(storage)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="inline", mode="r+")[0] = 9
    session.commit("third")
    lost = list(repo.ancestry(branch="main"))[1].id
    run_blocking(driver_of(storage).delete_many([layout.SNAPSHOTS + lost]))
    repo = icefloe.Repository.open(storage)
    (found,) = repo.verify().of_kind("missing-snapshot")
    assert "expire_snapshots(snapshot_ids=" in found.repair
    later = datetime.now(UTC) + timedelta(days=1)
    with pytest.raises(icefloe.SnapshotNotFoundError, match=lost):
        repo.garbage_collect(later)
    repo.expire_snapshots(snapshot_ids=[lost])
    assert repo.verify().is_healthy
    repo.garbage_collect(later)
    report = icefloe.Repository.open(storage).verify(read_chunks=True)
    assert report.is_healthy, str(report)
