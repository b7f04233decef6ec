"""Transaction logs of official writers decode to the changes that official reports."""

from __future__ import annotations

import pytest

from icefloe import paths
from icefloe.format.transaction_log import NodeType, TransactionLog
from icefloe.ids import SnapshotId
from tests.golden.decoded import (
    NAMES,
    Json,
    expectation,
    snapshots,
    transaction_logs,
    without_header,
)

every_repository = pytest.mark.parametrize("name", NAMES)

NODE_LISTS = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_groups",
    "updated_arrays",
)


def as_inspected(log: TransactionLog) -> Json:
    nodes = {name: [node.text for node in sorted(getattr(log, name))] for name in NODE_LISTS}
    chunks = [
        {"node_id": node.text, "chunks": log.updated_chunks[node].tolist()}
        for node in sorted(log.updated_chunks)
    ]
    moves = [{"from": move.source, "to": move.destination} for move in log.moved_nodes or ()]
    return {**nodes, "updated_chunks": chunks, "moved_nodes": moves}


def expected_inspection(inspected: Json) -> Json:
    found = without_header(inspected)
    # Icechunk 1.1 wrote coordinates split by split; icefloe restores the order of the format.
    found["updated_chunks"] = [
        {**array, "chunks": sorted(array["chunks"])} for array in found["updated_chunks"]
    ]
    return found


@every_repository
def test_logs_hold_the_changes_official_reports(name: str) -> None:
    for key, log in transaction_logs(name).items():
        inspected = expectation(name)["transaction_logs"][key.text]
        if "synthetic_composite" not in inspected:
            assert as_inspected(log) == expected_inspection(inspected), key


@every_repository
def test_logs_carry_the_id_they_are_named_after(name: str) -> None:
    assert all(log.id == key for key, log in transaction_logs(name).items())


@pytest.mark.parametrize("name", ["2.3.0-expired-spec2", "2.3.0-collected-spec2"])
def test_a_log_joined_with_those_of_pruned_ancestors_is_what_official_reports(name: str) -> None:
    logs, checked = transaction_logs(name), 0
    for key, inspected in expectation(name)["transaction_logs"].items():
        composite = inspected.get("synthetic_composite")
        if composite is None:
            continue
        ids = [*composite["merged_pruned_ancestor_tx_logs"], key]
        parts = [logs[SnapshotId.parse(each)] for each in ids]
        for field in NODE_LISTS:
            joined = frozenset().union(*(getattr(part, field) for part in parts))
            assert [node.text for node in sorted(joined)] == inspected[field]
        for array in inspected["updated_chunks"]:
            coordinates = {
                tuple(index)
                for part in parts
                for node, chunks in part.updated_chunks.items()
                if node.text == array["node_id"]
                for index in chunks.tolist()
            }
            assert sorted(map(list, coordinates)) == array["chunks"]
        checked += 1
    assert checked > 0


def test_moves_name_the_node_that_is_at_their_destination_afterwards() -> None:
    moves = 0
    for key, log in transaction_logs("2.3.0-moves").items():
        after = snapshots("2.3.0-moves")[key.text].nodes
        for move in log.moved_nodes or ():
            node = after.find(move.destination)
            assert node is not None
            kind = NodeType.GROUP if node.array is None else NodeType.ARRAY
            assert (move.node_id, move.node_type) == (node.id, kind)
            moves += 1
    assert moves >= 10


def test_moves_are_ordered_by_the_segments_of_their_destinations() -> None:
    for log in transaction_logs("2.3.0-moves").values():
        keys = [paths.segments(move.destination) for move in log.moved_nodes or ()]
        assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("name", "has_field"),
    [
        ("0.2.0-spec1", False),
        ("1.0.0-spec1", False),
        ("1.1.21-spec1", False),
        ("2.3.0-spec1", True),
        ("2.3.0-spec2", True),
    ],
)
def test_a_log_without_a_list_of_moves_is_told_from_one_without_moves(
    name: str, has_field: bool
) -> None:
    fields = {log.moved_nodes for log in transaction_logs(name).values()}
    assert fields == ({()} if has_field else {None})
