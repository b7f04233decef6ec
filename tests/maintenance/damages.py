"""Ways to damage a repository on disk, and what a verification has to find of each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from icefloe import ids
from icefloe.format import layout
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.columns import BlobColumn
from icefloe.format.manifest import ArrayManifest, Manifest, decode_manifest, encode_manifest
from icefloe.format.nodes import NodeTable
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot import ManifestFiles, Snapshot, decode_snapshot, encode_snapshot
from icefloe.format.snapshot_table import ListedSnapshots
from tests.maintenance.worlds import World

Damage = Callable[[World], None]
DAMAGES: dict[str, tuple[Damage, set[str]]] = {}
"""By name: what is done, and the kinds above `info` that have to be found, and no others."""


def damage(*kinds: str) -> Callable[[Damage], Damage]:
    def register(function: Damage) -> Damage:
        DAMAGES[function.__name__] = function, set(kinds)
        return function

    return register


def tip(world: World, branch: str = "main") -> Path:
    return world.folder / layout.SNAPSHOTS / world.open().lookup_branch(branch)


def flip(path: Path, at: int = 40) -> None:
    """Flip a bit; by default where the compressed frame begins, because it has no checksum."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


def manifest_of(world: World, path: str) -> Path:
    snapshot = decode_snapshot(tip(world).read_bytes())
    node = snapshot.nodes.find(path)
    assert node is not None
    assert node.array is not None
    return world.folder / layout.manifest_key(node.array.manifests[0].id)


def chunk_of(world: World, row: int = 0) -> Path:
    manifest = decode_manifest(manifest_of(world, "/a/native").read_bytes())
    ref = manifest.arrays[0].refs.row(row)
    assert ref.chunk_id is not None
    return world.folder / layout.chunk_key(ref.chunk_id)


def change_snapshot(world: World, change: Callable[[Snapshot], Snapshot]) -> None:
    path = tip(world)
    changed = change(decode_snapshot(path.read_bytes()))
    path.write_bytes(encode_snapshot(changed, spec_version=path.read_bytes()[36]))


def change_refs(world: World, path: str, change: Callable[[ChunkRefs], ChunkRefs]) -> None:
    """Rewrite a manifest in place, and let the snapshot list the size it has then."""
    file = manifest_of(world, path)
    old = decode_manifest(file.read_bytes())
    arrays = [ArrayManifest(one.node_id, change(one.refs), one.extra) for one in old.arrays]
    data = encode_manifest(Manifest(old.id, tuple(arrays)), spec_version=file.read_bytes()[36])
    file.write_bytes(data)

    def listed(snapshot: Snapshot) -> Snapshot:
        infos = [
            info._replace(size_bytes=len(data)) if info.id == old.id else info
            for info in snapshot.manifest_files.values()
        ]
        return replace(snapshot, manifest_files=ManifestFiles.from_infos(infos))

    change_snapshot(world, listed)


# -- bit flips and cuts in every kind of file


@damage("damaged-repo-object")
def a_repo_object_with_metadata_that_is_none(world: World) -> None:
    path = world.folder / layout.REPO
    info = decode_repo_info(path.read_bytes())
    old = info.snapshots
    values = BlobColumn.from_values([b"\xff" * 9] * len(old.columns.metadata_value))
    columns = old.columns._replace(metadata_value=values)
    table = ListedSnapshots(old.id, old.parent, columns)
    path.write_bytes(encode_repo_info(replace(info, snapshots=table)))


@damage("damaged-repo-object")
def flipped_repo_object(world: World) -> None:
    flip(world.folder / "repo")


@damage("damaged-snapshot")
def flipped_snapshot(world: World) -> None:
    flip(tip(world))


@damage("damaged-log")
def flipped_log(world: World) -> None:
    flip(world.folder / layout.TRANSACTIONS / tip(world).name)


@damage("damaged-manifest")
def flipped_manifest(world: World) -> None:
    flip(manifest_of(world, "/a/virtual"))


@damage("damaged-manifest")
def manifest_with_a_wrong_header(world: World) -> None:
    flip(manifest_of(world, "/a/virtual"), 5)


@damage("damaged-snapshot")
def snapshot_of_another_type(world: World) -> None:
    path = tip(world)
    data = bytearray(path.read_bytes())
    data[37] = 2
    path.write_bytes(bytes(data))


@damage("damaged-snapshot")
def cut_snapshot(world: World) -> None:
    path = tip(world)
    path.write_bytes(path.read_bytes()[:-30])


@damage("damaged-manifest", "wrong-manifest-size")
def cut_manifest(world: World) -> None:
    path = manifest_of(world, "/a/virtual")
    path.write_bytes(path.read_bytes()[:-30])


@damage("damaged-log")
def empty_log(world: World) -> None:
    (world.folder / layout.TRANSACTIONS / tip(world).name).write_bytes(b"")


@damage("short-chunk-object")
def cut_chunk(world: World) -> None:
    path = chunk_of(world)
    path.write_bytes(path.read_bytes()[:-1])


# -- missing objects


@damage("missing-chunk-object")
def missing_chunk(world: World) -> None:
    chunk_of(world).unlink()


@damage("missing-manifest")
def missing_manifest(world: World) -> None:
    manifest_of(world, "/a/virtual").unlink()


@damage("missing-log")
def missing_log(world: World) -> None:
    (world.folder / layout.TRANSACTIONS / tip(world).name).unlink()


@damage("dangling-ref")
def dangling_branch(world: World) -> None:
    tip(world).unlink()


@damage("missing-snapshot")
def missing_ancestor(world: World) -> None:
    repo = world.open()
    old = list(repo.ancestry(branch="main"))[3]
    (world.folder / layout.SNAPSHOTS / old.id).unlink()


# -- files that are whole, and wrong


@damage("wrong-manifest-id", "wrong-manifest-size")
def swapped_manifest(world: World) -> None:
    first, second = manifest_of(world, "/a/native"), manifest_of(world, "/a/virtual")
    first.write_bytes(second.read_bytes())


@damage("array-not-in-manifest")
def array_with_the_manifest_of_another(world: World) -> None:
    def change(snapshot: Snapshot) -> Snapshot:
        native, virtual = (snapshot.nodes.find(path) for path in ("/a/native", "/a/virtual"))
        assert native is not None
        assert native.array is not None
        assert virtual is not None
        swapped = replace(virtual, array=native.array)
        others = [node for node in snapshot.nodes if node.path != "/a/virtual"]
        return replace(snapshot, nodes=NodeTable.from_nodes([*others, swapped]))

    change_snapshot(world, change)


@damage("wrong-snapshot-id")
def swapped_snapshot(world: World) -> None:
    tip(world).write_bytes(tip(world, "side").read_bytes())


@damage("wrong-log-id")
def swapped_log(world: World) -> None:
    logs = world.folder / layout.TRANSACTIONS
    (logs / tip(world).name).write_bytes((logs / tip(world, "side").name).read_bytes())


@damage("wrong-reference-count")
def wrong_count(world: World) -> None:
    def change(snapshot: Snapshot) -> Snapshot:
        infos = [
            info._replace(num_chunk_refs=info.num_chunk_refs + 1)
            for info in snapshot.manifest_files.values()
        ]
        return replace(snapshot, manifest_files=ManifestFiles.from_infos(infos[:1] + infos[1:]))

    change_snapshot(world, change)


@damage("wrong-manifest-size")
def wrong_size(world: World) -> None:
    def change(snapshot: Snapshot) -> Snapshot:
        infos = [
            info._replace(size_bytes=info.size_bytes + 1)
            for info in snapshot.manifest_files.values()
        ]
        return replace(snapshot, manifest_files=ManifestFiles.from_infos(infos))

    change_snapshot(world, change)


@damage("unlisted-manifest")
def unlisted_manifest(world: World) -> None:
    none = ManifestFiles.from_infos([])
    change_snapshot(world, lambda snapshot: replace(snapshot, manifest_files=none))


@damage("references-outside-extents")
def wrong_extents(world: World) -> None:
    def change(snapshot: Snapshot) -> Snapshot:
        node = snapshot.nodes.find("/a/virtual")
        assert node is not None
        assert node.array is not None
        (ref,) = node.array.manifests
        smaller = ref._replace(extents=((0, 2), (0, 1)))
        moved = replace(node, array=replace(node.array, manifests=(smaller,)))
        others = [other for other in snapshot.nodes if other.path != "/a/virtual"]
        return replace(snapshot, nodes=NodeTable.from_nodes([*others, moved]))

    change_snapshot(world, change)


@damage("shape-differs-from-metadata")
def wrong_shape(world: World) -> None:
    def change(snapshot: Snapshot) -> Snapshot:
        node = snapshot.nodes.find("/inline")
        assert node is not None
        other = json.dumps({**json.loads(node.user_data), "shape": [9, 4]}).encode()
        others = [one for one in snapshot.nodes if one.path != "/inline"]
        changed = replace(node, user_data=other)
        return replace(snapshot, nodes=NodeTable.from_nodes([*others, changed]))

    change_snapshot(world, change)


@damage("bad-node-metadata")
def metadata_that_is_no_json(world: World) -> None:
    def change(snapshot: Snapshot) -> Snapshot:
        node = snapshot.nodes.find("/inline")
        assert node is not None
        others = [one for one in snapshot.nodes if one.path != "/inline"]
        changed = replace(node, user_data=b"{not json")
        return replace(snapshot, nodes=NodeTable.from_nodes([*others, changed]))

    change_snapshot(world, change)


@damage("duplicate-node-id")
def node_id_twice(world: World) -> None:
    def change(snapshot: Snapshot) -> Snapshot:
        root, group = (snapshot.nodes.find(path) for path in ("/", "/a"))
        assert root is not None
        assert group is not None
        others = [one for one in snapshot.nodes if one.path != "/a"]
        nodes = NodeTable.from_nodes([*others, replace(group, id=root.id)])
        return replace(snapshot, nodes=nodes)

    change_snapshot(world, change)


@damage("zero-length-chunk")
def zero_length_chunk(world: World) -> None:
    def change(refs: ChunkRefs) -> ChunkRefs:
        length = refs.length.copy()
        length[1] = 0
        return replace(refs, length=length, _lookup=[])

    change_refs(world, "/a/virtual", change)


@damage("damaged-manifest")
def references_out_of_order(world: World) -> None:
    def change(refs: ChunkRefs) -> ChunkRefs:
        return replace(refs, index=refs.index[::-1].copy(), _lookup=[])

    change_refs(world, "/a/virtual", change)


@damage("snapshot-differs-from-repo-object")
def another_message(world: World) -> None:
    change_snapshot(world, lambda snapshot: replace(snapshot, message="something else"))


@damage("parent-is-newer", "snapshot-differs-from-repo-object")
def snapshot_from_the_past(world: World) -> None:
    change_snapshot(world, lambda snapshot: replace(snapshot, flushed_at=1000))


@damage("operations-out-of-order")
def operations_out_of_order(world: World) -> None:
    path = world.folder / "repo"
    info = decode_repo_info(path.read_bytes())
    first, second, *others = info.latest_updates
    swapped = (replace(first, updated_at=second.updated_at), second, *others)
    path.write_bytes(encode_repo_info(replace(info, latest_updates=swapped)))


# -- virtual sources


@damage("missing-source")
def missing_source(world: World) -> None:
    (world.sources / "two.bin").unlink()


@damage("changed-source")
def changed_source(world: World) -> None:
    path = world.sources / "two.bin"
    path.write_bytes(path.read_bytes()[::-1])


@damage("short-source")
def short_source(world: World) -> None:
    path = world.sources / "two.bin"
    path.write_bytes(path.read_bytes()[:-1])
    os.utime(path, (1_700_000_000, 1_700_000_000))


@damage("changed-source")
def stale_checksum(world: World) -> None:
    def change(refs: ChunkRefs) -> ChunkRefs:
        times: Any = np.full(len(refs), 1_600_000_000, np.uint32)
        return replace(refs, last_modified=times, _lookup=[])

    change_refs(world, "/a/virtual", change)


# -- what nothing refers to; these are no more than `info`


def orphans(world: World) -> list[str]:
    """Add one object of each kind that nothing refers to."""
    name = ids.ChunkId(bytes(range(12))).text
    folders = (layout.CHUNKS, layout.MANIFESTS, layout.SNAPSHOTS, layout.TRANSACTIONS)
    for folder in folders:
        (world.folder / folder / name).write_bytes(b"left over")
    return sorted(folder + name for folder in folders)
