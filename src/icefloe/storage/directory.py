"""One directory as all drivers of this process see it: unfinished files, locks, fsync.

Plain files and `fcntl`; nothing here knows about keys. Below the root there is

- `.icefloe/tmp/`: files being written; one that is older than a day belonged to a process that
  died, and is removed when the next process starts to write;
- `.icefloe/locks/`: empty files to put `flock`s on. They are never removed, because a lock on a
  removed file excludes no one.
"""

# ruff: noqa: PTH102, PTH104, PTH108, PTH120 - no Path objects on the way of every write
from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from icefloe.errors import ErrorKind, StorageError
from icefloe.observe import STORAGE
from icefloe.storage.driver import OWN_DIRECTORY
from icefloe.storage.run import Registry, repair_after_fork

NUM_LOCKS = 64
LOCK_TIMEOUT_SECONDS = 120.0
_TURN_SECONDS = 30.0
SWEEP_AFTER_SECONDS = 24 * 3600
MAX_THREADS = 8
_NAME_ASIDE = re.compile("[0-9a-f]{16}-[0-9]+").fullmatch
_LOCK_NAME = re.compile("[0-9a-f]{2}|queue").fullmatch
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)

Item = TypeVar("Item")
Result = TypeVar("Result")
MAX_PENDING = 4096  # files; more of them are synced early, so that memory stays bounded
_MAX_OPEN = 8  # files; a small commit has four, and a process may have few descriptors left
_THREADS = 8
_FEW_TO_SYNC = 8  # files; handing them to threads takes longer than syncing them


class FsyncQueue:
    """Files and names that a power failure may still undo, until the next `sync`.

    The first few files stay open until then, because opening each again takes a while.
    """

    def __init__(self) -> None:
        self._files: dict[str, int | None] = {}
        """Paths, with the descriptor of a file that is still open."""
        self._directories: dict[str, None] = {}
        self._not_durable: dict[str, str] = {}
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        self._sync_mutex = threading.Lock()

    def __del__(self) -> None:
        for descriptor in self._files.values():
            if descriptor is not None:
                os.close(descriptor)

    def add(self, path: str, descriptor: int | None = None) -> None:
        """A file was written. Its descriptor is closed from here."""
        with self._mutex:
            before = self._files.get(path)
            if before is None and len(self._files) < _MAX_OPEN:
                self._files[path], descriptor = descriptor, None
            else:
                self._files[path] = None
            self._not_durable.pop(path, None)
            is_many = len(self._files) >= MAX_PENDING
        for unused in (before, descriptor):
            if unused is not None:
                os.close(unused)
        if is_many:
            self.sync()

    def add_directory(self, path: str) -> None:
        """A directory has a new entry, or lost one."""
        with self._mutex:
            self._directories[path] = None

    def forget(self, paths: Iterable[str]) -> None:
        """The files were deleted: only that has to be made durable."""
        still_open = []
        with self._mutex:
            for path in paths:
                if self._files:
                    still_open.append(self._files.pop(path, None))
                if self._not_durable:
                    self._not_durable.pop(path, None)
                self._directories[path.rpartition("/")[0]] = None
        for descriptor in still_open:
            if descriptor is not None:
                os.close(descriptor)

    def take_directories(self) -> dict[str, None]:
        """The directories, for the caller to sync."""
        with self._mutex:
            directories, self._directories = self._directories, {}
        return directories

    def sync(self) -> None:
        """fsync every file, then the directories they are in.

        A file whose fsync failed is reported by every sync from then on, until it is written
        again: the kernel tells about lost pages only once, and a second fsync would succeed.
        """
        # A second sync waits for the first, which may be syncing files of the second.
        with self._sync_mutex:
            with self._mutex:
                files, self._files = self._files, {}
                directories, self._directories = self._directories, {}
            directories.update(dict.fromkeys(map(os.path.dirname, files)))
            self._sync_all(files)
            self._sync_all(dict.fromkeys(directories))
        for path, reason in self._not_durable.items():
            raise StorageError(
                f"fsync of {path!r} failed ({reason}): what was written may be lost; check the "
                "disk, then write again in a new process",
                ErrorKind.IO,
            )

    def _sync_all(self, paths: Mapping[str, int | None]) -> None:
        """fsync all of them, and keep what went wrong.

        The disk starts on all open files before the first is waited for. A journal then has few of
        them in one transaction. Many wait for the disk together, on threads.
        """
        if len(paths) > _FEW_TO_SYNC:
            with ThreadPoolExecutor(_THREADS, "icefloe-fsync") as pool:
                errors = list(pool.map(fsync_path, paths.keys(), paths.values()))
        else:
            for descriptor in paths.values():
                _start_writing(descriptor)
            errors = [fsync_path(path, descriptor) for path, descriptor in paths.items()]
        for path, error in zip(paths, errors, strict=True):
            if error is not None:
                self._not_durable[path] = str(error)


def _start_writing(descriptor: int | None) -> None:
    """Let the system write a file to the disk now. The fsync that follows reports what fails."""
    if descriptor is not None and hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def fsync_path(path: str, descriptor: int | None = None) -> OSError | None:
    """fsync a file or directory, and close it; what went wrong, or None."""
    try:
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # deleted meanwhile: nothing left to be kept
    except OSError as error:
        return error
    try:
        os.fsync(descriptor)
    except OSError as error:
        return error
    finally:
        os.close(descriptor)
    return None


class Directory:
    """The root of a directory storage; one object per process and path."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._temporary = f"{root}/{OWN_DIRECTORY}/tmp"
        self._locks = f"{root}/{OWN_DIRECTORY}/locks"
        self._reserve = f"{root}/{OWN_DIRECTORY}/reserve"
        self._names = itertools.count()
        self._is_swept = False
        self._elsewhere: set[str] = set()
        """Folders on another file system than the root, from which no file can be renamed."""
        self.unsynced = FsyncQueue()
        self._held_locks: set[int] = set()
        self.after_fork_in_child()
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        self.unsynced.after_fork_in_child()
        self._pool: ThreadPoolExecutor | None = None
        # Names of unfinished files must differ from those of the parent.
        self._run = os.urandom(8).hex()
        # A lock is held until every copy of its descriptor is closed, ours included.
        for descriptor in getattr(self, "_held_locks", ()):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._held_locks = set()

    def place(self, data: Any, path: str, *, is_synced: bool, may_replace: bool) -> int:
        """Write a file aside and give it its name, in one step that readers see as a whole.

        Returns the inode.

        Raises:
            FileExistsError: there is a file already, and `may_replace` is False.
        """
        try:
            temporary, inode = self._write_aside(data, path, is_synced=is_synced)
            self._move(temporary, path, may_replace=may_replace)
        except OSError as error:
            folder = os.path.dirname(path)
            if error.errno != errno.EXDEV or folder in self._elsewhere:
                raise
            # Part of the repository is on another file system, by a link or a mount.
            self._elsewhere.add(folder)
            temporary, inode = self._write_aside(data, path, is_synced=is_synced)
            self._move(temporary, path, may_replace=may_replace)
        return inode

    def create(self, data: Any, path: str, *, is_durable: bool) -> bool:
        """Write a new file in place, which the next `sync` makes durable if it has to be.

        False if there is a file already, which is left as it is.
        """
        try:
            try:
                descriptor = os.open(path, _NEW_FILE, 0o666)
            except FileNotFoundError:
                self.make_directory(os.path.dirname(path))
                descriptor = os.open(path, _NEW_FILE, 0o666)
        except FileExistsError:
            return False
        _fill(descriptor, data, path)
        if is_durable:
            self.unsynced.add(path, descriptor)
        else:
            os.close(descriptor)
        return True

    def link(self, data: bytes, source: str, path: str) -> int | None:
        """Give the file `source` a second name, if it is there and has these bytes.

        Files that may be replaced are replaced as a whole, so this one never changes. Returns the
        inode; None if there is no such file, or the file system has no hard links.
        """
        try:
            os.link(source, path)
        except OSError:
            return None
        inode = _inode_with(path, data)
        if inode is None:
            os.unlink(path)
        return inode

    def _write_aside(self, data: Any, path: str, *, is_synced: bool) -> tuple[str, int]:
        """Write `data` to a new temporary file; returns its path and inode."""
        if not self._is_swept:
            self._sweep()
        aside = f"{self._temporary}/{self._run}-{next(self._names)}"
        if os.path.dirname(path) in self._elsewhere:
            # Listings leave such names out, also those of Icechunk.
            aside = f"{path}#{int.from_bytes(os.urandom(7))}"
        try:
            descriptor = os.open(aside, _NEW_FILE, 0o666)
        except FileNotFoundError:
            self.make_directory(os.path.dirname(aside))
            descriptor = os.open(aside, _NEW_FILE, 0o666)
        inode = _fill(descriptor, data, aside, is_synced=is_synced)
        os.close(descriptor)
        return aside, inode

    def make_directory(self, path: str) -> None:
        """Create `path` and its parents; the next `sync` makes the new entries durable."""
        missing = []
        while not Path(path).is_dir():
            missing.append(path)
            path = os.path.dirname(path)
        for created in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(created, 0o777)
            self.unsynced.add_directory(os.path.dirname(created))

    def _move(self, temporary: str, path: str, *, may_replace: bool) -> None:
        move: Callable[[str, str], None] = os.rename if may_replace else _link
        try:
            try:
                move(temporary, path)
            except FileNotFoundError:
                self.make_directory(os.path.dirname(path))
                move(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def _sweep(self) -> None:
        self._is_swept = True
        oldest = time.time() - SWEEP_AFTER_SECONDS
        try:
            entries = list(os.scandir(self._temporary))
        except FileNotFoundError:
            return
        for entry in entries:
            if not _NAME_ASIDE(entry.name) or not entry.is_file(follow_symlinks=False):
                continue  # not written here
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)

    def remove_working_folders(self, folders: Iterable[str]) -> None:
        """Remove locks and unfinished files, and these folders below the root if they are empty."""
        for folder, is_own in ((self._temporary, _NAME_ASIDE), (self._locks, _LOCK_NAME)):
            for path in Path(folder).glob("*"):
                if is_own(path.name) and not path.is_dir():
                    path.unlink(missing_ok=True)
        for folder in (self._temporary, self._locks, *folders, OWN_DIRECTORY):
            with contextlib.suppress(OSError):  # not empty, or never made
                Path(self.root, folder).rmdir()

    def keep_reserve(self, num_bytes: int) -> None:
        """Occupy space for a collection on a full disk, unless it is there."""
        try:
            reserve = Path(self._reserve)
            if reserve.exists() and reserve.stat().st_size == num_bytes:
                return
            # Random, because some file systems compress.
            self.place(os.urandom(num_bytes), self._reserve, is_synced=False, may_replace=True)
        except OSError as error:
            STORAGE.warning("no space for the reserve %s: %s", self._reserve, error)

    def give_up_reserve(self) -> bool:
        """Free that space; False if there is none."""
        try:
            os.unlink(self._reserve)
        except FileNotFoundError:
            return False
        return True

    def sync_name(self, path: str) -> None:
        """Make the name of one file durable, and every directory made for it."""
        for directory in self.unsynced.take_directories() | {os.path.dirname(path): None}:
            error = fsync_path(directory)
            if error is not None:
                raise error

    def each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """`function` of every item, on a few threads when there are several."""
        listed = list(items)
        if len(listed) < 3:
            return list(map(function, listed))
        with self._mutex:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_THREADS, "icefloe-io")
            pool = self._pool
        return list(pool.map(function, listed))

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Exclude every other thread and process that locks `name` below this root."""
        path = f"{self._locks}/{crc32(name.encode()) % NUM_LOCKS:02x}"
        with self._locked_file(path, name, LOCK_TIMEOUT_SECONDS):
            yield

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the turn of the writers that queue up, or go on without it after a while."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(StorageError):
                path = f"{self._locks}/queue"
                held.enter_context(self._locked_file(path, "a commit", _TURN_SECONDS))
            yield

    @contextlib.contextmanager
    def _locked_file(self, path: str, name: str, seconds: float) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            self.make_directory(self._locks)
            descriptor = os.open(path, flags, 0o666)
        self._held_locks.add(descriptor)
        import fcntl

        try:
            self._wait_for_lock(descriptor, name, path, seconds)
            yield
        finally:
            # Unlocked by name, not by closing: a process forked meanwhile has a copy.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            self._held_locks.discard(descriptor)
            os.close(descriptor)

    def _wait_for_lock(self, descriptor: int, name: str, path: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = 0.0002
        import fcntl

        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"waited {seconds:.0f} s to write {name!r} in {self.root!r}: "
                        f"another process holds the lock {path!r}; find it with 'fuser' or 'lsof'",
                        ErrorKind.IO,
                    ) from None
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 1.5, 0.005)


def _fill(descriptor: int, data: Any, path: str, *, is_synced: bool = False) -> int:
    """Write a file that was just created; returns its inode. Nothing is left of one that fails."""
    try:
        # Linux (6.13 and later) gives a file the exact time of a write once its times have been
        # read. Otherwise it gives that of the last clock tick, which may be before the time of the
        # commit that the file belongs to. Expiration and collection compare both with a cut.
        inode = os.fstat(descriptor).st_ino
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if is_synced:
            os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        os.unlink(path)
        raise
    return inode


def _inode_with(path: str, data: bytes) -> int | None:
    """The inode of `path` if it is a file with these bytes, and not a link to one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # One byte more than expected shows that the file is longer.
        is_same = os.read(descriptor, len(data) + 1) == data
        return os.fstat(descriptor).st_ino if is_same else None
    finally:
        os.close(descriptor)


def _link(temporary: str, path: str) -> None:
    """Name a file unless the name is taken; callers hold the lock of that name.

    A hard link is exclusive even against writers that do not know our locks. Some file systems
    have none (FAT, some network mounts); there the lock alone has to do.
    """
    try:
        os.link(temporary, path)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        if Path(path).exists():
            raise FileExistsError(path) from None
        os.rename(temporary, path)
    else:
        os.unlink(temporary)


_directories: Registry[str, Directory] = Registry()


def directory_at(root: str) -> Directory:
    """The one `Directory` of this process for `root`.

    Raises:
        StorageError: the system has not what the guarantees of a directory are made of.
    """
    try:
        import fcntl

        _ = fcntl.flock, os.pread, os.O_CLOEXEC
    except (ImportError, AttributeError) as missing:
        raise StorageError(
            f"a directory cannot hold a repository on this system ({sys.platform}): locks that the "
            f"system releases when a process dies are missing ({missing}), and without them two "
            "writers could lose a commit; use WSL on Windows, S3 or another object store, or "
            "in_memory_storage()",
            ErrorKind.STORAGE_CONFIG,
        ) from missing
    path = os.path.realpath(root)
    return _directories.find_or_make(path, lambda: Directory(path))
