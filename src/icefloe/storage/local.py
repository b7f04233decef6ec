"""A directory as a storage, safe for threads, processes and `kill -9`.

What is guaranteed, on file systems whose `flock`, `rename` and `fsync` keep their promises:

- No reader ever sees part of a file: files are written aside and renamed into place. Chunks and
  metadata files with new random names are written in place: nothing refers to them before the
  commit. The copy of a `repo` object that is about to be replaced is a hard link to its file.
- Of several conditional writers of one key exactly one succeeds. They exclude each other by a
  lock that the kernel releases when its holder dies, however it dies.
- Once `put_if` has returned, its file survives a power failure; so does everything that was put
  before a `sync` that has returned. (`durable=False` gives this up.)

What is not: official Icechunk does not take these locks, so it must not commit to the same
directory at the same time. On a network mount `flock` is as good as the server makes it (NFS on
Linux passes it on to the server; some mounts keep it to themselves): then writers on two hosts
do not see each other. Tested on Linux with local file systems.
"""

# ruff: noqa: PTH108, PTH116 - no Path objects on the way of every read and write
from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, Unpack

import numpy as np

from icefloe.config.repository import ResolvedStorage
from icefloe.errors import ErrorKind, InvalidInputError, StorageError, UnknownOutcomeError
from icefloe.observe import STORAGE
from icefloe.storage.directory import directory_at
from icefloe.storage.driver import (
    OWN_DIRECTORY,
    About,
    AboutMany,
    ConditionFailed,
    Driver,
    ObjectInfo,
    ObjectPage,
    Objects,
    Readable,
    Reads,
    Span,
    Take,
    Version,
    check_key,
    check_span,
    decode_key,
    encode_key,
    instant,
    object_not_found,
    object_page,
    taken,
)

THREADS_FROM_BYTES = 256 * 1024
"""Per object. Below that the hand-over to a thread takes longer than reading from memory."""

_ROWS_OF_PAGE = 1 << 16

_MOST_AT_ONCE = 1 << 30
"""Bytes of one read. Linux reads at most 2 GiB at once."""

_NAMED_BY_ID = re.compile("[a-z]+/[0-9A-Z]+").fullmatch
"""Matches the keys of most objects. Their files have the same names: nothing is encoded."""

_SLOW_DELETION_SECONDS = 0.0005
"""Per file. A local file system takes some microseconds, and names of one directory leave it one
after the other. From here on a server answers, and threads wait for it together."""

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_REST_NS = 3_000_000_000
"""File systems keep times in steps of up to two seconds. Two writes in one step, to the same inode
and of the same size, cannot be told apart."""

State = tuple[int, int, int, int, int]

# Icechunk writes `name#1`, `name#2`, ... and renames; '#' is encoded in finished names.
_UNFINISHED = re.compile(r"#\d+$")


class StatCache(NamedTuple):
    """The object that a driver saw last, as it was read or written.

    A version is a hash of all bytes. The `repo` object of a long history has megabytes, and every
    operation asks whether it has changed. Bytes are compared faster than hashed. A file that was
    at rest when it was read is not even read again, as long as the file system shows the same
    state of it. Writers never rely on that state: a conditional write always reads what it
    replaces.
    """

    key: str
    data: bytes
    version: Version
    state: State | None
    """Of its file before it was read; None if a later write might leave the same state."""
    durable_inode: int | None = None
    """Of its file, if this process has written it and waited for the disk."""

    def version_of(self, key: str, data: bytes) -> Version:
        """The version of an object."""
        is_same = key == self.key and data == self.data
        return self.version if is_same else version_of(data)

    def is_still_at(self, path: str, version: Version) -> bool:
        """Whether the file is known to have this version without being read."""
        if self.state is None or version != self.version:
            return False
        try:
            return _state(os.stat(path)) == self.state
        except OSError:  # reading tells what is wrong
            return False


NOTHING_SEEN = StatCache("", b"", Version(None), None)


def version_of(data: bytes) -> Version:
    """The version of an object in a directory."""
    return Version(blake2b(data, digest_size=16).hexdigest())


def state_at_rest(path: str) -> State | None:
    """The state of a file that every later write changes; None if there is no such state.

    Take it before the file is read: if the file changes in between, its state is another one.

    A rename brings in another inode, but inodes are used again. The time of the last change tells
    those apart, and unlike the time of modification it cannot be set. It does so only when the
    clock has moved on since. Network and user-space file systems may show a state from a cache, and
    have no block device.
    """
    now = time.time_ns()
    try:
        found = os.stat(path)
    except OSError:  # reading tells what is wrong
        return None
    is_at_rest = now - max(found.st_mtime_ns, found.st_ctime_ns) > AT_REST_NS
    return _state(found) if is_at_rest and os.major(found.st_dev) else None


def _state(found: os.stat_result) -> State:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class LocalDriver(Driver):
    """See `icefloe.storage.driver.Driver`. Never suspends. User metadata is not kept.

    The switches for conditional writes are ignored: the lock is always there and always cheap.
    """

    is_local = True
    can_write = True
    can_list = True

    def __init__(self, root: str, settings: ResolvedStorage, *, is_durable: bool = True) -> None:
        self.settings = settings
        self._directory = directory_at(root)
        self._root = self._directory.root
        self._is_durable = is_durable
        self._last_seen = NOTHING_SEEN

    def _path(self, key: str) -> str:
        if _NAMED_BY_ID(key) is not None:
            return f"{self._root}/{key}"
        check_key(key)
        if key.startswith(OWN_DIRECTORY + "/"):
            raise InvalidInputError(
                f"{key!r} is not a key: {OWN_DIRECTORY}/ is where the storage keeps its own files",
                ErrorKind.INVALID_KEY,
            )
        return f"{self._root}/{encode_key(key)}"

    def _reading_failed(self, key: str, error: OSError) -> StorageError:
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            return object_not_found(key, self._root)
        return StorageError(
            f"cannot read {key!r} in {self._root}: {error.strerror or error}", ErrorKind.IO
        )

    # --- reading ------------------------------------------------------------------------------

    async def get(self, key: str, span: Span | None = None) -> Readable:
        return self._read(key, span)

    def _read(self, key: str, span: Span | None = None) -> bytes:
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if span is None:
                    span = Span(0, os.fstat(descriptor).st_size)
                elif span.start < 0 or span.length < 0:
                    check_span(key, span, os.fstat(descriptor).st_size, self._root)
                if span.length > _MOST_AT_ONCE:
                    check_span(key, span, os.fstat(descriptor).st_size, self._root)
                    return _read_large(descriptor, span)
                data = os.pread(descriptor, span.length, span.start)
                if len(data) != span.length:
                    check_span(key, span, os.fstat(descriptor).st_size, self._root)
                    data = _read_on(descriptor, span, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._reading_failed(key, error) from error
        STORAGE.debug("read %s in %s: %d bytes", key, self._root, len(data))
        return data

    async def get_many(self, wanted: Reads, take: Take | None = None) -> list[Any]:
        num_bytes = sum(span.length for _, span in wanted if span)
        return taken(self._each(lambda one: self._read(*one), wanted, num_bytes), take)

    def _each(
        self, function: Callable[[Item], Result], items: Sequence[Item], num_bytes: int
    ) -> list[Result]:
        if num_bytes < THREADS_FROM_BYTES * len(items):
            return [function(item) for item in items]
        return self._directory.each(function, items)

    async def get_versioned(self, key: str) -> tuple[bytes, Version]:
        return self._read_versioned(key)

    async def get_if_changed(self, key: str, version: Version) -> tuple[bytes, Version] | None:
        last = self._last_seen
        if last.key == key and last.is_still_at(self._path(key), version):
            return None
        data, found = self._read_versioned(key)
        return None if found == version else (data, found)

    def _read_versioned(self, key: str) -> tuple[bytes, Version]:
        state = state_at_rest(self._path(key))
        data = self._read(key)
        version = self._last_seen.version_of(key, data)
        last = self._last_seen
        inode = last.durable_inode if version == last.version else None
        self._last_seen = StatCache(key, data, version, state, inode)
        return data, version

    async def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        try:
            found = os.stat(path)
        except OSError as error:
            raise self._reading_failed(key, error) from error
        if stat.S_ISDIR(found.st_mode):
            raise object_not_found(key, self._root)
        return _info(key, found)

    async def head_many(self, keys: Sequence[str]) -> ObjectPage:
        return object_page([self._row_of(key) for key in keys])

    def _row_of(self, key: str) -> tuple[str, int, int]:
        try:
            found = os.stat(self._path(key))
        except OSError as error:
            trouble = self._reading_failed(key, error)
            if trouble.kind != ErrorKind.OBJECT_NOT_FOUND:
                raise trouble from error
            return key, -1, -1
        if stat.S_ISDIR(found.st_mode):
            return key, -1, -1
        return key, found.st_size, found.st_mtime_ns // 1000

    async def list(self, prefix: str) -> list[ObjectInfo]:
        folder = encode_key(prefix).rpartition("/")[0]
        listed = []
        try:
            for name, entry in files_below(self._root, folder):
                key = decode_key(name)
                if not key.startswith(prefix):
                    continue
                try:
                    found = entry.stat()
                except FileNotFoundError:  # deleted while we were looking
                    continue
                listed.append(_info(key, found))
        except OSError as error:
            raise self._reading_failed(prefix, error) from error
        return sorted(listed)

    async def list_pages(
        self, folder: str, at_once: int, *, names_only: bool = False
    ) -> Sequence[ObjectPage]:
        start = encode_key(folder).removesuffix("/")
        try:
            if names_only:
                names = np.array(names_in(self._root, start), np.bytes_)
                unknown = np.full(len(names), -1, np.int64)
                return [ObjectPage(names, unknown, unknown)]
            rows = list(rows_below(self._root, start))
        except OSError as error:
            raise self._reading_failed(folder, error) from error
        return [
            object_page(rows[at : at + _ROWS_OF_PAGE]) for at in range(0, len(rows), _ROWS_OF_PAGE)
        ]

    async def list_top(self) -> Sequence[str]:
        try:
            return sorted(top_level(self._root))
        except OSError as error:
            raise self._reading_failed("", error) from error

    async def is_empty(self) -> bool:
        try:
            return next(files_below(self._root, ""), None) is None
        except OSError as error:
            raise self._reading_failed("", error) from error

    # --- writing ------------------------------------------------------------------------------

    async def put(self, key: str, data: Any, **about: Unpack[About]) -> None:
        self._write(key, data)

    def _write(self, key: str, data: Any, *, is_new: bool = False) -> None:
        path = self._path(key)
        STORAGE.debug("write %s in %s", key, self._root)
        try:
            if is_new and self._copy(data, path):
                return
            if is_new and self._directory.create(data, path, is_durable=self._is_durable):
                return
            # A file that is there already may be read, so it is replaced as a whole.
            self._directory.place(data, path, is_synced=False, may_replace=True)
            if self._is_durable:
                self._directory.unsynced.add(path)
        except OSError as error:
            raise self._writing_failed(key, error) from error

    def _copy(self, data: Any, path: str) -> bool:
        """Give the object that was seen last a second name, if it still has these bytes.

        Commits keep a copy of the `repo` object that they replace.
        """
        last = self._last_seen
        if not last.key or not isinstance(data, bytes) or data != last.data:
            return False
        inode = self._directory.link(data, self._path(last.key), path)
        if inode is not None and self._is_durable:
            if inode == last.durable_inode:
                self._directory.unsynced.add_directory(path.rpartition("/")[0])
            else:
                self._directory.unsynced.add(path)
        return inode is not None

    def _writing_failed(self, key: str, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write object {key!r} in {self._root}: {error.strerror or error}", ErrorKind.IO
        )

    async def put_many(self, objects: Objects, **about: Unpack[AboutMany]) -> None:
        num_bytes = sum(memoryview(data).nbytes for _, data in objects)
        self._each(lambda one: self._write(*one), objects, num_bytes)

    async def put_new(self, objects: Objects, **about: Unpack[AboutMany]) -> None:
        num_bytes = sum(memoryview(data).nbytes for _, data in objects)
        self._each(lambda one: self._write(*one, is_new=True), objects, num_bytes)

    async def put_if(
        self, key: str, data: bytes, *, previous: Version | None, **about: Unpack[About]
    ) -> Version:
        path = self._path(key)
        STORAGE.debug("write %s in %s if unchanged", key, self._root)
        try:
            with self._directory.locked(key):
                inode = self._replace(key, path, data, previous)
        except OSError as error:
            raise self._writing_failed(key, error) from error
        version = version_of(data)
        durable_inode = inode if self._is_durable else None
        self._last_seen = StatCache(key, data, version, None, durable_inode)
        return version

    def _replace(self, key: str, path: str, data: bytes, previous: Version | None) -> int:
        """Write a file if it still has the version `previous`; the caller holds the lock.

        Returns the inode.
        """
        if self._current_version(key) != previous:
            self._last_seen = NOTHING_SEEN  # whoever tries again reads
            raise ConditionFailed(key)
        may_replace = previous is not None
        try:
            inode = self._directory.place(
                data, path, is_synced=self._is_durable, may_replace=may_replace
            )
        except FileExistsError:  # by a writer that does not take our lock
            raise ConditionFailed(key) from None
        if self._is_durable:
            self._sync_name(key, path)
        return inode

    def _sync_name(self, key: str, path: str) -> None:
        try:
            self._directory.sync_name(path)
        except OSError as error:
            raise UnknownOutcomeError(
                f"{key!r} in {self._root} was written, but fsync of its directory failed "
                f"({error.strerror or error}): a power failure may undo it; check the disk"
            ) from error

    def _current_version(self, key: str) -> Version | None:
        try:
            return self._last_seen.version_of(key, self._read(key))
        except StorageError as error:
            if error.kind == ErrorKind.OBJECT_NOT_FOUND:
                return None
            raise

    async def delete_batches(
        self, batches: Sequence[Sequence[str]]
    ) -> Sequence[StorageError | None]:
        outcomes: list[StorageError | None] = []
        is_slow = False
        for batch in batches:
            if is_slow:
                break
            started = time.monotonic()
            outcomes.append(self._delete(batch))
            is_slow = time.monotonic() - started > _SLOW_DELETION_SECONDS * len(batch)
        return outcomes + self._directory.each(self._delete, batches[len(outcomes) :])

    def _delete(self, batch: Sequence[str]) -> StorageError | None:
        try:
            self._unlink(batch)
        except StorageError as error:
            return error
        return None

    async def delete_many(self, keys: Sequence[str]) -> None:
        self._unlink(keys)

    def _unlink(self, keys: Sequence[str]) -> None:
        gone = []
        STORAGE.debug("delete %d objects in %s", len(keys), self._root)
        try:
            for key in keys:
                path = self._path(key)
                try:
                    os.unlink(path)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError as error:
                    raise StorageError(
                        f"cannot delete object {key!r} in {self._root}: {error.strerror or error}",
                        ErrorKind.IO,
                    ) from error
                gone.append(path)
        finally:
            self._directory.unsynced.forget(gone)

    async def sync(self) -> None:
        if self._is_durable:
            self._directory.unsynced.sync()

    def remove_working_folders(self, *folders: str) -> None:
        """Remove the locks, unfinished files and these empty folders, where writing has ended.

        Not for repositories: once its file is removed, a lock no longer excludes other writers.
        """
        self._directory.remove_working_folders(folders)

    def turn(self) -> AbstractContextManager[object]:
        return self._directory.turn()

    def keep_reserve(self, num_bytes: int) -> None:
        self._directory.keep_reserve(num_bytes)

    def give_up_reserve(self) -> bool:
        return self._directory.give_up_reserve()


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    # Rounded down, as in listings: whoever compares the two must find the same time.
    return ObjectInfo(key, found.st_size, instant(found.st_mtime_ns // 1000))


def _read_large(descriptor: int, span: Span) -> bytes:
    """A span of more bytes than are read at once, without a second copy of them."""
    data = bytearray(span.length)
    rest, position = memoryview(data), span.start
    while rest:
        count = os.preadv(descriptor, [rest[:_MOST_AT_ONCE]], position)
        if not count:
            raise OSError(f"the file ended at byte {position}, expected {len(rest)} more bytes")
        rest, position = rest[count:], position + count
    return data  # type: ignore[return-value]


def _read_on(descriptor: int, span: Span, data: bytes) -> bytes:
    """A signal may cut a read short."""
    parts, position, end = [data], span.start + len(data), span.start + span.length
    while position < end:
        part = os.pread(descriptor, end - position, position)
        if not part:
            raise OSError(f"the file ended at byte {position}, expected {end} bytes")
        parts.append(part)
        position += len(part)
    return b"".join(parts)


# --- listing ------------------------------------------------------------------------------------


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    """What a directory has: nothing if it was never there, or removed while we were looking."""
    try:
        entries = os.scandir(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        yield from entries


def files_below(root: str, folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every file below `folder`, as its path relative to `root` and its directory entry."""
    folders = [folder]
    while folders:
        folder = folders.pop()
        for entry in _entries(f"{root}/{folder}"):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if name == OWN_DIRECTORY or name.startswith(OWN_DIRECTORY + "/"):
                continue
            if entry.is_dir():
                folders.append(name)
            elif not _UNFINISHED.search(name):
                yield name, entry


def top_level(root: str) -> Iterator[str]:
    """The names of files and folders in the root, those of folders with a slash."""
    for entry in _entries(root):
        if entry.is_dir():
            if entry.name != OWN_DIRECTORY:
                yield decode_key(entry.name) + "/"
        elif not _UNFINISHED.search(entry.name):
            yield decode_key(entry.name)


def rows_below(root: str, folder: str) -> Iterator[tuple[str, int, int]]:
    """Name below the folder, size and time of every file; for folders with very many."""
    for entry in _entries(f"{root}/{folder}"):
        name = entry.name
        if entry.is_dir():
            for inner, inner_size, time_us in rows_below(root, f"{folder}/{name}"):
                yield f"{decode_key(name)}/{inner}", inner_size, time_us
            continue
        if "#" in name and _UNFINISHED.search(name):
            continue
        try:
            found = entry.stat()
        except FileNotFoundError:  # deleted while we were looking
            continue
        yield decode_key(name), found.st_size, found.st_mtime_ns // 1000


def names_in(root: str, folder: str) -> list[bytes]:
    """The names in one folder, those of folders included, without a look at the files."""
    try:
        names = os.listdir(os.fsencode(f"{root}/{folder}"))  # noqa: PTH208 - names as bytes
    except (FileNotFoundError, NotADirectoryError):
        return []
    together = b"".join(names)
    if b"#" not in together and b"%" not in together:
        return names
    texts = map(os.fsdecode, names)
    return [os.fsencode(decode_key(text)) for text in texts if not _UNFINISHED.search(text)]
