"""Several operations through every order of their storage calls, without threads or a clock.

An operation is a coroutine that awaits nothing but a `StepDriver`. The driver hands control back
before each request, so whoever drives the coroutines decides who goes next; doing that in every
possible way visits every interleaving there is.

    def make():
        objects = in_memory_storage()
        driver = StepDriver(objects.driver(blocking=True))
        return Case(objects, [commit(driver, "a"), commit(driver, "b")])

    for outcome in every_schedule(make):
        assert ...
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from types import coroutine
from typing import Any, Generic, TypeVar

from icefloe.errors import IcechunkError
from icefloe.storage.driver import ConditionFailed
from icefloe.testing.faults import Request
from icefloe.testing.wrapping import WrappingDriver

World = TypeVar("World")
Choose = Callable[[tuple[int, ...], list[int], dict[int, Request]], int]
"""Who moves next: of the moves so far, those who can move, and the requests they have announced."""


@coroutine
def step(request: Request) -> Generator[Request, None, None]:
    """Pause an operation before a request, until its scheduler resumes it.

    >>> step(Request("get", "repo")).send(None).key
    'repo'
    """
    yield request


class StepDriver(WrappingDriver):
    """Hands control to whoever drives the operation, before each of its requests.

    >>> driver = StepDriver(icefloe.in_memory_storage().driver(blocking=True))
    """

    async def before(self, method: str, key: str) -> None:
        await step(Request(method, key))


@dataclass(frozen=True, slots=True)
class Case(Generic[World]):
    """A fresh world and the operations that are to be let loose on it.

    >>> case = Case(world=icefloe.in_memory_storage(), operations=[])
    """

    world: World
    operations: Sequence[Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Outcome(Generic[World]):
    """What one order of requests has led to."""

    world: World
    order: tuple[int, ...]
    """Which operation moved, in turn: an operation's first move brings it to its first request."""
    trace: tuple[tuple[int, Request], ...]
    """The requests in the order in which they were announced, with the operation's number."""
    results: dict[int, Any] = field(default_factory=dict)
    """What each operation returned, or the error it raised."""


def every_schedule(
    make: Callable[[], Case[World]], *, most: int | None = None
) -> Iterator[Outcome[World]]:
    """Run the operations of `make()` in every order; each outcome comes from a fresh `make()`.

    The number of orders grows very fast: (a + b)! / (a! b!) for two operations of a and b moves.
    With `most`, RuntimeError tells when there are more than that.

    >>> def make():
    ...     driver = StepDriver(icefloe.in_memory_storage().driver(blocking=True))
    ...     return Case(driver, [driver.put("a", b"1"), driver.put("a", b"2")])
    >>> len(list(every_schedule(make)))
    6
    """
    unexplored: list[tuple[int, ...]] = [()]
    num_found = 0
    while unexplored:
        forced = unexplored.pop()
        num_found += 1
        if most is not None and num_found > most:
            raise RuntimeError(f"there are more than {most} orders; use some_schedules")

        def choose(
            done: tuple[int, ...],
            able: list[int],
            _pending: dict[int, Request],
            forced: tuple[int, ...] = forced,
        ) -> int:
            if len(done) < len(forced):
                return forced[len(done)]
            unexplored.extend((*done, other) for other in able[1:])
            return able[0]

        yield _run(make(), choose)


def schedules_with_few_switches(
    make: Callable[[], Case[World]],
    *,
    most_switches: int,
    can_switch: Callable[[Request], bool] = lambda _: True,
) -> Iterator[Outcome[World]]:
    """Like `every_schedule`, for orders that interrupt an operation at most so many times.

    An operation that is interrupted goes on later; when one has ended, any other may go on. Most
    mistakes need one or two interruptions, and there are few enough of these orders to try all.
    `can_switch` says ahead of which requests an operation may be interrupted: reads of objects that
    no one else changes need not be tried.

    >>> def make():
    ...     driver = StepDriver(icefloe.in_memory_storage().driver(blocking=True))
    ...     return Case(driver, [driver.put("a", b"1"), driver.put("a", b"2")])
    >>> len(list(schedules_with_few_switches(make, most_switches=1)))
    4
    """
    unexplored: list[tuple[int, ...]] = [()]
    while unexplored:
        forced = unexplored.pop()
        switches = 0

        def choose(
            done: tuple[int, ...],
            able: list[int],
            pending: dict[int, Request],
            forced: tuple[int, ...] = forced,
        ) -> int:
            nonlocal switches
            can_go_on = bool(done) and done[-1] in able
            usual = done[-1] if can_go_on else able[0]
            if len(done) < len(forced):
                chosen = forced[len(done)]
                switches += can_go_on and chosen != usual
                return chosen
            is_free = not can_go_on
            if is_free or (switches < most_switches and can_switch(pending[usual])):
                unexplored.extend((*done, other) for other in able if other != usual)
            return usual

        yield _run(make(), choose)


def some_schedules(
    make: Callable[[], Case[World]], *, number: int, seed: int
) -> Iterator[Outcome[World]]:
    """Like `every_schedule`, for `number` orders drawn at random from `seed`.

    >>> def make():
    ...     driver = StepDriver(icefloe.in_memory_storage().driver(blocking=True))
    ...     return Case(driver, [driver.put("a", b"1"), driver.put("a", b"2")])
    >>> len(list(some_schedules(make, number=5, seed=1)))
    5
    """
    drawn = random.Random(seed)
    for _ in range(number):
        yield _run(make(), lambda _done, able, _pending: drawn.choice(able))


def _run(case: Case[World], choose: Choose) -> Outcome[World]:
    alive = dict(enumerate(case.operations))
    order: tuple[int, ...] = ()
    trace: list[tuple[int, Request]] = []
    results: dict[int, Any] = {}
    pending: dict[int, Request] = {}
    while alive:
        number = choose(order, sorted(alive), pending)
        order += (number,)
        try:
            pending[number] = alive[number].send(None)
            trace.append((number, pending[number]))
        except StopIteration as finished:
            results[number] = finished.value
            del alive[number]
        except (IcechunkError, ConditionFailed) as error:
            results[number] = error
            del alive[number]
    return Outcome(case.world, order, tuple(trace), results)
