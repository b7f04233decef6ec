"""Metadata files taken apart and put together again: what mutations and hostile files need.

Nothing here uses the readers under test; `Flat` is a second, naive way to find a field.
"""

from __future__ import annotations

import struct

import zstandard

from icefloe.format.envelope import HEADER_SIZE, FileType, encode_header

_UNCOMPRESSED = b"\0"
_COMPRESSION_BYTE = 38


def payload_of(file: bytes) -> bytes:
    """The flatbuffer inside a metadata file."""
    body = file[HEADER_SIZE:]
    if file[_COMPRESSION_BYTE] == 0:
        return body
    return zstandard.ZstdDecompressor().decompressobj().decompress(body)


def with_payload(file: bytes, payload: bytes, *, is_compressed: bool = False) -> bytes:
    """The file with another payload; not compressed is faster, and readers take both."""
    header = file[:_COMPRESSION_BYTE]
    if is_compressed:
        return header + b"\1" + zstandard.ZstdCompressor(level=1).compress(payload)
    return header + _UNCOMPRESSED + payload


def new_file(file_type: FileType, payload: bytes, spec_version: int = 2) -> bytes:
    """A file around this payload."""
    return with_payload(encode_header(spec_version, file_type), payload)


class Flat:
    """A flatbuffer whose words can be read and overwritten."""

    def __init__(self, file: bytes) -> None:
        self.file = file
        self.data = bytearray(payload_of(file))

    def u16(self, at: int) -> int:
        return int(struct.unpack_from("<H", self.data, at)[0])

    def u32(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.data, at)[0])

    def set_u8(self, at: int, value: int) -> None:
        self.data[at] = value

    def set_u16(self, at: int, value: int) -> None:
        struct.pack_into("<H", self.data, at, value)

    def set_u32(self, at: int, value: int) -> None:
        struct.pack_into("<I", self.data, at, value)

    def set_i32(self, at: int, value: int) -> None:
        struct.pack_into("<i", self.data, at, value)

    @property
    def root(self) -> int:
        return self.u32(0)

    def vtable(self, table: int) -> int:
        return table - int(struct.unpack_from("<i", self.data, table)[0])

    def entry(self, table: int, slot: int) -> int:
        """Where the vtable says at which offset the field lies."""
        return self.vtable(table) + 4 + 2 * slot

    def field(self, table: int, slot: int) -> int:
        """Where the field lies."""
        return table + self.u16(self.entry(table, slot))

    def follow(self, at: int) -> int:
        """Where the offset at `at` leads to."""
        return at + self.u32(at)

    def target(self, table: int, slot: int) -> int:
        """Where the offset in the field leads to."""
        return self.follow(self.field(table, slot))

    def point(self, at: int, target: int) -> None:
        """Let the offset at `at` lead to `target`."""
        self.set_u32(at, target - at)

    def item(self, vector: int, number: int) -> int:
        """The table that an offset of a vector leads to."""
        return self.follow(vector + 4 + 4 * number)

    def done(self) -> bytes:
        """The file with what was overwritten."""
        return with_payload(self.file, bytes(self.data))


def nested_vectors(levels: int) -> bytes:
    """A flexbuffer of vectors with one element, each inside the next; the innermost is empty."""
    vector = 10 << 2
    data = bytearray(b"\0")
    inner = 1
    for _ in range(levels - 1):
        data += bytes((1, len(data) + 1 - inner, vector))
        inner = len(data) - 2
    return bytes(data) + bytes((len(data) - inner, vector, 1))
