"""What is in use, as DataFrames: snapshots to manifests, manifests to chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icefloe.format.columns.id_set import IdSet
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest.file import Manifest
from icefloe.format.snapshot.file import ManifestFiles
from icefloe.ids import ChunkId
from icefloe.maintenance import live
from icefloe.maintenance.check_snapshot import binary_column
from icefloe.spark.maintenance.stages import (
    Batches,
    WorkerRepository,
    id_rows,
    ids_in,
    num_tasks,
    run_task,
)
from icefloe.storage.run import run_blocking

FILES = pa.schema([("id", pa.binary()), ("size_bytes", pa.int64())])
IDS = pa.schema([("id", pa.binary())])
CHUNKS = pa.schema(
    [
        ("kind", pa.int32()),
        ("chunk_id", pa.binary()),
        ("location", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
    ]
)
"""One row for each chunk of a manifest; all inline chunks of a manifest together are one row."""

_FILES_AT_ONCE = 64


def manifest_rows(spark: SparkSession, source: WorkerRepository, snapshots: IdSet) -> DataFrame:
    """The manifest files of these snapshots, each once; rows of `FILES`."""
    ids = [row.tobytes() for row in snapshots.rows]
    wanted = id_rows(spark, ids).repartition(max(1, min(num_tasks(spark), len(ids))), "id")
    found = run_task(wanted, source, _manifests_task, FILES)
    # Snapshots agree about sizes, or one of them does not know it.
    return found.groupBy("id").agg({"size_bytes": "max"}).toDF("id", "size_bytes")


def chunk_id_rows(spark: SparkSession, source: WorkerRepository, manifests: DataFrame) -> DataFrame:
    """The chunk objects that these manifests refer to, each once; rows of `IDS`."""
    spread = manifests.repartition(num_tasks(spark), "id")
    return run_task(spread, source, _chunk_ids_task, IDS).distinct()


def chunk_rows(spark: SparkSession, source: WorkerRepository, manifests: DataFrame) -> DataFrame:
    """Every chunk of these manifests; rows of `CHUNKS`."""
    spread = manifests.repartition(num_tasks(spark), "id")
    return run_task(spread, source, _chunks_task, CHUNKS)


def _manifests_task(source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        files = run_blocking(live.manifest_files(source.handle, IdSet.of(ids_in(batch["id"]))))
        yield pa.RecordBatch.from_arrays(
            [
                binary_column(files.id, np.full(len(files), ChunkId.size)),
                pa.array(files.size_bytes.astype(np.int64)),
            ],
            schema=FILES,
        )


def _chunk_ids_task(source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]:
    for manifest in _manifests(source, batches):
        ids = IdSet.of(manifest.native_chunk_ids()).rows
        yield pa.RecordBatch.from_arrays(
            [binary_column(ids, np.full(len(ids), ChunkId.size))], schema=IDS
        )


def _chunks_task(source: WorkerRepository, batches: Batches) -> Iterator[pa.RecordBatch]:
    for manifest in _manifests(source, batches):
        for array in manifest.arrays:
            yield _chunk_columns(array.refs)


def _chunk_columns(refs: ChunkRefs) -> pa.RecordBatch:
    is_inline = refs.kind == ChunkKind.INLINE
    table = refs.take(np.flatnonzero(~is_inline)).to_arrow(plain=True)
    rows = pa.table(
        {
            "kind": table["kind"].cast(pa.int32()),
            "chunk_id": table["chunk_id"].cast(pa.binary()),
            "location": table["location"],
            "offset": table["offset"].cast(pa.int64()),
            "length": table["length"].cast(pa.int64()),
        }
    )
    if is_inline.any():
        inlined = {"kind": int(ChunkKind.INLINE), "length": int(refs.length[is_inline].sum())}
        rows = pa.concat_tables([rows, pa.Table.from_pylist([inlined], CHUNKS)])
    return rows.combine_chunks().to_batches()[0] if len(rows) else _no_chunks()


def _no_chunks() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=CHUNKS)


def _manifests(source: WorkerRepository, batches: Batches) -> Iterator[Manifest]:
    """Decoded manifests, some at a time."""
    for batch in batches:
        for first in range(0, batch.num_rows, _FILES_AT_ONCE):
            some = batch.slice(first, _FILES_AT_ONCE)
            ids = ids_in(some["id"])
            order = np.argsort(np.ascontiguousarray(ids).view("S12").reshape(-1))
            sizes = np.asarray(some["size_bytes"]).astype(np.uint64)
            none = np.zeros(len(ids), np.uint32)
            files = ManifestFiles(ids[order], sizes[order], none)
            waiting = live.each_manifest(source.handle, files)
            while True:
                try:
                    yield run_blocking(_next(waiting))
                except StopAsyncIteration:
                    break


async def _next(waiting: object) -> Manifest:
    found: Manifest = await anext(waiting)  # type: ignore[call-overload]
    return found
