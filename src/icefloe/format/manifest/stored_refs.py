"""The chunk references of one array as a manifest file has them.

A single reference is found in the bytes, so a reader of few chunks does not wait for the columns of
all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import mul
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format.flatbuffer.read import FlatBuffer, Table, read_vtable
from icefloe.format.flatbuffer.schema import CHUNK_REF
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRef, ChunkRefs, check_ndim
from icefloe.format.manifest.decode_refs import KIND_FIELDS, RefsDecoder, kind_of_table
from icefloe.ids import ChunkId, NodeId
from icefloe.on_demand import on_demand
from icefloe.records import NamedTuple

if TYPE_CHECKING:
    from icefloe.format.manifest import locations
    from icefloe.format.manifest.locations import LocationDictionary
else:
    locations = on_demand("icefloe.format.manifest.locations")

_REFS_DECODED_IN_A_PROBE = 16
_PROBES_LIKE_A_REF = 8
"""To look at the index of one row takes as long as decoding so many references as columns, and to
make a `ChunkRef` of one row as long as looking at so many indices."""
_FEW_PROBES = 256
_REFS_A_HOLE = 16
"""With fewer of them, a box with holes is searched like any other references."""

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
        self.probes_left = max(_FEW_PROBES, number // _REFS_DECODED_IN_A_PROBE)
        """At 0, the lookups so far have cost as much as decoding all references."""

    def __len__(self) -> int:
        return self._number

    @property
    def nbytes(self) -> int:
        """The size of the whole file: it stays in memory for these references."""
        return self._buffer.size

    def decode(self) -> ChunkRefs:
        """All references as columns.

        Raises:
            FormatError: they are not whole and consistent.
        """
        first = 4 * self._slot
        decoder = RefsDecoder(self._buffer, first, self._number, self._dictionary)
        return decoder.decode(self._node_id)

    def get(self, coordinates: Sequence[int]) -> ChunkRef | None:
        """The reference of one chunk; None if the array has none."""
        position, form = self.find(coordinates)
        if form is None:
            return None
        self.probes_left -= _PROBES_LIKE_A_REF
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
        if min(sizes, default=0) < 1 or not 0 <= self._holes <= self._number // _REFS_A_HOLE:
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
