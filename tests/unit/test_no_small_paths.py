"""Nothing counts as small: the general paths serve no rows, one row and all others.

The round trips of all files run again with every size of `small` off, and so do commits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.format import small
from icefloe.format.columns import BlobColumn, find_rows, gather, rows_by_length, scatter
from icefloe.format.flatbuffer.read import blob_rows
from icefloe.format.locations import Coded, Locations, distinct_values
from icefloe.format.nodes import NodeColumns, NodeTable
from tests.golden import test_golden_reencoding as golden
from tests.properties import test_round_trips as round_trips
from tests.unit import test_snapshot_table as histories

SIZES = [name for name in vars(small) if name.isupper()]


@pytest.fixture(autouse=True, scope="module")
def nothing_is_small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in SIZES:
            patch.setattr(small, name, -1)
        yield


test_manifests = round_trips.test_manifests
test_nodes = round_trips.test_node_tables_hold_the_nodes_they_were_made_of
test_snapshots = round_trips.test_snapshots
test_transaction_logs = round_trips.test_transaction_logs
test_long_logs = round_trips.test_logs_of_few_and_many_arrays_and_chunks
test_repo_objects = round_trips.test_repo_objects
test_snapshot_tables = round_trips.test_snapshot_tables_and_statuses
test_growing_tables = round_trips.test_adding_a_snapshot_keeps_all_rows
test_golden_snapshots = golden.test_snapshots_survive_being_written_again
test_golden_manifests = golden.test_manifests_survive_being_written_again
test_golden_logs = golden.test_transaction_logs_survive_being_written_again
test_golden_repo_objects = golden.test_repo_objects_survive_being_written_again
test_histories = histories.test_a_list_that_grows_reads_as_if_it_were_encoded_anew


def test_at_most_six_sizes_are_small() -> None:
    assert 0 < len(SIZES) <= 6


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("values", [[], [b""], [b"ab"], [b"", b"abc", b""], [None], [b"a", None]])
@pytest.mark.parametrize("terminator", [0, 1])
def test_columns_of_no_row_and_one_row(values: list[bytes | None], terminator: int) -> None:
    column = BlobColumn.from_values(values)
    rows = np.arange(len(values))
    assert column.take(rows).to_list() == values
    assert column.take(rows[:0]).to_list() == []
    assert gather(column.data, column.offsets[:-1], column.length).to_list() == [
        value or b"" for value in values
    ]
    segment, start = blob_rows(column, terminator)
    assert len(start) == len(values)
    for value, at in zip(values, start.tolist(), strict=True):
        size = int(segment[at : at + 4].view("<u4")[0])
        assert segment[at + 4 : at + 4 + size].tobytes() == (value or b"")
    codes, distinct = distinct_values(column)
    assert [None if code < 0 else distinct[code] for code in codes.tolist()] == values


def test_nothing_is_copied_and_nothing_found() -> None:
    target = np.zeros(4, np.uint8)
    scatter(target, ints(), target, ints(), ints())
    assert not target.any()
    assert rows_by_length(ints()) == []
    none, one = np.empty((0, 12), np.uint8), np.ones((1, 12), np.uint8)
    assert find_rows(none, one).tolist() == [-1]
    assert find_rows(one, none).tolist() == []


def test_a_column_without_values_is_compact() -> None:
    values = Locations(BlobColumn.from_values(["a", "b", "c"], is_text=True))
    column = Coded(np.array([-1, -1], np.int32), values).compact()
    assert column.codes.tolist() == [-1, -1]
    assert len(column.values) == 0


def test_no_nodes_are_columns() -> None:
    nodes = NodeTable.from_nodes([])
    assert isinstance(nodes, NodeColumns)
    assert list(nodes.replace(ints(), [])) == []
    assert len(nodes.used_manifests()) == 0


@pytest.mark.parametrize("spec_version", [1, 2])
def test_commits(spec_version: int) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    session = repo.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("scalar", shape=(), dtype="i4")[...] = 7
    root.create_array("empty", shape=(0,), dtype="f8", chunks=(1,))
    grid = root.create_array("grid", shape=(5, 7), dtype="i4", chunks=(2, 3))
    session.commit("first", metadata={"n": 1, "names": ["a", "b"]})
    expected = np.zeros((5, 7), "i4")
    for number in range(5):
        session = repo.writable_session("main")
        grid = zarr.open_array(session.store, path="grid")
        expected[number] = number + 1
        grid[number] = number + 1
        session.commit(f"row {number}")
    repo.create_tag("done", repo.lookup_branch("main"))
    session = repo.writable_session("main")
    del zarr.open_group(session.store)["scalar"]
    session.commit("without the scalar")
    store = repo.readonly_session("main").store
    assert sorted(zarr.open_group(store, mode="r")) == ["empty", "grid"]
    np.testing.assert_array_equal(zarr.open_array(store, path="grid", mode="r")[...], expected)
    store = repo.readonly_session(tag="done").store
    assert zarr.open_array(store, path="scalar", mode="r")[()] == 7
    messages = [info.message for info in repo.ancestry(branch="main")]
    assert messages[0] == "without the scalar"
    assert len(messages) == 8


def test_commits_of_virtual_references() -> None:
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store("/data/")
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer("file:///data/", store))
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(40,), chunks=(1,), dtype="i4")
    places = {i: f"file:///data/{i // 8}.nc" for i in range(0, 40, 2)}
    specs = [icefloe.VirtualChunkSpec([i], place, i, 4) for i, place in places.items()]
    session.store.set_virtual_refs("a", specs, validate_containers=True)
    session.commit("virtual")
    session = repo.writable_session("main")
    session.store.set_virtual_ref("a/c/2", "file:///data/other.nc", offset=2, length=4)
    session.commit("one of many")
    found = repo.readonly_session("main").all_virtual_chunk_locations()
    assert sorted(found) == sorted({**places, 2: "file:///data/other.nc"}.values())
