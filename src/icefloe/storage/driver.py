"""What every storage can do, as the operations above see it.

An operation is a coroutine that awaits nothing but these methods. A blocking driver finishes
each call before it returns, so such an operation runs without an event loop; an event-loop
driver really suspends. Which of the two it is, the operation cannot tell.
"""

from __future__ import annotations

import errno
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from icefloe.config.repository import ResolvedStorage
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.run import wait_blocking

Readable = bytes | memoryview
"""What a read returns: anything that offers its bytes without a copy."""
Take = Callable[[int, Readable], Any]
"""Turns the bytes of a read into a result; the number is that of the read among those wanted."""


PROBE_DIRECTORY = ".icefloe-probe"
"""Where conditional writes are tried out. Objects left here by a crash are not repository files."""


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


Reads = Sequence[tuple[str, Span | None]]
"""Keys, each with the part of the object that is wanted; None for all of it."""
Objects = Sequence[tuple[str, Any]]
"""Keys, each with the bytes to store."""


class About(TypedDict, total=False):
    """What is stored with an object, where a storage keeps such things."""

    metadata: Mapping[str, str] | None
    content_type: str | None
    storage_class: str | None


class AboutMany(TypedDict, total=False):
    """The same for several objects."""

    describe: Callable[[Any], Mapping[str, str]] | None
    """Makes the user metadata from an object's bytes."""
    storage_class: str | None


def about_one(data: Any, about: AboutMany) -> About:
    """What is stored with one of several objects."""
    describe = about.get("describe")
    metadata = None if describe is None else describe(data)
    return {"metadata": metadata, "storage_class": about.get("storage_class")}


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
    """One storage location, and the base class of drivers. Keys never start with a slash.

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

    async def get_many(self, wanted: Reads, take: Take | None = None) -> list[Any]:
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

    async def put(self, key: str, data: Any, **about: Unpack[About]) -> None:
        """Write an object with one writer (ids are random). Readers see all of it or none."""
        ...

    async def put_many(self, objects: Objects, **about: Unpack[AboutMany]) -> None:
        """Several plain puts at once."""
        ...

    async def put_new(self, objects: Objects, **about: Unpack[AboutMany]) -> None:
        """Several objects with random names that nothing refers to before a later write.

        A reader that guesses a name may see part of an object, and so may a listing.
        """
        await self.put_many(objects, **about)

    async def put_if(
        self, key: str, data: bytes, *, previous: Version | None, **about: Unpack[About]
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

        Of a service that lists a range of keys, `at_once` ranges are wanted at a time. With
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
        """Make every put so far survive a power failure; nothing to do unless on a disk."""
        return

    async def sleep(self, seconds: float) -> None:
        """Wait, the way this driver waits: without suspending unless it says otherwise."""
        time.sleep(seconds)

    async def wait_for(self, work: Future[Any], seconds: float) -> bool:
        """Whether another task or thread got its work done in time, waiting likewise."""
        return wait_blocking(work, seconds)

    def turn(self) -> AbstractContextManager[object] | None:
        """The turn of one of the writers that queue up, from entering to leaving; None without a
        queue. It saves attempts and protects nothing: writers need not queue up, and one that has
        waited for long proceeds without its turn."""
        return None

    def keep_reserve(self, num_bytes: int) -> None:
        """Occupy space that a collection on a full disk can give up; nothing unless on a disk."""
        return

    def give_up_reserve(self) -> bool:
        """Free that space; False if there is none."""
        return False


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


# --- keys and times ------------------------------------------------------------------------------

# Icechunk writes to directories, Google and Azure through a client that percent-encodes some
# characters of each segment; on S3 it writes keys as they are. Files have the same names here.
OWN_DIRECTORY = ".icefloe"
"""Where a directory storage keeps its locks and unfinished files. Not part of the repository."""

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_NEEDS_ENCODING = re.compile(r"[^ !$&'()+,\-./0-9:;=@A-Z_a-z]+")


def check_key(key: str) -> None:
    """Raise InvalidInputError unless `key` names one object below the root.

    >>> check_key("refs/branch.main/ref.json")
    """
    segments = key.split("/")
    if "\0" in key or not key or "" in segments or "." in segments or ".." in segments:
        raise InvalidInputError(
            f"{key!r} is not a key: expected names joined by '/', none of them empty, '.' or '..'",
            ErrorKind.INVALID_KEY,
        )


def encode_key(key: str) -> str:
    """`key` with everything percent-encoded that Icechunk encodes in file and blob names.

    >>> encode_key("refs/tag.ä~b c")
    'refs/tag.%C3%A4%7Eb c'
    """
    return _NEEDS_ENCODING.sub(_percent, key)


def decode_key(text: str) -> str:
    """The key behind a name made by `encode_key`; other names stay as they are.

    >>> decode_key("refs/tag.%C3%A4%7Eb c"), decode_key("100%")
    ('refs/tag.ä~b c', '100%')
    """
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def object_not_found(key: str, location: str) -> StorageError:
    """There is no object `key`."""
    return StorageError(f"no object {key!r} in {location}", ErrorKind.OBJECT_NOT_FOUND)


def check_span(key: str, span: Span, size_bytes: int, location: str) -> None:
    """Raise StorageError unless `span` is wholly inside an object of `size_bytes`."""
    if span.start < 0 or span.length < 0 or span.start + span.length > size_bytes:
        raise StorageError(
            f"object {key!r} in {location} has {size_bytes} bytes, expected at least "
            f"{span.start + span.length} to read {span.length} from {span.start}",
            ErrorKind.INVALID_OBJECT_SIZE,
        )


def microseconds(moment: datetime) -> int:
    """Microseconds since the epoch, exactly. A time without a zone is local time."""
    aware = moment if moment.tzinfo else moment.astimezone()
    return (aware - _EPOCH) // _MICROSECOND


def instant(time_us: int) -> datetime:
    """Microseconds since the epoch as a datetime in UTC, exactly."""
    return _EPOCH + time_us * _MICROSECOND


def moment(timestamp_seconds: float) -> datetime:
    """A POSIX timestamp as a datetime in UTC."""
    return datetime.fromtimestamp(timestamp_seconds, UTC)


_WRONG = Version('"00000000000000000000000000000000"', "1")
"""A version that no object has."""


async def check_conditions_are_honoured(driver: Driver) -> None:
    """Raise StorageError (storage-config) if conditional writes go through regardless.

    Some S3 servers accept the conditions and ignore them: every writer "wins", and commits are
    lost without a trace. A new repository is not created there unless its owner has switched
    conditional writes off, knowing what that means.

    At most six requests; none on memory and directories, which enforce conditions themselves.
    """
    settings = driver.settings
    creates, updates = (
        settings.unsafe_use_conditional_create,
        settings.unsafe_use_conditional_update,
    )
    if driver.is_local or not (creates or updates):
        return
    key = f"{PROBE_DIRECTORY}/{uuid.uuid4().hex}"
    await driver.put(key, b"first")
    try:
        if creates and not await _is_refused(driver, key, None):
            raise _ignored("create an object only if it is missing", "create")
        if updates and not await _is_refused(driver, key, _WRONG):
            raise _ignored("replace an object only if it is unchanged", "update")
    finally:
        await driver.delete_many([key])


async def _is_refused(driver: Driver, key: str, previous: Version | None) -> bool:
    try:
        await driver.put_if(key, b"second", previous=previous)
    except ConditionFailed:
        return True
    return False


def _ignored(request: str, switch: str) -> StorageError:
    return StorageError(
        f"this storage ignores the request to {request}, so commits that collide would be lost "
        "without notice; use another storage, or, if there will never be two writers at once, set "
        f"unsafe_use_conditional_{switch}=False in the storage settings of the repository config",
        ErrorKind.STORAGE_CONFIG,
    )
