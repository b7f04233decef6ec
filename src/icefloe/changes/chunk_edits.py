"""The uncommitted chunk changes of one array.

The Zarr store sets chunks one by one; these are collected in a dictionary. Tables of chunks are
kept as layers. A commit merges them split by split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.chunk_index import Index, SortedIndex, follow_each_other, sort_rows
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.ids import ChunkId

Coordinates = tuple[int, ...]
EditLayer = tuple[ChunkRefs, Index]
"""References set, and indices deleted before that."""

_SMALL = 1 << 14
"""Rows. Smaller tables are merged with their neighbours to limit the number of layers."""


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
        while len(self._layers) > 1 and _rows(self._layers[-2]) < _SMALL:
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
    if kind == ChunkKind.INLINE and len(at) == 1:
        data = refs[0].inline or b""
        return ChunkRefs(
            index,
            np.array((kind,), np.uint8),
            np.zeros(1, np.uint64),
            np.array((len(data),), np.uint64),
            inline=BlobColumn(np.array((0, len(data))), np.frombuffer(data, np.uint8)),
        )
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
