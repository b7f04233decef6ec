"""A driver that passes every call on, for others to step in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from icefloe.config.resolved import ResolvedStorage
from icefloe.errors import StorageError
from icefloe.storage.driver import (
    Describe,
    Driver,
    ObjectInfo,
    ObjectPage,
    Readable,
    Span,
    Take,
    Version,
    join_pages,
    taken,
)


class WrappingDriver:
    """A `Driver` over another one. `before` is awaited ahead of every request, `after` behind it.

    A request is one call; the `_many` calls count as one per object, in order.
    """

    def __init__(self, inner: Driver) -> None:
        self.inner = inner
        self.settings: ResolvedStorage = inner.settings
        self.is_local = inner.is_local
        self.can_write = inner.can_write
        self.can_list = inner.can_list

    async def before(self, method: str, key: str) -> None:
        """Called ahead of a request; raise to keep it from happening."""

    async def after(self, method: str, key: str) -> None:
        """Called behind a request that succeeded; raise to lose its answer."""

    async def get(self, key: str, span: Span | None = None) -> Readable:
        await self.before("get", key)
        found = await self.inner.get(key, span)
        await self.after("get", key)
        return found

    async def get_many(
        self, wanted: Sequence[tuple[str, Span | None]], take: Take | None = None
    ) -> list[Any]:
        return taken([await self.get(key, span) for key, span in wanted], take)

    async def get_versioned(self, key: str) -> tuple[bytes, Version]:
        await self.before("get_versioned", key)
        found = await self.inner.get_versioned(key)
        await self.after("get_versioned", key)
        return found

    async def get_if_changed(self, key: str, version: Version) -> tuple[bytes, Version] | None:
        await self.before("get_if_changed", key)
        found = await self.inner.get_if_changed(key, version)
        await self.after("get_if_changed", key)
        return found

    async def put(
        self,
        key: str,
        data: Any,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        storage_class: str | None = None,
    ) -> None:
        await self.before("put", key)
        await self.inner.put(
            key,
            data,
            metadata=metadata,
            content_type=content_type,
            storage_class=storage_class,
        )
        await self.after("put", key)

    async def put_many(
        self,
        objects: Sequence[tuple[str, Any]],
        *,
        describe: Describe | None = None,
        storage_class: str | None = None,
    ) -> None:
        for key, data in objects:
            metadata = None if describe is None else describe(data)
            await self.put(key, data, metadata=metadata, storage_class=storage_class)

    async def put_new(
        self,
        objects: Sequence[tuple[str, Any]],
        *,
        describe: Describe | None = None,
        storage_class: str | None = None,
    ) -> None:
        await self.put_many(objects, describe=describe, storage_class=storage_class)

    async def put_if(
        self,
        key: str,
        data: bytes,
        *,
        previous: Version | None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Version:
        await self.before("put_if", key)
        version = await self.inner.put_if(
            key, data, previous=previous, metadata=metadata, content_type=content_type
        )
        await self.after("put_if", key)
        return version

    async def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self.before("delete", key)
            await self.inner.delete_many([key])
            await self.after("delete", key)

    async def delete_batches(
        self, batches: Sequence[Sequence[str]]
    ) -> Sequence[StorageError | None]:
        return [await self._delete_batch(batch) for batch in batches]

    async def _delete_batch(self, batch: Sequence[str]) -> StorageError | None:
        try:
            await self.delete_many(batch)
        except StorageError as error:
            return error
        return None

    async def head(self, key: str) -> ObjectInfo:
        await self.before("head", key)
        found = await self.inner.head(key)
        await self.after("head", key)
        return found

    async def head_many(self, keys: Sequence[str]) -> ObjectPage:
        """One after the other, so that something can happen in between."""
        rows = []
        for key in keys:
            await self.before("head", key)
            rows.append(await self.inner.head_many([key]))
            await self.after("head", key)
        return join_pages(rows)

    async def is_empty(self) -> bool:
        await self.before("is_empty", "")
        found = await self.inner.is_empty()
        await self.after("is_empty", "")
        return found

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
        """Not a request."""
        self.inner.keep_reserve(num_bytes)

    def give_up_reserve(self) -> bool:
        """Not a request."""
        return self.inner.give_up_reserve()

    async def list(self, prefix: str) -> list[ObjectInfo]:
        await self.before("list", prefix)
        found = await self.inner.list(prefix)
        await self.after("list", prefix)
        return found

    async def list_top(self) -> Sequence[str]:
        await self.before("list", "")
        found = await self.inner.list_top()
        await self.after("list", "")
        return found

    async def list_pages(
        self, folder: str, at_once: int, *, names_only: bool = False
    ) -> Sequence[ObjectPage]:
        await self.before("list", folder)
        found = await self.inner.list_pages(folder, at_once, names_only=names_only)
        await self.after("list", folder)
        return found
