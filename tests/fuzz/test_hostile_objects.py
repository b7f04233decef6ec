"""Files of sound structure that say something no repository can mean, or that grow when read.

Files are made by our encoders and then patched, or written table by table where an encoder
refuses to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard

from icefloe.errors import ErrorKind
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.envelope import FileType
from icefloe.format.flatbuffer.schema import NODE_SNAPSHOT, SNAPSHOT
from icefloe.format.flatbuffer.write import FlatWriter
from icefloe.format.manifest import ArrayManifest, Manifest, decode_manifest, encode_manifest
from icefloe.format.metadata import write_items
from icefloe.format.nodes import ArrayData, Dimension, ManifestRef, Node, NodeTable
from icefloe.format.repo_info import encode_repo_info
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.format.transaction_log import TransactionLog, encode_transaction_log
from icefloe.ids import SnapshotId
from tests.fuzz import seeds
from tests.fuzz.files import Flat, nested_vectors, new_file, payload_of
from tests.fuzz.refusal import refused, refused_by
from tests.fuzz.seeds import MANIFEST, NODE
from tests.fuzz.seeds import SNAPSHOT as SNAPSHOT_ID


def snapshot_of(nodes: list[Node], spec_version: int = 2) -> Flat:
    snapshot = replace(
        seeds.snapshot_with_everything(spec_version), nodes=NodeTable.from_nodes(nodes)
    )
    return Flat(encode_snapshot(snapshot, spec_version=spec_version))


def node_table(flat: Flat, row: int) -> int:
    return flat.item(flat.target(flat.root, 2), row)


def array(**changes: Any) -> ArrayData:
    return replace(ArrayData((Dimension(4, 2, 2),)), **changes)


TWO_NODES = [Node(NODE[0], "/aa", b"{}"), Node(NODE[1], "/bb", b"{}", array())]


# --- snapshots -------------------------------------------------------------------------------


def test_snapshot_with_a_path_twice() -> None:
    bad = snapshot_of(TWO_NODES)
    text = bad.target(node_table(bad, 1), 1)
    bad.data[text + 4 : text + 7] = b"/aa"
    refused("snapshot", bad.done(), "node path '/aa' appears twice")


@pytest.mark.parametrize("path", ["aaa", "a/."])
def test_snapshot_with_a_path_that_is_not_absolute(path: str) -> None:
    bad = snapshot_of([Node(NODE[0], "/" + "x" * (len(path) - 1), b"{}")])
    text = bad.target(node_table(bad, 0), 1)
    bad.data[text + 4 : text + 4 + len(path)] = path.encode()
    refused("snapshot", bad.done(), f"node path {path!r} is not absolute")


def test_snapshot_with_text_that_is_not_utf8() -> None:
    bad = snapshot_of(TWO_NODES)
    bad.set_u8(bad.target(node_table(bad, 0), 1) + 5, 0xFF)
    refused("snapshot", bad.done(), "NodeSnapshot.path is not valid UTF-8")
    bad = snapshot_of(TWO_NODES)
    bad.set_u8(bad.target(bad.root, 4) + 5, 0xFF)
    refused("snapshot", bad.done(), "Snapshot.message is not valid UTF-8")


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_snapshot_with_a_node_of_no_kind(kind: int) -> None:
    bad = snapshot_of(TWO_NODES)
    bad.set_u8(bad.field(node_table(bad, 1), 3), kind)
    refused("snapshot", bad.done(), "a node is neither array (1) nor group (2)")


def test_snapshot_with_extents_of_another_rank() -> None:
    """Official clients write them; such a manifest covers nothing."""
    refs = (ManifestRef(MANIFEST[0], ((0, 2),)),)
    bad = snapshot_of([Node(NODE[0], "/a", b"", array(manifests=refs))])
    data = bad.target(node_table(bad, 0), 4)
    extents = bad.target(bad.item(bad.target(data, 2), 0), 1)
    bad.set_u32(extents, 0)
    node = decode_snapshot(bad.done()).nodes[0]
    assert all(ref.extents == ((0, 0),) * len(node.array.shape) for ref in node.array.manifests)


def test_snapshot_with_names_of_another_rank() -> None:
    bad = snapshot_of([Node(NODE[0], "/a", b"", array(dimension_names=("x",)))])
    data = bad.target(node_table(bad, 0), 4)
    bad.set_u32(bad.target(data, 1), 0)
    refused("snapshot", bad.done(), "ArrayNodeData.dimension_names and shape differ in length")


def test_snapshot_with_chunk_length_zero() -> None:
    bad = snapshot_of([Node(NODE[0], "/a", b"", array())], spec_version=1)
    shape = bad.target(bad.target(node_table(bad, 0), 4), 0)
    bad.data[shape + 12 : shape + 20] = bytes(8)
    refused("snapshot", bad.done(), "chunk length 0")


def test_snapshot_with_a_manifest_twice() -> None:
    bad = Flat(encode_snapshot(seeds.snapshot_with_everything(1), spec_version=1))
    structs = bad.target(bad.root, 6) + 4
    bad.data[structs + 32 : structs + 44] = bad.data[structs : structs + 12]
    refused("snapshot", bad.done(), "a manifest file is listed twice")


def test_snapshot_with_a_metadata_name_twice() -> None:
    snapshot = replace(seeds.snapshot_with_everything(2), metadata={"aa": 1, "bb": 2})
    bad = Flat(encode_snapshot(snapshot, spec_version=2))
    items = bad.target(bad.root, 5)
    name = bad.target(bad.item(items, 1), 0)
    bad.data[name + 4 : name + 6] = b"aa"
    refused("snapshot", bad.done(), "a metadata name appears twice")


def test_snapshot_of_version_1_with_shapes_of_version_2() -> None:
    """Seven chunks of ten elements could not be written back: version 1 knows chunk lengths."""
    bad = snapshot_of([Node(NODE[0], "/a", b"", ArrayData((Dimension(10, 7),)))])
    bad.set_u32(bad.target(bad.root, 5), 0)  # no metadata, whose encoding is another one
    data = new_file(FileType.SNAPSHOT, bytes(bad.data), 1)
    refused("snapshot", data, "shape_v2", "version 1")


def test_a_hundred_thousand_nodes_share_one_megabyte() -> None:
    count = 100_000
    writer = FlatWriter()
    fields = ["id", "nodes", "flushed_at", "message", "metadata", "manifest_files"]
    root = writer.table(SNAPSHOT, fields)
    vector = writer.offsets(count)
    root.point("nodes", vector.position)
    required = dict.fromkeys(("id", "path", "user_data", "node_data_type", "node_data"))
    tables = writer.tables(NODE_SNAPSHOT, count, required)
    vector.point(tables.position)
    tables.set("node_data_type", np.full(count, 2))
    tables.point("path", writer.blobs([f"/{n:06d}" for n in range(count)]))
    tables.point("user_data", [writer.blob(bytes(1_000_000))] * count)
    tables.point("node_data", [writer.table(SNAPSHOT, []).position] * count)
    root.point("message", writer.text(""))
    root.point("metadata", writer.offsets(0).position)
    root.point("manifest_files", writer.offsets(0).position)
    data = new_file(FileType.SNAPSHOT, b"".join(map(bytes, writer.finish(root))))
    refused("snapshot", data, "NodeSnapshot.user_data adds up to 100,000,000,000 bytes", "at most")


def test_thousands_of_arrays_share_one_vector_of_manifests() -> None:
    """4,000 arrays, 4,000 manifests: 16 million rows out of 400 kB, several columns each."""
    count = 4_000
    refs = tuple(ManifestRef(MANIFEST[0], ()) for _ in range(count))
    nodes = [Node(NODE[0], "/first", b"", ArrayData((), None, refs))]
    nodes += [Node(NODE[0], f"/x{n}", b"", ArrayData(())) for n in range(count - 1)]
    bad = snapshot_of(nodes)
    data = [bad.target(node_table(bad, row), 4) for row in range(count)]
    shared = bad.target(data[0], 2)
    assert bad.u32(shared) == count
    for table in data:
        bad.point(bad.field(table, 2), shared)
    refused("snapshot", bad.done(), "ArrayNodeData.manifests")


# --- metadata --------------------------------------------------------------------------------


def with_metadata(raw: bytes, spec_version: int) -> bytes:
    """A snapshot whose one metadata value has these bytes."""
    writer = FlatWriter()
    root = writer.table(
        SNAPSHOT, ["id", "nodes", "flushed_at", "message", "metadata", "manifest_files"]
    )
    root.point("nodes", writer.offsets(0).position)
    root.point("message", writer.text(""))
    items = writer.offsets(1)
    root.point("metadata", items.position)
    items.point(write_items(writer, ["key"], [raw]))
    root.point("manifest_files", writer.offsets(0).position)
    payload = b"".join(map(bytes, writer.finish(root)))
    return new_file(FileType.SNAPSHOT, payload, spec_version)


def test_metadata_nested_deep_as_msgpack() -> None:
    for levels in (201, 1_000, 100_000):
        data = with_metadata(b"\x91" * levels + b"\xc0", 1)
        refused("snapshot", data, "metadata 'key'")


def test_metadata_nested_deep_as_flexbuffer() -> None:
    for levels in (201, 1_000, 100_000):
        refused("snapshot", with_metadata(nested_vectors(levels), 2), "metadata 'key'", "levels")


def test_metadata_whose_vectors_claim_everything_as_msgpack() -> None:
    size = 1_000_000
    raw = (b"\xdd" + (size - 9).to_bytes(4, "big")) * 500
    refused("snapshot", with_metadata(raw + b"\xc0" * (size - len(raw)), 1), "metadata 'key'")


def test_metadata_whose_parts_overlap_without_end() -> None:
    """Each of 30 vectors holds the one before twice: a billion values in 200 bytes."""
    data = bytearray(b"\x00")
    previous = 1
    vector = 10 << 2
    for _ in range(30):
        start = len(data) + 1
        data += bytes((2, start - previous, start + 1 - previous, vector, vector))
        previous = start
    data += bytes((len(data) - previous, vector, 1))
    refused("snapshot", with_metadata(bytes(data), 2), "holds more values than bytes")


# --- manifests -------------------------------------------------------------------------------


def manifest_of(refs: ChunkRefs) -> Flat:
    return Flat(encode_manifest(Manifest(MANIFEST[1], (ArrayManifest(NODE[1], refs),))))


def ref_table(flat: Flat, row: int) -> int:
    return flat.item(flat.target(flat.item(flat.target(flat.root, 1), 0), 1), row)


THREE_REFS = ChunkRefs.native([[0], [1], [2]], np.zeros((3, 12), np.uint8), 0, 5)


def test_manifest_with_refs_out_of_order() -> None:
    bad = manifest_of(THREE_REFS)
    bad.set_u32(bad.target(ref_table(bad, 0), 0) + 4, 7)
    refused("manifest", bad.done(), f"refs of node {NODE[1]} do not ascend by chunk index")


def test_manifest_with_a_chunk_twice() -> None:
    bad = manifest_of(THREE_REFS)
    bad.set_u32(bad.target(ref_table(bad, 0), 0) + 4, 1)
    refused("manifest", bad.done(), f"refs of node {NODE[1]} do not ascend by chunk index")


def test_manifest_with_indices_of_several_ranks() -> None:
    bad = manifest_of(THREE_REFS)
    bad.set_u32(bad.target(ref_table(bad, 1), 0), 0)
    refused("manifest", bad.done(), "ChunkRef.index", "other numbers of dimensions")


def test_manifest_with_an_index_of_a_million_dimensions() -> None:
    """Every ref shares one index of a megabyte, so that 1,000 of them would be a gigabyte."""
    count = 1_000
    refs = ChunkRefs.native(np.arange(count).reshape(-1, 1), np.zeros((count, 12), np.uint8), 0, 5)
    bad = manifest_of(refs)
    end = len(bad.data)
    bad.data += (250_000).to_bytes(4, "little") + bytes(1_000_000)
    for row in range(count):
        bad.point(bad.field(ref_table(bad, row), 0), end)
    refused("manifest", bad.done(), "ChunkRef.index")


def test_manifest_with_arrays_out_of_order() -> None:
    arrays = tuple(ArrayManifest(NODE[n], THREE_REFS) for n in (1, 2))
    bad = Flat(encode_manifest(Manifest(MANIFEST[1], arrays)))
    at = bad.field(bad.item(bad.target(bad.root, 1), 0), 0)
    bad.data[at : at + 8] = b"\xff" * 8
    refused("manifest", bad.done(), "arrays do not ascend by node id")


def test_manifest_with_a_ref_to_nothing() -> None:
    bad = manifest_of(THREE_REFS)
    bad.set_u16(bad.entry(ref_table(bad, 0), 4), 0)
    refused("manifest", bad.done(), "neither chunk id nor location nor inline bytes")


def test_manifest_with_an_offset_on_an_inline_ref_means_nothing() -> None:
    """A chunk kept in the manifest has no place in a file; the field is not to be passed on."""
    odd = manifest_of(ChunkRefs.inline_chunks([[0]], [b"some bytes inside"]))
    table = ref_table(odd, 0)
    aligned = 8 + table % 8  # where in the table a number of eight bytes can be read
    words = [12, 24, odd.u16(odd.entry(table, 0)), odd.u16(odd.entry(table, 1)), aligned, 0]
    new_vtable = len(odd.data)
    odd.data += b"".join(word.to_bytes(2, "little") for word in words) + bytes(4)
    odd.set_i32(table, table - new_vtable)
    [only] = decode_manifest(odd.done()).arrays
    assert only.refs.row(0).offset == 0


def compressed() -> Flat:
    return Flat(seeds.manifest_with_compressed_locations())


def first_frame(flat: Flat) -> int:
    return flat.target(ref_table(flat, 0), 8)


def all_locations(data: bytes) -> Any:
    def work() -> None:
        [only] = decode_manifest(data, "a/manifest/FILE").arrays
        assert only.refs.location is not None
        only.refs.location.values.strings()

    return work


def one_location(data: bytes) -> Any:
    def work() -> None:
        [only] = decode_manifest(data, "a/manifest/FILE").arrays
        only.refs.row(0)

    return work


def test_manifest_with_compressed_locations_but_no_dictionary() -> None:
    bad = compressed()
    bad.set_u16(bad.entry(bad.root, 2), 0)
    refused("manifest", bad.done(), "no location dictionary")


@pytest.mark.parametrize("look", [all_locations, one_location])
@pytest.mark.parametrize("announced", [1025, 2**31, 2**62])
def test_manifest_with_a_location_that_announces_too_much(look: Any, announced: int) -> None:
    """Inflating stops at 1,024 bytes; the announced size must not be allocated first."""
    bad = compressed()
    at = first_frame(bad)
    frame = bytes.fromhex("28b52ffde0") + announced.to_bytes(8, "little") + b"\x0b\x00\x00a"
    bad.set_u32(at, len(frame))
    bad.data[at + 4 : at + 4 + len(frame)] = frame
    refused_by(look(bad.done()), "a/manifest/FILE: a compressed location")


@pytest.mark.parametrize("look", [all_locations, one_location])
def test_manifest_with_a_location_beyond_the_limit(look: Any) -> None:
    """A sound frame of a location that readers do not inflate."""
    bad = compressed()
    context = zstandard.ZstdCompressor(
        dict_data=zstandard.ZstdCompressionDict(seeds.LOCATION_DICTIONARY)
    )
    frame = context.compress(b"s3://bucket/" + b"x" * 1013)
    at = first_frame(bad)
    bad.set_u32(at, len(frame))
    bad.data[at + 4 : at + 4 + len(frame)] = frame
    refused_by(look(bad.done()), "a/manifest/FILE: a compressed location", "1,024")


@pytest.mark.parametrize("look", [all_locations, one_location])
def test_manifest_with_a_location_that_is_no_frame(look: Any) -> None:
    bad = compressed()
    bad.set_u32(first_frame(bad) + 4, 0)
    refused_by(look(bad.done()), "a/manifest/FILE: a compressed location cannot be inflated")


# --- transaction logs ------------------------------------------------------------------------


def log() -> Flat:
    return Flat(encode_transaction_log(seeds.log_with_everything()))


def test_log_with_a_node_twice() -> None:
    bad = log()
    ids = bad.target(bad.root, 1) + 4
    bad.data[ids + 8 : ids + 16] = bad.data[ids : ids + 8]
    refused("log", bad.done(), "TransactionLog.new_groups lists a node twice")


def test_log_with_an_array_twice() -> None:
    bad = log()
    rows = bad.target(bad.root, 7)
    one, other = (bad.field(bad.item(rows, row), 0) for row in (0, 1))
    bad.data[other : other + 8] = bad.data[one : one + 8]
    refused("log", bad.done(), f"updated chunks of node {NODE[1]} are listed twice")


def test_log_with_a_move_of_no_kind() -> None:
    bad = log()
    bad.set_u8(bad.field(bad.item(bad.target(bad.root, 8), 0), 3), 2)
    refused("log", bad.done(), "MoveOperation.node_type is 2, expected 0 or 1")


def test_log_with_a_move_to_no_path() -> None:
    """Paths of nodes are checked in snapshots, so those they move to have to be as well."""
    bad = log()
    text = bad.target(bad.item(bad.target(bad.root, 8), 0), 1)
    assert bad.data[text + 4 : text + 6] == b"/b"
    bad.data[text + 4 : text + 6] = b"bb"
    refused("log", bad.done(), "MoveOperation.to 'bb' is not absolute")


def test_log_with_coordinates_of_several_ranks() -> None:
    index = np.array([[0, 0], [0, 1]], np.uint32)
    data = encode_transaction_log(TransactionLog(SNAPSHOT_ID[1], updated_chunks={NODE[1]: index}))
    bad = Flat(data)
    chunks = bad.target(bad.item(bad.target(bad.root, 7), 0), 1)
    bad.set_u32(bad.target(bad.item(chunks, 1), 0), 1)
    refused("log", bad.done(), "ChunkIndices.coords", "other numbers of dimensions")


# --- the repo object -------------------------------------------------------------------------


def repo() -> Flat:
    return Flat(encode_repo_info(seeds.repo_with_everything()))


def snapshot_info(flat: Flat, row: int) -> int:
    return flat.item(flat.target(flat.root, 4), row)


@pytest.mark.parametrize("parents", [(0, 0, 1), (1, 0, 1), (1, 2, 0), (-1, 2, 1)])
def test_repo_with_a_snapshot_that_is_its_own_ancestor(parents: tuple[int, ...]) -> None:
    bad = repo()
    for row, parent in enumerate(parents):
        bad.set_i32(bad.field(snapshot_info(bad, row), 1), parent)
    refused("repo", bad.done(), "a snapshot is its own ancestor")


@pytest.mark.parametrize("parent", [-2, 3, 2**31 - 1, -(2**31)])
def test_repo_with_a_parent_that_is_not_there(parent: int) -> None:
    bad = repo()
    bad.set_i32(bad.field(snapshot_info(bad, 1), 1), parent)
    refused("repo", bad.done(), "SnapshotInfo.parent_offset lies outside the 3 snapshots")


def test_repo_with_snapshots_out_of_order() -> None:
    bad = repo()
    bad.set_u8(bad.field(snapshot_info(bad, 0), 0), 0xFF)
    refused("repo", bad.done(), "snapshots do not ascend by id")


@pytest.mark.parametrize("field", [1, 2])
def test_repo_with_a_ref_to_a_snapshot_that_is_not_there(field: int) -> None:
    bad = repo()
    bad.set_u32(bad.field(bad.item(bad.target(bad.root, field), 0), 1), 3)
    refused("repo", bad.done(), "a ref points at snapshot 3 of 3 listed snapshots")


def test_repo_with_a_branch_twice() -> None:
    bad = repo()
    branches = bad.target(bad.root, 2)
    side = bad.target(bad.item(branches, 1), 0)
    bad.data[side + 4 : side + 8] = b"main"
    refused("repo", bad.done(), "a ref name appears twice")


def test_repo_without_main() -> None:
    bad = repo()
    main = bad.target(bad.item(bad.target(bad.root, 2), 0), 0)
    bad.data[main + 4 : main + 8] = b"many"
    refused("repo", bad.done(), "there is no branch 'main', only ['many', 'side']")


def test_repo_with_a_number_that_is_not_aligned() -> None:
    bad = repo()
    table = bad.item(bad.target(bad.root, 7), 0)
    entry = bad.entry(table, 2)
    bad.set_u16(entry, bad.u16(entry) - 4)
    refused("repo", bad.done(), "Update.updated_at is not aligned to 8 bytes")


def test_repo_of_a_newer_version_says_which_one_is_needed() -> None:
    bad = repo()
    bad.set_u8(bad.field(bad.root, 0), 3)
    error = refused("repo", bad.done(), "spec version 3", "upgrade icefloe")
    assert error.kind == ErrorKind.UNSUPPORTED_SPEC_VERSION


def test_repo_of_an_older_version() -> None:
    bad = repo()
    bad.set_u8(bad.field(bad.root, 0), 1)
    refused("repo", bad.done(), "spec version is 1, expected 2")


def test_repo_in_a_file_of_another_version() -> None:
    """Metadata of version 1 is MessagePack: the wrong reader would make up values."""
    data = new_file(FileType.REPO_INFO, payload_of(repo().done()), 1)
    refused("repo", data, "file of spec version 1, expected 2")


def test_repo_with_thousands_of_snapshots_that_share_their_metadata() -> None:
    """Row by row the items are few; all in all they would be millions."""
    count = 4_000
    ids = [SnapshotId(number.to_bytes(12, "big")) for number in range(count)]
    items = {f"{number:04d}": 0 for number in range(count)}
    infos = [SnapshotInfo(ids[0], None, 0, "", items)]
    infos += [SnapshotInfo(key, None, 0, "") for key in ids[1:]]
    info = replace(
        seeds.repo_with_everything(),
        snapshots=SnapshotTable.from_infos(infos),
        branches={"main": ids[0]},
        tags={},
    )
    bad = Flat(encode_repo_info(info))
    shared = bad.target(snapshot_info(bad, 0), 4)
    assert bad.u32(shared) == count
    for row in range(count):
        bad.point(bad.field(snapshot_info(bad, row), 4), shared)
    refused("repo", bad.done(), "SnapshotInfo.metadata")
