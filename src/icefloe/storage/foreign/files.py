"""Parts of local files below one directory.

Links are followed only as long as they stay below it: a repository that somebody else filled may
lie inside the directory, with links of their making.
"""

from __future__ import annotations

import os
import stat
import sys

from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.driver import Span
from icefloe.storage.foreign.reads import Unchanged
from icefloe.storage.keys import check_span, moment, object_not_found


class ForeignFiles:
    """See `reads.ForeignReader`. Keys are absolute paths without the first `/`.

    Never suspends: a read from disk is not worth an event loop's while.
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
        """See `icefloe.storage.foreign.reads.ForeignReader`."""
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
