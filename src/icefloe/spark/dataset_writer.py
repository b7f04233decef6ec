"""Datasets and regions of arrays written by tasks."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import count
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import zarr
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from zarr.abc.store import Store

from icefloe import geometry, paths
from icefloe.api.repository import Repository
from icefloe.api.session import ForkSession, Session
from icefloe.changes.conflicts import ConflictDetector, ConflictSolver
from icefloe.changes.splits import ChunkSpan
from icefloe.display import Picture, Shown, counted, qualified, size_text
from icefloe.errors import ConflictError, InvalidInputError, ReadOnlyError, RebaseFailedError
from icefloe.geometry import Region, moved, region_of, shrink_chunks
from icefloe.scans.scan import as_repository
from icefloe.spark import shared_write
from icefloe.spark.shared_write import BatchId, TaskSide, share
from icefloe.spark.tasks import Batches, items_in, map_items
from icefloe.store.appends import AppendSolver
from icefloe.virtual.ingest.insertion import BlockMove

Work = Callable[[ForkSession, Any], Any]
"""What is done for one item: writes through the fork's store. What it returns, unless it is empty,
comes back in `WriteReport.told`."""


class ShownWrite(Shown):
    """Reports of writes show what was written, and where to find it."""

    __slots__ = ()

    def _picture_(self) -> Picture:
        report: Any = self
        commit = getattr(report, "snapshot_id", None) or "none, the changes wait in the session"
        written = counted(report.chunks_written, "chunk")
        fields = [
            ("commit", commit),
            ("written", f"{written} ({size_text(report.bytes_written)})"),
            ("seconds", f"{report.seconds:.1f}"),
        ]
        if getattr(report, "tries", 1) > 1:
            redone = f"{counted(report.chunks_redone, 'chunk')} ({size_text(report.bytes_redone)})"
            waited = f"{report.seconds_waited:.1f} s waited"
            fields.append(("tries", f"{report.tries}, {redone} written again, {waited}"))
        return Picture(qualified(f"spark.{type(self).__name__}"), fields)


@dataclass(frozen=True, slots=True, repr=False)
class WriteReport(ShownWrite):
    """What a distributed write did. Nothing of it is visible before the session is committed."""

    chunks_written: int
    bytes_written: int
    seconds: float
    told: tuple[Any, ...] = ()


_TRIES = 100
_MAX_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, repr=False)
class CommitReport(ShownWrite):
    """What a write that commits did; `snapshot_id` is None when a session was given: commit it."""

    snapshot_id: str | None
    chunks_written: int
    bytes_written: int
    seconds: float
    tries: int = 1
    """How often it was written: again when others changed the same things meanwhile."""
    seconds_waited: float = 0.0
    chunks_redone: int = 0
    bytes_redone: int = 0


def commit_on_top(
    write: Callable[[], tuple[Session, int, int] | str],
    commit: Callable[[Session], str],
    may_follow: Callable[[ConflictError], bool],
) -> CommitReport:
    """Write into a session and commit it; again, in a new one, if others were first.

    `write` returns the session, chunks and bytes, or a snapshot that has all of it already.
    """
    started, waited, redone = time.monotonic(), 0.0, (0, 0)
    for tries in count(1):
        written = write()
        new = (0, 0) if isinstance(written, str) else written[1:]
        try:
            landed = written if isinstance(written, str) else commit(written[0])
        except ConflictError as error:
            if tries >= _TRIES or not may_follow(error):
                raise
        else:
            seconds = time.monotonic() - started
            return CommitReport(landed, new[0], new[1], seconds, tries, waited, *redone)
        redone = redone[0] + new[0], redone[1] + new[1]
        pause = random.random() * min(_MAX_PAUSE_S, 0.02 * 2**tries)
        time.sleep(pause)
        waited += pause
    raise AssertionError("count has no end")


def solver_of_write(
    append_dim: str | None, batch: BatchId | None, *, accept_unordered: bool = False
) -> ConflictSolver | None:
    """How a write is rebased unless its caller says it.

    Not at all, if the other commit may be the same write of an application.
    """
    if batch is not None:
        return None
    if append_dim is None:
        return ConflictDetector()
    return AppendSolver(append_dim, accept_unordered=accept_unordered)


def write_items(
    spark: SparkSession,
    session: Session,
    items: Sequence[Any],
    work: Work,
    *,
    num_tasks: int | None = None,
    chunks: Mapping[str, ChunkSpan] | None = None,
) -> WriteReport:
    """Do `work` for every item on the executors, and put the outcome into the session.

    `chunks` are those that may be set, by path of array.
    """
    require_writable(session)
    started = time.monotonic()
    if not items:
        return WriteReport(0, 0, 0.0)
    shared = share(session, chunks or {})
    run = partial(_write_task, shared.tasks, work)
    rows = map_items(spark, items, run, shared_write.SPARK_SCHEMA, num_tasks)
    counts, told = shared.run(rows)
    return WriteReport(counts.chunks, counts.bytes, time.monotonic() - started, tuple(told))


def _write_task(tasks: TaskSide, work: Work, batches: Batches) -> Iterator[pa.RecordBatch]:
    for item in items_in(batches):
        told = work(tasks.fork, item)
        yield tasks.drain()
        if told:
            yield shared_write.told_batch(told)


def move_blocks(
    spark: SparkSession,
    session: Session,
    base: Store,
    moves: Sequence[BlockMove],
    num_tasks: int | None = None,
) -> None:
    """Copy values of arrays from where they were to where they are going to be."""
    write_items(spark, session, moves, partial(_move, base), num_tasks=num_tasks)


def _move(base: Store, fork: ForkSession, move: BlockMove) -> None:
    move.run(base, fork.store)


def require_writable(session: Session) -> None:
    """Refuse a session that could not take the changes, before any work is done."""
    if not isinstance(session, Session):
        raise InvalidInputError(
            f"session is a {type(session).__name__}, expected a writable Session "
            "(repository.writable_session(branch))"
        )
    if session.read_only:
        raise ReadOnlyError("the session only reads; open a writable_session to write with Spark")


TARGET_REGION_BYTES = 64 << 20


class Grid(NamedTuple):
    """The axes that a set of arrays shares, and how their chunks cut them.

    `chunks` is the length along each axis at which every array of the set has a border, so that
    regions made of whole steps never share a chunk of any of them.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    itemsize: int


def default_region_shape(grid: Grid, target_bytes: int = TARGET_REGION_BYTES) -> tuple[int, ...]:
    """Whole chunks, grown from the last axis forward until a region is worth a task."""
    return geometry.grow_chunks(grid.shape, grid.chunks, target_bytes // max(grid.itemsize, 1))


def cut(
    grid: Grid,
    region_shape: Sequence[int] | None,
    start: Sequence[int] | None = None,
    stop: Sequence[int] | None = None,
) -> Iterator[Region]:
    """Regions that cover the box from `start` to `stop`, their borders at those of chunks.

    The first and the last along an axis may be shorter: they hold what of their chunks lies
    inside the box, and each chunk still belongs to one region alone.
    """
    step = tuple(region_shape or default_region_shape(grid))
    if len(step) != len(grid.shape):
        raise InvalidInputError(
            f"region_shape {tuple(step)} has {len(step)} axes, expected {len(grid.shape)}: "
            f"{grid.dims}"
        )
    for dim, size, chunk, length in zip(grid.dims, step, grid.chunks, grid.shape, strict=True):
        if size < 1 or (size % chunk and size < length):
            raise InvalidInputError(
                f"region_shape has {size} along {dim!r}, expected a multiple of {chunk}: two "
                "regions would share a chunk, and one task's data would overwrite the other's"
            )
    low = tuple(start or (0,) * len(grid.shape))
    high = tuple(grid.shape if stop is None else stop)
    for box in geometry.cut(tuple(map(slice, low, high)), step):
        yield Region.of(grid.dims, box)


def chunks_in(regions: Sequence[Region], chunks: Sequence[int]) -> ChunkSpan:
    """The chunks that the regions touch."""
    low, high = _corners(regions)
    step = np.array(chunks, np.int64)
    return ChunkSpan.of_boxes(low // step, -(-high // step))


def _corners(regions: Sequence[Region]) -> tuple[np.ndarray, np.ndarray]:
    low = np.array([region.start for region in regions], np.int64)
    high = np.array([region.stop for region in regions], np.int64)
    return low.reshape(len(regions), -1), high.reshape(len(regions), -1)


def check_given(grid: Grid, regions: Sequence[Region]) -> None:
    """Refuse regions outside the arrays, and any two that share a chunk."""
    if not regions:
        return
    lows, highs = _corners(regions)
    is_bad = ((lows < 0) | (highs > np.array(grid.shape)) | (lows >= highs)).any(axis=1)
    if bool(is_bad.any()):
        region = regions[int(np.flatnonzero(is_bad)[0])]
        raise InvalidInputError(
            f"region {region.indexers} is empty or not inside the shape {grid.shape}"
        )
    step = np.array(grid.chunks)
    first, last = lows // step, -(-highs // step)
    pair = _overlapping_pair(first, last)
    if pair is not None:
        a, b = (regions[at].indexers for at in pair)
        raise InvalidInputError(
            f"regions {a} and {b} share a chunk (chunks of {grid.dims} are {grid.chunks}): "
            "one task's data would overwrite the other's; move their common border to a border "
            "of chunks, or write them as one region"
        )


def _overlapping_pair(first: np.ndarray, last: np.ndarray) -> tuple[int, int] | None:
    """Two boxes that overlap, found by sweeping along the first axis."""
    if first.shape[1] == 0:
        return (0, 1) if len(first) > 1 else None
    order = np.argsort(first[:, 0], kind="stable")
    active = np.empty(0, np.int64)
    for at in order.tolist():
        active = active[last[active, 0] > first[at, 0]]
        is_hit = ((first[active] < last[at]) & (first[at] < last[active])).all(axis=1)
        if bool(is_hit.any()):
            return int(active[is_hit][0]), int(at)
        active = np.append(active, at)
    return None


Compute = Callable[[Region], Any]


def write_regions(
    spark: SparkSession,
    session: Session,
    array_or_group: str,
    fn: Compute,
    *,
    variables: Sequence[str] | None = None,
    regions: Sequence[Any] | None = None,
    region_shape: Sequence[int] | None = None,
    num_tasks: int | None = None,
) -> WriteReport:
    """Fill an array, or arrays of a group that have the same axes, from many tasks at once.

    `fn` is called with a `Region` and returns its values: a numpy array for an array, and for a
    group a mapping from names to numpy arrays; in both cases values as they are stored. An xarray
    `DataArray` or `Dataset` is encoded the way the arrays say (scale, offset, units of time).

    The arrays have to exist in the session. Without `regions` they are cut into boxes of about
    64 MB at the borders of their chunks, or into boxes of `region_shape`. With `regions` (slices
    in order, slices by name, or `Region`s) only those are written; two that share a chunk are
    refused. Chunks that a region covers in part keep their other cells.

    Nothing is visible before `session.commit(...)`. A task that fails is tried again by Spark; if
    it fails for good the error reaches the caller, and the session is as it was before.

    Args:
        array_or_group: path of an array, or of a group.
        variables: which arrays of the group; those with the most axes when not given.
        num_tasks: how many tasks the regions are spread over.
        spark: the session; `icefloe.spark.session()` makes one.

    >>> def compute(region):
    ...     return np.zeros(region.shape, "f4")
    >>> report = icefloe.spark.write_regions(spark, session, "t2m", compute)
    """
    require_writable(session)
    if not callable(fn):
        raise InvalidInputError(f"fn is {fn!r}, expected a function of a Region")
    group, arrays = _open_targets(session, array_or_group, variables)
    grid = common_grid(arrays)
    if regions is None:
        boxes = list(cut(grid, region_shape))
    else:
        boxes = [region_of(grid.dims, grid.shape, given) for given in regions]
        check_given(grid, boxes)
    work = partial(_compute_and_write, fn, group, tuple(arrays))
    chunks = {
        f"{group}/{name}": chunks_in(boxes, stored_chunks(name, array))
        for name, array in arrays.items()
    }
    return write_items(spark, session, boxes, work, num_tasks=num_tasks, chunks=chunks)


def _open_targets(
    session: Session, path: str, variables: Sequence[str] | None
) -> tuple[str, dict[str, zarr.Array[Any]]]:
    """The group, and its arrays to be written, by their path relative to it."""
    node = session.workspace.state.node(paths.validate("/" + path.strip("/")))
    if node.array is not None:
        if variables is not None:
            raise InvalidInputError(
                f"{path!r} is an array; `variables` chooses among the arrays of a group"
            )
        array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
        above, _, name = node.path.rpartition("/")
        return above or "/", {name: array}
    group = zarr.open_group(session.store, path=path.strip("/"), mode="r")
    if variables is None:
        found = dict(group.arrays())
        if not found:
            raise InvalidInputError(f"group {path!r} has no arrays; create them first")
        most = max(array.ndim for array in found.values())
        return node.path, {name: array for name, array in found.items() if array.ndim == most}
    missing = [name for name in variables if not isinstance(group.get(name), zarr.Array)]
    if missing or not variables:
        raise InvalidInputError(
            f"group {path!r} has no arrays {missing}; it has {sorted(dict(group.arrays()))}"
        )
    return node.path, {name: group[name] for name in variables}  # type: ignore[misc]


def common_grid(arrays: Mapping[str, zarr.Array[Any]]) -> Grid:
    """The grid of arrays that have equal axes; refuses others."""
    first_name, first = next(iter(arrays.items()))
    dims = dimension_names(first)
    for name, array in arrays.items():
        if array.shape != first.shape or dimension_names(array) != dims:
            raise InvalidInputError(
                f"{name!r} has axes {dimension_names(array)} of {array.shape}, {first_name!r} has "
                f"{dims} of {first.shape}: arrays written together need the same axes; name those "
                "that have them with `variables`"
            )
    itemsize = sum(max(array.dtype.itemsize, 1) for array in arrays.values())
    chunks = [stored_chunks(name, array) for name, array in arrays.items()]
    steps = tuple(math.lcm(*axis) for axis in zip(*chunks, strict=True))
    return Grid(dims, first.shape, steps, itemsize)


def dimension_names(array: zarr.Array[Any]) -> tuple[str, ...]:
    """Names of the axes; `axis_0` and so on where an axis has none."""
    names = getattr(array.metadata, "dimension_names", None) or (None,) * array.ndim
    return tuple(name or f"axis_{at}" for at, name in enumerate(names))


def stored_chunks(name: str, array: zarr.Array[Any]) -> tuple[int, ...]:
    """The shape of what is stored as one object: the shard, where chunks are in shards."""
    grid: Any = array.metadata.to_dict()["chunk_grid"]
    if grid["name"] != "regular":
        raise InvalidInputError(
            f"{name!r} has chunks of unequal length; only regular grids can be written by region"
        )
    return tuple(max(int(length), 1) for length in grid["configuration"]["chunk_shape"])


def _compute_and_write(
    fn: Compute, group: str, names: tuple[str, ...], fork: ForkSession, region: Region
) -> None:
    values = fn(region)
    if hasattr(values, "to_dataset") or hasattr(values, "to_zarr"):
        write_dataset_region(fork, group, names, values, region)
        return
    if not isinstance(values, Mapping):
        if len(names) != 1:
            raise InvalidInputError(
                f"the function returned a {type(values).__name__} for {len(names)} arrays, "
                f"expected a mapping with {sorted(names)}"
            )
        values = {names[0]: values}
    if set(values) != set(names):
        raise InvalidInputError(
            f"the function returned {sorted(values)} for region {region.indexers}, expected "
            f"{sorted(names)}"
        )
    for name, part in values.items():
        block = np.asarray(part)
        if block.shape != region.shape:
            raise InvalidInputError(
                f"the function returned {name!r} of shape {block.shape} for region "
                f"{region.indexers}, expected {region.shape}"
            )
        path = f"{group}/{name}".strip("/")
        array = zarr.open_array(fork.store, path=path, mode="r+")
        if not np.can_cast(block.dtype, array.dtype, "same_kind"):
            raise InvalidInputError(
                f"the function returned {name!r} as {block.dtype}, the array holds {array.dtype}"
            )
        array[region.slices] = block


def write_dataset_region(
    fork: ForkSession, group: str, names: Sequence[str], values: Any, region: Region
) -> None:
    """Write xarray values, encoded as the stored arrays say."""
    if not hasattr(values, "data_vars"):
        if len(names) != 1:
            raise InvalidInputError(
                f"the function returned a DataArray for {len(names)} arrays, expected a Dataset "
                f"with {sorted(names)}"
            )
        values = values.to_dataset(name=names[0])
    found = values[list(names)].reset_coords(drop=True)
    sizes = {dim: found.sizes.get(dim, 1) for dim in region.dims}
    wanted = dict(zip(region.dims, region.shape, strict=True))
    if sizes != wanted:
        raise InvalidInputError(
            f"the dataset for region {region.indexers} has sizes {dict(found.sizes)}, expected "
            f"{wanted}"
        )
    found = found.drop_vars(list(found.coords))
    found.to_zarr(
        fork.store,
        group=group.strip("/") or None,
        region=region.indexers if region.dims else None,
        mode="r+",
        consolidated=False,
        safe_chunks=False,  # regions share no chunk, so a part of one has a single writer
    )


# Variables below this size go with the metadata, unless dask has cut them.
_SMALL_BYTES = 1 << 20

Mode = Literal["w-", "w", "a", "r+"]


class DatasetReport(CommitReport):
    """What `write_dataset` did; `snapshot_id` is None when a session was given: commit it."""

    __slots__ = ()


class _Part(NamedTuple):
    """Some variables of the dataset, for one region of the arrays; pickled where it was made."""

    names: tuple[str, ...]
    region: Region
    dataset: bytes


def write_dataset(
    spark: SparkSession,
    dataset: Any,
    repository: Repository | Session | str,
    *,
    group: str = "",
    branch: str = "main",
    mode: Mode | None = None,
    append_dim: str | None = None,
    region: Mapping[str, slice] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    message: str | None = None,
    metadata: dict[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
    transaction: tuple[str, int] | None = None,
    num_tasks: int | None = None,
) -> DatasetReport:
    """Write a Dataset into a group, from many tasks at once, in one commit.

    Variables backed by dask or by files are computed on the executors, piece by piece; their
    whole never exists in one place. Variables in memory are sent to them, but for coordinates, text
    and times, which go with the metadata. Encodings, attributes
    and the meaning of `mode`, `append_dim`, `region` and `encoding` are those of
    `Dataset.to_zarr`. A chunk that the new data covers in part (appending to an array that ends
    within a chunk) is read, completed and written by one task.

    Given a `Session` instead of a repository, the changes wait there for your own commit.

    Args:
        transaction: the name of an application and the number of this write. A write whose
            number, or a later one, the branch already has of that application is left out, so
            that a program that was stopped can be run again without appending twice.
        spark: the session; `icefloe.spark.session()` makes one.
        dataset: what to write.
        repository: a `Repository`, its URL, or a `Session`.
        group: the path of the group; the root unless given.
        branch: the branch to commit to.
        message: of the commit.
        metadata: of the commit.
        num_tasks: how many tasks the pieces are spread over.

    Raises:
        RebaseFailedError: others wrote the same variables meanwhile, and none of both appended.
            What was appended is put behind what others have appended, and other writes are made
            again on top of theirs; `rebase_with` chooses other rules.

    >>> dataset = xr.Dataset({"rain": (("y", "x"), np.zeros((8, 8)))})
    >>> report = icefloe.spark.write_dataset(spark, dataset, repo, group="rain")
    """
    import xarray as xr

    if isinstance(dataset, xr.DataArray):
        dataset = dataset.to_dataset(name="data" if dataset.name is None else dataset.name)
    if not isinstance(dataset, xr.Dataset):
        raise InvalidInputError(
            f"dataset is a {type(dataset).__name__}, expected an xarray Dataset or DataArray"
        )
    if append_dim is not None and append_dim not in dataset.sizes:
        raise InvalidInputError(
            f"append_dim {append_dim!r} is not a dimension of the dataset: {dict(dataset.sizes)}"
        )
    batch = BatchId.of(transaction)
    how = {"group": group, "mode": mode, "append_dim": append_dim, "region": region}
    fill = partial(_fill, spark, dataset, how, encoding or {}, num_tasks)
    if isinstance(repository, Session):
        if batch is not None:
            raise InvalidInputError(
                "transaction is for a commit, which a session waits for you to make; give the "
                "repository instead of a session"
            )
        started, report = time.monotonic(), fill(repository)
        seconds = time.monotonic() - started
        return DatasetReport(None, report.chunks_written, report.bytes_written, seconds)
    opened = as_repository(repository)
    metadata = metadata if batch is None else {**(metadata or {}), **batch.metadata}
    own = {f"/{group}/{name}".replace("//", "/") for name in dataset.data_vars}

    def write() -> tuple[Session, int, int] | str:
        session = opened.writable_session(branch)
        before = None if batch is None else batch.find(opened, session.snapshot_id)
        if before is not None:
            return before
        report = fill(session)
        return session, report.chunks_written, report.bytes_written

    def commit(session: Session) -> str:
        solver = rebase_with or solver_of_write(append_dim, batch, accept_unordered=True)
        text = message or f"write {', '.join(map(str, dataset.data_vars))} to /{group.strip('/')}"
        return session.commit(text, metadata, rebase_with=solver)

    def may_follow(error: ConflictError) -> bool:
        if rebase_with is not None or region is not None or mode == "w":
            return False
        found = error.conflicts if isinstance(error, RebaseFailedError) else ()
        return append_dim is not None or not own & {one.path for one in found}

    return DatasetReport(*astuple(commit_on_top(write, commit, may_follow)))


def _fill(
    spark: SparkSession,
    dataset: Any,
    how: Mapping[str, Any],
    encoding: Mapping[str, Mapping[str, Any]],
    num_tasks: int | None,
    session: Session,
) -> WriteReport:
    """Write a dataset into a session."""
    far = [name for name, variable in dataset.variables.items() if _is_far(name, variable, dataset)]
    begin: dict[str, int] = {}  # where the data begins along each axis
    if how["append_dim"] is not None:
        dim = how["append_dim"]
        begin[dim] = _length_of(session, how["group"], dataset, dim)
    begin |= {str(dim): part.start or 0 for dim, part in (how["region"] or {}).items()}
    _write_metadata(session, dataset, far, encoding, how)
    parts, chunks = _parts(session, dataset, far, how["group"], begin)
    work = partial(_write_part, how["group"])
    return write_items(spark, session, parts, work, num_tasks=num_tasks, chunks=chunks)


def _write_part(group: str, fork: ForkSession, part: _Part) -> None:
    piece = cloudpickle.loads(part.dataset).load(scheduler="synchronous")
    write_dataset_region(fork, group, part.names, piece, part.region)


def _is_far(name: Any, variable: Any, dataset: Any) -> bool:
    """Whether a variable is written by the executors; the rest goes with the metadata."""
    if not variable.dims or name in dataset.xindexes or variable.dtype == object:
        return False  # of objects xarray has to see every value to find out what they are
    if variable.chunks is not None:
        return True
    # Of times it chooses the unit by their values.
    return variable.dtype.kind not in "mM" and variable.nbytes > _SMALL_BYTES


def _write_metadata(
    session: Session,
    dataset: Any,
    far: Sequence[Any],
    encoding: Mapping[str, Mapping[str, Any]],
    how: Mapping[str, Any],
) -> None:
    """Let xarray create or resize the arrays."""
    # Not at the top: an extra that reading and ingest do without.
    from icefloe.interop.xarray_objects import create_arrays

    template = dataset.copy()
    encodings = {name: dict(given) for name, given in encoding.items()}
    for name, variable in dataset.variables.items():
        if name not in far:
            template[name] = variable.compute()
        elif variable.chunks is None:
            cell: Any = np.zeros((), variable.dtype)  # one, repeated, which takes no room
            stand_in = variable.copy(data=np.broadcast_to(cell, variable.shape))
            stand_in.encoding = dict(variable.encoding)
            given = encodings.get(str(name), stand_in.encoding)
            if not given.keys() & {"chunks", "shards"}:
                given["chunks"] = shrink_chunks(variable.shape, variable.dtype.itemsize)
            template[name] = stand_in
    create_arrays(template, session, far, encoding=encodings, **how)


def _length_of(session: Session, group: str, dataset: Any, dim: str) -> int:
    stored = zarr.open_group(session.store, path=group.strip("/"), mode="r")
    for name, array in stored.arrays():
        names = getattr(array.metadata, "dimension_names", None) or ()
        if name in dataset.variables and dim in names:
            return int(array.shape[names.index(dim)])
    raise InvalidInputError(
        f"nothing stored in group {group!r} has the dimension {dim!r} to append along"
    )


def _parts(
    session: Session, dataset: Any, far: Sequence[Any], group: str, begin: Mapping[str, int]
) -> tuple[list[_Part], dict[str, ChunkSpan]]:
    """The pieces of work: variables with equal axes and chunks go together.

    Also tells the chunks that they touch, by path of array.
    """
    stored = zarr.open_group(session.store, path=group.strip("/"), mode="r")
    together: dict[Any, dict[str, Any]] = {}
    for name in far:
        array: Any = stored[str(name)]
        key = (dataset.variables[name].dims, array.shape, array.chunks, array.shards)
        together.setdefault(key, {})[str(name)] = array
    parts: list[_Part] = []
    chunks: dict[str, ChunkSpan] = {}
    for (dims, *_), arrays in together.items():
        grid = common_grid(arrays)
        start = tuple(begin.get(str(dim), 0) for dim in dims)
        stop = tuple(low + dataset.sizes[dim] for low, dim in zip(start, dims, strict=True))
        pieces = dataset[list(arrays)].reset_coords(drop=True)
        pieces = pieces.drop_vars(list(pieces.coords))
        regions = list(cut(grid, None, start, stop))
        parts += [_part(tuple(arrays), region, start, pieces) for region in regions]
        for name, array in arrays.items():
            chunks[f"{group}/{name}"] = chunks_in(regions, stored_chunks(name, array))
    return parts, chunks


def _part(names: tuple[str, ...], region: Region, start: Sequence[int], pieces: Any) -> _Part:
    local = moved(region.slices, start)
    piece = pieces.isel(dict(zip(region.dims, local, strict=True)))
    if any(variable.chunks is not None for variable in piece.variables.values()):
        from dask.base import optimize

        # Drops the parts of the graph that only other pieces need.
        (piece,) = optimize(piece)  # type: ignore[no-untyped-call]
    else:
        for name, variable in piece.variables.items():
            if variable._in_memory:  # a view would pickle the whole array
                piece[name] = variable.copy(data=np.ascontiguousarray(variable.values))
    pickled: bytes = cloudpickle.dumps(piece)  # type: ignore[no-untyped-call]
    return _Part(names, region, pickled)
