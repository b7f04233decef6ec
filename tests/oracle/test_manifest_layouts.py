"""Manifests that official writers do not make, but official readers must accept.

Official code writes one array a manifest and one chunk an object. Here its manifests are
replaced by such as compaction makes: several arrays in one file, many chunks in one object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe.format import layout
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.manifest import ArrayManifest, Manifest, encode_manifest
from icefloe.format.nodes import ManifestRef, Node, NodeTable
from icefloe.format.snapshot import (
    ManifestFileInfo,
    ManifestFiles,
    decode_snapshot,
    encode_snapshot,
)
from icefloe.ids import ChunkId, ManifestId, SnapshotId

icechunk: Any = pytest.importorskip(
    "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
)

# These import the official library, so they have to wait for the line above.
from tests.golden.basics import create_array  # noqa: E402
from tests.golden.official import (  # noqa: E402
    create_repository,
    get,
    open_repository,
    put,
    zarr,
)

both_versions = pytest.mark.parametrize("spec", [1, 2])

MANIFEST_ID = ManifestId(bytes(range(100, 112)))
PACK_ID = ChunkId(bytes(range(200, 212)))


def replace_manifests(root: Path, tip: str, refs: Mapping[str, ChunkRefs], spec: int) -> None:
    """Let the arrays at these paths find their chunks in one manifest written by icefloe."""
    path = root / layout.snapshot_key(SnapshotId.parse(tip))
    snapshot = decode_snapshot(path.read_bytes())
    nodes, arrays = [], []
    for node in snapshot.nodes:
        if node.path in refs:
            arrays.append(ArrayManifest(node.id, refs[node.path]))
            nodes.append(_pointed(node, refs[node.path]))
        else:
            nodes.append(node)
    arrays.sort(key=lambda array: array.node_id)
    manifest = Manifest(MANIFEST_ID, tuple(arrays))
    data = encode_manifest(manifest, spec_version=spec)
    target = root / layout.manifest_key(MANIFEST_ID)
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(data)
    info = ManifestFileInfo(MANIFEST_ID, len(data), manifest.num_chunk_refs)
    changed = replace(
        snapshot,
        nodes=NodeTable.from_nodes(nodes),
        manifest_files=ManifestFiles.from_infos([*snapshot.manifest_files.values(), info]),
    )
    path.write_bytes(encode_snapshot(changed, spec_version=spec))


def _pointed(node: Node, refs: ChunkRefs) -> Node:
    assert node.array is not None
    box = tuple(refs.extents())
    return replace(node, array=replace(node.array, manifests=(ManifestRef(MANIFEST_ID, box),)))


def commit_arrays(root: Path, spec: int, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A repository with empty arrays of one-byte chunks."""
    repo = create_repository(root, spec=spec)
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    for name, shape in shapes.items():
        create_array(top, name, shape, chunks=(1,) * len(shape) or "auto")
    return str(session.commit("arrays"))


def read_array(root: Path, name: str) -> Any:
    store = open_repository(root).readonly_session("main").store
    return zarr.open_group(store, mode="r")[name][...]


@both_versions
def test_official_reads_a_manifest_that_holds_several_arrays(spec: int, tmp_path: Path) -> None:
    shapes = {"first": (3,), "second": (2, 2), "scalar": ()}
    tip = commit_arrays(tmp_path, spec, shapes)
    refs = {
        "/first": ChunkRefs.inline_chunks([[0], [2]], [b"\x01", b"\x03"]),
        "/second": ChunkRefs.inline_chunks([[0, 1], [1, 0]], [b"\x0b", b"\x0c"]),
        "/scalar": ChunkRefs.inline_chunks(np.empty((1, 0), np.uint32), [b"\x2a"]),
    }
    replace_manifests(tmp_path, tip, refs, spec)
    assert read_array(tmp_path, "first").tolist() == [1, 0, 3]
    assert read_array(tmp_path, "second").tolist() == [[0, 11], [12, 0]]
    assert read_array(tmp_path, "scalar") == 42
    reported = open_repository(tmp_path).inspect_manifest(MANIFEST_ID.text)
    assert reported["num_arrays"] == 3
    assert reported["total_inline"] == 5


@both_versions
def test_official_changes_one_array_of_a_shared_manifest_and_keeps_the_other(
    spec: int, tmp_path: Path
) -> None:
    tip = commit_arrays(tmp_path, spec, {"first": (3,), "second": (2,)})
    refs = {
        "/first": ChunkRefs.inline_chunks([[0], [2]], [b"\x01", b"\x03"]),
        "/second": ChunkRefs.inline_chunks([[1]], [b"\x0b"]),
    }
    replace_manifests(tmp_path, tip, refs, spec)
    session = open_repository(tmp_path).writable_session("main")
    put(session.store, "first/c/1", b"\x02")
    session.commit("on top")
    assert read_array(tmp_path, "first").tolist() == [1, 2, 3]
    assert read_array(tmp_path, "second").tolist() == [0, 11]


@both_versions
def test_official_reads_chunks_packed_into_one_object(spec: int, tmp_path: Path) -> None:
    tip = commit_arrays(tmp_path, spec, {"packed": (5,), "also packed": (2,)})
    (tmp_path / "chunks").mkdir(exist_ok=True)
    (tmp_path / layout.chunk_key(PACK_ID)).write_bytes(b"header" + bytes(range(50, 60)))
    packed = np.frombuffer(PACK_ID, np.uint8)
    refs = {
        "/packed": ChunkRefs.native(
            [[0], [1], [4]], np.tile(packed, (3, 1)), offset=[6, 9, 15], length=1
        ),
        "/also packed": ChunkRefs.native([[1]], packed, offset=8, length=1),
    }
    replace_manifests(tmp_path, tip, refs, spec)
    assert read_array(tmp_path, "packed").tolist() == [50, 53, 0, 0, 59]
    assert read_array(tmp_path, "also packed").tolist() == [0, 52]


@both_versions
def test_official_reads_every_kind_of_chunk_from_one_array(spec: int, tmp_path: Path) -> None:
    tip = commit_arrays(tmp_path, spec, {"mixed": (4,)})
    (tmp_path / "chunks").mkdir(exist_ok=True)
    (tmp_path / layout.chunk_key(PACK_ID)).write_bytes(b"\x07\x08")
    native = ChunkRefs.native([[1]], np.frombuffer(PACK_ID, np.uint8), offset=1, length=1)
    inline = ChunkRefs.inline_chunks([[0]], [b"\x05"])
    virtual = ChunkRefs.virtual([[3]], ["s3://example-bucket/file"], [2**40], [1], etag=["e"])
    replace_manifests(tmp_path, tip, {"/mixed": native.merge(inline).merge(virtual)}, spec)
    store = open_repository(tmp_path).readonly_session("main").store
    assert get(store, "mixed/c/0") == b"\x05"
    assert get(store, "mixed/c/1") == b"\x08"
    assert get(store, "mixed/c/2") is None
    coords, kinds, paths, offsets, _ = chunk_columns(store, "/mixed")
    assert coords.tolist() == [[0], [1], [3]]
    assert kinds.tolist() == [3, 1, 2]
    assert paths[1:] == [PACK_ID.text, "s3://example-bucket/file"]
    assert offsets.tolist() == [0, 1, 2**40]


def chunk_columns(store: Any, path: str) -> tuple[Any, Any, list[str], Any, Any]:
    """All references official code lists, as columns in the order of their indices."""

    async def collect() -> list[Any]:
        return [batch async for batch in store.array_chunk_iterator(path)]

    coords, kinds, paths, offsets, lengths, _ = zip(*asyncio.run(collect()), strict=True)
    joined = [np.concatenate(column) for column in (coords, kinds, offsets, lengths)]
    order = np.lexsort(joined[0].T[::-1])
    texts = [text for batch in paths for text in batch]
    return (
        joined[0][order],
        joined[1][order],
        [texts[row] for row in order],
        joined[2][order],
        joined[3][order],
    )


def test_official_reads_a_manifest_of_a_million_virtual_chunks(tmp_path: Path) -> None:
    shape = (100, 100, 100)
    tip = commit_arrays(tmp_path, 2, {"large": shape})
    index = np.indices(shape, np.uint32).reshape(3, -1).T
    row = np.arange(len(index))
    files = [f"s3://example-bucket/years/{number:04d}/größe.nc" for number in range(1000)]
    location = [files[number] for number in (row // 1000).tolist()]
    refs = ChunkRefs.virtual(index, location, row * 100, np.full(len(row), 100), None, row % 3)
    replace_manifests(tmp_path, tip, {"/large": refs}, 2)
    store = open_repository(tmp_path).readonly_session("main").store
    coords, kinds, paths, offsets, lengths = chunk_columns(store, "/large")
    assert np.array_equal(coords, index)
    assert (kinds == 2).all()
    assert paths == location
    assert np.array_equal(offsets, row * 100)
    assert (lengths == 100).all()
