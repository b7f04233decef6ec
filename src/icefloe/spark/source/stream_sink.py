"""`df.writeStream.format("icefloe")`: every micro-batch in the repository exactly once.

Options are those of the batch writer, and `app-id`: the name under which batches are numbered.
Unless given, it is the id of the query, which Spark keeps in the checkpoint: a query that starts
with a new checkpoint counts its batches from 0 again, and is another one. A batch is one commit,
which says its number. Spark repeats a batch when it was stopped before it noted the batch as done;
the commit is then found in the history of the branch, and the repetition is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from icefloe.errors import InvalidInputError
from icefloe.spark.batch_ids import BatchId, app_of
from icefloe.spark.source.writer import StagedRows, target_of

_ROWS_PER_BATCH = 8192
_HAS_ARROW = hasattr(datasource, "DataSourceStreamArrowWriter")  # Spark 4.1 and newer
_Base: Any = (
    datasource.DataSourceStreamArrowWriter if _HAS_ARROW else datasource.DataSourceStreamWriter
)


class StreamSink(_Base):  # type: ignore[misc]
    """Writes micro-batches. Spark makes one object for the tasks and another for the commits."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidInputError(
                "a stream can only be written with outputMode('append'); outputMode('complete') "
                "would replace the arrays with every batch"
            )
        self._app = app_of(options)
        self._target = target_of(options, schema, overwrite=False, more_options=("app-id",))
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        return self._target.stage(record_batches(iterator, self._target.request.types))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._target.commit(messages, BatchId(self._app, int(batchId)))

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leaves everything: a commit that failed for Spark may have reached the repository."""


def record_batches(
    rows: Iterator[Any], types: Mapping[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow: Spark before 4.1 hands them to a stream's writer one by one."""
    for first in rows:
        if isinstance(first, pa.RecordBatch):
            yield first
            continue
        many = [first, *islice(rows, _ROWS_PER_BATCH - 1)]
        columns = [pa.array([row[name] for row in many], kind) for name, kind in types.items()]
        yield pa.record_batch(columns, list(types))
