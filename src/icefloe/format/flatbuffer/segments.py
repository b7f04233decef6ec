"""The parts of a file before it is compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.records import NamedTuple


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
