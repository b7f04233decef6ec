"""What is measured: the references themselves, and where the repositories made of them are.

Both sides start from here, so nothing here may import either of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 4096
ROWS_PER_STEP = 1000
_CHUNKS_PER_STEP = (50, 20)
_FIRST_SNAPSHOT = "1CECHNKREP0F1RSTCMT0"


@dataclass(frozen=True, slots=True)
class References:
    """Virtual references of one array, in row-major order of its chunk grid."""

    grid: tuple[int, ...]
    locations: list[str]
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The repositories of one size; `corpus / "files"` is the folder of one."""

    folder: Path
    rows: int

    def __truediv__(self, dataset: str) -> Path:
        return self.folder / str(self.rows) / dataset

    @property
    def grid(self) -> tuple[int, int, int]:
        return (self.rows // ROWS_PER_STEP, *_CHUNKS_PER_STEP)

    def references(self, dataset: str) -> References:
        """What the array of a dataset refers to: by default a file for every 1000 chunks."""
        row = np.arange(self.rows)
        files = self.rows // ROWS_PER_STEP
        file, place = row // ROWS_PER_STEP, row % ROWS_PER_STEP
        if dataset == "distinct":
            file, place = row, np.zeros_like(row)
        elif dataset == "rotating":
            file, place = row % files, row // files
        urls = [location(number) for number in range(int(file.max()) + 1)]
        return References(
            self.grid,
            [urls[number] for number in file.tolist()],
            (8192 + CHUNK_BYTES * place).astype(np.uint64),
            np.full(self.rows, CHUNK_BYTES, np.uint64),
        )

    def chunk_ids(self) -> NDArray[np.uint8]:
        """Random ids for as many native chunks."""
        return np.random.default_rng(0).integers(0, 256, (self.rows, 12), np.uint8)

    def coordinates(self, count: int) -> list[tuple[int, ...]]:
        """Chunk indices to look up, spread at random."""
        random = np.random.default_rng(1)
        return [tuple(row) for row in random.integers(0, self.grid, (count, 3)).tolist()]


def location(number: int) -> str:
    """A URL of 90 characters."""
    return (
        "s3://example-bucket/reanalysis/single-levels/hourly/"
        f"2m-temperature/2019/version-7/{number:08d}"
    )


def grid_index(grid: tuple[int, ...]) -> NDArray[np.uint32]:
    """Every index of a chunk grid, in row-major order."""
    index = np.empty((*grid, len(grid)), np.uint32)
    for axis, coordinates in enumerate(np.ix_(*map(np.arange, grid))):
        index[..., axis] = coordinates
    return index.reshape(-1, len(grid))


def committed_file(root: Path, folder: str) -> Path:
    """The file in `folder` that the only commit of a benchmark repository wrote."""
    [path] = [path for path in (root / folder).iterdir() if path.name != _FIRST_SNAPSHOT]
    return path
