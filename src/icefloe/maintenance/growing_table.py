"""Rows that arrive in batches, reduced now and then: memory for distinct rows only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

_ROWS_AT_ONCE = 1 << 18

Reduce = Callable[[pa.Table], pa.Table]
"""Joins equal rows. The result of several reductions is that of one."""


class GrowingTable:
    """Rows of one schema, equal ones joined."""

    def __init__(self, schema: pa.Schema, reduce: Reduce | None = None) -> None:
        self._schema = schema
        self._reduce = reduce or distinct
        self._known = schema.empty_table()
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._num_waiting += rows.num_rows
        if self._num_waiting > max(_ROWS_AT_ONCE, self._known.num_rows):
            self._join()

    def _join(self) -> None:
        new = pa.Table.from_batches(self._waiting, self._schema)
        self._known = self._reduce(pa.concat_tables([self._known, new])).cast(self._schema)
        self._waiting, self._num_waiting = [], 0

    def finish(self, order: Sequence[str] | None = None) -> pa.Table:
        """All rows so far, ascending by these columns, or by all."""
        if self._waiting:
            self._join()
        return self._known.sort_by([(name, "ascending") for name in order or self._schema.names])


def distinct(rows: pa.Table) -> pa.Table:
    """Each row once."""
    names = rows.schema.names
    return rows.group_by(names).aggregate([]).select(names)
