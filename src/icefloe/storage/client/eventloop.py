"""The calls into obstore for programs with an event loop: they really wait.

The only module that knows asyncio. Nothing is bound to one loop, so that a driver can be shared
by several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from icefloe.storage.client.calls import KEYS_OF_PAGE
from icefloe.storage.client.interruptible import MAX_THREADS, DaemonThreads

if TYPE_CHECKING:
    from obstore import Bytes, GetOptions, GetResult, ListResult, ObjectMeta, PutResult
    from obstore.store import ObjectStore

    from icefloe.storage.driver import Span

Item = TypeVar("Item")
Result = TypeVar("Result")


MAX_IN_FLIGHT = 64
"""More requests at once do not make one event loop faster. A server that gets more new connections
than it can queue drops some, and the client notices a second later."""
MOMENT_S = 0.002
"""Small against the time a request takes."""


class EventLoopCalls:
    """See `icefloe.storage.client.calls.Calls`."""

    def __init__(self, max_concurrent_requests: int) -> None:
        self._num_workers = max_concurrent_requests
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )
        self._asked: dict[tuple[asyncio.AbstractEventLoop, str], list[tuple[Any, Any]]] = {}
        self._answering: dict[tuple[asyncio.AbstractEventLoop, str], set[asyncio.Task[None]]] = {}

    def turn(self) -> AbstractAsyncContextManager[Any]:
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop)
        if turns is None:
            limit = max(1, min(self._num_workers, MAX_IN_FLIGHT))
            turns = self._turns.setdefault(loop, asyncio.Semaphore(limit))
        return turns

    async def start_get(
        self, store: ObjectStore, key: str, options: GetOptions | None
    ) -> GetResult:
        return await store.get_async(key, options=options)

    async def finish_get(self, result: GetResult) -> Bytes:
        return await result.bytes_async()

    async def get_range(self, store: ObjectStore, key: str, span: Span) -> Bytes:
        return await store.get_range_async(key, start=span.start, length=span.length)

    async def put(
        self, store: ObjectStore, key: str, data: Any, options: Mapping[str, Any]
    ) -> PutResult:
        return await store.put_async(key, data, **options)

    async def head(self, store: ObjectStore, key: str) -> ObjectMeta:
        return await store.head_async(key)

    async def list_top(self, store: ObjectStore) -> ListResult[Sequence[ObjectMeta]]:
        return await store.list_with_delimiter_async()

    async def list_while(
        self,
        store: ObjectStore,
        prefix: str | None,
        offset: str | None,
        take: Callable[[Sequence[ObjectMeta]], bool],
    ) -> None:
        async for page in store.list(prefix, offset=offset, chunk_size=KEYS_OF_PAGE):
            if not take(page):
                return

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

    async def together(
        self,
        function: Callable[
            [str, Sequence[Item]], Coroutine[Any, Any, Sequence[Result | Exception]]
        ],
        key: str,
        item: Item,
    ) -> Result:
        """Whatever is asked for until the loop has been through everything that is ready now.

        While others of `key` are under way a moment is added: readers that go through an object
        side by side would else get out of step, and end up with a request each.
        """
        loop = asyncio.get_running_loop()
        asked = self._asked.get((loop, key))
        if asked is None:
            asked = self._asked[loop, key] = []
            pause = MOMENT_S if self._answering.get((loop, key)) else 0
            loop.call_later(pause, self._answer_together, function, loop, key)
        answer: asyncio.Future[Result] = loop.create_future()
        asked.append((item, answer))
        return await answer

    def _answer_together(
        self, function: Callable[..., Any], loop: asyncio.AbstractEventLoop, key: str
    ) -> None:
        task = loop.create_task(_answer(function, key, self._asked.pop((loop, key))))
        answering = self._answering.setdefault((loop, key), set())
        answering.add(task)

        def finish(task: asyncio.Task[None]) -> None:
            answering.discard(task)
            if not answering and self._answering.get((loop, key)) is answering:
                del self._answering[loop, key]

        task.add_done_callback(finish)

    async def call(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(_threads, function)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait_for(self, work: Future[Any], seconds: float) -> bool:
        done, _ = await asyncio.wait([asyncio.wrap_future(work)], timeout=seconds)
        return bool(done)


async def _answer(
    function: Callable[..., Any], key: str, asked: Sequence[tuple[Any, asyncio.Future[Any]]]
) -> None:
    try:
        outcomes = await function(key, [item for item, _ in asked])
    except BaseException as error:
        is_over = isinstance(error, asyncio.CancelledError)
        for _, answer in asked:
            if not answer.done():
                answer.cancel() if is_over else answer.set_exception(error)
        if is_over:
            raise
        return
    for (_, answer), outcome in zip(asked, outcomes, strict=True):
        if answer.done():  # the caller was cancelled
            continue
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)


_threads = DaemonThreads(MAX_THREADS, "icefloe-reads")
"""For what blocks, more than asyncio's own few: most of them wait for a server."""
