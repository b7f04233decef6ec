"""Operations on arrays that share manifests give what they give where each has its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("icechunk", minversion="2", reason="official needs Python 3.12")

import numpy as np
import zarr

import icefloe
from icefloe.maintenance.blame import blame_chunks, blame_nodes
from icefloe.scans.metadata_tables import plan_table
from icefloe.scans.scan import pin
from icefloe.storage.run import run_blocking
from tests.api.test_preload import Reader
from tests.legacy.migration.test_written_generations import GENERATIONS, values, write_history

icechunk: Any = pytest.importorskip("icechunk")
SPECS = pytest.mark.parametrize("spec", [1, 2])
SIDES = {"shared": 64, "alone": 0}
"""By name: how many references an array that shares manifests may have."""
LATER = timedelta(days=1)
GROUPS = ("a", "b")
PAGE = 50
"""Bytes of a chunk that is not kept inline."""


def manifests(side: str, **more: Any) -> Any:
    return icefloe.ManifestConfig(max_shared_refs_per_array=SIDES[side], **more)


@dataclass(frozen=True)
class Place:
    """A repository in a directory, beside the file that its virtual chunks are in."""

    folder: Path
    side: str

    @property
    def storage(self) -> icefloe.Storage:
        return icefloe.local_filesystem_storage(self.folder / "repository", durable=False)

    @property
    def prefix(self) -> str:
        return f"file://{self.folder}/sources/"

    def config(self, **more: Any) -> Any:
        config = icefloe.RepositoryConfig(
            inline_chunk_threshold_bytes=20, manifest=manifests(self.side), **more
        )
        store = icefloe.local_filesystem_store(f"{self.folder}/sources")
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(self.prefix, store))
        return config

    def open(self, config: Any = None) -> icefloe.Repository:
        allowed = {self.prefix: icefloe.credentials.LocalFileSystemAccess}
        return icefloe.Repository.open(self.storage, config, authorize_virtual_chunk_access=allowed)

    def official(self) -> Any:
        allowed = {self.prefix: icechunk.credentials.LocalFileSystemAccess}
        storage = icechunk.local_filesystem_storage(f"{self.folder}/repository")
        return icechunk.Repository.open(storage, authorize_virtual_chunk_access=allowed)

    def copied(self, folder: Path) -> Place:
        """The same in another folder; its virtual chunks stay where they are."""
        shutil.copytree(self.folder / "repository", folder / "repository")
        return Place(folder, self.side)


def array_of(session: Any, path: str) -> Any:
    return zarr.open_array(session.store, path=path, mode="r+")


def fill_first(session: Any, place: Place) -> None:
    """In each group arrays of all ranks and kinds of chunks; a large one beside the groups."""
    top = zarr.create_group(session.store)
    for number, group in enumerate(map(top.create_group, GROUPS)):
        made: dict[str, Any] = {"dtype": "u1", "compressors": None, "fill_value": 0}
        for turn in range(3):
            group.create_array(f"zero{turn}", shape=(), **made)[...] = turn + 1
            page = group.create_array(f"page{turn}", shape=(PAGE,), chunks=(PAGE,), **made)
            page[:] = number + turn + 1
            group.create_array(f"tiny{turn}", shape=(5,), chunks=(1,), **made)[:] = turn + 1
            cube = group.create_array(
                f"cube{turn}", shape=(2, 3, PAGE), chunks=(1, 1, PAGE), **made
            )
            cube[:] = np.arange(1, 7).reshape(2, 3, 1) * (turn + 1)
        group.create_array("far", shape=(3 * PAGE,), chunks=(PAGE,), **made)
        session.store.set_virtual_refs(
            f"{group.path}/far",
            [
                icefloe.VirtualChunkSpec([at], f"{place.prefix}{at % 2}.bin", at * PAGE, PAGE)
                for at in range(3)
            ],
        )
    top.create_array("large", shape=(80,), chunks=(1,), **made)[:] = np.arange(1, 81)


def history(place: Place, spec: int, **more: Any) -> icefloe.Repository:
    """Commits that overwrite, resize, delete and move arrays which share manifests."""
    (place.folder / "sources").mkdir(parents=True)
    for number in range(2):
        data = np.arange(3 * PAGE, dtype="u1") + number
        (place.folder / "sources" / f"{number}.bin").write_bytes(data.tobytes())
    allowed = {place.prefix: icefloe.credentials.LocalFileSystemAccess}
    repo = icefloe.Repository.create(
        place.storage,
        place.config(**more),
        spec_version=spec,
        authorize_virtual_chunk_access=allowed,
    )
    session = repo.writable_session("main")
    fill_first(session, place)
    session.commit("first")
    session = repo.writable_session("main")
    array_of(session, "a/page1")[:] = 50
    array_of(session, "a/cube1")[1] = 51
    array_of(session, "a/far")[:PAGE] = 52
    session.commit("some")
    repo.create_tag("some", repo.lookup_branch("main"))
    session = repo.writable_session("main")
    array_of(session, "a/tiny0").resize((3,))
    array_of(session, "a/tiny1").resize((9,))
    array_of(session, "a/tiny1")[5:] = 60
    array_of(session, "b/cube0").resize((2, 2, PAGE))
    session.commit("sizes")
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, mode="r+")
    del group["b/page0"]
    array_of(session, "b/page1")[:] = 0  # deletes the chunk
    array_of(session, "b/cube1")[0, 0] = 0
    session.commit("gone")
    if spec == 2:
        session = repo.rearrange_session("main")
        session.move("/a/page2", "/b/came")
        session.commit("moved")
    session = repo.writable_session("main")
    array_of(session, "large")[79] = 70
    for name in ("page1", "cube2", "zero2"):
        array_of(session, f"a/{name}")[...] = 80
    session.commit("last")
    return repo


def arrays(store: Any) -> dict[str, list[Any]]:
    members: Any = zarr.open_group(store, mode="r").members(max_depth=None)
    return {
        path: np.asarray(node[...]).tolist()
        for path, node in members
        if isinstance(node, zarr.Array)
    }


def seen(repo: Any) -> dict[str, Any]:
    """The values of all arrays in all snapshots of main."""
    return {
        entry.message: arrays(repo.readonly_session(snapshot_id=entry.id).store)
        for entry in list(repo.ancestry(branch="main"))[:-1]
    }


def num_manifests(repo: icefloe.Repository) -> int:
    return len(repo.list_manifest_files(repo.lookup_branch("main")))


Both = dict[str, Place]


@pytest.fixture(scope="module", params=[1, 2])
def both(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The same history twice. Nothing may be written to it."""
    folder = tmp_path_factory.mktemp("both")
    found = {}
    for side in SIDES:
        found[side] = Place(folder / side, side)
        history(found[side], request.param)
    return found


def test_every_snapshot_reads_alike(both: Both) -> None:
    expected = seen(both["alone"].open())
    assert len(expected) >= 5
    for place in both.values():
        assert seen(place.open()) == expected
        assert seen(place.official()) == expected
    few, many = (num_manifests(both[side].open()) for side in SIDES)
    assert few <= 6 < 20 < many


def test_both_are_healthy(both: Both) -> None:
    for place in both.values():
        report = place.open().verify(read_chunks=True, virtual_sources=True)
        assert not report.findings, str(report)
        # References that moved to another manifest are read again.
        assert report.checked["chunks read"] > 200
        assert report.checked["sources"] == 2


def blamed(repo: icefloe.Repository) -> dict[str, Any]:
    workspace = repo.readonly_session("main").workspace
    found: dict[str, Any] = {}
    for node in run_blocking(blame_nodes(repo.handle, workspace)):
        found[node.path] = [one and one.message for one in (node.metadata, node.chunks)]
        if node.chunks is not None:
            chunks = run_blocking(blame_chunks(repo.handle, workspace, node.path))
            messages = [chunks.commits[at].message for at in chunks.number.tolist()]
            found[node.path] += zip(map(tuple, chunks.index.tolist()), messages, strict=True)
    return found


def test_blame(both: Both) -> None:
    found = blamed(both["shared"].open())
    assert found == blamed(both["alone"].open())
    assert found["/a/far"] == ["first", "some", ((0,), "some"), ((1,), "first"), ((2,), "first")]
    assert [row[1] for row in found["/b/cube1"][2:]] == ["first"] * 5


def rows(repo: icefloe.Repository, name: str, **ref: Any) -> list[dict[str, Any]]:
    scan = plan_table(pin(repo, **ref), name, None)
    return [
        row for part in range(scan.num_partitions) for batch in scan.read(part)
        for row in batch.to_pylist()
    ]  # fmt: skip


@pytest.mark.parametrize("ref", [{"branch": "main"}, {"tag": "some"}], ids=str)
def test_the_tables_chunks_and_manifests(both: Both, ref: dict[str, Any]) -> None:
    found = {}
    for side, place in both.items():
        repo = place.open()
        chunks, files = rows(repo, "chunks", **ref), rows(repo, "manifests", **ref)
        held = {file["manifest_id"]: {one["path"] for one in file["arrays"]} for file in files}
        assert all(row["path"] in held[row["manifest_id"]] for row in chunks)
        for file in files:
            path = place.folder / "repository" / file["path"]
            assert file["length"] == path.stat().st_size
        plain = [
            (
                row["path"],
                row["chunk_index"],
                row["kind"],
                (row["location"] or "").replace(place.prefix, ""),
                row["offset"],
                row["length"],
            )
            for row in chunks
        ]
        boxes = [(one["path"], one["extents"]) for file in files for one in file["arrays"]]
        found[side] = sorted(plain), sorted(boxes, key=lambda box: box[0])
        alone = [len(paths) == 1 for paths in held.values()]
        assert all(alone) == (side == "alone")
    assert found["shared"] == found["alone"]
    assert len(found["shared"][0]) > 100


# -- operations that write


def written(tmp_path: Path, spec: int, **more: Any) -> Iterator[tuple[str, Place]]:
    for side in SIDES:
        place = Place(tmp_path / side, side)
        history(place, spec, **more)
        yield side, place


@SPECS
def test_repacking(tmp_path: Path, spec: int) -> None:
    found = {}
    packing = icefloe.PackingConfig(target_size_bytes=20 * PAGE)
    for side, place in written(tmp_path, spec, packing=packing):
        repo = place.open()
        expected = arrays(repo.readonly_session("main").store)
        repo.expire_snapshots(datetime.now(UTC) + LATER, delete_expired_tags=True)
        repo.garbage_collect(datetime.now(UTC) + LATER)
        repo.rewrite_manifests("without dead references", branch="main")
        repo.expire_snapshots(datetime.now(UTC) + LATER)
        repo.garbage_collect(datetime.now(UTC) + LATER)
        dead = int(repo.packed_objects().dead_bytes.sum())
        assert dead
        assert repo.repack_chunks("packed anew", branch="main", min_dead_fraction=0.05) is not None
        repo.expire_snapshots(datetime.now(UTC) + LATER)
        repo.garbage_collect(datetime.now(UTC) + LATER)
        for reader in (place.open(), place.official()):
            assert arrays(reader.readonly_session("main").store) == expected
        assert place.open().verify(read_chunks=True, virtual_sources=True).is_healthy
        found[side] = dead, int(place.open().packed_objects().dead_bytes.sum())
        assert (num_manifests(place.open()) < 5) == (side == "shared")
    assert found["alone"][1] == 0


def test_an_upgrade_of_spec_version_1(tmp_path: Path) -> None:
    found = []
    for side, place in written(tmp_path, 1):
        before = seen(place.open())
        repo = icefloe.upgrade_icechunk_repository(place.open(), dry_run=False)
        assert repo.spec_version == 2
        assert seen(place.open()) == seen(place.official()) == before
        session = place.open().writable_session("main")
        array_of(session, "b/page2")[:] = 90
        session.commit("upgraded")
        session = place.open().rearrange_session("main")
        session.move("/b/page2", "/a/went")
        session.commit("moved")
        after = seen(place.official())
        assert after == seen(place.open())
        assert (num_manifests(place.open()) < 10) == (side == "shared")
        assert place.open().verify(virtual_sources=True).is_healthy
        found.append(after)
    assert found[0] == found[1]


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1), (2, 2)])
def test_a_migration_between_spec_versions(tmp_path: Path, old: int, new: int) -> None:
    source = Place(tmp_path / "old", "shared")
    history(source, old)
    expected = seen(source.open())
    allowed = {source.prefix: icefloe.credentials.LocalFileSystemAccess}
    for side in SIDES:
        folder = tmp_path / side
        storage = icefloe.local_filesystem_storage(folder, durable=False)
        config = Place(source.folder, side).config()
        icefloe.migrate_repository(source.open(), storage, spec_version=new, config=config)
        repo = icefloe.Repository.open(storage, authorize_virtual_chunk_access=allowed)
        assert repo.spec_version == new
        assert seen(repo) == expected
        official = icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(folder)),
            authorize_virtual_chunk_access={
                source.prefix: icechunk.credentials.LocalFileSystemAccess
            },
        )
        assert seen(official) == expected


@pytest.mark.parametrize("generation", [GENERATIONS[0], GENERATIONS[2]], ids=str)
def test_a_migration_of_older_generations(tmp_path: Path, generation: Any) -> None:
    """What is committed behind it shares manifests."""
    found = []
    for side in SIDES:
        folder = tmp_path / side
        old = icefloe.Repository.create(
            icefloe.local_filesystem_storage(folder / "old", durable=False), generation=generation
        )
        expected = write_history(old, seed=3)
        target = icefloe.local_filesystem_storage(folder / "new", durable=False)
        config = icefloe.RepositoryConfig(manifest=manifests(side))
        icefloe.migrate_repository(old, target, config=config)
        assert values(icefloe.Repository.open(target)) == expected
        repo = icefloe.Repository.open(target)
        with repo.transaction("main", message="behind it") as store:
            group = zarr.open_group(store, mode="r+")
            for name in ("zero", "one", "two"):
                group[name][...] = 7  # type: ignore[index]
        assert num_manifests(repo) == (1 if side == "shared" else 3)
        official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder / "new")))
        after = values(repo)
        assert values(official) == after
        assert repo.verify(read_chunks=True).is_healthy
        found.append(after)
    assert found[0] == found[1]


# -- preload and splits


def test_a_shared_manifest_is_fetched_once_for_all_its_arrays(tmp_path: Path) -> None:
    names = [f"v{number}" for number in range(12)]
    for side in SIDES:
        storage = icefloe.local_filesystem_storage(tmp_path / side, durable=False)
        more = {"max_refs_per_shared_manifest": 16} if side == "shared" else {}
        config = icefloe.RepositoryConfig(manifest=manifests(side, **more))
        session = icefloe.Repository.create(storage, config).writable_session("main")
        for name in names:
            zarr.create_array(session.store, name=name, shape=(4,), chunks=(1,), dtype="i4")[:] = 1
        session.commit("made")
        counts = []
        every = icefloe.ManifestPreloadCondition.true()
        for condition in (icefloe.ManifestPreloadCondition.false(), every):
            preload = icefloe.ManifestPreloadConfig(preload_if=condition)
            config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(preload=preload))
            reader = Reader(tmp_path / side, config)
            reader.read(names[0])
            counts.append(len(reader.driver.manifests))
            for name in names:
                reader.read(name)
            assert len(set(reader.driver.manifests)) == len(reader.driver.manifests)
            counts.append(len(reader.driver.manifests))
        assert counts == ([1, 3, 3, 3] if side == "shared" else [1, 12, 12, 12])


def layout(repo: icefloe.Repository) -> dict[str, int]:
    """The number of manifests of each array, or 0 if it shares one."""
    state = repo.readonly_session("main").workspace.state
    files, found = state.snapshot.manifest_files, {}
    for node in state.snapshot.nodes:
        if node.array is not None:
            refs = node.array.manifests
            cells = [int(np.prod([stop - start for start, stop in ref.extents])) for ref in refs]
            total = sum(files[ref.id].num_chunk_refs for ref in refs)
            found[node.path] = 0 if total > sum(cells) else len(refs)
    return found


def cut_and_joined(folder: Path, side: str, spec: int) -> tuple[list[Any], list[dict[str, int]]]:
    """The values and the layout of small arrays after each of some changes."""
    storage = icefloe.local_filesystem_storage(folder, durable=False)
    seen, layouts = [], []

    def opened(**more: Any) -> icefloe.Repository:
        options = manifests(side, max_refs_per_manifest=16, **more)
        return icefloe.Repository.open(storage, icefloe.RepositoryConfig(manifest=options))

    def note() -> None:
        official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
        theirs = arrays(official.readonly_session("main").store)
        assert arrays(opened().readonly_session("main").store) == theirs
        assert opened().verify(read_chunks=True).is_healthy
        seen.append(theirs)
        layouts.append(layout(opened()))

    icefloe.Repository.create(storage, spec_version=spec)
    with opened().transaction("main", message="four small arrays") as store:
        for name in "pqrs":
            zarr.create_array(store, name=name, shape=(6,), chunks=(1,), dtype="i4")[:] = 1
    note()
    with opened().transaction("main", message="one grows") as store:
        array: Any = zarr.open_array(store, path="p", mode="r+")
        array.resize((40,))
        array[6:] = 2
    note()
    with opened().transaction("main", message="and shrinks") as store:
        zarr.open_array(store, path="p", mode="r+").resize((5,))
        zarr.open_array(store, path="q", mode="r+")[2] = 3
    note()
    one = icefloe.ManifestSplitCondition.name_matches("^q$")
    rule = {one: {icefloe.ManifestSplitDimCondition.Any(): 2}}
    splitting = icefloe.ManifestSplittingConfig.from_dict(rule)
    opened(splitting=splitting).rewrite_manifests("cut one", branch="main")
    note()
    opened().rewrite_manifests("as before", branch="main")
    note()
    return seen, layouts


@SPECS
def test_arrays_come_into_shared_manifests_and_leave_them_as_they_are_cut(
    tmp_path: Path, spec: int
) -> None:
    expected, alone = cut_and_joined(tmp_path / "alone", "alone", spec)
    seen, shared = cut_and_joined(tmp_path / "shared", "shared", spec)
    assert seen == expected
    assert shared[0] == shared[4] == {"/p": 0, "/q": 0, "/r": 0, "/s": 0}
    assert (shared[1]["/p"], shared[1]["/q"]) == (alone[1]["/p"], 0)
    assert alone[1]["/p"] >= 3
    assert shared[2]["/p"] == 0
    assert (shared[3]["/q"], shared[3]["/p"]) == (alone[3]["/q"], 0) == (3, 0)
