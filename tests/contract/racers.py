"""What the processes of the race tests run. Kept apart so that they import little else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from icefloe.storage.driver import ConditionFailed, Driver, Version
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage

WAIT_SECONDS = 60


def race(storage: Storage, name: str, barrier: Any, num_rounds: int) -> list[str]:
    """In each round try to create one key and to replace another; returns the rounds won.

    Rounds are `create 0`, `update 0`, `create 1`, ...; every writer of the race enters each at
    the same moment, having seen the same state.
    """
    driver = storage.driver(blocking=True)
    won = []
    for number in range(num_rounds):
        seen = run_blocking(driver.get_versioned("counter"))[1]
        if _is_won(driver, f"keys/{number}", name, None, barrier):
            won.append(f"create {number}")
        if _is_won(driver, "counter", f"{name} {number}", seen, barrier):
            won.append(f"update {number}")
        barrier.wait(WAIT_SECONDS)
    return won


def _is_won(driver: Driver, key: str, text: str, previous: Version | None, barrier: Any) -> bool:
    barrier.wait(WAIT_SECONDS)
    try:
        run_blocking(driver.put_if(key, text.encode(), previous=previous))
    except ConditionFailed:
        return False
    return True


def race_in_threads(
    storage: Storage, name: str, barrier: Any, num_rounds: int, num_threads: int
) -> list[str]:
    """`race` in several threads of this process; returns all they have won."""
    won: list[list[str]] = [[] for _ in range(num_threads)]
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            won[number] = race(storage, f"{name}-{number}", barrier, num_rounds)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS * 2)
    if failures:
        raise failures[0]
    return [one for each in won for one in each]


def increment(storage: Storage, name: str, barrier: Any, num_times: int) -> list[str]:
    """Add lines to one object, each by reading, adding and replacing; returns the lines."""
    driver = storage.driver(blocking=True)
    added = []
    barrier.wait(WAIT_SECONDS)
    for number in range(num_times):
        line = f"{name}-{number}"
        append(driver, "counter", line)
        added.append(line)
    return added


def append(driver: Driver, key: str, line: str) -> None:
    """Add a line to an object, however often that takes."""
    while True:
        data, version = run_blocking(driver.get_versioned(key))
        try:
            run_blocking(driver.put_if(key, data + line.encode() + b"\n", previous=version))
        except ConditionFailed:
            continue
        return


def report(results: Any, function: Callable[..., list[str]], *arguments: Any) -> None:
    """The main function of a process: run something and send what it returns."""
    results.put(function(*arguments))
