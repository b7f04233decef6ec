"""`write_dataset`: an xarray Dataset, lazy or not, written by the executors in one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import zarr
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from icefloe.api.repository import Repository
from icefloe.api.session import ForkSession, Session
from icefloe.changes.solvers import ConflictSolver
from icefloe.changes.split_grid import ChunkSpan
from icefloe.errors import InvalidInputError
from icefloe.geometry import Region, moved, shrink_chunks
from icefloe.scans.pinned import as_repository
from icefloe.spark.batch_ids import BatchId
from icefloe.spark.writes.regions import chunks_in, cut
from icefloe.spark.writes.write_items import ShownWrite, write_items
from icefloe.spark.writes.write_regions import common_grid, stored_chunks, write_dataset_region

# Variables below this size go with the metadata, unless dask has cut them.
_SMALL_BYTES = 1 << 20

Mode = Literal["w-", "w", "a", "r+"]


@dataclass(frozen=True, slots=True, repr=False)
class DatasetReport(ShownWrite):
    """What `write_dataset` did; `snapshot_id` is None when a session was given: commit it."""

    snapshot_id: str | None
    chunks_written: int
    bytes_written: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Part:
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
        ConflictError: others committed to the branch meanwhile, and `rebase_with` was not given.
    """
    import xarray as xr  # noqa: PLC0415 - an extra that reading and ingest do without

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
    started = time.monotonic()
    batch = BatchId.of(transaction)
    given_session = isinstance(repository, Session)
    if isinstance(repository, Session):
        if batch is not None:
            raise InvalidInputError(
                "transaction is for a commit, which a session waits for you to make; give the "
                "repository instead of a session"
            )
        session = repository
    else:
        opened = as_repository(repository)
        session = opened.writable_session(branch)
        if batch is not None:
            metadata = {**(metadata or {}), **batch.metadata}
            before = batch.find(opened, session.snapshot_id)
            if before is not None:
                return DatasetReport(before, 0, 0, time.monotonic() - started)
    far = [name for name, variable in dataset.variables.items() if _is_far(name, variable, dataset)]
    offset = _write_metadata(session, dataset, far, group, mode, append_dim, region, encoding)
    parts = _parts(session, dataset, far, group, offset)
    report = write_items(
        spark,
        session,
        parts,
        _Writer(group),
        num_tasks=num_tasks,
        chunks=_chunks(session, group, parts),
    )
    snapshot_id = None
    if not given_session:
        snapshot_id = session.commit(
            message or f"write {', '.join(map(str, dataset.data_vars))} to /{group.strip('/')}",
            metadata,
            rebase_with=rebase_with,
        )
    return DatasetReport(
        snapshot_id, report.chunks_written, report.bytes_written, time.monotonic() - started
    )


class _Writer:
    """What a task does with a part."""

    def __init__(self, group: str) -> None:
        self.group = group

    def __call__(self, fork: ForkSession, part: _Part) -> None:
        piece = cloudpickle.loads(part.dataset).load(scheduler="synchronous")
        write_dataset_region(fork, self.group, part.names, piece, part.region)


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
    group: str,
    mode: Mode | None,
    append_dim: str | None,
    region: Mapping[str, slice] | None,
    encoding: Mapping[str, Mapping[str, Any]] | None,
) -> dict[str, int]:
    """Let xarray create or resize the arrays; returns where the data begins along each axis."""
    # Not at the top: an extra that reading and ingest do without.
    from icefloe.interop.xarray_objects import create_arrays  # noqa: PLC0415

    template = dataset.copy()
    encodings = {name: dict(given) for name, given in (encoding or {}).items()}
    for name, variable in dataset.variables.items():
        if name not in far:
            template[name] = variable.compute()
        elif variable.chunks is None:
            stand_in = _without_values(variable)
            given = encodings.get(str(name), stand_in.encoding)
            if not given.keys() & {"chunks", "shards"}:
                given["chunks"] = shrink_chunks(variable.shape, variable.dtype.itemsize)
            template[name] = stand_in
    begin: dict[str, int] = {}
    if append_dim is not None:
        begin[append_dim] = _length_of(session, group, dataset, append_dim)
    for dim, part in (region or {}).items():
        begin[str(dim)] = part.start or 0
    create_arrays(
        template,
        session,
        far,
        group=group,
        mode=mode,
        append_dim=append_dim,
        region=region,
        encoding=encodings,
    )
    return begin


def _without_values(variable: Any) -> Any:
    """The variable with one cell that is repeated, which takes no room."""
    cell: Any = np.zeros((), variable.dtype)
    found = variable.copy(data=np.broadcast_to(cell, variable.shape))
    found.encoding = dict(variable.encoding)
    return found


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
) -> list[_Part]:
    """The pieces of work: variables with equal axes and chunks go together."""
    stored = zarr.open_group(session.store, path=group.strip("/"), mode="r")
    together: dict[Any, dict[str, Any]] = {}
    for name in far:
        array: Any = stored[str(name)]
        key = (dataset.variables[name].dims, array.shape, array.chunks, array.shards)
        together.setdefault(key, {})[str(name)] = array
    parts: list[_Part] = []
    for (dims, *_), arrays in together.items():
        grid = common_grid(arrays)
        start = tuple(begin.get(str(dim), 0) for dim in dims)
        stop = tuple(low + dataset.sizes[dim] for low, dim in zip(start, dims, strict=True))
        pieces = dataset[list(arrays)].reset_coords(drop=True)
        pieces = pieces.drop_vars(list(pieces.coords))
        regions = cut(grid, None, start, stop)
        parts.extend(_part(tuple(arrays), region, start, pieces) for region in regions)
    return parts


def _chunks(session: Session, group: str, parts: Sequence[_Part]) -> dict[str, ChunkSpan]:
    """Chunks that the parts touch, by path of array."""
    stored = zarr.open_group(session.store, path=group.strip("/"), mode="r")
    regions: dict[str, list[Region]] = {}
    for part in parts:
        for name in part.names:
            regions.setdefault(name, []).append(part.region)
    found = {}
    for name, boxes in regions.items():
        array: Any = stored[name]
        found[f"{group}/{name}"] = chunks_in(boxes, stored_chunks(name, array))
    return found


def _part(names: tuple[str, ...], region: Region, start: Sequence[int], pieces: Any) -> _Part:
    local = moved(region.slices, start)
    piece = pieces.isel(dict(zip(region.dims, local, strict=True)))
    if any(variable.chunks is not None for variable in piece.variables.values()):
        from dask.base import optimize  # noqa: PLC0415 - who has its arrays has dask

        # Drops the parts of the graph that only other pieces need.
        (piece,) = optimize(piece)  # type: ignore[no-untyped-call]
    else:
        piece = _detached(piece)
    pickled: bytes = cloudpickle.dumps(piece)  # type: ignore[no-untyped-call]
    return _Part(names, region, pickled)


def _detached(piece: Any) -> Any:
    """Copy slices of arrays in memory: a view would pickle the whole array."""
    for name, variable in piece.variables.items():
        if variable._in_memory:
            piece[name] = variable.copy(data=np.ascontiguousarray(variable.values))
    return piece
