"""Small repositories to ask questions about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import zarr

from icefloe import Repository, Storage
from icefloe.repo.handle import Clock


def write(repository: Any, name: str, branch: str = "main", **options: Any) -> str:
    """Commit a new array `name` of four numbers in two chunks."""
    session = repository.writable_session(branch)
    group = zarr.open_group(session.store, mode="a")
    group.create_array(name, shape=(4,), chunks=(2,), dtype="i4")[:] = np.arange(4)
    snapshot: str = session.commit(f"add {name}", **options)
    return snapshot


def make(storage: Storage, spec_version: int = 2, **options: Any) -> tuple[Repository, list[str]]:
    """A repository with three commits on `main`; their ids, the first snapshot included."""
    repository = Repository.create(storage, spec_version=spec_version, **options)
    ids = [repository.lookup_branch("main")]
    ids += [write(repository, name) for name in ("one", "two", "three")]
    return repository, ids


class SetClock(Clock):
    """A clock that tests turn; it starts at the real time."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


@contextmanager
def clock_of(repository: Repository) -> Iterator[SetClock]:
    """Put a clock that can be turned into a repository's handles, old sessions included."""
    clock = SetClock()
    handles = repository._handles
    kept = {}
    for handle in (handles.blocking, handles.eventloop):
        kept[id(handle)] = (handle, handle.clock)
        object.__setattr__(handle, "clock", clock)
    try:
        yield clock
    finally:
        for handle, old in kept.values():
            object.__setattr__(handle, "clock", old)


def now() -> datetime:
    return datetime.now(UTC)
