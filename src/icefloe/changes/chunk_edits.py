"""Edited chunks of a session: columns, packs of small chunks, shifted indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index as whole_number
from typing import Any

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format import small
from icefloe.format.chunk_index import (
    Index,
    SortedIndex,
    follow_each_other,
    numbered,
    sort_rows,
)
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.ids import ChunkId

# -- The uncommitted chunk changes of one array.
#
# The Zarr store sets chunks one by one; these are collected in a dictionary. Tables of chunks are
# kept as layers. A commit merges them split by split.


Coordinates = tuple[int, ...]
EditLayer = tuple[ChunkRefs, Index]
"""References set, and indices deleted before that."""

_MERGED_ROWS = 1 << 14
"""Smaller tables are merged with their neighbours to limit the number of layers; larger ones would
be copied too often."""


class ChunkEdits:
    """References set and deleted, in order. The last edit of a chunk counts."""

    __slots__ = ("_layers", "_merged", "_single", "_single_layer", "ndim", "state")

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        self._single: dict[Coordinates, ChunkRef | None] = {}
        self._layers: list[EditLayer] = []
        self._single_layer: EditLayer | None = None
        self._merged: EditLayer | None = None
        self.state = object()
        """The same object as long as nothing is set or deleted."""

    def set(self, coordinates: Coordinates, ref: ChunkRef | None) -> None:
        """Set one chunk, or delete it with None."""
        self._single[coordinates] = ref
        self._single_layer = self._merged = None
        self.state = object()

    def set_table(self, refs: ChunkRefs, deleted: Index | None = None) -> None:
        """Set many chunks at once, after deleting others."""
        none = np.empty((0, self.ndim), np.uint32)
        self._layers = [*self.layers(), (refs, none if deleted is None else deleted)]
        self._single, self._single_layer, self._merged = {}, None, None
        self.state = object()
        # Like binary addition: a table is merged again only after its size has about doubled.
        while len(self._layers) > 1 and _rows(self._layers[-2]) < _MERGED_ROWS:
            *others, older, newer = self._layers
            if 2 * _rows(newer) < _rows(older):
                break
            self._layers = [*others, ChunkRefs.overlay([older, newer], self.ndim)]

    def find(self, coordinates: Coordinates) -> tuple[bool, ChunkRef | None]:
        """Whether the chunk was edited, and its current reference (None if deleted)."""
        if coordinates in self._single:
            return True, self._single[coordinates]
        for refs, deleted in reversed(self._layers):
            if (ref := refs.get(coordinates)) is not None:
                return True, ref
            if len(deleted) and bool((deleted == np.array(coordinates, np.uint32)).all(1).any()):
                return True, None
        return False, None

    def layers(self) -> list[EditLayer]:
        """All edits in order, without merging their tables."""
        if not self._single:
            return list(self._layers)
        if self._single_layer is None:
            self._single_layer = _columns(self._single, self.ndim)
        return [*self._layers, self._single_layer]

    def columns(self) -> EditLayer:
        """All references set, and the indices deleted, both ascending and disjoint.

        Copies every column; a commit uses `layers`.
        """
        if self._merged is None:
            self._merged = ChunkRefs.overlay(self.layers(), self.ndim)
        return self._merged

    def touched(self) -> Index:
        """Every index set or deleted, ascending: what a transaction log lists."""
        if not self._layers and len(self._single) <= small.ROWS:
            index = np.array(sorted(self._single), np.uint32)
            return index.reshape(len(self._single), self.ndim)
        parts = [part for refs, gone in self.layers() for part in (gone, refs.index) if len(part)]
        if not parts:
            return np.empty((0, self.ndim), np.uint32)
        has_deletions = any(len(deleted) for _, deleted in self.layers())
        if len(parts) == 1 and not has_deletions:
            return parts[0]
        both = np.concatenate(parts)
        if not has_deletions and follow_each_other(parts):
            return both
        return both[sort_rows(both)]

    def without(self, index: Index) -> ChunkEdits:
        """The edits without those of some chunks."""
        refs, deleted = self.columns()
        dropped = SortedIndex(index[sort_rows(index)])
        twin = ChunkEdits(self.ndim)
        stays = np.flatnonzero(dropped.find_many(refs.index) < 0)
        twin._layers = [(refs.take(stays), deleted[dropped.find_many(deleted) < 0])]
        return twin

    def copy(self) -> ChunkEdits:
        twin = ChunkEdits(self.ndim)
        twin._single, twin._layers = dict(self._single), list(self._layers)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_layers, (self.ndim, self.layers())

    def has_offset(self, offset: int) -> bool:
        """Whether a native chunk is set with this offset."""
        kind = ChunkKind.NATIVE
        return any(
            ref is not None and ref.offset == offset and ref.kind is kind
            for ref in self._single.values()
        ) or any(
            bool(((refs.offset == np.uint64(offset)) & (refs.kind == kind)).any())
            for refs, _ in self._layers
        )

    @property
    def most_set(self) -> int:
        """An upper bound of the chunks that were set. A chunk that was set twice may count
        twice."""
        return len(self._single) + sum(len(refs) for refs, _ in self._layers)

    def __iter__(self) -> Iterator[Coordinates]:
        return map(tuple, self.touched().tolist())


def _from_layers(ndim: int, layers: Sequence[tuple[ChunkRefs, Index]]) -> ChunkEdits:
    edits = ChunkEdits(ndim)
    for refs, deleted in layers:
        edits.set_table(refs, deleted)
    return edits


def combined(many: Sequence[tuple[int, ChunkEdits]], ndim: int) -> EditLayer:
    """The edits of many arrays of one rank, each with its number, as one layer: the number of the
    array is the first coordinate."""
    single: dict[Coordinates, ChunkRef | None] = {}
    tables, owners, gone = [], [], []
    for number, edits in many:
        if not edits._layers:
            lead = (number,)
            single.update((lead + at, ref) for at, ref in edits._single.items())
            continue
        is_one = len(edits._layers) == 1 and not edits._single
        refs, deleted = edits._layers[0] if is_one else edits.columns()
        tables.append(refs)
        owners.append(number)
        if len(deleted):
            gone.append(numbered(np.full(len(deleted), number), deleted))
    layers: list[EditLayer] = [_columns(single, ndim + 1)] if single else []
    if tables:
        owner = np.repeat(np.array(owners, np.int64), [len(table) for table in tables])
        refs = ChunkRefs.concat(tables)
        refs = refs.relabelled(numbered(owner, refs.index))
        layers.append((refs, np.concatenate([np.empty((0, ndim + 1), np.uint32), *gone])))
    return layers[0] if len(layers) == 1 else ChunkRefs.overlay(layers, ndim + 1)


def _rows(layer: EditLayer) -> int:
    return len(layer[0]) + len(layer[1])


def _columns(single: dict[Coordinates, ChunkRef | None], ndim: int) -> tuple[ChunkRefs, Index]:
    deleted = []
    groups: dict[tuple[ChunkKind, bool], tuple[list[Coordinates], list[ChunkRef]]] = {}
    for at, ref in single.items():
        if ref is None:
            deleted.append(at)
            continue
        is_keyed = ref.kind == ChunkKind.NATIVE and ref.location is not None
        index, refs_there = groups.setdefault((ref.kind, is_keyed), ([], []))
        index.append(at)
        refs_there.append(ref)
    tables = [_table(kind, *rows) for (kind, _), rows in sorted(groups.items())]
    if len(tables) == 1:
        [refs] = tables
    else:
        refs, _ = ChunkRefs.overlay([(table, None) for table in tables], ndim)
    return refs, np.array(deleted, np.uint32).reshape(len(deleted), ndim)


def _table(kind: ChunkKind, at: Sequence[Coordinates], refs: Sequence[ChunkRef]) -> ChunkRefs:
    index = np.array(at, np.uint32).reshape(len(at), len(at[0]))
    if kind == ChunkKind.INLINE:
        return ChunkRefs.inline_chunks(index, [ref.inline for ref in refs])
    offset = np.array([ref.offset for ref in refs], np.uint64)
    length = np.array([ref.length for ref in refs], np.uint64)
    if kind == ChunkKind.NATIVE and refs[0].location is not None:
        return ChunkRefs.keyed(index, [ref.location for ref in refs], offset, length)
    if kind == ChunkKind.NATIVE:
        ids = b"".join(ref.chunk_id or bytes(ChunkId.size) for ref in refs)
        return ChunkRefs.native(index, np.frombuffer(ids, np.uint8), offset, length)
    has_etag = any(ref.etag is not None for ref in refs)
    has_time = any(ref.last_modified is not None for ref in refs)
    return ChunkRefs.virtual(
        index,
        [ref.location for ref in refs],
        offset,
        length,
        etag=[ref.etag for ref in refs] if has_etag else None,
        last_modified=[ref.last_modified or 0 for ref in refs] if has_time else None,
    )


# -- Moving chunks of an array to other indices. Only references change, no bytes are copied.


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
        return moved, refs.index[:0]
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
