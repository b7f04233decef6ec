"""Merge, undo and squash beside a commit, through every order of their storage calls.

And cut off after every request: the branch is where it was, or where it should be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from icefloe.api.repository import Repository
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError, StorageError
from icefloe.ids import SnapshotId
from icefloe.maintenance.expire import Rules, expire_snapshots
from icefloe.repo import commit, refs, replay, session
from icefloe.repo.handle import RepoHandle
from icefloe.repo.replay import Replayed, ReplayRequest
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.faults import FaultyDriver
from icefloe.testing.schedule import StepDriver, every_schedule, some_schedules
from tests.safety.test_rebase_schedules import creates, failures, seen_on_main
from tests.safety.test_schedules import BEFORE, SEED, Work, race
from tests.safety.worlds import copy_of, driver_of, open_handle, portrait

MOST_ORDERS = 20_000
MAIN = ReplayRequest("main")
SPECS = [pytest.param(1, marks=pytest.mark.long), 2]


def branch_with(storage: Storage, name: str) -> SnapshotId:
    """A branch at the tip of `main`, with a commit that creates a group of the same name."""
    handle = open_handle(storage)
    tip = run_blocking(handle.format.lookup_branch(handle, "main"))
    run_blocking(refs.create_branch(handle, name, tip))
    state = run_blocking(session.open_writable(handle, name))
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"by": name}}
    data = json.dumps(document).encode()
    run_blocking(operations.set_key(Workspace(handle, state), f"{name}/zarr.json", data))
    return run_blocking(commit.commit(Workspace(handle, state), name, None))


def merges(name: str) -> Work:
    def work(handle: RepoHandle) -> Coroutine[Any, Any, Any]:
        source = branch_with(handle.storage, name)
        return replay.merge(handle, source, name, MAIN)

    return work


def undoes_the_tip(handle: RepoHandle) -> Coroutine[Any, Any, Any]:
    opened = open_handle(handle.storage)
    tip = run_blocking(opened.format.lookup_branch(opened, "main"))
    return replay.undo(handle, tip, MAIN)


def squashes(handle: RepoHandle) -> Coroutine[Any, Any, Any]:
    opened = open_handle(handle.storage)
    tip = run_blocking(opened.format.lookup_branch(opened, "main"))
    *_, first = run_blocking(opened.format.ancestry(opened, tip))
    return replay.squash(handle, first.id, ReplayRequest("main", "squashed"))


def squashes_the_middle(handle: RepoHandle) -> Coroutine[Any, Any, Any]:
    opened = open_handle(handle.storage)
    tip = run_blocking(opened.format.lookup_branch(opened, "main"))
    line = run_blocking(opened.format.ancestry(opened, tip))
    return replay.squash(handle, line[-1].id, ReplayRequest("main", "squashed"), line[1].id)


@pytest.mark.parametrize("spec", SPECS)
def test_a_merge_and_a_commit_both_land(spec: int) -> None:
    orders = set()
    for outcome in every_schedule(race(spec, creates("x"), merges("dev")), most=MOST_ORDERS):
        assert failures(outcome) == {}, f"in order {outcome.order}"
        messages, nodes = seen_on_main(outcome)
        assert sorted(messages[:2]) == ["Merge dev into main", "x"], f"in order {outcome.order}"
        assert messages[2:] == BEFORE
        assert {"/x", "/dev"} <= nodes, f"an update was lost in order {outcome.order}"
        orders.add(messages[0])
    assert len(orders) == 2, "both were first in some order"


@pytest.mark.parametrize("spec", SPECS)
def test_an_undo_and_a_commit_both_land(spec: int) -> None:
    for outcome in every_schedule(race(spec, creates("x"), undoes_the_tip), most=MOST_ORDERS):
        assert failures(outcome) == {}, f"in order {outcome.order}"
        messages, nodes = seen_on_main(outcome)
        assert sorted(messages[:2]) == [f"Undo: {BEFORE[0]}", "x"], f"in order {outcome.order}"
        assert "/x" in nodes


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("operation", [squashes, squashes_the_middle])
def test_a_squash_never_swallows_a_commit(spec: int, operation: Work) -> None:
    new = ["squashed", BEFORE[-1]] if operation is squashes else [BEFORE[0], "squashed", BEFORE[-1]]
    seen = set()
    for outcome in every_schedule(race(spec, creates("x"), operation), most=MOST_ORDERS):
        messages, nodes = seen_on_main(outcome)
        lost = failures(outcome)
        assert 0 not in lost, f"{lost} in order {outcome.order}"
        assert "/x" in nodes, f"an update was lost in order {outcome.order}"
        if lost:
            assert isinstance(lost[1], ConflictError)
            assert lost[1].kind == ErrorKind.COMMIT_CONFLICT
            assert messages == ["x", *BEFORE]
        elif messages[0] == "x":
            assert messages in (["x", *new], [*["x", *BEFORE][: -len(new)], *new])
        else:
            assert messages == new
        seen.add(tuple(messages))
    assert ("x", *BEFORE) in seen
    assert ("x", *new) in seen


def expires_the_middle(handle: RepoHandle) -> Coroutine[Any, Any, Any]:
    opened = open_handle(handle.storage)
    tip = run_blocking(opened.format.lookup_branch(opened, "main"))
    middle = run_blocking(opened.format.ancestry(opened, tip))[1]
    run_blocking(refs.delete_tag(opened, "old"))  # it would keep the snapshot
    return expire_snapshots(handle, Rules(ids=frozenset({middle.id})))


@pytest.mark.long
@pytest.mark.parametrize("spec", [1, 2])
def test_a_squash_beside_an_expiration_leaves_whole_snapshots(spec: int) -> None:
    seen = set()
    for outcome in every_schedule(
        race(spec, expires_the_middle, squashes_the_middle), most=MOST_ORDERS
    ):
        lost = failures(outcome)
        assert 0 not in lost, f"{lost} in order {outcome.order}"
        gone = (NotFoundError, InvalidInputError)  # found out before it writes, or while it does
        assert all(isinstance(error, gone) for error in lost.values()), f"{lost} {outcome.order}"
        repo = Repository.open(outcome.world)
        repo.garbage_collect(datetime.now(UTC))
        report = repo.verify(orphans=False)
        assert report.is_healthy, f"{report} in order {outcome.order}"
        seen.add(bool(lost))
    assert seen == {True, False}, "each was first in some order"


# -- merging during an expiration that removes the fork point


def parted(storage: Storage) -> SnapshotId:
    """`dev` parts from `main` after a commit that both have; then `main` deletes a group of it."""
    handle = open_handle(storage)
    for branch, name in (("main", "shared"), ("main", "passing")):
        _commit_group(storage, branch, name)
    tip = run_blocking(handle.format.lookup_branch(handle, "main"))
    run_blocking(refs.create_branch(handle, "dev", tip))
    _commit_group(storage, "dev", "dev")
    state = run_blocking(session.open_writable(handle, "main"))
    run_blocking(operations.delete_dir(Workspace(handle, state), "passing"))
    run_blocking(commit.commit(Workspace(handle, state), "delete", None))
    opened = open_handle(storage)
    return run_blocking(opened.format.lookup_branch(opened, "dev"))


def _commit_group(storage: Storage, branch: str, name: str) -> None:
    handle = open_handle(storage)
    state = run_blocking(session.open_writable(handle, branch))
    data = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
    run_blocking(operations.set_key(Workspace(handle, state), f"{name}/zarr.json", data))
    run_blocking(commit.commit(Workspace(handle, state), name, None))


RULES = {
    "as official": Rules(older_than=2**60),
    "the newest": Rules(keep_last=1),
    "but for fork points": Rules(older_than=2**60, keep_fork_points=True),
}


def check_nothing_came_back(storage: Storage, *, is_merged: bool) -> None:
    repo = Repository.open(storage)
    nodes = set(
        run_blocking(
            session.open_readonly(repo.handle, repo.handle.snapshot_id(repo.lookup_branch("main")))
        ).all_paths()
    )
    assert "/passing" not in nodes, "a deletion was reverted"
    assert "/shared" in nodes
    assert ("/dev" in nodes) == is_merged
    report = repo.verify(orphans=False)
    assert report.is_healthy, str(report)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("spec", [1, 2])
def test_a_merge_during_an_expiration_reverts_nothing(spec: int, rules: str) -> None:
    def merging(handle: RepoHandle) -> Coroutine[Any, Any, Any]:
        return replay.merge(handle, parted(handle.storage), "dev", MAIN)

    def expiring(handle: RepoHandle) -> Coroutine[Any, Any, Any]:
        return expire_snapshots(handle, RULES[rules])

    merged = 0
    make = race(spec, merging, expiring, driver_class=StepDriver)
    # In version 1 an expiration rewrites snapshot files, one by one: there are too many orders.
    orders = list(some_schedules(make, number=40 if spec == 1 else 10, seed=SEED))
    if spec == 2:
        orders += every_schedule(race(spec, merging, expiring), most=MOST_ORDERS)
    for outcome in orders:
        lost = failures(outcome)
        assert 1 not in lost, f"{lost} in order {outcome.order}"
        assert all(isinstance(error, NotFoundError) for error in lost.values()), lost
        Repository.open(outcome.world).garbage_collect(datetime.now(UTC))
        check_nothing_came_back(outcome.world, is_merged=not lost)
        merged += not lost
    assert merged, "it was never merged"
    assert spec == 1 or merged == len(orders)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("spec", [1, 2])
def test_a_merge_after_an_expiration_that_was_cut_off_reverts_nothing(
    spec: int, rules: str
) -> None:
    for num_requests in range(60):
        storage = copy_of(spec, "memory", Path())
        source = parted(storage)
        driver = FaultyDriver(driver_of(storage))
        handle = open_handle(storage, driver)
        driver.reset()
        driver.cut_after = num_requests
        is_cut = False
        try:
            run_blocking(expire_snapshots(handle, RULES[rules]))
        except StorageError:
            is_cut = True
        is_merged = True
        try:
            run_blocking(replay.merge(open_handle(storage), source, "dev", MAIN))
        except NotFoundError:
            is_merged = False
            assert spec == 1
        check_nothing_came_back(storage, is_merged=is_merged)
        if not is_cut:
            assert num_requests > 2
            return
    raise AssertionError("it was cut off every time")


def _merge(handle: RepoHandle) -> Coroutine[Any, Any, Replayed]:
    return replay.merge(
        handle, run_blocking(handle.format.lookup_branch(handle, "dev")), "dev", MAIN
    )


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("operation", [_merge, undoes_the_tip, squashes, squashes_the_middle])
def test_a_cut_after_any_request_leaves_the_old_state_or_the_new(
    spec: int, operation: Callable[[RepoHandle], Coroutine[Any, Any, Any]]
) -> None:
    for num_requests in range(40):
        storage = copy_of(spec, "memory", Path())
        branch_with(storage, "dev")
        before = portrait(storage)
        driver = FaultyDriver(driver_of(storage))
        handle = open_handle(storage, driver)
        work = operation(handle)
        driver.reset()
        driver.cut_after = num_requests
        try:
            done = run_blocking(work)
        except StorageError:
            opened = open_handle(storage)
            tip = run_blocking(opened.format.lookup_branch(opened, "main"))
            assert portrait(storage) == before or tip.text not in str(before)
            continue
        opened = open_handle(storage)
        tip = run_blocking(opened.format.lookup_branch(opened, "main"))
        line = [info.id for info in run_blocking(opened.format.ancestry(opened, tip))]
        assert done.snapshot_id in line[:2]
        assert num_requests > 2
        return
    raise AssertionError("it was cut off every time")
