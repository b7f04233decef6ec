"""Packs: small chunks of a session that are stored together in one object.

A chunk belongs to the session as soon as it is added. Its reference names the pack, but has no
offset (`PENDING`) until the pack is closed. Closing a pack lays the chunks out in the order of
their coordinates, so that neighbours can be read with one request. Chunks that were deleted or
overwritten in the meantime are left out. A closed pack never changes, so storing it twice is
harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes.change_set import ChangeSet
from icefloe.errors import InternalError
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.ids import ChunkId, NodeId

if TYPE_CHECKING:
    from icefloe.changes.chunk_edits import ChunkEdits, Coordinates

PENDING = 2**64 - 1
"""The offset of a chunk in an open pack."""


class Pack:
    """A future object. An open pack has `chunks`, a closed one has `data`."""

    __slots__ = ("chunks", "data", "id", "is_taken", "num_bytes")

    def __init__(self, pack_id: ChunkId) -> None:
        self.id = pack_id
        self.chunks: dict[tuple[NodeId, Coordinates], bytes] = {}
        self.num_bytes = 0
        self.data = b""
        self.is_taken = False
        """Whether a thread is storing it."""


class Packs:
    """The packs of one session that are not stored yet. Callers hold the lock of the session."""

    __slots__ = ("_open", "_packs")

    def __init__(self) -> None:
        self._packs: dict[ChunkId, Pack] = {}
        self._open: dict[NodeId | None, Pack] = {}
        """The open packs: one for all arrays (None), or one per array."""

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""
        return sum(pack.num_bytes for pack in self._packs.values())

    @property
    def num_taken(self) -> int:
        """How many packs are being stored."""
        return sum(pack.is_taken for pack in self._packs.values())

    def add(
        self,
        edits: ChunkEdits,
        node_id: NodeId,
        coordinates: Coordinates,
        data: bytes,
        new_id: Callable[[], ChunkId],
        *,
        is_shared: bool = True,
    ) -> int:
        """Add a chunk to the open pack and to `edits`. Returns the current size of the pack.

        A pack with `is_shared` may hold chunks of several arrays.
        """
        owner = None if is_shared else node_id
        pack = self._open.get(owner)
        if pack is None:
            pack = self._open[owner] = Pack(new_id())
            self._packs[pack.id] = pack
        key = (node_id, coordinates)
        pack.num_bytes += len(data) - len(pack.chunks.get(key, b""))
        pack.chunks[key] = data
        edits.set(coordinates, ChunkRef(ChunkKind.NATIVE, PENDING, len(data), pack.id))
        return pack.num_bytes

    def close(self, changes: ChangeSet) -> None:
        """Close all open packs: every chunk gets its offset. Later chunks go into new packs."""
        for owner in list(self._open):
            self.close_pack(changes, owner)

    def close_pack(self, changes: ChangeSet, owner: NodeId | None) -> None:
        """Close the pack of one array, or the shared pack (None)."""
        pack = self._open.pop(owner, None)
        if pack is None:
            return
        parts: list[bytes] = []
        size = 0
        for (node_id, coordinates), data in sorted(pack.chunks.items()):
            edits = changes.chunks.get(node_id)
            ref = None if edits is None else edits.find(coordinates)[1]
            if edits is None or ref is None or ref.chunk_id != pack.id:
                continue  # no longer in the session
            edits.set(coordinates, ref._replace(offset=size))
            parts.append(data)
            size += len(data)
        pack.chunks = {}
        pack.data, pack.num_bytes = b"".join(parts), size
        if not parts:
            del self._packs[pack.id]

    def take(self, *, all_closed: bool = False) -> list[Pack]:
        """Closed packs for the caller to store: those that no thread is storing, or all."""
        packs = [
            pack
            for pack in self._packs.values()
            if pack not in self._open.values() and (all_closed or not pack.is_taken)
        ]
        for pack in packs:
            pack.is_taken = True
        return packs

    def give_back(self, packs: Iterable[Pack]) -> None:
        """Return packs that could not be stored, for a retry."""
        for pack in packs:
            pack.is_taken = False

    def give_back_all(self) -> None:
        """After a fork of the process: the threads that were storing packs do not exist here."""
        self.give_back(self._packs.values())

    def drop(self, packs: Iterable[Pack]) -> None:
        """Forget packs that are stored."""
        for pack in packs:
            self._packs.pop(pack.id, None)

    def filled(self, ref: ChunkRef, node_id: NodeId, coordinates: Coordinates) -> ChunkRef:
        """The current reference of a chunk, with its bytes if the chunk is not stored yet."""
        pack = self._packs.get(ref.chunk_id) if ref.chunk_id is not None else None
        if pack is None:
            return ref
        if ref.offset == PENDING:
            return ref._replace(inline=pack.chunks[node_id, coordinates])
        return ref._replace(inline=pack.data[ref.offset : ref.offset + ref.length])


def check_placed(changes: ChangeSet) -> None:
    """Raise InternalError if a reference has no offset, because its chunk could not be read."""
    for node_id, edits in changes.chunks.items():
        if not any(_is_pending(refs) for refs, _ in edits.layers()):
            continue
        # An older layer may have a pending reference that a newer layer has replaced.
        refs, _ = edits.columns()
        if _is_pending(refs):
            raise InternalError(
                f"chunks of node {node_id} wait in a pack that is gone; nothing is committed, "
                "write them again"
            )


def _is_pending(refs: ChunkRefs) -> bool:
    at = refs.offset == np.uint64(PENDING)
    return bool(at.any()) and bool((at & (refs.kind == ChunkKind.NATIVE)).any())
