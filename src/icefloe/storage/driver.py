"""What every storage can do, as the operations above see it.

An operation is a coroutine that awaits nothing but these methods. A blocking driver finishes
each call before it returns, so such an operation runs without an event loop; an event-loop
driver really suspends. Which of the two it is, the operation cannot tell.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from icefloe.config.resolved import ResolvedStorage
from icefloe.errors import ErrorKind, StorageError
from icefloe.records import NamedTuple

Describe = Callable[[Any], Mapping[str, str]]
Readable = bytes | memoryview
"""What a read returns: anything that offers its bytes without a copy."""
Take = Callable[[int, Readable], Any]
"""Turns the bytes of a read into a result; the number is that of the read among those wanted."""


class Version(NamedTuple):
    """The state of one object, as its storage names it. Compare only for equality."""

    etag: str | None
    generation: str | None = None


class ObjectInfo(NamedTuple):
    """One object of a listing; `key` is relative to the repository's root, or to a folder of it."""

    key: str
    size_bytes: int
    created_at: datetime


class ObjectPage(NamedTuple):
    """Part of a listing as columns, in no order."""

    name: NDArray[np.bytes_]
    """Keys without the folder, in UTF-8."""
    size_bytes: NDArray[np.int64]
    created_at: NDArray[np.int64]
    """By the storage's clock, in microseconds since the epoch, rounded down. -1 if unknown."""


class Span(NamedTuple):
    """Part of an object: `length` bytes from `start`."""

    start: int
    length: int


class ConditionFailed(Exception):  # noqa: N818 - an answer, not an error: callers always handle it
    """A conditional write did not happen: the object is not in the state it was said to be in."""


def object_page(rows: Sequence[tuple[str, int, int]]) -> ObjectPage:
    """Columns of (name, size, microseconds) rows."""
    return ObjectPage(
        np.array([name.encode("utf-8", "surrogatepass") for name, _, _ in rows], np.bytes_),
        np.array([size for _, size, _ in rows], np.int64),
        np.array([created for _, _, created in rows], np.int64),
    )


def join_pages(pages: Sequence[ObjectPage]) -> ObjectPage:
    """The rows of several pages."""
    return ObjectPage(
        np.concatenate([np.empty(0, np.bytes_), *(page.name for page in pages)]),
        np.concatenate([np.empty(0, np.int64), *(page.size_bytes for page in pages)]),
        np.concatenate([np.empty(0, np.int64), *(page.created_at for page in pages)]),
    )


def taken(data: Sequence[Readable], take: Take | None) -> list[Any]:
    """The results of `take` for reads that have all ended; their bytes if there is no `take`."""
    return list(data) if take is None else [take(number, one) for number, one in enumerate(data)]


class Driver(Protocol):
    """One storage location. Keys never start with a slash.

    Missing objects raise `StorageError` of kind `object-not-found`; anything else that goes
    wrong raises `StorageError` too, after the retries the settings allow.
    """

    settings: ResolvedStorage
    is_local: bool
    """Reads are cheap enough to be made without suspending (memory, a directory)."""
    can_write: bool
    can_list: bool
    """Web servers cannot: their objects are found by name only."""

    async def get(self, key: str, span: Span | None = None) -> Readable:
        """The object's bytes; a span that is not wholly inside raises `invalid-object-size`."""
        ...

    async def get_many(
        self, wanted: Sequence[tuple[str, Span | None]], take: Take | None = None
    ) -> list[Any]:
        """Several reads at once, as many in flight as the settings allow; the first error wins.

        With `take`, its results are returned instead of the bytes. It may be called on any thread,
        while other reads are in flight.
        """
        ...

    async def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """An object that may be overwritten, and the version to condition that on."""
        ...

    async def get_if_changed(self, key: str, version: Version) -> tuple[bytes, Version] | None:
        """Like `get_versioned`, or None when the object still has `version`."""
        ...

    async def put(
        self,
        key: str,
        data: Any,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        storage_class: str | None = None,
    ) -> None:
        """Write an object with one writer (ids are random). Readers see all of it or none."""
        ...

    async def put_many(
        self,
        objects: Sequence[tuple[str, Any]],
        *,
        describe: Describe | None = None,
        storage_class: str | None = None,
    ) -> None:
        """Several plain puts at once; `describe` makes the user metadata from an object's bytes."""
        ...

    async def put_new(
        self,
        objects: Sequence[tuple[str, Any]],
        *,
        describe: Describe | None = None,
        storage_class: str | None = None,
    ) -> None:
        """Several objects with random names that nothing refers to before a later write.

        A reader that guesses a name may see part of an object, and so may a listing.
        """
        ...

    async def put_if(
        self,
        key: str,
        data: bytes,
        *,
        previous: Version | None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Version:
        """Create (`previous` None) or replace an object if it is still in that state.

        Raises:
            ConditionFailed: it is not; nothing was written.
            UnknownOutcomeError: the answer got lost and reading back could not decide.
        """
        ...

    async def list(self, prefix: str) -> list[ObjectInfo]:
        """Every object whose key starts with `prefix`, sorted by key."""
        ...

    async def list_pages(
        self, folder: str, at_once: int, *, names_only: bool = False
    ) -> Sequence[ObjectPage]:
        """Every object below `folder` (which ends with a slash), for folders with very many.

        A service that lists a range of keys is asked for `at_once` ranges at a time. With
        `names_only`, sizes and times that a listing does not contain are unknown (-1), and so is
        whether a name is that of a folder.
        """
        ...

    async def list_top(self) -> Sequence[str]:
        """The names of objects and folders at the root, sorted. Those of folders end with a
        slash."""
        ...

    async def is_empty(self) -> bool:
        """Whether nothing at all is stored here."""
        ...

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are missing already do not matter."""
        ...

    async def delete_batches(
        self, batches: Sequence[Sequence[str]]
    ) -> Sequence[StorageError | None]:
        """Delete several batches at once; what went wrong with each, or None.

        Of a batch that failed, some objects may be gone.
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Size and time of one object, without its bytes."""
        ...

    async def head_many(self, keys: Sequence[str]) -> ObjectPage:
        """One row per key, in that order, with the keys as names. An object that is missing has
        size and time -1."""
        ...

    async def sync(self) -> None:
        """Make every put so far survive a power failure; nothing to do on object stores."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait, the way this driver waits."""
        ...

    async def wait_for(self, work: Future[Any], seconds: float) -> bool:
        """Whether another task or thread got its work done in time, waiting likewise."""
        ...

    def turn(self) -> AbstractContextManager[object] | None:
        """The turn of one of the writers that queue up, from entering to leaving; None without a
        queue. It saves attempts and protects nothing: writers need not queue up, and one that has
        waited for long goes on without its turn."""
        ...

    def keep_reserve(self, num_bytes: int) -> None:
        """Occupy space that a collection on a full disk can give up; nothing on object stores."""
        ...

    def give_up_reserve(self) -> bool:
        """Free that space; False if there is none."""
        ...


def is_out_of_space(error: StorageError) -> bool:
    """Whether a write failed because a disk is full, or a quota is used up."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


async def find_object(
    driver: Driver, key: str, *, needs_bucket: bool = True
) -> tuple[bytes, Version] | None:
    """An object, or None if it is missing. Without `needs_bucket`, so may its bucket be."""
    try:
        return await driver.get_versioned(key)
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            return None
        if error.is_bucket_missing and not needs_bucket:
            return None
        raise


def without_cache(driver: Driver) -> Driver:
    """The driver behind a cache on disk, for those who want to see what is stored."""
    inner: Driver = getattr(driver, "behind_cache", driver)
    return inner
