"""Finishing a coroutine without an event loop, and what survives `os.fork`."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet, WeakValueDictionary

from icefloe.errors import ErrorKind, InternalError, StorageError

# -- Finishing a coroutine without an event loop.


Result = TypeVar("Result")


def run_blocking(operation: Coroutine[Any, Any, Result]) -> Result:
    """Finish `operation` now. It must only await drivers that never suspend.

    Cost: one `send`, well below a microsecond; no thread and no event loop is involved.
    """
    try:
        operation.send(None)
    except StopIteration as finished:
        value: Result = finished.value
        return value
    operation.close()
    raise InternalError("an operation waited for an event loop while running in blocking mode")


def each_blocking(items: AsyncIterator[Result]) -> Iterator[Result]:
    """The items, each made when it is wanted. Making one must only await drivers that never
    suspend."""

    async def following() -> Result:
        return await anext(items)

    while True:
        try:
            item = run_blocking(following())
        except StopAsyncIteration:
            return
        yield item


def wait_blocking(work: Future[Any], seconds: float) -> bool:
    """Whether another thread got its work done within so many seconds."""
    return bool(wait([work], seconds).done)


# -- What a forked child may still use of its parent's storage.
#
# obstore runs threads, and a fork does not copy threads. A child that calls obstore after its
# parent has used it would hang, so such calls raise an error here. Memory and directories keep
# working. A fork copies locks in their state. A lock that another thread of the parent holds
# would never be released in the child. So objects with a lock or a thread pool register here to
# get a new one.


class ForkAware(Protocol):
    """Something that has to be repaired in a forked child."""

    def after_fork_in_child(self) -> None: ...


Key = TypeVar("Key")
Value = TypeVar("Value")


class _ObstoreUse:
    """Whether obstore was used here, or by a parent process before the fork."""

    def __init__(self) -> None:
        self.has_been_used = False
        self.is_inherited = False


_use = _ObstoreUse()
_aware: WeakSet[ForkAware] = WeakSet()


def repair_after_fork(thing: ForkAware) -> None:
    """Have `thing.after_fork_in_child` called in every forked child, as long as it lives."""
    _aware.add(thing)


class RenewedLock:
    """A lock that is free in a forked child. No code forks while it holds the lock."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Registry(Generic[Key, Value]):
    """At most one living object per key in this process."""

    def __init__(self) -> None:
        self._living: WeakValueDictionary[Key, Value] = WeakValueDictionary()
        self._lock = RenewedLock()

    def find(self, key: Key) -> Value | None:
        with self._lock:
            return self._living.get(key)

    def find_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The object of this key. If two threads make it at once, both get the same one."""
        found = self.find(key)
        if found is None:
            made = make()  # outside the lock: it may take long
            with self._lock:
                found = self._living.setdefault(key, made)
        return found


def note_obstore_use() -> None:
    """Record that this process is about to use obstore."""
    check_obstore_is_ours()
    _use.has_been_used = True


def check_obstore_is_ours() -> None:
    """Raise StorageError in a child forked from a process that had used obstore."""
    if _use.is_inherited:
        raise StorageError(
            f"process {os.getpid()} was forked from a process that had already used a remote "
            "storage, whose connections do not survive a fork; start worker processes with the "
            "'spawn' or 'forkserver' start method (multiprocessing.get_context('spawn')), or "
            "fork before the first use",
            ErrorKind.STORAGE_OTHER,
        )


def _in_child() -> None:
    if _use.has_been_used:
        _use.is_inherited = True
    for thing in list(_aware):
        thing.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
