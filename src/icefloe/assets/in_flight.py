"""Loads under way: who wants what somebody is loading already waits for it instead.

A table belongs to one flavour of driver. Code that blocks must never wait for a load that only
goes on while an event loop runs: it may be blocking that very loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Any

from icefloe.storage.process_forks import repair_after_fork


class InFlight:
    """The objects being loaded, by key. A load that fails ends with None."""

    def __init__(self) -> None:
        self._lock = Lock()  # held for dictionary work only, never across an await
        self._loads: dict[str, Future[Any]] = {}
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        # The threads that would have finished these loads are not in this process.
        self._lock, self._loads = Lock(), {}

    def claim(self, keys: Iterable[str]) -> tuple[list[str], dict[str, Future[Any]]]:
        """Which of the keys the caller has to load and `finish`, and what others load already."""
        mine: list[str] = []
        theirs: dict[str, Future[Any]] = {}
        with self._lock:
            for key in keys:
                load = self._loads.get(key)
                if load is not None:
                    theirs[key] = load
                    continue
                self._loads[key] = load = Future()
                load.set_running_or_notify_cancel()  # so that no one who waits can cancel it
                mine.append(key)
        return mine, theirs

    def finish(self, mine: Iterable[str], loaded: Mapping[str, Any]) -> None:
        """Tell those who wait; what is not in `loaded` could not be loaded."""
        with self._lock:
            loads = [(key, self._loads.pop(key, None)) for key in mine]
        for key, load in loads:
            if load is not None:
                load.set_result(loaded.get(key))
