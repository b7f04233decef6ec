"""Tables about one snapshot: `nodes`, `manifests`, and `chunks`, which is spread over manifests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.assets.assets import Assets
from icefloe.format.columns.blobs import Bytes
from icefloe.format.manifest.chunk_refs import ChunkKind, ChunkRefs
from icefloe.format.manifest.file import Manifest
from icefloe.format.snapshot.file import Snapshot
from icefloe.format.snapshot.nodes import Node
from icefloe.ids import ManifestId, encode_base32
from icefloe.scans.arrow_types import (
    INDEX,
    INSTANT,
    TEXTS,
    index_column,
    required,
    table_of,
)
from icefloe.scans.metadata.id_text import id_texts, key_column
from icefloe.scans.pinned import PinnedSnapshot
from icefloe.scans.scan import ROWS_PER_BATCH
from icefloe.storage.run import run_blocking

_REFS_PER_PARTITION = 500_000
_MANIFESTS_AT_ONCE = 32

_EXTENT = pa.struct([required("start", pa.int64()), required("stop", pa.int64())])
_HELD = pa.struct(
    [
        required("path", pa.string()),
        required("extents", pa.list_(pa.field("element", _EXTENT, nullable=False))),
    ]
)
NODES = pa.schema(
    [
        required("path", pa.string()),
        required("node_id", pa.string()),
        required("type", pa.string()),
        pa.field("shape", INDEX),
        pa.field("chunk_shape", INDEX),
        pa.field("num_chunks", INDEX),
        pa.field("dtype", pa.string()),
        pa.field("dimension_names", TEXTS),
        pa.field("codecs", pa.string()),
        pa.field("fill_value", pa.string()),
        pa.field("attributes", pa.string()),
        pa.field("num_manifests", pa.int64()),
    ]
)
MANIFESTS = pa.schema(
    [
        required("manifest_id", pa.string()),
        required("path", pa.string()),
        required("length", pa.int64()),
        required("num_chunk_refs", pa.int64()),
        required("arrays", pa.list_(pa.field("element", _HELD, nullable=False))),
    ]
)
CHUNKS = pa.schema(
    [
        required("path", pa.string()),
        required("chunk_index", INDEX),
        required("kind", pa.string()),
        pa.field("chunk_id", pa.string()),
        pa.field("location", pa.string()),
        required("offset", pa.int64()),
        required("length", pa.int64()),
        pa.field("etag", pa.string()),
        pa.field("last_modified", INSTANT),
        required("manifest_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """A scan over what one snapshot file tells, made by a worker."""

    source: PinnedSnapshot
    table: str

    @property
    def schema(self) -> pa.Schema:
        return NODES if self.table == "nodes" else MANIFESTS

    @property
    def num_partitions(self) -> int:
        return 1

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        session = self.source.open()
        snapshot = session.workspace.state.snapshot
        if self.table == "nodes":
            made = _nodes(snapshot)
        else:
            made = _manifests(snapshot, session.handle.assets)
        yield from made.to_batches(max_chunksize=ROWS_PER_BATCH)


def _nodes(snapshot: Snapshot) -> pa.Table:
    return table_of(NODES, [_node_row(node) for node in snapshot.nodes])


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


# -- chunks


@dataclass(frozen=True, slots=True)
class ChunkRefRows:
    """Every chunk reference of a snapshot; a partition is a run of its manifest files."""

    source: PinnedSnapshot
    ends: NDArray[np.int64]
    """For each partition the row of `manifest_files` after its last one."""

    @property
    def schema(self) -> pa.Schema:
        return CHUNKS

    @property
    def num_partitions(self) -> int:
        return len(self.ends)

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        session = self.source.open()
        snapshot, assets = session.workspace.state.snapshot, session.handle.assets
        owners = _Owners(snapshot)
        start = int(self.ends[partition - 1]) if partition else 0
        files = snapshot.manifest_files
        for first in range(start, int(self.ends[partition]), _MANIFESTS_AT_ONCE):
            last = min(first + _MANIFESTS_AT_ONCE, int(self.ends[partition]))
            wanted = [
                (ManifestId(files.id[row].tobytes()), int(files.size_bytes[row]))
                for row in range(first, last)
            ]
            for manifest in run_blocking(assets.manifests(wanted)):
                yield from _manifest_rows(manifest, owners, assets)


def plan_chunk_refs(source: PinnedSnapshot) -> ChunkRefRows:
    """Partitions with about as many references each."""
    counts = source.open().workspace.state.snapshot.manifest_files.num_chunk_refs.astype(np.int64)
    if not len(counts):
        return ChunkRefRows(source, np.empty(0, np.int64))
    group = (np.cumsum(counts) - counts) // _REFS_PER_PARTITION
    ends = np.append(np.flatnonzero(np.diff(group)) + 1, len(counts))
    return ChunkRefRows(source, ends.astype(np.int64))


class _Owners:
    """Which arrays of a snapshot use which manifest."""

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = self.nodes = snapshot.nodes
        rows = np.repeat(np.flatnonzero(nodes.is_array), nodes.num_manifests)
        keys = key_column(nodes.manifest_id) if len(rows) else np.empty(0, "S12")
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
    columns = [
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
    return pa.RecordBatch.from_arrays(columns, schema=CHUNKS)
