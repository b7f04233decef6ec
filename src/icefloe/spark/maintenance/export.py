"""`export_*` by many tasks; the steps are those of `icefloe.exports`.

Tasks copy objects from storage to storage; the driver sees how many there were.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial, reduce
from os import getpid
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icefloe.api.repository import Repository
from icefloe.exports.objects import (
    ExportReport,
    Sized,
    as_storage,
    copy_objects,
    target_driver,
)
from icefloe.exports.parquet_files import (
    begin_parquet,
    finish_parquet,
    is_whole,
    num_files,
    write_file,
)
from icefloe.exports.plain_zarr import (
    ZarrManifest,
    begin_zarr,
    copy_chunks,
    finish_zarr,
    plan_zarr,
)
from icefloe.exports.repository_copy import CopyPlan, finish_copy, plan_copy
from icefloe.format import layout
from icefloe.format.columns.id_set import IdSet
from icefloe.ids import ObjectId
from icefloe.maintenance.check_snapshot import binary_column
from icefloe.maintenance.listing import list_folder
from icefloe.scans.choose_scan import plan_read
from icefloe.scans.options import read_options
from icefloe.scans.pinned import as_repository, pin
from icefloe.scans.scan import Scan
from icefloe.spark.maintenance.live_rows import chunk_id_rows, manifest_rows
from icefloe.spark.maintenance.stages import (
    FOLDERS,
    Batches,
    WorkerRepository,
    id_rows,
    kept,
    list_objects,
    num_tasks,
    run_task,
)
from icefloe.spark.reads.reading import check_session
from icefloe.spark.writes.task_errors import as_raised
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage

_COPIED = pa.schema([("objects", pa.int64()), ("bytes", pa.int64())])


@dataclass(frozen=True, slots=True)
class _Target:
    """A storage in the form that travels."""

    pickled: bytes = field(repr=False)

    @classmethod
    def of(cls, storage: Storage | str, repository: Repository) -> _Target:
        return cls(pickle.dumps((as_storage(storage), repository.storage)))

    @property
    def driver(self) -> Driver:
        return _driver(getpid(), self.pickled)


@lru_cache(maxsize=8)
def _driver(process: int, pickled: bytes) -> Driver:
    storage, repository = pickle.loads(pickled)
    return target_driver(storage, outside=repository)


def _total(rows: DataFrame) -> ExportReport:
    with as_raised():
        found = rows.agg(sf.sum("objects"), sf.sum("bytes")).collect()[0]
    return ExportReport(int(found[0] or 0), int(found[1] or 0))


def _row(copied: ExportReport) -> pa.RecordBatch:
    told = {"objects": copied.objects, "bytes": copied.num_bytes}
    return pa.RecordBatch.from_pylist([told], schema=_COPIED)


def _sum(*parts: ExportReport) -> ExportReport:
    return ExportReport(sum(one.objects for one in parts), sum(one.num_bytes for one in parts))


# -- Parquet


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
    """
    check_session(spark)
    opened = as_repository(repository)
    source = pin(opened, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    wanted = read_options(**options)
    scan = plan_read(source, wanted)
    place = _Target.of(target, opened)
    begin_parquet(place.driver, source, wanted)
    count = num_files(scan)
    numbers = spark.range(0, count, 1, min(count, num_tasks(spark)))
    task = partial(_parquet_task, scan=scan, target=place)
    written = _total(run_task(numbers, WorkerRepository.of(opened), task, _COPIED))
    finish_parquet(place.driver)
    return written


def _parquet_task(
    source: WorkerRepository, batches: Batches, scan: Scan, target: _Target
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            if not run_blocking(is_whole(target.driver, number)):
                yield _row(ExportReport(1, write_file(target.driver, scan, number)))
    run_blocking(target.driver.sync())


# -- plain Zarr


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
    """
    check_session(spark)
    opened = as_repository(repository)
    source = pin(opened, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    plan = plan_zarr(source.open().workspace.state.snapshot)
    place = _Target.of(target, opened)
    run_blocking(begin_zarr(place.driver, plan.markers))
    copied = ExportReport(0, 0)
    if plan.manifests:
        wanted = pa.Table.from_pylist([one._asdict() for one in plan.manifests], _MANIFESTS)
        tasks = min(len(plan.manifests), num_tasks(spark))
        rows = spark.createDataFrame(wanted).repartition(tasks, "manifest_id", "path")
        task = partial(_zarr_task, target=place, markers=plan.markers)
        copied = _total(run_task(rows, WorkerRepository.of(opened), task, _COPIED))
    return _sum(copied, run_blocking(finish_zarr(place.driver, plan)))


_MANIFESTS = pa.schema(
    [
        ("path", pa.string()),
        ("manifest_id", pa.binary()),
        ("node_id", pa.binary()),
        ("size_bytes", pa.int64()),
        ("document", pa.binary()),
    ]
)


def _zarr_task(
    source: WorkerRepository, batches: Batches, target: _Target, markers: str
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            one = ZarrManifest(**row)
            yield _row(run_blocking(_copied(source, target.driver, one, markers)))


async def _copied(
    source: WorkerRepository, driver: Driver, one: ZarrManifest, markers: str
) -> ExportReport:
    found = [part async for part in copy_chunks(source.handle, driver, one, markers)]
    return _sum(*found)


# -- the repository with its history


def export_repository(
    spark: SparkSession, repository: Repository | str, target: Storage | str
) -> ExportReport:
    """`icefloe.export_repository` by many tasks: a repository with its history elsewhere.

    Repeat it to bring the copy up to date, or to continue after an interruption: objects that have
    arrived are not copied again. Refs come last. Virtual chunks stay where they are.

    Raises:
        ConflictError: the target has another repository, or somebody has changed the copy.
    """
    check_session(spark)
    opened = as_repository(repository)
    place = _Target.of(target, opened)
    plan = run_blocking(plan_copy(opened.handle, place.driver))
    source = WorkerRepository.of(opened)
    manifests = kept(manifest_rows(spark, source, plan.snapshots))
    try:
        missing = _missing(spark, source, place, plan, manifests)
        task = partial(_copy_task, target=place)
        copied = _total(run_task(missing, source, task, _COPIED))
    finally:
        manifests.unpersist()
    return _sum(copied, run_blocking(finish_copy(opened.handle, place.driver, plan)))


def _missing(
    spark: SparkSession,
    source: WorkerRepository,
    place: _Target,
    plan: CopyPlan,
    manifests: DataFrame,
) -> DataFrame:
    """Objects in use that are not at the target with all their bytes, and their sizes."""
    parts = {
        layout.SNAPSHOTS: _ids(spark, plan.snapshots),
        layout.TRANSACTIONS: _ids(spark, plan.logs),
        layout.MANIFESTS: manifests.select("id"),
        layout.CHUNKS: chunk_id_rows(spark, source, manifests),
    }
    named = [rows.select(sf.lit(folder).alias("folder"), "id") for folder, rows in parts.items()]
    there = _list_target(spark, source, place)
    if plan.rewrites_snapshots:
        there = there.where(sf.col("folder") != layout.SNAPSHOTS)
    stored = list_objects(spark, source).select("folder", "id", "size_bytes")
    missing = reduce(DataFrame.union, named).join(stored, ["folder", "id"], "left")
    missing = missing.join(there, ["folder", "id"], "left").where(
        "copied_bytes is null or copied_bytes != size_bytes"
    )
    # The first snapshot has no log, and logs of expired ones may be gone.
    is_there = sf.col("size_bytes").isNotNull() | (sf.col("folder") != layout.TRANSACTIONS)
    return missing.where(is_there).repartition(num_tasks(spark), "id")


def _ids(spark: SparkSession, ids: IdSet) -> DataFrame:
    return id_rows(spark, [row.tobytes() for row in ids.rows])


def _list_target(spark: SparkSession, source: WorkerRepository, target: _Target) -> DataFrame:
    """What is at the target already."""
    table = pa.table({"folder": pa.array(FOLDERS, pa.string())})
    rows = spark.createDataFrame(table, "folder string").repartitionByRange(4, "folder")
    return run_task(rows, source, partial(_list_task, target=target), _THERE)


_THERE = pa.schema([("folder", pa.string()), ("id", pa.binary()), ("copied_bytes", pa.int64())])


def _list_task(
    source: WorkerRepository, batches: Batches, target: _Target
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for folder in batch.column(0).to_pylist():
            found = run_blocking(list_folder(target.driver, folder))
            ids = binary_column(found.id, np.full(len(found), ObjectId.size))
            columns = [pa.repeat(folder, len(found)), ids, pa.array(found.size_bytes)]
            yield pa.RecordBatch.from_arrays(columns, schema=_THERE)


def _copy_task(
    source: WorkerRepository, batches: Batches, target: _Target
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        wanted = [
            Sized(row["folder"] + ObjectId(row["id"]).text, row["size_bytes"] or 0)
            for row in batch.to_pylist()
        ]
        yield _row(run_blocking(copy_objects(source.handle.driver, target.driver, wanted)))
