"""`df.write.format("icefloe")`: the writer of the data source.

Options: `dims` and `variables`, names of columns separated by commas; `chunks`, either a length
for each dimension (`24,100,100`) or some by name (`time=24`); `group`, `branch`, `message`. The
modes `append` and `overwrite` mean what they mean in `write_table`, which is the better choice
where it can be used: it writes in all tasks at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from icefloe.errors import InvalidInputError
from icefloe.scans.pinned import PinnedSnapshot, as_repository, pin
from icefloe.spark.batch_ids import BatchId
from icefloe.spark.rows.arrays import RowsRequest, check_target, table_request
from icefloe.spark.rows.pieces import Piece, commit_pieces, stage
from icefloe.spark.spark_types import arrow_schema

WRITE_OPTIONS = ("group", "branch", "dims", "variables", "chunks", "message")
_SPARK_OPTIONS = ("path", "checkpointlocation")


@dataclass(frozen=True, slots=True)
class RowsTarget:
    """Where a table goes, in the form that travels to tasks."""

    source: PinnedSnapshot
    branch: str
    request: RowsRequest
    message: str

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedRows:
        """What a task does with its rows."""
        return StagedRows(tuple(stage(self.source.open_repository(), self.request, batches)))

    def commit(self, messages: list[Any], batch: BatchId | None = None) -> None:
        """What the driver does with what tasks handed over."""
        commit_pieces(
            self.source.open_repository(),
            self.branch,
            self.request,
            all_pieces(messages),
            self.message,
            batch,
        )


@dataclass
class StagedRows(WriterCommitMessage):
    """What a task hands to the commit."""

    pieces: tuple[Piece, ...]


def target_of(
    options: Mapping[str, str],
    schema: StructType,
    *,
    overwrite: bool,
    more_options: tuple[str, ...] = (),
) -> RowsTarget:
    """What options ask for, checked against the repository before any task runs.

    Raises:
        InvalidInputError: an option is missing, unknown or wrong.
    """
    url = options.get("path")
    if not url:
        raise InvalidInputError(
            "the icefloe data source got no repository to write to; give its URL to save() or "
            "start(). SQL's INSERT INTO cannot say it: Spark hands no options on"
        )
    known = (*WRITE_OPTIONS, *more_options)
    for key in options:
        if key.lower() not in known and key.lower() not in _SPARK_OPTIONS:
            raise InvalidInputError(
                f"unknown option {key!r} for writing; options are {', '.join(sorted(known))}"
            )
    for key in ("dims", "variables"):
        if not options.get(key):
            raise InvalidInputError(
                f"option {key} is missing, expected names of columns separated by commas"
            )
    columns: Any = arrow_schema(schema)
    request = table_request(
        columns,
        options.get("group", ""),
        _listed(options["dims"]),
        _listed(options["variables"]),
        _chunks(options.get("chunks")),
        "overwrite" if overwrite else "append",
    )
    repository = as_repository(url)
    branch = options.get("branch", "main")
    source = pin(repository, branch=branch)
    request = check_target(source.open(), request)
    message = options.get("message") or f"write {', '.join(request.variables)} to {request.group}"
    return RowsTarget(source, branch, request, message)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _chunks(text: str | None) -> dict[str, int] | list[int] | None:
    if not text:
        return None
    parts = _listed(text)
    named = [part.rpartition("=") for part in parts]
    lengths = [length.strip() for _, _, length in named]
    if all(length.isdecimal() for length in lengths):
        numbers = [int(length) for length in lengths]
        if all("=" in part for part in parts):
            return {name.strip(): size for (name, _, _), size in zip(named, numbers, strict=True)}
        if not any("=" in part for part in parts):
            return numbers
    raise InvalidInputError(f"option chunks is {text!r}, expected '24,100' or 'time=24,lat=100'")


class RowsWriter(DataSourceArrowWriter):
    """Writes one table, in one commit."""

    def __init__(self, target: RowsTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        return self._target.stage(iterator)

    def commit(self, messages: list[Any]) -> None:
        self._target.commit(messages)

    def abort(self, messages: list[Any]) -> None:
        """Leaves everything: a commit that failed for Spark may have reached the repository."""


def all_pieces(messages: list[Any]) -> list[Piece]:
    """The pieces of all tasks."""
    return [piece for message in messages if message is not None for piece in message.pieces]
