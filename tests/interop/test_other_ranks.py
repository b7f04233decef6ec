"""Official lets an array with chunks change its number of dimensions. What comes of it is damaged,
but only this array: the branch stays usable, and the array can be deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from zarr.core.sync import sync

pytest.importorskip("icechunk", minversion="2")

import icechunk

import icefloe
from tests.api.test_rank_changes import chunk_key, document, get, put
from tests.interop.sides import SIDES, Place


def new_repository(folder: Path, shape: list[int], *, writes: bool) -> Place:
    place = Place(folder)
    repo = icechunk.Repository.create(place.storage(icechunk))
    session: Any = repo.writable_session("main")
    for name in ("a", "b"):
        put(session, f"{name}/zarr.json", document([8]))
        put(session, f"{name}/c/0", b"12")
        put(session, f"{name}/c/1", b"34")
    session.commit("one")
    session = repo.writable_session("main")
    put(session, "a/zarr.json", document(shape))
    if writes:
        put(session, chunk_key(shape), b"5678")
    session.commit("another rank")
    return place


async def _listed(store: Any) -> list[str]:
    return sorted([key async for key in store.list()])


@pytest.mark.parametrize("shape", [[], [4, 4], [2, 2, 2]], ids=str)
@pytest.mark.parametrize("writes", [True, False])
def test_an_array_whose_rank_official_changed_can_be_deleted(
    tmp_path: Path, shape: list[int], writes: bool
) -> None:
    place = new_repository(tmp_path, shape, writes=writes)
    session = place.open(icefloe).writable_session("main")
    assert get(session, "b/c/0") == b"12"
    put(session, "b/c/2", b"56")
    session.commit("another array")
    if not writes:
        listed = sync(_listed(place.open(icefloe).readonly_session("main").store))
        assert listed == ["a/zarr.json", "b/c/0", "b/c/1", "b/c/2", "b/zarr.json"]
        session = place.open(icefloe).writable_session("main")
        put(session, chunk_key(shape), b"5678")
        session.commit("a chunk of the new rank")
        for library in SIDES.values():
            found: Any = place.open(library).readonly_session("main")
            assert get(found, chunk_key(shape)) == b"5678"
    session = place.open(icefloe).writable_session("main")
    sync(session.store.delete("a/zarr.json"))
    session.commit("without it")
    for library in SIDES.values():
        store = place.open(library).readonly_session("main").store
        assert sync(_listed(store)) == ["b/c/0", "b/c/1", "b/c/2", "b/zarr.json"]
