"""The arrays that are written and read through Zarr, and how many of everything there are.

All numbers follow from the size of the corpus, so that a small one is a small run. Both sides
start from here, so nothing here may import either of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class _Chunks:
    """How large chunks are, how many there are, and whether Zarr compresses them.

    Compressing takes a thread of Zarr's for each chunk, which costs as much as all that a store
    does for a small one. Rows that compare stores leave it out.
    """

    num_bytes: int
    rows_per_chunk: int
    is_compressed: bool


_KINDS = {
    "small": _Chunks(8 * 1024, 250, is_compressed=False),
    "few small": _Chunks(8 * 1024, 1000, is_compressed=False),
    "small zstd": _Chunks(8 * 1024, 250, is_compressed=True),
    "medium": _Chunks(256 * 1024, 1250, is_compressed=True),
    "large": _Chunks(16 * 1024**2, 62_500, is_compressed=True),
    "packed": _Chunks(4 * 1024, 500, is_compressed=False),
    "inline": _Chunks(256, 50, is_compressed=False),
}


def compressors(dataset: str) -> Literal["auto"] | None:
    """What to tell Zarr about compression: to choose, or to do none."""
    return "auto" if _KINDS[dataset].is_compressed else None


def chunk_values(dataset: str, rows: int) -> NDArray[np.uint64]:
    """A matrix of which every row is to be one chunk: all different, none gets smaller.

    The rows overlap in memory, so that a gigabyte of chunks takes one chunk of memory.
    """
    count = max(rows // _KINDS[dataset].rows_per_chunk, 1)
    width = _KINDS[dataset].num_bytes // 8
    numbers = np.random.default_rng(2).integers(0, 2**64, width + count - 1, np.uint64)
    values: NDArray[np.uint64] = sliding_window_view(numbers, width)
    return values


def num_large(rows: int) -> int:
    """Chunks of eight megabytes: 32 at a million references."""
    return max(rows // 31_250, 1)


def num_snapshots(dataset: str, rows: int) -> int:
    """Snapshots in a row: 10,000 at a million references, or 100,000 of a long history."""
    return max(rows // (10 if dataset == "long history" else 100), 200)


REAL_COMMITS = 100
"""The newest snapshots of a made-up history, which have all their files."""


def num_commits(rows: int) -> int:
    """Small commits in a row: 100 at a million references."""
    return max(rows // 10_000, 1)


def crowd_size(rows: int) -> tuple[int, int]:
    """Processes, and commits of each: 10 and 5 at a million references."""
    return (10, 5) if rows >= 1_000_000 else (3, 2)


GARBAGE = 6
"""Of so many objects one is garbage."""

PACKED = " by icefloe"
"""The end of the name of a dataset that icefloe has packed."""


def num_objects(rows: int) -> int:
    """Chunk objects of which some are garbage: 60,000 at a million references."""
    return max(rows * 6 // 100, 12)


def num_members(rows: int) -> int:
    """Arrays in one group: 5000 at a million references."""
    return rows // 200


def listed(dataset: str, rows: int) -> tuple[int, int]:
    """Arrays, and chunks of each: 13,000 keys and a few at a million references."""
    return (13, rows // 1000) if dataset == "few arrays" else (rows // 1000, 12)
