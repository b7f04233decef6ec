"""The engine of maintenance on Spark: work by tasks, objects and references as rows.

Work is written against `icefloe.maintenance.engine`, so it is the same in one process. What grows
with the data (listings, manifests, chunks) stays in DataFrames, and meets in joins.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from operator import attrgetter
from typing import Any, Generic

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icefloe.api.repository import Repository
from icefloe.assets.assets import list_folder
from icefloe.format import layout
from icefloe.format.chunk_index import IdSet
from icefloe.format.chunk_refs import ChunkKind
from icefloe.format.columns import Bytes
from icefloe.format.manifest import Manifest
from icefloe.format.snapshot import ManifestFiles
from icefloe.ids import ObjectId
from icefloe.maintenance import live
from icefloe.maintenance.checks import id_column
from icefloe.maintenance.engine import Here, Item, Result, Work
from icefloe.repo.handle import RepoHandle
from icefloe.scans.scan import ROWS_PER_BATCH, columns
from icefloe.spark.tasks import Batches, map_batches, map_results, usual_tasks
from icefloe.spark.versions import from_arrow, spark_schema
from icefloe.storage.driver import Driver
from icefloe.storage.run import each_blocking

_FILES_AT_ONCE = 64

LISTED = columns("folder string, id binary?, size_bytes bigint?, created_at bigint?, name string?")
"""Stored objects. An object whose name is no id has the name instead of the id."""

FILES = columns("id binary, size_bytes bigint?")
IDS = columns("id binary")
CHUNKS = columns("kind int, chunk_id binary?, location string?, offset bigint?, length bigint")
"""One row for each chunk of a manifest; all inline chunks of an array in it are one row."""


@dataclass(frozen=True, slots=True)
class Place(Generic[Here]):
    """The context of the work, as it travels to tasks."""

    pickled: bytes = field(repr=False)

    @classmethod
    def of(cls, opener: Callable[..., Here], *arguments: Any) -> Place[Here]:
        return cls(pickle.dumps((opener, arguments)))

    def open(self) -> Here:
        """What the opener returns, shared by all tasks of this process."""
        # By process: connections do not survive the fork by which Spark makes workers.
        found: Here = _open(os.getpid(), self.pickled)
        return found


@lru_cache(maxsize=8)
def _open(process: int, pickled: bytes) -> Any:
    opener, arguments = pickle.loads(pickled)
    return opener(*arguments)


class SparkEngine(Generic[Here]):
    """Works by the tasks of a session; see `icefloe.maintenance.engine.Engine`."""

    def __init__(
        self, spark: SparkSession, place: Place[Here], *, num_tasks: int | None = None
    ) -> None:
        self.spark = spark
        self.place = place
        self.num_tasks = num_tasks
        self._kept: list[DataFrame] = []

    @property
    def here(self) -> Here:
        """The context of the driver."""
        return self.place.open()

    async def map(
        self, stage: str, work: Work[Here, Item, Result], items: Sequence[Item]
    ) -> AsyncIterator[Result]:
        """What `work` makes of the items, in no particular order."""
        task = partial(_run_task, self.place, work)
        for result in map_results(self.spark, items, task, self.num_tasks):
            yield result

    def run(self, rows: DataFrame, task: Any, schema: pa.Schema) -> DataFrame:
        """What a task makes of the rows: work whose items and results are batches."""
        return map_batches(rows, partial(_run_task, self.place, task), spark_schema(schema))

    def spread(self, rows: DataFrame, column: str = "id") -> DataFrame:
        """Rows for as many tasks as there should be; those with one value get to the same."""
        return rows.repartition(self.num_tasks or usual_tasks(self.spark), column)

    def keep(self, rows: DataFrame) -> DataFrame:
        """Rows that several later steps read; tasks that made them are not run again."""
        self._kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    def forget(self) -> None:
        """Release what was kept."""
        for rows in self._kept:
            rows.unpersist()

    def id_rows(self, ids: IdSet | Sequence[ObjectId]) -> DataFrame:
        """A column `id`."""
        found = [row.tobytes() for row in ids.rows] if isinstance(ids, IdSet) else map(bytes, ids)
        table = pa.table({"id": pa.array(found, pa.binary())})
        return from_arrow(self.spark, table)

    def listing(self, driver_of: Callable[[Here], Driver]) -> DataFrame:
        """Everything that is named by ids, a task for each folder; rows of `LISTED`."""
        table = pa.table({"folder": pa.array(layout.KINDS.values(), pa.string())})
        folders = from_arrow(self.spark, table)
        task = partial(_list_task, driver_of)
        return self.run(folders.repartitionByRange(4, "folder"), task, LISTED)


class RepositoryRows(SparkEngine[RepoHandle]):
    """What a repository consists of, as rows; it need not have a branch that can be opened."""

    def __init__(self, spark: SparkSession, repository: Repository) -> None:
        super().__init__(spark, Place.of(_handle, repository))

    def stored(self) -> DataFrame:
        """Everything that is stored; rows of `LISTED`."""
        return self.listing(attrgetter("driver"))

    def by_snapshot(self, rows: DataFrame, count: int) -> DataFrame:
        """Rows of so many snapshots, for at most as many tasks."""
        return rows.repartition(max(1, min(usual_tasks(self.spark), count)), "id")

    def manifest_rows(self, snapshots: IdSet) -> DataFrame:
        """The manifest files of these snapshots, each once; rows of `FILES`."""
        wanted = self.by_snapshot(self.id_rows(snapshots), snapshots.size)
        found = self.run(wanted, _manifests_task, FILES)
        # Snapshots agree about sizes, or one of them does not know it.
        return found.groupBy("id").agg({"size_bytes": "max"}).toDF("id", "size_bytes")

    def in_use_rows(self, snapshots: IdSet, logs: IdSet, manifests: DataFrame) -> DataFrame:
        """Columns `folder` and `id` of all objects in use."""
        return in_folders(
            {
                layout.SNAPSHOTS: self.id_rows(snapshots),
                layout.TRANSACTIONS: self.id_rows(logs),
                layout.MANIFESTS: manifests,
                layout.CHUNKS: self.run(self.spread(manifests), _chunk_ids_task, IDS).distinct(),
            }
        )

    def chunk_rows(self, manifests: DataFrame) -> DataFrame:
        """Every chunk of these manifests; rows of `CHUNKS`."""
        return self.run(self.spread(manifests), _chunks_task, CHUNKS)


def _handle(repository: Repository) -> RepoHandle:
    return repository.handle


def _run_task(place: Place[Any], task: Any, given: Iterable[Any]) -> Iterator[Any]:
    return each_blocking(task(place.open(), given))


def in_folders(ids: Mapping[str, DataFrame]) -> DataFrame:
    """Columns `folder` and `id`, from the ids of each folder."""
    parts = [rows.select(sf.lit(folder).alias("folder"), "id") for folder, rows in ids.items()]
    return reduce(DataFrame.union, parts)


def ids_in(column: pa.Array) -> Bytes:
    """A column of ids as rows of bytes."""
    raw = np.frombuffer(b"".join(column.to_pylist()), np.uint8)
    return raw.reshape(len(column), -1)


async def _list_task(
    driver_of: Callable[[Here], Driver], here: Here, batches: Batches
) -> AsyncIterator[pa.RecordBatch]:
    for folder in (folder for batch in batches for folder in batch["folder"].to_pylist()):
        found = await list_folder(driver_of(here), folder)
        for first in range(0, len(found), ROWS_PER_BATCH):
            some = found.take(slice(first, first + ROWS_PER_BATCH))
            arrays = [
                pa.repeat(folder, len(some)),
                id_column(some.id),
                pa.array(some.size_bytes),
                pa.array(some.created_at),
                pa.nulls(len(some), pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=LISTED)
        strange = [{"folder": folder, "name": name} for name in found.strange_names]
        yield pa.RecordBatch.from_pylist(strange, schema=LISTED)


def one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Columns of a table, of a schema, as one batch, also if there are no rows."""
    some = table.select(schema.names).cast(schema).combine_chunks().to_batches()
    return some[0] if some else pa.RecordBatch.from_pylist([], schema=schema)


async def _manifests_task(handle: RepoHandle, batches: Batches) -> AsyncIterator[pa.RecordBatch]:
    for batch in batches:
        files = await live.manifest_files(handle, IdSet.of(ids_in(batch["id"])))
        arrays = [id_column(files.id), pa.array(files.size_bytes.astype(np.int64))]
        yield pa.RecordBatch.from_arrays(arrays, schema=FILES)


async def _chunk_ids_task(handle: RepoHandle, batches: Batches) -> AsyncIterator[pa.RecordBatch]:
    async for manifest in _manifests(handle, batches):
        ids = IdSet.of(manifest.native_chunk_ids()).rows
        yield pa.RecordBatch.from_arrays([id_column(ids)], schema=IDS)


async def _chunks_task(handle: RepoHandle, batches: Batches) -> AsyncIterator[pa.RecordBatch]:
    async for manifest in _manifests(handle, batches):
        for refs in (array.refs for array in manifest.arrays):
            is_inline = refs.kind == ChunkKind.INLINE
            yield one_batch(refs.take(np.flatnonzero(~is_inline)).to_arrow(plain=True), CHUNKS)
            if is_inline.any():
                size = int(refs.length[is_inline].sum())
                inlined = {"kind": int(ChunkKind.INLINE), "length": size}
                yield pa.RecordBatch.from_pylist([inlined], schema=CHUNKS)


async def _manifests(handle: RepoHandle, batches: Batches) -> AsyncIterator[Manifest]:
    """Decoded manifests, some at a time."""
    for batch in batches:
        for first in range(0, batch.num_rows, _FILES_AT_ONCE):
            some = batch.slice(first, _FILES_AT_ONCE).sort_by("id")
            ids, sizes = ids_in(some["id"]), np.asarray(some["size_bytes"]).astype(np.uint64)
            files = ManifestFiles(ids, sizes, np.zeros(len(ids), np.uint32))
            async for manifest in live.each_manifest(handle, files):
                yield manifest
