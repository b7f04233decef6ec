"""The reserved `extra` fields: no official writer fills them, ours must carry them along."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.columns import BlobColumn
from icefloe.format.manifest import ArrayManifest, Manifest, decode_manifest, encode_manifest
from icefloe.format.nodes import NodeTable
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot import ManifestFiles, decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log
from tests.golden import object_paths
from tests.golden.decoded import (
    NAMES,
    manifests,
    repo_infos,
    snapshots,
    spec_version,
    transaction_logs,
    with_spec,
)

every_repository = pytest.mark.parametrize("name", NAMES)

# No bytes at all is not the same as no field.
EXTRAS = (b"reserved\0for later", None, b"", bytes(range(256)))


def extra_of(number: int) -> bytes | None:
    return EXTRAS[number % len(EXTRAS)]


def with_ref_extras(refs: ChunkRefs) -> ChunkRefs:
    column = BlobColumn.from_values([extra_of(row) for row in range(len(refs))])
    return replace(refs, extra=column)


def test_official_writers_leave_all_extra_fields_out() -> None:
    for name in NAMES:
        for manifest in manifests(name).values():
            assert manifest.extra is None
            assert all(array.extra is None is array.refs.extra for array in manifest.arrays)
        for snapshot in snapshots(name).values():
            assert snapshot.extra is None is snapshot.nodes.columns.extra
            assert snapshot.manifest_files.extra is None
        assert all(log.extra is None for log in transaction_logs(name).values())
        assert all(info.extra is None for info in repo_infos(name).values())


@every_repository
@pytest.mark.parametrize("version", [1, 2])
def test_extra_bytes_of_manifests_arrays_and_refs_survive(name: str, version: int) -> None:
    for number, manifest in enumerate(manifests(name).values()):
        arrays = tuple(
            ArrayManifest(array.node_id, with_ref_extras(array.refs), extra_of(number + at))
            for at, array in enumerate(manifest.arrays)
        )
        marked = Manifest(manifest.id, arrays, extra_of(number + 1))
        again = decode_manifest(encode_manifest(marked, spec_version=version))
        assert again.equals(marked)
        for mine, yours in zip(again.arrays, arrays, strict=True):
            assert yours.refs.extra is not None
            if yours.refs.extra.null_count < len(yours.refs):
                assert mine.refs.extra is not None
                assert mine.refs.extra.to_list() == yours.refs.extra.to_list()


@every_repository
def test_extra_bytes_of_snapshots_nodes_and_manifest_files_survive(name: str) -> None:
    for number, path in enumerate(object_paths(name, "snapshots")):
        snapshot, version = snapshots(name)[path.name], spec_version(path)
        nodes = [replace(node, extra=extra_of(at)) for at, node in enumerate(snapshot.nodes)]
        marked = replace(
            snapshot, nodes=NodeTable.from_nodes(nodes), extra=extra_of(number + version)
        )
        if version > 1:  # manifest files of version 1 are structs, without room for more
            infos = snapshot.manifest_files.values()
            files = [info._replace(extra=extra_of(at)) for at, info in enumerate(infos)]
            marked = replace(marked, manifest_files=ManifestFiles.from_infos(files))
        again = decode_snapshot(encode_snapshot(marked, spec_version=version))
        assert again.equals(marked), path.name
        assert [node.extra for node in again.nodes] == [extra_of(at) for at in range(len(nodes))]


@every_repository
@pytest.mark.parametrize("extra", [b"", b"reserved\0for later"])
def test_extra_bytes_of_transaction_logs_survive(name: str, extra: bytes) -> None:
    for log in transaction_logs(name).values():
        marked = replace(log, extra=extra)
        again = decode_transaction_log(encode_transaction_log(marked))
        assert again.equals(marked)
        assert again.extra == extra


@pytest.mark.parametrize("name", with_spec(2))
@pytest.mark.parametrize("extra", [b"", b"reserved\0for later"])
def test_extra_bytes_of_repo_objects_survive(name: str, extra: bytes) -> None:
    for info in repo_infos(name).values():
        marked = replace(info, extra=extra)
        again = decode_repo_info(encode_repo_info(marked))
        assert again.equals(marked)
        assert again.extra == extra
