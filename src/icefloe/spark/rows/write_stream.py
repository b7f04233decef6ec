"""`write_stream`: a stream into arrays, every micro-batch exactly once, written by all tasks.

The data source `icefloe` does the same for whoever can only name a format. It gets no say in how
rows are spread over tasks, so that its commit has to put them together on the driver's host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from icefloe.api.repository import Repository
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.scans.pinned import as_repository
from icefloe.spark.batch_ids import app_of
from icefloe.spark.rows.arrays import table_request
from icefloe.spark.rows.late import check_late
from icefloe.spark.rows.write_table import arrow_columns, write_table

_TRIES = 10


def write_stream(
    df: DataFrame,
    repository: Repository | str,
    *,
    checkpoint: str,
    group: str = "",
    dims: Sequence[str] | Mapping[str, Any],
    variables: Sequence[str],
    chunks: Mapping[str, int] | Sequence[int] | None = None,
    branch: str = "main",
    message: str | None = None,
    app_id: str | None = None,
    late: Literal["fail", "insert", "quarantine"] = "fail",
    num_tasks: int | None = None,
) -> DataStreamWriter:
    """A writer that appends every micro-batch of a stream with `write_table`, as one commit.

        writer = icefloe.spark.write_stream(
            stream, repo, checkpoint="s3://b/checkpoint", dims=["time"], variables=["t2m"]
        )
        query = writer.trigger(processingTime="1 minute").start()

    If others commit to the branch meanwhile, the batch is put on top of what they left. A batch
    that Spark repeats after a crash is found in the history of the branch and left out.

    Other arguments as in `write_table`.

    Args:
        checkpoint: where Spark keeps the state of the query.
        app_id: the name under which batches are numbered; the id of the query unless given, which
            is read from the checkpoint.
        late: what becomes of rows that belong before the end of a dimension; see `write_table`.

    Raises:
        InvalidInputError: `df` is no stream, or an argument is not as `write_table` expects it.
    """
    if not getattr(df, "isStreaming", False):
        raise InvalidInputError("df is not a stream; write it with icefloe.spark.rows.write_table")
    given: Any = checkpoint
    if not isinstance(given, str) or not given:
        raise InvalidInputError(f"checkpoint is {given!r:.80}, expected the URL of a folder")
    columns = arrow_columns(df, dims, variables)
    check_late(late)
    table_request(columns, group, dims, variables, chunks, "append")
    options = {
        "group": group,
        "dims": dims,
        "variables": variables,
        "chunks": chunks,
        "branch": branch,
        "message": message,
        "late": late,
        "num_tasks": num_tasks,
    }
    batches = Batches(as_repository(repository), checkpoint, app_id, options)
    return df.writeStream.foreachBatch(batches.write).option("checkpointLocation", checkpoint)


@dataclass(frozen=True, slots=True)
class Batches:
    """Where the batches of a stream go."""

    repository: Repository
    checkpoint: str
    app_id: str | None
    options: Mapping[str, Any]

    def write(self, df: DataFrame, number: int) -> None:
        """Write a batch, unless the branch has it."""
        app = self.app_id or app_of({"checkpointLocation": self.checkpoint})
        rows = df.persist()  # they are looked through before they are written
        try:
            if not rows.isEmpty():
                self._write(rows, (app, number))
        finally:
            rows.unpersist()

    def _write(self, rows: DataFrame, transaction: tuple[str, int]) -> None:
        for left in reversed(range(_TRIES)):
            try:
                write_table(
                    rows, self.repository, mode="append", transaction=transaction, **self.options
                )
            except ConflictError:
                if not left:
                    raise
            else:
                return
