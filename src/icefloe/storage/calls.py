"""The few calls into obstore that a driver is made of, in a blocking and an event-loop flavour.

The driver's body is written once over these (`remote.py`). `BlockingCalls` finishes each call
before it returns, `EventLoopCalls` suspends.

A call into obstore blocks below Python, where a signal is noticed only when the call returns. The
main thread is the one that gets KeyboardInterrupt, so it leaves such calls to another thread and
waits in Python (`interruptibly`). The request itself is not called back: it may still be carried
out.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from icefloe.observe import is_tracing
from icefloe.storage.driver import Span
from icefloe.storage.run import (
    check_obstore_is_ours,
    repair_after_fork,
    run_blocking,
    wait_blocking,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

Item = TypeVar("Item")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

MAX_THREADS = 64
_LOOK_AGAIN_S = 0.5
"""Windows notices Ctrl-C only between two waits."""

_Queue = SimpleQueue[Any]
"""Of (future, function); None ends a thread."""


class DaemonThreads(Executor):
    """A pool of threads that a process does not wait for when it ends.

    `ThreadPoolExecutor` makes a program that was interrupted wait for its last request.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads, self._name = max_threads, name
        self.after_fork_in_child()
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        """The threads of the parent do not exist in a forked child."""
        self._lock = threading.Lock()
        self._queue: _Queue = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _end, self._queue, self._threads)

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """See `concurrent.futures.Executor.submit`."""
        future: Future[Result] = Future()
        self._queue.put((future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if len(self._threads) < self._max_threads:
                    thread = threading.Thread(
                        target=_work, args=(self._queue, self._idle), name=self._name, daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()
        return future


def _work(queue: _Queue, idle: threading.Semaphore) -> None:
    while True:
        found = queue.get()
        if found is None:
            return
        future, function = found
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the one who waits gets it
                future.set_exception(error)
        del found, future, function  # results must not live as long as the thread
        idle.release()


def _end(queue: _Queue, threads: list[threading.Thread]) -> None:
    for _ in threads:
        queue.put(None)


_helpers = DaemonThreads(MAX_THREADS, "icefloe-waits")


def interruptibly(function: Callable[[], Result]) -> Result:
    """The result of something that blocks below Python."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    work = _helpers.submit(function)
    try:
        while not work.done():
            with contextlib.suppress(TimeoutError):  # one of the function is raised below
                return work.result(_LOOK_AGAIN_S)
        return work.result()
    finally:
        del work  # an exception refers to this frame: that would be a cycle


# --- shared requests --------------------------------------------------------------------------


MAX_SHARED_BYTES = 1 << 20
"""Reads above this size are worth a request of their own."""
MAX_REQUEST_BYTES = 8 << 20
MAX_GAP_BYTES = 256 << 10
"""Largest gap between two ranges that is fetched rather than split into two requests."""


class SharedRequest(NamedTuple):
    """One request, and the numbers of the spans that lie in it."""

    span: Span
    members: list[int]


def can_share(span: Span | None) -> bool:
    """Whether a read may wait for others; one from the start is most likely of a whole object."""
    return span is not None and span.start > 0 and 0 < span.length <= MAX_SHARED_BYTES


def share_requests(spans: Sequence[Span]) -> list[SharedRequest]:
    """The requests to fetch all spans with, in the order of their positions."""
    requests: list[SharedRequest] = []
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        start, length = spans[number]
        if requests:
            first, covered = requests[-1].span
            end = max(first + covered, start + length)
            if start <= first + covered + MAX_GAP_BYTES and end <= first + MAX_REQUEST_BYTES:
                requests[-1].members.append(number)
                requests[-1] = requests[-1]._replace(span=Span(first, end - first))
                continue
        requests.append(SharedRequest(spans[number], [number]))
    return requests


# --- calls ------------------------------------------------------------------------------------


KEYS_OF_PAGE = 1000
"""What services send at once."""


Single = Callable[[Item], Coroutine[Any, Any, Result]]
Batched = Callable[[str, Sequence[Item]], Coroutine[Any, Any, Sequence[Result | Exception]]]
TakePage = Callable[["Sequence[ObjectMeta]"], bool]
_NO_LIMIT: AbstractAsyncContextManager[Any] = nullcontext()


class BlockingCalls:
    """Requests to an object store without suspending; threads do several things at a time.

    Errors are obstore's.
    """

    def __init__(self, max_concurrent_requests: int) -> None:
        self._num_threads = min(max_concurrent_requests, MAX_THREADS)
        self._lock = threading.Lock()
        self._pool: DaemonThreads | None = None

    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Held during a request, so that no more than the limit are in flight at once."""
        return _NO_LIMIT  # the threads are the limit

    async def request(
        self,
        blocking: Callable[..., Result],
        waiting: Callable[..., Awaitable[Result]],
        *arguments: Any,
        **options: Any,
    ) -> Result:
        """The result of a method of obstore, which has two forms: one blocks, one is awaited."""
        return interruptibly(lambda: blocking(*arguments, **options))

    async def list_while(
        self, store: ObjectStore, prefix: str | None, offset: str | None, take: TakePage
    ) -> None:
        """Hand pages of keys behind `offset` to `take`, until there are no more or it says no."""
        pages = iter(store.list(prefix, offset=offset, chunk_size=KEYS_OF_PAGE))
        while (page := interruptibly(lambda: next(pages, None))) is not None:
            if not take(page):
                return

    async def each(self, function: Single[Item, Result], items: Sequence[Item]) -> list[Result]:
        """`function` of every item, several at a time; the first error ends it."""
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

    async def together(self, function: Batched[Item, Result], key: str, item: Item) -> Result:
        """`function` of this item and of others that are wanted of `key` at the same moment.

        It returns an outcome for every item; an exception is raised to the caller of that item.
        """
        [outcome] = await function(key, [item])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def call(self, function: Callable[[], Result]) -> Result:
        """The result of something that blocks, without keeping others from working."""
        return function()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def wait_for(self, work: Future[Any], seconds: float) -> bool:
        return wait_blocking(work, seconds)


MAX_IN_FLIGHT = 64
"""More requests at once do not make one event loop faster. A server that gets more new connections
than it can queue drops some, and the client notices a second later."""
MOMENT_S = 0.002
"""Small against the time a request takes."""


class EventLoopCalls:
    """The same, really waiting. Nothing is bound to one event loop: several can share a driver."""

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

    async def request(
        self,
        blocking: Callable[..., Result],
        waiting: Callable[..., Awaitable[Result]],
        *arguments: Any,
        **options: Any,
    ) -> Result:
        return await waiting(*arguments, **options)

    async def list_while(
        self, store: ObjectStore, prefix: str | None, offset: str | None, take: TakePage
    ) -> None:
        async for page in store.list(prefix, offset=offset, chunk_size=KEYS_OF_PAGE):
            if not take(page):
                return

    async def each(self, function: Single[Item, Result], items: Sequence[Item]) -> list[Result]:
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

    async def together(self, function: Batched[Item, Result], key: str, item: Item) -> Result:
        """Collects all requests made in the current event-loop iteration.

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


Calls = BlockingCalls | EventLoopCalls


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
