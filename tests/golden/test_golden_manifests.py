"""Manifests of official writers decode to the chunk references that official lists."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from icefloe.format.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.format.nodes import Node
from icefloe.format.snapshot import Snapshot
from tests.golden import repository_path
from tests.golden.decoded import NAMES, Json, expectation, manifests, snapshots

every_repository = pytest.mark.parametrize("name", NAMES)

# The named container of the scenario with relative locations.
CONTAINER = ("vcc://archive/", "s3://named-bucket/some/prefix/")


def arrays_with_chunks(name: str) -> Iterator[tuple[str, Node, Json]]:
    """Every array of every snapshot that official opens, with the chunks official lists."""
    for key, snapshot in snapshots(name).items():
        expected = expectation(name)["snapshots"][key]["nodes"]
        if "error" in expected:
            continue
        for node in snapshot.nodes:
            # Without a zarr.json official did not find the node, and lists nothing for it.
            if node.array is not None and expected[node.path]["zarr_json"] is not None:
                yield key, node, expected[node.path]["chunks"]


def refs_of(name: str, node: Node) -> ChunkRefs:
    """All references of an array, from all of its manifests."""
    assert node.array is not None
    refs = ChunkRefs.empty(len(node.array.shape))
    for manifest in node.array.manifests:
        part = manifests(name)[manifest.id].find(node.id)
        assert part is not None, f"manifest {manifest.id} has no refs of {node.path}"
        refs = refs.merge(part)
    return refs


def as_listed(ref: ChunkRef) -> Json:
    """A reference in the columns of the official chunk iterator."""
    path = ref.chunk_id.text if ref.chunk_id is not None else ref.location or ""
    return {
        "kinds": int(ref.kind),
        "paths": path.replace(*CONTAINER),
        "offsets": ref.offset,
        "lengths": ref.length,
        "inline": None if ref.inline is None else base64.b64encode(ref.inline).decode(),
    }


@every_repository
def test_every_array_has_the_references_official_lists(name: str) -> None:
    for key, node, expected in arrays_with_chunks(name):
        refs = refs_of(name, node)
        assert refs.index.tolist() == expected["coords"], (key, node.path)
        rows = [as_listed(refs.row(row)) for row in range(len(refs))]
        for column in ("kinds", "paths", "offsets", "lengths", "inline"):
            assert [row[column] for row in rows] == expected[column], (key, node.path, column)


@every_repository
def test_point_lookups_and_boxes_find_what_the_whole_table_has(name: str) -> None:
    for _, node, expected in arrays_with_chunks(name):
        refs = refs_of(name, node)
        step = max(1, len(refs) // 50)
        for row in range(0, len(refs), step):
            index = expected["coords"][row]
            assert refs.get(index) == refs.row(row)
            box = refs.select(index, [at + 1 for at in index])
            assert box.equals(refs.take(slice(row, row + 1)))


@every_repository
def test_native_and_inline_chunks_have_the_bytes_official_reads(name: str) -> None:
    root = repository_path(name)
    for key, node, expected in arrays_with_chunks(name):
        refs = refs_of(name, node)
        for row, digest in enumerate(expected["sha256"]):
            ref = refs.row(row)
            if ref.kind == ChunkKind.VIRTUAL:
                continue
            data = ref.inline
            if ref.chunk_id is not None:
                whole = (root / "chunks" / ref.chunk_id.text).read_bytes()
                data = whole[ref.offset : ref.offset + ref.length]
            assert data is not None
            assert len(data) == ref.length
            assert hashlib.sha256(data).hexdigest() == digest, (key, node.path, row)


@every_repository
def test_manifests_have_the_arrays_and_counts_official_reports(name: str) -> None:
    found = {}
    for manifest_id, manifest in manifests(name).items():
        assert manifest.id == manifest_id
        arrays = []
        for array in manifest.arrays:
            kinds = array.refs.kind.tolist()
            arrays.append(
                {
                    "node_id": array.node_id.text,
                    "num_chunk_refs": len(kinds),
                    "num_inline": kinds.count(ChunkKind.INLINE),
                    "num_native": kinds.count(ChunkKind.NATIVE),
                    "num_virtual": kinds.count(ChunkKind.VIRTUAL),
                }
            )
        found[manifest_id.text] = (arrays, manifest.num_chunk_refs)
    reported = expectation(name)["manifests"]
    assert found == {
        key: (inspected["arrays"], inspected["total_chunk_refs"])
        for key, inspected in reported.items()
    }


@every_repository
def test_snapshots_count_the_refs_of_their_manifests_and_bound_their_indices(name: str) -> None:
    found = manifests(name)
    for snapshot in snapshots(name).values():
        if not all(key in found for key in snapshot.manifest_files):
            continue  # a dropped snapshot whose manifests were collected
        for info in snapshot.manifest_files.values():
            assert info.num_chunk_refs == found[info.id].num_chunk_refs
        check_extents(name, snapshot)


def check_extents(name: str, snapshot: Snapshot) -> None:
    for node in snapshot.nodes:
        for ref in node.array.manifests if node.array is not None else ():
            refs = manifests(name)[ref.id].find(node.id)
            assert refs is not None
            assert tuple(refs.extents()) == ref.extents, (node.path, ref.id)


# --- what the official iterator hides: checksums, and locations as they are stored -----------


def stored_forms(location: str) -> set[str]:
    """How releases stored this location: 1.x percent-encoded it, 2.x only lowers the scheme."""
    scheme, rest = location.split("://", 1)
    plain = f"{scheme.lower()}://{rest}"
    return {plain, quote(plain, safe=":/?#%")}


@pytest.mark.parametrize(
    "name", [name for name in NAMES if expectation(name)["written"]["virtual_refs"]]
)
def test_virtual_references_have_the_locations_and_checksums_that_were_written(name: str) -> None:
    written = expectation(name)["written"]
    label = "locations" if "locations" in written["labels"] else "nodes"
    snapshot = snapshots(name)[written["labels"][label]]
    for path, rows in written["virtual_refs"].items():
        node = snapshot.nodes.find(path)
        assert node is not None
        refs = refs_of(name, node)
        for index, location, offset, length, etag, modified in rows:
            ref = refs.get(index)
            assert ref is not None
            assert ref.location in stored_forms(location)
            assert ref[1:3] == (offset, length)
            assert (ref.etag, ref.last_modified) == (etag, modified), (path, index)


def test_some_manifest_has_compressed_locations_and_some_has_plain_ones() -> None:
    reported = expectation("2.3.0-locations")["manifests"].values()
    assert {inspected["compression"]["uses_location_compression"] for inspected in reported} == {
        True,
        False,
    }
