"""Decoding the chunk references of a manifest as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blob_column import BlobColumn, gather
from icefloe.format.columns.blobs import Bytes
from icefloe.format.columns.chunk_index import is_strictly_ascending
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

KIND_FIELDS = ("chunk_id", "location", "compressed_location", "inline")


def kind_of_table(
    chunk_id: int, location: int, compressed_location: int, inline: int
) -> ChunkKind | None:
    """The kind of references whose tables have these fields; an offset of 0 means absent."""
    if chunk_id:
        return ChunkKind.NATIVE
    if location or compressed_location:
        return ChunkKind.VIRTUAL
    return ChunkKind.INLINE if inline else None


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
        if not is_strictly_ascending(self.index.matrix):
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
        )

    def _decode_slice(self, rows: slice, tables: Rows) -> None:
        self.index.read(rows, tables.field("index")[0])
        # The kind of a reference follows from the vtable of its table, and there are few vtables.
        slots = [tables.spec.slot(name) for name in KIND_FIELDS]
        kinds = [
            kind_of_table(*[row[slot] for slot in slots]) for row in tables.field_offsets.tolist()
        ]
        if None in kinds:
            self.buffer.fail("a ChunkRef has neither chunk id nor location nor inline bytes")
        kind = tables.per_row(np.array(kinds, np.uint8))
        self.kind[rows] = kind
        self.offset[rows] = tables.scalar("offset")
        self.length[rows] = tables.scalar("length")
        if not tables.is_absent_everywhere("chunk_id"):
            if self.chunk_id is None:
                self.chunk_id = np.zeros((self.number, ChunkId.size), np.uint8)
            self.chunk_id[rows] = tables.struct("chunk_id")
        if not tables.is_absent_everywhere("inline"):
            is_inline = kind == ChunkKind.INLINE
            self.offset[rows][is_inline] = 0
            self._note_blobs("inline", rows, tables, is_inline)
        if ChunkKind.VIRTUAL in kinds:
            self._decode_virtual(rows, tables, kind == ChunkKind.VIRTUAL)
        if not tables.is_absent_everywhere("extra"):
            self._note_blobs("extra", rows, tables, np.True_)

    def _decode_virtual(self, rows: slice, tables: Rows, is_virtual: NDArray[np.bool_]) -> None:
        if not tables.is_absent_everywhere("checksum_last_modified"):
            if self.last_modified is None:
                self.last_modified = np.zeros(self.number, np.uint32)
            modified = tables.scalar("checksum_last_modified")
            self.last_modified[rows] = np.where(is_virtual, modified, 0)
        slot = tables.spec.slot("compressed_location")
        is_compressed = tables.per_row(tables.field_offsets[:, slot] != 0)
        for name, mask in (
            ("location", is_virtual & ~is_compressed),
            ("compressed_location", is_virtual),
            ("checksum_etag", is_virtual),
        ):
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
