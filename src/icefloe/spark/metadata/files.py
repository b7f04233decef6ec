"""The table `files`: every object of a repository, its size, and whether anything refers to it.

What nothing refers to is what garbage collection would take, unless it is too young. Through
`icefloe.spark.table` the work is spread: listing by prefix, snapshots to manifests, manifests to
chunks, and a join. The data source has no way to join, so there one task does it all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icefloe.api.repository import Repository
from icefloe.format import layout
from icefloe.format.manifest.chunk_refs import ChunkKind
from icefloe.ids import ManifestId, SnapshotId
from icefloe.repo import queries
from icefloe.repo.handle import RepoHandle
from icefloe.scans.arrow_types import INSTANT, required
from icefloe.scans.pinned import PinnedSnapshot
from icefloe.scans.scan import ROWS_PER_BATCH
from icefloe.spark.metadata.id_text import id_texts
from icefloe.spark.metadata.repo import all_snapshots
from icefloe.spark.spark_types import spark_schema
from icefloe.storage.run import run_blocking

SCHEMA = pa.schema(
    [
        required("path", pa.string()),
        required("kind", pa.string()),
        required("file_size_in_bytes", pa.int64()),
        required("created_at", INSTANT),
        required("is_referenced", pa.bool_()),
    ]
)
_LISTED = pa.schema(list(SCHEMA)[:-1])
_KEYS = pa.schema([required("key", pa.string())])
_FOLDERS = {
    layout.SNAPSHOTS: "snapshot",
    layout.MANIFESTS: "manifest",
    layout.TRANSACTIONS: "transaction_log",
    layout.CHUNKS: "chunk",
    layout.REFS: "ref",
    layout.OVERWRITTEN: "backup",
    layout.REPO: "repo",
    layout.CONFIG_YAML: "config",
}
_ID_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Files:
    """The scan of the data source: one partition."""

    source: PinnedSnapshot

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def num_partitions(self) -> int:
        return 1

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        repository = self.source.open_repository()
        handle = repository.handle
        handle.family.require_spec_folders("table 'files'")
        ids = [info.id for info in all_snapshots(repository)]
        manifests = pc.unique(pa.chunked_array(list(_manifest_keys(handle, ids)), pa.string()))
        chunks = list(_chunk_keys(handle, manifests.to_pylist()))
        live = pa.chunked_array([manifests, *chunks, pa.array(_known_keys(repository))])
        for folder in _FOLDERS:
            for batch in _list(handle, folder):
                is_live = pc.is_in(batch["path"], live)
                columns = [*batch.columns, is_live]
                yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def files_dataframe(spark: SparkSession, source: PinnedSnapshot, num_tasks: int) -> DataFrame:
    """The same, spread over tasks."""
    repository = source.open_repository()
    handle = repository.handle
    handle.family.require_spec_folders("table 'files'")

    def stage(items: Sequence[str], task: Callable[..., Iterator[pa.RecordBatch]]) -> DataFrame:
        schema = _LISTED if task is list_task else _KEYS
        table = pa.table({"item": pa.array(items, pa.string())})
        made = spark.createDataFrame(table).repartition(min(num_tasks, max(len(items), 1)), "item")
        return made.mapInArrow(partial(task, source), spark_schema(schema))

    listed = stage(_prefixes(handle), list_task)
    ids = [info.id for info in all_snapshots(repository)]
    manifests = stage(ids, manifests_task).distinct()
    chunks = manifests.repartition(num_tasks, "key").mapInArrow(
        partial(chunks_task, source), spark_schema(_KEYS)
    )
    known = spark.createDataFrame(pa.table({"key": pa.array(_known_keys(repository))}))
    live = manifests.union(chunks).union(known).distinct()
    live = live.withColumn("is_referenced", sf.lit(True))
    joined = listed.join(live, listed["path"] == live["key"], "left")
    return joined.select(
        *_LISTED.names,
        sf.coalesce("is_referenced", sf.lit(False)).alias("is_referenced"),
    )


# -- tasks: columns of text in, rows out


def list_task(
    source: PinnedSnapshot, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Prefixes to objects."""
    handle = source.open_repository().handle
    for batch in batches:
        for prefix in batch.column(0).to_pylist():
            yield from _list(handle, prefix)


def manifests_task(
    source: PinnedSnapshot, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Snapshot ids to the keys of their manifests."""
    handle = source.open_repository().handle
    for batch in batches:
        for keys in _manifest_keys(handle, batch.column(0).to_pylist()):
            yield pa.RecordBatch.from_arrays([keys], schema=_KEYS)


def chunks_task(
    source: PinnedSnapshot, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Keys of manifests to the keys of the chunk objects they refer to."""
    handle = source.open_repository().handle
    for batch in batches:
        for keys in _chunk_keys(handle, batch.column(0).to_pylist()):
            yield pa.RecordBatch.from_arrays([keys], schema=_KEYS)


def _list(handle: RepoHandle, prefix: str) -> Iterator[pa.RecordBatch]:
    found = run_blocking(handle.driver.list(prefix))
    kind = next(name for folder, name in _FOLDERS.items() if prefix.startswith(folder))
    for first in range(0, len(found), ROWS_PER_BATCH):
        some = found[first : first + ROWS_PER_BATCH]
        columns = [
            pa.array([info.key for info in some], pa.string()),
            pa.repeat(kind, len(some)),
            pa.array([info.size_bytes for info in some], pa.int64()),
            pa.array([info.created_at for info in some], INSTANT),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_LISTED)


def _prefixes(handle: RepoHandle) -> list[str]:
    """What is listed at once; a directory is walked as a whole whatever the prefix."""
    if handle.driver.is_local:
        return list(_FOLDERS)
    others = [folder for folder in _FOLDERS if folder != layout.CHUNKS]
    return others + [layout.CHUNKS + letter for letter in _ID_LETTERS]


def _manifest_keys(handle: RepoHandle, snapshot_ids: Sequence[str]) -> Iterator[pa.Array]:
    for text in snapshot_ids:
        snapshot = run_blocking(handle.assets.snapshot(handle.snapshot_id(text)))
        if len(snapshot.manifest_files):
            yield id_texts(snapshot.manifest_files.id, layout.MANIFESTS)


def _chunk_keys(handle: RepoHandle, manifest_keys: Sequence[str]) -> Iterator[pa.Array]:
    for first in range(0, len(manifest_keys), _AT_ONCE):
        some = manifest_keys[first : first + _AT_ONCE]
        ids = [ManifestId.parse(key.removeprefix(layout.MANIFESTS)) for key in some]
        for manifest in run_blocking(handle.assets.manifests([(key, 0) for key in ids])):
            for array in manifest.arrays:
                refs = array.refs
                if refs.chunk_id is not None:
                    native = refs.chunk_id[refs.kind == ChunkKind.NATIVE]
                    yield pc.unique(id_texts(native, layout.CHUNKS))


def _known_keys(repository: Repository) -> list[str]:
    """What is referred to by name: refs, snapshots with their logs, backups of the log."""
    handle = repository.handle
    keys = [layout.REPO, layout.CONFIG_YAML]
    ids = [handle.snapshot_id(info.id) for info in all_snapshots(repository)]
    if handle.family.has_repo_object:
        info = run_blocking(handle.assets.repo_object()).info
        ids += [SnapshotId(row.tobytes()) for row in info.snapshots.pruned_id]
        names = [entry.backup_path for entry in run_blocking(queries.all_operations(handle))]
        keys += [layout.OVERWRITTEN + name for name in names if name is not None]
    else:
        keys += [found.key for found in run_blocking(handle.driver.list(layout.REFS))]
    keys += [layout.snapshot_key(key) for key in ids]
    keys += [layout.transaction_log_key(key) for key in ids]
    return keys
