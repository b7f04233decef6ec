"""Moving chunks of an array to other indices. Only references change, no bytes are copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index as whole_number
from typing import Any

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns.chunk_index import Index
from icefloe.format.manifest.chunk_refs import ChunkRefs

Relabel = Callable[[list[int]], Iterable[int] | None]
_MAX_OFFSET = 2**32  # larger than every index


def shifted(refs: ChunkRefs, offset: Iterable[int], grid: Sequence[int]) -> tuple[ChunkRefs, Index]:
    """All references moved by `offset` chunks, and the indices that no longer have a chunk.

    References that leave the grid are dropped.
    """
    steps = [max(-_MAX_OFFSET, min(_MAX_OFFSET, whole_number(step))) for step in offset]
    if len(steps) != len(grid):
        raise InvalidInputError(
            f"the offset {tuple(steps)} has {len(steps)} dimensions, the array has {len(grid)}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    goals = refs.index.astype(np.int64) + np.array(steps, np.int64)
    rows = np.flatnonzero(((goals >= 0) & (goals < np.array(grid, np.int64))).all(axis=1))
    moved = refs.take(rows).relabelled(goals[rows].astype(np.uint32))
    return moved, _without(refs.index, moved)


def reindexed(
    refs: ChunkRefs, own: Index, forward: Relabel, backward: Relabel | None, grid: Sequence[int]
) -> tuple[ChunkRefs, Index]:
    """References moved to the indices that `forward` returns (None: not moved).

    Also returns the indices to clear. An index is cleared if nothing was moved to it and its
    origin by `backward` has no chunk.

    If several references move to one index, the last one wins. The chunks of the session (`own`)
    come after the others, as in Icechunk.
    """
    rows, goals = [], []
    is_own = np.zeros(len(refs), np.bool_)
    found = refs.lookup.find_many(own)
    is_own[found[found >= 0]] = True
    order = np.argsort(is_own, kind="stable")
    for row, at in zip(order.tolist(), refs.index[order].tolist(), strict=True):
        goal = _answer(forward, at, "forward", len(grid))
        if goal is None:
            continue
        if not all(0 <= one < count for one, count in zip(goal, grid, strict=True)):
            raise InvalidInputError(
                f"forward sends chunk {tuple(at)} to {tuple(goal)}, which is not in the array's "
                f"grid of {tuple(grid)} chunks",
                ErrorKind.INVALID_CHUNK_INDEX,
            )
        rows.append(row)
        goals.append(goal)
    targets = np.array(goals, np.uint32).reshape(len(goals), len(grid))
    moved = refs.take(np.array(rows, np.int64)).relabelled(targets)
    if backward is None:
        return moved, _none(refs)
    stale = _without(refs.index, moved)
    existing = set(map(tuple, refs.index.tolist())) if len(stale) else set()
    is_cleared = []
    for at in stale.tolist():
        origin = _answer(backward, at, "backward", len(grid))
        is_cleared.append(origin is None or tuple(origin) not in existing)
    return moved, stale[np.array(is_cleared, np.bool_)]


def _answer(function: Relabel, at: list[int], name: str, ndim: int) -> list[int] | None:
    answer: Any = function(list(at))
    if answer is None:
        return None
    try:
        if isinstance(answer, str | bytes):
            raise TypeError(answer)
        found = [whole_number(one) for one in answer]
    except TypeError:
        raise InvalidInputError(
            f"{name} answers {answer!r} for chunk {tuple(at)}, expected a list of whole numbers "
            "or None",
            ErrorKind.INVALID_CHUNK_INDEX,
        ) from None
    if len(found) != ndim:
        raise InvalidInputError(
            f"{name} answers {tuple(found)} for chunk {tuple(at)}: {len(found)} dimensions, the "
            f"array has {ndim}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    return found


def _without(index: Index, moved: ChunkRefs) -> Index:
    return index[moved.lookup.find_many(index) < 0]


def _none(refs: ChunkRefs) -> Index:
    return np.empty((0, refs.ndim), np.uint32)
