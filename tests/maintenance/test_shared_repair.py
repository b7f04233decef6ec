"""Damage to arrays that share manifests: found and mended like that of arrays with their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.format import layout
from icefloe.format.manifest import decode_manifest
from icefloe.repo.session import all_chunks
from icefloe.storage.run import run_blocking
from tests.maintenance.damages import flip
from tests.safety.worlds import driver_of

icechunk: Any = pytest.importorskip("icechunk", minversion="2", reason="official needs 3.12")
SIDES = {"shared": 64, "alone": 0}
NAMES = tuple(f"{group}/v{number}" for group in "ab" for number in range(8))
LENGTH, CHUNK = 12, 4
Values = dict[str, list[int]]


class World(NamedTuple):
    """A repository in a directory."""

    folder: Path
    side: str

    @property
    def storage(self) -> icefloe.Storage:
        return icefloe.local_filesystem_storage(self.folder, durable=False)

    def open(self) -> icefloe.Repository:
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
        # Each group has two manifests, of five and of three arrays.
        config.manifest = icefloe.ManifestConfig(
            max_shared_refs_per_array=SIDES[self.side], max_refs_per_shared_manifest=15
        )
        return icefloe.Repository.open(self.storage, config)

    def official(self) -> Any:
        return icechunk.Repository.open(icechunk.local_filesystem_storage(str(self.folder)))

    def manifest_of(self, path: str) -> Path:
        node = self.open().readonly_session("main").workspace.state.node(f"/{path}")
        assert node.array is not None
        [ref] = node.array.manifests
        return self.folder / layout.manifest_key(ref.id)

    def neighbours(self, path: str) -> set[str]:
        """The arrays that share a manifest with this one, which is one of them."""
        return {name for name in NAMES if self.manifest_of(name) == self.manifest_of(path)}

    def chunk_of(self, path: str, at: int) -> Path:
        node = self.open().readonly_session("main").workspace.state.node(f"/{path}")
        refs = decode_manifest(self.manifest_of(path).read_bytes()).find(node.id)
        assert refs is not None
        chunk_id = refs.row(at).chunk_id
        assert chunk_id is not None
        return self.folder / layout.chunk_key(chunk_id)

    def write(self, path: str, value: int) -> None:
        session = self.open().writable_session("main")
        zarr.open_array(session.store, path=path, mode="r+")[:] = value
        session.commit(f"{path} is {value}")


def values(repo: Any, names: Any = NAMES) -> Values:
    store = repo.readonly_session("main").store
    return {
        name: np.asarray(zarr.open_array(store, path=name, mode="r")[:]).tolist() for name in names
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shared")
    for spec in (1, 2):
        for side in SIDES:
            world = World(place / f"{side}{spec}", side)
            icefloe.Repository.create(world.storage, spec_version=spec)
            session = world.open().writable_session("main")
            for number, name in enumerate(NAMES):
                array = zarr.create_array(
                    session.store,
                    name=name,
                    shape=(LENGTH,),
                    chunks=(CHUNK,),
                    dtype="<i8",
                    compressors=None,
                )
                array[:] = np.arange(1, LENGTH + 1) + 100 * number
            session.commit("made")
    return place


@pytest.fixture(params=[1, 2])
def worlds(made: Path, tmp_path: Path, request: Any) -> list[World]:
    """One whose arrays share manifests, and one whose arrays do not."""
    found = []
    for side in SIDES:
        shutil.copytree(made / f"{side}{request.param}", tmp_path / side)
        found.append(World(tmp_path / side, side))
    return found


def lose(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def check_repaired(world: World, expected: Values) -> None:
    for repo in (world.open(), world.official()):
        assert values(repo) == expected
    assert world.open().plan_repair().is_empty
    repo = world.open()
    later = datetime.now(UTC) + timedelta(days=1)
    repo.expire_snapshots(later)
    repo.garbage_collect(later)
    assert not world.open().verify(read_chunks=True).findings
    assert values(world.official()) == expected


@pytest.mark.parametrize("damage", [lose, shorten])
def test_a_chunk_of_one_array(worlds: list[World], damage: Callable[[Path], None]) -> None:
    told = []
    for world in worlds:
        expected = values(world.open())
        damage(world.chunk_of("a/v3", 1))
        report = world.open().verify()
        [row] = [row for row in report.findings if row.severity != "info"]
        assert row.path == "/a/v3"
        plan = world.open().plan_repair()
        told.append(
            [(str(row.kind), row.repair)]
            + [(one.what, one.path, one.references) for one in plan.actions]
        )
        world.open().run_repair(plan)
        expected["a/v3"][CHUNK : 2 * CHUNK] = [0] * CHUNK
        check_repaired(world, expected)
    assert told[0] == told[1]
    assert told[0][1] == ("drop", "/a/v3", 1)


@pytest.mark.parametrize("damage", [lose, flip])
def test_a_manifest(worlds: list[World], damage: Callable[[Path], None]) -> None:
    """It takes all its arrays along, and no other one."""
    for world in worlds:
        expected = values(world.open())
        lost = world.neighbours("a/v3")
        assert len(lost) == (5 if world.side == "shared" else 1)
        damage(world.manifest_of("a/v3"))
        report = world.open().verify()
        assert not report.is_healthy
        assert len([row for row in report.findings if row.severity == "error"]) <= len(lost)
        others = set(NAMES) - lost
        assert values(world.open(), others) == {name: expected[name] for name in others}
        with pytest.raises(icefloe.IcechunkError, match="manifests/"):
            values(world.open(), ["a/v3"])
        plan = world.open().plan_repair()
        assert [(one.what, one.references) for one in plan.actions] == [
            ("drop-manifest", LENGTH // CHUNK)
        ] * len(lost)
        assert {one.path.strip("/") for one in plan.actions} == lost
        repo = world.open()
        repo.run_repair(plan)
        diff = repo.diff(from_snapshot_id=plan.base, to_branch="main")
        assert set(diff.updated_chunks) == {f"/{name}" for name in lost}
        for name in lost:
            expected[name] = [0] * LENGTH
        check_repaired(world, expected)


@pytest.mark.parametrize("damage", [lose, flip])
def test_commits_beside_a_lost_manifest(
    worlds: list[World], damage: Callable[[Path], None]
) -> None:
    """Nothing is taken for deleted because it cannot be read, and what can be written is."""
    for world in worlds:
        expected = values(world.open())
        damage(world.manifest_of("a/v3"))
        before = world.open().lookup_branch("main")
        session = world.open().writable_session("main")
        zarr.open_array(session.store, path="a/v3", mode="r+")[:CHUNK] = 5
        with pytest.raises(icefloe.IcechunkError, match="manifests/"):
            session.commit("over what cannot be read")
        with pytest.raises(icefloe.IcechunkError, match="manifests/"):
            world.open().rewrite_manifests("all", branch="main")
        assert world.open().lookup_branch("main") == before
        # The next group has manifests of its own.
        world.write("b/v3", 7)
        expected["b/v3"] = [7] * LENGTH
        # An array whose manifest is lost can be deleted, and written anew.
        lost = sorted(world.neighbours("a/v3"))
        session = world.open().writable_session("main")
        group: Any = zarr.open_group(session.store, mode="r+")
        del group["a/v3"]
        session.commit("deleted")
        session = world.open().writable_session("main")
        zarr.create_array(
            session.store, name="a/v3", shape=(LENGTH,), chunks=(CHUNK,), dtype="<i8"
        )[:] = 9
        session.commit("anew")
        expected["a/v3"] = [9] * LENGTH
        for name in lost:
            expected[name] = [9] * LENGTH if name == "a/v3" else [0] * LENGTH
        plan = world.open().plan_repair()
        assert {one.path.strip("/") for one in plan.actions} == {*lost} - {"a/v3"}
        if not plan.is_empty:
            world.open().run_repair(plan)
        check_repaired(world, expected)


def test_a_damaged_manifest_that_only_history_uses(worlds: list[World]) -> None:
    """Arrays that left it go on."""
    for world in worlds:
        old = world.manifest_of("a/v3")
        for number, name in enumerate(sorted(world.neighbours("a/v3"))):
            world.write(name, number + 1)
        expected = values(world.open())
        lose(old)
        assert not world.open().verify().is_healthy
        assert world.open().plan_repair().is_empty
        world.write("a/v3", 50)
        expected["a/v3"] = [50] * LENGTH
        check_repaired(world, expected)


def test_a_lost_chunk_that_is_moved_to_another_manifest(worlds: list[World]) -> None:
    """Dead references make others move; a chunk that is gone stays named, as it was."""
    for world in worlds:
        expected = values(world.open())
        lose(world.chunk_of("a/v3", 1))
        before = world.manifest_of("a/v3")
        for name in ("a/v0", "a/v1"):
            world.write(name, 3)
            expected[name] = [3] * LENGTH
        assert (world.manifest_of("a/v3") != before) == (world.side == "shared")
        [row] = world.open().verify(orphans=False).of_kind("missing-chunk-object")[:1]
        assert row.path == "/a/v3"
        with pytest.raises(icefloe.IcechunkError):
            values(world.open(), ["a/v3"])
        world.open().run_repair(world.open().plan_repair())
        expected["a/v3"][CHUNK : 2 * CHUNK] = [0] * CHUNK
        check_repaired(world, expected)


def test_chunks_of_an_array_that_left_a_manifest_are_read_by_the_new_one() -> None:
    """Reading a chunk for nobody must not stand for decoding it for its array."""
    for spec in (1, 2):
        for number in range(3):
            storage = icefloe.in_memory_storage()
            repo = icefloe.Repository.create(storage, spec_version=spec)
            with repo.transaction("main", message="made") as store:
                for name in "abcdef":
                    array = zarr.create_array(
                        store, name=name, shape=(2000,), chunks=(1000,), dtype="<i8"
                    )
                    array[:] = np.random.default_rng(number).integers(0, 1 << 60, 2000)
            with repo.transaction("main", message="one chunk of one array") as store:
                zarr.open_array(store, path="a", mode="r+")[:1000] = 3
            repo.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
            workspace = repo.readonly_session("main").workspace
            node = workspace.state.node("/a")
            refs = run_blocking(all_chunks(workspace.handle, workspace.state.view, node))
            chunk_id = refs.row(1).chunk_id
            assert chunk_id is not None
            driver, key = driver_of(storage), layout.chunk_key(chunk_id)
            data = bytes(run_blocking(driver.get(key)))
            run_blocking(driver.put(key, bytes(4) + data[4:]))
            [row] = repo.verify(read_chunks=True, orphans=False).findings
            assert (str(row.kind), row.path) == ("undecodable-chunk", "/a")
