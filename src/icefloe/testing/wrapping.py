"""A driver that passes every call on, for others to step in between."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import wraps
from typing import Any, Unpack

from icefloe.errors import StorageError
from icefloe.storage.driver import (
    AboutMany,
    Driver,
    ObjectPage,
    Objects,
    Reads,
    Take,
    about_one,
    join_pages,
    taken,
)


def _request(method: Any, reported: str | None = None) -> Any:
    """A method that makes one request of the inner driver, about the key in its first argument."""
    name = reported or method.__name__

    @wraps(method)
    async def call(self: WrappingDriver, *args: Any, **options: Any) -> Any:
        key = args[0] if args else ""
        await self.before(name, key)
        result = await getattr(self.inner, method.__name__)(*args, **options)
        await self.after(name, key)
        return result

    return call


class WrappingDriver(Driver):
    """A `Driver` over another one. `before` is awaited ahead of every request, `after` behind it.

    A request is one call; the `_many` calls count as one per object, in order.
    """

    def __init__(self, inner: Driver) -> None:
        self.inner = inner
        self.settings = inner.settings
        self.is_local = inner.is_local
        self.can_write = inner.can_write
        self.can_list = inner.can_list

    async def before(self, method: str, key: str) -> None:
        """Called ahead of a request; raise to keep it from happening."""

    async def after(self, method: str, key: str) -> None:
        """Called behind a request that succeeded; raise to lose its answer."""

    get = _request(Driver.get)
    get_versioned = _request(Driver.get_versioned)
    get_if_changed = _request(Driver.get_if_changed)
    put = _request(Driver.put)
    put_if = _request(Driver.put_if)
    head = _request(Driver.head)
    is_empty = _request(Driver.is_empty)
    list = _request(Driver.list)
    list_top = _request(Driver.list_top, "list")
    list_pages = _request(Driver.list_pages, "list")

    async def get_many(self, wanted: Reads, take: Take | None = None) -> Any:
        return taken([await self.get(key, span) for key, span in wanted], take)

    async def put_many(self, objects: Objects, **about: Unpack[AboutMany]) -> None:
        for key, data in objects:
            await self.put(key, data, **about_one(data, about))

    async def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self.before("delete", key)
            await self.inner.delete_many([key])
            await self.after("delete", key)

    async def delete_batches(
        self, batches: Sequence[Sequence[str]]
    ) -> Sequence[StorageError | None]:
        failures: list[StorageError | None] = []
        for batch in batches:
            try:
                await self.delete_many(batch)
                failures.append(None)
            except StorageError as error:
                failures.append(error)
        return failures

    async def head_many(self, keys: Sequence[str]) -> ObjectPage:
        rows = []
        for key in keys:
            await self.before("head", key)
            rows.append(await self.inner.head_many([key]))
            await self.after("head", key)
        return join_pages(rows)

    async def sync(self) -> None:
        """Not a request: nothing can be seen of it."""
        await self.inner.sync()

    async def sleep(self, seconds: float) -> None:
        """Does not wait: tests have no time to lose."""

    async def wait_for(self, work: Future[Any], seconds: float) -> bool:
        """Does not wait either: whoever is to finish the work may be driven by the same test."""
        return work.done()

    def turn(self) -> None:
        """No queue: whoever is first in it may be driven by the same test."""

    def keep_reserve(self, num_bytes: int) -> None:
        self.inner.keep_reserve(num_bytes)

    def give_up_reserve(self) -> bool:
        return self.inner.give_up_reserve()
