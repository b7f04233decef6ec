"""Two operations, or three, through every order of their storage calls.

Whatever the order, the outcome is one that doing them one after the other could have had: no
update is lost, history is one line, and whoever comes second is told so.

"Every order" is about the calls that both operations can notice: those for `repo`, refs, the
configuration, listings, and the first snapshot when creating. All other objects have new random
names that nobody knows before the operation is done, so their order makes no difference; a
sample of orders of all calls is drawn as well, to be sure of that. How many orders there are is
asserted, so that nobody has to guess how much was tried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.errors import AlreadyExistsError, ConflictError, ErrorKind, InvalidInputError
from icefloe.format import layout
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.repo import commit, lifecycle, refs, session
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import SessionState, Workspace
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.schedule import Case, Outcome, StepDriver, every_schedule, some_schedules
from tests.safety.worlds import copy_of, driver_of, open_handle, portrait

MOST_ORDERS = 2000
NUM_DRAWN = 100
SEED = 20

BEFORE = ["second on main", "first", "Repository initialized"]
"""The history of `main` before anything happens."""

Work = Callable[[RepoHandle], Coroutine[Any, Any, Any]]


class SharedStepDriver(StepDriver):
    """Steps only before requests that another operation could notice or make different."""

    async def before(self, method: str, key: str) -> None:
        shared = ("", layout.REPO, layout.CONFIG_YAML, layout.snapshot_key(FIRST_SNAPSHOT_ID))
        # Whether there is a `repo` object is asked in version 1 only, and nothing here makes one.
        if method != "head" and (key in shared or key.startswith(layout.REFS)):
            await super().before(method, key)


def race(
    spec: int, *works: Work, driver_class: type[StepDriver] = SharedStepDriver
) -> Callable[[], Case[Storage]]:
    """Each work in a process of its own, on a fresh copy of the furnished repository."""

    def make() -> Case[Storage]:
        storage = copy_of(spec, "memory", Path())
        return Case(storage, [start(storage, work) for work in works])

    def start(storage: Storage, work: Work) -> Coroutine[Any, Any, Any]:
        # Opening is not part of the race, so the handle gets the stepping driver afterwards.
        opened = open_handle(storage)
        driver = driver_class(driver_of(storage))
        handle = lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())
        handle.assets.caches.repo = opened.assets.caches.repo
        return work(handle)

    return make


# -- what races


def adds(message: str, branch: str = "main") -> Work:
    """Read a number, add one, commit."""

    async def work(handle: RepoHandle) -> SnapshotId:
        state = await session.open_writable(handle, branch)
        await add_one(handle, state)
        return await commit.commit(Workspace(handle, state), message, None)

    return work


async def amends(handle: RepoHandle) -> SnapshotId:
    state = await session.open_writable(handle, "main")
    await add_one(handle, state)
    return await commit.amend(Workspace(handle, state), "amended", None)


async def add_one(handle: RepoHandle, state: SessionState) -> None:
    number = await count(handle, state) + 1
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"count": number}}
    await operations.set_key(Workspace(handle, state), "zarr.json", json.dumps(document).encode())


async def count(handle: RepoHandle, state: SessionState) -> int:
    found = await operations.get(Workspace(handle, state), "zarr.json")
    assert found is not None
    attributes: dict[str, int] = json.loads(bytes(found))["attributes"]
    return attributes.get("count", 0)


def resets(*, is_expecting: bool) -> Work:
    """Take `main` back by one commit."""

    async def work(handle: RepoHandle) -> None:
        tip = await handle.format.lookup_branch(handle, "main")
        back = (await handle.format.ancestry(handle, tip))[1].id
        await refs.reset_branch(handle, "main", back, tip if is_expecting else None)

    return work


async def tags(handle: RepoHandle) -> SnapshotId:
    tip = await handle.format.lookup_branch(handle, "main")
    await refs.create_tag(handle, "new", tip)
    return tip


# -- what came of it


def messages_of(storage: Storage, branch: str = "main") -> list[str]:
    return seen_at(storage, branch)[0]


def seen_at(storage: Storage, branch: str = "main") -> tuple[list[str], int]:
    """The messages on a branch, newest first, and the number that was counted."""
    handle = open_handle(storage)
    tip = run_blocking(handle.format.lookup_branch(handle, branch))
    found = run_blocking(handle.format.ancestry(handle, tip))
    assert [entry.parent_id for entry in found] == [*(entry.id for entry in found[1:]), None]
    state = run_blocking(session.open_readonly(handle, tip))
    number = run_blocking(count(handle, state)) if len(found) > 1 else 0
    return [entry.message for entry in found], number


def done(outcome: Outcome[Storage]) -> list[int]:
    """The operations that were told they succeeded."""
    for result in outcome.results.values():
        if isinstance(result, Exception):
            assert isinstance(result, ConflictError), f"{result!r} in order {outcome.order}"
    return [n for n, result in outcome.results.items() if not isinstance(result, Exception)]


def check_commits(outcome: Outcome[Storage], names: list[str]) -> None:
    """All that were acknowledged are there, one after the other, and none of the others."""
    winners = [names[number] for number in done(outcome)]
    found, number = seen_at(outcome.world)
    assert winners, f"nobody won in order {outcome.order}"
    assert sorted(found[: -len(BEFORE)]) == sorted(winners), f"in order {outcome.order}"
    assert found[-len(BEFORE) :] == BEFORE
    assert number == len(winners), f"an update was lost in order {outcome.order}"
    for result in outcome.results.values():
        if isinstance(result, ConflictError):
            assert result.kind == ErrorKind.COMMIT_CONFLICT


# -- commit and commit


@pytest.mark.parametrize(("spec", "num_orders"), [(1, 70), (2, 70)])
def test_two_commits_to_one_branch(spec: int, num_orders: int) -> None:
    outcomes = list(every_schedule(race(spec, adds("a"), adds("b")), most=MOST_ORDERS))
    for outcome in outcomes:
        check_commits(outcome, ["a", "b"])
    assert len(outcomes) == num_orders
    # Both may succeed, but only one after the other.
    assert {len(done(outcome)) for outcome in outcomes} == {1, 2}
    portrait(outcomes[-1].world)


@pytest.mark.parametrize("spec", [1, 2])
def test_two_commits_in_drawn_orders_of_all_their_calls(spec: int) -> None:
    make = race(spec, adds("a"), adds("b"), driver_class=StepDriver)
    for outcome in some_schedules(make, number=NUM_DRAWN, seed=SEED):
        check_commits(outcome, ["a", "b"])


@pytest.mark.parametrize("spec", [1, 2])
def test_three_commits_in_drawn_orders(spec: int) -> None:
    make = race(spec, adds("a"), adds("b"), adds("c"))
    for outcome in some_schedules(make, number=NUM_DRAWN, seed=SEED):
        check_commits(outcome, ["a", "b", "c"])


@pytest.mark.parametrize(("spec", "num_orders"), [(1, 70), (2, 70)])
def test_commits_to_two_branches_both_succeed(spec: int, num_orders: int) -> None:
    make = race(spec, adds("a"), adds("b", "side"))
    outcomes = list(every_schedule(make, most=MOST_ORDERS))
    for outcome in outcomes:
        assert sorted(done(outcome)) == [0, 1], outcome.results
        assert seen_at(outcome.world) == (["a", *BEFORE], 1)
        assert seen_at(outcome.world, "side") == (["b", "second on side", *BEFORE[1:]], 1)
    assert len(outcomes) == num_orders


# -- commit and other things


def test_a_commit_and_an_amendment() -> None:
    outcomes = list(every_schedule(race(2, adds("a"), amends), most=MOST_ORDERS))
    seen = set()
    for outcome in outcomes:
        found, number = seen_at(outcome.world)
        winners = sorted(done(outcome))
        if winners == [0]:
            assert found == ["a", *BEFORE]
        elif winners == [1]:
            assert found == ["amended", *BEFORE[1:]]
        elif found[0] == "a":
            assert found == ["a", "amended", *BEFORE[1:]]
        else:
            # Amending after the other has committed replaces that commit, as it should.
            assert found == ["amended", *BEFORE], f"in order {outcome.order}"
        assert number == len(winners)
        seen.add((*winners, found[0]))
    assert seen == {(0, "a"), (1, "amended"), (0, 1, "a"), (0, 1, "amended")}
    assert len(outcomes) == 126


@pytest.mark.parametrize("is_expecting", [True, False], ids=["from a snapshot", "from anywhere"])
@pytest.mark.parametrize("spec", [1, 2])
def test_a_commit_and_a_reset(spec: int, is_expecting: bool) -> None:
    works = adds("a"), resets(is_expecting=is_expecting)
    outcomes = list(every_schedule(race(spec, *works), most=MOST_ORDERS))
    seen = set()
    for outcome in outcomes:
        found = tuple(messages_of(outcome.world))
        winners = sorted(done(outcome))
        expected = {
            (0,): {("a", *BEFORE)},
            (1,): {tuple(BEFORE[1:])},
            # The commit came first and the reset took back that one or the one before, or the
            # commit came second.
            (0, 1): {tuple(BEFORE), tuple(BEFORE[1:]), ("a", *BEFORE[1:])},
        }[tuple(winners)]
        assert found in expected, f"in order {outcome.order}"
        if is_expecting and winners == [0, 1]:
            # It saw the commit and took it back, or the commit was made on top of it.
            assert found in {tuple(BEFORE), ("a", *BEFORE[1:])}, f"in order {outcome.order}"
        seen.add((*winners, found))
    assert len(seen) >= 3
    assert len(outcomes) == 126


@pytest.mark.parametrize(("spec", "num_orders"), [(1, 35), (2, 70)])
def test_a_commit_and_a_tag_both_succeed(spec: int, num_orders: int) -> None:
    outcomes = list(every_schedule(race(spec, adds("a"), tags), most=MOST_ORDERS))
    for outcome in outcomes:
        assert sorted(done(outcome)) == [0, 1], outcome.results
        assert messages_of(outcome.world) == ["a", *BEFORE]
        handle = open_handle(outcome.world)
        assert run_blocking(handle.format.lookup_tag(handle, "new")) == outcome.results[1]
    assert len(outcomes) == num_orders


# -- create and create


@pytest.mark.parametrize(
    ("spec", "is_forgiving", "num_orders"),
    [(1, False, 5 * NUM_DRAWN), (2, False, 0), (1, True, NUM_DRAWN), (2, True, NUM_DRAWN)],
    ids=["1-create", "2-create", "1-open or create", "2-open or create"],
)
def test_two_creations_make_one_repository(spec: int, is_forgiving: bool, num_orders: int) -> None:
    """Every order for `create` of version 2; of the others there are thousands: some are drawn."""
    function = lifecycle.open_or_create if is_forgiving else lifecycle.create_repository

    def make() -> Case[Storage]:
        storage = icefloe.in_memory_storage()
        creations = [
            function(
                storage,
                SharedStepDriver(driver_of(storage)),
                icefloe.RepositoryConfig(inline_chunk_threshold_bytes=number),
                Clock(),
                spec_version=spec,
                check_clean_root=True,
            )
            for number in range(2)
        ]
        return Case(storage, creations)

    drawn = some_schedules(make, number=num_orders, seed=SEED)
    outcomes = list(drawn if num_orders else every_schedule(make, most=MOST_ORDERS))
    for outcome in outcomes:
        failed = [it for it in outcome.results.values() if isinstance(it, Exception)]
        for error in failed:
            assert isinstance(error, AlreadyExistsError | InvalidInputError), error
        if is_forgiving:
            assert [error for error in failed if isinstance(error, AlreadyExistsError)] == []
        else:
            assert len(failed) == 1, f"in order {outcome.order}"
        created = [it for it in outcome.results.values() if isinstance(it, RepoHandle)]
        assert created, f"nobody has a repository in order {outcome.order}"
        check_first_commit(outcome, created)
    assert len(outcomes) >= 20


def check_first_commit(outcome: Outcome[Storage], created: list[RepoHandle]) -> None:
    """One of those who were told so made it: the rest of the world sees that one's first commit."""
    handle = open_handle(outcome.world)
    assert messages_of(outcome.world) == BEFORE[-1:]
    file = run_blocking(handle.assets.snapshot(FIRST_SNAPSHOT_ID))
    (listed,) = run_blocking(handle.format.ancestry(handle, FIRST_SNAPSHOT_ID))
    assert listed.flushed_at == file.flushed_at, (
        f"the first snapshot was replaced in order {outcome.order}"
    )
    saved = run_blocking(lifecycle.fetch_config(outcome.world, driver_of(outcome.world)))
    thresholds = [handle.config.inline_chunk_threshold_bytes for handle in created]
    assert saved is not None
    assert saved.inline_chunk_threshold_bytes in thresholds, f"in order {outcome.order}"
