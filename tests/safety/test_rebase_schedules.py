"""A commit that rebases itself, and something else, through every order of their storage calls.

Nothing that was acknowledged is lost, history stays one line, and nobody is told of a conflict
where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest

from icefloe.changes.conflicts import ConflictDetector
from icefloe.errors import ConflictError, ErrorKind, RebaseFailedError
from icefloe.ids import SnapshotId
from icefloe.repo import commit, session
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.schedule import Outcome, StepDriver, every_schedule, some_schedules
from tests.safety.test_schedules import BEFORE, SEED, Work, race, resets, tags
from tests.safety.worlds import open_handle

MOST_ORDERS = 20_000
NUM_ORDERS = {1: 20, 2: 20}
"""Of the calls of two commits that both can notice."""


def creates(name: str, *, is_amending: bool = False) -> Work:
    """Create a group and commit, rebasing as often as it takes; or amend, which cannot rebase.

    The session was opened and changed before the race: every other operation may overtake it.
    """

    def work(handle: RepoHandle) -> Coroutine[Any, Any, SnapshotId]:
        opened = open_handle(handle.storage)
        state = run_blocking(session.open_writable(opened, "main"))
        document = {"zarr_format": 3, "node_type": "group", "attributes": {"by": name}}
        data = json.dumps(document).encode()
        run_blocking(operations.set_key(Workspace(opened, state), f"{name}/zarr.json", data))
        if is_amending:
            return commit.amend(Workspace(handle, state), name, None)
        return commit.commit(Workspace(handle, state), name, None, rebase_with=ConflictDetector())

    return work


def seen_on_main(outcome: Outcome[Storage]) -> tuple[list[str], set[str]]:
    """Messages, newest first, and the nodes of the tip."""
    handle = open_handle(outcome.world)
    tip = run_blocking(handle.format.lookup_branch(handle, "main"))
    found = run_blocking(handle.format.ancestry(handle, tip))
    assert [entry.parent_id for entry in found] == [*(entry.id for entry in found[1:]), None]
    state = run_blocking(session.open_readonly(handle, tip))
    return [entry.message for entry in found], set(state.all_paths())


def failures(outcome: Outcome[Storage]) -> dict[int, Exception]:
    return {n: it for n, it in outcome.results.items() if isinstance(it, Exception)}


@pytest.mark.parametrize("spec", [1, 2])
def test_two_commits_that_do_not_touch_each_other_both_land(spec: int) -> None:
    outcomes = list(every_schedule(race(spec, creates("x"), creates("y")), most=MOST_ORDERS))
    orders = set()
    for outcome in outcomes:
        assert failures(outcome) == {}, f"in order {outcome.order}"
        messages, nodes = seen_on_main(outcome)
        assert sorted(messages[:2]) == ["x", "y"], f"in order {outcome.order}"
        assert messages[2:] == BEFORE
        assert {"/x", "/y"} <= nodes, f"an update was lost in order {outcome.order}"
        orders.add(messages[0])
    assert orders == {"x", "y"}
    assert len(outcomes) == NUM_ORDERS[spec]


@pytest.mark.parametrize("spec", [1, 2])
def test_three_commits_in_drawn_orders_of_all_their_calls(spec: int) -> None:
    make = race(spec, creates("x"), creates("y"), creates("z"), driver_class=StepDriver)
    for outcome in some_schedules(make, number=100, seed=SEED):
        assert failures(outcome) == {}
        messages, nodes = seen_on_main(outcome)
        assert sorted(messages[:3]) == ["x", "y", "z"]
        assert {"/x", "/y", "/z"} <= nodes


@pytest.mark.parametrize("spec", [1, 2])
def test_of_two_commits_that_contradict_each_other_one_lands(spec: int) -> None:
    outcomes = list(every_schedule(race(spec, creates("x"), creates("x")), most=MOST_ORDERS))
    for outcome in outcomes:
        messages, _ = seen_on_main(outcome)
        [error] = failures(outcome).values()
        assert isinstance(error, RebaseFailedError)
        assert messages == ["x", *BEFORE], f"in order {outcome.order}"
    assert outcomes


def test_a_commit_and_an_amendment() -> None:
    make = race(2, creates("x"), creates("y", is_amending=True))
    seen = set()
    for outcome in every_schedule(make, most=MOST_ORDERS):
        messages, nodes = seen_on_main(outcome)
        lost = failures(outcome)
        assert 0 not in lost, f"{lost} in order {outcome.order}"
        assert "/x" in nodes, f"an update was lost in order {outcome.order}"
        if lost:
            assert isinstance(lost[1], ConflictError)
            assert lost[1].kind == ErrorKind.COMMIT_CONFLICT
            assert messages == ["x", *BEFORE]
        else:
            assert "/y" in nodes, f"an update was lost in order {outcome.order}"
            assert messages == ["x", "y", *BEFORE[1:]], f"in order {outcome.order}"
        seen.add(tuple(messages))
    assert len(seen) == 2


@pytest.mark.parametrize("spec", [1, 2])
def test_a_commit_and_a_reset(spec: int) -> None:
    make = race(spec, creates("x"), resets(is_expecting=True))
    seen = set()
    for outcome in every_schedule(make, most=MOST_ORDERS):
        messages, nodes = seen_on_main(outcome)
        lost = failures(outcome)
        assert 0 not in lost, f"{lost} in order {outcome.order}"
        if lost:
            assert messages == ["x", *BEFORE]
        else:
            # The commit went where the branch was reset to, or was taken back by the reset.
            assert messages in (["x", *BEFORE[1:]], BEFORE), f"in order {outcome.order}"
        assert ("/x" in nodes) == (messages[0] == "x")
        seen.add(tuple(messages))
    assert len(seen) == 3


@pytest.mark.parametrize("spec", [1, 2])
def test_a_commit_and_a_tag(spec: int) -> None:
    for outcome in every_schedule(race(spec, creates("x"), tags), most=MOST_ORDERS):
        assert failures(outcome) == {}, f"in order {outcome.order}"
        messages, nodes = seen_on_main(outcome)
        assert messages == ["x", *BEFORE]
        assert "/x" in nodes
        handle = open_handle(outcome.world)
        assert run_blocking(handle.format.lookup_tag(handle, "new")) == outcome.results[1]
