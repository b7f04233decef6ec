"""Datasets on Spark: labelled blocks that executors compute, written as the next version."""

from __future__ import annotations

import atexit
import itertools
import math
import secrets
import time
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xarray as xr
import zarr
from pyspark.sql import DataFrame, SparkSession

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.blocks import plan
from icefloe.blocks.changes import recorded_places
from icefloe.blocks.dataset import BlockDataset
from icefloe.blocks.expressions import (
    ArraySource,
    Expression,
    open_source,
    sources_of,
    stored_dataset,
)
from icefloe.blocks.fingerprints import fingerprint
from icefloe.blocks.layout import (
    Edges,
    Grid,
    Layout,
    box_of,
    is_aligned,
    longest,
    regular_edges,
    step_of,
)
from icefloe.blocks.stages import DEFAULT_MEMORY, Piece, Stage, rechunk
from icefloe.changes.conflicts import ConflictSolver
from icefloe.changes.splits import ChunkSpan
from icefloe.errors import InvalidInputError
from icefloe.geometry import Region
from icefloe.interop.xarray_objects import create_arrays
from icefloe.repo.commit_notes import DERIVED
from icefloe.scans.scan import ROWS_PER_BATCH, PinnedSnapshot, as_repository, pin
from icefloe.spark import shared_write
from icefloe.spark.dataset_writer import ShownWrite, chunks_in, stored_chunks, write_dataset_region
from icefloe.spark.readers import check_session
from icefloe.spark.shared_write import BatchId, SharedWrite, TaskSide, share
from icefloe.spark.tasks import (
    Batches,
    collect_repeatable,
    map_batches,
    usual_tasks,
)
from icefloe.spark.versions import spark_schema
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage

_BATCH_BYTES = 32 << 20
"""Bytes of pieces that Spark hands to a task at once."""
_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_DRAIN_BYTES = 64 << 20
"""Bytes of blocks after which a task returns the references it made."""
_KEPT = (
    *("chunks", "shards", "compressors", "filters", "serializer"),
    *("dtype", "scale_factor", "add_offset", "_FillValue", "units", "calendar"),
)
"""What a full refresh keeps of the encoding of stored variables."""
_SCRATCH = "icefloe/scratch"
_SCRATCH_AGE = timedelta(days=2)
"""Scratch of jobs that began before that was left by a driver that died."""


# -- The engine


class SparkEngine:
    """Runs the plans of blocks as Spark jobs, pieces through Spark's shuffle."""

    def __init__(self, spark: SparkSession, storage: Storage, num_tasks: int | None = None) -> None:
        self.spark = spark
        self.storage = storage
        self.num_tasks = num_tasks
        self._job = new_job()
        self._scratches = 0
        self._records = 10_000

    def at(self, storage: Storage) -> SparkEngine:
        """This engine, with scratch blocks in another storage."""
        return SparkEngine(self.spark, storage, self.num_tasks)

    def start(self, items: Sequence[int], work: plan.Work, schema: Any) -> DataFrame:
        """Tasks that work on runs of items."""
        tasks = max(1, min(len(items), self.num_tasks or usual_tasks(self.spark)))
        numbers = self.spark.range(0, len(items), 1, tasks)
        return map_batches(numbers, partial(_start_task, items, work), schema)

    def shuffle(
        self, pieces: DataFrame, work: plan.Finish, stage: Stage, keys: int, schema: Any
    ) -> DataFrame:
        """Tasks that get all pieces of some keys, in order."""
        self._records = min(self._records, max(1, _BATCH_BYTES // max(stage.piece_bytes, 1)))
        tasks = max(1, min(keys, 4 * (self.num_tasks or usual_tasks(self.spark))))
        together = pieces.repartition(tasks, "key").sortWithinPartitions("key", "ord")
        return map_batches(together, partial(_finish_task, work), schema)

    def pieces(self, rows: DataFrame) -> Iterator[Piece]:
        """Run the job, whose rows are pieces."""
        with self.bounded_batches():
            table = collect_repeatable(rows)
        columns = [table[name].to_pylist() for name in ("key", "ord", "data")]
        return itertools.starmap(Piece, zip(*columns, strict=True))

    @contextmanager
    def bounded_batches(self) -> Iterator[None]:
        """While a job runs: no more rows in a batch than fit into its memory."""
        before = str(self.spark.conf.get(_RECORDS))
        self.spark.conf.set(_RECORDS, str(min(self._records, int(before))))
        try:
            yield
        finally:
            self.spark.conf.set(_RECORDS, before)

    def scratch(self) -> plan.Scratch:
        """A folder of this job below the repository, outside of what collections list."""
        if not self.storage.driver(blocking=True).can_write:
            raise InvalidInputError(
                f"{self.storage.url} can only be read, and some blocks of this result have to wait "
                "there: give open_dataset scratch=, a storage that can be written to"
            )
        self._scratches += 1
        return plan.Scratch(self.storage, f"{_SCRATCH}/{self._job}/{self._scratches}")

    def hold(self) -> None:
        """Keep the scratch that a DataFrame reads until this process ends."""
        if self._scratches:
            atexit.register(self._delete, self._job)
            self._job, self._scratches = new_job(), 0

    def clean(self) -> None:
        """Delete the scratch of this job, and what drivers that died left long ago."""
        if self._scratches:
            self._delete(self._job)
            self._scratches = 0

    def _delete(self, own: str) -> None:
        driver = self.storage.driver(blocking=True)
        oldest = f"{datetime.now(UTC) - _SCRATCH_AGE:%Y%m%dT%H%M%S}"
        names = [info.key for info in run_blocking(driver.list(f"{_SCRATCH}/"))]
        jobs = {name: name.removeprefix(f"{_SCRATCH}/").partition("/")[0] for name in names}
        gone = [name for name, job in jobs.items() if job == own or job < oldest]
        run_blocking(driver.delete_many(gone))


def new_job() -> str:
    """A name for the scratch of a job, by which old ones are told."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def _start_task(items: Sequence[int], work: plan.Work, batches: Batches) -> Iterator[Any]:
    numbers = (items[at] for batch in batches for at in batch.column(0).to_pylist())
    return _as_batches(work(numbers))


def _finish_task(work: plan.Finish, batches: Batches) -> Iterator[Any]:
    rows = (
        (key, data)
        for batch in batches
        for key, data in zip(batch.column(0).to_pylist(), batch.column(2), strict=True)
    )
    groups = itertools.groupby(rows, lambda row: row[0])
    return _as_batches(
        work((key, (data.as_buffer() for _, data in group)) for key, group in groups)
    )


def _as_batches(rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Pieces as batches of a few megabytes; batches as they are."""
    waiting: list[Piece] = []
    size = 0
    for row in rows:
        if not isinstance(row, Piece):
            yield row
            continue
        waiting.append(row)
        size += len(row.data)
        if size >= _BATCH_BYTES // 4 or len(waiting) >= 4096:
            yield _batch(waiting)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting)


def _batch(pieces: Sequence[Piece]) -> pa.RecordBatch:
    columns = zip(*pieces, strict=True)
    return pa.record_batch([*map(pa.array, columns)], ["key", "ord", "data"])


# -- Datasets


def open_dataset(
    spark: SparkSession,
    repository: Repository | str,
    *,
    group: str = "",
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    chunks: Mapping[str, Any] | int | None = None,
    variables: Sequence[str] | None = None,
    memory: int = DEFAULT_MEMORY,
    num_tasks: int | None = None,
    scratch: Storage | None = None,
) -> SparkDataset:
    """A group as a lazy dataset whose blocks executors compute, at the snapshot of a ref.

    Args:
        spark: the session; `icefloe.spark.session()` makes one.
        repository: a `Repository`, or its URL.
        group: the path of the group; the root unless given.
        branch: `main` unless another ref is given.
        tag: the version, instead of a branch.
        snapshot_id: the version, instead of a branch.
        as_of: with a branch, its newest snapshot at that time.
        chunks: the lengths of blocks by dimension, -1 for one block; the stored chunks unless
            given. Blocks that cut stored chunks are made by a shuffle.
        variables: which variables to read; all unless given.
        memory: bytes of values that a task may hold.
        num_tasks: how many tasks read or compute; four for each core unless given.
        scratch: where `to_xarray` and `to_dataframe` keep blocks that several steps need; in the
            repository unless given. `write` and `refresh` keep them in the one they write to.

    >>> dataset = icefloe.spark.open_dataset(spark, repo, tag="v1", chunks={"time": 2})
    >>> dataset.chunks["time"]
    (2, 2)
    """
    check_session(spark)
    opened = as_repository(repository)
    if memory < 1 << 20:
        raise InvalidInputError(f"memory is {memory!r}, expected bytes, 1 MB or more")
    source = pin(opened, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    expression, grid = open_source(source, group.strip("/"), variables, chunks)
    engine = SparkEngine(spark, scratch or opened.storage, num_tasks)
    return SparkDataset(rechunk(expression, grid, memory), engine, memory)


class SparkDataset(BlockDataset["SparkDataset"]):
    """A lazy dataset on Spark; see `open_dataset`.

    >>> dataset = icefloe.spark.open_dataset(spark, repo)
    >>> dataset["t2m"].mean("time").to_xarray()["t2m"].shape
    (8, 8)
    """

    engine: SparkEngine

    def to_xarray(self) -> xr.Dataset:
        """Compute everything, as a Dataset in memory; for results that fit there.

        >>> float(dataset.max().to_xarray()["t2m"])
        281.0
        """
        try:
            return super().to_xarray()
        finally:
            self.engine.clean()

    def to_dataframe(self) -> DataFrame:
        """One row for each cell, with its coordinates and variables as columns, for SQL.

        Variables without a dimension repeat along it. Missing values are null. Times of calendars
        without real dates are text such as `2001-02-30T00:00:00`.

        >>> dataset.to_dataframe().where("t2m > 280.5").count()
        64
        """
        layout = self.expression.layout
        schema = cell_schema(layout)
        sink = partial(_cells, layout, schema)
        try:
            rows: DataFrame = plan.run(self.engine, self.expression, sink, spark_schema(schema))
        except BaseException:
            self.engine.clean()
            raise
        self.engine.hold()
        return rows

    def write(
        self,
        repository: Repository | str,
        *,
        group: str = "",
        branch: str = "main",
        mode: Literal["create", "append", "region"] = "create",
        append_dim: str | None = None,
        region: Mapping[str, slice] | None = None,
        encoding: Mapping[str, Mapping[str, Any]] | None = None,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        transaction: tuple[str, int] | None = None,
    ) -> BlocksReport:
        """Compute the blocks and write them, in one commit.

        The commit's metadata names the snapshots that the result was computed from. A chunk is one
        block unless `encoding` says otherwise.

        Args:
            repository: a `Repository`, or its URL.
            group: the path of the group; the root unless given.
            branch: the branch to commit to.
            mode: `create` makes new arrays, `append` lengthens arrays along `append_dim`, `region`
                writes into a part of arrays.
            append_dim: the dimension to append along.
            region: slices by dimension.
            encoding: for each variable, as in `Dataset.to_zarr`.
            message: of the commit.
            metadata: of the commit, besides the lineage.
            rebase_with: decides conflicts with commits of others.
            transaction: the name of an application and the number of this write; a number that the
                branch already has is not written again.

        Raises:
            ConflictError: others committed to the branch, and `rebase_with` was not given.

        >>> report = dataset.mean("time").write(repo, group="mean", message="Mean of four days")
        >>> report.blocks
        1
        """
        target = as_repository(repository)
        batch = BatchId.of(transaction)
        started = time.monotonic()
        _check_mode(mode, append_dim, region, self.sizes)
        session = target.writable_session(branch)
        if batch is not None:
            known = batch.find(target, session.snapshot_id)
            if known is not None:
                return BlocksReport(known, 0, 0, 0, 0.0)
        written = self
        if region is not None:  # coordinates beside the region stay as they are
            beside = [name for name, at in self.coords.items() if not {*at.dims} & {*region}]
            written = self.drop_vars(beside) if beside else self
        how = Target(session, group.strip("/"), mode, append_dim, region)
        expression = how.prepare(written.expression, encoding or {}, self.memory)
        counts = write_blocks(self.engine.at(target.storage), expression, how, None)
        text = message or f"write {', '.join(self.data_vars)} to /{group.strip('/')}"
        about = {**(metadata or {}), **lineage(self.expression, group, batch)}
        snapshot_id = session.commit(text, about, rebase_with=rebase_with)
        blocks, seconds = expression.layout.num_blocks, time.monotonic() - started
        return BlocksReport(snapshot_id, blocks, counts.chunks, counts.bytes, seconds)


@dataclass(frozen=True, slots=True, repr=False)
class BlocksReport(ShownWrite):
    """What a write of blocks did. No blocks: the branch had this transaction already."""

    snapshot_id: str
    blocks: int
    chunks_written: int
    bytes_written: int
    seconds: float


def cell_schema(layout: Layout) -> pa.Schema:
    """The columns of a dataset's cells: dimensions first, then coordinates, then variables."""
    template = layout.template
    rest = [*template.coords, *template.data_vars]
    names = [*layout.dims, *(str(name) for name in rest if name not in layout.dims)]
    return pa.schema([pa.field(name, _cell_type(template, name)) for name in names])


def _cell_type(template: xr.Dataset, name: str) -> pa.DataType:
    if name not in template.variables:
        return pa.int64()  # a dimension without labels
    dtype = template[name].dtype
    known: dict[str, pa.DataType] = {
        "M": pa.timestamp("us"),
        "m": pa.duration("us"),
        "U": pa.string(),
        "T": pa.string(),
        "O": pa.string(),
        "S": pa.binary(),
    }
    wider = {"u1": "int16", "u2": "int32", "u4": "int64", "f2": "float32"}
    if dtype.kind in known:
        return known[dtype.kind]
    if dtype.kind in "biuf" and dtype != np.uint64:
        return pa.from_numpy_dtype(wider.get(dtype.str[1:], dtype))
    raise InvalidInputError(
        f"{name} is {dtype}, which a DataFrame has no type for; leave it out with drop_vars"
    )


def _cells(layout: Layout, schema: pa.Schema, blocks: plan.Blocks) -> Iterator[pa.RecordBatch]:
    for index, block in blocks:
        region = layout.region(index)
        sizes = {dim: part.stop - part.start for dim, part in region.items()}
        columns = []
        for field in schema:
            if field.name in block.variables:
                variable = block.variables[field.name]
            else:
                numbers = np.arange(region[field.name].start, region[field.name].stop)
                variable = xr.Variable((field.name,), numbers)
            whole = variable.set_dims(sizes).transpose(*sizes)  # type: ignore[no-untyped-call]
            values = np.asarray(whole.values).ravel()
            if values.dtype.kind in "OT":
                isoformat = [v.isoformat() if hasattr(v, "isoformat") else v for v in values]
                columns.append(pa.array(isoformat, pa.string()))
            else:
                unit = {"M": "M8[us]", "m": "m8[us]"}.get(values.dtype.kind, values.dtype)
                made = pa.array(values.astype(unit, copy=False), from_pandas=True)
                columns.append(made.cast(field.type))
        batch = pa.record_batch(columns, schema=schema)
        for start in range(0, batch.num_rows, ROWS_PER_BATCH):
            yield batch.slice(start, ROWS_PER_BATCH)


def _check_mode(mode: str, append_dim: str | None, region: Any, sizes: Mapping[str, int]) -> None:
    if mode not in ("create", "append", "region"):
        raise InvalidInputError(f"mode is {mode!r}, expected create, append or region")
    if (mode == "append") != (append_dim is not None):
        raise InvalidInputError(
            f"mode is {mode!r} and append_dim {append_dim!r}: mode='append' needs append_dim, and "
            "no other mode takes it"
        )
    if (mode == "region") != (region is not None):
        raise InvalidInputError(
            f"mode is {mode!r} and region {region!r:.80}: mode='region' needs region, and no other "
            "mode takes it"
        )
    unknown = [dim for dim in [append_dim, *(region or {})] if dim is not None and dim not in sizes]
    if unknown:
        raise InvalidInputError(f"no dimensions {unknown}; the dataset has {list(sizes)}")
    for dim, part in (region or {}).items():
        length = (part.stop or 0) - (part.start or 0)
        if length != sizes[dim] or part.step not in (None, 1):
            raise InvalidInputError(
                f"region has {part} along {dim!r}, expected a slice of {sizes[dim]} cells"
            )


def lineage(expression: Expression, group: str, batch: BatchId | None) -> dict[str, Any]:
    """What a commit says about where its data comes from, and which write of a program it is."""
    places = dict.fromkeys(source.place for source in sources_of(expression))
    return {
        DERIVED: {
            "group": "/" + group.strip("/"),
            "sources": [
                {"repository": url, "snapshot_id": snapshot_id, "group": "/" + source_group}
                for url, snapshot_id, source_group in places
            ],
            "computation": fingerprint(expression.describe()),
            "places": recorded_places(expression),
            "types": types_of(expression),
        },
        **({} if batch is None else batch.metadata),
    }


def types_of(expression: Expression) -> dict[str, str]:
    """The types of the computed variables, which are not always those they are stored as."""
    layout = expression.layout
    return {name: str(layout.template[name].dtype) for name in layout.computed}


@dataclass(frozen=True, slots=True)
class Target:
    """The arrays that blocks are written to."""

    session: Session
    group: str
    mode: str
    append_dim: str | None
    region: Mapping[str, slice] | None

    def prepare(
        self, expression: Expression, encoding: Mapping[str, Mapping[str, Any]], memory: int
    ) -> Expression:
        """Create or resize the arrays, and cut the blocks so that no two share a chunk."""
        layout, is_new = expression.layout, self.mode in ("create", "replace")
        chosen = {name: dict(given) for name, given in encoding.items()}
        template = layout.template.copy()
        for name, variable in template.variables.items():
            variable.encoding = {
                key: value
                for key, value in variable.encoding.items()
                if key not in ("chunks", "preferred_chunks", "shards")
            }
            if variable.dims and name in layout.computed and is_new:
                edges_of = [layout.grid[str(dim)] for dim in variable.dims]
                lengths = [max(step_of(edges) or longest(edges), 1) for edges in edges_of]
                chosen.get(str(name), variable.encoding).setdefault("chunks", tuple(lengths))
        if self.mode == "replace":
            self._clear()
        create_arrays(
            template,
            self.session,
            layout.computed,
            group=self.group,
            mode={"create": "w-", "replace": "a"}.get(self.mode),  # type: ignore[arg-type]
            append_dim=self.append_dim,
            region=self.region,
            encoding=chosen if is_new else None,
        )
        return self.aligned(expression, memory)

    def aligned(self, expression: Expression, memory: int) -> Expression:
        """The dataset in blocks of which no two share a stored chunk."""
        return rechunk(expression, self._aligned(expression.layout), memory)

    def stored(self) -> xr.Dataset:
        """The group as it is stored."""
        return stored_dataset(self.session, self.group)

    def stored_encoding(
        self, layout: Layout, types: Mapping[str, str] | None
    ) -> dict[str, dict[str, Any]]:
        """The chunks and codecs of the stored variables that the dataset has too.

        A variable that was computed as one of `types`, and is of another type now, keeps chunks.
        """
        stored = self.stored().variables
        found = {}
        for name in layout.computed:
            variable = layout.template[name]
            if name in stored and stored[name].dims == variable.dims:
                is_same = types is not None and types.get(name) == str(variable.dtype)
                keys = _KEPT if is_same else _KEPT[:3]
                encoding = stored[name].encoding
                found[name] = {key: encoding[key] for key in keys if key in encoding}
        return found

    def grow(self, layout: Layout, dim: str, start: int) -> None:
        """Lengthen the stored arrays to those of the dataset, coordinates included."""
        added = layout.template.isel({dim: slice(start, None)})
        create_arrays(
            added, self.session, layout.computed, group=self.group, mode=None, append_dim=dim
        )

    def _clear(self) -> None:
        group = zarr.open_group(self.session.store, path=self.group, mode="r+")
        for name in [*group.array_keys()]:
            del group[name]

    def offsets(self, layout: Layout) -> dict[str, int]:
        """Where the dataset begins in the arrays, along each dimension."""
        begin = dict.fromkeys(layout.grid, 0)
        dim = self.append_dim
        if dim is not None:
            lengths: dict[Hashable, int] = {}
            for name, array in self._arrays(layout).items():
                lengths |= zip(layout.template[name].dims, array.shape, strict=True)
            begin[dim] = lengths[dim] - int(layout.template.sizes[dim])
        return begin | {dim: part.start or 0 for dim, part in (self.region or {}).items()}

    def _arrays(self, layout: Layout) -> dict[str, zarr.Array[Any]]:
        stored = zarr.open_group(self.session.store, path=self.group, mode="r")
        return {name: stored[name] for name in layout.computed}  # type: ignore[misc]

    def _aligned(self, layout: Layout) -> Grid:
        """The grid of the dataset, moved to the borders that chunks of all its arrays share."""
        steps: dict[str, list[int]] = {dim: [] for dim in layout.grid}
        for name, array in self._arrays(layout).items():
            dims = layout.template[name].dims
            for dim, length in zip(dims, stored_chunks(name, array), strict=True):
                steps[str(dim)].append(length)
        begin = self.offsets(layout)
        return {
            dim: aligned_edges(edges, math.lcm(*(steps[dim] or [1])), begin[dim])
            for dim, edges in layout.grid.items()
        }

    def spans(self, layout: Layout) -> dict[str, ChunkSpan]:
        """The chunks that the dataset covers, by path of array."""
        begin = self.offsets(layout)
        everything = {
            dim: slice(begin[dim], begin[dim] + int(edges[-1]))
            for dim, edges in layout.grid.items()
        }
        return {
            f"{self.group}/{name}": chunks_in(
                [region_in(everything, layout.template[name].dims)], stored_chunks(name, array)
            )
            for name, array in self._arrays(layout).items()
        }


def region_in(cells: Mapping[str, slice], dims: Sequence[Hashable]) -> Region:
    """The part of an array with some dimensions."""
    return Region.of([str(dim) for dim in dims], box_of(cells, dims))


def aligned_edges(edges: Edges, step: int, begin: int = 0) -> Edges:
    """Blocks about as long as some others, that end where chunks of a length do.

    The dataset begins at the cell `begin` of the arrays.
    """
    if not ((edges[1:-1] + begin) % step).any():
        return edges
    size = int(edges[-1])
    step *= max(1, longest(edges) // step)
    cuts = np.arange(-begin % step or step, size, step, dtype=np.int64)
    return np.concatenate([[0], cuts, [size]]).astype(np.int64)


def copy_array(
    engine: SparkEngine, session: Session, snapshot: PinnedSnapshot, path: str
) -> shared_write.Counts:
    """Copy the values of an array at a snapshot to that of a session, which has other chunks."""
    source = ArraySource.of(snapshot, path)
    array = zarr.open_array(session.store, path=path, mode="r")
    steps = stored_chunks(path, array)
    grid = {
        dim: regular_edges(int(edges[-1]), step)
        for (dim, edges), step in zip(source.layout.grid.items(), steps, strict=True)
    }
    # A block of whole chunks is written as it is read.
    is_whole = all(is_aligned(edges, grid[dim]) for dim, edges in source.layout.grid.items())
    expression = source if is_whole else rechunk(source, grid)
    whole = np.array([array.shape], np.int64)
    span = ChunkSpan.of_boxes(whole * 0, -(-whole // np.array(steps, np.int64)))
    shared = share(session, {path: span})
    sink = partial(_write_array, shared.tasks, path, expression.layout)
    return _run_write(engine, shared, expression, sink, None)


def _write_array(
    tasks: TaskSide, path: str, layout: Layout, blocks: plan.Blocks
) -> Iterator[pa.RecordBatch]:
    array = zarr.open_array(tasks.fork.store, path=path, mode="r+")
    for index, block in blocks:
        array[tuple(layout.region(index).values())] = block["values"].values
        yield tasks.drain()


def write_blocks(
    engine: SparkEngine, expression: Expression, target: Target, wanted: Collection[int] | None
) -> shared_write.Counts:
    """Compute blocks and lay them over the session."""
    layout = expression.layout
    shared = share(target.session, target.spans(layout))
    sink = partial(_write, shared.tasks, target.group, layout, target.offsets(layout))
    return _run_write(engine, shared, expression, sink, wanted)


def _run_write(
    engine: SparkEngine,
    shared: SharedWrite,
    expression: Expression,
    sink: plan.Sink,
    wanted: Collection[int] | None,
) -> shared_write.Counts:
    try:
        rows = plan.run(engine, expression, sink, shared_write.SPARK_SCHEMA, wanted)
        with engine.bounded_batches():
            counts, _ = shared.run(rows)
    finally:
        engine.clean()
    return counts


def _write(
    tasks: TaskSide, group: str, layout: Layout, begin: Mapping[str, int], blocks: plan.Blocks
) -> Iterator[pa.RecordBatch]:
    waiting = 0
    for index, block in blocks:
        region = {
            dim: slice(part.start + begin[dim], part.stop + begin[dim])
            for dim, part in layout.region(index).items()
        }
        by_dims: dict[tuple[Hashable, ...], list[str]] = {}
        for name in layout.owned(index):
            if name in layout.computed:
                by_dims.setdefault(layout.template[name].dims, []).append(name)
        for dims, together in by_dims.items():
            place = region_in(region, dims)
            if all(place.shape):
                write_dataset_region(tasks.fork, group, together, block.reset_coords(), place)
        waiting += block.nbytes
        if waiting >= _DRAIN_BYTES:
            yield tasks.drain()
            waiting = 0
    yield tasks.drain()
