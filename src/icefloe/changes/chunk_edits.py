"""The uncommitted chunk changes of one array.

Single chunks collect in a dictionary, because that is how the Zarr store is called; whole tables
stay tables. A commit turns both into columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from icefloe.format.chunk_index import Index, SortedIndex, sort_rows
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.ids import ChunkId

Coordinates = tuple[int, ...]


class ChunkEdits:
    """References set and deleted, in the order they came: the last one counts."""

    __slots__ = ("_columns", "_layers", "_single", "ndim")

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        self._single: dict[Coordinates, ChunkRef | None] = {}
        self._layers: list[tuple[ChunkRefs, Index]] = []
        self._columns: tuple[ChunkRefs, Index] | None = None

    def set(self, coordinates: Coordinates, ref: ChunkRef | None) -> None:
        """Set one chunk, or delete it with None."""
        self._single[coordinates] = ref
        self._columns = None

    def set_table(self, refs: ChunkRefs, deleted: Index | None = None) -> None:
        """Set many chunks at once, after deleting others."""
        none = np.empty((0, self.ndim), np.uint32)
        self._layers = [*self.layers(), (refs, none if deleted is None else deleted)]
        self._single = {}
        self._columns = None

    def find(self, coordinates: Coordinates) -> tuple[bool, ChunkRef | None]:
        """Whether the chunk was touched, and the reference it has now (None when deleted)."""
        if coordinates in self._single:
            return True, self._single[coordinates]
        for refs, deleted in reversed(self._layers):
            if (ref := refs.get(coordinates)) is not None:
                return True, ref
            if len(deleted) and bool((deleted == np.array(coordinates, np.uint32)).all(1).any()):
                return True, None
        return False, None

    def layers(self) -> list[tuple[ChunkRefs, Index]]:
        """Everything in the order it came: references set, and indices deleted before that."""
        if not self._single:
            return list(self._layers)
        return [*self._layers, _columns(self._single, self.ndim)]

    def columns(self) -> tuple[ChunkRefs, Index]:
        """All references set, and the indices deleted, both ascending and disjoint."""
        if self._columns is None:
            self._columns = self._make_columns()
        return self._columns

    def _make_columns(self) -> tuple[ChunkRefs, Index]:
        layers = self.layers() or [_columns({}, self.ndim)]
        refs, deleted = layers[0]
        for newer, gone in layers[1:]:
            refs = refs.merge(newer, gone)
            deleted = np.concatenate([deleted, gone])
        if not len(deleted):
            return refs, deleted
        deleted = deleted[sort_rows(deleted)]
        return refs, deleted[refs.lookup.find_many(deleted) < 0]

    def touched(self) -> Index:
        """Every index set or deleted, ascending: what a transaction log lists."""
        refs, deleted = self.columns()
        if not len(deleted):
            return refs.index
        both = np.concatenate([refs.index, deleted])
        return both[sort_rows(both)]

    def without(self, index: Index) -> ChunkEdits:
        """The edits apart from those of some chunks."""
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

    def __iter__(self) -> Iterator[Coordinates]:
        return map(tuple, self.touched().tolist())


def _from_layers(ndim: int, layers: Sequence[tuple[ChunkRefs, Index]]) -> ChunkEdits:
    edits = ChunkEdits(ndim)
    for refs, deleted in layers:
        edits.set_table(refs, deleted)
    return edits


def _columns(single: dict[Coordinates, ChunkRef | None], ndim: int) -> tuple[ChunkRefs, Index]:
    deleted = [at for at, ref in single.items() if ref is None]
    tables = []
    for kind in ChunkKind:
        rows = [(at, ref) for at, ref in single.items() if ref is not None and ref.kind == kind]
        if rows:
            tables.append(_table(kind, [at for at, _ in rows], [ref for _, ref in rows]))
    refs = ChunkRefs.empty(ndim)
    for table in tables:
        refs = refs.merge(table)
    return refs, np.array(deleted, np.uint32).reshape(len(deleted), ndim)


def _table(kind: ChunkKind, at: Sequence[Coordinates], refs: Sequence[ChunkRef]) -> ChunkRefs:
    index = np.array(at, np.uint32).reshape(len(at), len(at[0]))
    if kind == ChunkKind.INLINE:
        return ChunkRefs.inline_chunks(index, pa.array([ref.inline for ref in refs], pa.binary()))
    offset = np.array([ref.offset for ref in refs], np.uint64)
    length = np.array([ref.length for ref in refs], np.uint64)
    if kind == ChunkKind.NATIVE:
        ids = b"".join(ref.chunk_id or bytes(ChunkId.size) for ref in refs)
        return ChunkRefs.native(index, np.frombuffer(ids, np.uint8), offset, length)
    has_etag = any(ref.etag is not None for ref in refs)
    has_time = any(ref.last_modified is not None for ref in refs)
    return ChunkRefs.virtual(
        index,
        pa.array([ref.location for ref in refs], pa.string()),
        offset,
        length,
        etag=pa.array([ref.etag for ref in refs], pa.string()) if has_etag else None,
        last_modified=[ref.last_modified or 0 for ref in refs] if has_time else None,
    )
