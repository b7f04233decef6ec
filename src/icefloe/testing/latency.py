"""A storage that answers late, for what only shows when requests take time."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, cast

from icefloe.config.repository import ResolvedStorage
from icefloe.storage.driver import Driver
from icefloe.storage.spec import MAX_CONCURRENT_REQUESTS, Storage

_WRITES = {"put", "put_many", "put_new", "put_if", "delete_many", "delete_batches"}
_AT_ONCE = {"sync", "sleep", "wait_for"}
"""Methods of a driver that are no requests."""


class LatencyStorage(Storage):
    """Another storage, with a pause ahead of each call; the pauses can be changed at any time.

    Calls for several objects pause once, as requests that are sent together would.

    >>> storage = LatencyStorage(icefloe.in_memory_storage(), read_latency_ms=20)
    >>> repo = icefloe.Repository.create(storage)
    """

    __slots__ = ("inner", "read_latency_ms", "write_latency_ms")

    def __init__(
        self, inner: Storage, *, write_latency_ms: int = 0, read_latency_ms: int = 0
    ) -> None:
        super().__init__(inner.location, inner.attribution)
        self.inner = inner
        self.write_latency_ms = write_latency_ms
        self.read_latency_ms = read_latency_ms

    def bound(self) -> LatencyStorage:
        """Itself: its pauses can be changed while repositories use it."""
        self.inner = self.inner.bound()
        return self

    def driver(
        self,
        settings: ResolvedStorage | None = None,
        *,
        blocking: bool,
        max_concurrent_requests: int = MAX_CONCURRENT_REQUESTS,
    ) -> Driver:
        """The driver of the other storage, with pauses."""
        inner = self.inner.driver(
            settings, blocking=blocking, max_concurrent_requests=max_concurrent_requests
        )
        return cast(Driver, _LateDriver(inner, self, blocking=blocking))

    def __repr__(self) -> str:
        return (
            f"LatencyStorage(write_latency_ms={self.write_latency_ms}, "
            f"read_latency_ms={self.read_latency_ms})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(
            LatencyStorage,
            write_latency_ms=self.write_latency_ms,
            read_latency_ms=self.read_latency_ms,
        )
        return make, (self.inner,)


class _LateDriver:
    """A driver that passes every call on to another one, requests after a pause."""

    def __init__(self, inner: Driver, storage: LatencyStorage, *, blocking: bool) -> None:
        self._inner = inner
        self._storage = storage
        self._is_blocking = blocking
        self.settings = inner.settings
        self.is_local = False  # a pause must not hold up an event loop
        self.can_write = inner.can_write
        self.can_list = inner.can_list

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name in _AT_ONCE:
            return method

        async def late(*args: Any, **kwargs: Any) -> Any:
            storage = self._storage
            await self._pause(
                storage.write_latency_ms if name in _WRITES else storage.read_latency_ms
            )
            return await method(*args, **kwargs)

        return late

    def keep_reserve(self, num_bytes: int) -> None:
        """Not a request."""

    def give_up_reserve(self) -> bool:
        return False

    def turn(self) -> None:
        """No queue: the first in it may pause in the event loop in which another one waits."""

    async def _pause(self, milliseconds: int) -> None:
        if milliseconds and self._is_blocking:
            time.sleep(milliseconds / 1000)
        elif milliseconds:
            await asyncio.sleep(milliseconds / 1000)
