"""Tables of metadata say what the repository's own methods say. No Spark is started."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icefloe import (
    ChunkId,
    InvalidInputError,
    NodeId,
    Repository,
    RepositoryConfig,
    local_filesystem_storage,
)
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.scans.metadata_rows import chunk_ref_batch, id_texts, plan_changes
from icefloe.scans.metadata_tables import TABLES, check_ref, check_table, plan_table
from icefloe.scans.scan import pin
from tests.spark.datasets import rows_of


def history(folder: Path, spec_version: int) -> Repository:
    """Arrays that grow, shrink and go; a tag, a second branch, a commit that was reset away."""
    repository = Repository.create(
        local_filesystem_storage(folder / "repository", durable=False),
        RepositoryConfig(inline_chunk_threshold_bytes=16),
        spec_version=spec_version,
    )

    def commit(message: str, change: Any, branch: str = "main") -> str:
        session = repository.writable_session(branch)
        change(session.store)
        return session.commit(message, {"by": "test", "n": 3})

    def create(store: Any) -> None:
        root = zarr.open_group(store, mode="w")
        root.create_array("a", shape=(6, 4), chunks=(2, 2), dtype="f8", dimension_names=("y", "x"))
        root.create_array("g/b", shape=(4,), chunks=(2,), dtype="i4", compressors=None)

    def fill(store: Any) -> None:
        zarr.open_array(store, path="a")[:, :2] = 1.5
        zarr.open_array(store, path="g/b")[...] = 7

    def shrink(store: Any) -> None:
        array = zarr.open_array(store, path="a")
        array[0, 0] = 9
        array.resize((4, 4))
        del zarr.open_group(store)["g/b"]

    commit("create", create)
    filled = commit("fill", fill)
    repository.create_tag("filled", filled)
    repository.create_branch("other", filled)
    left = commit("left behind", lambda s: zarr.open_array(s, path="a").attrs.update(z=1), "other")
    repository.reset_branch("other", filled)
    commit("shrink", shrink)
    assert left not in {info.id for info in repository.ancestry(branch="other")}
    return repository


@pytest.fixture(scope="module", params=[1, 2])
def repository(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return history(tmp_path_factory.mktemp("tables"), request.param)


def table(repository: Repository, name: str, **ref: Any) -> list[dict[str, Any]]:
    branch = ref.get("branch") or (None if ref else "main")
    scan = plan_table(pin(repository, **ref), name, branch)
    found = rows_of(scan)
    assert found.schema == TABLES[name]
    listed: list[dict[str, Any]] = found.to_pylist()
    return listed


def test_snapshots_are_those_of_the_history(repository: Repository) -> None:
    found = {row["snapshot_id"]: row for row in table(repository, "snapshots")}
    chain = list(repository.ancestry(branch="main"))
    assert {info.id for info in chain} <= set(found)
    for info in chain:
        row = found[info.id]
        assert (row["committed_at"], row["parent_id"], row["message"]) == (
            info.written_at,
            info.parent_id,
            info.message,
        )
    assert dict(found[chain[0].id]["metadata"]) == {"by": "test", "n": "3"}
    assert found[chain[1].id]["branches"] == ["other"]
    assert found[chain[1].id]["tags"] == ["filled"]
    assert found[chain[0].id]["branches"] == ["main"]


def test_refs_are_branches_and_tags(repository: Repository) -> None:
    assert table(repository, "refs") == [
        {"name": name, "type": "BRANCH", "snapshot_id": repository.lookup_branch(name)}
        for name in ("main", "other")
    ] + [{"name": "filled", "type": "TAG", "snapshot_id": repository.lookup_tag("filled")}]


def test_history_knows_what_was_left_behind(repository: Repository) -> None:
    found = table(repository, "history", branch="other")
    current = [row["snapshot_id"] for row in found if row["is_current_ancestor"]]
    assert current == [info.id for info in repository.ancestry(branch="other")]
    left = [row["message"] for row in found if not row["is_current_ancestor"]]
    assert left == (["left behind"] if int(repository.spec_version) > 1 else [])


def test_the_operations_log_is_a_table(repository: Repository) -> None:
    if int(repository.spec_version) == 1:
        with pytest.raises(Exception, match="spec version 2"):
            table(repository, "ops")
        return
    found = table(repository, "ops")
    assert len(found) == len(list(repository.ops_log()))
    kinds = Counter(row["operation"] for row in found)
    assert kinds["new_commit"] == 4
    assert kinds["branch_reset"] == 1
    [reset] = [row for row in found if row["operation"] == "branch_reset"]
    assert reset["ref"] == "other"
    assert found[0]["new_snapshot_id"] == repository.lookup_branch("main")


def test_nodes_have_shape_type_and_codecs(repository: Repository) -> None:
    found = {row["path"]: row for row in table(repository, "nodes", tag="filled")}
    assert set(found) == {"/", "/a", "/g", "/g/b"}
    array = found["/a"]
    assert (array["shape"], array["chunk_shape"], array["num_chunks"]) == ([6, 4], [2, 2], [3, 2])
    assert (array["type"], array["dtype"]) == ("array", "float64")
    assert array["dimension_names"] == ["y", "x"]
    assert "bytes" in array["codecs"]
    assert found["/g"]["shape"] is None
    session = repository.readonly_session(tag="filled")
    assert array["node_id"] == session.get_node_id("/a")
    assert {row["path"] for row in table(repository, "nodes")} == {"/", "/a", "/g"}


def test_manifests_are_the_files_of_the_snapshot(repository: Repository) -> None:
    found = {row["manifest_id"]: row for row in table(repository, "manifests", tag="filled")}
    listed = repository.list_manifest_files(repository.lookup_tag("filled"))
    assert {info.id: (info.size_bytes, info.num_chunk_refs) for info in listed} == {
        key: (row["length"], row["num_chunk_refs"]) for key, row in found.items()
    }
    held = {array["path"]: array for row in found.values() for array in row["arrays"]}
    assert set(held) == {"/a", "/g/b"}
    assert held["/a"]["extents"] == [{"start": 0, "stop": 3}, {"start": 0, "stop": 1}]


def test_chunks_are_every_reference_inside_the_grid(repository: Repository) -> None:
    found = table(repository, "chunks", tag="filled")
    places = {(row["path"], tuple(row["chunk_index"])): row for row in found}
    assert len(places) == len(found)
    assert set(places) == {("/a", (y, 0)) for y in range(3)} | {("/g/b", (x,)) for x in range(2)}
    for (path, index), row in places.items():
        kind = repository.readonly_session(tag="filled").chunk_type(path, index)
        assert row["kind"] == kind.name
        assert (row["chunk_id"] is None) == (row["kind"] != "native")
    assert {row["kind"] for row in found} == {"native", "inline"}
    stored = {name for name, _ in repository.storage.list_objects(prefix="chunks/")}
    assert {row["chunk_id"] for row in found if row["chunk_id"]} <= stored
    shrunk = table(repository, "chunks")
    assert {tuple(row["chunk_index"]) for row in shrunk} == {(0, 0), (1, 0)}


def test_changes_tell_which_commit_last_wrote_a_chunk(repository: Repository) -> None:
    found = table(repository, "changes")
    chain = [info.id for info in repository.ancestry(branch="main")]
    last: dict[tuple[str, tuple[int, ...]], str] = {}
    for row in sorted(found, key=lambda row: row["committed_at"]):
        if row["change"] == "updated_chunk":
            last[row["path"], tuple(row["chunk_index"])] = row["snapshot_id"]
    assert last["/a", (0, 0)] == chain[0]
    assert last["/a", (1, 0)] == chain[1]
    by_kind = {(row["change"], row["path"]) for row in found if row["change"] != "updated_chunk"}
    assert {
        ("new_array", "/a"),
        ("new_group", "/g"),
        ("new_array", "/g/b"),
        ("deleted_array", "/g/b"),
        ("updated_array", "/a"),
    } <= by_kind
    assert table(repository, "changes", tag="filled") == [
        row for row in found if row["snapshot_id"] != chain[0]
    ]
    for older, newer in zip(chain[1:], chain, strict=False):
        ours = {row["path"] for row in found if row["snapshot_id"] == newer}
        theirs = repository.diff(from_snapshot_id=older, to_snapshot_id=newer)
        assert set(theirs.updated_chunks) | theirs.new_arrays | theirs.deleted_arrays <= ours


def test_changes_after_a_snapshot_and_in_several_tasks(repository: Repository) -> None:
    chain = [info.id for info in repository.ancestry(branch="main")]
    source = pin(repository)
    after = plan_changes(source, chain[1], 1)
    assert {row["snapshot_id"] for row in rows_of(after).to_pylist()} == {chain[0]}
    assert plan_changes(source, None, 1).num_partitions == 4
    with pytest.raises(InvalidInputError, match="not an ancestor"):
        plan_changes(pin(repository, snapshot_id=chain[2]), chain[0], 1)


def test_a_moved_node_is_a_change(tmp_path: Path) -> None:
    repository = history(tmp_path, 2)
    session = repository.rearrange_session("main")
    session.move("/a", "/g/moved")
    session.commit("moved")
    [row] = [r for r in table(repository, "changes") if r["change"] == "moved_node"]
    assert (row["path"], row["destination"]) == ("/a", "/g/moved")


def test_files_are_all_objects_and_orphans_are_told(repository: Repository) -> None:
    found = {row["path"]: row for row in table(repository, "files")}
    assert {path: row["file_size_in_bytes"] for path, row in found.items()} == dict(
        repository.storage.list_objects()
    )
    unreferenced = {path for path, row in found.items() if not row["is_referenced"]}
    chunks = {row["chunk_id"] for row in table(repository, "chunks")}
    assert not unreferenced & {f"chunks/{key}" for key in chunks}
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[...] = 3  # never committed: orphans
    after = table(repository, "files")
    orphans = [row for row in after if not row["is_referenced"] and row["kind"] == "chunk"]
    assert len(orphans) == 4


def test_virtual_references_show_their_location() -> None:
    refs = ChunkRefs.virtual(
        [[0], [1]], ["s3://b/f", "s3://b/g"], [5, 6], [7, 8], last_modified=[9, 9]
    )
    [first, second] = chunk_ref_batch("/v", "M", refs, lambda ids: ids).to_pylist()
    assert (first["kind"], first["location"], first["offset"]) == ("virtual", "s3://b/f", 5)
    assert first["last_modified"].timestamp() == 9
    assert second["chunk_id"] is None


def test_ids_become_text_a_column_at_a_time() -> None:
    random = np.random.default_rng(7)
    for kind in (ChunkId, NodeId):
        ids = random.integers(0, 256, (50, kind.size), dtype=np.uint8)
        assert id_texts(ids).to_pylist() == [kind(row.tobytes()).text for row in ids]
    assert id_texts(np.empty((0, 12), np.uint8)).type == pa.string()


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("snapshot", {}, "tables are snapshots"),
        (None, {}, "no table None"),
        ("refs", {"branch": "main"}, "whole repository"),
        ("nodes", {"start_snapshot_id": "X"}, "start is for table 'changes'"),
    ],
)
def test_what_is_no_table_is_refused(name: Any, given: dict[str, Any], problem: str) -> None:
    check = check_ref if name in TABLES else check_table
    with pytest.raises(InvalidInputError, match=problem):
        check(*([name, given] if name in TABLES else [name]))
