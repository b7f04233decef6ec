"""Two appends along one axis, through every order of their storage calls."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import cache
from typing import Any

import pytest

import icefloe
from icefloe.ids import SnapshotId
from icefloe.repo import commit, lifecycle
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.storage.spec import Storage
from icefloe.testing.schedule import Case, StepDriver, every_schedule, some_schedules
from tests.safety.appending import SOLVER, append, block_of, check_appending, start_appending
from tests.safety.test_rebase_schedules import MOST_ORDERS
from tests.safety.test_schedules import SEED, SharedStepDriver
from tests.safety.worlds import driver_of, open_handle, read_objects, write_objects

NUM_ORDERS = 70
"""Of the calls of two appends that both can notice."""


@cache
def world(spec: int) -> dict[str, bytes]:
    storage = icefloe.in_memory_storage()
    # Objects for large chunks, so that moving a reference is not moving a copy.
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    start_appending(icefloe.Repository.create(storage, config, spec_version=spec))
    return read_objects(storage)


def race(spec: int, num_writers: int, driver_class: type[StepDriver]) -> Case[Storage]:
    """Sessions that were opened and changed before any of them commits."""
    storage = icefloe.in_memory_storage()
    write_objects(storage, world(spec))

    def start(writer: int) -> Coroutine[Any, Any, SnapshotId]:
        session = icefloe.Repository.open(storage).writable_session("main")
        append(session, block_of(writer, 0))
        opened = open_handle(storage)
        driver = driver_class(driver_of(storage))
        handle: RepoHandle = lifecycle.make_handle(
            storage, driver, opened.format, opened.config, Clock()
        )
        handle.assets.caches.repo = opened.assets.caches.repo
        workspace = session.workspace._replace(handle=handle)
        return commit.commit(workspace, f"{writer}/0", None, rebase_with=SOLVER)

    return Case(storage, [start(writer) for writer in range(num_writers)])


@pytest.mark.parametrize("spec", [1, 2])
def test_two_appends_both_land_in_every_order(spec: int) -> None:
    orders = set()
    number = 0
    for outcome in every_schedule(lambda: race(spec, 2, SharedStepDriver), most=MOST_ORDERS):
        assert not [it for it in outcome.results.values() if isinstance(it, Exception)]
        repo = icefloe.Repository.open(outcome.world)
        assert check_appending(repo, []) == 2, f"in order {outcome.order}"
        orders.add(next(iter(repo.ancestry(branch="main"))).message)
        number += 1
    assert orders == {"0/0", "1/0"}
    assert number == NUM_ORDERS


@pytest.mark.parametrize("spec", [1, 2])
def test_three_appends_in_drawn_orders_of_all_their_calls(spec: int) -> None:
    for outcome in some_schedules(lambda: race(spec, 3, StepDriver), number=30, seed=SEED):
        assert not [it for it in outcome.results.values() if isinstance(it, Exception)]
        assert check_appending(icefloe.Repository.open(outcome.world), []) == 3
