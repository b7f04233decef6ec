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


@coroutine
def _step(request: Request) -> Generator[Request, None, None]:
    yield request


class StepDriver(WrappingDriver):
    """Hands control to whoever drives the operation, before each of its requests."""

    async def before(self, method: str, key: str) -> None:
        await _step(Request(method, key))


@dataclass(frozen=True, slots=True)
class Case(Generic[World]):
    """A fresh world and the operations that are to be let loose on it."""

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
    """
    unexplored: list[tuple[int, ...]] = [()]
    num_found = 0
    while unexplored:
        forced = unexplored.pop()
        num_found += 1
        if most is not None and num_found > most:
            raise RuntimeError(f"there are more than {most} orders; use some_schedules")

        def choose(done: tuple[int, ...], able: list[int], forced: tuple[int, ...] = forced) -> int:
            if len(done) < len(forced):
                return forced[len(done)]
            unexplored.extend((*done, other) for other in able[1:])
            return able[0]

        yield _run(make(), choose)


def some_schedules(
    make: Callable[[], Case[World]], *, number: int, seed: int
) -> Iterator[Outcome[World]]:
    """Like `every_schedule`, for `number` orders drawn at random from `seed`."""
    drawn = random.Random(seed)
    for _ in range(number):
        yield _run(make(), lambda done, able: drawn.choice(able))


def _run(case: Case[World], choose: Callable[[tuple[int, ...], list[int]], int]) -> Outcome[World]:
    alive = dict(enumerate(case.operations))
    order: tuple[int, ...] = ()
    trace: list[tuple[int, Request]] = []
    results: dict[int, Any] = {}
    while alive:
        number = choose(order, sorted(alive))
        order += (number,)
        try:
            trace.append((number, alive[number].send(None)))
        except StopIteration as finished:
            results[number] = finished.value
            del alive[number]
        except (IcechunkError, ConditionFailed) as error:
            results[number] = error
            del alive[number]
    return Outcome(case.world, order, tuple(trace), results)
