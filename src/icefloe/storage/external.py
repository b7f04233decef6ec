"""Reading parts of objects that are not ours and may change under us.

Each kind of source has a reader: object stores (`remote.py`), web servers (`web.py`) and files
(here). A server may ignore the condition it is sent, so what came back is compared as well.
"""

from __future__ import annotations

import os
import stat
import sys
from datetime import datetime
from typing import NamedTuple, Protocol

from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.driver import (
    ConditionFailed,
    Readable,
    Span,
    check_span,
    moment,
    object_not_found,
)

ANY_ETAG = "*"


class Unchanged(NamedTuple):
    """The state an object has to be in still; at most one of the two is looked at."""

    etag: str | None = None
    last_modified: int | None = None
    """Whole seconds since 1970; an object that was modified later has changed."""

    def check(self, what: str, etag: str | None, last_modified: datetime | None) -> None:
        """Compare with what a source says about itself; what it does not say has changed.

        Raises:
            ConditionFailed: it is not as it was.
        """
        if self.etag is not None:
            if self.etag == ANY_ETAG:
                return
            found = None if etag is None else bare_etag(etag)
            if found != bare_etag(self.etag):
                raise ConditionFailed(f"{what} has ETag {found!r}, expected {self.etag!r}")
        elif self.last_modified is not None:
            if last_modified is None:
                raise ConditionFailed(f"{what} does not say when it was modified")
            # Compared as it is: a change later in the same second is a change, too.
            if last_modified.timestamp() > self.last_modified:
                raise ConditionFailed(
                    f"{what} was modified at {last_modified.isoformat()}, expected no change "
                    f"after {moment(self.last_modified).isoformat()}"
                )


def bare_etag(etag: str) -> str:
    """An ETag without its quotes and without the mark of a weak one.

    >>> bare_etag('"abc"'), bare_etag('W/"abc"'), bare_etag("abc")
    ('abc', 'abc', 'abc')
    """
    return etag.strip().removeprefix("W/").strip('"')


class ExternalReader(Protocol):
    """One bucket, web server or directory tree."""

    async def get_if_unchanged(self, key: str, span: Span, condition: Unchanged) -> Readable:
        """Part of an object.

        Raises:
            ConditionFailed: it has changed.
            StorageError: anything else; `invalid-object-size` when the object ends too early.
        """
        ...


class ExternalFiles:
    """The files below one directory. Keys are absolute paths without the first `/`.

    Links are followed only as long as they stay below the directory: a repository that others
    filled may lie inside it, with links of their making. Never suspends.
    """

    def __init__(self, directory: str) -> None:
        if not hasattr(os, "pread") or not hasattr(os, "O_NOFOLLOW"):
            raise StorageError(
                f"virtual chunks in local files ({directory}) cannot be read on this system "
                f"({sys.platform}), which cannot open a file without following links; use WSL on "
                "Windows, or put the files on a web server or in a bucket",
                ErrorKind.STORAGE_CONFIG,
            )
        self._directory = directory
        self._location = f"file://{directory}"

    async def get_if_unchanged(self, key: str, span: Span, condition: Unchanged) -> bytes:
        path = self._inside(key)
        try:
            # A pipe would block for ever, and a link put there meanwhile is not followed.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise self._failed(key, error) from error
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise StorageError(f"{path!r} is not a regular file", ErrorKind.OBJECT_STORE)
            etag = f"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"
            condition.check(repr(path), etag, moment(found.st_mtime_ns / 1e9))
            check_span(key, span, found.st_size, self._location)
            return _read(handle, span, key, self._location)
        except OSError as error:
            raise self._failed(key, error) from error
        finally:
            os.close(handle)

    def _inside(self, key: str) -> str:
        """The path behind all links, which has to be below the directory."""
        try:
            root = os.path.realpath(self._directory)
            path = os.path.realpath("/" + key)
        except (OSError, ValueError) as error:
            raise self._failed(key, error) from error
        if os.path.commonpath([root, path]) != root:
            raise StorageError(
                f"/{key} is a link out of {self._directory}; only files below it are read",
                ErrorKind.OBJECT_STORE,
            )
        return path

    def _failed(self, key: str, error: Exception) -> StorageError:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return object_not_found(key, self._location)
        return StorageError(f"cannot read '/{key}': {error}", ErrorKind.IO)


def _read(handle: int, span: Span, key: str, location: str) -> bytes:
    parts = []
    at, end = span.start, span.start + span.length
    while at < end:
        part = os.pread(handle, end - at, at)
        if not part:  # it was cut off while we read
            check_span(key, span, at, location)
        parts.append(part)
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
