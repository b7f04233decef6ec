"""Decoding, encoding and decoding again gives the same tables, for every golden file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from icefloe.format.envelope import FileType, decode_envelope
from icefloe.format.manifest import decode_manifest, encode_manifest
from icefloe.format.nodes import Dimension, Node, NodeTable
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log
from tests.golden import object_paths
from tests.golden.decoded import NAMES, repo_info_paths, spec_version, with_spec

every_repository = pytest.mark.parametrize("name", NAMES)


def payload(data: bytes, file_type: FileType) -> tuple[int, bytes]:
    """Spec version and inflated payload of an encoded file."""
    header, array, size = decode_envelope(data, file_type, "encoded")
    return header.spec_version, array[:size].tobytes()


@every_repository
def test_snapshots_survive_being_written_again(name: str) -> None:
    for path in object_paths(name, "snapshots"):
        snapshot, version = decode_snapshot(path.read_bytes()), spec_version(path)
        data = encode_snapshot(snapshot, spec_version=version)
        assert payload(data, FileType.SNAPSHOT)[0] == version
        assert decode_snapshot(data).equals(snapshot), path.name


@every_repository
def test_manifests_survive_being_written_again(name: str) -> None:
    for path in object_paths(name, "manifests"):
        manifest, version = decode_manifest(path.read_bytes()), spec_version(path)
        data = encode_manifest(manifest, spec_version=version)
        assert payload(data, FileType.MANIFEST)[0] == version
        assert decode_manifest(data).equals(manifest), path.name


@every_repository
def test_transaction_logs_survive_being_written_again(name: str) -> None:
    for path in object_paths(name, "transactions"):
        log, version = decode_transaction_log(path.read_bytes()), spec_version(path)
        data = encode_transaction_log(log, spec_version=version)
        assert payload(data, FileType.TRANSACTION_LOG)[0] == version
        assert decode_transaction_log(data).equals(log), path.name


@pytest.mark.parametrize("name", with_spec(2))
def test_repo_objects_survive_being_written_again(name: str) -> None:
    for path in repo_info_paths(name):
        info = decode_repo_info(path.read_bytes())
        data = encode_repo_info(info)
        assert payload(data, FileType.REPO_INFO)[0] == 2
        assert decode_repo_info(data).equals(info), path.name


@every_repository
def test_writing_is_deterministic_and_settles_at_once(name: str) -> None:
    """The same tables give the same bytes, also when they come from a file of our own."""
    for path in object_paths(name, "snapshots"):
        version = spec_version(path)
        first = encode_snapshot(decode_snapshot(path.read_bytes()), spec_version=version)
        assert encode_snapshot(decode_snapshot(first), spec_version=version) == first
    for path in object_paths(name, "manifests"):
        first = encode_manifest(decode_manifest(path.read_bytes()))
        assert encode_manifest(decode_manifest(first)) == first
    for path in object_paths(name, "transactions"):
        first = encode_transaction_log(decode_transaction_log(path.read_bytes()))
        assert encode_transaction_log(decode_transaction_log(first)) == first
    for path in repo_info_paths(name):
        first = encode_repo_info(decode_repo_info(path.read_bytes()))
        assert encode_repo_info(decode_repo_info(first)) == first


@pytest.mark.parametrize("level", [1, 9])
def test_the_compression_level_changes_the_frame_but_not_the_payload(level: int) -> None:
    for path in object_paths("2.3.0-spec2", "snapshots"):
        snapshot = decode_snapshot(path.read_bytes())
        default = encode_snapshot(snapshot, spec_version=2)
        other = encode_snapshot(snapshot, spec_version=2, level=level)
        assert payload(other, FileType.SNAPSHOT) == payload(default, FileType.SNAPSHOT)


# --- from one version to the other -----------------------------------------------------------


def without_chunk_lengths(snapshot: Snapshot) -> Snapshot:
    """Chunk lengths are a detail of version-1 files; the number of chunks is what counts."""
    nodes = []
    for node in snapshot.nodes:
        array = node.array
        if array is not None:
            shape = tuple(Dimension(size.array_length, size.num_chunks) for size in array.shape)
            array = replace(array, shape=shape)
        nodes.append(Node(node.id, node.path, node.user_data, array, node.extra))
    return replace(snapshot, nodes=NodeTable.from_nodes(nodes))


def reencoded(path: Path, version: int) -> tuple[Snapshot, Snapshot]:
    """A snapshot as its file has it, and after a trip through a file of `version`."""
    snapshot = decode_snapshot(path.read_bytes())
    again = decode_snapshot(encode_snapshot(snapshot, spec_version=version))
    return snapshot, again


@every_repository
@pytest.mark.parametrize("version", [1, 2])
def test_a_snapshot_is_the_same_in_a_file_of_either_version(name: str, version: int) -> None:
    for path in object_paths(name, "snapshots"):
        snapshot, again = reencoded(path, version)
        assert without_chunk_lengths(again).equals(without_chunk_lengths(snapshot)), path.name


@every_repository
def test_chunk_lengths_exist_in_version_1_files_only(name: str) -> None:
    for path in object_paths(name, "snapshots"):
        for version in (1, 2):
            _, again = reencoded(path, version)
            if len(again.nodes.columns.num_dimensions):
                assert (again.nodes.columns.chunk_length is not None) == (version == 1)


@every_repository
@pytest.mark.parametrize("version", [1, 2])
def test_a_manifest_is_the_same_in_a_file_of_either_version(name: str, version: int) -> None:
    for path in object_paths(name, "manifests"):
        manifest = decode_manifest(path.read_bytes())
        data = encode_manifest(manifest, spec_version=version)
        assert decode_manifest(data).equals(manifest), path.name
