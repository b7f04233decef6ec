"""The calls into obstore for programs with an event loop: they really wait.

The only module that knows asyncio. Nothing is bound to one loop, so that a driver can be shared
by several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from icefloe.storage.calls import SEVERAL_KEYS

if TYPE_CHECKING:
    from obstore import Bytes, GetOptions, GetResult, ObjectMeta, PutResult
    from obstore.store import ObjectStore

Item = TypeVar("Item")
Result = TypeVar("Result")


class EventLoopCalls:
    """See `icefloe.storage.calls.Calls`."""

    def __init__(self, max_concurrent_requests: int) -> None:
        self._num_workers = max_concurrent_requests

    async def start_get(
        self, store: ObjectStore, key: str, options: GetOptions | None
    ) -> GetResult:
        return await store.get_async(key, options=options)

    async def finish_get(self, result: GetResult) -> Bytes:
        return await result.bytes_async()

    async def put(
        self, store: ObjectStore, key: str, data: Any, options: Mapping[str, Any]
    ) -> PutResult:
        return await store.put_async(key, data, **options)

    async def head(self, store: ObjectStore, key: str) -> ObjectMeta:
        return await store.head_async(key)

    async def list_all(self, store: ObjectStore, prefix: str | None) -> list[ObjectMeta]:
        return list(await store.list(prefix).collect_async())

    async def list_some(self, store: ObjectStore) -> list[ObjectMeta]:
        async for page in store.list(chunk_size=SEVERAL_KEYS):
            return list(page)
        return []

    async def delete(self, store: ObjectStore, keys: list[str]) -> None:
        await store.delete_async(keys)

    async def each(
        self, function: Callable[[Item], Coroutine[Any, Any, Result]], items: Sequence[Item]
    ) -> list[Result]:
        if len(items) < 2:
            return [await function(item) for item in items]
        results: dict[int, Result] = {}
        todo = iter(enumerate(items))

        async def work() -> None:
            for number, item in todo:
                results[number] = await function(item)

        num_workers = min(self._num_workers, len(items))
        workers = [asyncio.create_task(work()) for _ in range(num_workers)]
        try:
            await asyncio.gather(*workers)
        except BaseException:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            raise
        return [results[number] for number in range(len(items))]

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
