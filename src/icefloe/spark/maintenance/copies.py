"""Exports, `materialize`, `rewrite_manifests` and `migrate_repository` on Spark: tasks copy from
storage to storage.

The operations are those of one process. The driver hears how many objects there were.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icefloe.api.handles import Handles
from icefloe.api.migration import target_handle
from icefloe.api.repository import Repository
from icefloe.api.session import ForkSession, Session
from icefloe.changes.commit_plan import manifest_ids, num_refs_in
from icefloe.changes.shared_manifests import is_small
from icefloe.changes.splits import ChunkSpan, Splits, split_sizes
from icefloe.config import RepositoryConfig
from icefloe.exports import virtual_to_native
from icefloe.exports.objects import ExportReport, Places, Sized, as_storage, copy_objects
from icefloe.exports.parquet_files import write_parquet
from icefloe.exports.plain_zarr import copy_snapshot
from icefloe.exports.repository_copy import CopyPlan, copy_repository
from icefloe.exports.virtual_to_native import MaterializeReport, VirtualChunks, Wishes
from icefloe.format import layout
from icefloe.ids import NodeId, ObjectId
from icefloe.legacy.migrate import ChunkMode, Migration, MigrationReport, migrate
from icefloe.maintenance.check_refs import History
from icefloe.maintenance.findings import VerifyReport
from icefloe.maintenance.progress import Report, Reporter
from icefloe.repo.commit import limits_of
from icefloe.repo.rearrange import rewrite_manifests as rewrite
from icefloe.repo.session import Workspace
from icefloe.scans.scan import pin, read_options
from icefloe.spark.dataset_writer import write_items
from icefloe.spark.maintenance.engine import Place, RepositoryRows, SparkEngine
from icefloe.spark.maintenance.verify import verify_history
from icefloe.spark.readers import opened
from icefloe.spark.shared_write import Reduction, SharedWrite, TaskSide, pieces_to_cut
from icefloe.spark.tasks import Batches, as_raised
from icefloe.spark.versions import from_arrow
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage

_COPIED = pa.schema([("objects", pa.int64()), ("num_bytes", pa.int64())])


def export_parquet(
    spark: SparkSession,
    repository: Repository | str,
    target: Storage | str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    **options: Any,
) -> ExportReport:
    """`icefloe.export_parquet` by many tasks: the cells of a group as Parquet files.

    After an interruption, repeat the call with the same arguments: files that have arrived are not
    written again. `_SUCCESS` comes last.

    Args:
        target: a storage or its URL; empty, or with the files of an interrupted call.
        options: those of `icefloe.export_parquet`.

    >>> report = icefloe.spark.maintenance.export_parquet(spark, repo, "parquet", branch="main")
    """
    repo = opened(spark, repository)
    source = pin(repo, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    engine = _SparkCopy(spark, repo, target)
    return run_blocking(write_parquet(engine, source, read_options(**options)))


def export_zarr(
    spark: SparkSession,
    repository: Repository | str,
    target: Storage | str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
) -> ExportReport:
    """`icefloe.export_zarr` by many tasks: one snapshot as a Zarr store, byte for byte.

    Virtual chunks are copied too. After an interruption, repeat the call for the same snapshot:
    parts that have arrived are not copied again. Documents come last, so nobody opens an incomplete
    store.

    Args:
        target: a storage or its URL; empty, or with the files of an interrupted call for this
            snapshot.

    >>> report = icefloe.spark.maintenance.export_zarr(spark, repo, "weather.zarr", tag="v1")
    """
    repo = opened(spark, repository)
    source = pin(repo, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    engine = _SparkCopy(spark, repo, target)
    return run_blocking(copy_snapshot(engine, source.open().workspace.state.snapshot))


def export_repository(
    spark: SparkSession, repository: Repository | str, target: Storage | str
) -> ExportReport:
    """`icefloe.export_repository` by many tasks: a repository with its history elsewhere.

    Repeat it to bring the copy up to date, or to continue after an interruption: objects that have
    arrived are not copied again. Refs come last. Virtual chunks stay where they are.

    Raises:
        ConflictError: the target has another repository, or another program changed the copy.

    >>> report = icefloe.spark.maintenance.export_repository(spark, repo, "copy")
    """
    engine = _SparkCopy(spark, opened(spark, repository), target)
    return run_blocking(copy_repository(engine))


class _SparkCopy(SparkEngine[Places]):
    """Copies to the target of an export."""

    def __init__(self, spark: SparkSession, repository: Repository, target: Storage | str) -> None:
        super().__init__(spark, Place.of(Places.of, repository, as_storage(target)))
        self.source = RepositoryRows(spark, repository)

    async def copy_missing(self, plan: CopyPlan) -> ExportReport:
        """Copy the objects in use that are not at the target with all their bytes."""
        manifests = self.keep(self.source.manifest_rows(plan.snapshots))
        try:
            rows = self.run(self._missing(plan, manifests), _copy_task, _COPIED)
            with as_raised():
                found = rows.agg(sf.sum("objects"), sf.sum("num_bytes")).collect()[0]
        finally:
            self.forget()
        return ExportReport(int(found[0] or 0), int(found[1] or 0))

    def _missing(self, plan: CopyPlan, manifests: DataFrame) -> DataFrame:
        used = self.source.in_use_rows(plan.snapshots, plan.logs, manifests)
        stored, there = self.source.stored(), self.listing(attrgetter("target"))
        if plan.rewrites_snapshots:
            there = there.where(sf.col("folder") != layout.SNAPSHOTS)
        stored = stored.select("folder", "id", "size_bytes")
        there = there.select("folder", "id", sf.col("size_bytes").alias("copied_bytes"))
        missing = used.join(stored, ["folder", "id"], "left")
        missing = missing.join(there, ["folder", "id"], "left").where(
            "copied_bytes is null or copied_bytes != size_bytes"
        )
        # The first snapshot has no log, and logs of expired ones may be gone.
        is_there = sf.col("size_bytes").isNotNull() | (sf.col("folder") != layout.TRANSACTIONS)
        return self.spread(missing.where(is_there))


async def _copy_task(places: Places, batches: Batches) -> AsyncIterator[pa.RecordBatch]:
    for batch in batches:
        wanted = [
            Sized(row["folder"] + ObjectId(row["id"]).text, row["size_bytes"] or 0)
            for row in batch.to_pylist()
        ]
        copied = await copy_objects(places.handle.driver, places.target, wanted)
        yield pa.RecordBatch.from_pylist([copied._asdict()], schema=_COPIED)


def materialize(
    spark: SparkSession,
    repository: Repository | str,
    *,
    branch: str = "main",
    arrays: Sequence[str] | None = None,
    chunks: Mapping[str, Sequence[int]] | None = None,
    compressors: Any = None,
    message: str = virtual_to_native.MESSAGE,
    chunks_a_commit: int = virtual_to_native.CHUNKS_A_COMMIT,
) -> MaterializeReport:
    """`icefloe.materialize` by many tasks.

    Copies virtual chunks of a branch into the repository, byte for byte. Arrays named in `chunks`
    (path: shape of chunks), and with `compressors` all chosen arrays, are decoded and rewritten
    instead, in one commit each. After an interruption, repeat the call: only what is left is done.

    Args:
        arrays: paths of arrays; all that have virtual chunks when not given.
        chunks_a_commit: how many chunks go into one commit.

    >>> report = icefloe.spark.maintenance.materialize(spark, repo, branch="main")
    """
    repo = opened(spark, repository)
    wishes = Wishes.of(arrays, chunks, compressors)
    engine = _SparkMaterialize(spark, repo)
    return virtual_to_native.run_materialize(engine, repo, branch, wishes, message, chunks_a_commit)


class _SparkMaterialize(RepositoryRows):
    """Copies chunks into sessions of a repository."""

    def __init__(self, spark: SparkSession, repository: Repository) -> None:
        super().__init__(spark, repository)
        self.repository = repository

    def copy_array(self, session: Session, old: Session, path: str) -> tuple[int, int]:
        name = path.strip("/")
        source = pin(self.repository, snapshot_id=old.snapshot_id)
        from icefloe.spark import datasets  # needs xarray, which other maintenance does not

        engine = datasets.SparkEngine(self.spark, self.repository.storage)
        counts = datasets.copy_array(engine, session, source, name)
        return counts.chunks, counts.bytes

    def copy_chunks(self, session: Session, items: Sequence[VirtualChunks]) -> tuple[int, int]:
        report = write_items(self.spark, session, items, _copy, chunks=_spans(items))
        return report.chunks_written, report.bytes_written


def _spans(items: Sequence[VirtualChunks]) -> dict[str, ChunkSpan]:
    """The chunks that the items may set, by array."""
    spans = {}
    for path in {item.manifest.path for item in items}:
        mine = [item for item in items if item.manifest.path == path]
        sides = zip(*(item.manifest.extents for item in mine), strict=True)
        box = tuple((min(a for a, _ in side), max(b for _, b in side)) for side in sides)
        spans[path] = ChunkSpan(sum(item.num_chunks for item in mine), box)
    return spans


def _copy(fork: ForkSession, item: VirtualChunks) -> None:
    run_blocking(virtual_to_native.copy_virtual(fork.workspace, item))


def rewrite_manifests(
    spark: SparkSession,
    repository: Repository | str,
    message: str,
    *,
    branch: str,
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """`Repository.rewrite_manifests` by many tasks; returns the id of the new snapshot.

    A task reads the manifests that share chunks with its piece of an array and writes those of the
    piece. The driver hears of manifests, not of references.

    Raises:
        ConflictError: someone else committed to the branch meanwhile; nothing has changed.

    >>> snapshot_id = icefloe.spark.maintenance.rewrite_manifests(
    ...     spark, repo, "Apply new splits", branch="main"
    ... )
    """
    handle = opened(spark, repository).handle
    cut = partial(_cut, spark)
    rewriting = rewrite(handle, message, branch, metadata, "new_commit", cut)
    return run_blocking(rewriting).text


def _cut(spark: SparkSession, workspace: Workspace) -> None:
    """Let tasks write the new manifests of large arrays."""
    session = Session(Handles(workspace.handle, is_blocking=True), workspace.state)
    plan = _plan(workspace)
    to_cut = pieces_to_cut(plan)
    if to_cut.num_rows:
        rows = from_arrow(spark, pa.Table.from_batches([to_cut]))
        SharedWrite(session, session.snapshot_id, TaskSide(session.fork(), plan)).run(rows)


def _plan(workspace: Workspace) -> dict[NodeId, Reduction]:
    """All pieces that a large array has chunks in."""
    handle, state = workspace
    limits = limits_of(handle)
    sizes_of = split_sizes(handle.settings.manifest)
    found = {}
    for node in state.snapshot.nodes:
        array = node.array
        if array is None or not array.manifests:
            continue
        grid = [dimension.num_chunks for dimension in array.shape]
        if not grid or 0 in grid:
            continue  # there is nothing to cut
        if limits is not None and is_small(node, None, state.manifest_files, limits):
            continue
        num_refs = sum(num_refs_in(state.manifest_files, array))
        split = sizes_of(node.path, array, num_refs)
        pieces = Splits(grid, split.sizes)
        hull = tuple((0, count) for count in grid)
        first, last, _ = pieces.places_of(array.manifests, hull)
        numbers: set[int] = set()
        for low, high in zip(first.tolist(), last.tolist(), strict=True):
            numbers.update(pieces.between(low, high))
        cut, over = tuple(sorted(numbers)), manifest_ids(array)
        found[node.id] = Reduction(
            node.path, split, split.sizes, hull, len(cut), num_refs, cut, (), over, True
        )
    return found


def migrate_repository(
    spark: SparkSession,
    repo: Repository,
    storage: Storage | None = None,
    *,
    spec_version: int = 2,
    config: RepositoryConfig | None = None,
    chunks: ChunkMode = "copy",
    dry_run: bool = False,
    check: bool = True,
    progress: Report | None = None,
    num_tasks: int | None = None,
) -> MigrationReport:
    """Like `icefloe.migrate_repository`, with manifests and chunks converted by executors.

    Executors reach both storages by themselves. They write transaction logs too. The driver holds
    one row per manifest, and writes snapshots and refs. `num_tasks` defaults to a few per slot.

    Args:
        spark: the session; `icefloe.spark.session()` makes one.

    >>> old = icefloe.Repository.create(icefloe.local_filesystem_storage("old"), spec_version=1)
    >>> target = icefloe.local_filesystem_storage("new")
    >>> report = icefloe.spark.migrate_repository(spark, old, target)
    """
    where = (storage or repo.storage).bound()
    engine = _SparkMigration(spark, num_tasks, repo, where, int(spec_version), config, chunks)
    return run_blocking(migrate(engine, dry_run=dry_run, check=check, reporter=Reporter(progress)))


class _SparkMigration(SparkEngine[Migration]):
    """Migrates by tasks. Those of one process know what others of it have copied."""

    def __init__(self, spark: SparkSession, num_tasks: int | None, *job: Any) -> None:
        # Processes outlive a migration, but what they know of its target does not.
        place = Place.of(_open_migration, uuid4(), *job)
        super().__init__(spark, place, num_tasks=num_tasks)
        self._here = _open_migration(None, *job)

    @property
    def here(self) -> Migration:
        return self._here

    async def verify(self, history: History) -> VerifyReport:
        opened = Repository(Handles(self.here.target, is_blocking=True))
        return await verify_history(self.spark, opened, history)


def _open_migration(
    _of: UUID | None,
    repo: Repository,
    where: Storage,
    spec_version: int,
    config: RepositoryConfig | None,
    chunks: ChunkMode,
) -> Migration:
    target = target_handle(repo, where, spec_version, config, chunks)
    return Migration(repo.handle, target, chunks)
