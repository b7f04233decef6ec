"""`migrate_repository` on Spark: each task converts some manifests and copies their chunks."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import pyarrow as pa
from pyspark.sql import SparkSession

from icefloe.api.handles import Handles
from icefloe.api.migration import target_handle
from icefloe.api.repository import Repository
from icefloe.config import RepositoryConfig
from icefloe.format.columns.id_set import IdSet
from icefloe.ids import SnapshotId
from icefloe.maintenance.check_refs import History
from icefloe.maintenance.findings import VerifyReport
from icefloe.maintenance.migration.compare import Comparison
from icefloe.maintenance.migration.convert import (
    Conversion,
    ConvertedArray,
    ManifestWork,
    chunks_there,
)
from icefloe.maintenance.migration.migrate import (
    ChunkMode,
    ConvertedAhead,
    MigrationReport,
    migrate,
)
from icefloe.maintenance.migration.new_history import MovedSnapshot
from icefloe.maintenance.progress import Report, Reporter
from icefloe.repo.handle import RepoHandle
from icefloe.spark.maintenance.verify_rows import verify_history
from icefloe.spark.writes.map_items import Batches, map_items
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage

_LOGS_DDL = "unknown binary"
_DDL = "arrays binary, chunks_copied bigint, bytes_copied bigint, chunks_compared bigint"


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
    """
    where = (storage or repo.storage).bound()
    target = target_handle(repo, where, int(spec_version), config, chunks)
    job = _Job(pickle.dumps((repo, where, int(spec_version), config, chunks)))
    return run_blocking(
        migrate(
            repo.handle,
            target,
            chunks=chunks,
            dry_run=dry_run,
            check=check,
            reporter=Reporter(progress),
            engine=_SparkMigration(spark, job, num_tasks),
        )
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """The two repositories and the way chunks go, in the form that travels."""

    places: bytes = field(repr=False)
    base_url: str | None = None
    copies: bool = True
    check: bool = True


@dataclass(frozen=True, slots=True)
class _SparkMigration:
    """The engine of a migration on Spark."""

    spark: SparkSession
    job: _Job
    num_tasks: int | None

    def convert(
        self, work: Sequence[ManifestWork], *, base_url: str | None, copies: bool, check: bool
    ) -> ConvertedAhead:
        if not work:
            return ConvertedAhead([], 0, 0, 0)
        job = _Job(self.job.places, base_url, copies, check)
        rows = map_items(self.spark, work, partial(_convert, job), _DDL, self.num_tasks).collect()
        arrays: list[ConvertedArray] = []
        for row in rows:
            arrays += pickle.loads(row["arrays"])
        return ConvertedAhead(
            arrays,
            sum(row["chunks_copied"] for row in rows),
            sum(row["bytes_copied"] for row in rows),
            sum(row["chunks_compared"] for row in rows),
        )

    def write_logs(self, moved: Sequence[MovedSnapshot]) -> list[SnapshotId]:
        if not moved:
            return []
        work = partial(_write_logs, _Job(self.job.places, copies=False))
        made = map_items(self.spark, moved, work, _LOGS_DDL, self.num_tasks)
        return [each for row in made.collect() for each in pickle.loads(row["unknown"])]

    def verify(self, target: RepoHandle, history: History) -> VerifyReport:
        opened = Repository(Handles(target, is_blocking=True))
        return verify_history(self.spark, opened, history)


@lru_cache(maxsize=2)
def _in_process(job: _Job, process: int) -> tuple[Conversion, Comparison]:
    """What tasks of this process share: chunks that one has copied are not copied by another."""
    repo, where, spec_version, config, chunks = pickle.loads(job.places)
    target = target_handle(repo, where, spec_version, config, chunks)
    present = IdSet.of_ids(())
    if job.copies:
        present = run_blocking(chunks_there(repo.handle, target))
    conversion = Conversion(
        repo.handle,
        target,
        chunk_base_url=job.base_url,
        copies_chunks=job.copies,
        present=present,
    )
    return conversion, Comparison(repo.handle, target, has_copies=job.copies)


def _convert(job: _Job, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Convert the manifests of some rows, and compare what was written with the source."""
    conversion, comparison = _in_process(job, os.getpid())
    before = conversion.num_chunks_copied, conversion.num_bytes_copied, comparison.num_chunks
    made: list[ConvertedArray] = []
    for batch in batches:
        for item in batch.column("item").to_pylist():
            made += run_blocking(_convert_one(pickle.loads(item), conversion, comparison, job))
    run_blocking(conversion.target.driver.sync())
    counts = conversion.num_chunks_copied, conversion.num_bytes_copied, comparison.num_chunks
    told = [after - first for after, first in zip(counts, before, strict=True)]
    columns = [pa.array([pickle.dumps(made)], pa.binary())]
    columns += [pa.array([number], pa.int64()) for number in told]
    names = ["arrays", "chunks_copied", "bytes_copied", "chunks_compared"]
    yield pa.record_batch(columns, names)


def _write_logs(job: _Job, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Write the transaction logs of some snapshots."""
    conversion, _ = _in_process(job, os.getpid())
    known = len(conversion.lacks_log)
    for batch in batches:
        for item in batch.column("item").to_pylist():
            run_blocking(conversion.write_log(pickle.loads(item)))
    run_blocking(conversion.target.driver.sync())
    unknown = pickle.dumps(conversion.lacks_log[known:])
    yield pa.record_batch([pa.array([unknown], pa.binary())], ["unknown"])


async def _convert_one(
    work: ManifestWork, conversion: Conversion, comparison: Comparison, job: _Job
) -> list[ConvertedArray]:
    converted = []
    async for made, refs in conversion.write_arrays(work):
        converted.append(made)
        if job.check and made.info is not None:
            assets = conversion.target.assets
            (manifest,) = await assets.load_manifests([(made.info.id, made.info.size_bytes)])
            copied = manifest.find(made.source[1])
            assert copied is not None
            await comparison.references(refs, copied, f"manifest {work.id}")
    return converted
