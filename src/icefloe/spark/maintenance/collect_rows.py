"""`garbage_collect` on Spark: listing, walking and deleting are done by tasks.

What makes a collection safe stays as it is in `icefloe.maintenance.collect`: objects are listed
first, the fence is raised, the decision becomes final in one conditional write on the driver, and
only then anything is deleted, kind by kind. The driver holds the ids of snapshots. Manifests and
chunks in use are rows, and garbage is what an anti-join leaves of the listing.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icefloe.api import maintenance_values
from icefloe.api.repository import Repository
from icefloe.format.columns.id_set import IdSet
from icefloe.maintenance.collect import Collection, Options
from icefloe.maintenance.deleting import Pace, delete_objects
from icefloe.maintenance.garbage import InUse
from icefloe.maintenance.listing import KINDS, StoredObjects, list_folder
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.summary import GCSummary
from icefloe.repo import fence
from icefloe.repo.handle import RepoHandle
from icefloe.scans.pinned import as_repository
from icefloe.spark.maintenance.live_rows import chunk_id_rows, manifest_rows
from icefloe.spark.maintenance.stages import (
    Batches,
    WorkerRepository,
    id_rows,
    ids_in,
    kept,
    list_objects,
    num_tasks,
    run_task,
)
from icefloe.spark.reads.reading import check_session
from icefloe.spark.writes.task_errors import as_raised
from icefloe.storage.run import run_blocking

_DONE = pa.schema([("summary", pa.binary())])


def garbage_collect(
    spark: SparkSession,
    repository: Repository | str,
    delete_object_older_than: datetime,
    *,
    dry_run: bool = False,
) -> GCSummary:
    """`Repository.garbage_collect` by many tasks: the same objects go, the same numbers come back.

    A task that is run again deletes what is gone already, which does no harm. A collection that
    was broken off can be repeated.
    """
    check_session(spark)
    opened = as_repository(repository)
    options = maintenance_values.collection_options(delete_object_older_than)
    with as_raised():
        return _Run(spark, opened, options).run(dry_run=dry_run)


class _Snapshots(Collection):
    """The part of a collection that is about snapshots; the rest is rows."""

    async def look(self) -> None:
        self.handle.family.require_spec_folders("garbage collection on Spark")
        await self.require_open()
        for kind, folder in KINDS.items():
            nothing = StoredObjects(
                folder, np.empty((0, 12), np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
            )
            self.stored[kind] = nothing
        self.stored["snapshots"] = await list_folder(self.handle.driver, KINDS["snapshots"])

    async def walk(self, snapshots: IdSet) -> None:
        """Tasks walk what stays, when it is final: all of it, before anything is deleted."""
        self.walked = IdSet.union([self.walked, snapshots])


class _Run:
    def __init__(self, spark: SparkSession, repository: Repository, options: Options) -> None:
        self.spark = spark
        self.source = WorkerRepository.of(repository)
        self.handle: RepoHandle = repository.handle
        self.options = options

    def run(self, *, dry_run: bool) -> GCSummary:
        """Look, decide, delete."""
        snapshots = _Snapshots(self.handle, self.options, Reporter())
        run_blocking(snapshots.look())
        listed = list_objects(self.spark, self.source).where("id is not null")
        old = kept(listed.where(sf.col("created_at") < self.options.older_than))
        try:
            if dry_run:
                in_use, _ = run_blocking(snapshots.decide())
                return self._count(self._garbage(old, in_use))
            # Listed now, before the decision: what is stored later is not in the list.
            newest = old.agg(sf.max("created_at")).collect()[0][0]
            bound = 0 if newest is None else int(newest) + 1
            if bound:
                run_blocking(fence.raise_fence(self.handle, bound))
            in_use = run_blocking(snapshots.publish())
            # A listing that is lost with its executor is made again, and may show more by then:
            # what was stored from the fence on is safe.
            return self._delete(self._garbage(old.where(sf.col("created_at") < bound), in_use))
        finally:
            old.unpersist()

    def _garbage(self, old: DataFrame, in_use: InUse) -> DataFrame:
        """Old objects that nothing refers to. A file that cannot be read ends it here."""
        manifests = kept(manifest_rows(self.spark, self.source, in_use.snapshots))
        live = {
            "snapshots": id_rows(self.spark, [row.tobytes() for row in in_use.snapshots.rows]),
            "transaction_logs": id_rows(
                self.spark, [row.tobytes() for row in in_use.transaction_logs.rows]
            ),
            "manifests": manifests.select("id"),
            "chunks": chunk_id_rows(self.spark, self.source, manifests),
        }
        parts = None
        for kind, folder in KINDS.items():
            rest = old.where(sf.col("folder") == folder).join(live[kind], "id", "left_anti")
            part = rest.select(sf.lit(kind).alias("kind"), "id", "size_bytes", "created_at")
            parts = part if parts is None else parts.union(part)
        assert parts is not None
        found = kept(parts)
        found.count()  # everything was walked when the first object is deleted
        manifests.unpersist()
        return found

    def _count(self, garbage: DataFrame) -> GCSummary:
        summary = GCSummary()
        rows = garbage.groupBy("kind").agg(sf.count(sf.lit(1)), sf.sum("size_bytes")).collect()
        for kind, number, size in rows:
            setattr(summary, f"{kind}_deleted", number)
            summary.bytes_deleted += size
        garbage.unpersist()
        return summary

    def _delete(self, garbage: DataFrame) -> GCSummary:
        """What refers to something goes before what it refers to."""
        total = GCSummary()
        self.handle.assets.caches.clear()
        for kind in KINDS:
            if total.objects_failed_to_delete:
                total.skipped_phases.append(kind)
                continue
            rows = garbage.where(sf.col("kind") == kind).repartition(num_tasks(self.spark), "id")
            task = partial(_delete_task, kind=kind, pace=self.options.pace)
            for row in run_task(rows, self.source, task, _DONE).toArrow()["summary"].to_pylist():
                _add(total, pickle.loads(row))
        garbage.unpersist()
        return total


def _add(total: GCSummary, part: GCSummary) -> None:
    for each in fields(GCSummary):
        if each.name == "delete_errors":
            new = [text for text in part.delete_errors if text not in total.delete_errors]
            total.delete_errors += new[: max(0, 10 - len(total.delete_errors))]
        elif each.name != "skipped_phases":
            value = getattr(total, each.name) + getattr(part, each.name)
            setattr(total, each.name, value)


def _delete_task(
    source: WorkerRepository, batches: Batches, kind: str, pace: Pace
) -> Iterator[pa.RecordBatch]:
    driver = source.handle.driver
    for batch in batches:
        if not batch.num_rows:
            continue
        none = np.empty((0, 12), np.uint8)
        times = np.empty(0, np.int64)
        objects = {
            name: StoredObjects(folder, none, times, times) for name, folder in KINDS.items()
        }
        objects[kind] = StoredObjects(
            KINDS[kind],
            ids_in(batch["id"]),
            np.asarray(batch["size_bytes"]),
            np.asarray(batch["created_at"]),
        )
        summary = run_blocking(delete_objects(driver, objects, pace, Reporter()))
        yield pa.RecordBatch.from_pylist([{"summary": pickle.dumps(summary)}], schema=_DONE)
