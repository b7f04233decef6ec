"""Old repositories that lost files, saved settings, or are written by several processes."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import NumberedRefs, Repository
from icefloe.errors import FormatError, SnapshotNotFoundError, StorageError
from icefloe.ids import decode_base32, encode_base32
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from tests.legacy.numbered.old_repositories import Builder
from tests.legacy.numbered.releases import RELEASES, Release
from tests.safety.worlds import driver_of


def delete(storage: Storage, key: str) -> None:
    run_blocking(driver_of(storage).delete_many([key]))


@pytest.mark.parametrize("release", RELEASES.values(), ids=lambda release: release.name)
def test_snapshots_that_are_gone_are_remembered_by_newer_ones(release: Release) -> None:
    """`short_term_history` has what is left of them; releases with parents only end there."""
    storage = icefloe.in_memory_storage()
    builder = Builder(release, storage, 12, "file:///nowhere")
    builder.history_kept = 100
    world = builder.build()
    line = world.branches["main"].line()
    gone = line[1]
    delete(storage, builder.key("snapshots", gone.id))
    repo = Repository.open(storage)
    found = list(repo.ancestry(branch="main"))
    if release.snapshot_items == 8:
        assert [entry.id for entry in found] == [line[0].text]
    else:
        assert [entry.id for entry in found] == [each.text for each in line]
        assert [entry.message for entry in found] == [each.message for each in line]
        assert found[1].metadata == {}
    with pytest.raises(SnapshotNotFoundError):
        repo.readonly_session(snapshot_id=gone.text)
    if not release.log_items and len(line) > 2:
        with pytest.raises(StorageError, match=r"its parent .* is gone"):
            repo.diff(from_snapshot_id=line[1].text, to_snapshot_id=line[0].text)


def test_a_missing_tip_is_named() -> None:
    storage = icefloe.in_memory_storage()
    release = RELEASES["0.1.0"]
    world = Builder(release, storage, 1, "file:///nowhere").build()
    delete(storage, "snapshots/" + world.branches["main"].text)
    with pytest.raises(FormatError, match=r"refs/branch\.main/.* points at snapshots/"):
        Repository.open(storage)


def test_a_missing_attributes_file_is_named() -> None:
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, generation=NumberedRefs(inline_attributes_bytes=1))
    session = repo.writable_session("main")
    zarr.create_group(session.store, attributes={"a": 1})
    made = session.commit("attributes")
    delete(storage, f"a/{made}")
    with pytest.raises(StorageError, match=f"a/{made}"):
        Repository.open(storage).readonly_session("main")


def test_the_saved_configuration_of_an_alpha_counts() -> None:
    storage = icefloe.in_memory_storage()
    Builder(RELEASES["alpha.8"], storage, 1, "file:///nowhere").build()
    saved = (
        b"inline_chunk_threshold_bytes: 17\nunsafe_overwrite_refs: false\n"
        b"virtual_chunk_containers:\n  s3:\n    name: s3\n    url_prefix: s3\n    store: !s3\n"
        b"      region: us-east-1\n      anonymous: false\n      allow_http: false\n"
    )
    run_blocking(driver_of(storage).put("config.yaml", saved))
    repo = Repository.open(storage)
    assert repo.config.inline_chunk_threshold_bytes == 17
    assert repo.generation is icefloe.Generation.ALPHA


# -- several processes write one session


@pytest.mark.parametrize("encoding", ["json", "msgpack", "binary"])
def test_forks_of_a_session(encoding: Any) -> None:
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, generation=NumberedRefs(encoding))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(8,), chunks=(2,), dtype="i4", fill_value=0)
    session.commit("an array")
    session = repo.writable_session("main")
    fork = session.fork()
    brought = []
    for number in range(4):
        mine = pickle.loads(pickle.dumps(fork))
        array: Any = zarr.open_array(mine.store, path="x", mode="r+")
        array[2 * number : 2 * number + 2] = number + 1
        zarr.create_group(mine.store, path=f"g{number}")
        brought.append(pickle.loads(pickle.dumps(mine)))
    session.merge(*brought)
    session.commit("by four")
    again = zarr.open_group(Repository.open(storage).readonly_session("main").store, mode="r")
    found: Any = again["x"]
    np.testing.assert_array_equal(found[...], np.repeat([1, 2, 3, 4], 2))
    assert {name for name, _ in again.groups()} == {"g0", "g1", "g2", "g3"}


def test_an_array_of_foreign_ids_is_extended() -> None:
    """Ids of 16 random bytes, as no writer here makes them, survive commits on top."""
    storage = icefloe.in_memory_storage()
    repo = Repository.create(
        storage,
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0),
        generation=NumberedRefs("json"),
    )
    session = repo.writable_session("main")
    array: Any = zarr.create_array(
        session.store, name="x", shape=(6,), chunks=(2,), dtype="i4", fill_value=0
    )
    array[:4] = 7
    session.commit("ours")
    _give_foreign_ids(storage)
    again = Repository.open(storage, icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0))
    session = again.writable_session("main")
    array = zarr.open_array(session.store, path="x", mode="r+")
    assert (array[:4] == 7).all()
    array[4:] = 8
    session.commit("on top")
    last: Any = zarr.open_array(
        Repository.open(storage).readonly_session("main").store, path="x", mode="r"
    )
    np.testing.assert_array_equal(last[...], [7, 7, 7, 7, 8, 8])


def _give_foreign_ids(storage: Storage) -> None:
    """Rename every chunk to an id whose tail does not follow from its beginning."""
    driver = driver_of(storage)
    names = {}
    for name, _ in list(storage.list_objects(prefix="c/")):
        key, raw = f"c/{name}", decode_base32(name, 16)
        other = bytes(byte ^ 0x55 for byte in raw)
        names[raw] = other
        run_blocking(driver.put("c/" + encode_base32(other), bytes(run_blocking(driver.get(key)))))
        delete(storage, key)
    for name, _ in list(storage.list_objects(prefix="m/")):
        key = f"m/{name}"
        document = json.loads(bytes(run_blocking(driver.get(key))))
        for payload in document["chunks"].values():
            payload["Ref"]["id"] = list(names[bytes(payload["Ref"]["id"])])
        run_blocking(driver.put(key, json.dumps(document).encode()))
