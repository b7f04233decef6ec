"""The object that a driver of a directory saw last: it saves work while the object is unchanged.

A version is a hash of all bytes. The `repo` object of a long history has megabytes, and every
operation asks whether it has changed. Bytes are compared faster than hashed. A file that was at
rest when it was read is not even read again, as long as the file system shows the same state of
it. Writers never rely on that state: a conditional write always reads what it replaces.
"""

# ruff: noqa: PTH116 - no Path objects on the way of every operation
from __future__ import annotations

import os
import time
from hashlib import blake2b

from icefloe.records import NamedTuple
from icefloe.storage.driver import Version

AT_REST_NS = 3_000_000_000
"""File systems keep times in steps of up to two seconds. Two writes in one step, to the same inode
and of the same size, cannot be told apart."""

State = tuple[int, int, int, int, int]


class LastSeen(NamedTuple):
    """One object, as it was read or written."""

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


NOTHING_SEEN = LastSeen("", b"", Version(None), None)


def version_of(data: bytes) -> Version:
    """The version of an object in a directory."""
    return Version(blake2b(data, digest_size=16).hexdigest())


def state_at_rest(path: str) -> State | None:
    """The state of a file that every later write changes; None if there is no such state.

    Take it before the file is read: if the file changes in between, its state is another one.

    A rename brings in another inode, but inodes are used again. The time of the last change tells
    those apart, and unlike the time of modification nobody can set it. It does so only when the
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
