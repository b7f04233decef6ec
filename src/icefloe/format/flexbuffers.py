"""Flexbuffers, one by one and many of the same shape."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format.columns import BlobColumn, Bytes, gather_fixed, rows_by_length

# -- FlexBuffers, the schemaless encoding of metadata values in spec version 2.
#
# The writer follows the conventions of Icechunk's own (format book A.5): unsigned numbers where
# possible, the smallest widths, typed vectors, each key stored once. The reader takes everything
# that FlexBuffers can say and JSON can too, and trusts no byte of it. The writer of the
# `flatbuffers` package is not used: it cannot store 1e300, and stores some shared keys twice.
#
# Every value is one slot: inline for numbers, booleans and null, else the distance back to where
# the value lies. A vector is its length, its slots and a type byte per slot; the address of a
# vector is that of its first slot. A map is a vector of values with a vector of keys before it.


JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)

MAX_DEPTH = 200
"""Vectors and maps inside each other. Icechunk's YAML reader stops at 128, chained conditions
in a config need two levels each."""


class Type(IntEnum):
    """The upper six bits of a type byte; the lower two are the width of what it describes."""

    NULL = 0
    INT = 1
    UINT = 2
    FLOAT = 3
    KEY = 4
    STRING = 5
    INDIRECT_INT = 6
    INDIRECT_UINT = 7
    INDIRECT_FLOAT = 8
    MAP = 9
    VECTOR = 10
    VECTOR_INT = 11
    VECTOR_UINT = 12
    VECTOR_FLOAT = 13
    VECTOR_KEY = 14
    VECTOR_STRING_DEPRECATED = 15
    VECTOR_INT2 = 16
    VECTOR_UINT2 = 17
    VECTOR_FLOAT2 = 18
    VECTOR_INT3 = 19
    VECTOR_UINT3 = 20
    VECTOR_FLOAT3 = 21
    VECTOR_INT4 = 22
    VECTOR_UINT4 = 23
    VECTOR_FLOAT4 = 24
    BLOB = 25
    BOOL = 26
    VECTOR_BOOL = 36


# struct letters by width in bytes
_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_FLOATING = {2: "e", 4: "f", 8: "d"}
_LETTERS = {
    Type.NULL: _UNSIGNED,
    Type.BOOL: _UNSIGNED,
    Type.INT: _SIGNED,
    Type.UINT: _UNSIGNED,
    Type.FLOAT: _FLOATING,
}
_TYPED_VECTORS: dict[int, Type] = {
    Type.VECTOR_INT: Type.INT,
    Type.VECTOR_UINT: Type.UINT,
    Type.VECTOR_FLOAT: Type.FLOAT,
    Type.VECTOR_BOOL: Type.BOOL,
    Type.VECTOR_KEY: Type.KEY,
    # Its strings have no usable length, so readers take them for keys.
    Type.VECTOR_STRING_DEPRECATED: Type.KEY,
}
_VECTOR_OF = {
    Type.INT: Type.VECTOR_INT,
    Type.UINT: Type.VECTOR_UINT,
    Type.FLOAT: Type.VECTOR_FLOAT,
    Type.BOOL: Type.VECTOR_BOOL,
}


# --- writing ---------------------------------------------------------------------------------


class _Slot(NamedTuple):
    """A value ready to be stored: inline, or as the address it was written at."""

    type: Type
    value: int | float
    width: int  # bytes the inline value needs, or of the slots in the vector it points to
    is_inline: bool

    def width_at(self, end: int, position: int) -> int:
        """The bytes this slot needs as number `position` of slots starting after `end`."""
        if self.is_inline:
            return self.width
        for width in (1, 2, 4):
            start = end + -end % width
            if start + position * width - self.value < 1 << (8 * width):
                return width
        return 8

    def type_byte(self, slot_width: int) -> int:
        """The byte that says how to read this slot, given how wide it was stored."""
        width = max(self.width, slot_width) if self.is_inline else self.width
        return self.type << 2 | width.bit_length() - 1


def encode(value: JsonValue) -> bytes:
    """The buffer for a value that holds only JSON's types, numbers within 64 bits.

    Keys and strings are stored in the order they are met, so order the keys of the maps for
    bytes that depend on the value alone.
    """
    writer = _Writer()
    root = writer.add(value)
    width = root.width_at(len(writer.buffer), 0)
    writer.pad(width)
    writer.put(root, width)
    writer.buffer += bytes((root.type_byte(1), width))
    return bytes(writer.buffer)


class _Writer:
    def __init__(self) -> None:
        self.buffer = bytearray()
        self._keys: dict[str, int] = {}

    def add(self, value: JsonValue) -> _Slot:
        """Write what lies outside the slot of `value`, and return the slot."""
        match value:
            case None:
                return _Slot(Type.NULL, 0, 1, True)
            case bool():
                return _Slot(Type.BOOL, int(value), 1, True)
            case int() if value >= 0:
                return _Slot(Type.UINT, value, _unsigned_width(value), True)
            case int():
                # As many bits as the positive number of the same size, plus the sign.
                return _Slot(Type.INT, value, _unsigned_width(~value << 1), True)
            case float():
                return _Slot(Type.FLOAT, value, _float_width(value), True)
            case str():
                return self._add_string(value)
            case Mapping():
                return self._add_map(value)
            case _:
                return self._add_list(value)

    def pad(self, width: int) -> None:
        self.buffer += bytes(-len(self.buffer) % width)

    def put(self, slot: _Slot, width: int) -> None:
        letters = _LETTERS[slot.type] if slot.is_inline else _UNSIGNED
        number = slot.value if slot.is_inline else len(self.buffer) - slot.value
        self.buffer += struct.pack("<" + letters[width], number)

    def _add_string(self, value: str) -> _Slot:
        data = value.encode()
        width = _unsigned_width(len(data))
        self.pad(width)
        self.buffer += struct.pack("<" + _UNSIGNED[width], len(data))
        address = len(self.buffer)
        self.buffer += data + b"\0"
        return _Slot(Type.STRING, address, width, False)

    def _add_key(self, key: str) -> _Slot:
        address = self._keys.get(key)
        if address is None:
            address = self._keys[key] = len(self.buffer)
            self.buffer += key.encode() + b"\0"
        return _Slot(Type.KEY, address, 1, False)

    def _add_map(self, value: Mapping[str, JsonValue]) -> _Slot:
        entries = []
        for key, item in value.items():
            entries.append((key, self._add_key(key), self.add(item)))
        entries.sort(key=lambda entry: entry[0])
        keys = self._add_vector(Type.VECTOR_KEY, [key for _, key, _ in entries])
        return self._add_vector(Type.MAP, [item for _, _, item in entries], keys)

    def _add_list(self, value: Sequence[JsonValue]) -> _Slot:
        items = [self.add(item) for item in value]
        types = {item.type for item in items}
        (element,) = types if len(types) == 1 else (Type.NULL,)
        if element not in _VECTOR_OF:
            return self._add_vector(Type.VECTOR, items)
        if 2 <= len(items) <= 4 and element is not Type.BOOL:
            fixed = Type(Type.VECTOR_INT2 + 3 * (len(items) - 2) + (element - Type.INT))
            return self._add_vector(fixed, items)
        return self._add_vector(_VECTOR_OF[element], items)

    def _add_vector(self, kind: Type, items: list[_Slot], keys: _Slot | None = None) -> _Slot:
        end = len(self.buffer)
        width = _unsigned_width(len(items))
        prefix = 1
        if keys is not None:
            width = max(width, keys.width_at(end, 0))
            prefix = 3
        for position, item in enumerate(items, prefix):
            width = max(width, item.width_at(end, position))
        self.pad(width)
        number = "<" + _UNSIGNED[width]
        if keys is not None:
            self.put(keys, width)
            self.buffer += struct.pack(number, keys.width)
        if not Type.VECTOR_INT2 <= kind <= Type.VECTOR_FLOAT4:
            self.buffer += struct.pack(number, len(items))
        address = len(self.buffer)
        for item in items:
            self.put(item, width)
        if kind in (Type.VECTOR, Type.MAP):
            self.buffer += bytes(item.type_byte(width) for item in items)
        return _Slot(kind, address, width, False)


def _unsigned_width(number: int) -> int:
    return next(width for width in (1, 2, 4, 8) if number < 1 << (8 * width))


def _float_width(number: float) -> int:
    try:
        return 4 if struct.unpack("<f", struct.pack("<f", number))[0] == number else 8
    except OverflowError:  # beyond the range of 32 bits
        return 8


# --- reading ---------------------------------------------------------------------------------


def decode(data: bytes) -> Any:
    """The value in a buffer, as lists and dicts; NaN and the infinities become None.

    Raises:
        FormatError: the bytes are not a FlexBuffer, or hold something JSON cannot.
    """
    return Reader(data).root()


class Reader:
    """Follows one buffer. Methods that make values have other forms in `flexbuffer_columns`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        # Slots and text of an honest buffer do not overlap, so it cannot hold more of them than
        # it has bytes. Slots that point at each other could, without end.
        self._budget = len(data)
        self._texts: dict[int, Any] = {}
        self._keys: dict[int, str] = {}

    def root(self) -> Any:
        """The value that everything else is part of."""
        size = len(self._data)
        if size < 3:
            raise FormatError(f"FlexBuffer: found {size} bytes, the smallest has 3")
        type_byte, width = self._byte(size - 2), self._byte(size - 1)
        if width not in _UNSIGNED or width > size - 2:
            raise FormatError(
                f"FlexBuffer of {size} bytes: root width {width}, expected 1, 2, 4 or 8 within it"
            )
        return self._value(size - 2 - width, width, type_byte, 0)

    def _value(self, position: int, slot_width: int, type_byte: int, depth: int) -> Any:
        """Read the slot at `position`, which lies inside the buffer."""
        self._spend(1, position)
        kind, width = type_byte >> 2, 1 << (type_byte & 3)
        if kind == Type.NULL:
            return self._same(None)
        if kind in (Type.INT, Type.UINT, Type.FLOAT, Type.BOOL):
            return self._number(Type(kind), position, slot_width)
        address = position - self._unsigned(position, slot_width)
        if address < 0:
            raise FormatError(f"FlexBuffer: slot at {position} points before the start")
        if kind == Type.KEY:
            return self._same(self._key(address))
        if kind == Type.STRING:
            return self._string(address, width)
        if Type.INDIRECT_INT <= kind <= Type.INDIRECT_FLOAT:
            return self._number(Type(kind - 5), address, width)
        if depth >= MAX_DEPTH:
            raise FormatError(f"FlexBuffer: more than {MAX_DEPTH} levels at {address}")
        if kind == Type.MAP:
            return self._map(address, width, depth + 1)
        if kind == Type.VECTOR:
            return self._vector(address, width, depth + 1)
        return self._typed_vector(kind, address, width)

    def _map(self, address: int, width: int, depth: int) -> Any:
        length = self._length(address, width, bytes_per_item=width + 1)
        keys = address - 3 * width - self._unsigned(address - 3 * width, width)
        keys_width = self._unsigned(address - 2 * width, width)
        if keys_width not in _UNSIGNED:
            raise FormatError(f"FlexBuffer: map at {address} has keys of width {keys_width}")
        if self._length(keys, keys_width, bytes_per_item=keys_width) != length:
            raise FormatError(f"FlexBuffer: map at {address} has another number of keys")
        slots = range(keys, keys + length * keys_width, keys_width)
        names = [self._key(slot - self._unsigned(slot, keys_width)) for slot in slots]
        return self._dict(names, self._items(address, width, length, depth))

    def _vector(self, address: int, width: int, depth: int) -> Any:
        length = self._length(address, width, bytes_per_item=width + 1)
        return self._list(self._items(address, width, length, depth))

    def _items(self, address: int, width: int, length: int, depth: int) -> list[Any]:
        types = address + length * width
        return [
            self._value(address + index * width, width, self._byte(types + index), depth)
            for index in range(length)
        ]

    def _typed_vector(self, kind: int, address: int, width: int) -> Any:
        if Type.VECTOR_INT2 <= kind <= Type.VECTOR_FLOAT4:
            size, offset = divmod(kind - Type.VECTOR_INT2, 3)
            return self._numbers(Type(Type.INT + offset), address, width, size + 2)
        element = _TYPED_VECTORS.get(kind)
        if element is None:
            raise FormatError(
                f"FlexBuffer: type {kind} at {address}, expected null, a boolean, a number, "
                "text, a vector or a map"
            )
        length = self._length(address, width, bytes_per_item=width)
        self._spend(length, address)
        if element is not Type.KEY:
            return self._numbers(element, address, width, length)
        slots = range(address, address + length * width, width)
        keys = [self._key(slot - self._unsigned(slot, width)) for slot in slots]
        return self._list([self._same(key) for key in keys])

    def _letter(self, kind: Type, address: int, width: int, count: int) -> str:
        """What `struct` calls numbers that lie inside the buffer."""
        letter = _LETTERS[kind].get(width)
        if letter is None:
            raise FormatError(f"FlexBuffer: {kind.name} of width {width} at {address}")
        self._require(address, count * width)
        return letter

    def _number(self, kind: Type, address: int, width: int) -> Any:
        return self._numbers(kind, address, width, 1)[0]

    def _numbers(self, kind: Type, address: int, width: int, count: int) -> list[Any]:
        letter = self._letter(kind, address, width, count)
        numbers = struct.unpack_from(f"<{count}{letter}", self._data, address)
        if kind is Type.BOOL:
            return [number != 0 for number in numbers]
        if kind is Type.FLOAT:
            return [number if abs(number) < float("inf") else None for number in numbers]
        return list(numbers)

    def _length(self, address: int, width: int, bytes_per_item: int) -> int:
        """The number of items at `address`, all of which lie inside the buffer."""
        length = self._unsigned(address - width, width)
        self._require(address, length * bytes_per_item)
        return length

    def _same(self, value: str | None) -> Any:
        """A value that does not depend on numbers and texts."""
        return value

    def _dict(self, keys: list[str], values: list[Any]) -> Any:
        return dict(zip(keys, values, strict=True))

    def _list(self, values: list[Any]) -> Any:
        return values

    def _string(self, address: int, width: int) -> Any:
        if address not in self._texts:
            size = self._length(address, width, bytes_per_item=1)
            self._texts[address] = self._text(address, address + size)
        return self._texts[address]

    def _key(self, address: int) -> str:
        if address not in self._keys:
            self._require(address, 1)
            end = self._data.find(b"\0", address)
            if end < 0:
                raise FormatError(f"FlexBuffer: key at {address} has no end")
            self._spend(end - address, address)
            self._keys[address] = text_at(address, self._data[address:end])
        return self._keys[address]

    def _text(self, start: int, end: int) -> Any:
        self._spend(end - start, start)
        return text_at(start, self._data[start:end])

    def _byte(self, position: int) -> int:
        """A type or a width inside the buffer."""
        return self._data[position]

    def _unsigned(self, position: int, width: int) -> int:
        self._require(position, width)
        return int.from_bytes(self._data[position : position + width], "little")

    def _require(self, start: int, size: int) -> None:
        if start < 0 or start + size > len(self._data):
            raise FormatError(
                f"FlexBuffer of {len(self._data)} bytes: something of {size} bytes at {start}"
            )

    def _spend(self, amount: int, position: int) -> None:
        self._budget -= amount
        if self._budget < 0:
            raise FormatError(
                f"FlexBuffer of {len(self._data)} bytes holds more values than bytes "
                f"(reading at {position}): its parts overlap"
            )


def text_at(position: int, data: bytes) -> str:
    """The text that bytes at a position are."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"FlexBuffer: text at {position} is not UTF-8: {error}") from None


# -- Many FlexBuffers at once: values of the same shape become Python values together.
#
# The commits of a program have metadata of the same shape. A reader follows one buffer and marks
# the bytes that lead it: offsets, lengths, types and keys. Buffers of the same length with the
# same bytes there have the same shape. Their numbers and texts are read as columns.


_MAX_SHAPES = 16  # of one length; the rest is read one by one


def decode_many(column: BlobColumn) -> list[Any]:
    """`decode` of every row.

    Raises:
        FormatError: a row is not a FlexBuffer, or holds something JSON cannot.
    """
    found: list[Any] = [None] * len(column)
    for rows in rows_by_length(column.length):
        left = rows
        buffers = gather_fixed(column.data, column.offsets[rows], int(column.length[rows[0]]))
        for _ in range(_MAX_SHAPES):
            if not len(left):
                break
            is_alike = _are_alike(buffers)
            values = _ColumnReader(buffers[is_alike]).root()
            for row, value in zip(left[is_alike].tolist(), values, strict=True):
                found[row] = value
            left, buffers = left[~is_alike], buffers[~is_alike]
        for row, buffer in zip(left.tolist(), buffers, strict=True):
            found[row] = decode(buffer.tobytes())
    return found


def _are_alike(buffers: Bytes) -> NDArray[np.bool_]:
    """Which buffers have the shape of the first."""
    reader = _ColumnReader(buffers[:1])
    reader.root()
    leading = np.flatnonzero(reader.leads)
    found: NDArray[np.bool_] = (buffers[:, leading] == buffers[0, leading]).all(axis=1)
    return found


class _ColumnReader(Reader):
    """Follows the first of buffers of the same shape. Every value is a list, one item a buffer."""

    def __init__(self, buffers: Bytes) -> None:
        super().__init__(buffers[0].tobytes())
        self._buffers = buffers
        self.leads = np.zeros(buffers.shape[1], np.bool_)
        """The bytes that were followed."""

    def _unsigned(self, position: int, width: int) -> int:
        self._require(position, width)
        self.leads[position : position + width] = True
        return super()._unsigned(position, width)

    def _byte(self, position: int) -> int:
        self.leads[position] = True
        return super()._byte(position)

    def _key(self, address: int) -> str:
        key = super()._key(address)
        self.leads[address : address + len(key.encode()) + 1] = True
        return key

    def _same(self, value: str | None) -> list[Any]:
        return [value] * len(self._buffers)

    def _dict(self, keys: list[str], values: list[Any]) -> list[dict[str, Any]]:
        return dicts(keys, values) if keys else [{} for _ in self._buffers]

    def _list(self, values: list[Any]) -> list[list[Any]]:
        return list(map(list, zip(*values, strict=True))) or [[] for _ in self._buffers]

    def _number(self, kind: Type, address: int, width: int) -> list[Any]:
        words = self._words(kind, address, width, 1)
        found: list[Any] = words.reshape(-1).tolist()
        return found

    def _numbers(self, kind: Type, address: int, width: int, count: int) -> list[list[Any]]:
        found: list[list[Any]] = self._words(kind, address, width, count).tolist()
        return found

    def _words(self, kind: Type, address: int, width: int, count: int) -> NDArray[Any]:
        letter = self._letter(kind, address, width, count)
        words: NDArray[Any] = self._part(address, address + count * width).view(f"<{letter}")
        if kind is Type.BOOL:
            words = words != 0
        elif kind is Type.FLOAT and not bool(np.isfinite(words).all()):
            is_finite, words = np.isfinite(words), words.astype(np.object_)
            words[~is_finite] = None
        return words

    def _text(self, start: int, end: int) -> list[str]:
        self._spend(end - start, start)
        part, size = self._part(start, end), end - start
        if bool((part == part[0]).all()):
            return [text_at(start, self._data[start:end])] * len(part)
        raw = part.tobytes()
        places = range(0, len(raw), size)
        if raw.isascii():
            text = raw.decode("ascii")
            return [text[at : at + size] for at in places]
        return [text_at(start, raw[at : at + size]) for at in places]

    def _part(self, start: int, end: int) -> Bytes:
        return np.ascontiguousarray(self._buffers[:, start:end])


def dicts(keys: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """One dict a row, with an item a column; there has to be a column."""
    return [*map(dict, map(zip, repeat(keys), zip(*columns, strict=True)))]
