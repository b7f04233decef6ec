"""The 39-byte header and zstd frame around every metadata file.

offset  size  content
0       12    magic bytes: "ICE", U+1F9CA in UTF-8, "CHUNK"
12      24    writer name, padded with spaces
36      1     spec version
37      1     file type
38      1     compression: 0 none, 1 zstd
39            payload: a flatbuffer
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.flatbuffer.write import Segment, contiguous, segment_size

MAGIC = bytes.fromhex("494345f09fa78a4348554e4b")
HEADER_SIZE = 39
WRITER_NAME = f"ic-floe-{import_module('icefloe').__version__}"
NEWEST_SPEC_VERSION = 2

MAX_PAYLOAD_BYTES = 2**31
"""The largest payload read or written: flatbuffer offsets reach no further."""

_ZSTD_MAX_BLOCK = 128 * 1024
_RLE_BLOCK = 1
_COMPRESSED_BLOCK = 2
_JOINED_BYTES = 1 << 20
"""Larger payloads are never copied into one piece: they are compressed and inflated as streams."""
_MAX_IDLE = 4  # zstd contexts kept for the next small file

Bytes = NDArray[np.uint8]


class FileType(IntEnum):
    """What a metadata file holds, as its header says."""

    SNAPSHOT = 1
    MANIFEST = 2
    ATTRIBUTES = 3
    TRANSACTION_LOG = 4
    CHUNK = 5
    REPO_INFO = 6

    @property
    def noun(self) -> str:
        return self.name.lower().replace("_", " ")


class Header(NamedTuple):
    """The fixed part of a metadata file."""

    writer: str
    spec_version: int
    file_type: FileType
    is_compressed: bool


def decode_header(data: bytes | memoryview, name: str) -> Header:
    """Read and check the first 39 bytes of the file called `name`."""
    head = bytes(data[:HEADER_SIZE])
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise _bad_header(name, f"starts with {head[:12].hex()}, expected {MAGIC.hex()}")
    if len(head) < HEADER_SIZE:
        raise _bad_header(name, f"has {len(head)} bytes, a header alone takes {HEADER_SIZE}")
    version, file_type, compression = head[36], head[37], head[38]
    if version > NEWEST_SPEC_VERSION:
        raise FormatError(
            f"{name}: written with spec version {version}, this icefloe reads versions 1 to "
            f"{NEWEST_SPEC_VERSION}; upgrade icefloe to read it",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    if version == 0:
        raise _bad_header(name, "spec version byte is 0, expected 1 or 2")
    if file_type not in FileType._value2member_map_:
        raise _bad_header(name, f"file type byte is {file_type}, expected 1 to 6")
    if compression > 1:
        raise _bad_header(name, f"compression byte is {compression}, expected 0 (none) or 1 (zstd)")
    writer = head[12:36].rstrip(b" \0").decode("utf-8", "replace")
    return Header(writer, version, FileType(file_type), compression == 1)


def decode_envelope(
    data: bytes | memoryview, file_type: FileType, name: str
) -> tuple[Header, Bytes, int]:
    """Open a metadata file: its header, the payload and the payload's size.

    The array is zero padded to a multiple of eight bytes, so that it can be viewed as words.
    """
    header, payload, size = decode_any_envelope(data, file_type, name)
    if _is_messagepack(payload, size):
        raise FormatError(
            f"{name}: the payload is MessagePack, as files written before Icechunk 0.2 hold it, "
            "expected a flatbuffer",
            ErrorKind.INVALID_FILE_FORMAT,
        )
    return header, payload, size


def decode_any_envelope(
    data: bytes | memoryview, file_type: FileType, name: str
) -> tuple[Header, Bytes, int]:
    """Like `decode_envelope`, for any file type."""
    header = decode_header(data, name)
    if header.file_type != file_type:
        raise _bad_header(name, f"is a {header.file_type.noun} file, expected a {file_type.noun}")
    body = memoryview(data)[HEADER_SIZE:]
    if header.is_compressed:
        payload, size = _decompress(body, name)
    else:
        size = len(body)
        payload = _room(size)
        payload[:size] = np.frombuffer(body, np.uint8)
    return header, payload, size


def _is_messagepack(payload: Bytes, size: int) -> bool:
    """Whether this is an array of MessagePack rather than a flatbuffer.

    The identifier `Ichk` of a flatbuffer is optional, so its absence alone does not tell. But the
    first word of a flatbuffer leads to its root table, which lies inside and is aligned.
    """
    if size < 8 or payload[4:8].tobytes() == b"Ichk":
        return False
    root = int(payload[:4].view("<u4")[0])
    is_array = payload[0] & 0xF0 == 0x90 or payload[0] in (0xDC, 0xDD)
    return bool(is_array) and (root % 4 != 0 or root + 4 > size)


@lru_cache(maxsize=32)
def encode_header(
    spec_version: int,
    file_type: FileType,
    writer: str = WRITER_NAME,
    *,
    is_compressed: bool = True,
) -> bytes:
    """The header of a file; official readers refuse one that is not compressed."""
    padded = writer.encode()[:24].ljust(24)
    return MAGIC + padded + bytes((spec_version, file_type, is_compressed))


def encode_envelope(
    segments: Sequence[Segment],
    spec_version: int,
    file_type: FileType,
    level: int,
) -> bytes:
    """Header plus one zstd frame over `segments`; large ones are never joined uncompressed."""
    size = sum(map(segment_size, segments))
    if size >= MAX_PAYLOAD_BYTES:
        raise FormatError(
            f"{file_type.noun}: {size:,} bytes uncompressed, a flatbuffer holds less than "
            f"{MAX_PAYLOAD_BYTES:,}; split it into several files",
            ErrorKind.SERIALIZATION,
        )
    level = min(level, zstandard.MAX_COMPRESSION_LEVEL)  # as zstd itself takes larger ones
    header = encode_header(spec_version, file_type)
    if size < _JOINED_BYTES:
        return header + _compress(b"".join(contiguous(segments)), level)
    frame = zstandard.ZstdCompressor(level=level).compressobj(size=size)
    parts = [header]
    parts.extend(frame.compress(memoryview(part).cast("B")) for part in contiguous(segments))
    parts.append(frame.flush())
    return b"".join(parts)


@lru_cache(maxsize=64)
def _idle_compressors(level: int) -> deque[zstandard.ZstdCompressor]:
    return deque(maxlen=_MAX_IDLE)


_idle_decompressors: deque[zstandard.ZstdDecompressor] = deque(maxlen=_MAX_IDLE)


def _compress(data: bytes, level: int) -> bytes:
    """One frame. Contexts are costly to make and serve one thread at a time: whoever works with
    one has taken it out of the queue."""
    idle = _idle_compressors(level)
    try:
        context = idle.pop()
    except IndexError:
        context = zstandard.ZstdCompressor(level=level)
    frame = context.compress(data)
    idle.append(context)
    return frame


def _decompressor(size: int) -> zstandard.ZstdDecompressor:
    if size < _JOINED_BYTES:
        with suppress(IndexError):
            return _idle_decompressors.pop()
    # The window of a one-segment frame is its whole content, beyond the library's default.
    return zstandard.ZstdDecompressor(max_window_size=max(size, 2**27))


def _room(size: int) -> Bytes:
    room = np.empty(-(-size // 8) * 8, np.uint8)
    room[size:] = 0
    return room


def _decompress(body: memoryview, name: str) -> tuple[Bytes, int]:
    """Inflate the zstd frames that make up `body`: usually one, of announced size."""
    try:
        announced, largest = _measure_frames(body)
        if largest > MAX_PAYLOAD_BYTES:
            raise ValueError(f"it announces {largest:,} bytes, at most {MAX_PAYLOAD_BYTES:,} fit")
        room = _room(largest)
        context = _decompressor(largest)
        reader = context.stream_reader(body, read_across_frames=True)
        size = 0
        while size < largest and (count := reader.readinto(memoryview(room)[size:largest])):
            size += count
        if reader.read(1) or (announced is not None and size != announced):
            raise ValueError(f"it holds other than the {largest:,} bytes its header announces")
        if largest < _JOINED_BYTES:  # others keep a window of their size
            _idle_decompressors.append(context)
    except (zstandard.ZstdError, ValueError) as error:
        raise FormatError(f"{name}: the zstd frame is damaged ({error})") from None
    padded = -(-size // 8) * 8
    room[size:padded] = 0
    return room[:padded], size


def _measure_frames(body: memoryview) -> tuple[int | None, int]:
    """The announced content size, if every frame has one, and the most `body` can inflate to.

    Walks the block headers, so that a cut file, bytes behind the last frame or a size no block
    could fill are found before anything is allocated.
    """
    announced: int | None = 0
    largest = at = 0
    while at < len(body) or at == 0:
        parameters = zstandard.get_frame_parameters(body[at:])
        at += zstandard.frame_header_size(body[at:])
        room, last = 0, False
        while not last:
            if at + 3 > len(body):
                raise ValueError("the file ends inside it")
            block = int.from_bytes(body[at : at + 3], "little")
            last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
            room += _ZSTD_MAX_BLOCK if kind == _COMPRESSED_BLOCK else length
            at += 3 + (1 if kind == _RLE_BLOCK else length)
        at += 4 if parameters.has_checksum else 0
        if at > len(body):
            raise ValueError("the file ends inside it")
        if parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN:
            announced = None
            largest += room
            continue
        if parameters.content_size > room:
            raise ValueError(
                f"it announces {parameters.content_size:,} bytes, its blocks hold at most {room:,}"
            )
        largest += parameters.content_size
        if announced is not None:
            announced += parameters.content_size
    return announced, largest


def _bad_header(name: str, problem: str) -> FormatError:
    return FormatError(f"{name}: {problem}", ErrorKind.INVALID_FILE_FORMAT)
