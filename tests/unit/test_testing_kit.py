"""The shipped test kit: storage that fails on command, and every order of storage calls."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from icefloe.errors import ErrorKind, StorageError, UnknownOutcomeError
from icefloe.storage.driver import ConditionFailed, Driver, Span
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import in_memory_storage
from icefloe.testing.faults import FaultyDriver, Request
from icefloe.testing.schedule import (
    Case,
    Outcome,
    StepDriver,
    every_schedule,
    schedules_with_few_switches,
    some_schedules,
)


def memory() -> Driver:
    return in_memory_storage().driver(blocking=True)


async def everything(driver: Driver) -> None:
    await driver.put("a", b"123")
    await driver.put_many([("b", b"1"), ("c", b"2")])
    version = await driver.put_if("repo", b"1", previous=None)
    await driver.get("a")
    await driver.get_many([("a", Span(0, 1)), ("b", None)])
    await driver.get_versioned("repo")
    await driver.get_if_changed("repo", version)
    await driver.head("a")
    await driver.list("")
    await driver.is_empty()
    await driver.delete_many(["a", "b"])
    await driver.sync()
    await driver.sleep(1000)


METHODS = [
    *("put", "put", "put", "put_if", "get", "get", "get", "get_versioned", "get_if_changed"),
    *("head", "list", "is_empty", "delete", "delete"),
]


def test_every_request_is_counted_and_logged() -> None:
    driver = FaultyDriver(memory())
    run_blocking(everything(driver))
    assert [request.method for request in driver.log] == METHODS
    assert driver.log[3] == Request("put_if", "repo")
    assert driver.num_requests == len(METHODS)
    assert driver.num_requests_by_method()["put"] == 3
    driver.reset()
    assert driver.num_requests == 0


@pytest.mark.parametrize("number", range(len(METHODS)))
def test_the_storage_can_be_cut_off_after_any_request(number: int) -> None:
    inner = memory()
    driver = FaultyDriver(inner, cut_after=number)
    with pytest.raises(StorageError, match=f"after {number} requests") as caught:
        run_blocking(everything(driver))
    assert caught.value.kind == ErrorKind.IO
    assert [request.method for request in driver.log] == METHODS[:number]
    with pytest.raises(StorageError):
        run_blocking(driver.is_empty())
    assert driver.num_refused == 2
    assert len(run_blocking(inner.list(""))) == min(number, 4) - max(0, number - 12)


def test_an_operation_that_needs_fewer_requests_is_not_cut_off() -> None:
    run_blocking(everything(FaultyDriver(memory(), cut_after=len(METHODS))))


def test_a_lost_answer_is_unknown_to_the_caller() -> None:
    inner = memory()
    driver = FaultyDriver(inner, lose_answer_of=2)
    version = run_blocking(driver.put_if("repo", b"one", previous=None))
    with pytest.raises(UnknownOutcomeError):
        run_blocking(driver.put_if("repo", b"two", previous=version))
    data, version = run_blocking(inner.get_versioned("repo"))
    assert data == b"two"  # it was carried out
    run_blocking(driver.put_if("repo", b"three", previous=version))


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_answer_is_found_out_by_recovery(lost: int) -> None:
    driver = FaultyDriver(memory(), lose_answer_of=lost, has_recovery=True)
    version = None
    for number in range(3):
        data = str(number).encode()
        version = run_blocking(driver.put_if("repo", data, previous=version))
        assert run_blocking(driver.get_versioned("repo")) == (data, version)
    with pytest.raises(ConditionFailed):
        run_blocking(driver.put_if("repo", b"x", previous=None))


def test_recovery_that_is_cut_off_is_unknown() -> None:
    driver = FaultyDriver(memory(), lose_answer_of=1, cut_after=1, has_recovery=True)
    with pytest.raises(UnknownOutcomeError, match="reading it back failed"):
        run_blocking(driver.put_if("repo", b"1", previous=None))


# --- schedules ---------------------------------------------------------------------------------


async def append(driver: Driver, line: str, *, is_careful: bool) -> str:
    """Read, add, write back; the careless way ignores what happened in between."""
    while True:
        data, version = await driver.get_versioned("log")
        if not is_careful:
            await driver.put("log", data + line.encode())
            return line
        try:
            await driver.put_if("log", data + line.encode(), previous=version)
        except ConditionFailed:
            continue
        return line


def two_appends(*, is_careful: bool) -> Case[Driver]:
    inner = memory()
    run_blocking(inner.put("log", b""))
    driver = StepDriver(inner)
    operations: list[Coroutine[Any, Any, str]] = [
        append(driver, line, is_careful=is_careful) for line in "ab"
    ]
    return Case(inner, operations)


def log_of(outcome: Outcome[Driver]) -> str:
    return "".join(sorted(bytes(run_blocking(outcome.world.get("log"))).decode()))


def test_every_order_is_visited_once() -> None:
    outcomes = list(every_schedule(lambda: two_appends(is_careful=False)))
    orders = [outcome.order for outcome in outcomes]
    assert len(set(orders)) == len(orders) == 20  # 6! / (3! 3!): three moves each
    assert all(outcome.results == {0: "a", 1: "b"} for outcome in outcomes)


def test_a_lost_update_shows_up_in_some_order() -> None:
    found = {log_of(outcome) for outcome in every_schedule(lambda: two_appends(is_careful=False))}
    assert found == {"ab", "a", "b"}


def test_conditional_writes_lose_nothing_in_any_order() -> None:
    outcomes = list(every_schedule(lambda: two_appends(is_careful=True), most=1000))
    assert len(outcomes) == 20
    assert {log_of(outcome) for outcome in outcomes} == {"ab"}
    assert {len(outcome.trace) for outcome in outcomes} == {4, 6}


def test_errors_are_results() -> None:
    async def fail(driver: Driver) -> None:
        await driver.get("missing")

    [outcome] = every_schedule(lambda: Case(None, [fail(StepDriver(memory()))]))
    assert isinstance(outcome.results[0], StorageError)
    assert outcome.trace == ((0, Request("get", "missing")),)


def test_too_many_orders_are_refused() -> None:
    with pytest.raises(RuntimeError, match="more than 10 orders"):
        list(every_schedule(lambda: two_appends(is_careful=False), most=10))


def test_orders_can_be_drawn_at_random_and_repeated() -> None:
    def draw(seed: int) -> list[tuple[int, ...]]:
        drawn = some_schedules(lambda: two_appends(is_careful=True), number=30, seed=seed)
        return [outcome.order for outcome in drawn]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len(set(draw(1))) > 5


def test_orders_with_few_switches_are_all_of_those() -> None:
    def switches(order: tuple[int, ...]) -> int:
        changes = [at for at in range(1, len(order)) if order[at] != order[at - 1]]
        return sum(order[at - 1] in order[at:] for at in changes)

    def make() -> Case[Driver]:
        return two_appends(is_careful=False)

    everything = [outcome.order for outcome in every_schedule(make)]
    for most in range(4):
        found = [one.order for one in schedules_with_few_switches(make, most_switches=most)]
        assert sorted(found) == sorted(one for one in everything if switches(one) <= most)
    # Interrupted only ahead of writing, when both have read.
    found = [
        one.order
        for one in schedules_with_few_switches(
            make, most_switches=1, can_switch=lambda request: request.method == "put"
        )
    ]
    assert sorted(found) == [
        (0, 0, 0, 1, 1, 1),
        (0, 0, 1, 1, 1, 0),
        (1, 1, 0, 0, 0, 1),
        (1, 1, 1, 0, 0, 0),
    ]
