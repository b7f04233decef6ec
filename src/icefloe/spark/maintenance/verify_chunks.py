"""The part of `verify` on Spark that reads chunks and decodes them.

Inline and virtual chunks are read by the task that has their manifest. Native chunks become rows,
because manifests of later commits mostly refer to the same objects: each is read once, for the
manifest with the smallest id, as in one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icefloe.format import layout
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest.file import ArrayManifest
from icefloe.ids import ChunkId, ManifestId, NodeId
from icefloe.maintenance.check_manifest import Use
from icefloe.maintenance.check_snapshot import binary_column
from icefloe.maintenance.findings import Finding
from icefloe.maintenance.read_chunks import read_and_decode
from icefloe.spark.maintenance.stages import Batches, WorkerRepository, num_tasks, run_task
from icefloe.storage.run import run_blocking

REFERENCES = pa.schema(
    [
        ("chunk_id", pa.binary()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("manifest_id", pa.binary()),
        ("node_id", pa.binary()),
        ("path", pa.string()),
        ("index", pa.binary()),
        ("form", pa.string()),
    ]
)
"""One row per reference to a native chunk. `index` has big-endian numbers, so that it sorts as they
do. `form` has a digest for each of the forms that the chunk must decode with."""


def digest(form: str) -> str:
    """A short name of a form."""
    return sha256(form.encode()).hexdigest()[:32]


def references_of(
    manifest_id: ManifestId, array: ArrayManifest, path: str, forms: Sequence[str]
) -> pa.RecordBatch:
    """The native chunks of an array in a manifest, as rows of `REFERENCES`."""
    refs = array.refs
    rows = np.flatnonzero(refs.kind == ChunkKind.NATIVE)
    count = len(rows) if refs.chunk_id is not None else 0
    rows = rows[:count]
    ids = np.empty((0, ChunkId.size), np.uint8) if refs.chunk_id is None else refs.chunk_id[rows]
    index = np.ascontiguousarray(refs.index[rows].astype(">u4"))
    return pa.RecordBatch.from_arrays(
        [
            binary_column(ids, np.full(count, ChunkId.size)),
            pa.array(refs.offset[rows].astype(np.int64)),
            pa.array(refs.length[rows].astype(np.int64)),
            pa.repeat(pa.scalar(bytes(manifest_id), pa.binary()), count),
            pa.repeat(pa.scalar(bytes(array.node_id), pa.binary()), count),
            pa.repeat(path, count),
            binary_column(index, np.full(count, 4 * refs.ndim)),
            pa.repeat(",".join(map(digest, forms)), count),
        ],
        schema=REFERENCES,
    )


def read_here(
    source: WorkerRepository,
    array: ArrayManifest,
    uses: Sequence[Use],
    *,
    with_virtual: bool,
) -> tuple[list[Finding], int, int]:
    """Read the inline chunks of an array in a manifest, and the virtual ones if that is wanted.

    Returns findings, the number of chunks, and their bytes.
    """
    wanted = array.refs.kind == ChunkKind.INLINE
    if with_virtual:
        wanted |= array.refs.kind == ChunkKind.VIRTUAL
    refs = array.refs.take(np.flatnonzero(wanted))
    path, forms = users_of(array.node_id, uses)
    found, size = run_blocking(read_and_decode(source.handle, array.node_id, path, refs, forms))
    return found, len(refs), size


def users_of(node_id: NodeId, uses: Sequence[Use]) -> tuple[str, list[str]]:
    """The path under which findings of an array are reported, and the forms of its chunks."""
    mine = [use for use in uses if use.node_id == node_id]
    return min((use.path for use in mine), default=""), sorted({use.form for use in mine})


def read_native(
    spark: SparkSession,
    source: WorkerRepository,
    references: DataFrame,
    listed: DataFrame,
    uses: DataFrame,
    task: Any,
    schema: pa.Schema,
) -> DataFrame:
    """Read every native chunk once, if its object is long enough.

    `references` are rows of `REFERENCES`, `uses` have the forms. `task` makes rows of `schema` from
    (findings, number of chunks, bytes).
    """
    forms = [row[0] for row in uses.select("form").distinct().collect()]
    by_digest = {digest(form): form for form in forms if form is not None}
    order = sf.struct("manifest_id", "node_id", "index", "length", "path", "form")
    once = references.groupBy("chunk_id", "offset").agg(sf.min(order).alias("first"))
    stored = listed.where((sf.col("folder") == layout.CHUNKS) & sf.col("id").isNotNull())
    stored = stored.select(sf.col("id").alias("chunk_id"), sf.col("size_bytes").alias("there"))
    whole = once.join(stored, "chunk_id").where("offset + first.length <= there")
    rows = whole.select("chunk_id", "offset", "first.*").repartition(num_tasks(spark), "chunk_id")
    rows = rows.sortWithinPartitions("manifest_id", "node_id", "index")
    read = partial(_read_task, forms=by_digest, task=task)
    return run_task(rows.select(*REFERENCES.names), source, read, schema)


def _read_task(
    source: WorkerRepository, batches: Batches, forms: Mapping[str, str], task: Any
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for _, group in groupby(batch.to_pylist(), key=_array_of):
            rows = list(group)
            refs, node_id, path = _native_refs(rows), NodeId(rows[0]["node_id"]), rows[0]["path"]
            wanted = sorted(forms[name] for name in rows[0]["form"].split(",") if name)
            reading = read_and_decode(source.handle, node_id, path, refs, wanted)
            found, size = run_blocking(reading)
            yield from task(found, len(refs), size)


def _array_of(row: Mapping[str, Any]) -> tuple[bytes, bytes]:
    return row["manifest_id"], row["node_id"]


def _native_refs(rows: Sequence[Mapping[str, Any]]) -> ChunkRefs:
    raw = [np.frombuffer(row["index"], ">u4") for row in rows]
    ids = np.frombuffer(b"".join(row["chunk_id"] for row in rows), np.uint8)
    return ChunkRefs.native(
        np.stack(raw).astype(np.uint32).reshape(len(rows), -1),
        ids.reshape(-1, ChunkId.size),
        np.array([row["offset"] for row in rows], np.uint64),
        np.array([row["length"] for row in rows], np.uint64),
    )
