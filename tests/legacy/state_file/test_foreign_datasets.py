"""Section "Read Snapshot" of document 003, on datasets that another program wrote."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe
from tests.legacy.state_file.datasets import (
    array_row,
    chunk_row,
    group_row,
    inventory,
    numbers,
    write_manifest,
    write_state,
    write_structure,
    write_table,
)

FIRST = {"snapshot-id": "old", "timestamp-ms": 1000, "structure-file": "one.parquet"}
SECOND = {
    "snapshot-id": "new",
    "parent-snapshot-id": "old",
    "timestamp-ms": 2000,
    "structure-file": "s/two.parquet",
    "properties": {"author": "somebody", "message": "more"},
}


def write_dataset(root: Path) -> None:
    """Two snapshots of a dataset with chunks in every place that the document allows."""
    (root / "c").mkdir(parents=True)
    (root / "c" / "one-chunk").write_bytes(numbers(1, 2))
    (root / "c" / "several").write_bytes(b"??" + numbers(3, 4) + numbers(5, 6) + b"rest")
    (root / "c" / "shared.nc").write_bytes(b"CDF" + numbers(7, 8) + numbers(10, 20))
    (root / "foreign.bin").write_bytes(bytes(100) + numbers(9, 9))
    write_structure(root, "one.parquet", [group_row(0, "/")])
    write_manifest(
        root,
        "x.parquet",
        [
            chunk_row(0, 3, 0, chunk_file="one-chunk", length=8),
            chunk_row(1, 3, 1, chunk_file="several", offset=2, length=8),
            chunk_row(2, 3, 2, chunk_file="several", offset=10, length=8),
            chunk_row(3, 3, 3, chunk_file="c/shared.nc", offset=3, length=8),
            chunk_row(4, 3, 4, inline_data=numbers(-1, -2)),
            chunk_row(5, 5, 0, chunk_file="shared.nc", offset=11, length=8),
            chunk_row(6, 9, 0, inline_data=numbers(99, 99)),
        ],
    )
    url = f"file://{root}/foreign.bin"
    write_manifest(root, "y.parquet", [chunk_row(0, 3, 5, chunk_file=url, offset=100, length=8)])
    write_table(
        root / "a" / "attrs.parquet",
        [{"attrs": b'{"skipped":1}'}, {"attrs": b'{"units":"K"}'}],
        pa.schema([("attrs", pa.binary())]),
    )
    write_structure(
        root,
        "two.parquet",
        [
            group_row(0, "/", inline_attrs=b'{"title":"t"}'),
            group_row(1, "g"),
            array_row(
                3,
                "g/a",
                [13],
                [2],
                attrs_reference={"attrs_file": "attrs.parquet", "row": 1, "flags": None},
                inventories=[
                    inventory("x.parquet", 0, (0, 5)),
                    inventory("i/y.parquet", 0, (5, 6)),
                ],
            ),
            array_row(5, "b", [2], [2], inventories=[inventory("x.parquet", 5, (0, 1))]),
            # The references of this one are there, outside of the extent.
            array_row(9, "c", [2], [2], inventories=[inventory("x.parquet", 6, (1, 2))]),
        ],
    )


REFS = {
    "main": {"name": "main", "snapshot-id": "new", "type": "branch"},
    "v0": {"snapshot-id": "old", "type": "tag"},
}


def opened(folder: Path, foreign: Path, **options: Any) -> icefloe.Repository:
    prefix = f"file://{foreign}/"
    container = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(foreign)))
    config = icefloe.RepositoryConfig(**options)
    config.set_virtual_chunk_container(container)
    return icefloe.Repository.open(
        icefloe.local_filesystem_storage(folder),
        config,
        authorize_virtual_chunk_access={prefix: icefloe.credentials.LocalFileSystemAccess},
    )


def check_contents(repo: icefloe.Repository) -> None:
    group: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert dict(group.attrs) == {"title": "t"}
    assert dict(group["g/a"].attrs) == {"units": "K"}
    expected = [1, 2, 3, 4, 5, 6, 7, 8, -1, -2, 9, 9, 0]
    np.testing.assert_array_equal(group["g/a"][:], expected)
    np.testing.assert_array_equal(group["b"][:], [10, 20])
    np.testing.assert_array_equal(group["c"][:], [0, 0])
    old: Any = zarr.open_group(repo.readonly_session(tag="v0").store, mode="r")
    assert list(old.members()) == []


@pytest.mark.parametrize("shape", [REFS, [{"name": name, **ref} for name, ref in REFS.items()]])
def test_everything_the_document_allows_is_read(tmp_path: Path, shape: Any) -> None:
    write_dataset(tmp_path)
    write_state(tmp_path, snapshots=[FIRST, SECOND], refs=shape)
    repo = opened(tmp_path, tmp_path)
    assert repo.list_branches() == {"main"}
    assert repo.list_tags() == {"v0"}
    check_contents(repo)
    newest, oldest = repo.ancestry(branch="main")
    assert (newest.message, newest.metadata) == ("more", {"author": "somebody"})
    assert newest.parent_id == oldest.id
    assert newest.written_at.timestamp() == 2.0
    assert repo.lookup_branch("main") == newest.id


def test_snapshots_are_found_by_their_names(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_state(tmp_path, snapshots=[FIRST, SECOND], refs=REFS)
    repo = opened(tmp_path, tmp_path)
    by_name = repo.readonly_session(snapshot_id="new")
    assert by_name.snapshot_id == repo.readonly_session("main").snapshot_id
    found = repo.diff(from_tag="v0", to_snapshot_id="new")
    assert found.new_arrays == {"/g/a", "/b", "/c"}
    assert found.updated_groups == {"/"}
    assert found.updated_chunks == {"/g/a": [[at] for at in range(6)], "/b": [[0]]}


def test_a_writer_goes_on_with_it(tmp_path: Path) -> None:
    """What others wrote stays: names of files, members of the state file, references."""
    write_dataset(tmp_path)
    write_state(tmp_path, snapshots=[FIRST, SECOND], refs=REFS, by="another program")
    repo = opened(tmp_path, tmp_path)
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="g/a", mode="r+")
    array[12] = 77
    session.commit("on top")
    again: Any = zarr.open_array(
        opened(tmp_path, tmp_path).readonly_session("main").store, path="g/a"
    )
    np.testing.assert_array_equal(array[:], [1, 2, 3, 4, 5, 6, 7, 8, -1, -2, 9, 9, 77])
    np.testing.assert_array_equal(again[:], array[:])
    assert again.attrs["units"] == "K"
    text = (tmp_path / "state.json").read_text()
    assert '"by":"another program"' in text
    assert '"generation":8' in text
    assert '"structure-file":"s/two.parquet"' in text


def test_without_references_the_newest_snapshot_is_main(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_state(tmp_path, snapshots=[FIRST, SECOND])
    repo = opened(tmp_path, tmp_path)
    assert repo.list_branches() == {"main"}
    repo.create_tag("t", repo.lookup_branch("main"))
    assert repo.list_branches() == {"main"}  # is written down now
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b", mode="r+")[0] = 5
    session.commit("next")
    assert len(list(repo.ancestry(branch="main"))) == 3


def test_history_that_was_cut_ends_there(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_state(tmp_path, snapshots=[SECOND], refs={"main": REFS["main"]})
    repo = opened(tmp_path, tmp_path)
    assert len(list(repo.ancestry(branch="main"))) == 1


def test_a_reference_to_a_snapshot_that_is_gone(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_state(tmp_path, snapshots=[SECOND], refs=REFS)
    repo = opened(tmp_path, tmp_path)
    with pytest.raises(icefloe.SnapshotNotFoundError):
        repo.readonly_session(tag="v0")


@pytest.mark.parametrize("name", ["s/two.parquet", "i/x.parquet", "a/attrs.parquet"])
@pytest.mark.parametrize("damage", ["cut", "other", "gone"])
def test_damaged_files_are_named(tmp_path: Path, name: str, damage: str) -> None:
    write_dataset(tmp_path)
    write_state(tmp_path, snapshots=[FIRST, SECOND], refs=REFS)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2] if damage == "cut" else b"{}")
    if damage == "gone":
        (tmp_path / name).unlink()
    with pytest.raises(icefloe.IcechunkError, match=name) as caught:
        check_contents(opened(tmp_path, tmp_path))
    if damage != "gone":
        assert "a dataset with a state file" in str(caught.value)


def test_a_damaged_state_file_is_named(tmp_path: Path) -> None:
    write_state(tmp_path, snapshots=3)
    with pytest.raises(icefloe.FormatError, match=r"state\.json of a dataset with a state file"):
        icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path))


def test_snapshot_ids_are_shown_and_used_as_files_have_them(tmp_path: Path) -> None:
    """UUIDs, as document 003 has in its examples: no other text is shown anywhere."""
    oldest, middle, newest = (str(uuid.UUID(int=at << 100)) for at in (1, 2, 3))
    write_dataset(tmp_path)
    snapshots = [
        {**FIRST, "snapshot-id": oldest},
        {**SECOND, "snapshot-id": middle, "parent-snapshot-id": oldest},
        {**SECOND, "snapshot-id": newest, "parent-snapshot-id": middle, "timestamp-ms": 3000},
    ]
    refs = {"main": {"snapshot-id": newest, "type": "branch"}}
    refs["v0"] = {"snapshot-id": oldest, "type": "tag"}
    write_state(tmp_path, snapshots=snapshots, refs=refs)
    repo = opened(tmp_path, tmp_path)
    assert (repo.lookup_branch("main"), repo.lookup_tag("v0")) == (newest, oldest)
    entries = list(repo.ancestry(branch="main"))
    assert [each.id for each in entries] == [newest, middle, oldest]
    assert [each.parent_id for each in entries] == [middle, oldest, None]
    assert repo.lookup_snapshot(middle).id == middle
    for session in (
        repo.readonly_session(snapshot_id=middle),
        repo.readonly_session("main", as_of=datetime.fromtimestamp(2.5, UTC)),
        pickle.loads(pickle.dumps(repo.readonly_session(snapshot_id=middle))),
    ):
        assert session.snapshot_id == middle
    assert repo.writable_session("main").snapshot_id == newest
    assert repo.diff(from_snapshot_id=oldest, to_snapshot_id=middle).new_groups == {"/g"}
    repo.create_branch("side", oldest)
    repo.reset_branch("side", middle)
    assert repo.lookup_branch("side") == middle
    repo.delete_branch("side")
    assert newest in str(repo.ancestry_graph())
    program = [sys.executable, "-m", "icefloe", "log", f"{tmp_path}@{middle}", "--json"]
    shown = subprocess.run(program, check=True, capture_output=True).stdout
    assert [each["id"] for each in json.loads(shown)] == [middle, oldest]
    absent = str(uuid.UUID(int=9))
    with pytest.raises(icefloe.SnapshotNotFoundError, match=absent):
        repo.readonly_session(snapshot_id=absent)
    later = datetime.fromtimestamp(2.5, UTC)
    assert repo.expire_snapshots(later, dry_run=True) == {middle}
    assert repo.expire_snapshots(later) == {middle}
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b", mode="r+")[0] = 5
    own = session.commit("next")
    stale = opened(tmp_path, tmp_path).readonly_session(snapshot_id=newest)
    assert stale.snapshot_id == newest
    listed = [(each.id, each.parent_id) for each in repo.ancestry(branch="main")]
    assert listed == [(own, newest), (newest, oldest), (oldest, None)]
    report = icefloe.migrate_repository(repo, icefloe.in_memory_storage(), config=repo.config)
    assert report.snapshots.keys() == {own, newest, oldest}


def test_chunks_are_shown_where_their_files_are(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_state(tmp_path, snapshots=[FIRST, SECOND], refs=REFS)
    session = opened(tmp_path, tmp_path, inline_chunk_threshold_bytes=0).writable_session("main")
    array: Any = zarr.open_array(session.store, path="g/a", mode="r+")
    array[12] = 1  # a chunk that is named by an id, beside those that are not
    session.commit("one more")
    program = [sys.executable, "-m", "icefloe", "chunks", str(tmp_path), "g/a", "--json"]
    shown = json.loads(subprocess.run(program, check=True, capture_output=True).stdout)
    native = [each["location"] for each in shown if each["type"] == "native"]
    assert native[:4] == ["c/one-chunk", "c/several", "c/several", "c/shared.nc"]
    assert len(native) == 5
    assert all((tmp_path / location).is_file() for location in native)
