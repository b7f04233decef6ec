"""The few calls into obstore that a driver is made of, in a blocking and an event-loop flavour.

The driver's body is written once over these (`remote.py`). This is the blocking flavour, which
finishes each call before it returns; the other one is in `eventloop.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from icefloe.observe import is_tracing
from icefloe.storage.client.interruptible import MAX_THREADS, DaemonThreads, interruptibly
from icefloe.storage.process_forks import check_obstore_is_ours
from icefloe.storage.run import run_blocking, wait_blocking

if TYPE_CHECKING:
    from obstore import Bytes, GetOptions, GetResult, ListResult, ObjectMeta, PutResult
    from obstore.store import ObjectStore

    from icefloe.storage.driver import Span

Item = TypeVar("Item")
Result = TypeVar("Result")

KEYS_OF_PAGE = 1000
"""What services send at once."""


_NO_LIMIT: AbstractAsyncContextManager[Any] = nullcontext()


class Calls(Protocol):
    """Requests to an object store. Errors are obstore's."""

    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Held during a request, so that no more than the limit are in flight at once."""
        ...

    async def start_get(
        self, store: ObjectStore, key: str, options: GetOptions | None
    ) -> GetResult:
        """Headers and attributes of an object; its bytes are still to come."""
        ...

    async def finish_get(self, result: GetResult) -> Bytes: ...

    async def get_range(self, store: ObjectStore, key: str, span: Span) -> Bytes:
        """Part of an object, in one call. Nothing is learned about the object."""
        ...

    async def put(
        self, store: ObjectStore, key: str, data: Any, options: Mapping[str, Any]
    ) -> PutResult: ...

    async def head(self, store: ObjectStore, key: str) -> ObjectMeta: ...

    async def list_top(self, store: ObjectStore) -> ListResult[Sequence[ObjectMeta]]:
        """Objects and folders at the root."""
        ...

    async def list_while(
        self,
        store: ObjectStore,
        prefix: str | None,
        offset: str | None,
        take: Callable[[Sequence[ObjectMeta]], bool],
    ) -> None:
        """Hand pages of keys behind `offset` to `take`, until there are no more or it says no."""
        ...

    async def delete(self, store: ObjectStore, keys: list[str]) -> None: ...

    async def each(
        self, function: Callable[[Item], Coroutine[Any, Any, Result]], items: Sequence[Item]
    ) -> list[Result]:
        """`function` of every item, several at a time; the first error ends it."""
        ...

    async def together(
        self,
        function: Callable[
            [str, Sequence[Item]], Coroutine[Any, Any, Sequence[Result | Exception]]
        ],
        key: str,
        item: Item,
    ) -> Result:
        """`function` of this item and of others that are asked for `key` at the same moment.

        It returns an outcome for every item; an exception is raised to the caller of that item.
        """
        ...

    async def call(self, function: Callable[[], Result]) -> Result:
        """The result of something that blocks, without keeping others from working."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def wait_for(self, work: Future[Any], seconds: float) -> bool: ...


class BlockingCalls:
    """Never suspends; several things at a time are done by threads."""

    def __init__(self, max_concurrent_requests: int) -> None:
        self._num_threads = min(max_concurrent_requests, MAX_THREADS)
        self._lock = threading.Lock()
        self._pool: DaemonThreads | None = None

    def turn(self) -> AbstractAsyncContextManager[Any]:
        return _NO_LIMIT  # the threads are the limit

    async def start_get(
        self, store: ObjectStore, key: str, options: GetOptions | None
    ) -> GetResult:
        return interruptibly(lambda: store.get(key, options=options))

    async def finish_get(self, result: GetResult) -> Bytes:
        return interruptibly(result.bytes)

    async def get_range(self, store: ObjectStore, key: str, span: Span) -> Bytes:
        start, length = span
        return interruptibly(lambda: store.get_range(key, start=start, length=length))

    async def put(
        self, store: ObjectStore, key: str, data: Any, options: Mapping[str, Any]
    ) -> PutResult:
        return interruptibly(lambda: store.put(key, data, **options))

    async def head(self, store: ObjectStore, key: str) -> ObjectMeta:
        return interruptibly(lambda: store.head(key))

    async def list_top(self, store: ObjectStore) -> ListResult[Sequence[ObjectMeta]]:
        return interruptibly(store.list_with_delimiter)

    async def list_while(
        self,
        store: ObjectStore,
        prefix: str | None,
        offset: str | None,
        take: Callable[[Sequence[ObjectMeta]], bool],
    ) -> None:
        pages = iter(store.list(prefix, offset=offset, chunk_size=KEYS_OF_PAGE))
        while (page := interruptibly(lambda: next(pages, None))) is not None:
            if not take(page):
                return

    async def delete(self, store: ObjectStore, keys: list[str]) -> None:
        interruptibly(lambda: store.delete(keys))

    async def each(
        self, function: Callable[[Item], Coroutine[Any, Any, Result]], items: Sequence[Item]
    ) -> list[Result]:
        if len(items) < 2:
            return [await function(item) for item in items]
        check_obstore_is_ours()  # a forked child has the pool, but none of its threads
        with self._lock:
            if self._pool is None:
                self._pool = DaemonThreads(self._num_threads, "icefloe-storage")
        # Spans of requests belong to the span of the operation that made them.
        context = copy_context() if is_tracing() else None

        def work(item: Item) -> Result:
            if context is None:
                return run_blocking(function(item))
            return context.copy().run(lambda: run_blocking(function(item)))

        futures = [self._pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    async def together(
        self,
        function: Callable[
            [str, Sequence[Item]], Coroutine[Any, Any, Sequence[Result | Exception]]
        ],
        key: str,
        item: Item,
    ) -> Result:
        [outcome] = await function(key, [item])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def call(self, function: Callable[[], Result]) -> Result:
        return function()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def wait_for(self, work: Future[Any], seconds: float) -> bool:
        return wait_blocking(work, seconds)
