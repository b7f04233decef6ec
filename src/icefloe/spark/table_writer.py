"""DataFrames and streams of them written into arrays, once per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import LongType, StructType

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.changes.conflicts import ConflictSolver
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.scans.scan import as_repository
from icefloe.spark import shared_write, table_arrays
from icefloe.spark.dataset_writer import (
    CommitReport,
    commit_on_top,
    dimension_names,
    move_blocks,
    solver_of_write,
)
from icefloe.spark.shared_write import BatchId, TaskSide, app_of, share
from icefloe.spark.table_arrays import BLOCK, RowGrid, RowsRequest, Taken
from icefloe.spark.tasks import map_batches, usual_tasks
from icefloe.spark.versions import arrow_schema, to_arrow
from icefloe.virtual.ingest.insertion import ArrayRoom, AxisRoom, moves_of_arrays, reserve_arrays
from icefloe.virtual.ingest.transfer import read_document
from icefloe.virtual.planning.file_boxes import LEDGER_GROUP

# Rows are located by their coordinates and brought together by block of chunks, so that every
# chunk is written by one task; a task holds one block at a time.

_DRAIN_ROWS = 4 << 20  # references are handed on about this often, so that a task stays small


class TableReport(CommitReport):
    """What `write_table` did."""

    __slots__ = ()
    snapshot_id: str


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
        RebaseFailedError: others wrote the same arrays meanwhile, with mode "overwrite". Other
            rows are written again, on top of theirs, or moved behind what they have appended along
            the first dimension; `rebase_with` chooses other rules.

    >>> df = spark.createDataFrame([(0, 281.5), (1, 282.0)], "day long, t2m double")
    >>> report = icefloe.spark.write_table(
    ...     df, repo, group="station", dims=["day"], variables=["t2m"]
    ... )
    """
    if not hasattr(df, "mapInArrow") or not hasattr(df, "schema"):
        raise InvalidInputError(f"df is a {type(df).__name__}, expected a Spark DataFrame")
    if getattr(df, "isStreaming", False):
        raise InvalidInputError(
            "df is a stream; write it with icefloe.spark.write_stream, or call write_table in "
            "foreachBatch"
        )
    schema = arrow_columns(df, dims, variables)
    check_late(late)
    request = table_arrays.table_request(schema, group, dims, variables, chunks, mode)
    batch = BatchId.of(transaction)
    opened = as_repository(repository)
    metadata = metadata if batch is None else {**(metadata or {}), **batch.metadata}

    def write() -> tuple[Session, int, int] | str:
        session = opened.writable_session(branch)
        before = None if batch is None else batch.find(opened, session.snapshot_id)
        if before is not None:
            return before
        wanted = table_arrays.check_target(session, request)
        counts = _write_all(df, opened, session, wanted, late, num_tasks)
        return session, counts.chunks, counts.bytes

    def commit(session: Session) -> str:
        dim = request.dims[0] if mode == "append" else None
        solver = rebase_with or solver_of_write(dim, batch)
        text = message or f"write {', '.join(request.variables)} to {request.group}"
        return session.commit(text, metadata, rebase_with=solver, allow_empty=True)

    done = commit_on_top(write, commit, lambda _: rebase_with is None and mode != "overwrite")
    return TableReport(*astuple(done))


def _write_all(
    df: DataFrame,
    repository: Repository,
    session: Session,
    request: RowsRequest,
    late: str,
    num_tasks: int | None,
) -> shared_write.Counts:
    """Write rows into a session; `late` says what becomes of rows before the end."""
    values, taken = _look_through(df, request)
    found = {} if late == "fail" else find_late(session, request, values)
    set_aside = shared_write.Counts(0, 0, 0)
    if found and late == "insert":
        insert_late(df.sparkSession, repository, session, request, found)
    elif found:
        df, rows = split_rows(df, found)
        values = {dim: _without(values[dim], found.get(dim)) for dim in values}
        set_aside = _set_aside(session, request, rows, num_tasks)
    counts = _write_rows(df, session, request, {**values, **request.coordinates}, taken, num_tasks)
    return shared_write.Counts.total([counts, set_aside])


def _write_rows(
    df: DataFrame,
    session: Session,
    request: RowsRequest,
    values: Mapping[str, pa.Array],
    taken: Taken,
    num_tasks: int | None,
) -> shared_write.Counts:
    """Write rows whose coordinates are known, into the session."""
    grid = table_arrays.prepare(session, request, values, taken)
    schema = StructType().add(BLOCK, LongType()).add(table_arrays.CELL, LongType())
    for name in grid.variables:
        schema.add(df.schema[name])
    chosen = df.select(*(_column(df, name) for name in request.columns))
    rows = map_batches(chosen, partial(_locate_rows, grid), schema)
    tasks = num_tasks or usual_tasks(df.sparkSession)
    shared = share(session, {})
    run = partial(_write_blocks, shared.tasks, grid)
    sorted_rows = rows.repartition(tasks, BLOCK).sortWithinPartitions(BLOCK)
    counts, _ = shared.run(map_batches(sorted_rows, run, shared_write.SPARK_SCHEMA))
    return counts


def _without(values: pa.Array, late: pa.Array | None) -> pa.Array:
    if late is None:
        return values
    return values.filter(pc.invert(pc.is_in(values.cast(late.type), value_set=late)))


def _set_aside(
    session: Session, request: RowsRequest, late: DataFrame, num_tasks: int | None
) -> shared_write.Counts:
    """Write late rows, after those of earlier writes, into a table of their own."""
    group = f"{request.group}/{LATE_ROWS}".replace("//", "/")
    there = table_arrays.stored_arrays(session, group).get(ROW)
    rows = numbered(late.select(*request.columns), 0 if there is None else there.shape[0])
    schema = arrow_columns(rows, [ROW], request.columns)
    table = table_arrays.table_request(schema, group, [ROW], list(request.columns), None, "append")
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
    spare = {name: table_arrays.spare_integers(request.types[name]) for name in request.variables}
    integers = [name for name in request.variables if spare[name]]
    aggregated = df.agg(
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
    )
    found = to_arrow(aggregated)
    taken = {name: frozenset(found[f"t{at}"][0].as_py()) for at, name in enumerate(integers)}
    values = {}
    for at, dim in enumerate(wanted):
        if found[f"n{at}"][0].as_py():
            raise InvalidInputError(
                f"column {dim!r} has null in a row, expected a coordinate; drop those rows"
            )
        values[dim] = sorted_keys(dim, found[f"v{at}"].combine_chunks().flatten(), request)
    return values, taken


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


# -- Rows that belong before the last coordinate, and rows put together by block.

LATE = ("fail", "insert", "quarantine")
LATE_ROWS = f"{LEDGER_GROUP}/late_rows"
ROW = "row"

Values = Mapping[str, pa.Array]
"""The distinct values of the rows, by dimension."""


def check_late(late: Any) -> None:
    """Refuse what is no way to treat late rows."""
    if late not in LATE:
        raise InvalidInputError(f"late is {late!r:.80}, expected one of {', '.join(LATE)}")


def find_late(session: Session, request: RowsRequest, values: Values) -> dict[str, pa.Array]:
    """The values that are no coordinates and lie before the last one, by dimension."""
    arrays = table_arrays.stored_arrays(session, request.group)
    found = {}
    for dim in request.dims:
        if dim not in arrays or request.mode != "append":
            continue
        keys, encoder = table_arrays.locate_axis(arrays, request, dim)
        if not len(keys):
            continue
        new = table_arrays.new_keys(dim, keys, encoder, values[dim])
        is_late = (pc.greater if table_arrays.is_falling(keys) else pc.less)(new, keys[-1])
        late = pc.unique(new.filter(is_late))
        if len(late):
            found[dim] = late
    return found


def insert_late(
    spark: SparkSession,
    repository: Repository,
    session: Session,
    request: RowsRequest,
    late: Mapping[str, pa.Array],
) -> None:
    """Make room for late coordinates in all arrays of the group, and write the coordinates."""
    arrays = table_arrays.stored_arrays(session, request.group)
    axes = {dim: _room(arrays, request, dim, values) for dim, values in late.items()}
    rooms = []
    for name, array in arrays.items():
        names = dimension_names(array)
        own = {at: axes[dim] for at, dim in enumerate(names) if dim in axes}
        if own:
            target = f"{request.group}/{name}".strip("/")
            shape = [len(own[at].values) if at in own else n for at, n in enumerate(array.shape)]
            document = {**read_document(session.store, target), "shape": shape}
            rooms.append(ArrayRoom(target, document, array.shape, own))
    reserve_arrays(session, rooms)
    base = repository.readonly_session(snapshot_id=session.snapshot_id).store
    move_blocks(spark, session, base, moves_of_arrays(rooms))
    for dim, axis in axes.items():
        path = f"{request.group}/{dim}".strip("/")
        zarr.open_array(session.store, path=path, mode="r+")[:] = axis.values


def _room(arrays: Any, request: RowsRequest, dim: str, late: pa.Array) -> AxisRoom:
    keys, encoder = table_arrays.locate_axis(arrays, request, dim)
    union = pa.concat_arrays([keys, late])
    order = "descending" if table_arrays.is_falling(keys) else "ascending"
    ranks = pc.sort_indices(union, sort_keys=[("", order)])
    positions = np.empty(len(union), np.int64)
    positions[np.asarray(ranks)] = np.arange(len(union))
    old = positions[: len(keys)]
    if bool((np.diff(old) < 0).any()):
        raise InvalidInputError(
            f"the coordinates of {dim!r} are in no order, so that late rows have no place among "
            "them; give late='quarantine', or write the array again"
        )
    return AxisRoom(old, encoder.encode(union.take(ranks)))


def split_rows(df: DataFrame, late: Mapping[str, pa.Array]) -> tuple[DataFrame, DataFrame]:
    """The rows that can be located, and those that are late along any dimension."""
    return (
        map_batches(df, partial(_chosen, dict(late), False), df.schema),
        map_batches(df, partial(_chosen, dict(late), True), df.schema),
    )


def _chosen(
    late: Mapping[str, pa.Array], wants_late: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        is_late = pa.array(np.zeros(batch.num_rows, bool))
        for dim, values in late.items():
            keys = table_arrays.as_keys(dim, batch.column(dim), values.type)
            is_late = pc.or_(is_late, pc.is_in(keys, value_set=values))
        yield batch.filter(is_late if wants_late else pc.invert(is_late))


def numbered(rows: DataFrame, first: int) -> DataFrame:
    """Rows with consecutive numbers from `first` on."""
    order = Window.orderBy(sf.monotonically_increasing_id())
    return rows.withColumn(ROW, (sf.row_number().over(order) + sf.lit(first - 1)).cast("bigint"))


def sorted_keys(dim: str, column: pa.Array, request: RowsRequest) -> pa.Array:
    """Distinct values in the order in which new coordinates are stored."""
    keys = pc.unique(table_arrays.as_keys(dim, column, table_arrays.key_type(request.types[dim])))
    table_arrays.check_present(dim, keys)
    return keys.take(pc.sort_indices(keys))


def whole_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Rows sorted by block, put together: each block once, with all its rows."""
    held: list[pa.RecordBatch] = []
    current = -1
    for batch in batches:
        blocks = np.asarray(batch.column(BLOCK))
        if not len(blocks):
            continue
        starts = np.flatnonzero(np.diff(blocks, prepend=blocks[0] - 1))
        for start, stop in zip(starts, [*starts[1:], len(blocks)], strict=True):
            number = int(blocks[start])
            if number != current and held:
                yield current, pa.Table.from_batches(held)
                held = []
            current = number
            held.append(batch.slice(int(start), int(stop - start)))
    if held:
        yield current, pa.Table.from_batches(held)


# -- Streams.

_TRIES = 10
Written = TypeVar("Written")


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

    >>> folder = Path("days").resolve().as_uri()
    >>> days = spark.readStream.schema("day long, t2m double").json(folder)
    >>> query = icefloe.spark.write_stream(
    ...     days,
    ...     repo,
    ...     checkpoint=Path("seen").resolve().as_uri(),
    ...     group="station",
    ...     dims=["day"],
    ...     variables=["t2m"],
    ... ).trigger(availableNow=True).start()
    >>> query.awaitTermination()
    """
    if not getattr(df, "isStreaming", False):
        raise InvalidInputError("df is not a stream; write it with icefloe.spark.write_table")
    given: Any = checkpoint
    if not isinstance(given, str) or not given:
        raise InvalidInputError(f"checkpoint is {given!r:.80}, expected the URL of a folder")
    columns = arrow_columns(df, dims, variables)
    check_late(late)
    table_arrays.table_request(columns, group, dims, variables, chunks, "append")
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


class Batches(NamedTuple):
    """Where the batches of a stream go.

    The data source `icefloe` does the same for whoever can only name a format. It gets no say in
    how rows are spread over tasks, so that its commit has to put them together on the driver's
    host.
    """

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
                options = {"mode": "append", "transaction": (app, number), **self.options}
                on_top(partial(write_table, rows, self.repository, **options))
        finally:
            rows.unpersist()


def on_top(write: Callable[[], Written]) -> Written:
    """Write; if others commit to the branch meanwhile, write again, on top of what they left."""
    for _ in range(_TRIES - 1):
        with suppress(ConflictError):
            return write()
    return write()
