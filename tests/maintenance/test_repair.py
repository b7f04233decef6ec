"""`repair` mends what it claims to, shows it first, and changes nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from tests.maintenance.damages import (
    DAMAGES,
    flip,
    flipped_manifest,
    missing_chunk,
    tip,
    zero_length_chunk,
)
from tests.maintenance.test_verify import copied, verify
from tests.maintenance.worlds import ROWS, WIDTH, World, array, make_world, values

icechunk: Any = pytest.importorskip("icechunk", minversion="2")

PATHS = ("a/native", "inline", "a/virtual")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("world")
    for spec in (1, 2):
        make_world(place / str(spec), icechunk, spec)
    return place


@pytest.fixture(params=[1, 2])
def world(made: Path, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return copied(made / str(request.param), tmp_path)


@pytest.fixture
def world2(made: Path, tmp_path: Path) -> World:
    return copied(made / "2", tmp_path)


def contents(repo: Any, **ref: str) -> dict[str, Any]:
    store = repo.readonly_session(**(ref or {"branch": "main"})).store
    return {path: zarr.open_array(store, path=path, mode="r")[:] for path in PATHS}


def official(world: World) -> Any:
    storage = icechunk.local_filesystem_storage(str(world.folder))
    return icechunk.Repository.open(
        storage, authorize_virtual_chunk_access=world.authorized(icechunk)
    )


def only_adds(world: World, before: dict[str, bytes], *changed: str) -> bool:
    after = world.bytes_of_all()
    return all(after.get(key) == data for key, data in before.items() if key not in changed)


def tip_is_healthy(world: World) -> bool:
    """History keeps its damage; a fresh copy that starts at the tip has none."""
    repo = world.open()
    plan = repo.plan_repair(virtual_sources=True)
    return plan.is_empty


def test_nothing_is_planned_for_a_healthy_branch(world: World) -> None:
    before = world.bytes_of_all()
    repo = world.open()
    tip_before = repo.lookup_branch("main")
    plan = repo.plan_repair(virtual_sources=True)
    assert plan.is_empty
    assert "nothing to do" in str(plan)
    assert repo.run_repair(plan) == tip_before
    assert world.bytes_of_all() == before


def test_missing_chunks_are_dropped(world: World) -> None:
    expected = contents(world.open())
    missing_chunk(world)
    before = world.bytes_of_all()
    repo = world.open()
    plan = repo.plan_repair()
    assert "drop 1 references of /a/native" in str(plan)
    assert world.bytes_of_all() == before
    snapshot = repo.run_repair(plan)
    assert only_adds(world, before, "repo", "refs/branch.main/ref.json")
    expected["a/native"][0] = 0
    for library in (world.open(), official(world)):
        found = contents(library)
        assert all(np.array_equal(found[path], expected[path]) for path in PATHS)
    assert tip_is_healthy(world)
    history = [entry.id for entry in world.open().ancestry(branch="main")]
    assert history[0] == snapshot
    assert history[1] == plan.base


def test_manifests_that_cannot_be_read_are_dropped(world: World) -> None:
    expected = contents(world.open())
    flipped_manifest(world)
    before = world.bytes_of_all()
    repo = world.open()
    plan = repo.plan_repair(virtual_sources=True)
    assert [(one.what, one.references) for one in plan.actions] == [("drop-manifest", ROWS)]
    repo.run_repair(plan)
    assert only_adds(world, before, "repo", "refs/branch.main/ref.json")
    expected["a/virtual"][:] = 0
    for library in (world.open(), official(world)):
        found = contents(library)
        assert all(np.array_equal(found[path], expected[path]) for path in PATHS)
    assert tip_is_healthy(world)
    difference = world.open().diff(from_snapshot_id=plan.base, to_branch="main")
    assert len(difference.updated_chunks["/a/virtual"]) == ROWS


@pytest.mark.parametrize("name", ["wrong_count", "wrong_size", "wrong_extents"])
def test_manifests_that_are_listed_wrongly_are_written_again(world2: World, name: str) -> None:
    expected = contents(world2.open())
    DAMAGES[name][0](world2)
    repo = world2.open()
    repo.run_repair(repo.plan_repair())
    found = contents(official(world2))
    if name == "wrong_extents":
        expected["a/virtual"][2:] = 0  # nobody could find those any more
    assert all(np.array_equal(found[path], expected[path]) for path in PATHS)
    assert tip_is_healthy(world2)


def test_chunks_without_bytes_are_dropped(world2: World) -> None:
    expected = contents(world2.open())
    zero_length_chunk(world2)
    repo = world2.open()
    repo.run_repair(repo.plan_repair(), "chunks without bytes are gone")
    expected["a/virtual"][1] = 0
    found = contents(official(world2))
    assert all(np.array_equal(found[path], expected[path]) for path in PATHS)
    assert next(iter(repo.ancestry(branch="main"))).message == "chunks without bytes are gone"


def test_references_to_lost_files_are_dropped_when_asked(world2: World) -> None:
    expected = contents(world2.open())
    (world2.sources / "two.bin").unlink()
    repo = world2.open()
    assert repo.plan_repair().is_empty
    repo.run_repair(repo.plan_repair(virtual_sources=True))
    expected["a/virtual"][3:] = 0
    assert np.array_equal(contents(official(world2))["a/virtual"], expected["a/virtual"])


def test_a_source_that_cannot_be_asked_is_not_called_dead(world2: World) -> None:
    repo = icefloe.Repository.open(world2.storage)
    with pytest.raises(icefloe.IcechunkError, match="not authorised"):
        repo.plan_repair(virtual_sources=True)


def test_a_plan_is_for_the_branch_as_it_was(world2: World) -> None:
    missing_chunk(world2)
    repo = world2.open()
    plan = repo.plan_repair()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="inline", mode="r+")[0] = 5
    session.commit("somebody else")
    with pytest.raises(icefloe.ConflictError, match="make another plan"):
        repo.run_repair(plan)


# -- moved files


def move(world: World) -> str:
    target = world.sources / "moved"
    target.mkdir()
    for name in ("one.bin", "two.bin"):
        (world.sources / name).rename(target / name)
    return f"{world.prefix}moved/"


def test_references_follow_files_that_moved(world: World) -> None:
    expected = contents(world.open())
    new = move(world)
    before = world.bytes_of_all()
    assert verify(world).of_kind("missing-source")
    repo = world.open()
    plan = repo.plan_repoint(world.prefix, new)
    assert [(one.what, one.references) for one in plan.actions] == [("repoint", ROWS)]
    repo.run_repair(plan)
    assert only_adds(world, before, "repo", "refs/branch.main/ref.json")
    found = contents(official(world))
    assert all(np.array_equal(found[path], expected[path]) for path in PATHS)
    # The state that was demanded before still is: the files kept their time.
    os.utime(world.sources / "moved" / "one.bin", (2_000_000_000, 2_000_000_000))
    with pytest.raises(icefloe.StorageError, match="changed"):
        contents(world.open())


def test_files_that_are_not_at_their_new_place_are_left(world2: World) -> None:
    new = move(world2)
    (world2.sources / "moved" / "two.bin").unlink()
    plan = world2.open().plan_repoint(world2.prefix, new)
    assert [(one.what, one.references) for one in plan.actions] == [("repoint", 3), ("leave", 3)]


def test_a_moved_file_with_another_time_may_not_change_from_now_on(world2: World) -> None:
    expected = contents(world2.open())
    new = move(world2)
    for path in (world2.sources / "moved").iterdir():
        os.utime(path, (1_750_000_000, 1_750_000_000))
    repo = world2.open()
    repo.run_repair(repo.plan_repoint(world2.prefix, new))
    assert np.array_equal(contents(official(world2))["a/virtual"], expected["a/virtual"])
    os.utime(world2.sources / "moved" / "one.bin", (4_000_000_000, 4_000_000_000))
    with pytest.raises(icefloe.StorageError, match="changed"):
        contents(world2.open())


# -- lost repo objects and branches


def rescued(world: World) -> str:
    plan = icefloe.Repository.plan_rescue(world.storage)
    before = world.bytes_of_all()
    icefloe.Repository.run_rescue(world.storage, plan)
    assert only_adds(world, before, "repo", "refs/branch.main/ref.json")
    return str(plan)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_lost_repo_object_is_made_again(world2: World, is_damaged: bool) -> None:
    expected = contents(world2.open())
    history = [entry.id for entry in world2.open().ancestry(branch="main")]
    repo_file = world2.folder / "repo"
    flip(repo_file) if is_damaged else repo_file.unlink()
    assert not verify(world2).is_healthy
    told = rescued(world2)
    assert "start from overwritten/repo." in told
    assert verify(world2).is_healthy, str(verify(world2))
    for library in (world2.open(), official(world2)):
        assert [entry.id for entry in library.ancestry(branch="main")] == history
        assert library.list_tags() == {"v1"}
        assert library.list_branches() == {"main", "side"}
        found = contents(library)
        assert all(np.array_equal(found[path], expected[path]) for path in PATHS)
    session = official(world2).writable_session("main")
    zarr.open_array(session.store, path="inline", mode="r+")[0] = 5
    session.commit("goes on")
    kinds = [type(entry.kind).__name__ for entry in official(world2).ops_log()]
    assert len(kinds) == 8


def test_a_repo_object_without_copies_is_made_from_snapshots(world2: World) -> None:
    expected = contents(world2.open())
    history = [entry.id for entry in world2.open().ancestry(branch="main")]
    (world2.folder / "repo").unlink()
    shutil.rmtree(world2.folder / "overwritten")
    assert "tags, settings and names of branches are lost" in rescued(world2)
    repo = icefloe.Repository.open(world2.storage)
    assert [entry.id for entry in repo.ancestry(branch="main")] == history
    assert repo.verify().is_healthy
    assert official(world2).lookup_branch("main") == history[0]
    store = repo.readonly_session("main").store
    found = zarr.open_array(store, path="a/native", mode="r")[:]
    assert np.array_equal(found, expected["a/native"])


def test_branches_of_one_origin_are_told_apart(world2: World) -> None:
    repo = world2.open()
    session = repo.writable_session("side")
    array(session.store, "other")[:] = values(WIDTH)
    on_side = session.commit("on the side")
    (world2.folder / "repo").unlink()
    rescued(world2)
    assert world2.open().lookup_branch("side") == on_side


def test_a_branch_whose_tip_is_gone_goes_back(world2: World) -> None:
    repo = world2.open()
    parent = list(repo.ancestry(branch="main"))[1].id
    tip(world2).unlink()
    plan = icefloe.Repository.plan_rescue(world2.storage)
    assert f"it goes back to {parent}" in str(plan)
    icefloe.Repository.run_rescue(world2.storage, plan)
    assert world2.open().lookup_branch("main") == parent
    assert official(world2).lookup_branch("main") == parent


def test_a_lost_branch_of_version_1_is_made_again(made: Path, tmp_path: Path) -> None:
    world = copied(made / "1", tmp_path)
    expected = world.open().lookup_branch("main")
    (world.folder / "refs/branch.main/ref.json").unlink()
    assert verify(world).of_kind("missing-main-branch")
    rescued(world)
    assert world.open().lookup_branch("main") == expected
    assert official(world).lookup_branch("main") == expected
    assert verify(world).is_healthy


def test_a_rescue_of_a_healthy_repository_does_nothing(world: World) -> None:
    before = world.bytes_of_all()
    plan = icefloe.Repository.plan_rescue(world.storage)
    assert plan.is_empty
    assert str(plan) == "nothing to do"
    icefloe.Repository.run_rescue(world.storage, plan)
    assert world.bytes_of_all() == before


def test_a_rescue_does_not_overwrite_what_came_meanwhile(world2: World) -> None:
    repo_file = world2.folder / "repo"
    data = repo_file.read_bytes()
    repo_file.unlink()
    plan = icefloe.Repository.plan_rescue(world2.storage)
    repo_file.write_bytes(data)
    with pytest.raises(icefloe.ConflictError, match="make another plan"):
        icefloe.Repository.run_rescue(world2.storage, plan)
    assert repo_file.read_bytes() == data
