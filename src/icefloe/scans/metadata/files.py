"""The table `files`: every object of a repository, its size, and whether anything refers to it.

What nothing refers to is what garbage collection would take, unless it is too young. Through
`icefloe.spark.table` the work is spread over these tasks: listing by prefix, snapshots to
manifests, manifests to chunks, and a join. Elsewhere one scan does it all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.api.repository import Repository
from icefloe.assets.assets import Assets
from icefloe.errors import SnapshotNotFoundError
from icefloe.format import layout
from icefloe.format.columns.id_set import IdSet
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.ids import ManifestId, SnapshotId
from icefloe.repo import queries
from icefloe.repo.handle import RepoHandle
from icefloe.scans.arrow_types import INSTANT, required
from icefloe.scans.metadata.repo import all_snapshots
from icefloe.scans.pinned import PinnedSnapshot
from icefloe.scans.scan import ROWS_PER_BATCH
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
LISTED = pa.schema(list(SCHEMA)[:-1])
KEYS = pa.schema([required("key", pa.string())])
REFERRED = pa.schema(
    [
        required("key", pa.string()),
        pa.field("manifest_id", pa.binary()),
        required("snapshot_id", pa.string()),
    ]
)
"""A file that a snapshot refers to. A file of the first generation may hold several manifests."""
_ID_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Files:
    """The scan without a join: one partition."""

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
        ids = [info.id for info in all_snapshots(repository)]
        files = pa.Table.from_batches(_referred_files(handle, ids), REFERRED)
        chunks = list(_chunk_keys(handle, _distinct_manifests(files)))
        live = pa.chunked_array([*files["key"].chunks, *chunks, pa.array(known_keys(repository))])
        for prefix in handle.assets.kinds_of_files:
            for batch in _list(handle, prefix):
                is_live = pc.is_in(batch["path"], live)
                columns = [*batch.columns, is_live]
                yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


# -- tasks: columns of text in, rows out


def list_task(
    source: PinnedSnapshot, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Prefixes to objects."""
    handle = source.open_repository().handle
    for batch in batches:
        for prefix in batch.column(0).to_pylist():
            yield from _list(handle, prefix)


def referred_task(
    source: PinnedSnapshot, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Snapshot ids to the files that they refer to."""
    handle = source.open_repository().handle
    for batch in batches:
        yield from _referred_files(handle, batch.column(0).to_pylist())


def chunks_task(
    source: PinnedSnapshot, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Manifests to the keys of the chunk objects they refer to."""
    handle = source.open_repository().handle
    for batch in batches:
        for keys in _chunk_keys(handle, batch.to_pylist()):
            yield pa.RecordBatch.from_arrays([keys], schema=KEYS)


def _list(handle: RepoHandle, prefix: str) -> Iterator[pa.RecordBatch]:
    found = run_blocking(handle.driver.list(prefix))
    kinds = handle.assets.kinds_of_files
    kind = next(name for folder, name in kinds.items() if prefix.startswith(folder))
    for first in range(0, len(found), ROWS_PER_BATCH):
        some = found[first : first + ROWS_PER_BATCH]
        columns = [
            pa.array([info.key for info in some], pa.string()),
            pa.repeat(kind, len(some)),
            pa.array([info.size_bytes for info in some], pa.int64()),
            pa.array([info.created_at for info in some], INSTANT),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=LISTED)


def prefixes(handle: RepoHandle) -> list[str]:
    """What is listed at once; a directory is walked as a whole whatever the prefix."""
    folders = list(handle.assets.kinds_of_files)
    if handle.driver.is_local or layout.CHUNKS not in folders:
        return folders
    others = [folder for folder in folders if folder != layout.CHUNKS]
    return others + [layout.CHUNKS + letter for letter in _ID_LETTERS]


def _referred_files(handle: RepoHandle, snapshot_ids: Sequence[str]) -> Iterator[pa.RecordBatch]:
    assets = handle.assets
    for text in snapshot_ids:
        snapshot_id = handle.snapshot_id(text)
        try:
            listed = run_blocking(assets.snapshot(snapshot_id)).manifest_files
        except SnapshotNotFoundError:
            if handle.family.lists_lost_snapshots:
                continue
            raise
        others = run_blocking(assets.other_files(snapshot_id))
        ids = [ManifestId(row.tobytes()) for row in listed.id]
        keys = [*(assets.manifest_file(each) for each in ids), *others]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(keys, pa.string()),
                pa.array([*ids, *(None for _ in others)], pa.binary()),
                pa.repeat(text, len(keys)),
            ],
            schema=REFERRED,
        )


def _distinct_manifests(files: pa.Table) -> list[dict[str, Any]]:
    manifests = files.filter(pc.is_valid(files["manifest_id"])).to_pylist()
    return list({row["manifest_id"]: row for row in manifests}.values())


def _chunk_keys(handle: RepoHandle, manifests: Sequence[dict[str, Any]]) -> Iterator[pa.Array]:
    """The objects of native chunks. Rows of `manifests` are those of `REFERRED`."""
    assets = handle.assets
    for first in range(0, len(manifests), _AT_ONCE):
        some = manifests[first : first + _AT_ONCE]
        for text in {row["snapshot_id"] for row in some}:
            run_blocking(assets.prepare_manifests(handle.snapshot_id(text)))
        wanted = [(ManifestId(row["manifest_id"]), 0) for row in some]
        for manifest in run_blocking(assets.manifests(wanted)):
            for array in manifest.arrays:
                yield pa.array(_objects(assets, array.refs), pa.string())


def _objects(assets: Assets, refs: ChunkRefs) -> list[str]:
    is_native = refs.kind == ChunkKind.NATIVE
    named: list[str] = []
    if refs.location is not None:  # objects of the first generation may have any name
        location = refs.location
        codes = location.codes[is_native]
        named = [location.values.get(code) for code in np.unique(codes[codes >= 0]).tolist()]
        is_native = is_native & (location.codes < 0)
    if refs.chunk_id is None or not is_native.any():
        return named
    return named + assets.chunk_keys(IdSet.of(refs.chunk_id[is_native]).rows)


def known_keys(repository: Repository) -> list[str]:
    """What is referred to by name: refs, snapshots with their logs, backups of the log."""
    handle = repository.handle
    assets = handle.assets
    ids = [handle.snapshot_id(info.id) for info in all_snapshots(repository)]
    named = ("repo", "config", "state")
    keys = [key for key, kind in assets.kinds_of_files.items() if kind in named]
    if handle.family.has_repo_object:
        info = run_blocking(handle.assets.repo_object()).info
        ids += [SnapshotId(row.tobytes()) for row in info.snapshots.pruned_id]
        names = [entry.backup_path for entry in run_blocking(queries.all_operations(handle))]
        keys += [layout.OVERWRITTEN + name for name in names if name is not None]
    else:
        for prefix, kind in assets.kinds_of_files.items():
            if kind == "ref":
                keys += [found.key for found in run_blocking(handle.driver.list(prefix))]
    keys += [assets.snapshot_key(key) for key in ids]
    keys += [assets.transaction_log_key(key) for key in ids]
    return keys
