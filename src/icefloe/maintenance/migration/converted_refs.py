"""Converts chunk references of older generations to those of spec versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blob_column import BlobColumn
from icefloe.format.columns.blobs import Bytes, Ints
from icefloe.format.columns.id_set import id_keys
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest.coded import Coded
from icefloe.format.manifest.locations import Locations
from icefloe.ids import ChunkId
from icefloe.maintenance.migration.new_history import derived_id

_BYTES_AT_ONCE = 64 << 20
_OBJECTS_AT_ONCE = 256


class NativeObjects(NamedTuple):
    """The distinct objects of the native chunks of some references."""

    chunk_id: Bytes
    """The ids in the target. The id of an object with another name is derived from the name."""
    key: list[str | None]
    """The names in the source, if they are not ids."""
    size: list[int]
    """The end of the last referenced chunk."""
    rows: Ints
    """Which references are native."""
    place: Ints
    """The object of each native reference."""

    def batches(self, wanted: Sequence[int]) -> Iterator[list[int]]:
        """The objects in batches that fit into memory."""
        batch: list[int] = []
        waiting = 0
        for at in wanted:
            is_full = waiting + self.size[at] > _BYTES_AT_ONCE or len(batch) >= _OBJECTS_AT_ONCE
            if batch and is_full:
                yield batch
                batch, waiting = [], 0
            batch.append(at)
            waiting += self.size[at]
        if batch:
            yield batch


def native_objects(refs: ChunkRefs) -> NativeObjects:
    """The distinct objects of native chunks."""
    rows = np.flatnonzero(refs.kind == ChunkKind.NATIVE)
    ids = np.zeros((len(rows), ChunkId.size), np.uint8)
    if refs.chunk_id is not None:
        ids[:] = refs.chunk_id[rows]
    if refs.location is not None:
        codes = refs.location.codes[rows]
        used, place = np.unique(codes[codes >= 0], return_inverse=True)
        if len(used):
            named = (derived_id(refs.location.values.get(code).encode()) for code in used.tolist())
            made = np.frombuffer(b"".join(named), np.uint8).reshape(-1, ChunkId.size)
            ids[codes >= 0] = made[place]
    _, first, place = np.unique(id_keys(ids), return_index=True, return_inverse=True)
    ends = np.zeros(len(first), np.uint64)
    np.maximum.at(ends, place, refs.offset[rows] + refs.length[rows])
    location = refs.location
    keys = [None if location is None else location.get(int(row)) for row in rows[first]]
    return NativeObjects(ids[first], keys, ends.tolist(), rows, place)


def named_by_id(refs: ChunkRefs, objects: NativeObjects) -> ChunkRefs:
    """The same references, with an id for every native chunk."""
    if not any(key is not None for key in objects.key):
        return refs
    ids = np.zeros((len(refs), ChunkId.size), np.uint8)
    ids[objects.rows] = objects.chunk_id[objects.place]
    return replace(refs, chunk_id=ids, location=_without(refs.location, objects.rows), _lookup=[])


def as_virtual(refs: ChunkRefs, objects: NativeObjects, urls: Sequence[str]) -> ChunkRefs:
    """The same references, with native chunks as virtual chunks of the objects at `urls`."""
    if not len(objects.rows):
        return refs
    others = _without(refs.location, objects.rows)
    strings = BlobColumn.from_values(list(urls), is_text=True)
    codes = np.full(len(refs), -1, np.int32)
    if others is not None:
        codes[:] = others.codes
    known = 0 if others is None else len(others.values)
    codes[objects.rows] = objects.place + known
    parts = [] if others is None else [others.values.strings()]
    values = Locations(BlobColumn.concat([*parts, strings]))
    kind: NDArray[np.uint8] = refs.kind.copy()
    kind[objects.rows] = ChunkKind.VIRTUAL
    return replace(refs, kind=kind, chunk_id=None, location=Coded(codes, values), _lookup=[])


def _without(column: Coded | None, rows: Ints) -> Coded | None:
    """A column of locations, with those of some rows removed."""
    if column is None:
        return None
    codes = column.codes.copy()
    codes[rows] = -1
    if (codes < 0).all():
        return None
    return Coded(codes, column.values).compact()
