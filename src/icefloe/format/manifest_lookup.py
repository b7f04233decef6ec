"""References of a manifest: decoded as columns, or looked up in the undecoded bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.format import locations, small
from icefloe.format.chunk_index import is_strictly_ascending, numbered
from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs, check_ndim
from icefloe.format.columns import BlobColumn, Bytes, Ints, gather
from icefloe.format.flatbuffer.read import EqualVectors, FlatBuffer, Rows, Table, read_vtable
from icefloe.format.flatbuffer.schema import CHUNK_REF
from icefloe.ids import ChunkId, NodeId

if TYPE_CHECKING:
    from icefloe.format.locations import Coded, LocationDictionary


# -- Decoding the chunk references of a manifest as columns.


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

    def __init__(self, buffer: FlatBuffer, slots: Ints, dictionary: bytes | None) -> None:
        """`slots` is where the offsets of the tables are."""
        self.buffer = buffer
        self.slots = slots
        self.number = n = len(slots)
        self.dictionary = dictionary
        self.kind = np.empty(n, np.uint8)
        self.offset = np.empty(n, np.uint64)
        self.length = np.empty(n, np.uint64)
        self.index = EqualVectors(buffer, n, "ChunkRef.index")
        self.chunk_id: Bytes | None = None
        self.last_modified: NDArray[np.uint32] | None = None
        # Addresses of the blobs of each row, 0 for none. The bytes are copied when all are known.
        self.blob_at: dict[str, NDArray[np.uint32]] = {}

    def decode(self, owner: NodeId | Ints) -> ChunkRefs:
        """The references of an array, or of many arrays: then the number of each row's array."""
        if not self.number:
            return ChunkRefs.empty(0)
        for first in range(0, self.number, _SLICE):
            rows = slice(first, min(first + _SLICE, self.number))
            position = self.buffer.targets(self.slots[rows])
            self._decode_slice(rows, Rows(self.buffer, position, CHUNK_REF))
        if isinstance(owner, np.ndarray):
            if not is_strictly_ascending(numbered(owner, self.index.matrix)):
                self.buffer.fail("refs of an array do not ascend by chunk index")
        elif not is_strictly_ascending(self.index.matrix):
            self.buffer.fail(f"refs of node {owner} do not ascend by chunk index")
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
            return locations.encode_dictionary(self.buffer, at, f"ChunkRef.{name}")
        there = np.flatnonzero(at)
        codes = np.full(len(at), -1, np.int32)
        found = locations.encode_dictionary(self.buffer, at[there], f"ChunkRef.{name}")
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
        return locations.Coded(found[0], locations.Locations(self._text(name, found[1])))

    def _locations(self) -> Coded | None:
        plain, compressed = self._coded("location"), self._codes("compressed_location")
        if compressed is None:
            return plain
        if self.dictionary is None:
            self.buffer.fail("a location is compressed, but the file has no location dictionary")
        waiting = locations.CompressedLocations(compressed[1], self.dictionary, self.buffer.name)
        if plain is None:
            none = BlobColumn.nulls(0, is_text=True)
            return locations.Coded(compressed[0], locations.Locations(none, waiting))
        first = len(plain.values)
        codes = np.where(compressed[0] < 0, plain.codes, compressed[0] + first).astype(np.int32)
        return locations.Coded(codes, locations.Locations(plain.values.strings(), waiting))


# -- The chunk references of one array as a manifest file has them.
#
# A single reference is found in the bytes, so a reader of few chunks does not wait for the
# columns of all of them.


_COST = 16
"""To make a `ChunkRef` takes as long as looking at so many indices. A box with a hole for fewer
references is searched like any other references."""

_dot: Callable[[Sequence[int], Sequence[int]], int] = getattr(
    math, "sumprod", lambda first, second: sum(map(mul, first, second))
)
"""The sum of products; the function of Python 3.12 and later takes half the time."""


class TableForm(NamedTuple):
    """What all tables with one vtable have in common."""

    size: int
    index_at: int
    kind: ChunkKind

    @classmethod
    def of(cls, size: int, offsets: Mapping[str, int]) -> TableForm | None:
        """The form of tables that have these fields; an offset of 0 means absent."""
        kind = kind_of_table(*[offsets[name] for name in KIND_FIELDS])
        return None if kind is None else cls(size, offsets["index"], kind)


class StoredRefs:
    """The references of one array, not yet decoded.

    Rows ascend by chunk index. Where the references fill a box, the row of a chunk follows from its
    index, and with few holes it is near that row; elsewhere a bisection finds it. Either way the
    index in the row found decides.
    """

    __slots__ = (
        "_buffer",
        "_bytes",
        "_dictionary",
        "_end",
        "_first_row",
        "_forms",
        "_holes",
        "_inflater",
        "_node_id",
        "_number",
        "_offsets",
        "_slot",
        "_strides",
        "_words",
        "probes_left",
    )

    def __init__(
        self, buffer: FlatBuffer, first: int, number: int, dictionary: bytes | None, node_id: NodeId
    ) -> None:
        """The vector has `number` offsets of tables, from position `first` on."""
        self._buffer = buffer
        self._number = number
        self._dictionary = dictionary
        self._node_id = node_id
        # Views of native words: plain numbers come out of them fastest.
        self._words = memoryview(buffer.u4.astype(np.uint32, copy=False))
        self._offsets = memoryview(buffer.i4.astype(np.int32, copy=False))
        self._slot = first // 4
        self._end = buffer.size
        self._bytes = memoryview(buffer.u1)
        self._forms: dict[bytes, TableForm] = {}  # by the bytes of the vtable, its size first
        self._strides: list[int] | None = None
        self._first_row = self._holes = 0
        self._inflater: LocationDictionary | None = None
        self.probes_left = max(_COST * _COST, int(small.PROBES_SHARE * number))
        """At 0, the lookups so far have cost as much as decoding all references."""

    def __len__(self) -> int:
        return self._number

    @property
    def nbytes(self) -> int:
        """The size of the whole file: it stays in memory for these references."""
        return self._buffer.size

    def is_searched_for(self, count: int) -> bool:
        """Whether finding so many chunks costs less than decoding all references."""
        return count * _COST < self.probes_left

    def decode(self) -> ChunkRefs:
        """All references as columns.

        Raises:
            FormatError: they are not whole and consistent.
        """
        slots = np.arange(4 * self._slot, 4 * (self._slot + self._number), 4, dtype=np.int64)
        return RefsDecoder(self._buffer, slots, self._dictionary).decode(self._node_id)

    def get(self, coordinates: Sequence[int]) -> ChunkRef | None:
        """The reference of one chunk; None if the array has none."""
        position, form = self.find(coordinates)
        if form is None:
            return None
        self.probes_left -= _COST
        return self._ref(position, form)

    # -- finding

    def find(self, coordinates: Sequence[int]) -> tuple[int, TableForm | None]:
        """The position and the form of the table of one chunk; the form is None if the array has
        none there."""
        strides = self._strides
        if strides is None:
            strides = self._strides = self._find_strides()
        wanted = list(coordinates)
        if len(strides) == len(wanted):
            row = _dot(wanted, strides) - self._first_row
            if self._holes:
                # Every hole before a chunk moves it one row to the front.
                low, high = max(row - self._holes, 0), min(row + 1, self._number)
                position, form = self._bisect(wanted, low, high)
                if form is not None:
                    return position, form
            elif 0 <= row < self._number:
                position, form, index = self._probe(row)
                if index == wanted:
                    return position, form
        return self._bisect(wanted, 0, self._number)

    def _bisect(self, wanted: list[int], low: int, high: int) -> tuple[int, TableForm | None]:
        """The same, in some of the rows."""
        while low < high:
            middle = (low + high) // 2
            self.probes_left -= 1
            position, form, index = self._probe(middle)
            check_ndim(wanted, len(index))
            if index == wanted:
                return position, form
            low, high = (middle + 1, high) if index < wanted else (low, middle)
        return 0, None

    def _find_strides(self) -> list[int]:
        """By how many rows neighbours along each dimension are apart, if the references seem to
        fill a box but for a few holes; else nothing."""
        if not self._number:
            return []
        first, last = self._probe(0)[2], self._probe(self._number - 1)[2]
        if len(first) != len(last):
            return []
        sizes = [stop - start + 1 for start, stop in zip(first, last, strict=True)]
        self._holes = math.prod(sizes) - self._number
        if min(sizes, default=0) < 1 or not 0 <= self._holes <= self._number // _COST:
            return []
        strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
        self._first_row = _dot(first, strides)
        return strides

    def _probe(self, row: int) -> tuple[int, TableForm, list[int]]:
        """The position of the table in a row, its form and its chunk index."""
        words = self._words
        slot = self._slot + row
        try:
            position = 4 * slot + words[slot]
            vtable = position - self._offsets[position >> 2]
            # Tables have few different vtables, but a file may have many copies of them.
            raw = self._bytes[vtable : vtable + self._bytes[vtable]].tobytes()
            form = self._forms.get(raw) or self._read_form(vtable, raw)
            field = position + form.index_at
            vector = field + words[field >> 2]
            start = (vector >> 2) + 1
            stop = start + words[start - 1]
        except IndexError:
            self._buffer.fail(f"row {row} of the refs of node {self._node_id} is outside the file")
        if (position | field | vector) & 3 or vtable & 1:
            self._buffer.fail(f"row {row} of the refs of node {self._node_id} is not aligned")
        if vtable < 4 or position + form.size > self._end or 4 * stop > self._end:
            self._buffer.fail(f"row {row} of the refs of node {self._node_id} is outside the file")
        return position, form, words[start:stop].tolist()

    def _read_form(self, vtable: int, raw: bytes) -> TableForm:
        size, offsets = read_vtable(self._buffer, vtable, CHUNK_REF)
        form = TableForm.of(size, dict(zip(CHUNK_REF.fields, offsets, strict=True)))
        if form is None:
            self._buffer.fail("a ChunkRef has neither chunk id nor location nor inline bytes")
        if len(raw) == int(self._buffer.u2[vtable >> 1]):
            self._forms[raw] = form
        return form

    # -- one reference as a value

    def _ref(self, position: int, form: TableForm) -> ChunkRef:
        table, kind = Table(self._buffer, position, CHUNK_REF), form.kind
        if kind is ChunkKind.INLINE:
            data = table.bytes("inline")
            assert data is not None  # that made it inline
            return ChunkRef(kind, 0, len(data), inline=data)
        offset, length = table.scalar("offset"), table.scalar("length")
        if kind is ChunkKind.NATIVE:
            return ChunkRef(kind, offset, length, ChunkId(table.id("chunk_id")))
        return ChunkRef(
            kind,
            offset,
            length,
            location=self._location(table),
            etag=table.string("checksum_etag"),
            last_modified=table.scalar("checksum_last_modified") or None,
        )

    def _location(self, table: Table) -> str | None:
        frame = table.bytes("compressed_location")
        if frame is None:
            return table.string("location")
        if self._dictionary is None:
            self._buffer.fail("a location is compressed, but the file has no location dictionary")
        if self._inflater is None:
            self._inflater = locations.LocationDictionary(self._dictionary, self._buffer.name)
        return self._inflater.text(frame)
