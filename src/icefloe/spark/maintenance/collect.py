"""`garbage_collect` and `storage_stats` on Spark: listing, walking and deleting are done by tasks.

What makes a collection safe is done by `icefloe.maintenance.gc`: objects are listed first, the
fence is raised, the decision becomes final in one conditional write on the driver, and only then
anything is deleted, kind by kind. The driver holds the ids of snapshots. Manifests and chunks in
use are rows, and garbage is what an anti-join leaves of the listing.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from dataclasses import fields
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icefloe.api import maintenance_values
from icefloe.api.repository import Repository
from icefloe.assets.assets import StoredObjects, list_folder
from icefloe.format.chunk_index import IdSet
from icefloe.format.chunk_refs import ChunkKind
from icefloe.format.layout import KINDS
from icefloe.maintenance import live
from icefloe.maintenance.gc import Collection, InUse, Options, Pace, collect, delete_objects
from icefloe.maintenance.progress import Reporter
from icefloe.maintenance.summary import ChunkStorageStats, GCSummary
from icefloe.repo.handle import RepoHandle
from icefloe.spark.maintenance.engine import CHUNKS, RepositoryRows, ids_in
from icefloe.spark.readers import opened
from icefloe.spark.tasks import Batches, as_raised
from icefloe.spark.versions import to_arrow
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

    >>> week_ago = datetime.now(UTC) - timedelta(days=7)
    >>> summary = icefloe.spark.maintenance.garbage_collect(spark, repo, week_ago)
    """
    repo = opened(spark, repository)
    options = maintenance_values.collection_options(delete_object_older_than)
    collection = _SparkCollection(spark, repo, options)
    try:
        with as_raised():
            return run_blocking(collect(collection, dry_run=dry_run))
    finally:
        collection.rows.forget()


class _SparkCollection(Collection):
    """A collection whose manifests and chunks are rows."""

    def __init__(self, spark: SparkSession, repository: Repository, options: Options) -> None:
        super().__init__(repository.handle, options, Reporter())
        self.rows = RepositoryRows(spark, repository)

    async def look(self) -> None:
        self.handle.format.require_spec_folders("garbage collection on Spark")
        await self.require_open()
        self.stored["snapshots"] = await list_folder(self.handle.driver, KINDS["snapshots"])
        listed = self.rows.stored().where("id is not null")
        self.old = self.rows.keep(listed.where(sf.col("created_at") < self.options.older_than))

    async def narrow(self) -> None:
        """An anti-join leaves out what is in use."""

    async def walk(self, snapshots: IdSet) -> None:
        """Tasks walk what stays, when it is final: all of it, before anything is deleted."""
        self.walked = IdSet.union([self.walked, snapshots])

    def newest(self) -> int:
        """Listed now, before the decision: what is stored later is not in the list."""
        newest = self.old.agg(sf.max("created_at")).collect()[0][0]
        bound = 0 if newest is None else int(newest) + 1
        # A listing that is lost with its executor is made again, and may show more by then:
        # what was stored from the fence on is safe.
        self.old = self.old.where(sf.col("created_at") < bound)
        return bound

    def _garbage(self, in_use: InUse) -> DataFrame:
        """Old objects that nothing refers to. A file that cannot be read ends it here."""
        manifests = self.rows.keep(self.rows.manifest_rows(in_use.snapshots))
        used = self.rows.in_use_rows(in_use.snapshots, in_use.transaction_logs, manifests)
        found = self.rows.keep(self.old.join(used, ["folder", "id"], "left_anti"))
        found.count()  # everything was walked when the first object is deleted
        return found

    async def count(self) -> GCSummary:
        in_use, _ = await self.decide()
        summary = GCSummary()
        grouped = self._garbage(in_use).groupBy("folder")
        found = grouped.agg(sf.count(sf.lit(1)), sf.sum("size_bytes")).collect()
        kinds = {folder: kind for kind, folder in KINDS.items()}
        for folder, number, size in found:
            setattr(summary, f"{kinds[folder]}_deleted", number)
            summary.bytes_deleted += size
        return summary

    async def delete(self, in_use: InUse) -> GCSummary:
        """What refers to something goes before what it refers to."""
        garbage = self._garbage(in_use)
        total = GCSummary()
        for kind, folder in KINDS.items():
            if total.objects_failed_to_delete:
                total.skipped_phases.append(kind)
                continue
            mine = self.rows.spread(garbage.where(sf.col("folder") == folder))
            done = self.rows.run(mine, partial(_delete_task, kind, self.options.pace), _DONE)
            for row in to_arrow(done)["summary"].to_pylist():
                _add(total, pickle.loads(row))
        return total


def _add(total: GCSummary, part: GCSummary) -> None:
    for each in fields(GCSummary):
        if each.name == "delete_errors":
            new = [text for text in part.delete_errors if text not in total.delete_errors]
            total.delete_errors += new[: max(0, 10 - len(total.delete_errors))]
        elif each.name not in ("skipped_phases", "looked_for_orphans", "full_because"):
            value = getattr(total, each.name) + getattr(part, each.name)
            setattr(total, each.name, value)


async def _delete_task(
    kind: str, pace: Pace, handle: RepoHandle, batches: Batches
) -> AsyncIterator[pa.RecordBatch]:
    for batch in batches:
        if not batch.num_rows:
            continue
        sizes, times = np.asarray(batch["size_bytes"]), np.asarray(batch["created_at"])
        objects = StoredObjects(KINDS[kind], ids_in(batch["id"]), sizes, times)
        summary = await delete_objects(handle.driver, {kind: objects}, pace, Reporter())
        yield pa.RecordBatch.from_pylist([{"summary": pickle.dumps(summary)}], schema=_DONE)


def storage_stats(spark: SparkSession, repository: Repository | str) -> ChunkStorageStats:
    """`Repository.chunk_storage_stats` by many tasks: the same numbers.

    >>> stats = icefloe.spark.maintenance.storage_stats(spark, repo)
    >>> stats.native_bytes > 0
    True
    """
    repo = opened(spark, repository)
    handle, rows = repo.handle, RepositoryRows(spark, repo)
    tips = run_blocking(live.ref_tips(handle))
    snapshots = run_blocking(live.reachable_snapshots(handle, tips.values()))
    chunks = rows.chunk_rows(rows.manifest_rows(snapshots))
    is_inline = sf.col("kind") == int(ChunkKind.INLINE)
    stored = chunks.where(~is_inline).dropDuplicates(CHUNKS.names)
    both = stored.union(chunks.where(is_inline))
    with as_raised():
        found = both.groupBy("kind").agg(sf.sum("length")).collect()
    total = {ChunkKind(kind): int(number) for kind, number in found}
    kinds = (ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE)
    return ChunkStorageStats(*(total.get(kind, 0) for kind in kinds))
