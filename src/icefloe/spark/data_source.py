"""`format("icefloe")`: the Python data source for reading, writing and streams."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import __version__ as spark_version

try:
    from pyspark.sql import datasource
except ImportError as error:
    raise ImportError(
        f'format("icefloe") needs Spark 4.0 or newer, and pyspark is {spark_version}: use '
        "icefloe.spark.read, table, attach, write_table and write_stream"
    ) from error
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructField, StructType

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import InvalidInputError
from icefloe.format.columns import pack_table, unpack_table
from icefloe.ids import ChunkId
from icefloe.scans.chunk_rows import plan_read
from icefloe.scans.metadata_rows import Commit, find_commits, read_commits
from icefloe.scans.metadata_tables import TABLES, check_ref, check_table, plan_table
from icefloe.scans.scan import (
    KNOWN_OPTIONS,
    REF_OPTIONS,
    PinnedSnapshot,
    ReadOptions,
    Scan,
    as_repository,
    listed,
    options_from_text,
    pin,
    pin_options,
    truth,
)
from icefloe.spark import table_arrays
from icefloe.spark.shared_write import BatchId, app_of
from icefloe.spark.table_arrays import BLOCK, RowGrid, RowsRequest, Taken
from icefloe.spark.table_writer import on_top, sorted_keys, whole_blocks
from icefloe.spark.tasks import Batches, be_quiet_about_pipes, prepare_worker
from icefloe.spark.versions import arrow_schema, spark_schema
from icefloe.storage.driver import Span
from icefloe.storage.run import run_blocking

# -- Changes as a stream: `spark.readStream.format("icefloe").option("table", "changes")`.
#
# An offset is a snapshot of the branch; a micro-batch has the commits between two of them, each
# exactly once. `start-snapshot` is where a new query begins: after that snapshot, `latest` for
# what is committed from now on, or (unless given) the whole history.


_KEY = "snapshot"
_BEFORE_ALL = ""
_COMMITS_PER_PARTITION = 16


class ChangeStreamReader(DataSourceStreamReader):
    """Follows one branch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        for name in ("tag", "snapshot", "as-of"):
            if name in options:
                raise InvalidInputError(f"a stream follows a branch; {name} cannot be given")
        self._url = options.get("path", "")
        self._branch = options.get("branch", "main")
        self._start = options.get("start-snapshot", _BEFORE_ALL)
        limit = options.get("max-commits-per-trigger")
        if limit is not None and (not limit.isdecimal() or int(limit) < 1):
            raise InvalidInputError(
                f"max-commits-per-trigger is {limit!r}, expected a number from 1 on"
            )
        self._limit = None if limit is None else int(limit)
        # Tells at once if there is no such repository or branch, and carries what tasks need.
        self._source: PinnedSnapshot = pin(as_repository(self._url), branch=self._branch)
        if self._start not in (_BEFORE_ALL, "latest"):
            find_commits(self._repository(), self._start, self._source.snapshot_id)

    def _repository(self) -> Repository:
        return self._source.open_repository()

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Where a new query starts."""
        if self._start == "latest":
            return {_KEY: self._repository().lookup_branch(self._branch)}
        return {_KEY: self._start}

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, str] | None = None, limit: Any = None
    ) -> dict[str, str]:
        """The tip of the branch, or a commit on the way to it; Spark before 4.2 has no `start`."""
        tip = self._repository().lookup_branch(self._branch)
        if start is None or self._limit is None or type(limit).__name__ == "ReadAllAvailable":
            return {_KEY: tip}
        commits = find_commits(self._repository(), start[_KEY] or None, tip)
        return {_KEY: commits[: self._limit][-1].id.text} if commits else start

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Asks Spark (4.2 and newer) to respect `max-commits-per-trigger`."""
        if self._limit is None:
            return super().getDefaultReadLimit()
        from pyspark.sql.streaming.datasource import ReadMaxFiles

        return ReadMaxFiles(self._limit)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """The commits between two offsets, in groups."""
        if start[_KEY] == end[_KEY]:
            return []
        commits = find_commits(self._repository(), start[_KEY] or None, end[_KEY])
        return [
            InputPartition(tuple(commits[first : first + _COMMITS_PER_PARTITION]))
            for first in range(0, len(commits), _COMMITS_PER_PARTITION)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        commits: Sequence[Commit] = partition.value or ()
        yield from read_commits(self._source, commits)


# -- Rows of one chunk that arrive in many tasks: set aside as pieces, put together at the end.
#
# Spark's data sources bring no rows together, and the coordinates of new cells are known only
# when every task has seen its rows. So tasks store their rows as compressed Arrow in objects
# under `chunks/`, with ids of their own; no snapshot ever refers to them, and the garbage
# collector takes them away. The commit reads them again, as many blocks at a time as fit a fixed
# amount of memory. Tasks sort their rows and cut them into small pieces, each with the
# coordinates it has: so the commit reads what belongs to its blocks, and not everything for each
# of them.


OBJECT_BYTES = 64 << 20
PIECE_BYTES = 2 << 20
ASSEMBLY_BYTES = 32 << 20
_IN_MESSAGE_BYTES = 64 << 10  # a smaller piece travels in the message of its task
_PIECES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that one task has set aside, and which coordinates they have."""

    key: str
    span: Span
    data: bytes | None
    """The rows themselves, when they are few; otherwise they are in the object `key`."""
    values: Mapping[str, pa.Array]
    taken: Taken

    def table(self, data: Any) -> pa.Table:
        """The rows, from what was fetched of them."""
        return unpack_table(pa.py_buffer(data))


def read_pieces(repository: Repository, pieces: Sequence[Piece]) -> Iterator[pa.Table]:
    """The rows of pieces, some of which are fetched at once."""
    driver = repository.handle.driver
    for first in range(0, len(pieces), _PIECES_AT_ONCE):
        some = pieces[first : first + _PIECES_AT_ONCE]
        stored = [piece for piece in some if piece.data is None]
        wanted = [(piece.key, piece.span) for piece in stored]
        fetched = iter(run_blocking(driver.get_many(wanted)))
        for piece in some:
            yield piece.table(next(fetched) if piece.data is None else piece.data)


def stage(repository: Repository, request: RowsRequest, batches: Batches) -> list[Piece]:
    """Set rows aside; when this returns they are safe."""
    pieces: list[Piece] = []
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        chosen = batch.select(list(request.columns))
        held.append(chosen)
        size += chosen.nbytes
        if size >= OBJECT_BYTES:
            pieces += _pieces(repository, request, held)
            held, size = [], 0
    if sum(batch.num_rows for batch in held):
        pieces += _pieces(repository, request, held)
    run_blocking(repository.handle.driver.sync())
    return pieces


def _pieces(
    repository: Repository, request: RowsRequest, batches: Sequence[pa.RecordBatch]
) -> list[Piece]:
    """Rows in the order of their coordinates, cut into pieces, all of them in one object."""
    table = _sorted(pa.Table.from_batches(batches), request)
    step = max(1, table.num_rows * PIECE_BYTES // max(table.nbytes, 1))
    parts = [table.slice(start, step) for start in range(0, table.num_rows, step)]
    packed = [pack_table(part) for part in parts]
    handle = repository.handle
    is_small = sum(map(len, packed)) <= _IN_MESSAGE_BYTES
    key = "" if is_small else handle.assets.chunk_key(handle.new_id(ChunkId))
    if not is_small:
        run_blocking(handle.driver.put(key, b"".join(packed)))
    starts = accumulate(map(len, packed), initial=0)
    return [
        Piece(
            key,
            Span(start, len(data)),
            data if is_small else None,
            {dim: sorted_keys(dim, pc.unique(part[dim]), request) for dim in request.dims},
            table_arrays.taken_of(part, request),
        )
        for part, data, start in zip(parts, packed, starts, strict=False)
    ]


def _sorted(table: pa.Table, request: RowsRequest) -> pa.Table:
    """Rows in the order of their coordinates; Arrow takes four times as long for several keys."""
    place = np.zeros(table.num_rows, np.int64)
    for dim in request.dims:
        column = table_arrays.combined(table[dim])
        table_arrays.check_present(dim, column)
        coded = column.dictionary_encode()
        rank = np.empty(len(coded.dictionary), np.int64)
        rank[pc.sort_indices(coded.dictionary)] = np.arange(len(rank))
        place = place * len(rank) + rank[coded.indices]
    return table.take(pa.array(np.argsort(place, kind="stable")))


def joined(many: Sequence[Taken]) -> Taken:
    """What the columns of several tables have together."""
    names = {name for taken in many for name in taken}
    return {
        name: frozenset().union(*(taken.get(name, frozenset()) for taken in many)) for name in names
    }


def commit_pieces(
    repository: Repository,
    branch: str,
    request: RowsRequest,
    pieces: Sequence[Piece],
    message: str,
    batch: BatchId | None = None,
) -> str | None:
    """Put all pieces into arrays, in one commit; None if that was done before or there are no rows.

    If others commit to the branch meanwhile, the rows are put on top of what they left.
    """
    if not pieces:
        if request.mode == "overwrite":
            raise InvalidInputError(
                f"the table has no rows; there is nothing to replace {request.variables} with"
            )
        return None

    def write() -> str | None:
        session = repository.writable_session(branch)
        if batch is not None and batch.find(repository, session.snapshot_id) is not None:
            return None
        assemble(repository, session, request, pieces)
        metadata = None if batch is None else batch.metadata
        return session.commit(message, metadata, allow_empty=True)

    return on_top(write)


def assemble(
    repository: Repository,
    session: Session,
    request: RowsRequest,
    pieces: Sequence[Piece],
    memory: int = ASSEMBLY_BYTES,
) -> None:
    """Write the rows of all pieces into a session, some blocks at a time."""
    values = {}
    for dim in request.dims:
        found = pa.concat_arrays([piece.values[dim] for piece in pieces])
        values[dim] = sorted_keys(dim, found, request)
    taken = joined([piece.taken for piece in pieces])
    grid = table_arrays.prepare(session, request, {**values, **request.coordinates}, taken)
    touched = [_blocks_touched(grid, piece) for piece in pieces]
    size = math.prod(grid.grid.chunks) * (grid.grid.itemsize + 8)  # the number of the cell as well
    many = max(1, memory // max(size, 1))
    all_blocks = np.unique(np.concatenate(touched))
    for start in range(0, len(all_blocks), many):
        blocks = all_blocks[start : start + many]
        here = [
            piece
            for piece, candidates in zip(pieces, touched, strict=True)
            if len(np.intersect1d(candidates, blocks, assume_unique=True))
        ]
        tables = []
        for found in read_pieces(repository, here):
            rows = grid.locate(found)
            is_here = np.isin(np.asarray(rows[BLOCK]), blocks)
            tables.append(rows.filter(pa.array(is_here)))
        rows = pa.concat_tables(tables).sort_by(BLOCK)
        for block, part in whole_blocks(rows.to_batches()):
            grid.write_block(session, block, part)


def _blocks_touched(grid: RowGrid, piece: Piece) -> NDArray[np.int64]:
    """The blocks that may have a row of a piece, sorted."""
    along = [
        np.unique(axis.locate(piece.values[axis.name]) // step)
        for axis, step in zip(grid.axes, grid.grid.chunks, strict=True)
    ]
    return np.ravel_multi_index(np.ix_(*along), grid.blocks).reshape(-1).astype(np.int64)


# -- `df.write.format("icefloe")`: the writer of the data source.
#
# Options: `dims` and `variables`, names of columns separated by commas; `chunks`, either a length
# for each dimension (`24,100,100`) or some by name (`time=24`); `group`, `branch`, `message`. The
# modes `append` and `overwrite` mean what they mean in `write_table`, which is the better choice
# where it can be used: it writes in all tasks at once.


WRITE_OPTIONS = ("group", "branch", "dims", "variables", "chunks", "message")
_WRITER_OPTIONS = ("path", "checkpointlocation")


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
        repository = self.source.open_repository()
        pieces = [piece for staged in messages if staged is not None for piece in staged.pieces]
        commit_pieces(repository, self.branch, self.request, pieces, self.message, batch)


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
        if key.lower() not in known and key.lower() not in _WRITER_OPTIONS:
            raise InvalidInputError(
                f"unknown option {key!r} for writing; options are {', '.join(sorted(known))}"
            )
    for key in ("dims", "variables"):
        if not options.get(key):
            raise InvalidInputError(
                f"option {key} is missing, expected names of columns separated by commas"
            )
    columns: Any = arrow_schema(schema)
    request = table_arrays.table_request(
        columns,
        options.get("group", ""),
        listed(options["dims"]),
        listed(options["variables"]),
        _chunks(options.get("chunks")),
        "overwrite" if overwrite else "append",
    )
    repository = as_repository(url)
    branch = options.get("branch", "main")
    source = pin(repository, branch=branch)
    request = table_arrays.check_target(source.open(), request)
    message = options.get("message") or f"write {', '.join(request.variables)} to {request.group}"
    return RowsTarget(source, branch, request, message)


def _chunks(text: str | None) -> dict[str, int] | list[int] | None:
    if not text:
        return None
    parts = listed(text)
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


# -- `df.writeStream.format("icefloe")`: every micro-batch in the repository exactly once.
#
# Options are those of the batch writer, and `app-id`: the name under which batches are numbered.
# Unless given, it is the id of the query, which Spark keeps in the checkpoint: a query that
# starts with a new checkpoint counts its batches from 0 again, and is another one. A batch is one
# commit, which says its number. Spark repeats a batch when it was stopped before it noted the
# batch as done; the commit is then found in the history of the branch, and the repetition is
# dropped.


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


# -- The data source `icefloe`: read, written, and both as streams.
#
# Spark runs `schema`, `partitions` and `read` in different processes, so a reader carries all it
# needs: the scan, with the snapshot pinned when the query was planned.
#
# Options: the URL is given to `load`; `branch`, `tag`, `snapshot` or `as-of`; `group`,
# `variables`, `dims`, `columns`, `layout`, `where`, `missing`, `decode`, `split-size`, `min-
# partitions` as in `icefloe.spark.read`; `table` for a table of metadata, with `start-snapshot`
# for `changes`, and `max-commits-per-trigger` in a stream. Options for writing are listed above.
# Credentials come from the environment; options are shown in plans.
#
# No reader has `pushFilters`. Spark 4.1 to 4.3 keep what a source makes of one query's filters,
# and give it to all queries of the same frame: rows would be missing. Conditions that spare
# chunks go into the option `where`. The option `pushdown` is accepted and does nothing.


be_quiet_about_pipes()  # at import: the processes that find a source and plan run no task

# What Spark adds by itself when a table is created in SQL.
_SPARK_OPTIONS = ("path", "provider", "owner", "location", "serialization.format")
_CARRIED = "icefloe.options"
_TABLE_OPTIONS = ("start-snapshot", "max-commits-per-trigger")
_OWN_OPTIONS = frozenset((*REF_OPTIONS, *KNOWN_OPTIONS, "table", "pushdown", *_TABLE_OPTIONS))


class IcefloeDataSource(DataSource):
    """Arrays and metadata of a repository as tables."""

    @classmethod
    def name(cls) -> str:
        return "icefloe"

    def schema(self) -> StructType:
        check_options(self.options)
        if truth("pushdown", self.options.get("pushdown", "false")):
            warnings.warn(
                "option pushdown of the icefloe data source does nothing, because Spark would use "
                "the filters of one query for others; conditions in the option where spare chunks",
                stacklevel=2,
            )
        source = pin_options(self.options)
        if "table" in self.options:
            check_table(self.options["table"])
            found = spark_schema(TABLES[self.options["table"]])
        else:
            found = spark_schema(plan_read(source, options_from_text(self.options)).schema)
        return with_options(found, self.options) if "provider" in self.options else found

    def reader(self, schema: StructType) -> DataSourceReader:
        given = {**options_in(schema), **self.options}
        check_options(given)
        source = pin_options(given)
        options = options_from_text(given)
        if "table" not in given and options.layout == "cells":
            # A schema given by the user chooses columns; Spark has no other way to say so.
            options = replace(options, columns=tuple(schema.names))
        return ScanReader(plan_options(source, given, options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if self.options.get("table") != "changes":
            raise InvalidInputError(
                "arrays cannot be read as a stream; give option table=changes for what commits did"
            )
        return ChangeStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RowsWriter(target_of(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        sink: DataSourceStreamWriter = StreamSink(self.options, schema, overwrite=overwrite)
        return sink


class ScanReader(DataSourceReader):
    """Reads a scan, which is made at once: Spark pickles a reader before it asks for partitions."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        check_schema(schema, scan)
        self._scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._scan.num_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        if partition.value is not None:  # which stands for an empty list of partitions
            yield from self._scan.read(partition.value)


def plan_options(source: PinnedSnapshot, given: Mapping[str, str], options: ReadOptions) -> Scan:
    """The scan that options ask for."""
    if "table" not in given:
        return plan_read(source, options)
    name, start = given["table"], given.get("start-snapshot")
    check_table(name)
    refs = {key: given[key] for key in (*REF_OPTIONS, "start-snapshot") if key in given}
    check_ref(name, refs)
    branch = given.get("branch") or (None if refs.keys() & {"tag", "snapshot"} else "main")
    return plan_table(source, name, branch, start=start, min_partitions=options.min_partitions)


def check_options(options: Mapping[str, str]) -> None:
    """Refuse options that are not known, which would otherwise be misspelt in silence.

    A table that SQL has created brings its properties along; its options are those that come a
    second time, as `option.name`.
    """
    names = [key.lower() for key in options]
    if "provider" in options:  # SQL is creating a table
        names = [name.removeprefix("option.") for name in names if name.startswith("option.")]
    for key in names:
        if key not in _OWN_OPTIONS and key not in _SPARK_OPTIONS:
            raise InvalidInputError(
                f"unknown option {key!r} of the icefloe data source; options are "
                f"{', '.join(sorted(_OWN_OPTIONS))}"
            )


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A schema whose columns carry the options of a table.

    A table that SQL has created is read without them: Spark keeps the schema, and hands that on.
    """
    own = {key: options[key] for key in (*sorted(_OWN_OPTIONS), "path") if key in options}
    fields = [
        StructField(field.name, field.dataType, field.nullable, {_CARRIED: json.dumps(own)})
        for field in schema
    ]
    return StructType(fields)


def options_in(schema: StructType) -> dict[str, str]:
    """The options that a schema carries, if it is that of a table that SQL has created."""
    texts = [field.metadata.get(_CARRIED) for field in schema if field.metadata]
    found: dict[str, str] = json.loads(texts[0]) if texts and texts[0] else {}
    return found


def check_schema(wanted: StructType, scan: Scan) -> None:
    """A schema given by the user has to have the columns' own types."""
    found = {field.name: field.dataType for field in spark_schema(scan.schema)}
    for field in wanted:
        if field.name not in found:
            raise InvalidInputError(
                f"no column {field.name!r}; columns are {', '.join(map(repr, found))}"
            )
        if found[field.name] != field.dataType:
            raise InvalidInputError(
                f"column {field.name!r} is {found[field.name].simpleString()}, the schema says "
                f"{field.dataType.simpleString()}; give that, and cast afterwards"
            )
