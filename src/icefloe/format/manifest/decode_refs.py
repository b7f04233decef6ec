"""Decoding the chunk references of a manifest as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blob_column import BlobColumn, gather
from icefloe.format.columns.blobs import Bytes
from icefloe.format.columns.chunk_index import SortedIndex, is_strictly_ascending
from icefloe.format.flatbuffer.equal_vectors import EqualVectors
from icefloe.format.flatbuffer.read import FlatBuffer, Rows
from icefloe.format.flatbuffer.schema import CHUNK_REF
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.ids import ChunkId, NodeId
from icefloe.on_demand import on_demand

if TYPE_CHECKING:
    from icefloe.format.manifest import coded, dictionary, locations
    from icefloe.format.manifest.coded import Coded
else:
    coded = on_demand("icefloe.format.manifest.coded")
    dictionary = on_demand("icefloe.format.manifest.dictionary")
    locations = on_demand("icefloe.format.manifest.locations")

# Tables are decoded in slices of this size: temporary columns stay in the processor cache and add
# little to the peak of memory.
_SLICE = 1 << 15


class RefsDecoder:
    """Fills the columns of one array, slice by slice."""

    def __init__(
        self, buffer: FlatBuffer, first: int, number: int, dictionary: bytes | None
    ) -> None:
        """The vector has `number` offsets of tables, from position `first` on."""
        self.buffer = buffer
        self.first = first
        self.number = n = number
        self.dictionary = dictionary
        self.kind = np.empty(n, np.uint8)
        self.offset = np.empty(n, np.uint64)
        self.length = np.empty(n, np.uint64)
        self.index = EqualVectors(buffer, n, "ChunkRef.index")
        self.chunk_id: Bytes | None = None
        self.last_modified: NDArray[np.uint32] | None = None
        # Addresses of the blobs of each row, 0 for none. The bytes are copied when all are known.
        self.blob_at: dict[str, NDArray[np.uint32]] = {}

    def decode(self, node_id: NodeId) -> ChunkRefs:
        if not self.number:
            return ChunkRefs.empty(0)
        for first in range(0, self.number, _SLICE):
            rows = slice(first, min(first + _SLICE, self.number))
            slots = np.arange(self.first + 4 * rows.start, self.first + 4 * rows.stop, 4)
            position = self.buffer.targets(slots)
            self._decode_slice(rows, Rows(self.buffer, position, CHUNK_REF))
        lookup = [SortedIndex(self.index.matrix)] if self.number <= _SLICE else []
        if lookup:
            is_ascending = lookup[0].is_strictly_ascending()
        else:  # the keys of many rows are made when one is looked up
            is_ascending = is_strictly_ascending(self.index.matrix)
        if not is_ascending:
            self.buffer.fail(f"refs of node {node_id} do not ascend by chunk index")
        inline = self._blobs("inline")
        if inline is not None:
            is_inline = self.kind == ChunkKind.INLINE
            self.length[is_inline] = inline.length[is_inline]
        return ChunkRefs(
            self.index.matrix,
            self.kind,
            self.offset,
            self.length,
            self.chunk_id,
            self._locations(),
            self._coded("checksum_etag"),
            self.last_modified,
            inline,
            self._blobs("extra"),
            lookup,
        )

    def _decode_slice(self, rows: slice, tables: Rows) -> None:
        self.index.read(rows, tables.field("index")[0])
        has = {
            name: tables.field_offsets[:, tables.spec.slot(name)] != 0
            for name in ("chunk_id", "compressed_location", "location", "inline")
        }
        is_virtual = has["compressed_location"] | has["location"]
        inline = np.where(has["inline"], np.uint8(ChunkKind.INLINE), np.uint8(0))
        foreign = np.where(is_virtual, np.uint8(ChunkKind.VIRTUAL), inline)
        kind_of_vtable = np.where(has["chunk_id"], np.uint8(ChunkKind.NATIVE), foreign)
        if bool((kind_of_vtable == 0).any()):
            self.buffer.fail("a ChunkRef has neither chunk id nor location nor inline bytes")
        kind = tables.per_row(kind_of_vtable)
        self.kind[rows] = kind
        self.offset[rows] = np.where(kind == ChunkKind.INLINE, 0, tables.scalar("offset"))
        self.length[rows] = tables.scalar("length")
        if bool(has["chunk_id"].any()):
            if self.chunk_id is None:
                self.chunk_id = np.zeros((self.number, ChunkId.size), np.uint8)
            self.chunk_id[rows] = tables.struct("chunk_id")
        if not tables.is_absent_everywhere("checksum_last_modified"):
            if self.last_modified is None:
                self.last_modified = np.zeros(self.number, np.uint32)
            modified = tables.scalar("checksum_last_modified")
            self.last_modified[rows] = np.where(kind == ChunkKind.VIRTUAL, modified, 0)
        wanted = {
            "inline": kind == ChunkKind.INLINE,
            "location": (kind == ChunkKind.VIRTUAL) & ~tables.per_row(has["compressed_location"]),
            "compressed_location": kind == ChunkKind.VIRTUAL,
            "checksum_etag": kind == ChunkKind.VIRTUAL,
            "extra": np.True_,
        }
        for name, mask in wanted.items():
            if not tables.is_absent_everywhere(name):
                self._note_blobs(name, rows, tables, mask)

    def _note_blobs(self, name: str, rows: slice, tables: Rows, mask: Any) -> None:
        field, absent, _ = tables.field(name)
        at = self.buffer.targets(field)
        if absent is not None:
            mask = mask & ~absent
        if name not in self.blob_at:
            self.blob_at[name] = np.zeros(self.number, np.uint32)
        self.buffer.check(at if np.all(mask) else at[mask], 4, 4, f"ChunkRef.{name}")
        self.blob_at[name][rows] = np.where(mask, at, 0)

    def _blobs(self, name: str) -> BlobColumn | None:
        if name not in self.blob_at:
            return None
        at = self.blob_at[name].astype(np.int64)
        there, absent = np.flatnonzero(at), None
        start, length = self.buffer.vectors_at(at[there], 1, f"ChunkRef.{name}")
        self.buffer.check_total(int(length.sum()), f"ChunkRef.{name}")
        if len(there) < len(at):
            absent = at == 0
            found = start, length
            start, length = np.full(len(at), 8, np.int64), np.zeros(len(at), np.int64)
            start[there], length[there] = found
        return gather(self.buffer.u1, start, length, absent)

    def _codes(self, name: str) -> tuple[NDArray[np.int32], BlobColumn] | None:
        if name not in self.blob_at:
            return None
        at = self.blob_at.pop(name)
        num_there = np.count_nonzero(at)
        if not num_there:
            return None
        if num_there == len(at):
            return dictionary.encode_dictionary(self.buffer, at, f"ChunkRef.{name}")
        there = np.flatnonzero(at)
        codes = np.full(len(at), -1, np.int32)
        found = dictionary.encode_dictionary(self.buffer, at[there], f"ChunkRef.{name}")
        codes[there], values = found
        return codes, values

    def _text(self, name: str, values: BlobColumn) -> BlobColumn:
        try:
            return values.as_text()
        except UnicodeDecodeError:
            self.buffer.fail(f"ChunkRef.{name} is not valid UTF-8")

    def _coded(self, name: str) -> Coded | None:
        found = self._codes(name)
        if found is None:
            return None
        return coded.Coded(found[0], locations.Locations(self._text(name, found[1])))

    def _locations(self) -> Coded | None:
        plain, compressed = self._coded("location"), self._codes("compressed_location")
        if compressed is None:
            return plain
        if self.dictionary is None:
            self.buffer.fail("a location is compressed, but the file has no location dictionary")
        waiting = locations.CompressedLocations(compressed[1], self.dictionary, self.buffer.name)
        if plain is None:
            none = BlobColumn.nulls(0, is_text=True)
            return coded.Coded(compressed[0], locations.Locations(none, waiting))
        first = len(plain.values)
        codes = np.where(compressed[0] < 0, plain.codes, compressed[0] + first).astype(np.int32)
        return coded.Coded(codes, locations.Locations(plain.values.strings(), waiting))
