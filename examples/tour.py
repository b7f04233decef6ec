"""A tour of what works: chunk references as tables, and a repository written file by file.

Run it with `make demo`. Where official icechunk is installed, it is asked to read the result.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from icefloe import FIRST_SNAPSHOT_ID, FormatError, ManifestId, NodeId, SnapshotId
from icefloe.format import layout
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.manifest import ArrayManifest, Manifest, decode_manifest
from icefloe.format.manifest_encode import encode_manifest
from icefloe.format.nodes import ArrayData, Dimension, ManifestRef, Node, NodeTable
from icefloe.format.repo_info import (
    RepoAvailability,
    RepoInfo,
    RepoStatus,
    Update,
    UpdateKind,
    decode_repo_info,
    encode_repo_info,
)
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles, Snapshot, decode_snapshot
from icefloe.format.snapshot_encode import encode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.format.transaction_log import TransactionLog, encode_transaction_log

DAYS, ROWS, COLUMNS = 1000, 50, 20
CHUNK = (1, 20, 50)
ZARR_JSON = (
    b'{"zarr_format":3,"node_type":"array","shape":[1000,1000,1000],"data_type":"float32",'
    b'"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[1,20,50]}},'
    b'"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},'
    b'"fill_value":0.0,"codecs":[{"name":"bytes","configuration":{"endian":"little"}}],'
    b'"attributes":{"units":"K"},"dimension_names":["time","lat","lon"]}'
)


def million_refs() -> ChunkRefs:
    """One float32 array of 1000 x 1000 x 1000 values that lies in a thousand foreign files."""
    row = np.arange(DAYS * ROWS * COLUMNS)
    index = np.stack([row // 1000, row // 20 % 50, row % 20], axis=1)
    files = pa.array([f"s3://weather-archive/t2m/{day:04d}.nc" for day in range(DAYS)])
    location = pa.DictionaryArray.from_arrays(pa.array(row // 1000, pa.int32()), files)
    return ChunkRefs.virtual(index, location, 400 + row % 1000 * 4000, 4000)


def timed(label: str, start: float) -> None:
    """Print how long something took that began at `start`."""
    print(f"  {label:<48}{time.perf_counter() - start:6.2f} s")


def write_repository(root: Path, refs: ChunkRefs) -> None:
    """Two snapshots: the empty first one, and one with the array."""
    now = time.time_ns() // 1000
    array_id, root_id = NodeId(os.urandom(8)), NodeId(os.urandom(8))
    manifest_id, commit_id = ManifestId(os.urandom(12)), SnapshotId(os.urandom(12))

    def put(key: str, data: bytes) -> int:
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return len(data)

    manifest = Manifest(manifest_id, (ArrayManifest(array_id, refs),))
    size = put(layout.manifest_key(manifest_id), encode_manifest(manifest))
    manifests = (ManifestRef(manifest_id, tuple(refs.extents())),)
    shape = tuple(Dimension(1000, 1000 // chunk) for chunk in CHUNK)
    array = ArrayData(shape, ("time", "lat", "lon"), manifests)
    nodes = [
        Node(root_id, "/", b'{"zarr_format":3,"node_type":"group","attributes":{}}'),
        Node(array_id, "/t2m", ZARR_JSON, array),
    ]
    first = Snapshot(
        FIRST_SNAPSHOT_ID,
        NodeTable.from_nodes([]),
        now,
        "Repository initialized",
        {"__icechunk": {"is_root": True}},
        ManifestFiles.from_infos([]),
    )
    second = Snapshot(
        commit_id,
        NodeTable.from_nodes(nodes),
        now + 1,
        "reference a thousand days",
        {"source": "weather-archive"},
        ManifestFiles.from_infos([ManifestFileInfo(manifest_id, size, len(refs))]),
    )
    logs = [
        TransactionLog(FIRST_SNAPSHOT_ID),
        TransactionLog(
            commit_id,
            new_groups=frozenset([root_id]),
            new_arrays=frozenset([array_id]),
            updated_chunks={array_id: refs.index},
        ),
    ]
    for snapshot, log in zip((first, second), logs, strict=True):
        put(layout.snapshot_key(snapshot.id), encode_snapshot(snapshot, spec_version=2))
        put(layout.transaction_log_key(log.id), encode_transaction_log(log))
    listed = [
        SnapshotInfo(first.id, None, first.flushed_at, first.message, first.metadata),
        SnapshotInfo(second.id, first.id, second.flushed_at, second.message, second.metadata),
    ]
    commit = {"branch": "main", "new_snap_id": commit_id}
    info = RepoInfo(
        branches={"main": commit_id},
        tags={},
        deleted_tags=frozenset(),
        snapshots=SnapshotTable.from_infos(listed),
        status=RepoStatus(RepoAvailability.ONLINE, now),
        metadata={},
        latest_updates=[
            Update(UpdateKind.NEW_COMMIT, now + 1, commit),
            Update(UpdateKind.REPO_INITIALIZED, now),
        ],
    )
    put(layout.REPO, encode_repo_info(info))


def show_repository(root: Path) -> None:
    """Print history and nodes, decoded from the files."""
    info = decode_repo_info((root / layout.REPO).read_bytes())
    tip = info.branches["main"]
    for snapshot_id in info.snapshots.ancestry(tip):
        entry = info.snapshots[snapshot_id]
        print(f"  {snapshot_id}  {entry.message}")
    data = (root / layout.snapshot_key(tip)).read_bytes()
    for node in decode_snapshot(data).nodes:
        chunks = [dimension.num_chunks for dimension in node.array.shape] if node.array else ""
        print(f"  {node.id}  {node.path:<6} {'array' if node.array else 'group'} {chunks}")


def ask_official(root: Path) -> None:
    """Let official icechunk open the folder and read every reference."""
    if importlib.util.find_spec("icechunk") is None:
        print("  (official icechunk is not installed, it needs Python 3.12: left out)")
        return
    icechunk = importlib.import_module("icechunk")
    icechunk.set_logs_filter("error")
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(root)))
    for entry in repository.ancestry(branch="main"):
        print(f"  {entry.id}  {entry.message}")
    session = repository.readonly_session("main")
    start = time.perf_counter()
    batches = session.store.array_chunk_iterator("/t2m")
    count = sum(len(coordinates) for coordinates, *_ in batches)
    timed(f"it reads all {count:,} references in", start)


def main() -> None:
    """The tour."""
    print("1. A million chunk references are a table")
    start = time.perf_counter()
    refs = million_refs()
    timed("made from Arrow columns", start)
    manifest = Manifest(ManifestId(os.urandom(12)), (ArrayManifest(NodeId(bytes(8)), refs),))
    start = time.perf_counter()
    data = encode_manifest(manifest)
    timed(f"encoded to {len(data) / 1e6:.1f} MB", start)
    start = time.perf_counter()
    decoded = decode_manifest(data).arrays[0].refs
    timed("decoded to columns", start)
    start = time.perf_counter()
    chunk = decoded.get((500, 25, 7))
    timed("one looked up", start)
    print(f"  {chunk}\n")
    print(decoded.to_arrow().slice(7, 3).select(["index", "location", "offset"]).to_pydict(), "\n")

    print("2. Damage is found and named")
    try:
        decode_manifest(data[:-1], "manifests/EXAMPLE")
    except FormatError as error:
        print(f"  FormatError: {error}\n")

    with tempfile.TemporaryDirectory() as folder:
        print("3. A repository, written file by file")
        write_repository(Path(folder), refs)
        show_repository(Path(folder))
        print("\n4. The same repository, read by official icechunk")
        ask_official(Path(folder))


if __name__ == "__main__":
    main()
