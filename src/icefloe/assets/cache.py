"""A least-recently-used cache bounded by weight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Keeps what was used last, as long as the weights fit. Immutable values only."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._weight = 0
        self._lock = Lock()  # held for dictionary work only, never across an await

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: Value, weight: int) -> None:
        if weight > self._capacity:
            return
        with self._lock:
            if (old := self._entries.pop(key, None)) is not None:
                self._weight -= old[1]
            self._entries[key] = (value, weight)
            self._weight += weight
            while self._weight > self._capacity:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._weight -= dropped
