"""A least-recently-used cache bounded by weight and by bytes, and loads that readers share."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

from icefloe.observe import CACHE
from icefloe.storage.run import repair_after_fork

Value = TypeVar("Value")


class _Entry(NamedTuple):
    value: Any
    weight: int
    nbytes: int


class BoundedCache(Generic[Value]):
    """Keeps the most recently used values within both limits. Values must be immutable.

    Without `max_bytes`, only weights are limited. What is found is logged under `name`.
    """

    def __init__(
        self, capacity: int, max_bytes: int | None = None, *, name: str | None = None
    ) -> None:
        self._name = name
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._newest: tuple[Hashable, Value] | None = None
        self._weight = self._nbytes = 0
        self._lock = Lock()  # held for dictionary work only, never across an await
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        """After a fork of the process: another thread may have held the lock, so start empty."""
        self._lock = Lock()
        self._entries = OrderedDict()
        self._newest = None
        self._weight = self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all values whose size is known."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable) -> Value | None:
        newest = self._newest  # readers often want the same value many times in a row
        if newest is None or newest[0] != key:
            with self._lock:
                entry = self._entries.get(key)
                if entry is None:
                    return None
                self._entries.move_to_end(key)
                newest = self._newest = key, entry.value
        if self._name is not None and CACHE.isEnabledFor(logging.DEBUG):
            CACHE.debug("%s %s was in memory", self._name, key)
        return newest[1]

    def put(self, key: Hashable, value: Value, weight: int, nbytes: int = 0) -> None:
        if self._is_over(weight, nbytes):
            return
        with self._lock:
            self._remove(key)
            self._entries[key] = _Entry(value, weight, nbytes)
            self._newest = key, value
            self._weight += weight
            self._nbytes += nbytes
            while self._is_over(self._weight, self._nbytes):
                self._remove(next(iter(self._entries)))

    def drop(self, keys: Iterable[Hashable]) -> None:
        """Drop values that will not be read again. Missing keys are ignored."""
        with self._lock:
            for key in keys:
                self._remove(key)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()
            self._newest = None
            self._weight = self._nbytes = 0

    def _is_over(self, weight: int, nbytes: int) -> bool:
        return weight > self._capacity or (self._max_bytes is not None and nbytes > self._max_bytes)

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        self._newest = None
        if entry is not None:
            self._weight -= entry.weight
            self._nbytes -= entry.nbytes


class InFlight:
    """The objects that are being loaded, by key. Concurrent readers of one object share a load.

    The result of a failed load is None. Each flavour of driver has its own table. Blocking code
    must not wait for a load that needs an event loop to proceed, because it may be blocking that
    loop.
    """

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
