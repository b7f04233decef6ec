"""Nodes at paths that are not canonical. Official clients make them by a slash at the end of a
move or by a key with an empty segment; such a node must not make the branch unusable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

pytest.importorskip("icechunk", minversion="2")

import icechunk

import icefloe
from tests.interop.sides import SIDES, Place

GROUP = b'{"zarr_format":3,"node_type":"group","attributes":{"odd":true}}'
ODD_KEYS = {
    "g//x/zarr.json": "/g//x",
    "/lead/zarr.json": "//lead",
    "./dot/zarr.json": "/./dot",
    "k/x//zarr.json": "/k/x/",
    "k//zarr.json": "/k/",
    "k/./zarr.json": "/k/.",
    "//zarr.json": "//",
}


def new_repository(folder: Path) -> Place:
    place = Place(folder)
    repo = icechunk.Repository.create(place.storage(icechunk))
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    array = root.create_group("h").create_array("a", shape=(4,), chunks=(2,), dtype="i4")
    array[:] = 5
    root.create_group("k")
    session.commit("canonical")
    return place


def move(place: Place, library: Any, *moves: tuple[str, str]) -> str:
    session = place.open(library).rearrange_session("main")
    for source, destination in moves:
        session.move(source, destination)
    return str(session.commit("moved"))


def put(place: Place, library: Any, key: str) -> None:
    session = place.open(library).writable_session("main")
    sync(session.store.set(key, cpu.Buffer.from_bytes(GROUP)))
    session.commit(f"set {key}")


def delete(place: Place, library: Any, key: str) -> None:
    session = place.open(library).writable_session("main")
    sync(session.store.delete(key))
    session.commit(f"deleted {key}")


async def _listed(store: Any) -> list[str]:
    return sorted([key async for key in store.list()])


def keys(place: Place, library: Any) -> list[str]:
    return sync(_listed(place.open(library).readonly_session("main").store))


def get(place: Place, library: Any, key: str) -> bytes | None:
    store = place.open(library).readonly_session("main").store
    value = sync(store.get(key, default_buffer_prototype()))
    return None if value is None else value.to_bytes()


def values(place: Place, library: Any, path: str) -> list[int]:
    store = place.open(library).readonly_session("main").store
    array = zarr.open_array(store, path=path, mode="r")
    return [int(value) for value in np.asarray(array[:])]


def test_a_node_moved_to_a_path_with_a_slash_at_its_end(tmp_path: Path) -> None:
    place = new_repository(tmp_path)
    first = place.open(icechunk).lookup_branch("main")
    move(place, icechunk, ("/h", "/q/"))
    assert "q//zarr.json" in keys(place, icefloe)
    assert keys(place, icefloe) == keys(place, icechunk)
    assert get(place, icefloe, "q//zarr.json") == get(place, icechunk, "q//zarr.json") is not None
    assert values(place, icefloe, "q/a") == [5, 5, 5, 5]
    repo = place.open(icefloe)
    assert repo.diff(from_snapshot_id=first, to_branch="main").moved_nodes == [
        ("/h", "/q/"),
        ("/h/a", "/q/a"),
    ]
    put(place, icefloe, "k/new/zarr.json")
    for library in SIDES.values():
        assert {"q//zarr.json", "q/a/zarr.json", "k/new/zarr.json"} <= {*keys(place, library)}
        assert values(place, library, "q/a") == [5, 5, 5, 5]


@pytest.mark.parametrize("destination", ["/z", "/q", "/k/q/"])
def test_such_a_node_is_moved_with_what_lies_in_it(tmp_path: Path, destination: str) -> None:
    place = new_repository(tmp_path)
    move(place, icechunk, ("/h", "/q/"))
    before = place.open(icefloe).lookup_branch("main")
    move(place, icefloe, ("/q/", destination))
    goal = destination.rstrip("/")
    expected = {f"{goal[1:]}/zarr.json", f"{goal[1:]}/a/zarr.json"}
    for library in SIDES.values():
        found = keys(place, library)
        assert expected <= {*found}
        assert not any("//" in key for key in found)
        assert values(place, library, f"{goal[1:]}/a") == [5, 5, 5, 5]
    moved = place.open(icefloe).diff(from_snapshot_id=before, to_branch="main").moved_nodes
    assert ("/q/", goal) in moved
    assert (("/q/a", f"{goal}/a") in moved) == (goal != "/q")


def test_a_node_beside_its_canonical_twin_leaves_the_twin_alone(tmp_path: Path) -> None:
    place = new_repository(tmp_path)
    move(place, icechunk, ("/h", "/q/"))
    put(place, icefloe, "q/zarr.json")
    move(place, icefloe, ("/q/", "/z"))
    for library in SIDES.values():
        assert {"q/zarr.json", "q/a/zarr.json", "z/zarr.json"} <= {*keys(place, library)}


@pytest.mark.parametrize("library", SIDES.values(), ids=SIDES)
def test_such_a_node_is_deleted_by_its_key(tmp_path: Path, library: Any) -> None:
    place = new_repository(tmp_path)
    move(place, icechunk, ("/h", "/q/"))
    delete(place, library, "q//zarr.json")
    for each in SIDES.values():
        assert keys(place, each)[1:] == ["q/a/c/0", "q/a/c/1", "q/a/zarr.json", "zarr.json"]
    delete(place, library, "q/a/zarr.json")
    assert keys(place, icefloe) == keys(place, icechunk) == ["k/zarr.json", "zarr.json"]


@pytest.mark.parametrize(("key", "path"), ODD_KEYS.items())
def test_a_node_at_an_odd_key(tmp_path: Path, key: str, path: str) -> None:
    place = new_repository(tmp_path)
    put(place, icechunk, key)
    assert key in keys(place, icefloe)
    assert get(place, icefloe, key) == GROUP
    repo = place.open(icefloe)
    assert repo.readonly_session("main").get_node_id(path)
    group = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert {"h", "h/a", "k"} == {name for name, _ in group.members(max_depth=None)}

    put(place, icefloe, "k/new/zarr.json")  # a commit on top keeps it, and official agrees
    assert get(place, icechunk, "k/new/zarr.json") == GROUP
    assert key in keys(place, icefloe)
    move(place, icefloe, (path, "/k/moved"))
    for library in SIDES.values():
        assert get(place, library, "k/moved/zarr.json") == GROUP
        assert key not in keys(place, library)


@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_node_at_an_odd_key_is_deleted(tmp_path: Path, key: str) -> None:
    place = new_repository(tmp_path)
    canonical = keys(place, icechunk)
    put(place, icechunk, key)
    delete(place, icefloe, key)
    assert keys(place, icefloe) == canonical
    assert keys(place, icechunk) == canonical


def test_an_array_at_an_odd_path_keeps_its_chunks_and_takes_new_ones(tmp_path: Path) -> None:
    place = new_repository(tmp_path)
    move(place, icechunk, ("/h/a", "/h//b"))
    stored = get(place, icefloe, "h//b/c/0")
    assert stored is not None
    session = place.open(icefloe).writable_session("main")
    sync(session.store.set("h//b/c/1", cpu.Buffer.from_bytes(stored)))
    session.commit("a chunk")
    assert get(place, icechunk, "h//b/c/1") == stored
    move(place, icefloe, ("/h//b", "/h/b"))
    for library in SIDES.values():
        assert values(place, library, "h/b") == [5, 5, 5, 5]


@pytest.mark.parametrize("key", ODD_KEYS)
def test_new_nodes_get_canonical_paths_only(tmp_path: Path, key: str) -> None:
    place = new_repository(tmp_path)
    session = place.open(icefloe).writable_session("main")
    with pytest.raises(icefloe.InvalidInputError, match=r"empty, '\.' and|must not end"):
        sync(session.store.set(key, cpu.Buffer.from_bytes(GROUP)))
    with pytest.raises(icefloe.InvalidInputError, match="path"):
        place.open(icefloe).rearrange_session("main").move("/h", "/k//h")


def test_sessions_over_an_odd_path_are_rebased(tmp_path: Path) -> None:
    place = new_repository(tmp_path)
    move(place, icechunk, ("/h", "/q/"))
    session = place.open(icefloe).writable_session("main")
    sync(session.store.delete("q//zarr.json"))
    sync(session.store.set("k/ours/zarr.json", cpu.Buffer.from_bytes(GROUP)))
    put(place, icechunk, "k/theirs/zarr.json")
    session.rebase(icefloe.ConflictDetector())
    session.commit("rebased")
    for library in SIDES.values():
        found = {*keys(place, library)}
        assert {"q/a/zarr.json", "k/ours/zarr.json", "k/theirs/zarr.json"} <= found
        assert "q//zarr.json" not in found
