"""Loads in flight: concurrent readers of one object share one load.

Each flavour of driver has its own table. Blocking code must not wait for a load that needs an
event loop to proceed, because it may be blocking that loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Any

from icefloe.storage.process_forks import repair_after_fork


class InFlight:
    """The objects that are being loaded, by key. The result of a failed load is None."""

    def __init__(self) -> None:
        self._lock = Lock()  # held for dictionary work only, never across an await
        self._loads: dict[str, Future[Any]] = {}
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        # The threads that run these loads do not exist in the child process.
        self._lock, self._loads = Lock(), {}

    def claim(self, keys: Iterable[str]) -> tuple[list[str], dict[str, Future[Any]]]:
        """The keys that the caller has to load and `finish`, and the loads to wait for."""
        mine: list[str] = []
        theirs: dict[str, Future[Any]] = {}
        with self._lock:
            for key in keys:
                load = self._loads.get(key)
                if load is not None:
                    theirs[key] = load
                    continue
                self._loads[key] = load = Future()
                load.set_running_or_notify_cancel()  # a waiting reader cannot cancel it
                mine.append(key)
        return mine, theirs

    def finish(self, mine: Iterable[str], loaded: Mapping[str, Any]) -> None:
        """Wake the readers that wait. A key that is not in `loaded` failed to load."""
        with self._lock:
            loads = [(key, self._loads.pop(key, None)) for key in mine]
        for key, load in loads:
            if load is not None:
                load.set_result(loaded.get(key))
