"""The references of many chunks of one array, found together.

One search per manifest, over columns. The result names what has to be read: the bytes of inline
chunks are there already, all others are spans of objects or virtual references.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.assets import Assets
from icefloe.errors import InternalError
from icefloe.format.chunk_index import Index
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.manifest import Manifest
from icefloe.format.nodes import ManifestRef, Node
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import SessionView, load_manifest
from icefloe.storage.driver import Readable, Span

Positions = NDArray[np.int64]


class StoredChunk(NamedTuple):
    """A native chunk: part of an object of the repository."""

    position: int
    key: str
    span: Span


class VirtualChunk(NamedTuple):
    """A chunk inside a foreign file."""

    position: int
    ref: ChunkRef


class FoundChunks:
    """What is known of the wanted chunks, by their position in the request.

    A chunk is in exactly one of the lists.
    """

    def __init__(self) -> None:
        self.inline: list[tuple[int, Readable]] = []
        self.stored: list[StoredChunk] = []
        self.virtual: list[VirtualChunk] = []
        self.missing: list[int] = []

    def add(self, assets: Assets, position: int, ref: ChunkRef) -> None:
        """Add one reference."""
        if ref.inline is not None:
            self.inline.append((position, ref.inline))
        elif ref.kind == ChunkKind.VIRTUAL:
            self.virtual.append(VirtualChunk(position, ref))
        else:
            key = ref.location
            if key is None:
                if ref.chunk_id is None:
                    raise InternalError("a native chunk has neither id nor key")
                key = assets.chunk_key(ref.chunk_id)
            self.stored.append(StoredChunk(position, key, Span(ref.offset, ref.length)))

    def add_rows(
        self, assets: Assets, refs: ChunkRefs, rows: NDArray[np.int64], positions: Positions
    ) -> None:
        """Add rows of a table."""
        kind = refs.kind[rows]
        if refs.inline is not None:
            is_inline = kind == ChunkKind.INLINE
            data, offsets = memoryview(refs.inline.data), refs.inline.offsets
            chosen = rows[is_inline]
            starts, stops = offsets[chosen].tolist(), offsets[chosen + 1].tolist()
            self.inline += [
                (position, data[start:stop])
                for position, start, stop in zip(
                    positions[is_inline].tolist(), starts, stops, strict=True
                )
            ]
        is_plain = kind == ChunkKind.NATIVE
        if refs.location is not None:
            is_plain &= refs.location.codes[rows] < 0
        if refs.chunk_id is not None and is_plain.any():
            chosen = rows[is_plain]
            keys = assets.chunk_keys(refs.chunk_id[chosen])
            spans = map(Span, refs.offset[chosen].tolist(), refs.length[chosen].tolist())
            self.stored += map(StoredChunk, positions[is_plain].tolist(), keys, spans)
        for at in np.flatnonzero(~is_plain & (kind != ChunkKind.INLINE)).tolist():
            self.add(assets, int(positions[at]), refs.row(int(rows[at])))


async def find_chunks(
    handle: RepoHandle, view: SessionView, node: Node, index: Index
) -> FoundChunks:
    """Look up the chunks with the indices `index`, one per row, in edits and manifests.

    Chunks outside of the array's grid are missing, even if an older manifest has them.
    """
    found = FoundChunks()
    inside = _inside_grid(node, index)
    found.missing += np.flatnonzero(~inside).tolist()
    missing = _add_edits(handle.assets, view, node, index, np.flatnonzero(inside), found)
    if not len(missing):
        return found
    assert node.array is not None
    touched = list(_touched(node.array.manifests, index, missing))
    manifests = await _load(handle, view, [ref for ref, _ in touched])
    is_missing = np.zeros(len(index), np.bool_)
    is_missing[missing] = True
    for (_, positions), manifest in zip(touched, manifests, strict=True):
        wanted = positions[is_missing[positions]]
        is_missing[_add_from(handle.assets, manifest, node, index, wanted, found)] = False
    found.missing += np.flatnonzero(is_missing).tolist()
    return found


def _inside_grid(node: Node, index: Index) -> NDArray[np.bool_]:
    shape = () if node.array is None else node.array.shape
    inside = np.full(len(index), len(shape) == index.shape[1])
    for dimension, column in zip(shape, index.T, strict=False):
        inside &= (column < dimension.num_chunks) | (column == 0)
    return inside


def _add_edits(
    assets: Assets,
    view: SessionView,
    node: Node,
    index: Index,
    wanted: Positions,
    found: FoundChunks,
) -> Positions:
    """Add chunks that the session has changed. Returns the positions of all others."""
    if node.id not in view.changes.chunks:
        return wanted
    untouched = []
    with view.lock:  # the references and their packs have to be consistent
        edits = view.changes.chunks.get(node.id)
        for position in wanted.tolist():
            coordinates = tuple(index[position].tolist())
            is_touched, ref = (False, None) if edits is None else edits.find(coordinates)
            if not is_touched:
                untouched.append(position)
            elif ref is None:
                found.missing.append(position)
            else:
                found.add(assets, position, view.packs.filled(ref, node.id, coordinates))
    return np.array(untouched, np.int64)


def _touched(
    manifests: Iterable[ManifestRef], index: Index, missing: Positions
) -> Iterator[tuple[ManifestRef, Positions]]:
    """Manifests whose box has wanted chunks in it, and which. Zarr asks in ascending order, so
    the first axis narrows each search."""
    leading = index[missing, 0].astype(np.int64) if index.shape[1] else np.zeros(len(missing), int)
    order = missing
    if not bool((leading[1:] >= leading[:-1]).all()):
        rank = np.argsort(leading, kind="stable")
        order, leading = missing[rank], leading[rank]
    for ref in manifests:
        start, stop = ref.extents[0] if ref.extents else (0, 1)
        first, last = np.searchsorted(leading, (start, stop))
        if first == last:
            continue
        positions = order[first:last]
        inside = np.ones(len(positions), np.bool_)
        for axis, (start, stop) in enumerate(ref.extents):
            column = index[positions, axis]
            inside &= (column >= start) & (column < stop)
        if inside.any():
            yield ref, positions if inside.all() else positions[inside]


async def _load(
    handle: RepoHandle, view: SessionView, wanted: Sequence[ManifestRef]
) -> list[Manifest]:
    files, caches = view.manifest_files, handle.assets.caches
    if not view.has_read and wanted and caches.manifests.get(wanted[0].id) is None:
        view.has_read = True
        await load_manifest(handle, view.snapshot, files[wanted[0].id], is_first=True)
    return await handle.assets.manifests([(ref.id, files[ref.id].size_bytes) for ref in wanted])


def _add_from(
    assets: Assets,
    manifest: Manifest,
    node: Node,
    index: Index,
    wanted: Positions,
    found: FoundChunks,
) -> Positions:
    """Add the chunks that a manifest has. Returns their positions."""
    array = manifest.array(node.id)
    if array is None or not len(wanted):
        return wanted[:0]
    if array.is_searched_for(len(wanted)):
        positions = []
        for position in wanted.tolist():
            ref = array.get(index[position].tolist())
            if ref is not None:
                found.add(assets, position, ref)
                positions.append(position)
        return np.array(positions, np.int64)
    refs = array.refs
    if refs.ndim != index.shape[1]:
        return wanted[:0]  # the rank of the array has changed since
    rows = refs.lookup.find_many(index[wanted])
    is_there = rows >= 0
    found.add_rows(assets, refs, rows[is_there], wanted[is_there])
    return wanted[is_there]
