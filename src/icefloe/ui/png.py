"""PNG files of at most 256 colours, written with zlib alone."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PALETTE = 3
_DEPTH = 8


def encode_png(pixels: NDArray[np.uint8], palette: NDArray[np.uint8]) -> bytes:
    """A picture whose pixels are rows of a palette; a palette has red, green, blue and opacity."""
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, _DEPTH, _PALETTE, 0, 0, 0)
    lines = np.zeros((height, width + 1), np.uint8)  # each line starts with 0: it is not filtered
    lines[:, 1:] = pixels
    return b"".join(
        (
            _SIGNATURE,
            _part(b"IHDR", header),
            _part(b"PLTE", np.ascontiguousarray(palette[:, :3]).tobytes()),
            _part(b"tRNS", np.ascontiguousarray(palette[:, 3]).tobytes()),
            _part(b"IDAT", zlib.compress(lines.tobytes(), 3)),
            _part(b"IEND", b""),
        )
    )


def _part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
