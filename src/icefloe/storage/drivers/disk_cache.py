"""Objects of remote storages kept in a folder of this machine.

Every entry is a file, named by a hash of what it is. Files are written under another name and
renamed, so that readers of any process see all of an entry or nothing. An entry never changes: what
may change is not kept. A file begins with a checksum. If it does not match, the file is deleted and
the object is fetched again.

The time of change of a file is the time of its last use. When the folder has grown too large, the
files that were not used for longest are deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from time import time
from typing import NamedTuple

from icefloe.errors import InvalidInputError
from icefloe.observe import CACHE
from icefloe.storage.process_forks import RenewedLock

DEFAULT_MAX_BYTES = 10_000_000_000

_DIGEST = 16
_HEAD = b"icefloe1"
_TEMPORARY = "new-"
_STALE_S = 3600.0
"""After this time a temporary file belongs to a process that was killed."""
_SAME_USE_S = 10.0
"""Uses that follow each other faster are not recorded."""
_SCANS_PER_LIMIT = 16
"""How often a process that fills the whole cache looks at its size. Other processes add to it."""
_KEPT = 0.9
"""The part of the limit that is left after files were deleted."""


class CacheFolder(NamedTuple):
    """Where a cache is and how large it may become. Many storages and processes can share one."""

    path: str
    max_bytes: int = DEFAULT_MAX_BYTES


class DiskCache:
    """A bounded folder of immutable entries, for threads and processes."""

    def __init__(self, folder: CacheFolder) -> None:
        if folder.max_bytes <= 0:
            raise InvalidInputError(f"max_bytes is {folder.max_bytes}, expected more than 0")
        self._path = Path(folder.path).expanduser().absolute()
        self._max_bytes = folder.max_bytes
        self._lock = RenewedLock()
        self._unseen = self._max_bytes
        """Bytes added since the folder was last scanned. The first entry makes a scan due."""
        self._is_broken = False

    def get(self, identity: str) -> bytes | None:
        """The bytes of an entry, or None."""
        path = self._file(identity)
        try:
            data = path.read_bytes()
        except OSError:
            return None  # not there, deleted meanwhile, or unreadable: fetched instead
        start = len(_HEAD) + _DIGEST
        if data[:start] != _head(identity, memoryview(data)[start:]):
            CACHE.warning("%s is damaged and will be fetched again", path)
            with suppress(OSError):
                path.unlink()
            return None
        self._touch(path)
        return data[start:]

    def put(self, identity: str, data: bytes | memoryview) -> None:
        """Keep an entry. Without room, or if the folder cannot be written, nothing is kept."""
        size = len(data) + len(_HEAD) + _DIGEST
        if size > self._max_bytes:
            return
        path = self._file(identity)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(path, identity, data)
        except OSError as error:
            if not self._is_broken:  # once is enough: every read would say it
                CACHE.warning("nothing is kept in %s: %s", self._path, error)
            self._is_broken = True
            return
        with self._lock:
            self._unseen += size
            is_due = self._unseen >= self._max_bytes / _SCANS_PER_LIMIT
            if is_due:
                self._unseen = 0
        if is_due:
            self.shrink()

    def shrink(self) -> int:
        """Delete the entries that were not used for longest, if there is too much. Returns the
        number of bytes that are left."""
        found = sorted(self._entries())
        total = sum(size for _, size, _ in found)
        if total <= self._max_bytes:
            return total
        for _, size, path in found:
            if total <= self._max_bytes * _KEPT:
                break
            with suppress(OSError):  # another process was first
                path.unlink()
            total -= size
        CACHE.info("%s: %d bytes are left after old entries were deleted", self._path, total)
        return total

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        now = time()
        for folder in _scan(self._path):
            for entry in _scan(Path(folder.path)):
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                path = Path(entry.path)
                if entry.name.startswith(_TEMPORARY):
                    if now - info.st_mtime > _STALE_S:
                        with suppress(OSError):
                            path.unlink()
                    continue
                yield info.st_mtime, info.st_size, path

    def _file(self, identity: str) -> Path:
        name = blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
        return self._path / name[:2] / name[2:]

    def _write(self, path: Path, identity: str, data: bytes | memoryview) -> None:
        temporary = path.parent / f"{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
        # Only for this user: the objects may be secret.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(temporary, flags, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_head(identity, memoryview(data)))
                file.write(data)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def _touch(self, path: Path) -> None:
        with suppress(OSError):
            if time() - path.stat().st_mtime > _SAME_USE_S:
                os.utime(path)


def _scan(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def _head(identity: str, data: memoryview) -> bytes:
    """What a file begins with. It also tells an entry from another one under the same name."""
    digest = blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=_DIGEST)
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)
    return _HEAD + digest.digest()
