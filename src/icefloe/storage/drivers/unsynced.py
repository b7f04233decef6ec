"""The files and names of a directory that a power failure may still undo, until the next `sync`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from icefloe.errors import ErrorKind, StorageError

MAX_PENDING = 4096  # files; more of them are synced early, so that memory stays bounded
_MAX_OPEN = 8  # files; a small commit has four, and a process may have few descriptors left
_THREADS = 8
_FEW_TO_SYNC = 8  # files; handing them to threads takes longer than syncing them


class Unsynced:
    """What the next `sync` has to make durable.

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
