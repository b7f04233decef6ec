"""Forks that come back from the tasks of a distributed computation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import zarr

from icefloe.api.session import ForkSession, Session
from icefloe.store.zarr_store import IcechunkStore


def extract_session(zarray: zarr.Array[Any], axis: Any = None, keepdims: Any = None) -> Session:
    """The session an array is written through. `axis` and `keepdims` mean nothing: reductions of
    array libraries pass them."""
    store = zarray.store
    if not isinstance(store, IcechunkStore):
        raise TypeError(f"the array is in a {type(store).__name__}, expected an IcechunkStore")
    session: Session = store.session
    return session


def merge_sessions(*sessions: ForkSession | Iterable[Any]) -> ForkSession:
    """Merge forks, in lists or lists of lists, into the first one, and return that.

    Raises:
        TypeError: one of them is not a fork. `Session.merge` merges forks into a session.
    """
    forks: list[ForkSession] = []
    for fork in _flat(sessions):
        if not isinstance(fork, ForkSession):
            raise TypeError(
                f"Received {type(fork).__name__!r}: merge_sessions merges forks; merge forks into "
                "a session with session.merge(*forks), and let tasks write to session.fork()"
            )
        forks.append(fork)
    if not forks:
        raise TypeError("merge_sessions needs at least one fork")
    first, *others = forks
    # Tasks that ran in one process, or in threads, may have written through the same fork.
    first.merge(*{id(fork): fork for fork in others if fork is not first}.values())
    return first


def _flat(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item
