"""`Scan`: anything Spark can read in numbered pieces.

Scans know nothing of Spark. The same scan runs inside the data source and, with the repository's
credentials in the pickled function, under `mapInArrow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

ROWS_PER_BATCH = 1 << 17
"""Measured: below 8,192 rows a batch costs noticeably more, above 65,536 little is gained."""


class Scan(Protocol):
    """Rows in `num_partitions` pieces that can be read in any order, and again."""

    @property
    def schema(self) -> pa.Schema:
        """Columns in Arrow's types as Spark uses them."""
        ...

    @property
    def num_partitions(self) -> int:
        """How many pieces there are; 0 when there are no rows."""
        ...

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """The rows of one piece, read by a worker."""
        ...


def read_numbered(scan: Scan, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the pieces whose numbers are in column 0."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from scan.read(number)


@dataclass(frozen=True, slots=True)
class FixedRows:
    """A scan over a small table that was made when the query was planned."""

    table: pa.Table

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    @property
    def num_partitions(self) -> int:
        return 1 if self.table.num_rows else 0

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        yield from self.table.to_batches(max_chunksize=ROWS_PER_BATCH)
