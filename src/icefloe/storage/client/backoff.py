"""Trying again, and how long to wait before that."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from icefloe.config.resolved import ResolvedRetries
from icefloe.observe import STORAGE
from icefloe.storage.client import failures
from icefloe.storage.client.interruptible import interruptibly
from icefloe.storage.run import run_blocking

Result = TypeVar("Result")

MAX_SECONDS = 180.0
"""No operation goes on trying for longer than this, whatever the settings say."""


def pauses(retries: ResolvedRetries) -> Iterator[float]:
    """Seconds to wait before each further try; ends when there should be none.

    The pauses grow twofold from `initial_backoff_ms` to `max_backoff_ms`, and each is drawn at
    random between nothing and that, so that those who collided once do not collide again.
    """
    deadline = time.monotonic() + MAX_SECONDS
    ceiling_ms = float(retries.initial_backoff_ms)
    for _ in range(retries.max_tries - 1):
        pause = random.uniform(0, min(ceiling_ms, retries.max_backoff_ms)) / 1000
        if time.monotonic() + pause > deadline:
            return
        yield pause
        ceiling_ms *= 2


async def retry_cut(
    request: Callable[[], Awaitable[Result]],
    retries: ResolvedRetries,
    sleep: Callable[[float], Awaitable[None]],
    progress: Callable[[], object] = lambda: None,
) -> Result:
    """The result of a request that may be repeated, tried again when its answer breaks off.

    The client retries requests itself, but not once an answer has begun. Tries count from the
    start again when `progress` has changed.
    """
    waits, before = pauses(retries), progress()
    while True:
        try:
            return await request()
        except failures.ClientError as error:
            if not failures.was_cut(error):
                raise
            if progress() != before:
                waits, before = pauses(retries), progress()
            pause = next(waits, None)
            if pause is None:
                raise
            STORAGE.info("trying again in %.2f s: %s", pause, failures.summary(error))
        await sleep(pause)


def retry_cut_blocking(request: Callable[[], Result]) -> Result:
    """The same for a request that blocks, which Ctrl-C may end."""

    async def once() -> Result:
        return interruptibly(request)

    async def sleep(seconds: float) -> None:
        time.sleep(seconds)

    return run_blocking(retry_cut(once, ResolvedRetries(), sleep))
