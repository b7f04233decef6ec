"""Dask arrays written through forks of a session, merged in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dask.array
import numpy as np
import zarr
from dask.base import compute
from dask.delayed import delayed

from icefloe.api.session import ForkSession, Session
from icefloe.store.zarr_store import IcechunkStore


def extract_session(zarray: zarr.Array[Any], axis: Any = None, keepdims: Any = None) -> Session:
    """The session an array is written through. `axis` and `keepdims` mean nothing: reductions of
    array libraries pass them.

    >>> array = zarr.open_array(session.fork().store, path="t2m")
    >>> fork = icefloe.distributed.extract_session(array)
    """
    store = zarray.store
    if not isinstance(store, IcechunkStore):
        raise TypeError(f"the array is in a {type(store).__name__}, expected an IcechunkStore")
    session: Session = store.session
    return session


def merge_sessions(*sessions: ForkSession | Iterable[Any]) -> ForkSession:
    """Merge forks, in lists or lists of lists, into the first one, and return that.

    Raises:
        TypeError: one of them is not a fork. `Session.merge` merges forks into a session.

    >>> fork = icefloe.distributed.merge_sessions([session.fork(), session.fork()])
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


_SPLIT_EVERY = 16
"""Forks that one task merges: many small merges are slower, few large ones do not overlap."""


def store_dask(
    *,
    sources: list[dask.array.Array],
    targets: list[zarr.Array[Any]],
    regions: list[tuple[slice, ...]] | None = None,
    split_every: int | None = None,
    **store_kwargs: Any,
) -> ForkSession:
    """Write dask arrays into Zarr arrays of a fork, and return the fork with all changes.

    Open the targets in `session.fork().store`, and merge what comes back into the session. Works
    with threads, processes and clusters. Dask chunks have to consist of whole Zarr chunks, or
    tasks overwrite each other's.

    Args:
        sources: arrays to write.
        targets: where each of them goes.
        regions: which part of each target to write.
        split_every: how many forks one task merges.
        store_kwargs: further arguments of `dask.array.store`, but not `compute`, `return_stored`,
            `load_stored` or `lock`.

    >>> fork = session.fork()
    >>> target = zarr.open_array(fork.store, path="t2m")
    >>> session.merge(icefloe.dask.store_dask(sources=[da.zeros((4, 8, 8))], targets=[target]))
    """
    goals: Any = targets
    stored = dask.array.store(
        sources,
        goals,
        regions=regions,
        compute=False,
        return_stored=True,
        load_stored=False,
        lock=False,
        **store_kwargs,
    )
    return session_merge_reduction(stored, split_every=split_every)


def session_merge_reduction(
    arrays: Any, *, split_every: int | None, **store_kwargs: Any
) -> ForkSession:
    """Run a `dask.array.store` whose blocks are the arrays written to, and merge their forks.

    `store_kwargs` are not needed here: Icechunk hands them to the reduction that it uses.
    """
    stored: Sequence[Any] = arrays if isinstance(arrays, list | tuple) else [arrays]
    waiting = [block for array in stored for block in _sessions(array)]
    size = max(2, split_every or _SPLIT_EVERY)
    merge = delayed(merge_sessions, pure=False)
    while len(waiting) > 1:
        batches = (waiting[first : first + size] for first in range(0, len(waiting), size))
        waiting = [merge(*batch) if len(batch) > 1 else batch[0] for batch in batches]
    (fork,) = compute(*waiting)  # type: ignore[no-untyped-call]
    return merge_sessions(fork)


def _sessions(array: Any) -> list[Any]:
    """One task a block, which writes it and returns the fork."""
    if not hasattr(array, "map_blocks"):
        raise TypeError(f"Expected a dask array, received {type(array)!r}")
    none = np.empty((0,) * array.ndim, object)
    blocks = array.map_blocks(extract_session, dtype=object, meta=none)
    found: list[Any] = blocks.to_delayed().ravel().tolist()
    return found
