"""Flatbuffer tables to columns, every position checked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from struct import unpack_from
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format import small
from icefloe.format.columns import BlobColumn, Bytes, Ints, gather, gather_fixed, scatter, spread
from icefloe.format.flatbuffer.schema import Field, TableSpec

# -- Reading flatbuffers with numpy: single tables by name, and many tables at once as columns.
#
# Every position is checked before it is used: bounds, alignment, required fields, and how much a
# hostile file could make a column grow. What fails is a `FormatError` that names the file.


MAX_COLUMN_BYTES = 2**31
"""No decoded column grows beyond this, however often a file refers to the same bytes."""


def _vector_align(width: int) -> int:
    """Structs of 16 and 32 bytes hold 64-bit words; ids of 8 and 12 bytes are plain bytes."""
    return 8 if width in (16, 32) else 1


class FlatBuffer:
    """A payload, viewed as words. `name` is what error messages call the file."""

    __slots__ = ("i4", "name", "size", "u1", "u2", "u4", "u8")

    def __init__(self, payload: Bytes, size: int, name: str) -> None:
        self.name = name
        self.size = size
        self.u1 = payload
        self.u2 = payload.view("<u2")
        self.u4 = payload.view("<u4")
        self.i4 = payload.view("<i4")
        self.u8 = payload.view("<u8")

    def fail(self, problem: str) -> NoReturn:
        raise FormatError(f"{self.name}: {problem}")

    def root(self, spec: TableSpec) -> Table:
        if self.size < 8:
            self.fail(f"payload has {self.size} bytes, expected at least 8")
        return Table(self, int(self.u4[0]), spec)

    def unpack(self, form: str, at: int) -> tuple[Any, ...]:
        """Words at a position that has been checked."""
        return unpack_from(form, self.u1, at)

    def check_one(self, start: int, size: int, align: int, what: str) -> None:
        """Like `check`, for a single place."""
        if start < 4 or start + size > self.size:
            self.fail(f"{what} reaches byte {start + size:,} of {self.size:,}")
        if start % align:
            self.fail(f"{what} is not aligned to {align} bytes")

    def check(self, start: Ints, size: int | Ints, align: int, what: str) -> None:
        """`size` bytes at each start lie inside the payload, aligned."""
        if len(start) == 0:
            return
        if len(start) <= small.ROWS:
            starts, ends = start.tolist(), (start + size).tolist()
            first, end, bits = min(starts), max(ends), reduce(or_, starts)
        else:
            first, end = int(start.min()), int((start + size).max())
            bits = int(np.bitwise_or.reduce(start))
        if first < 4 or end > self.size:
            self.fail(f"{what} reaches byte {end:,} of {self.size:,}")
        if bits & (align - 1):
            self.fail(f"{what} is not aligned to {align} bytes")

    def check_total(self, total: int, what: str) -> None:
        if total > MAX_COLUMN_BYTES:
            self.fail(f"{what} adds up to {total:,} bytes, at most {MAX_COLUMN_BYTES:,} are read")

    def check_apart(self, total: int, what: str) -> None:
        """Vectors that writers never share cannot add up to more than the file."""
        if total > self.size:
            self.fail(f"{what} adds up to {total:,} bytes in a file of {self.size:,}")

    def vectors(self, field: Ints, width: int, what: str) -> tuple[Ints, Ints]:
        """First element and length of the vectors that the offsets at `field` lead to."""
        return self.vectors_at(self.targets(field), width, what)

    def targets(self, field: Ints) -> Ints:
        """Where the offsets stored at `field` lead to."""
        targets: Ints = field + self.u4.take(field >> 2)
        return targets

    def vectors_at(self, start: Ints, width: int, what: str) -> tuple[Ints, Ints]:
        """First element and length of the vectors whose length words are at `start`."""
        self.check(start, 4, 4, what)
        count = self.u4.take(start >> 2).astype(np.int64)
        first = start + 4
        self.check(first, count * width, _vector_align(width), what)
        return first, count

    def strings(self, start: Ints, length: Ints, absent: Any, what: str) -> BlobColumn:
        """A column of texts, checked to be UTF-8."""
        self.check_total(int(length.sum()), what)
        try:
            return gather(self.u1, start, length, absent).as_text()
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8")

    def blobs(self, start: Ints, length: Ints, absent: Any, what: str) -> BlobColumn:
        self.check_total(int(length.sum()), what)
        return gather(self.u1, start, length, absent)


def read_vtable(buffer: FlatBuffer, vtable: int, spec: TableSpec) -> tuple[int, list[int]]:
    """The size of tables with this vtable, and the offset of every field, 0 where absent."""
    buffer.check_one(vtable, 4, 2, f"vtable of {spec.name}")
    vtable_size, table_size = buffer.unpack("<HH", vtable)
    if vtable_size < 4 or vtable_size % 2:
        buffer.fail(f"vtable of {spec.name} is {vtable_size} bytes long")
    buffer.check_one(vtable, vtable_size, 2, f"vtable of {spec.name}")
    count = min((vtable_size - 4) // 2, len(spec.fields))
    offsets = [*buffer.unpack(f"<{count}H", vtable + 4), *[0] * (len(spec.fields) - count)]
    for offset, (name, field) in zip(offsets, spec.fields.items(), strict=True):
        if offset == 0:
            if field.is_required:
                buffer.fail(f"{spec.name}.{name} is required and absent")
        elif offset < 4 or offset + field.size > table_size:
            buffer.fail(f"{spec.name}.{name} lies outside its table")
    return table_size, offsets


class Table:
    """One table; fields are read by the names of its spec."""

    __slots__ = ("_offsets", "buffer", "position", "spec")

    def __init__(self, buffer: FlatBuffer, position: int, spec: TableSpec) -> None:
        self.buffer = buffer
        self.position = position
        self.spec = spec
        what = f"table {spec.name}"
        buffer.check_one(position, 4, 4, what)
        vtable = position - buffer.unpack("<i", position)[0]
        table_size, offsets = read_vtable(buffer, vtable, spec)
        buffer.check_one(position, table_size, 4, what)
        self._offsets: dict[str, int] = dict(zip(spec.fields, offsets, strict=True))
        for name, field in spec.fields.items():
            if self._offsets[name] and (position + self._offsets[name]) % field.align:
                buffer.fail(f"{spec.name}.{name} is not aligned to {field.align} bytes")

    def has(self, field: str) -> bool:
        return self._offsets[field] != 0

    def vector(self, field: str, width: int) -> tuple[int, int] | None:
        """First byte and length of a vector field; None when it is absent."""
        if not self.has(field):
            return None
        buffer, what = self.buffer, f"{self.spec.name}.{field}"
        at = self.position + self._offsets[field]
        start = at + buffer.unpack("<I", at)[0]
        buffer.check_one(start, 4, 4, what)
        count = buffer.unpack("<I", start)[0]
        buffer.check_one(start + 4, count * width, _vector_align(width), what)
        return start + 4, count

    def scalar(self, field: str) -> int:
        spec = self.spec.fields[field]
        if not self.has(field):
            return spec.default
        at = self.position + self._offsets[field]
        return int(self.buffer.u1[at : at + spec.size].view(spec.dtype)[0])

    def struct(self, field: str) -> bytes | None:
        if not self.has(field):
            return None
        at = self.position + self._offsets[field]
        return self.buffer.u1[at : at + self.spec.fields[field].size].tobytes()

    def id(self, field: str) -> bytes:
        """A required id."""
        value = self.struct(field)
        assert value is not None
        return value

    def bytes(self, field: str) -> bytes | None:
        found = self.vector(field, 1)
        if found is None:
            return None
        return self.buffer.u1[found[0] : found[0] + found[1]].tobytes()

    def string(self, field: str) -> str | None:
        data = self.bytes(field)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            self.buffer.fail(f"{self.spec.name}.{field} is not valid UTF-8")

    def text(self, field: str) -> str:
        """A required string."""
        value = self.string(field)
        assert value is not None
        return value

    def array(self, field: str, dtype: Any) -> NDArray[Any] | None:
        """A vector of scalars or structs, viewed in place."""
        kind = np.dtype(dtype)
        found = self.vector(field, kind.itemsize)
        if found is None:
            return None
        start, count = found
        items: NDArray[Any] = self.buffer.u1[start : start + count * kind.itemsize].view(kind)
        return items

    def positions(self, field: str) -> Ints:
        """Where the tables (or strings) in a vector of offsets are; none when it is absent."""
        start, count = self.vector(field, 4) or (4, 0)
        return self.buffer.targets(np.arange(start, start + 4 * count, 4, dtype=np.int64))

    def count(self, field: str) -> int:
        """The length of a vector of offsets; 0 when the field is absent."""
        return (self.vector(field, 4) or (4, 0))[1]

    def rows(self, field: str, spec: TableSpec) -> Rows:
        """The tables of a vector; none when the field is absent."""
        return Rows(self.buffer, self.positions(field), spec)

    def tables(self, field: str, spec: TableSpec) -> Iterator[Table]:
        """The same one by one, for a few."""
        start, count = self.vector(field, 4) or (4, 0)
        for slot in range(start, start + 4 * count, 4):
            yield Table(self.buffer, slot + self.buffer.unpack("<I", slot)[0], spec)

    def table(self, field: str, spec: TableSpec) -> Table:
        """A required table."""
        at = self.position + self._offsets[field]
        return Table(self.buffer, at + self.buffer.unpack("<I", at)[0], spec)


class Rows:
    """Many tables of one kind; fields come as columns.

    Tables share a handful of vtables, so offsets are looked up per vtable, not per table.
    """

    __slots__ = ("_vtable_of_row", "buffer", "field_offsets", "position", "spec")

    def __init__(
        self, buffer: FlatBuffer, position: Ints, spec: TableSpec, some_of: Rows | None = None
    ) -> None:
        """The tables at `position`: some of other tables (`some_of`), which are checked already."""
        self.buffer = buffer
        self.position = position
        self.spec = spec
        self._vtable_of_row: NDArray[np.intp] | None = None
        self.field_offsets = np.zeros((1, len(spec.fields)), np.int64)
        if some_of is not None:
            self.field_offsets = some_of.field_offsets
        elif len(position):
            self._read_vtables()

    def __len__(self) -> int:
        return len(self.position)

    def _read_vtables(self) -> None:
        buffer, position, name = self.buffer, self.position, self.spec.name
        buffer.check(position, 4, 4, f"table {name}")
        vtable = position - buffer.i4.take(position >> 2)
        # Neighbours mostly share a vtable: look for the distinct ones among the run heads only.
        run_start = np.flatnonzero(vtable[1:] != vtable[:-1]) + 1
        if len(run_start):
            run_start = np.concatenate([np.zeros(1, np.int64), run_start])
            distinct, run_vtable = np.unique(vtable[run_start], return_inverse=True)
        else:
            distinct = vtable[:1]
        if len(distinct) <= small.ROWS:
            sizes, offsets = zip(
                *(read_vtable(buffer, at, self.spec) for at in distinct.tolist()), strict=True
            )
            table_size, self.field_offsets = np.array(sizes), np.array(offsets)
        else:
            table_size, self.field_offsets = self._many_vtables(distinct)
        if len(distinct) > 1:
            run_length = np.diff(run_start, append=len(vtable))
            self._vtable_of_row = np.repeat(run_vtable.astype(np.intp), run_length)
            table_size = table_size[self._vtable_of_row]
        buffer.check(position, table_size, 4, f"table {name}")

    def _many_vtables(self, vtable: Ints) -> tuple[Ints, Ints]:
        """What `read_vtable` finds, a row per vtable."""
        buffer, spec = self.buffer, self.spec
        buffer.check(vtable, 4, 2, f"vtable of {spec.name}")
        vtable_size = buffer.u2.take(vtable >> 1).astype(np.int64)
        if int(vtable_size.min()) < 4 or int(np.bitwise_or.reduce(vtable_size)) & 1:
            buffer.fail(f"vtable of {spec.name} is {int(vtable_size.min())} bytes long")
        buffer.check(vtable, vtable_size, 2, f"vtable of {spec.name}")
        table_size = buffer.u2.take((vtable >> 1) + 1).astype(np.int64)
        entry = 4 + 2 * np.arange(len(spec.fields), dtype=np.int64)
        is_there = entry < vtable_size[:, None]
        at = np.where(is_there, vtable[:, None] + entry, 0) >> 1
        offsets = np.where(is_there, buffer.u2.take(at), 0).astype(np.int64)
        absent = offsets == 0
        outside = (offsets + spec.sizes > table_size[:, None]) | (offsets < 4)
        for wrong, problem in (
            (outside & ~absent, "lies outside its table"),
            (absent & spec.required, "is required and absent"),
        ):
            if bool(wrong.any()):
                field = list(spec.fields)[int(np.flatnonzero(wrong.any(axis=0))[0])]
                buffer.fail(f"{spec.name}.{field} {problem}")
        return table_size, offsets

    def take(self, rows: Any) -> Rows:
        """The same tables, some rows only; nothing is checked again."""
        part = Rows(self.buffer, self.position[rows], self.spec, some_of=self)
        if self._vtable_of_row is not None:
            part._vtable_of_row = self._vtable_of_row[rows]
        return part

    def field(self, name: str) -> tuple[Ints, NDArray[np.bool_] | None, Field]:
        """Where the field lies in each row, and which rows lack it (None: all have it).

        Absent rows point at byte 8, which is harmless to read and thrown away.
        """
        spec = self.spec.fields[name]
        column = self.field_offsets[:, self.spec.slot(name)]
        first = int(column[0])
        if self._vtable_of_row is None or bool((column == first).all()):
            absent = None if first else np.ones(len(self), np.bool_)
            at = self.position + first
        else:
            offset = column[self._vtable_of_row]
            absent = offset == 0
            at = self.position + offset
        if absent is not None:
            at = np.where(absent, 8, at)
        if spec.align > 1 and int(np.bitwise_or.reduce(at)) & (spec.align - 1):
            self.buffer.fail(f"{self.spec.name}.{name} is not aligned to {spec.align} bytes")
        return at, absent, spec

    def per_row(self, per_vtable: NDArray[Any]) -> NDArray[Any]:
        """Spread a value known for each vtable over the rows."""
        if self._vtable_of_row is None:
            return np.repeat(per_vtable[:1], len(self))
        return per_vtable[self._vtable_of_row]

    def is_absent_everywhere(self, name: str) -> bool:
        offsets = self.field_offsets
        if len(offsets) == 1:
            return not offsets[0, self.spec.slot(name)] or len(self) == 0
        return not offsets[:, self.spec.slot(name)].any() or len(self) == 0

    def scalar(self, name: str) -> NDArray[Any]:
        """The column, with the default where a row does not carry the field."""
        spec = self.spec.fields[name]
        if self.is_absent_everywhere(name):
            return np.full(len(self), spec.default, spec.dtype)
        at, absent, spec = self.field(name)
        words = self.buffer.u1[: len(self.buffer.u1) // spec.size * spec.size].view(spec.dtype)
        values: NDArray[Any] = words.take(at // spec.size)
        if absent is not None:
            values[absent] = spec.default
        return values

    def struct(self, name: str) -> Bytes:
        """Fixed-size bytes, a row each; zeros where absent."""
        at, absent, spec = self.field(name)
        if absent is not None and self.is_absent_everywhere(name):
            return np.zeros((len(self), spec.size), np.uint8)
        values = gather_fixed(self.buffer.u1, at, spec.size)
        if absent is not None:
            values[absent] = 0
        return values

    def vectors(self, name: str, width: int) -> tuple[Ints, Ints, NDArray[np.bool_] | None]:
        """First element, length and absence of a vector field; length 0 where absent."""
        at, absent, _ = self.field(name)
        what = f"{self.spec.name}.{name}"
        if absent is None:
            start, count = self.buffer.vectors(at, width, what)
            return start, count, None
        start, count = np.full(len(self), 8, np.int64), np.zeros(len(self), np.int64)
        there = np.flatnonzero(~absent)
        start[there], count[there] = self.buffer.vectors(at[there], width, what)
        return start, count, absent

    def blobs(self, name: str) -> BlobColumn:
        start, length, absent = self.vectors(name, 1)
        return self.buffer.blobs(start, length, absent, f"{self.spec.name}.{name}")

    def strings(self, name: str) -> BlobColumn:
        start, length, absent = self.vectors(name, 1)
        return self.buffer.strings(start, length, absent, f"{self.spec.name}.{name}")

    def children(self, name: str, spec: TableSpec) -> Rows:
        """The one table each row points at; the field is required."""
        at, _, _ = self.field(name)
        return Rows(self.buffer, at + self.buffer.u4.take(at >> 2), spec)

    def nested(self, name: str, spec: TableSpec) -> tuple[Rows, Ints]:
        """Tables in each row's vector, one row's after another's, and how many each row has."""
        start, count, _ = self.vectors(name, 4)
        self.buffer.check_apart(4 * int(count.sum()), f"{self.spec.name}.{name}")
        at = spread(start, count, 4)
        return Rows(self.buffer, at + self.buffer.u4.take(at >> 2), spec), count

    def structs(self, name: str, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Ints]:
        """Structs in each row's vector, one row's after another's, and how many each row has."""
        start, count, _ = self.vectors(name, dtype.itemsize)
        self.buffer.check_apart(dtype.itemsize * int(count.sum()), f"{self.spec.name}.{name}")
        at = spread(start, count, dtype.itemsize)
        raw = gather_fixed(self.buffer.u1, at, dtype.itemsize)
        return raw.reshape(-1).view(dtype), count


# -- Many vectors of one length as a matrix: the chunk indices in manifests and logs.


class EqualVectors:
    """A matrix filled slice by slice; the first vector says how long all have to be."""

    def __init__(self, buffer: FlatBuffer, count: int, what: str) -> None:
        self._buffer = buffer
        self._count = count
        self._what = what
        self.matrix: NDArray[np.uint32] = np.empty((0, 0), np.uint32)

    def read(self, rows: slice, field: Ints) -> None:
        """Fill `rows` with the vectors that the offsets at `field` lead to."""
        buffer, what = self._buffer, self._what
        at = buffer.targets(field)
        buffer.check(at, 4, 4, what)
        if rows.start == 0:
            length = int(buffer.u4[at[0] >> 2])
            buffer.check(at, 4 + 4 * length, 4, what)
            buffer.check_apart(4 * length * self._count, what)
            self.matrix = np.empty((self._count, length), np.uint32)
        length = self.matrix.shape[1]
        buffer.check(at, 4 + 4 * length, 4, what)
        # The length word comes along: one gather a vector instead of two.
        words = gather_fixed(buffer.u1, at, 4 + 4 * length).view("<u4")
        if bool((words[:, 0] != length).any()):
            buffer.fail(f"{what} of one array has {length} and other numbers of dimensions")
        self.matrix[rows] = words[:, 1:]


def index_tail(ndim: int) -> np.dtype[np.void]:
    """A vector of `ndim` coordinates, to be written right behind the table it belongs to."""
    return np.dtype([("count", "<u4"), ("at", "<u4", (ndim,))])


# -- Many byte strings as flatbuffers keep them: length, bytes, terminator, padding to words.


def blob_rows(column: BlobColumn, terminator: int, lead: int = 0) -> tuple[Bytes, Ints]:
    """The rows one behind the other, and where each starts.

    Each row begins with `lead` zero bytes for the caller to fill, a multiple of four.
    """
    offsets = column.offsets
    length = offsets[1:] - offsets[:-1]
    if (length == length[:1]).all():
        return _equal_rows(column, int(length.max(initial=0)), terminator, lead)
    size = (length + lead + 4 + terminator + 3) & ~3
    end = np.cumsum(size)
    start: Ints = end - size
    segment = np.zeros(int(end[-1]), np.uint8)
    segment.view("<u4")[(start + lead) >> 2] = length
    scatter(segment, start + lead + 4, column.data, offsets[:-1], length)
    return segment, start


def _equal_rows(column: BlobColumn, length: int, terminator: int, lead: int) -> tuple[Bytes, Ints]:
    """The rows of byte strings that all have the same length."""
    first, count = int(column.offsets[0]), len(column)
    size = lead + 4 + (length + terminator + 3 & ~3)
    segment = np.zeros((count, size), np.uint8)
    segment[:, lead : lead + 4] = np.frombuffer(length.to_bytes(4, "little"), np.uint8)
    text = column.data[first : first + count * length]
    segment[:, lead + 4 : lead + 4 + length] = text.reshape(count, length)
    return segment.reshape(-1), np.arange(0, count * size, size)
