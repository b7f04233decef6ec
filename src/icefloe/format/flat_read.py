"""Reading flatbuffers with numpy: single tables by name, and many tables at once as columns.

Every position is checked before it is used: bounds, alignment, required fields, and how much a
hostile file could make a column grow. What fails is a `FormatError` that names the file.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format.blobs import Bytes, Ints, gather, gather_fixed, spread
from icefloe.format.schema import Field, TableSpec

MAX_COLUMN_BYTES = 2**31
"""No decoded column grows beyond this, however often a file refers to the same bytes."""


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

    def check(self, start: Ints, size: int | Ints, align: int, what: str) -> None:
        """`size` bytes at each start lie inside the payload, aligned."""
        if len(start) == 0:
            return
        end = int((start + size).max())
        if int(start.min()) < 4 or end > self.size:
            self.fail(f"{what} reaches byte {end:,} of {self.size:,}")
        if align > 1 and int(np.bitwise_or.reduce(start)) & (align - 1):
            self.fail(f"{what} is not aligned to {align} bytes")

    def check_total(self, total: int, what: str) -> None:
        if total > MAX_COLUMN_BYTES:
            self.fail(f"{what} adds up to {total:,} bytes, at most {MAX_COLUMN_BYTES:,} are read")

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
        # Structs of 16 and 32 bytes hold 64-bit words; ids of 8 and 12 bytes are plain bytes.
        self.check(first, count * width, 8 if width in (16, 32) else 1, what)
        return first, count

    def strings(self, start: Ints, length: Ints, absent: Any, what: str) -> pa.Array:
        """UTF-8 text as an Arrow string array; null where absent."""
        data = self.blobs(start, length, absent, what)
        large = pa.types.is_large_binary(data.type)
        try:
            return data.cast(pa.large_string() if large else pa.string())
        except pa.ArrowInvalid:
            self.fail(f"{what} is not valid UTF-8")

    def blobs(self, start: Ints, length: Ints, absent: Any, what: str) -> pa.Array:
        self.check_total(int(length.sum()), what)
        return gather(self.u1, start, length, absent)


class Table:
    """One table; fields are read by the names of its spec."""

    __slots__ = ("_offsets", "buffer", "position", "spec")

    def __init__(self, buffer: FlatBuffer, position: int, spec: TableSpec) -> None:
        rows = Rows(buffer, np.array([position], np.int64), spec)
        self.buffer = buffer
        self.position = position
        self.spec = spec
        self._offsets = rows.field_offsets[0].tolist()

    def _at(self, field: str) -> int | None:
        offset = self._offsets[self.spec.slot(field)]
        return self.position + offset if offset else None

    def _blob(self, field: str, width: int) -> tuple[int, int] | None:
        at = self._at(field)
        if at is None:
            return None
        what = f"{self.spec.name}.{field}"
        start, count = self.buffer.vectors(np.array([at], np.int64), width, what)
        return int(start[0]), int(count[0])

    def scalar(self, field: str) -> int:
        at, spec = self._at(field), self.spec.fields[field]
        if at is None:
            return spec.default
        return int(self.buffer.u1[at : at + spec.size].view(spec.dtype)[0])

    def struct(self, field: str) -> bytes | None:
        at = self._at(field)
        size = self.spec.fields[field].size
        return None if at is None else self.buffer.u1[at : at + size].tobytes()

    def id(self, field: str) -> bytes:
        value = self.struct(field)
        assert value is not None  # Rows has checked required fields
        return value

    def bytes(self, field: str) -> bytes | None:
        found = self._blob(field, 1)
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
        return self.string(field) or ""

    def array(self, field: str, dtype: Any) -> NDArray[Any] | None:
        """A vector of scalars or structs, viewed in place."""
        kind = np.dtype(dtype)
        found = self._blob(field, kind.itemsize)
        if found is None:
            return None
        start, count = found
        items: NDArray[Any] = self.buffer.u1[start : start + count * kind.itemsize].view(kind)
        return items

    def positions(self, field: str) -> Ints | None:
        """Positions of the tables (or strings) in a vector of offsets."""
        found = self._blob(field, 4)
        if found is None:
            return None
        start, count = found
        return self.buffer.targets(np.arange(start, start + 4 * count, 4, dtype=np.int64))

    def rows(self, field: str, spec: TableSpec) -> Rows:
        """The tables of a vector; none when the field is absent."""
        found = self.positions(field)
        return Rows(self.buffer, np.empty(0, np.int64) if found is None else found, spec)

    def table(self, field: str, spec: TableSpec) -> Table:
        at = self._at(field)
        assert at is not None  # only used for required fields
        return Table(self.buffer, at + int(self.buffer.u4[at >> 2]), spec)

    def has(self, field: str) -> bool:
        return self._at(field) is not None


class Rows:
    """Many tables of one kind; fields come as columns.

    Tables share a handful of vtables, so offsets are looked up per vtable, not per table.
    """

    __slots__ = ("_vtable_of_row", "buffer", "field_offsets", "position", "spec")

    def __init__(self, buffer: FlatBuffer, position: Ints, spec: TableSpec) -> None:
        self.buffer = buffer
        self.position = position
        self.spec = spec
        self._vtable_of_row: NDArray[np.intp] | None = None
        self.field_offsets = np.zeros((1, len(spec.fields)), np.int64)
        if len(position):
            self._read_vtables()

    def __len__(self) -> int:
        return len(self.position)

    def _read_vtables(self) -> None:
        buffer, position, name = self.buffer, self.position, self.spec.name
        buffer.check(position, 4, 4, f"table {name}")
        vtable = position - buffer.i4.take(position >> 2)
        # Neighbours mostly share a vtable: look for the distinct ones among the run heads only.
        run_start = np.flatnonzero(np.diff(vtable, prepend=-1))
        distinct, run_vtable = np.unique(vtable[run_start], return_inverse=True)
        buffer.check(distinct, 4, 2, f"vtable of {name}")
        vtable_size = buffer.u2.take(distinct >> 1).astype(np.int64)
        if int(vtable_size.min()) < 4 or bool((vtable_size & 1).any()):
            buffer.fail(f"vtable of {name} is {int(vtable_size.min())} bytes long")
        buffer.check(distinct, vtable_size, 2, f"vtable of {name}")
        table_size = buffer.u2.take((distinct >> 1) + 1).astype(np.int64)
        self.field_offsets = self._field_offsets(distinct, vtable_size, table_size)
        if len(distinct) > 1:
            run_length = np.diff(run_start, append=len(vtable))
            self._vtable_of_row = np.repeat(run_vtable.astype(np.intp), run_length)
            table_size = table_size[self._vtable_of_row]
        buffer.check(position, table_size, 4, f"table {name}")

    def _field_offsets(self, vtable: Ints, vtable_size: Ints, table_size: Ints) -> Ints:
        """Offset of every field within its table, a row per vtable; 0 where absent."""
        slot = np.arange(len(self.spec.fields), dtype=np.int64)
        is_there = 4 + 2 * slot[None, :] < vtable_size[:, None]
        entry = np.where(is_there, (vtable >> 1)[:, None] + 2 + slot[None, :], 0)
        offsets = np.where(is_there, self.buffer.u2.take(entry), 0).astype(np.int64)
        for column, (name, field) in zip(offsets.T, self.spec.fields.items(), strict=True):
            absent = column == 0
            outside = (column + field.size > table_size) | (column < 4)
            if bool((outside & ~absent).any()):
                self.buffer.fail(f"{self.spec.name}.{name} lies outside its table")
            if field.is_required and bool(absent.any()):
                self.buffer.fail(f"{self.spec.name}.{name} is required and absent")
        return offsets

    def take(self, rows: Any) -> Rows:
        """The same tables, some rows only; nothing is checked again."""
        part = object.__new__(Rows)
        part.buffer, part.spec = self.buffer, self.spec
        part.field_offsets = self.field_offsets
        part.position = self.position[rows]
        part._vtable_of_row = None
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
        if spec.align > 1 and len(at) and int(np.bitwise_or.reduce(at)) & (spec.align - 1):
            self.buffer.fail(f"{self.spec.name}.{name} is not aligned to {spec.align} bytes")
        return at, absent, spec

    def per_row(self, per_vtable: NDArray[Any]) -> NDArray[Any]:
        """Spread a value known for each vtable over the rows."""
        if self._vtable_of_row is None:
            return np.broadcast_to(per_vtable[0], (len(self),))
        return per_vtable[self._vtable_of_row]

    def is_absent_everywhere(self, name: str) -> bool:
        return not self.field_offsets[:, self.spec.slot(name)].any() or len(self) == 0

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

    def blobs(self, name: str) -> pa.Array:
        start, length, absent = self.vectors(name, 1)
        return self.buffer.blobs(start, length, absent, f"{self.spec.name}.{name}")

    def strings(self, name: str) -> pa.Array:
        start, length, absent = self.vectors(name, 1)
        return self.buffer.strings(start, length, absent, f"{self.spec.name}.{name}")

    def children(self, name: str, spec: TableSpec) -> Rows:
        """The one table each row points at; the field is required."""
        at, _, _ = self.field(name)
        return Rows(self.buffer, at + self.buffer.u4.take(at >> 2), spec)

    def nested(self, name: str, spec: TableSpec) -> tuple[Rows, Ints]:
        """Tables in each row's vector, one row's after another's, and how many each row has."""
        start, count, _ = self.vectors(name, 4)
        self.buffer.check_total(4 * int(count.sum()), f"{self.spec.name}.{name}")
        at = spread(start, count, 4)
        return Rows(self.buffer, at + self.buffer.u4.take(at >> 2), spec), count

    def structs(self, name: str, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Ints]:
        """Structs in each row's vector, one row's after another's, and how many each row has."""
        start, count, _ = self.vectors(name, dtype.itemsize)
        self.buffer.check_total(dtype.itemsize * int(count.sum()), f"{self.spec.name}.{name}")
        at = spread(start, count, dtype.itemsize)
        raw = gather_fixed(self.buffer.u1, at, dtype.itemsize)
        return raw.reshape(-1).view(dtype), count
