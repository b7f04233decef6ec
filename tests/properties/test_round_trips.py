"""Every value of the format comes back from its bytes, and has only one form in bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe import paths
from icefloe.errors import FormatError
from icefloe.format.chunk_refs import ChunkRef, ChunkRefs
from icefloe.format.envelope import FileType, decode_header, encode_header
from icefloe.format.flexbuffers import decode as decode_flexbuffer
from icefloe.format.manifest import Manifest, decode_manifest, encode_manifest
from icefloe.format.metadata import (
    decode_msgpack,
    encode_flexbuffer,
    encode_msgpack,
)
from icefloe.format.nodes import ArrayData, Dimension, Node, NodeTable
from icefloe.format.operations_log import RepoAvailability, RepoStatus, Update, UpdateKind
from icefloe.format.ref_files import decode_ref_file, encode_ref_file
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot import ManifestFiles, Snapshot, decode_snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotInfo, SnapshotTable
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from icefloe.ids import NodeId, ObjectId, SnapshotId
from tests import strategies as ours

SPEC_VERSIONS = [1, 2]


def repo_with(**changes: Any) -> RepoInfo:
    """The smallest repo object, apart from `changes`."""
    first = SnapshotInfo(SnapshotId(bytes(12)), None, 0, "Repository initialized")
    fields: dict[str, Any] = {
        "branches": {"main": first.id},
        "tags": {},
        "deleted_tags": frozenset(),
        "snapshots": SnapshotTable.from_infos([first]),
        "status": RepoStatus(RepoAvailability.ONLINE, 0),
        "metadata": {},
        "latest_updates": (Update(UpdateKind.REPO_INITIALIZED, 0),),
    }
    return RepoInfo(**{**fields, **changes})


# --- small things ----------------------------------------------------------------------------


@given(ours.OBJECT_IDS)
def test_ids_come_back_from_their_text(key: ObjectId) -> None:
    assert type(key).parse(key.text) == key
    assert type(key).parse(key.text.lower()) == key


@given(ours.PATHS)
def test_paths_are_canonical_and_come_back_from_their_key(path: str) -> None:
    assert paths.validate(path) == path
    assert paths.from_key(paths.to_key(path)) == path


@given(ours.HEADERS)
def test_headers(parts: tuple[int, FileType, str]) -> None:
    version, file_type, writer = parts
    header = decode_header(encode_header(version, file_type, writer), "a file")
    assert (header.spec_version, header.file_type, header.writer) == parts
    assert header.is_compressed


@given(ours.SNAPSHOT_IDS)
def test_ref_files(snapshot_id: SnapshotId) -> None:
    assert decode_ref_file(encode_ref_file(snapshot_id)) == snapshot_id


@given(ours.METADATA_VALUES)
def test_metadata_values_as_msgpack(value: Any) -> None:
    data = encode_msgpack(value)
    # Also the types come back, which == alone does not see: 1 == 1.0 == True.
    assert typed(decode_msgpack(data)) == typed(value)
    assert encode_msgpack(decode_msgpack(data)) == data


@given(ours.METADATA_VALUES)
def test_metadata_values_as_flexbuffer(value: Any) -> None:
    data = encode_flexbuffer(value)
    assert typed(decode_flexbuffer(data)) == typed(value)
    assert encode_flexbuffer(decode_flexbuffer(data)) == data


def typed(value: Any) -> Any:
    """`value` with the type of every part written next to it."""
    match value:
        case dict():
            return {key: typed(item) for key, item in value.items()}
        case list():
            return [typed(item) for item in value]
        case _:
            return type(value).__name__, value


# --- chunk references ------------------------------------------------------------------------


@given(ours.chunk_rows())
def test_chunk_refs_hold_the_rows_they_were_made_of(
    made: tuple[int, dict[tuple[int, ...], ChunkRef]],
) -> None:
    ndim, rows = made
    refs = ours.refs_from_rows(ndim, rows)
    assert [tuple(at) for at in refs.index.tolist()] == sorted(rows)
    assert [refs.row(row) for row in range(len(refs))] == [rows[at] for at in sorted(rows)]
    assert {at: refs.get(at) for at in rows} == rows


@given(ours.chunk_refs())
def test_chunk_refs_come_back_from_arrow(refs: ChunkRefs) -> None:
    assert ChunkRefs.from_arrow(refs.to_arrow()).equals(refs)
    assert ChunkRefs.from_arrow(refs.to_arrow(plain=True)).equals(refs)


@given(ours.chunk_refs(min_size=1), st.randoms(use_true_random=False))
def test_chunk_refs_come_back_from_arrow_in_any_order(refs: ChunkRefs, random: Any) -> None:
    order = random.sample(range(len(refs)), len(refs))
    assert ChunkRefs.from_arrow(refs.to_arrow().take(order)).equals(refs)


@pytest.mark.parametrize("spec_version", SPEC_VERSIONS)
@given(manifest=ours.manifests())
def test_manifests(manifest: Manifest, spec_version: int) -> None:
    data = encode_manifest(manifest, spec_version=spec_version)
    assert decode_manifest(data).equals(manifest)
    assert encode_manifest(manifest, spec_version=spec_version) == data


# --- snapshots -------------------------------------------------------------------------------


@pytest.mark.parametrize("spec_version", SPEC_VERSIONS)
@given(data=st.data())
def test_node_tables_hold_the_nodes_they_were_made_of(
    data: st.DataObject, spec_version: int
) -> None:
    made = data.draw(
        st.lists(ours.nodes(spec_version), max_size=5, unique_by=lambda node: node.path)
    )
    table = NodeTable.from_nodes(made)
    assert list(table) == sorted(made, key=lambda node: node.path)
    assert [table.find(node.path) for node in made] == made


@pytest.mark.parametrize("spec_version", SPEC_VERSIONS)
@given(data=st.data())
def test_snapshots(data: st.DataObject, spec_version: int) -> None:
    snapshot: Snapshot = data.draw(ours.snapshots(spec_version))
    encoded = encode_snapshot(snapshot, spec_version=spec_version)
    assert decode_snapshot(encoded).equals(snapshot)
    assert encode_snapshot(snapshot, spec_version=spec_version) == encoded


@given(ours.snapshots(1))
def test_a_snapshot_has_the_same_nodes_in_both_versions(snapshot: Snapshot) -> None:
    old = decode_snapshot(encode_snapshot(snapshot, spec_version=1))
    new = decode_snapshot(encode_snapshot(snapshot, spec_version=2))
    assert list(map(without_chunk_lengths, old.nodes)) == list(
        map(without_chunk_lengths, new.nodes)
    )
    assert dict(old.manifest_files) == dict(new.manifest_files)
    assert (old.id, old.message, old.metadata) == (new.id, new.message, new.metadata)


def test_version_1_refuses_a_number_of_chunks_that_no_chunk_length_gives() -> None:
    """Ten elements in seven chunks: chunks of 1 would be ten, chunks of 2 five."""
    array = ArrayData((Dimension(10, 7),))
    nodes = NodeTable.from_nodes([Node(NodeId(bytes(8)), "/a", b"", array)])
    none = ManifestFiles.from_infos([])
    snapshot = Snapshot(SnapshotId(bytes(12)), nodes, 0, "", {}, none)
    assert decode_snapshot(encode_snapshot(snapshot, spec_version=2)).equals(snapshot)
    with pytest.raises(FormatError, match="7 chunks"):
        encode_snapshot(snapshot, spec_version=1)


def without_chunk_lengths(node: Node) -> Any:
    if node.array is None:
        return node
    shape = [(size.array_length, size.num_chunks) for size in node.array.shape]
    kept = (node.array.dimension_names, node.array.manifests)
    return node.id, node.path, node.user_data, node.extra, shape, kept


# --- transaction logs ------------------------------------------------------------------------


@pytest.mark.parametrize("spec_version", SPEC_VERSIONS)
@given(log=ours.TRANSACTION_LOGS)
def test_transaction_logs(log: TransactionLog, spec_version: int) -> None:
    data = encode_transaction_log(log, spec_version=spec_version)
    assert decode_transaction_log(data).equals(log)
    assert encode_transaction_log(log, spec_version=spec_version) == data


@given(ours.index_matrices(), ours.NODE_IDS, st.randoms(use_true_random=False))
def test_logs_give_coordinates_in_order_however_they_were_written(
    index: Any, node: NodeId, random: Any
) -> None:
    order = random.sample(range(len(index)), len(index))
    log = TransactionLog(SnapshotId(bytes(12)), updated_chunks={node: index[order]})
    decoded = decode_transaction_log(encode_transaction_log(log))
    assert np.array_equal(decoded.updated_chunks[node], index)


@pytest.mark.parametrize("num_arrays", [1, 24, 25])
@pytest.mark.parametrize("num_chunks", [1, 24, 25])
def test_logs_of_few_and_many_arrays_and_chunks(num_arrays: int, num_chunks: int) -> None:
    index = np.arange(2 * num_chunks, dtype=np.uint32).reshape(-1, 2)
    nodes = [NodeId(bytes((number,) * 8)) for number in range(num_arrays)]
    chunks = {node: index + number for number, node in enumerate(nodes)}
    log = TransactionLog(SnapshotId(bytes(12)), updated_chunks=chunks)
    backwards = {node: rows[::-1] for node, rows in chunks.items()}
    data = encode_transaction_log(replace(log, updated_chunks=backwards))
    assert decode_transaction_log(data).equals(log)


# --- the repo object -------------------------------------------------------------------------


@given(ours.repo_infos())
def test_repo_objects(info: RepoInfo) -> None:
    data = encode_repo_info(info)
    assert decode_repo_info(data).equals(info)
    assert encode_repo_info(info) == data


@given(ours.SNAPSHOT_TABLES, ours.STATUSES)
def test_snapshot_tables_and_statuses(table: SnapshotTable, status: RepoStatus) -> None:
    main = SnapshotInfo(SnapshotId(b"\xff" * 12), None, 1, "the tip of main")
    if main.id not in table:
        table = table.with_snapshot(main)
    info = repo_with(snapshots=table, branches={"main": main.id}, status=status)
    decoded = decode_repo_info(encode_repo_info(info))
    assert dict(decoded.snapshots) == dict(table)
    assert decoded.status == status


@pytest.mark.parametrize("kind", UpdateKind, ids=lambda kind: kind.name.lower())
@given(data=st.data())
def test_updates_of_every_kind(data: st.DataObject, kind: UpdateKind) -> None:
    entries = tuple(data.draw(st.lists(ours.updates(kind), min_size=1, max_size=3)))
    decoded = decode_repo_info(encode_repo_info(repo_with(latest_updates=entries)))
    assert decoded.latest_updates == entries


@given(ours.snapshot_infos(min_size=1))
def test_adding_a_snapshot_keeps_all_rows(infos: list[SnapshotInfo]) -> None:
    *before, newest = infos  # parents come before their children
    table = SnapshotTable.from_infos(before).with_snapshot(newest)
    assert dict(table) == {info.id: info for info in infos}
    assert list(table) == sorted(info.id for info in infos)
    assert table.equals(SnapshotTable.from_infos(infos))


@given(ours.snapshot_infos())
def test_ancestry_follows_the_parents(infos: list[SnapshotInfo]) -> None:
    table = SnapshotTable.from_infos(infos)
    parent = {info.id: info.parent_id for info in infos}
    for info in infos:
        line = list(table.ancestry(info.id))
        assert line[0] == info.id
        assert [parent[key] for key in line] == [*line[1:], None]
