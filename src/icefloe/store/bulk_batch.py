"""Many chunks of one array that are read or written together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from icefloe.format.columns.chunk_index import Index
from icefloe.storage.process_forks import repair_after_fork
from icefloe.store.chunk_codecs import Selection
from icefloe.store.zarr_keys import ChunkKey, parse_key

Item = TypeVar("Item")
Result = TypeVar("Result")

SLICE_BYTES = 4 << 20
"""Decoded bytes of the chunks that one thread works on before it takes more."""
_FEW_CHUNKS = 4
_GROUP_BYTES = 32 << 20
_GROUP_CHUNKS = 2048
_LEAST_IN_FLIGHT = 3
_BYTES_IN_FLIGHT = _LEAST_IN_FLIGHT * _GROUP_BYTES
THREADS_FROM_BYTES = 64 << 10
"""Per chunk. Smaller ones are decoded faster by one thread, because Python runs one at a time."""


class Batch(Selection):
    """Chunks of a selection, with the path of the array and the index of each chunk."""

    __slots__ = ("index", "path")

    def __init__(self, of: Selection, items: list[Any], path: str, index: Index) -> None:
        super().__init__(of.store, items, of.values, of.drop_axes, of.codecs)
        self.path = path
        self.index = index

    @classmethod
    def of(cls, selection: Selection) -> Batch | None:
        """All chunks; None if the keys are not those of one array's chunks."""
        keys = [item[0].path for item in selection.items]
        first = parse_key(keys[0], selection.store._state.find_node)
        if not isinstance(first, ChunkKey):
            return None
        ndim = len(first.coordinates)
        index = _numbers(keys, keys[0].rsplit("/", ndim)[0], ndim)
        if index is None:
            return None
        return cls(selection, selection.items, first.path, index)

    def part(self, positions: Sequence[int]) -> Batch:
        """Some of the chunks, in the order given."""
        items = [self.items[at] for at in positions]
        return Batch(self, items, self.path, self.index[list(positions)])

    def slices(self, count: int) -> list[slice]:
        """Parts of `count` chunks for threads to work on."""
        size = max(self.chunk_bytes, 1)
        if size < THREADS_FROM_BYTES or count < 2:
            return [slice(0, count)]
        edges = [*range(0, count, max(1, SLICE_BYTES // size)), count]
        return [slice(start, stop) for start, stop in pairwise(edges)]


def _numbers(keys: Sequence[str], prefix: str, ndim: int) -> Index | None:
    """The chunk indices of keys that all start with `prefix`; None if one is of another form."""
    if ndim == 0:
        return np.zeros((len(keys), 0), np.uint32)
    prefix += "/"
    length = len(prefix)
    if not all(key.startswith(prefix) for key in keys):
        return None
    try:
        rows = [tuple(map(int, key[length:].split("/"))) for key in keys]
        return np.array(rows, np.uint32).reshape(len(keys), ndim)
    except (ValueError, OverflowError):
        return None


class _Threads:
    """The threads that decode and encode, shared by all arrays of the process."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        repair_after_fork(self)

    def after_fork_in_child(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def each(self, function: Callable[[Item], None], items: Sequence[Item]) -> None:
        """`function` of every item. An error is raised when all have ended."""
        if len(items) < 2:
            for item in items:
                function(item)
            return
        futures = [self.submit(partial(function, item)) for item in items]
        wait(futures)
        for future in futures:
            future.result()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "icefloe-codecs")
        return self._pool.submit(work)


threads = _Threads()


async def in_thread(batch: Batch, work: Callable[[], Result]) -> Result:
    """Do blocking work without keeping the event loop from others, unless there is little."""
    return work() if _is_little(batch) else await asyncio.to_thread(work)


async def in_codec_thread(batch: Batch, work: Callable[[], Result]) -> Result:
    """The same in one of the threads of `threads`: no more at a time than there are processors.

    What was asked for first is done first, so that its request can start early. The work must not
    wait for `threads` itself, because it occupies one of them.
    """
    return work() if _is_little(batch) else await asyncio.wrap_future(threads.submit(work))


def _is_little(batch: Batch) -> bool:
    return len(batch.items) <= _FEW_CHUNKS and batch.chunk_bytes < THREADS_FROM_BYTES


async def in_groups(
    work: Callable[[Sequence[Item]], Coroutine[Any, Any, None]],
    items: Sequence[Item],
    sizes: Sequence[int],
    in_flight: int | None = None,
) -> None:
    """Work on groups of bounded size, several at a time. A large chunk is a group of its own."""
    edges, total, largest = [0], 0, 1
    for at, size in enumerate(sizes):
        limit = SLICE_BYTES if size >= SLICE_BYTES else _GROUP_BYTES
        if total and (total + size > limit or at - edges[-1] >= _GROUP_CHUNKS):
            edges.append(at)
            total = 0
        total += size
        largest = max(largest, total)
    edges.append(len(items))
    turns = asyncio.Semaphore(in_flight or max(_LEAST_IN_FLIGHT, _BYTES_IN_FLIGHT // largest))

    async def one(group: Sequence[Item]) -> None:
        async with turns:
            await work(group)

    await run_together([one(items[start:stop]) for start, stop in pairwise(edges)])


async def run_together(work: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Run coroutines concurrently. The first error cancels the others."""
    if len(work) == 1:
        await work[0]
        return
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
