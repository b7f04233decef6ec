"""Columns to flatbuffer tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from struct import pack, pack_into
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import BlobColumn, Ints, scatter, spread, windows
from icefloe.format.flatbuffer.read import blob_rows
from icefloe.format.flatbuffer.schema import Field, TableSpec

# -- The parts of a file before it is compressed.


class Produced(NamedTuple):
    """A part of known size that is made while it is compressed, and is never there as a whole."""

    nbytes: int
    pieces: Callable[[], Iterable[NDArray[Any]]]

    def __bytes__(self) -> bytes:
        return b"".join(contiguous([self]))


Segment: TypeAlias = NDArray[Any] | bytes | bytearray | Produced


def segment_size(segment: Segment) -> int:
    """Bytes of a segment."""
    return segment.nbytes if isinstance(segment, np.ndarray | Produced) else len(segment)


def contiguous(segments: Iterable[Segment]) -> Iterable[Any]:
    """Segments as buffers of bytes, one by one."""
    for segment in segments:
        if isinstance(segment, Produced):
            yield from contiguous(segment.pieces())
        elif not isinstance(segment, np.ndarray):
            yield segment
        elif segment.nbytes:
            yield segment.reshape(-1).view(np.uint8)


# -- Writing flatbuffers with numpy: columns go in as segments, placed one behind the other.
#
# A flatbuffer offset only reaches forward, so users are placed before what they point at: reserve
# the tables, place their strings and vectors, then `point` the fields at them. Segments stay
# ordinary arrays until they are compressed, which is what makes the later filling possible.


Mask = NDArray[np.bool_]
Blobs: TypeAlias = BlobColumn | Sequence[str | bytes | None]
Positions: TypeAlias = Ints | list[int]
"""A list if they were placed one by one."""

_SMALL_SEGMENT = 1 << 12  # bytes: copied behind others, so that there are few segments
_ZEROS = bytes(16)


def padded(size: int, align: int) -> int:
    """`size`, rounded up to a multiple of `align`."""
    return -(-size // align) * align


class FlatWriter:
    """A flatbuffer being written. Positions are bytes from its start."""

    def __init__(self, *, has_head: bool = True) -> None:
        """Without a head it is a part of a buffer, to be put anywhere that is aligned."""
        self._head = bytearray(b"\0\0\0\0Ichk" if has_head else b"")
        self._segments: list[Segment] = []
        self._before = 0  # bytes in these segments
        self.tail = self._head
        """What follows them: small parts, one behind the other."""
        self._vtables: dict[bytes, int] = {}

    @property
    def size(self) -> int:
        return self._before + len(self.tail)

    def add(self, segment: Segment, align: int = 4, shift: int = 0) -> int:
        """Place `segment` so that byte `shift` of it is aligned; returns its position."""
        tail = self.tail
        position = self._before + len(tail)
        if gap := -(position + shift) % align:
            tail += _ZEROS[:gap]
            position += gap
        if type(segment) is bytes and len(segment) <= _SMALL_SEGMENT:
            tail += segment
        else:
            self._segments += (tail, segment)
            self._before, self.tail = position + segment_size(segment), bytearray()
        return position

    def finish(self, root: SingleTable) -> list[Segment]:
        """The segments of the whole buffer, a multiple of eight bytes long."""
        pack_into("<I", self._head, 0, root.position)
        return self.segments()

    def segments(self) -> list[Segment]:
        """What was placed so far, a multiple of eight bytes long."""
        self.add(b"", align=8)
        return [*self._segments, self.tail]

    def joined(self) -> bytes:
        """The same as one byte string."""
        return b"".join(contiguous(self.segments()))

    def vtable(self, vtable: bytes) -> int:
        """Where a vtable is; single tables with the same fields share one."""
        at = self._vtables.get(vtable)
        if at is None:
            at = self._vtables[vtable] = self.add(vtable, align=2)
        return at

    def table(self, spec: TableSpec, fields: Iterable[str]) -> SingleTable:
        """Reserve a single table with these fields."""
        return SingleTable(self, spec, tuple(fields))

    def tables(self, spec: TableSpec, count: int, fields: Mapping[str, Mask | None]) -> TableWriter:
        """Reserve `count` tables; a mask says which rows carry a field, None means all."""
        return TableWriter(self, spec, count, fields)

    def offsets(self, count: int) -> OffsetVector:
        """Reserve one vector of offsets."""
        return OffsetVector(self, count)

    def nested_offsets(self, counts: Ints) -> OffsetVectors:
        """Reserve one vector of offsets for each row."""
        return OffsetVectors(self, counts)

    def blobs(self, column: Blobs, terminator: int = 1) -> Ints:
        """Place byte strings; returns the position of each. Null rows take one empty blob."""
        if not len(column):
            return np.empty(0, np.int64)
        if not isinstance(column, BlobColumn):
            is_text = any(isinstance(value, str) for value in column)
            column = BlobColumn.from_values(column, is_text=is_text)
        segment, start = blob_rows(column, terminator)
        return self.add(segment) + start

    def tables_with_text(
        self, spec: TableSpec, field: str, texts: BlobColumn, others: Mapping[str, Any]
    ) -> Ints:
        """Place tables of words, each with its text right behind it; returns positions.

        Offsets to the texts are all the same then, and compress well.
        """
        layout, vtable = table_layout(spec, (field, *others))
        at_vtable = self.add(vtable.tobytes(), align=2)
        segment, start = blob_rows(texts, 1, lead=layout.itemsize)
        position = self.add(segment) + start
        records = np.zeros(len(texts), layout)
        records["soffset"] = position - at_vtable
        records[field] = layout.itemsize - layout.fields[field][1]  # type: ignore[index]
        for name, values in others.items():
            records[name] = values
        windows(segment, layout.itemsize)[start] = records.view(f"V{layout.itemsize}")
        return position

    def blob(self, data: bytes, terminator: int = 0) -> int:
        """Place one byte string or, with a terminator, one text."""
        length = len(data)
        tail = _ZEROS[: -(length + terminator) % 4 + terminator]
        return self.add(b"%b%b%b" % (length.to_bytes(4, "little"), data, tail))

    def text(self, text: str) -> int:
        return self.blob(text.encode(), terminator=1)

    def vector(self, items: NDArray[Any], align: int = 4) -> int:
        """Place one vector of scalars or structs."""
        return self.structs(items.tobytes(), len(items), align)

    def structs(self, data: bytes, count: int, align: int = 4) -> int:
        """Place one vector whose items are bytes already."""
        whole = count.to_bytes(4, "little") + data + bytes(-len(data) % 4)
        return self.add(whole, align=max(align, 4), shift=4)

    def vectors(self, items: NDArray[Any], counts: Ints, align: int = 4) -> Ints:
        """Place one vector for each row, whose items follow each other; returns positions."""
        width = items.dtype.itemsize if items.ndim == 1 else items.strides[0]
        lead = max(align, 4)  # the length word, pushed back so that the items are aligned
        size = (lead + counts * width + lead - 1) // lead * lead
        start = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(size, out=start[1:])
        segment = np.zeros(int(start[-1]), np.uint8)
        segment.view("<u4")[(start[:-1] + lead - 4) >> 2] = counts
        if items.nbytes:
            at = spread(start[:-1] + lead, counts, width)
            source = np.ascontiguousarray(items).reshape(-1).view(np.uint8)
            every = np.arange(0, len(source), width, dtype=np.int64)
            scatter(segment, at, source, every, np.full(len(at), width, np.int64))
        position: Ints = self.add(segment, align=lead) + start[:-1] + lead - 4
        return position


class OffsetVector:
    """One reserved vector of offsets."""

    __slots__ = ("_at", "_words", "position")

    def __init__(self, writer: FlatWriter, count: int) -> None:
        words = count.to_bytes(4, "little") + bytes(4 * count)
        if len(words) > _SMALL_SEGMENT:
            self._at, self._words = 4, bytearray(words)
            self.position = writer.add(self._words)
        else:
            self.position = writer.add(words)
            self._words = writer.tail
            self._at = len(writer.tail) - 4 * count

    def point(self, targets: Positions) -> None:
        """Let the slots lead to `targets`."""
        first = self.position + 4
        if isinstance(targets, list):
            words, at = self._words, self._at
            for slot in range(0, 4 * len(targets), 4):
                pack_into("<I", words, at + slot, targets[slot >> 2] - first - slot)
            return
        shifted = targets - np.arange(first, first + 4 * len(targets), 4)
        self._words[self._at : self._at + 4 * len(targets)] = shifted.astype("<u4").tobytes()


class OffsetVectors:
    """Reserved vectors of offsets; `position` has one entry a vector."""

    def __init__(self, writer: FlatWriter, counts: Ints) -> None:
        end = 4 * np.cumsum(counts + 1)
        start = end - 4 * (counts + 1)
        self._words = np.zeros(int(end[-1]) >> 2 if len(end) else 0, "<u4")
        self._words[start >> 2] = counts
        base = writer.add(self._words)
        self.position: Ints = base + start
        self._slot = spread(start + 4, counts, 4)
        self._base = base

    def point(self, targets: Positions) -> None:
        """Let the slots, one vector's after another's, lead to `targets`."""
        self._words[self._slot >> 2] = np.asarray(targets, np.int64) - (self._base + self._slot)


class SingleTable:
    """One reserved table, whose fields are set one by one."""

    __slots__ = ("_at", "_bytes", "_place", "position")

    def __init__(self, writer: FlatWriter, spec: TableSpec, names: tuple[str, ...]) -> None:
        blank, vtable, self._place, _ = _row_layout(spec, names)
        at_vtable = writer.vtable(vtable)
        self.position = position = writer.add(blank, align=8)
        self._bytes = tail = writer.tail
        self._at = at = len(tail) - len(blank)
        pack_into("<i", tail, at, position - at_vtable)

    def __contains__(self, field: str) -> bool:
        return field in self._place

    def place(self, field: str) -> int:
        """Where a field is, from the start of the table."""
        return self._place[field][0]

    def set(self, field: str, value: int | bytes) -> None:
        """Write a scalar or a struct."""
        at, size = self._place[field]
        at += self._at
        self._bytes[at : at + size] = (
            value if isinstance(value, bytes) else value.to_bytes(size, "little", signed=value < 0)
        )

    def point(self, field: str, target: int) -> None:
        """Let an offset field lead to `target`, a position placed later in the buffer."""
        at = self._place[field][0]
        pack_into("<I", self._bytes, self._at + at, target - (self.position + at))


class TableWriter:
    """Reserved tables; rows that carry the same fields lie together and share a vtable."""

    def __init__(
        self, writer: FlatWriter, spec: TableSpec, count: int, fields: Mapping[str, Mask | None]
    ) -> None:
        self.spec = spec
        self.position: Ints = np.zeros(count, np.int64)
        self._groups: list[tuple[Any, NDArray[Any]]] = []
        for rows, names in _groups_by_presence(count, fields):
            layout, vtable = table_layout(spec, names)
            at_vtable = writer.add(vtable.tobytes(), align=2)
            records = np.zeros(count if rows is None else len(rows), layout)
            base = writer.add(records, align=8)
            end = base + layout.itemsize * len(records)
            at = np.arange(base, end, layout.itemsize, dtype=np.int64)
            records["soffset"] = at - at_vtable
            selected = _ALL if rows is None else rows
            self.position[selected] = at
            self._groups.append((selected, records))

    def place(self, field: str) -> Ints:
        """Where a field that all rows carry is, from the start of each table."""
        places = np.zeros(len(self.position), np.int64)
        for rows, records in self._groups:
            places[rows] = records.dtype.fields[field][1]  # type: ignore[index]
        return places

    def set(self, field: str, values: Any) -> None:
        """Write a scalar or struct column; structs are given as rows of bytes."""
        column = np.asarray(values)
        if not self.spec.fields[field].dtype:
            column = np.ascontiguousarray(column).view(f"V{self.spec.fields[field].size}")
            column = column.reshape(-1)
        for rows, records in self._groups:
            if field in records.dtype.fields:  # type: ignore[operator]
                records[field] = column[rows]

    def point(self, field: str, targets: Positions) -> None:
        """Let an offset field lead to `targets`, positions placed later in the buffer."""
        wanted = np.asarray(targets, np.int64)
        for rows, records in self._groups:
            place = records.dtype.fields.get(field)  # type: ignore[union-attr]
            if place is not None:
                records[field] = wanted[rows] - (self.position[rows] + place[1])


_ALL = slice(None)


class _RowLayout(NamedTuple):
    """A table as bytes: empty, its vtable, and where each field is and how long."""

    blank: bytes
    vtable: bytes
    place: dict[str, tuple[int, int]]
    end: int
    """Of the fields, before the padding of the table."""


@lru_cache(maxsize=1024)
def _row_layout(spec: TableSpec, names: tuple[str, ...]) -> _RowLayout:
    """Fields follow each other in slot order wherever alignment allows."""
    left = [(name, spec.fields[name]) for name in spec.fields if name in set(names)]
    slots = [spec.slot(name) for name, _ in left]
    vtable = [0] * (2 + max(slots, default=-1) + 1)
    place = {}
    at, align = 4, 4
    while left:
        name, field = next(((n, f) for n, f in left if at % f.align == 0), left[0])
        at = padded(at, field.align)
        place[name] = (at, field.size)
        vtable[2 + spec.slot(name)] = at
        at, align = at + field.size, max(align, field.align)
        left.remove((name, field))
    vtable[:2] = (2 * len(vtable), at)
    blank = bytes(padded(padded(at, 4), align))
    return _RowLayout(blank, pack(f"<{len(vtable)}H", *vtable), place, at)


@lru_cache(maxsize=1024)
def table_layout(
    spec: TableSpec, names: tuple[str, ...], tail: np.dtype[Any] | None = None
) -> tuple[np.dtype[Any], NDArray[np.uint16]]:
    """How a table with these fields is laid out: a record type and its vtable.

    `tail` is a fixed-size vector stored right behind the table.
    """
    row = _row_layout(spec, names)
    columns: list[tuple[str, Any, int]] = [("soffset", "<i4", 0)]
    columns += [
        (name, _record_format(spec.fields[name]), at) for name, (at, _) in row.place.items()
    ]
    size = len(row.blank)
    if tail is not None:
        at = padded(row.end, 4)
        columns.append(("tail", tail, at))
        align = max([4, *(spec.fields[name].align for name in row.place)])
        size = padded(at + tail.itemsize, align)
    names_, formats, positions = zip(*columns, strict=True)
    layout = {"names": names_, "formats": formats, "offsets": positions, "itemsize": size}
    return np.dtype(layout), np.frombuffer(row.vtable, "<u2")  # type: ignore[call-overload]


def _record_format(field: Field) -> str:
    if field.is_offset:
        return "<u4"
    return field.dtype or f"V{field.size}"


def _groups_by_presence(
    count: int, fields: Mapping[str, Mask | None]
) -> list[tuple[Ints | None, tuple[str, ...]]]:
    """Rows that carry the same fields: [(rows or None for all, field names)]."""
    if count == 0:
        return []
    if all(mask is None or not mask.any() for mask in fields.values()):
        return [(None, tuple(name for name, mask in fields.items() if mask is None))]
    pattern = np.zeros(count, np.int64)
    for bit, mask in enumerate(fields.values()):
        pattern |= (1 if mask is None else mask.astype(np.int64)) << bit
    found: list[tuple[Ints | None, tuple[str, ...]]] = []
    for code in np.unique(pattern).tolist():
        names = tuple(name for bit, name in enumerate(fields) if code >> bit & 1)
        rows = np.flatnonzero(pattern == code)
        found.append((None if len(rows) == count else rows, names))
    return found
