"""Rows about a repository: history, refs, nodes, chunks, changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.api.repository import Repository
from icefloe.api.values import SnapshotInfo as ListedSnapshot
from icefloe.assets.assets import Assets
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_index import id_keys
from icefloe.format.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.columns import Bytes, find_ids
from icefloe.format.manifest import Manifest
from icefloe.format.nodes import Node, NodeTable
from icefloe.format.operations_log import UpdateKind
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import ManifestId, NodeId, SnapshotId, base32_letters, encode_base32
from icefloe.repo import history
from icefloe.repo import refs as queries
from icefloe.repo.handle import RepoHandle
from icefloe.scans.scan import (
    INDEX,
    INSTANT,
    ROWS_PER_BATCH,
    PinnedSnapshot,
    PlannedRows,
    columns,
    index_column,
    required,
    table_of,
)
from icefloe.storage.driver import instant
from icefloe.storage.run import each_blocking, run_blocking


def id_texts(ids: NDArray[Any]) -> pa.Array:
    """The text of every row of a matrix of bytes."""
    letters = np.ascontiguousarray(base32_letters(ids))
    rows, width = letters.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))


# -- Tables about a repository as a whole: `snapshots`, `history`, `refs`, `ops`.
#
# They are made when a query is planned, so that a DataFrame stays as it was. Names of columns
# follow Iceberg's metadata tables where these have the same thing.


SNAPSHOTS = columns(
    "committed_at instant, snapshot_id string, parent_id string?, message string, "
    "metadata text_map, branches texts, tags texts"
)
HISTORY = columns(
    "made_current_at instant, snapshot_id string, parent_id string?, "
    "is_current_ancestor boolean, message string"
)
REFS = columns("name string, type string, snapshot_id string")
OPS = columns(
    "updated_at instant, operation string, ref string?, previous_snapshot_id string?, "
    "new_snapshot_id string?, details text_map, backup_path string?"
)


def snapshots(repository: Repository) -> pa.Table:
    """Every snapshot the repository lists, newest first, with the refs that point at it."""
    branches = named_snapshots(repository, "branch")
    tags = named_snapshots(repository, "tag")
    rows = [
        (
            info.written_at,
            info.id,
            info.parent_id,
            info.message,
            _text_items(info.metadata),
            sorted(name for name, tip in branches.items() if tip == info.id),
            sorted(name for name, tip in tags.items() if tip == info.id),
        )
        for info in all_snapshots(repository)
    ]
    return table_of(SNAPSHOTS, sorted(rows, key=lambda row: row[0], reverse=True))


def refs(repository: Repository) -> pa.Table:
    """Branches, then tags."""
    rows = [
        (name, kind.upper(), tip)
        for kind in ("branch", "tag")
        for name, tip in sorted(named_snapshots(repository, kind).items())
    ]
    return table_of(REFS, rows)


def history_of(repository: Repository, tip: str, branch: str | None) -> pa.Table:
    """The ancestors of a snapshot, newest first.

    For a branch of a version-2 repository also what was committed to it and left behind by a reset
    or an amendment; `is_current_ancestor` tells them apart.
    """
    chain = list(repository.ancestry(snapshot_id=tip))
    rows = [(info.written_at, info.id, info.parent_id, True, info.message) for info in chain]
    if branch is not None and repository.handle.format.has_repo_object:
        known = {info.id: info for info in all_snapshots(repository)}
        current = {info.id for info in chain}
        for entry in run_blocking(queries.all_operations(repository.handle)):
            new = entry.values.get("new_snap_id")
            if entry.values.get("branch") != branch or new is None or new.text in current:
                continue
            info = known.get(new.text)
            rows.append(
                (
                    instant(entry.updated_at),
                    new.text,
                    None if info is None else info.parent_id,
                    False,
                    "" if info is None else info.message,
                )
            )
    return table_of(HISTORY, sorted(rows, key=lambda row: row[0], reverse=True))


def ops(repository: Repository) -> pa.Table:
    """The operations log, newest first."""
    rows = []
    for entry in run_blocking(queries.all_operations(repository.handle)):
        values, kind = dict(entry.values), entry.kind
        ref = values.pop("branch", None) or values.pop("name", None)
        previous, new = (values.pop(name, None) for name in ("previous_snap_id", "new_snap_id"))
        rows.append(
            (
                instant(entry.updated_at),
                kind.name.lower() if isinstance(kind, UpdateKind) else f"unknown {kind}",
                ref,
                None if previous is None else previous.text,
                None if new is None else new.text,
                _text_items({name: str(value) for name, value in values.items()}),
                entry.backup_path,
            )
        )
    return table_of(OPS, rows)


def named_snapshots(repository: Repository, kind: str) -> dict[str, str]:
    """Branches or tags, and the snapshots they point at."""
    format_version = repository.handle.format
    found = format_version.branches if kind == "branch" else format_version.tags
    return {name: tip.text for name, tip in run_blocking(found(repository.handle)).items()}


def all_snapshots(repository: Repository) -> list[ListedSnapshot]:
    """Every snapshot that is listed or, where there is no list, that a ref leads to."""
    handle = repository.handle
    return [ListedSnapshot.of(info) for info in run_blocking(handle.format.all_snapshots(handle))]


def _text_items(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Values as JSON, text as it is."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, default=str))
        for name, value in values.items()
    ]


_REFS_PER_PARTITION = 500_000
_MANIFESTS_AT_ONCE = 32

_EXTENT = pa.struct([required("start", pa.int64()), required("stop", pa.int64())])
_EXTENTS = pa.list_(pa.field("element", _EXTENT, nullable=False))
_HELD = pa.struct([required("path", pa.string()), required("extents", _EXTENTS)])
NODES = columns(
    "path string, node_id string, type string, shape index?, chunk_shape index?, "
    "num_chunks index?, dtype string?, dimension_names texts?, codecs string?, "
    "fill_value string?, attributes string?, num_manifests bigint?"
)
MANIFESTS = columns(
    "manifest_id string, path string, length bigint, num_chunk_refs bigint, arrays held",
    held=pa.list_(pa.field("element", _HELD, nullable=False)),
)
CHUNKS = columns(
    "path string, chunk_index index, kind string, chunk_id string?, location string?, "
    "offset bigint, length bigint, etag string?, last_modified instant?, manifest_id string"
)


def plan_snapshot_rows(source: PinnedSnapshot, table: str) -> PlannedRows:
    """What one snapshot file tells, read by a worker."""
    schema = NODES if table == "nodes" else MANIFESTS
    return PlannedRows(schema, 1, partial(_read_snapshot, source, table))


def _read_snapshot(source: PinnedSnapshot, table: str, _partition: int) -> Iterator[pa.RecordBatch]:
    session = source.open()
    snapshot = session.workspace.state.snapshot
    if table == "nodes":
        made = table_of(NODES, [_node_row(node) for node in snapshot.nodes])
    else:
        made = _manifests(snapshot, session.handle.assets)
    yield from made.to_batches(max_chunksize=ROWS_PER_BATCH)


def _node_row(node: Node) -> tuple[Any, ...]:
    document = json.loads(node.user_data)
    attributes = json.dumps(document.get("attributes", {}))
    if node.array is None:
        nothing = (None,) * 7
        return (node.path, node.id.text, "group", *nothing, attributes, None)
    data_type = document.get("data_type")
    grid = document.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
    is_regular = isinstance(grid, list) and all(isinstance(size, int) for size in grid)
    return (
        node.path,
        node.id.text,
        "array",
        [dimension.array_length for dimension in node.array.shape],
        grid if is_regular else None,
        [dimension.num_chunks for dimension in node.array.shape],
        data_type if isinstance(data_type, str) else json.dumps(data_type),
        node.array.dimension_names,
        json.dumps(document.get("codecs")),
        json.dumps(document.get("fill_value")),
        attributes,
        len(node.array.manifests),
    )


def _manifests(snapshot: Snapshot, assets: Assets) -> pa.Table:
    held: dict[ManifestId, list[dict[str, Any]]] = {}
    for node in snapshot.nodes:
        for ref in node.array.manifests if node.array is not None else ():
            extents = [{"start": start, "stop": stop} for start, stop in ref.extents]
            held.setdefault(ref.id, []).append({"path": node.path, "extents": extents})
    rows = [
        (
            _manifest_text(info.id, assets),
            assets.manifest_file(info.id),
            info.size_bytes,
            info.num_chunk_refs,
            held.get(info.id, []),
        )
        for info in snapshot.manifest_files.values()
    ]
    return table_of(MANIFESTS, rows)


def _manifest_text(manifest_id: ManifestId, assets: Assets) -> str:
    """The id as the name of its file has it."""
    row = np.frombuffer(manifest_id, np.uint8).reshape(1, -1)
    return encode_base32(assets.stored_ids(row).tobytes())


def plan_chunk_refs(source: PinnedSnapshot) -> PlannedRows:
    """Every chunk reference of a snapshot; partitions with about as many references each."""
    counts = source.open().workspace.state.snapshot.manifest_files.num_chunk_refs.astype(np.int64)
    group = (np.cumsum(counts) - counts) // _REFS_PER_PARTITION
    borders = np.flatnonzero(np.diff(group, prepend=-1, append=-2))
    return PlannedRows(CHUNKS, len(borders) - 1, partial(_read_chunk_refs, source, borders))


def _read_chunk_refs(
    source: PinnedSnapshot, borders: NDArray[np.int64], partition: int
) -> Iterator[pa.RecordBatch]:
    """The references of the manifest files between two borders."""
    session = source.open()
    snapshot, assets = session.workspace.state.snapshot, session.handle.assets
    owners = _Owners(snapshot)
    files = snapshot.manifest_files
    start, stop = borders[partition : partition + 2].tolist()
    for first in range(start, stop, _MANIFESTS_AT_ONCE):
        wanted = [
            (ManifestId(files.id[row].tobytes()), int(files.size_bytes[row]))
            for row in range(first, min(first + _MANIFESTS_AT_ONCE, stop))
        ]
        for manifest in run_blocking(assets.manifests(wanted)):
            yield from _manifest_rows(manifest, owners, assets)


class _Owners:
    """Which arrays of a snapshot use which manifest."""

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = self.nodes = snapshot.nodes.columns
        rows = np.repeat(np.flatnonzero(nodes.is_array), nodes.num_manifests)
        keys = id_keys(nodes.manifest_id)
        order = np.argsort(keys, kind="stable")
        self.keys, self.rows = keys[order], rows[order]

    def of(self, manifest: Manifest) -> list[Node]:
        """The arrays that use a manifest."""
        key = np.bytes_(manifest.id)
        first, last = np.searchsorted(self.keys, key), np.searchsorted(self.keys, key, "right")
        return [self.nodes.node(int(row)) for row in self.rows[first:last]]


def _manifest_rows(manifest: Manifest, owners: _Owners, assets: Assets) -> Iterator[pa.RecordBatch]:
    text = _manifest_text(manifest.id, assets)
    for node in owners.of(manifest):
        refs = manifest.find(node.id)
        if refs is None or not len(refs):
            continue
        assert node.array is not None
        grid = [dimension.num_chunks for dimension in node.array.shape]
        inside = refs.select([0] * len(grid), grid)  # an array may have shrunk since
        if not len(inside):
            continue
        batch = chunk_ref_batch(node.path, text, inside, assets.stored_ids)
        for start in range(0, batch.num_rows, ROWS_PER_BATCH):
            yield batch.slice(start, ROWS_PER_BATCH)


_KIND_NAMES = ["", *(kind.name.lower() for kind in ChunkKind)]


def chunk_ref_batch(
    path: str, manifest_id: str, refs: ChunkRefs, stored_ids: Callable[[Bytes], Bytes]
) -> pa.RecordBatch:
    """References of one array as rows of the table, with ids as long as files have them."""
    n = len(refs)
    table = refs.to_arrow(plain=True)
    ids = pa.nulls(n, pa.string())
    if refs.chunk_id is not None:
        is_native = pa.array(refs.kind == ChunkKind.NATIVE)
        texts = id_texts(stored_ids(refs.chunk_id))
        ids = pc.if_else(is_native, texts, pa.scalar(None, pa.string()))
    modified = table["last_modified"].combine_chunks().cast(pa.int64())
    arrays = [
        pa.repeat(path, n),
        index_column(refs.index),
        pa.array(_KIND_NAMES).take(pa.array(refs.kind)),
        ids,
        table["location"].combine_chunks(),
        table["offset"].combine_chunks().cast(pa.int64()),
        table["length"].combine_chunks().cast(pa.int64()),
        table["etag"].combine_chunks(),
        pc.multiply(modified, 1_000_000).cast(INSTANT),
        pa.repeat(manifest_id, n),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CHUNKS)


# -- The table `changes`: what every commit of a line of history did, a row a node or chunk.
#
# Each commit's log is read by a task, so "which commit last wrote this chunk" is a query,
# whatever the length of the history.


CHANGES = columns(
    "committed_at instant, snapshot_id string, parent_id string?, change string, path string, "
    "chunk_index index?, destination string?"
)
_NODE_CHANGES = [
    f"{change}_{kind}" for change in ("deleted", "new", "updated") for kind in ("group", "array")
]
"""Their plurals are fields of a log."""
_TASKS_PER_SLOT = 4


class Commit(NamedTuple):
    """One commit of a history, with the logs of expired ancestors it took over."""

    id: SnapshotId
    parent_id: SnapshotId | None
    committed_at_us: int
    pruned: tuple[SnapshotId, ...]


def plan_changes(source: PinnedSnapshot, start: str | None, min_partitions: int) -> PlannedRows:
    """The commits after `start` (exclusive; None for all) up to the source's snapshot."""
    commits = find_commits(source.open_repository(), start, source.snapshot_id)
    tasks = max(min_partitions * _TASKS_PER_SLOT, 1)
    size = max(-(-len(commits) // tasks), 1)
    runs = [commits[first : first + size] for first in range(0, len(commits), size)]
    return PlannedRows(CHANGES, len(runs), partial(_read_run, source, runs))


def _read_run(
    source: PinnedSnapshot, runs: Sequence[Sequence[Commit]], partition: int
) -> Iterator[pa.RecordBatch]:
    yield from read_commits(source, runs[partition])


def find_commits(repository: Repository, start: str | None, end: str) -> list[Commit]:
    """The commits from after `start` to `end`, oldest first.

    Raises:
        InvalidInputError: `start` is not an ancestor of `end`, so nothing lies between them.
    """
    handle = repository.handle
    stop = None if start is None else handle.snapshot_id(start)
    newer = []
    for info in each_blocking(handle.format.ancestors(handle, handle.snapshot_id(end))):
        if info.id == stop:
            break
        logs = info.pruned_ancestor_tx_logs
        newer.append(Commit(info.id, info.parent_id, info.flushed_at, logs))
    else:
        if stop is not None:
            raise InvalidInputError(
                f"snapshot {stop} is not an ancestor of {end}: the branch was reset, amended or "
                "expired since; start again from a snapshot that is",
                ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
            )
    return newer[::-1]


def read_commits(source: PinnedSnapshot, commits: Iterable[Commit]) -> Iterator[pa.RecordBatch]:
    """The rows of some commits."""
    handle = source.open_repository().handle
    for commit in commits:
        batch = pa.Table.from_batches(_commit_rows(handle, commit), CHANGES)
        yield from batch.to_batches(max_chunksize=ROWS_PER_BATCH)


def _commit_rows(handle: RepoHandle, commit: Commit) -> list[pa.RecordBatch]:
    found = [run_blocking(history.find_log(handle, key)) for key in (*commit.pruned, commit.id)]
    logs = [log for log in found if log is not None]
    if not any(log.num_changes for log in logs):
        return []
    known = _paths(handle, commit, logs)
    return [batch for log in logs for batch in _log_rows(commit, log, known)]


def _paths(handle: RepoHandle, commit: Commit, logs: Sequence[TransactionLog]) -> dict[NodeId, str]:
    """Paths of the nodes the logs name: after the commit, or before it for what it deleted."""
    wanted: set[NodeId] = set()
    for log in logs:
        wanted.update(*(getattr(log, f"{name}s") for name in _NODE_CHANGES), log.updated_chunks)
    known = find_paths(run_blocking(handle.assets.snapshot(commit.id)).nodes, wanted)
    gone = wanted - known.keys()
    if gone and commit.parent_id is not None:
        before = run_blocking(handle.assets.snapshot(commit.parent_id))
        known |= find_paths(before.nodes, gone)
    return known


def find_paths(nodes: NodeTable, wanted: Iterable[NodeId]) -> dict[NodeId, str]:
    """The paths of some nodes; those that are not in the table are left out."""
    ids = list(wanted)
    order = np.argsort(id_keys(nodes.columns.id))
    rows = find_ids(nodes.columns.id[order], ids).tolist()
    found = zip(ids, rows, strict=True)
    return {node_id: nodes.path[order[row]] for node_id, row in found if row >= 0}


def _log_rows(
    commit: Commit, log: TransactionLog, known: Mapping[NodeId, str]
) -> Iterator[pa.RecordBatch]:
    for change in _NODE_CHANGES:
        paths = sorted(known[key] for key in getattr(log, f"{change}s") if key in known)
        if paths:
            yield _batch(commit, change, pa.array(paths))
    for move in log.moved_nodes or ():
        yield _batch(
            commit, "moved_node", pa.array([move.source]), destination=pa.array([move.destination])
        )
    for node_id, index in log.updated_chunks.items():
        if node_id in known and len(index):
            path = pa.repeat(known[node_id], len(index))
            yield _batch(commit, "updated_chunk", path, index_column(index))


def _batch(
    commit: Commit,
    change: str,
    path: pa.Array,
    index: pa.Array | None = None,
    destination: pa.Array | None = None,
) -> pa.RecordBatch:
    n = len(path)
    parent = None if commit.parent_id is None else commit.parent_id.text
    arrays = [
        pa.repeat(pa.scalar(commit.committed_at_us, pa.int64()), n).cast(INSTANT),
        pa.repeat(commit.id.text, n),
        pa.repeat(pa.scalar(parent, pa.string()), n),
        pa.repeat(change, n),
        path,
        pa.nulls(n, INDEX) if index is None else index,
        pa.nulls(n, pa.string()) if destination is None else destination,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGES)
