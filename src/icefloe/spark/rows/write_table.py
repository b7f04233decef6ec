"""`write_table`: rows of a DataFrame, one per cell, become arrays in one commit.

Rows are located by their coordinates and brought together by block of chunks, so that every chunk
is written by one task; a task holds one block at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.changes.solvers import ConflictSolver
from icefloe.errors import InvalidInputError
from icefloe.scans.pinned import as_repository
from icefloe.spark.batch_ids import BatchId
from icefloe.spark.rows.arrays import (
    RowsRequest,
    check_target,
    prepare,
    stored_arrays,
    table_request,
)
from icefloe.spark.rows.columns import Taken, spare_integers
from icefloe.spark.rows.grid import BLOCK, CELL, RowGrid
from icefloe.spark.rows.late import (
    LATE_ROWS,
    ROW,
    check_late,
    find_late,
    insert_late,
    numbered,
    split_rows,
)
from icefloe.spark.rows.ordering import sorted_keys, whole_blocks
from icefloe.spark.runtime.spark_session import parallelism
from icefloe.spark.runtime.tasks import map_batches
from icefloe.spark.spark_types import arrow_schema
from icefloe.spark.writes import ref_blocks
from icefloe.spark.writes.shared_write import TaskSide, share
from icefloe.spark.writes.write_items import ShownWrite

_TASKS_PER_SLOT = 4
_DRAIN_ROWS = 4 << 20  # references are handed on about this often, so that a task stays small


@dataclass(frozen=True, slots=True, repr=False)
class TableReport(ShownWrite):
    """What `write_table` did."""

    snapshot_id: str
    chunks_written: int
    bytes_written: int
    seconds: float


def write_table(
    df: DataFrame,
    repository: Repository | str,
    *,
    group: str = "",
    dims: Sequence[str] | Mapping[str, Any],
    variables: Sequence[str],
    chunks: Mapping[str, int] | Sequence[int] | None = None,
    branch: str = "main",
    mode: str = "error",
    message: str | None = None,
    metadata: dict[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
    transaction: tuple[str, int] | None = None,
    late: Literal["fail", "insert", "quarantine"] = "fail",
    num_tasks: int | None = None,
) -> TableReport:
    """Write rows, one for each cell, into arrays of a group, in one commit.

    The columns `dims` say where a row belongs, the columns `variables` what is there. Coordinates
    of new arrays are the sorted distinct values of each column of `dims` (one Spark job more), or
    those given as a mapping from the column to its values. They are stored as arrays of the same
    name; times in UTC, as CF conventions have it. Cells without a row, and nulls, are missing
    values: NaN in floats, the `_FillValue` of integers and times, empty text; null in a column of
    booleans is an error. NaN in a new array of floats is a missing value as well. New arrays of
    integers take the smallest integer for missing values, or the largest if a row has the
    smallest. A value that the array would give back as another one, or as a missing one, is an
    error.

    With `mode="error"` none of the arrays of `variables` may exist; "overwrite" replaces them;
    "append" writes into them (and creates those missing). Rows are located by value. Appending,
    coordinates that lie after the last one make all arrays of that dimension longer. Any other
    value that is not among the coordinates is an error, and so are two rows for one cell; then
    nothing is committed. Chunks that the rows cover in part keep their other cells.

    Args:
        chunks: lengths of the chunks of new arrays, by dimension or in order; about 8 MB
            unless given.
        transaction: the name of an application and the number of this write. A write whose
            number, or a later one, the branch already has of that application is left out. In
            `foreachBatch`, with the number of the batch, this makes a stream exactly-once.
        late: what becomes of rows, appended, with values that are no coordinates and lie before
            the last one: "fail"; "insert" them, for which all arrays of the dimension make room;
            or "quarantine" them in the group `.icefloe/late_rows`, one array for each column.
        num_tasks: how many tasks write.
        df: the rows.
        repository: a `Repository`, its URL, or a `Session`.
        group: the path of the group; the root unless given.
        branch: the branch to commit to.
        message: of the commit.
        metadata: of the commit.

    Raises:
        InvalidInputError: a column is missing or has no fitting type, a coordinate is out of
            range, a cell has two rows.
        AlreadyExistsError: an array exists, with mode "error".
        ConflictError: others committed to the branch meanwhile, and `rebase_with` was not given.
    """
    if not hasattr(df, "mapInArrow") or not hasattr(df, "schema"):
        raise InvalidInputError(f"df is a {type(df).__name__}, expected a Spark DataFrame")
    if getattr(df, "isStreaming", False):
        raise InvalidInputError(
            "df is a stream; write it with icefloe.spark.write_stream, or call write_table in "
            "foreachBatch"
        )
    started = time.monotonic()
    schema = arrow_columns(df, dims, variables)
    check_late(late)
    request = table_request(schema, group, dims, variables, chunks, mode)
    batch = BatchId.of(transaction)
    opened = as_repository(repository)
    session = opened.writable_session(branch)
    if batch is not None:
        metadata = {**(metadata or {}), **batch.metadata}
        before = batch.find(opened, session.snapshot_id)
        if before is not None:
            return TableReport(before, 0, 0, time.monotonic() - started)
    request = check_target(session, request)
    values, taken = _look_through(df, request)
    found = {} if late == "fail" else find_late(session, request, values)
    set_aside = ref_blocks.Counts(0, 0, 0)
    if found and late == "insert":
        insert_late(df.sparkSession, opened, session, request, found)
    elif found:
        df, rows = split_rows(df, found)
        values = {dim: _without(values[dim], found.get(dim)) for dim in values}
        set_aside = _set_aside(session, request, rows, num_tasks)
    counts = _write_rows(df, session, request, {**values, **request.coordinates}, taken, num_tasks)
    counts = ref_blocks.Counts.total([counts, set_aside])
    text = message or f"write {', '.join(request.variables)} to {request.group}"
    snapshot = session.commit(text, metadata, rebase_with=rebase_with, allow_empty=True)
    return TableReport(snapshot, counts.chunks, counts.bytes, time.monotonic() - started)


def _write_rows(
    df: DataFrame,
    session: Session,
    request: RowsRequest,
    values: Mapping[str, pa.Array],
    taken: Taken,
    num_tasks: int | None,
) -> ref_blocks.Counts:
    """Write rows whose coordinates are known, into the session."""
    grid = prepare(session, request, values, taken)
    rows = _located(df, request, grid)
    tasks = num_tasks or parallelism(df.sparkSession) * _TASKS_PER_SLOT
    shared = share(session, {})
    run = partial(_write_blocks, shared.tasks, grid)
    sorted_rows = rows.repartition(tasks, BLOCK).sortWithinPartitions(BLOCK)
    return shared.run(map_batches(sorted_rows, run, ref_blocks.DDL))


def _without(values: pa.Array, late: pa.Array | None) -> pa.Array:
    if late is None:
        return values
    return values.filter(pc.invert(pc.is_in(values.cast(late.type), value_set=late)))


def _set_aside(
    session: Session, request: RowsRequest, late: DataFrame, num_tasks: int | None
) -> ref_blocks.Counts:
    """Write late rows, after those of earlier writes, into a table of their own."""
    group = f"{request.group}/{LATE_ROWS}".replace("//", "/")
    there = stored_arrays(session, group).get(ROW)
    rows = numbered(late.select(*request.columns), 0 if there is None else there.shape[0])
    schema = arrow_columns(rows, [ROW], request.columns)
    table = table_request(schema, group, [ROW], list(request.columns), None, "append")
    values, taken = _look_through(rows, table)
    return _write_rows(rows, session, table, values, taken, num_tasks)


def arrow_columns(df: DataFrame, dims: Any, variables: Any) -> pa.Schema:
    """The columns that matter, in Arrow's types; others may have types that Arrow lacks."""
    named = {*_listed(dims), *_listed(variables)}
    seen = df.schema
    twice = [name for name in seen.names if name in named and seen.names.count(name) > 1]
    if twice:
        raise InvalidInputError(f"the table has two columns {twice[0]!r}; rename one of them")
    missing = [name for name in named if name not in seen.names]
    if missing:
        raise InvalidInputError(
            f"the table has no column {missing[0]!r}; columns are "
            f"{', '.join(map(repr, seen.names))}"
        )
    kept = type(seen)([field for field in seen.fields if field.name in named])
    return arrow_schema(kept)


def _listed(names: Any) -> list[str]:
    if isinstance(names, str):
        return [names]
    return [name for name in names if isinstance(name, str)] if isinstance(names, Iterable) else []


def _column(df: DataFrame, name: str) -> Any:
    quoted = name.replace("`", "``")
    return df[f"`{quoted}`"]


def _look_through(df: DataFrame, request: RowsRequest) -> tuple[dict[str, pa.Array], Taken]:
    """The sorted values of each dimension that were not given, and which values integers have
    of those that may stand for missing ones.

    One pass over the rows; none where all coordinates were given, so that nothing is known of the
    integers then.
    """
    wanted = [dim for dim in request.dims if dim not in request.coordinates]
    if not wanted:
        return {}, {}
    spare = {name: spare_integers(request.types[name]) for name in request.variables}
    integers = [name for name in request.variables if spare[name]]
    found = df.agg(
        *(sf.collect_set(_column(df, dim)).alias(f"v{at}") for at, dim in enumerate(wanted)),
        *(
            sf.count(sf.when(_column(df, dim).isNull(), 1)).alias(f"n{at}")
            for at, dim in enumerate(wanted)
        ),
        *(
            sf.collect_set(sf.when(_column(df, name).isin(*spare[name]), _column(df, name))).alias(
                f"t{at}"
            )
            for at, name in enumerate(integers)
        ),
    ).toArrow()
    taken = {name: frozenset(found[f"t{at}"][0].as_py()) for at, name in enumerate(integers)}
    values = {}
    for at, dim in enumerate(wanted):
        if found[f"n{at}"][0].as_py():
            raise InvalidInputError(
                f"column {dim!r} has null in a row, expected a coordinate; drop those rows"
            )
        values[dim] = sorted_keys(dim, found[f"v{at}"].combine_chunks().flatten(), request)
    return values, taken


def _located(df: DataFrame, request: RowsRequest, grid: RowGrid) -> DataFrame:
    fields = [f"{BLOCK} bigint", f"{CELL} bigint"]
    for name in grid.variables:
        quoted = name.replace("`", "``")
        fields.append(f"`{quoted}` {df.schema[name].dataType.simpleString()}")
    chosen = df.select(*(_column(df, name) for name in request.columns))
    return map_batches(chosen, partial(_locate_rows, grid), ", ".join(fields))


def _locate_rows(grid: RowGrid, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from grid.locate(batch).to_batches()


def _write_blocks(
    tasks: TaskSide, grid: RowGrid, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    rows = 0
    for block, table in whole_blocks(batches):
        grid.write_block(tasks.fork, block, table)
        rows += table.num_rows
        if rows >= _DRAIN_ROWS:
            yield tasks.drain()
            rows = 0
    if rows:
        yield tasks.drain()
