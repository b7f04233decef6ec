"""Healthy files to damage: small ones of official writers, and one of our own with every field.

Small, because the cost of a case is mostly that of decoding once, and a hit counts most where
every byte matters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import zstandard

from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.columns import BlobColumn
from icefloe.format.flatbuffer.schema import UPDATE_TYPES
from icefloe.format.manifest import ArrayManifest, Manifest, encode_manifest
from icefloe.format.metadata import encode_flexbuffer, encode_msgpack
from icefloe.format.nodes import ArrayData, Dimension, ManifestRef, Node, NodeTable
from icefloe.format.operations_log import RepoAvailability, RepoStatus, Update, UpdateKind
from icefloe.format.repo_info import RepoInfo, encode_repo_info
from icefloe.format.snapshot import ManifestFileInfo, ManifestFiles, Snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.format.transaction_log import Move, NodeType, TransactionLog, encode_transaction_log
from icefloe.ids import ManifestId, NodeId, SnapshotId
from tests import golden
from tests.fuzz.files import Flat
from tests.fuzz.mutate import Seed

SNAPSHOT = [SnapshotId(bytes([number]) * 12) for number in range(8)]
NODE = [NodeId(bytes([number]) * 8) for number in range(8)]
MANIFEST = [ManifestId(bytes([number]) * 12) for number in range(8)]


def golden_seeds(folder: str, smallest: int, *repositories: str) -> list[Seed]:
    """From each repository, the smallest file of at least `smallest` bytes."""
    seeds = []
    for name in repositories:
        files = sorted(golden.object_paths(name, folder), key=lambda path: path.stat().st_size)
        path = next(path for path in files if path.stat().st_size >= smallest)
        seeds.append(Seed(f"{name}/{folder}/{path.name}", path.read_bytes()))
    return seeds


# --- snapshots -------------------------------------------------------------------------------


def snapshot_with_everything(spec_version: int) -> Snapshot:
    chunk_length = 5 if spec_version == 1 else None
    dimensions = Dimension(10, 2, chunk_length), Dimension(7, 2, chunk_length)
    boxes = ((0, 1), (0, 2)), ((1, 2), (0, 2))
    refs = tuple(ManifestRef(MANIFEST[n], box) for n, box in enumerate(boxes))
    extra = None if spec_version == 1 else b"more"
    nodes = [
        Node(NODE[0], "/", b"{}"),
        Node(NODE[1], "/a", b'{"a":1}', ArrayData(dimensions, ("x", None), refs), b"extra"),
        Node(NODE[2], "/a-b", b"", ArrayData(())),
        Node(NODE[3], "/a/b", b"{}", ArrayData(dimensions[:1], None, ())),
    ]
    return Snapshot(
        SNAPSHOT[1],
        NodeTable.from_nodes(nodes),
        1_700_000_000_000_000,
        "wrote größe",
        {"who": "me", "many": [1, -2, 3.5, None, True, {"deep": ["x"]}]},
        ManifestFiles.from_infos(
            [ManifestFileInfo(MANIFEST[0], 200, 2), ManifestFileInfo(MANIFEST[1], 300, 2, extra)]
        ),
        SNAPSHOT[0],
        b"extra",
    )


@cache
def snapshots() -> list[Seed]:
    return [
        *golden_seeds("snapshots", 400, "0.2.0-spec1", "2.3.0-expired-spec2", "2.3.0-grids"),
        *(
            Seed(
                f"ours-{version}",
                encode_snapshot(snapshot_with_everything(version), spec_version=version),
            )
            for version in (1, 2)
        ),
    ]


# --- manifests -------------------------------------------------------------------------------


def refs_of_all_kinds() -> ChunkRefs:
    native = ChunkRefs.native([[0, 0], [0, 1]], np.arange(24, dtype=np.uint8), [0, 7], 100)
    virtual = ChunkRefs.virtual(
        [[1, 0], [1, 1], [2, 0]],
        ["s3://bucket/a", "s3://bucket/b", "s3://bucket/a"],
        [0, 10, 20],
        10,
        ["etag", None, None],
        [0, 1_700_000_000, 0],
    )
    inline = ChunkRefs.inline_chunks([[3, 0], [3, 2**32 - 1]], [b"inline bytes", b""])
    refs = native.merge(virtual).merge(inline)
    return replace(refs, extra=BlobColumn.from_values([b"x", None, b"", None, None, None, b"y"]))


def manifest_with_everything() -> Manifest:
    scalar = ChunkRefs.inline_chunks(np.empty((1, 0), np.uint32), [b"a scalar"])
    line = ChunkRefs.virtual([[0], [1]], ["file:///f", "file:///f"], [0, 8], [8, 8])
    return Manifest(
        MANIFEST[1],
        (
            ArrayManifest(NODE[1], refs_of_all_kinds(), b"extra"),
            ArrayManifest(NODE[2], scalar),
            ArrayManifest(NODE[3], line),
        ),
        b"extra",
    )


LOCATION_DICTIONARY = b"s3://bucket/prefix/of/all/the/files/" * 2


def manifest_with_compressed_locations() -> bytes:
    """Locations as zstd frames, and a raw-content dictionary in the manifest's extra bytes.

    Our encoder never compresses locations; here its `extra` vector of the manifest and the
    `location` fields are given the slots of dictionary and compressed location.
    """
    compressor = zstandard.ZstdCompressor(
        level=3, dict_data=zstandard.ZstdCompressionDict(LOCATION_DICTIONARY)
    )
    frames = [compressor.compress(b"s3://bucket/prefix/%d" % n).hex() for n in range(3)]
    refs = ChunkRefs.virtual([[0], [1], [2]], frames, [0, 1, 2], 1)
    flat = Flat(
        encode_manifest(Manifest(MANIFEST[1], (ArrayManifest(NODE[1], refs),), LOCATION_DICTIONARY))
    )
    flat.set_u8(flat.field(flat.root, 3), 1)
    flat.set_u16(flat.entry(flat.root, 2), flat.u16(flat.entry(flat.root, 4)))
    flat.set_u16(flat.entry(flat.root, 4), 0)
    array = flat.item(flat.target(flat.root, 1), 0)
    vector = flat.target(array, 1)
    rows = [flat.item(vector, row) for row in range(3)]
    texts = {flat.target(row, 5) for row in rows}
    for text in texts:
        frame = bytes.fromhex(flat.data[text + 4 : text + 4 + flat.u32(text)].decode())
        flat.set_u32(text, len(frame))
        flat.data[text + 4 : text + 4 + len(frame)] = frame
    # The record has no room for another slot in its vtable, so a wider one goes to the end.
    old = flat.vtable(rows[0])
    wide = bytearray(flat.data[old : old + flat.u16(old)])
    wide += bytes(4 + 2 * 9 - len(wide))
    wide[4 + 2 * 8 : 4 + 2 * 9] = wide[4 + 2 * 5 : 4 + 2 * 6]
    wide[4 + 2 * 5 : 4 + 2 * 6] = b"\0\0"
    wide[:2] = len(wide).to_bytes(2, "little")
    new = len(flat.data)
    flat.data += wide + bytes(-len(wide) % 8)
    for row in rows:
        flat.set_i32(row, row - new)
    return flat.done()


@cache
def manifests() -> list[Seed]:
    return [
        *golden_seeds("manifests", 170, "0.2.0-spec1", "1.1.21-spec1", "2.3.0-spec2"),
        *golden_seeds("manifests", 300, "2.3.0-locations"),
        Seed("ours", encode_manifest(manifest_with_everything())),
        Seed("ours-compressed-locations", manifest_with_compressed_locations()),
    ]


# --- transaction logs ------------------------------------------------------------------------


def log_with_everything() -> TransactionLog:
    pairs = [frozenset({NODE[number], NODE[number + 1]}) for number in range(6)]
    return TransactionLog(
        SNAPSHOT[1],
        pairs[0],
        pairs[1],
        pairs[2],
        pairs[3],
        pairs[4],
        pairs[5],
        {NODE[1]: np.array([[0, 0], [0, 1], [3, 2]], np.uint32), NODE[2]: np.empty((1, 0), "u4")},
        (
            Move("/a", "/b", NODE[3], NodeType.GROUP),
            Move("/a/x", "/b/x", NODE[4], NodeType.ARRAY),
        ),
        b"extra",
    )


@cache
def transaction_logs() -> list[Seed]:
    return [
        *golden_seeds("transactions", 150, "0.2.0-spec1", "2.3.0-spec2", "2.3.0-moves"),
        Seed("ours", encode_transaction_log(log_with_everything())),
    ]


# --- the repo object -------------------------------------------------------------------------

_UPDATE_VALUES = {
    "from_version": 1,
    "to_version": 2,
    "name": "a name",
    "branch": "main",
    "previous_snap_id": SNAPSHOT[1],
    "new_snap_id": SNAPSHOT[2],
    "id": 7,
    "new_value": True,
    "is_set": False,
    "status": RepoStatus(RepoAvailability.READ_ONLY, 9, "why"),
}


def repo_with_everything() -> RepoInfo:
    snapshots = [
        SnapshotInfo(SNAPSHOT[1], None, 1, "first"),
        SnapshotInfo(SNAPSHOT[2], SNAPSHOT[1], 2, "second", {"who": ["me", 1]}, (SNAPSHOT[5],)),
        SnapshotInfo(SNAPSHOT[3], SNAPSHOT[2], 3, "third", {"a": None, "b": 1.5}),
    ]
    updates = (
        Update(kind, kind, {name: _UPDATE_VALUES[name] for name in UPDATE_TYPES[kind].fields})
        for kind in UpdateKind
    )
    return RepoInfo(
        {"main": SNAPSHOT[3], "side": SNAPSHOT[2]},
        SnapshotTable.from_infos(snapshots),
        RepoStatus(RepoAvailability.OFFLINE, 5, "moving"),
        (*updates, Update(UpdateKind.GC_RAN, 1, {}, "repo.1.ABC")),
        {"v1": SNAPSHOT[1]},
        frozenset({"gone", "v0"}),
        {"key": {"deep": [1, 2]}},
        "repo.2.DEF",
        encode_flexbuffer({"inline_chunk_threshold_bytes": 5}),
        (1, 7),
        (2,),
        b"extra",
    )


@cache
def repo_infos() -> list[Seed]:
    paths = [
        golden.repository_path(name) / "repo"
        for name in ("2.3.0-grids", "2.3.0-expired-spec2", "2.3.0-settings-spec2")
    ]
    return [
        *(Seed(f"{path.parent.name}/repo", path.read_bytes()) for path in paths),
        Seed("ours", encode_repo_info(repo_with_everything())),
    ]


# --- small files and values ------------------------------------------------------------------


@cache
def ref_files() -> list[Seed]:
    branch = golden.repository_path("2.3.0-spec1") / "refs" / "branch.main" / "ref.json"
    return [
        Seed("2.3.0-spec1/main", branch.read_bytes(), False),
        Seed(
            "spaced", b'{ "snapshot" : "1CECHNKREP0F1RSTCMT0" , "x": [1, null, "\\u00e9"] }', False
        ),
    ]


_YAML = {
    "numbers": b"""inline_chunk_threshold_bytes: 12
compression: {algorithm: zstd, level: 3}
caching:
  num_snapshot_nodes: 0x10
  num_chunk_refs: null
""",
    "containers": b"""virtual_chunk_containers:
  s3://bucket/:
    name: null
    url_prefix: 's3://bucket/'
    store: !s3
      region: "us-\\x65ast"
      anonymous: false
      allow_http: false
      force_path_style: false
      network_stream_timeout_seconds: 60
""",
    "http": b"""virtual_chunk_containers:
  https://a/: {url_prefix: 'https://a/', store: !http {headers: {a: b}, t: '1'}}
""",
    "splitting": b"""manifest:
  splitting:
    split_sizes:
    - - !or
        - !path_matches {regex: ^/a}
        - any_array
      - - condition: !Axis 0
          num_chunks: 10
""",
    "preload": b"""manifest:
  preload:
    max_total_refs: 5
    preload_if: !and
    - !num_refs {from: !Included 1, to: Unbounded}
    - 'true'
""",
    "storage": b"""storage:
  concurrency: {max_concurrent_requests_for_object: 5}
  retries: {max_tries: 3, initial_backoff_ms: 1}
  storage_class: STANDARD
  unsafe_use_metadata: true
""",
}


@cache
def config_yamls() -> list[Seed]:
    """Fragments: a whole file costs far too much per case, and damages the same few readers."""
    return [Seed(name, text, False) for name, text in _YAML.items()]


VALUES: list[object] = [
    None,
    {"a": [1, 2, 3], "b": {"c": "text", "d": -5}, "e": 1.5},
    ["a", "b", True, False, None, 2**63, -(2**63), 0.1],
    {"long": "x" * 40, "ä": [[], {}, [[1.5, 2.5]], ["k", {"k": "v"}]]},
    [[1, 2], [1.0, 2.0, 3.0], [True, True], [-1, -300, -70000, -5000000000]],
]


@cache
def msgpack_values() -> list[Seed]:
    return [Seed(f"value-{n}", encode_msgpack(value), False) for n, value in enumerate(VALUES)]


@cache
def flexbuffer_values() -> list[Seed]:
    return [Seed(f"value-{n}", encode_flexbuffer(value), False) for n, value in enumerate(VALUES)]


@cache
def config_flexbuffers() -> list[Seed]:
    documents: list[dict[str, object]] = [
        {"inline_chunk_threshold_bytes": 12, "compression": {"algorithm": "zstd", "level": 3}},
        {
            "virtual_chunk_containers": {
                "s3://b/": {
                    "name": None,
                    "url_prefix": "s3://b/",
                    "store": {"s3_compatible": {"region": "r", "anonymous": True}},
                },
                "file:///": {"url_prefix": "file:///", "store": {"local_file_system": "/data"}},
            }
        },
        {
            "manifest": {
                "preload": {"preload_if": {"or": ["true", {"name_matches": {"regex": "a"}}]}},
                "splitting": {
                    "split_sizes": [
                        ["any_array", [{"condition": {"Axis": 0}, "num_chunks": 9}]],
                        [{"path_matches": {"regex": "b"}}, [{"condition": "Any", "num_chunks": 9}]],
                    ]
                },
            }
        },
        {"storage": {"concurrency": {"ideal_concurrent_request_size": 5}, "storage_class": "X"}},
    ]
    return [
        Seed(f"document-{n}", encode_flexbuffer(document), False)
        for n, document in enumerate(documents)
    ]
