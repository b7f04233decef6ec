"""Waiting for a server so that Ctrl-C ends the wait at once.

A call into obstore blocks below Python, where a signal is noticed only when the call returns. The
main thread is the one that gets KeyboardInterrupt, so it leaves such calls to another thread and
waits in Python. The request itself is not called back: it may still be carried out.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from icefloe.storage.process_forks import repair_after_fork

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

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
