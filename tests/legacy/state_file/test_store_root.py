"""Section "File Layout" of document 003: the state file may be apart from the rest of the data."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.storage.urls import storage_beside
from tests.legacy.state_file.datasets import write_state
from tests.legacy.state_file.test_foreign_datasets import (
    FIRST,
    REFS,
    SECOND,
    check_contents,
    opened,
    write_dataset,
)
from tests.servers import S3Server


@pytest.mark.parametrize("root", ["file://{}", "{}", "../data"])
def test_data_elsewhere_on_disk_is_read(tmp_path: Path, root: str) -> None:
    write_dataset(tmp_path / "data")
    root = root.format(tmp_path / "data")
    write_state(tmp_path / "state", snapshots=[FIRST, SECOND], refs=REFS, store_root=root)
    repo = opened(tmp_path / "state", tmp_path / "data")
    check_contents(repo)
    check_contents(pickle.loads(pickle.dumps(repo)))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b", mode="r+")[0] = 3
    session.commit("more")
    assert json.loads((tmp_path / "state" / "state.json").read_text())["store_root"] == root
    assert {path.name for path in (tmp_path / "state").iterdir()} <= {"state.json", ".icefloe"}
    again: Any = zarr.open_array(
        opened(tmp_path / "state", tmp_path / "data").readonly_session("main").store, path="b"
    )
    assert again[:].tolist() == [3, 20]


def write_and_read(storage: icefloe.Storage, root: str) -> icefloe.Repository:
    generation = icefloe.StateFileDataset(store_root=root)
    repo = icefloe.Repository.create(storage, generation=generation)
    session = repo.writable_session("main")
    array: Any = zarr.create_array(
        session.store, name="a", shape=(2000,), chunks=(1000,), dtype="i4", overwrite=False
    )
    array[:] = range(2000)
    session.commit("data")
    again = icefloe.Repository.open(storage)
    found: Any = zarr.open_array(again.readonly_session("main").store, path="a")
    assert found[:].tolist() == list(range(2000))
    return again


def test_a_dataset_is_created_with_data_elsewhere(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(tmp_path / "state")
    write_and_read(storage, f"file://{tmp_path}/data")
    folders = {path.name for path in (tmp_path / "data").iterdir()}
    assert folders - {".icefloe"} == {"s", "i", "c"}
    assert (tmp_path / "state" / "state.json").exists()
    assert not (tmp_path / "data" / "state.json").exists()


def test_data_elsewhere_on_s3(s3_server: S3Server) -> None:
    """The same server and the same credentials, another prefix."""
    storage = s3_server.storage()
    location: Any = storage.location
    prefix = f"{location.prefix}-data"
    write_and_read(storage, f"s3://{location.bucket}/{prefix}")
    assert [key for key, _ in storage.list_objects()] == ["state.json"]
    beside = storage_beside(storage, f"s3://{location.bucket}/{prefix}")
    assert {key.partition("/")[0] for key, _ in beside.list_objects()} == {"s", "i", "c"}


@pytest.mark.parametrize("root", ["s3://bucket/x", "https://somewhere/x", "nonsense://x"])
def test_another_kind_of_storage_is_not_followed(tmp_path: Path, root: str) -> None:
    """A state file must not make us read from places that nobody asked for."""
    write_state(tmp_path, snapshots=[FIRST], refs={}, store_root=root)
    with pytest.raises(icefloe.InvalidInputError):
        icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path))
