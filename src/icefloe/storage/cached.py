"""Objects of remote storages kept in a folder of this machine.

`CachedDriver` keeps only objects that never change: chunks, manifests, transaction logs and
snapshots, whose names are random. Refs, the `repo` object and the configuration are always asked
for.

`DiskCache` has a folder of its own, `icefloe-cache`, in the folder that the user names. A mark in
it says so. Only files there are deleted, and only those with the name and the first bytes of an
entry, so other files are safe in both folders. Links are not followed.

Every entry is a file, named by a hash of what it is. Files are written under another name and
renamed, so that readers of any process see all of an entry or nothing. A file begins with a
checksum. If it does not match, the object is fetched again and replaces the file.

The time of change of a file is the time of its last use. When the folder has grown too large, the
files that were not used for longest are deleted.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from icefloe.errors import InvalidInputError
from icefloe.ids import FIRST_SNAPSHOT_ID
from icefloe.observe import CACHE
from icefloe.storage.driver import Driver, Readable, Reads, Span, Take, taken
from icefloe.storage.run import RenewedLock

_FOLDERS = ("chunks/", "manifests/", "transactions/", "snapshots/")
_SNAPSHOTS = "snapshots/"
_VERSION_AT = 36
"""Where the header of a snapshot file has the spec version."""

DEFAULT_MAX_BYTES = 10_000_000_000

OWN_FOLDER = "icefloe-cache"
MARK = "CACHEDIR.TAG"
"""The name by which backup programs know a cache."""
_MARK_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# A cache of icefloe. It can be deleted at any time.
"""

_DIGEST = 16
_HEAD = b"icefloe1"
_SUBFOLDER_NAME = re.compile("[0-9a-f]{2}").fullmatch
_ENTRY_NAME = re.compile("[0-9a-f]{38}").fullmatch
_TEMPORARY_NAME = re.compile("new-[0-9]+-[0-9a-f]{16}").fullmatch
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
        self._path = Path(folder.path, OWN_FOLDER)
        self._max_bytes = folder.max_bytes
        self._lock = RenewedLock()
        self._unseen = self._max_bytes
        """Bytes added since the folder was last scanned. The first entry makes a scan due."""
        self._is_ours = False
        self._is_broken = False

    def get(self, identity: str) -> bytes | None:
        """The bytes of an entry, or None."""
        self._is_ours = self._is_ours or self._is_marked()
        if not self._is_ours:
            return None
        path = self._file(identity)
        try:
            data = path.read_bytes()
        except OSError:
            return None  # not there, deleted meanwhile, or unreadable: fetched instead
        start = len(_HEAD) + _DIGEST
        if data[:start] != _head(identity, memoryview(data)[start:]):
            CACHE.warning("%s is damaged and will be fetched again", path)
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
            self._make_subfolder(path.parent)
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
            _delete(path)
            total -= size
        CACHE.info("%s: %d bytes are left after old entries were deleted", self._path, total)
        return total

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Time, size and path of every file that has the name of an entry. Files that killed
        processes left are deleted."""
        if not self._is_marked():
            return
        now = time()
        for folder in _scan(self._path):
            if not _SUBFOLDER_NAME(folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            for entry in _scan(Path(folder.path)):
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                path = Path(entry.path)
                if not stat.S_ISREG(info.st_mode):
                    continue
                if _ENTRY_NAME(entry.name):
                    yield info.st_mtime, info.st_size, path
                elif _TEMPORARY_NAME(entry.name) and now - info.st_mtime > _STALE_S:
                    _delete(path)

    def _is_marked(self) -> bool:
        """Whether the folder is a cache that this user made. Another user could have put anything
        into theirs."""
        try:
            is_marked = (self._path / MARK).read_bytes() == _MARK_TEXT
            return is_marked and self._path.stat().st_uid == getattr(os, "getuid", lambda: 0)()
        except OSError:
            return False

    def _make_subfolder(self, path: Path) -> None:
        if not self._is_ours:
            self._make_folder()
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if path.is_symlink():
                raise
        except FileNotFoundError:  # the cache was deleted
            self._make_folder()
            path.mkdir(mode=0o700, exist_ok=True)

    def _make_folder(self) -> None:
        """Make the folder with its mark, in one step. It stays as it is if it has one."""
        if not self._is_marked():
            if _scan(self._path):
                raise FileExistsError(
                    f"no file {MARK} in it says that icefloe made it for this user; name another "
                    "folder"
                )
            for missing in reversed([path for path in self._path.parents if not path.exists()]):
                missing.mkdir(mode=0o700, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{OWN_FOLDER}-", dir=self._path.parent))
            try:
                (made / MARK).write_bytes(_MARK_TEXT)
                made.rename(self._path)
            except OSError:
                shutil.rmtree(made, ignore_errors=True)
                if not self._is_marked():  # otherwise another process was first
                    raise
        self._is_ours = True

    def _file(self, identity: str) -> Path:
        name = blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
        return self._path / name[:2] / name[2:]

    def _write(self, path: Path, identity: str, data: bytes | memoryview) -> None:
        temporary = path.parent / f"new-{os.getpid()}-{os.urandom(8).hex()}"
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


def _delete(path: Path) -> None:
    """Delete a file with the first bytes of an entry. It may have been cut short there."""
    with suppress(OSError):  # another process was first
        with path.open("rb") as file:
            head = file.read(len(_HEAD))
        if _HEAD.startswith(head):
            path.unlink()


def _head(identity: str, data: memoryview) -> bytes:
    """What a file begins with. It also tells an entry from another one under the same name."""
    digest = blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=_DIGEST)
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)
    return _HEAD + digest.digest()


class CachedDriver:
    """Reads through a cache; everything else goes to the driver inside."""

    def __init__(self, inner: Driver, cache: DiskCache, place: str) -> None:
        self.behind_cache = inner
        self.cache = cache
        self._place = place

    if not TYPE_CHECKING:  # so that type checkers see which methods are missing

        def __getattr__(self, name: str) -> Any:
            return getattr(self.behind_cache, name)

    async def get(self, key: str, span: Span | None = None) -> Readable:
        """The object's bytes, from the folder if they are there."""
        found: list[Readable] = await self.get_many([(key, span)])
        return found[0]

    async def get_many(self, wanted: Reads, take: Take | None = None) -> list[Any]:
        """Several reads; those that are not in the folder are made at once."""
        found: list[Readable | None] = [self._kept(key, span) for key, span in wanted]
        missing = [at for at, data in enumerate(found) if data is None]
        CACHE.debug("%d of %d objects are on disk", len(wanted) - len(missing), len(wanted))
        if len(missing) == 1:
            fetched = [await self.behind_cache.get(*wanted[missing[0]])]
        else:
            fetched = (
                await self.behind_cache.get_many([wanted[at] for at in missing]) if missing else []
            )
        for at, data in zip(missing, fetched, strict=True):
            found[at] = data
            self._keep(*wanted[at], data)
        return taken([data for data in found if data is not None], take)

    def _kept(self, key: str, span: Span | None) -> bytes | None:
        return self.cache.get(self._identity(key, span)) if _never_changes(key) else None

    def _keep(self, key: str, span: Span | None, data: Readable) -> None:
        if not _never_changes(key):
            return
        if key.startswith(_SNAPSHOTS) and bytes(data[_VERSION_AT : _VERSION_AT + 1]) < b"\2":
            return  # expiration writes snapshot files of version 1 again, with other parents
        self.cache.put(self._identity(key, span), memoryview(data))

    def _identity(self, key: str, span: Span | None) -> str:
        part = "all" if span is None else f"{span.start}+{span.length}"
        return f"{self._place}\n{key}\n{part}"


def cached_driver(inner: Driver, cache: DiskCache, place: str) -> Driver:
    """The driver with a cache in front of it."""
    return cast(Driver, CachedDriver(inner, cache, place))


def _never_changes(key: str) -> bool:
    """Whether an object has a random name. The first snapshot has the same in all repositories."""
    return key.startswith(_FOLDERS) and not key.endswith(FIRST_SNAPSHOT_ID.text)
