"""Damage to files: from single bits to words that are offsets, lengths and vtable entries.

The same random state always gives the same damage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from icefloe.format.envelope import HEADER_SIZE
from tests.fuzz.files import payload_of, with_payload

_BYTES = (0, 1, 0x7F, 0x80, 0xFF)
_U16 = (0, 1, 2, 3, 4, 5, 6, 8, 12, 0x7FFF, 0x8000, 0xFFFF)
_U32 = (0, 1, 2, 3, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)
_U64 = (0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
_OUTER_SHARE = 0.1
_COMPRESSED_SHARE = 0.05


@dataclass(frozen=True)
class Seed:
    """A healthy file to damage."""

    name: str
    data: bytes
    is_metadata_file: bool = True

    @cached_property
    def payload(self) -> bytes:
        return payload_of(self.data)

    @cached_property
    def map(self) -> Map:
        return Map(self.payload)


class Map:
    """Which bytes of a flatbuffer seem to be offsets, tables and vtables; guesses will do."""

    def __init__(self, payload: bytes) -> None:
        size = len(payload)
        words = range(0, size - 3, 4)
        self.offsets = []
        self.tables = []
        vtables = set()
        for at in words:
            (value,) = struct.unpack_from("<I", payload, at)
            if 0 < value < size - at - 3 and (at + value) % 4 == 0:
                self.offsets.append(at)
            vtable = at - int(struct.unpack_from("<i", payload, at)[0])
            if not 4 <= vtable <= size - 4:
                continue
            length, table_size = struct.unpack_from("<HH", payload, vtable)
            if 4 <= length <= 40 and length % 2 == 0 and 4 <= table_size <= min(100, size - at):
                self.tables.append(at)
                vtables.add(vtable)
        self.vtable_words = sorted(
            word
            for vtable in vtables
            for word in range(
                vtable, vtable + int.from_bytes(payload[vtable : vtable + 2], "little"), 2
            )
            if word + 2 <= size
        )
        self.targets = sorted(
            {at + int.from_bytes(payload[at : at + 4], "little") for at in self.offsets}
        )
        # What an offset may be pointed at: other targets, tables, and nearly the end.
        self.places = [*self.targets, *self.tables, size - size % 4 - 4, 4, 8]


def mutant(seed: Seed, random: Random, tokens: Sequence[bytes] = ()) -> bytes:
    """One damaged version of `seed`; `tokens` are words worth inserting into text."""
    if not seed.is_metadata_file:
        return _damaged(bytearray(seed.data), random, tokens)
    if random.random() < _OUTER_SHARE:
        return _damaged_outside(seed.data, random)
    data = bytearray(seed.payload)
    for _ in range(random.choice((1, 1, 1, 1, 2, 3))):
        if random.random() < 0.5:
            random.choice(_FLAT_OPERATIONS)(data, random, seed.map)
        else:
            random.choice(_OPERATIONS)(data, random)
    is_compressed = random.random() < _COMPRESSED_SHARE
    return with_payload(seed.data, bytes(data), is_compressed=is_compressed)


def _damaged(data: bytearray, random: Random, tokens: Sequence[bytes]) -> bytes:
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if tokens and random.random() < 0.5:
            at = random.randrange(len(data) + 1)
            data[at : at + random.choice((0, 0, 1, 4))] = random.choice(tokens)
        else:
            random.choice(_OPERATIONS)(data, random)
    return bytes(data)


def _damaged_outside(file: bytes, random: Random) -> bytes:
    data = bytearray(file)
    if random.random() < 0.5:
        at = random.randrange(min(HEADER_SIZE + 18, len(data)))  # header and frame header
        data[at] = random.choice((*_BYTES, 2, 3, 6, random.randrange(256)))
    else:
        random.choice(_OPERATIONS)(data, random)
    return bytes(data)


# --- damage to any bytes ---------------------------------------------------------------------

Operation = Callable[[bytearray, Random], None]


def _at(data: bytearray, random: Random, width: int = 1) -> int:
    """A position where `width` bytes fit, mostly aligned to them; grows a buffer too short."""
    if len(data) < width:
        data += bytes(width - len(data))
    at = random.randrange(len(data) - width + 1)
    return at if random.random() < 0.1 else at // width * width


def _flip_bit(data: bytearray, random: Random) -> None:
    data[_at(data, random)] ^= 1 << random.randrange(8)


def _set_byte(data: bytearray, random: Random) -> None:
    data[_at(data, random)] = random.choice((*_BYTES, random.randrange(256)))


def _set_u16(data: bytearray, random: Random) -> None:
    struct.pack_into("<H", data, _at(data, random, 2), random.choice(_U16))


def _set_u32(data: bytearray, random: Random) -> None:
    size = len(data)
    value = random.choice((*_U32, size, size - 1, size + 4)) & 0xFFFFFFFF
    struct.pack_into("<I", data, _at(data, random, 4), value)


def _set_u64(data: bytearray, random: Random) -> None:
    struct.pack_into("<Q", data, _at(data, random, 8), random.choice((*_U64, len(data))))


def _nudge_u32(data: bytearray, random: Random) -> None:
    at = _at(data, random, 4)
    value = int.from_bytes(data[at : at + 4], "little") + random.choice((-8, -4, -1, 1, 2, 4, 8))
    struct.pack_into("<I", data, at, value & 0xFFFFFFFF)


def _copy_word(data: bytearray, random: Random) -> None:
    width = random.choice((2, 4, 8))
    source, target = _at(data, random, width), _at(data, random, width)
    data[target : target + width] = data[source : source + width]


def _swap_words(data: bytearray, random: Random) -> None:
    one, other = _at(data, random, 4), _at(data, random, 4)
    data[one : one + 4], data[other : other + 4] = data[other : other + 4], data[one : one + 4]


def _splice(data: bytearray, random: Random) -> None:
    width = random.randrange(1, 33)
    source, target = _at(data, random), _at(data, random)
    data[target : target + width] = data[source : source + width]


def _insert(data: bytearray, random: Random) -> None:
    source, width = _at(data, random), random.choice((1, 2, 4, 8, 32))
    at = _at(data, random)
    data[at:at] = data[source : source + width]


def _remove(data: bytearray, random: Random) -> None:
    at = _at(data, random)
    del data[at : at + random.choice((1, 2, 4, 8, 32))]


def _cut(data: bytearray, random: Random) -> None:
    del data[_at(data, random) :]


def _append(data: bytearray, random: Random) -> None:
    data += random.randbytes(random.choice((1, 4, 8, 20)))


def _zero(data: bytearray, random: Random) -> None:
    at = _at(data, random)
    width = min(random.choice((2, 4, 8, 16, 64)), len(data) - at)
    data[at : at + width] = bytes(width)


_OPERATIONS: tuple[Operation, ...] = (
    _flip_bit,
    _flip_bit,
    _flip_bit,
    _set_byte,
    _set_byte,
    _set_u16,
    _set_u32,
    _set_u64,
    _nudge_u32,
    _copy_word,
    _swap_words,
    _splice,
    _insert,
    _remove,
    _cut,
    _append,
    _zero,
)

# --- damage to what a flatbuffer consists of -------------------------------------------------


def _choose(places: Sequence[int], data: bytearray, random: Random, width: int) -> int:
    """One of the places, as far as an earlier cut has left it."""
    at = random.choice(places) if places else 0
    return at if at + width <= len(data) else _at(data, random, width)


def _set_vtable_entry(data: bytearray, random: Random, found: Map) -> None:
    at = _choose(found.vtable_words, data, random, 2)
    struct.pack_into("<H", data, at, random.choice((*_U16, random.randrange(0, 64, 4))))


def _swap_vtable_entries(data: bytearray, random: Random, found: Map) -> None:
    one = _choose(found.vtable_words, data, random, 2)
    other = _choose(found.vtable_words, data, random, 2)
    data[one : one + 2], data[other : other + 2] = data[other : other + 2], data[one : one + 2]


def _point_elsewhere(data: bytearray, random: Random, found: Map) -> None:
    at = _choose(found.offsets, data, random, 4)
    value = (random.choice(found.places) - at) & 0xFFFFFFFF
    struct.pack_into("<I", data, at, value)


def _move_vtable(data: bytearray, random: Random, found: Map) -> None:
    at = _choose(found.tables, data, random, 4)
    other = _choose(found.tables, data, random, 4)
    soffset = at - other + int.from_bytes(data[other : other + 4], "little")
    value = random.choice((soffset, 0, at - len(data) + 2, random.randrange(-64, 64)))
    struct.pack_into("<I", data, at, value & 0xFFFFFFFF)


def _set_length(data: bytearray, random: Random, found: Map) -> None:
    at = _choose(found.targets, data, random, 4)
    length = int.from_bytes(data[at : at + 4], "little")
    choices = (*_U32, length + 1, length - 1, length * 2, len(data) - at - 4)
    struct.pack_into("<I", data, at, random.choice(choices) & 0xFFFFFFFF)


def _nudge_offset(data: bytearray, random: Random, found: Map) -> None:
    at = _choose(found.offsets, data, random, 4)
    value = int.from_bytes(data[at : at + 4], "little") + random.choice((-8, -4, -1, 1, 2, 4, 8))
    struct.pack_into("<I", data, at, value & 0xFFFFFFFF)


_FLAT_OPERATIONS = (
    _set_vtable_entry,
    _set_vtable_entry,
    _swap_vtable_entries,
    _point_elsewhere,
    _point_elsewhere,
    _move_vtable,
    _set_length,
    _set_length,
    _nudge_offset,
)
