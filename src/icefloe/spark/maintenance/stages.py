"""What jobs of maintenance have in common: repositories on workers, listings, live references."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from icefloe.api.repository import Repository
from icefloe.format import layout
from icefloe.format.columns.blobs import Bytes
from icefloe.maintenance.check_snapshot import binary_column
from icefloe.maintenance.listing import list_folder
from icefloe.repo.handle import RepoHandle
from icefloe.scans.scan import ROWS_PER_BATCH
from icefloe.spark.runtime.spark_session import parallelism
from icefloe.spark.runtime.tasks import map_batches
from icefloe.spark.spark_types import spark_schema
from icefloe.storage.run import run_blocking

TASKS_A_SLOT = 4
Batches = Iterable[pa.RecordBatch]

LISTED = pa.schema(
    [
        ("folder", pa.string()),
        ("id", pa.binary()),
        ("size_bytes", pa.int64()),
        ("created_at", pa.int64()),
        ("name", pa.string()),
    ]
)
"""Stored objects. An object whose name is no id has the name instead of the id."""

FOLDERS = (layout.SNAPSHOTS, layout.TRANSACTIONS, layout.MANIFESTS, layout.CHUNKS)


@dataclass(frozen=True, slots=True)
class WorkerRepository:
    """A repository in the form that travels; it need not have a branch that can be opened."""

    pickled: bytes = field(repr=False)

    @classmethod
    def of(cls, repository: Repository) -> WorkerRepository:
        return cls(pickle.dumps(repository))

    def open(self) -> Repository:
        """The repository, shared by all tasks of this process."""
        # By process: connections do not survive the fork by which Spark makes workers.
        return _open(os.getpid(), self.pickled)

    @property
    def handle(self) -> RepoHandle:
        return self.open().handle


@lru_cache(maxsize=8)
def _open(process: int, pickled: bytes) -> Repository:
    found: Repository = pickle.loads(pickled)
    return found


class Task(Protocol):
    """Rows in, rows out, on a worker."""

    def __call__(self, source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]: ...


def run_task(rows: DataFrame, source: WorkerRepository, task: Any, schema: pa.Schema) -> DataFrame:
    """What a task makes of the rows."""
    return map_batches(rows, partial(task, source), spark_schema(schema))


def id_rows(spark: SparkSession, ids: Sequence[bytes]) -> DataFrame:
    """A column `id`."""
    table = pa.table({"id": pa.array([bytes(one) for one in ids], pa.binary())})
    return spark.createDataFrame(table, "id binary")


def kept(rows: DataFrame) -> DataFrame:
    """Rows that several later steps read; tasks that made them are not run again."""
    return rows.persist(StorageLevel.MEMORY_AND_DISK)


def num_tasks(spark: SparkSession) -> int:
    """Enough for every slot, and more, so that a slow task does not leave the others idle."""
    return parallelism(spark) * TASKS_A_SLOT


def list_objects(spark: SparkSession, source: WorkerRepository) -> DataFrame:
    """Everything that is named by ids, a task for each folder; rows of `LISTED`."""
    table = pa.table({"folder": pa.array(FOLDERS, pa.string())})
    folders = spark.createDataFrame(table, "folder string").repartitionByRange(4, "folder")
    return run_task(folders, source, _list_task, LISTED)


def _list_task(source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]:
    driver = source.handle.driver
    for batch in batches:
        for folder in batch.column(0).to_pylist():
            found = run_blocking(list_folder(driver, folder))
            for first in range(0, len(found), ROWS_PER_BATCH):
                rows = slice(first, first + ROWS_PER_BATCH)
                ids = found.id[rows]
                columns = [
                    pa.repeat(folder, len(ids)),
                    binary_column(ids, np.full(len(ids), ids.shape[1])),
                    pa.array(found.size_bytes[rows]),
                    pa.array(found.created_at[rows]),
                    pa.nulls(len(ids), pa.string()),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=LISTED)
            strange = [{"folder": folder, "name": name} for name in found.strange_names]
            yield pa.RecordBatch.from_pylist(strange, schema=LISTED)


def ids_in(column: pa.Array) -> Bytes:
    """A column of ids as rows of bytes."""
    raw = np.frombuffer(b"".join(column.to_pylist()), np.uint8)
    return raw.reshape(len(column), -1)
