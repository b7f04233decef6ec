"""Snapshots of official writers decode to the nodes and manifest lists that official reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icefloe.format.nodes import ArrayData, Dimension, Node
from icefloe.format.snapshot import Snapshot
from icefloe.ids import FIRST_SNAPSHOT_ID
from tests.golden import object_paths
from tests.golden.decoded import (
    NAMES,
    Json,
    expectation,
    microseconds,
    snapshots,
    spec_version,
    with_spec,
    without_header,
)

every_repository = pytest.mark.parametrize("name", NAMES)


def dimension_as_json(dimension: Dimension, name: str | None) -> Json:
    named = {} if name is None else {"name": name}
    sizes = {"array_length": dimension.array_length, "num_chunks": dimension.num_chunks}
    return named | sizes


def array_as_json(array: ArrayData) -> Json:
    names = array.dimension_names or (None,) * len(array.shape)
    return {
        "shape": [
            dimension_as_json(dimension, name)
            for dimension, name in zip(array.shape, names, strict=True)
        ],
        "manifest_refs": [
            {"id": ref.id.text, "extents": [list(extent) for extent in ref.extents]}
            for ref in array.manifests
        ],
    }


def node_as_json(node: Node) -> Json:
    kind = "group" if node.array is None else "array"
    array = {} if node.array is None else array_as_json(node.array)
    return {"id": node.id.text, "path": node.path, "node_type": kind, **array}


def as_inspected(snapshot: Snapshot) -> Json:
    return {
        "id": snapshot.id.text,
        "flushed_at": snapshot.flushed_at,
        "commit_message": snapshot.message,
        "metadata": snapshot.metadata,
        "manifests": [
            {
                "id": info.id.text,
                "size_bytes": info.size_bytes,
                "num_chunk_refs": info.num_chunk_refs,
            }
            for info in snapshot.manifest_files.values()
        ],
        "nodes": [node_as_json(node) for node in snapshot.nodes],
    }


def expected_inspection(inspected: Json) -> Json:
    found = without_header(inspected)
    found["flushed_at"] = microseconds(found["flushed_at"])
    # Icechunk 0.2 and 1.0 ordered nodes otherwise; icefloe restores the order of the format.
    found["nodes"] = sorted(found["nodes"], key=lambda node: node["path"])
    return found


@every_repository
def test_snapshots_hold_the_nodes_manifests_and_messages_official_reports(name: str) -> None:
    decoded = {key: as_inspected(snapshot) for key, snapshot in snapshots(name).items()}
    inspected = expectation(name)["snapshots"]
    assert decoded == {
        key: expected_inspection(snapshot["inspect"]) for key, snapshot in inspected.items()
    }


@every_repository
def test_user_data_is_the_zarr_json_official_gives_byte_for_byte(name: str) -> None:
    for key, snapshot in snapshots(name).items():
        expected = expectation(name)["snapshots"][key]["nodes"]
        if "error" in expected:
            continue  # dropped from the repo object, so official does not open it
        found = {node.path: node.user_data.decode() for node in snapshot.nodes}
        assert found.keys() == expected.keys()
        for path, node in expected.items():
            # Official does not find every node of files with the old order.
            if node["zarr_json"] is not None:
                assert found[path] == node["zarr_json"], (key, path)
                assert snapshot.nodes.find(path).id.text == node["node_id"]  # type: ignore[union-attr]


def test_nodes_that_official_does_not_find_are_found_here() -> None:
    lost = 0
    for name in ("0.2.0-spec1", "1.0.0-spec1"):
        for key, snapshot in snapshots(name).items():
            for path, node in expectation(name)["snapshots"][key]["nodes"].items():
                lost += node["zarr_json"] is None
                assert snapshot.nodes.find(path) is not None, (name, key, path)
    assert lost > 0


def array_documents(name: str) -> list[tuple[int, ArrayData, Any]]:
    """Each array of each snapshot with the version of its file and its zarr.json."""
    return [
        (spec_version(path), node.array, json.loads(node.user_data))
        for path in object_paths(name, "snapshots")
        for node in snapshots(name)[path.name].nodes
        if node.array is not None
    ]


@every_repository
def test_dimension_names_and_lengths_are_those_of_the_zarr_json(name: str) -> None:
    for _, array, document in array_documents(name):
        names = document.get("dimension_names")
        # Official writers store an empty name as none.
        expected = None if names is None else tuple(item or None for item in names)
        assert array.dimension_names == expected
        assert [size.array_length for size in array.shape] == document["shape"]


@every_repository
def test_chunk_lengths_are_kept_from_version_1_files_only_and_give_the_number_of_chunks(
    name: str,
) -> None:
    for version, array, _ in array_documents(name):
        for size in array.shape:
            if version > 1:
                assert size.chunk_length is None
            else:
                assert size.chunk_length is not None
                assert size.num_chunks == -(-size.array_length // max(size.chunk_length, 1))


@pytest.mark.parametrize("name", ["0.2.0-spec1", "1.0.0-spec1", "1.1.21-spec1"])
def test_chunk_lengths_of_old_writers_are_those_of_the_zarr_json(name: str) -> None:
    for _, array, document in array_documents(name):
        lengths = document["chunk_grid"]["configuration"]["chunk_shape"]
        assert [size.chunk_length for size in array.shape] == lengths


@every_repository
def test_a_version_1_snapshot_knows_its_parent_and_a_version_2_snapshot_does_not(name: str) -> None:
    is_spec_1 = expectation(name)["spec_version"] == 1
    for path in object_paths(name, "snapshots"):
        snapshot = snapshots(name)[path.name]
        if spec_version(path) > 1:
            assert snapshot.parent_id is None
        elif is_spec_1:
            parent = expectation(name)["snapshots"][path.name]["info"]["parent_id"]
            found = None if snapshot.parent_id is None else snapshot.parent_id.text
            assert found == parent, path.name


@pytest.mark.parametrize("name", with_spec(1))
def test_ancestry_of_version_1_is_the_chain_of_parents(name: str) -> None:
    files, expected = snapshots(name), expectation(name)
    for branch, tip in expected["branches"].items():
        chain, at = [], tip
        while at is not None:
            snapshot = files[at]
            parent = None if snapshot.parent_id is None else snapshot.parent_id.text
            chain.append(
                {
                    "id": at,
                    "parent_id": parent,
                    "written_at_us": snapshot.flushed_at,
                    "message": snapshot.message,
                    "metadata": snapshot.metadata,
                }
            )
            at = parent
        assert chain == expected["ancestry"]["branches"][branch]


@every_repository
def test_sizes_of_manifest_files_are_exact(name: str) -> None:
    on_disk = {path.name: path.stat().st_size for path in object_paths(name, "manifests")}
    for snapshot in snapshots(name).values():
        for info in snapshot.manifest_files.values():
            # Garbage collection leaves files of dropped snapshots without their manifests.
            if info.id.text in on_disk:
                assert info.size_bytes == on_disk[info.id.text]


@every_repository
def test_files_carry_the_id_they_are_named_after(name: str) -> None:
    assert [(key, snapshot.id.text) for key, snapshot in snapshots(name).items()] == [
        (key, key) for key in snapshots(name)
    ]


def test_the_well_known_first_snapshot_is_empty_and_marked() -> None:
    for name in with_spec(2):
        first = snapshots(name)[FIRST_SNAPSHOT_ID.text]
        assert len(first.nodes) == 0
        assert len(first.manifest_files) == 0
        marks = ({"__icechunk": {"is_root": True}}, {"__root": True})
        assert first.metadata in marks
