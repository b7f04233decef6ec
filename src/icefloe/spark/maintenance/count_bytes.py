"""`storage_stats`: bytes of chunks, counted by many tasks."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from icefloe.api.repository import Repository
from icefloe.format.manifest.chunk_refs import ChunkKind
from icefloe.maintenance import live
from icefloe.maintenance.summary import ChunkStorageStats
from icefloe.scans.pinned import as_repository
from icefloe.spark.maintenance.live_rows import chunk_rows, manifest_rows
from icefloe.spark.maintenance.stages import WorkerRepository
from icefloe.spark.reads.reading import check_session
from icefloe.spark.writes.task_errors import as_raised
from icefloe.storage.run import run_blocking


def storage_stats(spark: SparkSession, repository: Repository | str) -> ChunkStorageStats:
    """`Repository.chunk_storage_stats` by many tasks: the same numbers."""
    check_session(spark)
    opened = as_repository(repository)
    source, handle = WorkerRepository.of(opened), opened.handle
    tips = run_blocking(live.ref_tips(handle))
    snapshots = run_blocking(live.reachable_snapshots(handle, tips.values()))
    chunks = chunk_rows(spark, source, manifest_rows(spark, source, snapshots))
    place = ["kind", "chunk_id", "location", "offset", "length"]
    stored = chunks.where(sf.col("kind") != int(ChunkKind.INLINE)).dropDuplicates(place)
    inlined = chunks.where(sf.col("kind") == int(ChunkKind.INLINE))
    both = stored.select("kind", "length").union(inlined.select("kind", "length"))
    with as_raised():
        found = both.groupBy("kind").agg(sf.sum("length")).collect()
    total = {ChunkKind(kind): int(number) for kind, number in found}
    return ChunkStorageStats(
        total.get(ChunkKind.NATIVE, 0),
        total.get(ChunkKind.VIRTUAL, 0),
        total.get(ChunkKind.INLINE, 0),
    )
