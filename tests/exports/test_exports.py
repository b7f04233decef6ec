"""Copies have what the repository has, can be interrupted anywhere, and overwrite nothing."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

import icefloe
from icefloe import Repository, in_memory_storage, local_filesystem_storage
from icefloe.exports import objects, plain_zarr, repository_copy
from icefloe.exports.plain_zarr import plan_zarr
from icefloe.maintenance.progress import Progress, Reporter
from icefloe.repo.commit import batches
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.testing.faults import FaultyDriver
from tests.maintenance.test_verify import copied
from tests.maintenance.worlds import ROWS, WIDTH, World, make_world
from tests.safety.worlds import copy_of, driver_of, portrait, read_objects

PATHS = ("a/native", "inline", "a/virtual")
SPECS = pytest.mark.parametrize("spec", [1, 2])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("world")
    for spec in (1, 2):
        make_world(place / str(spec), icefloe, spec)
    return place


@pytest.fixture(params=[1, 2])
def world(made: Path, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return copied(made / str(request.param), tmp_path)


def contents(store: Any) -> dict[str, list[Any]]:
    opened: Any = zarr.open_group(store, mode="r")
    return {path: opened[path][:].tolist() for path in PATHS}


def main(repo: Repository) -> dict[str, list[Any]]:
    return contents(repo.readonly_session("main").store)


def copying(repo: Repository, driver: Driver) -> repository_copy.LocalCopy:
    """The engine of an export to this driver, which reports nothing."""
    return repository_copy.LocalCopy(objects.Places(repo.handle, driver), Reporter(lambda _: None))


def cut_everywhere(work: Callable[[FaultyDriver], Any], fresh: Callable[[], Any]) -> Any:
    """Interrupt `work` after every request to a fresh target, and do it again from there.

    Returns the last target, which was not interrupted.
    """
    number = 0
    while True:
        target = fresh()
        driver = FaultyDriver(driver_of(target), cut_after=number)
        with contextlib.suppress(icefloe.IcechunkError):
            work(driver)
        is_done = not driver.num_refused
        if not is_done:
            work(FaultyDriver(driver_of(target)))
        yield target, is_done
        if is_done:
            assert number > 3
            return
        number += 1


# -- plain Zarr


def test_a_snapshot_becomes_a_plain_store(world: World, tmp_path: Path) -> None:
    repo, target = world.open(), tmp_path / "plain.zarr"
    stages: list[Progress] = []
    report = icefloe.export_zarr(repo, str(target), progress=stages.append)
    assert contents(str(target)) == main(repo)
    assert report.objects == len(World(target, world.sources).bytes_of_all())
    assert stages[-1].done == stages[-1].total
    with pytest.raises(icefloe.InvalidInputError, match="not empty"):
        icefloe.export_zarr(repo, str(target), tag="v1")


def test_an_interrupted_export_to_zarr_goes_on(world: World) -> None:
    repo = world.open()
    expected = main(repo)
    snapshot = repo.readonly_session("main").workspace.state.snapshot
    plan = plan_zarr(snapshot)

    def work(driver: FaultyDriver) -> Any:
        return run_blocking(plain_zarr.copy_snapshot(copying(repo, driver), snapshot))

    for target, _ in cut_everywhere(work, in_memory_storage):
        found = read_objects(target)
        assert not [key for key in found if key.startswith(".icefloe")]
        assert len(found) == len(plan.documents) + 4 + ROWS + ROWS
    assert contents({key: _buffer(data) for key, data in found.items()}) == expected


def _buffer(data: bytes) -> Any:
    return zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(data)


# -- Parquet


def test_cells_become_parquet_files(world: World, tmp_path: Path) -> None:
    repo, target = world.open(), tmp_path / "cells"
    options: Any = {"group": "a", "variables": ["native"], "split_size": 4 * WIDTH * 8}
    first = icefloe.export_parquet(repo, str(target), **options)
    assert first.objects == len(list(target.glob("part-*"))) > 1
    found = pq.read_table(target)
    assert found.num_rows == ROWS * WIDTH
    assert sum(found["native"].to_pylist()) == np.sum(main(repo)["a/native"])
    # One file is lost, and what the last step wrote: only that is made again.
    (target / "_SUCCESS").unlink()
    min(target.glob("part-*")).unlink()
    assert icefloe.export_parquet(repo, str(target), **options).objects == 1
    assert pq.read_table(target).equals(found)
    with pytest.raises(icefloe.InvalidInputError, match="not empty"):
        icefloe.export_parquet(repo, str(target), **options, tag="v1")


# -- the repository with its history


def lines(repo: Repository) -> dict[str, list[str]]:
    return {
        name: [entry.id for entry in repo.ancestry(branch=name)]
        for name in sorted(repo.list_branches())
    }


def test_a_copy_is_brought_up_to_date(world: World, tmp_path: Path) -> None:
    repo = world.open()
    target = local_filesystem_storage(str(tmp_path / "copy"), durable=False)
    first = icefloe.export_repository(repo, target)
    copy = World(tmp_path / "copy", world.sources)
    assert copy.open().verify(virtual_sources=True, read_chunks=True).is_healthy
    assert (lines(copy.open()), copy.open().list_tags()) == (lines(repo), {"v1"})
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a/native", mode="r+")[5] = 99
    session.commit("later")
    repo.create_tag("v2", repo.lookup_branch("main"))
    repo.delete_tag("v1")
    repo.delete_branch("side")
    second = icefloe.export_repository(repo, target)
    assert 5 <= second.objects < first.objects + 8
    for found in (copy.open(), icefloe.Repository.open(target)):
        assert (lines(found), found.list_tags()) == (lines(repo), {"v2"})
    assert main(copy.open()) == main(repo)
    assert copy.open().verify(virtual_sources=True).is_healthy
    assert icefloe.Repository.fetch_config(target) == icefloe.Repository.fetch_config(world.storage)
    again = icefloe.export_repository(repo, target)
    assert again.objects <= len(list(repo.ancestry(branch="main")))
    if repo.spec_version == 2:
        assert again == (0, 0)


def test_a_copy_follows_expiration_and_reset(world: World, tmp_path: Path) -> None:
    repo = world.open()
    target = local_filesystem_storage(str(tmp_path / "copy"), durable=False)
    icefloe.export_repository(repo, target)
    repo.delete_tag("v1")
    repo.delete_branch("side")
    repo.reset_branch("main", list(repo.ancestry(branch="main"))[1].id)
    later = datetime.now(UTC) + timedelta(hours=1)
    repo.expire_snapshots(later)
    repo.garbage_collect(later)
    icefloe.export_repository(repo, target)
    assert lines(icefloe.Repository.open(target)) == lines(repo)
    assert icefloe.Repository.open(target).verify().is_healthy


def test_a_changed_copy_is_not_overwritten(world: World, tmp_path: Path) -> None:
    repo = world.open()
    target = local_filesystem_storage(str(tmp_path / "copy"), durable=False)
    icefloe.export_repository(repo, target)
    copy = World(tmp_path / "copy", world.sources)
    session = copy.open().writable_session("side")
    zarr.open_array(session.store, path="a/native", mode="r+")[5] = 98
    own = session.commit("in the copy")
    before = copy.bytes_of_all()
    with pytest.raises(icefloe.ConflictError, match="no earlier state"):
        icefloe.export_repository(repo, target)
    assert copy.bytes_of_all() == before
    assert copy.open().lookup_branch("side") == own


def test_another_repository_is_not_overwritten(world: World, tmp_path: Path) -> None:
    target = local_filesystem_storage(str(tmp_path / "other"), durable=False)
    other = Repository.create(target)
    with pytest.raises(icefloe.ConflictError, match="no earlier state"):
        icefloe.export_repository(world.open(), target)
    assert Repository.open(target).lookup_branch("main") == other.lookup_branch("main")


@SPECS
def test_an_interrupted_copy_is_invisible_or_whole(spec: int, tmp_path: Path) -> None:
    storage = copy_of(spec, "memory", tmp_path)
    repo = Repository.open(storage)
    expected = portrait(storage)

    def work(driver: FaultyDriver) -> Any:
        return run_blocking(repository_copy.copy_repository(copying(repo, driver)))

    for target, _ in cut_everywhere(work, in_memory_storage):
        assert portrait(target) == expected
    # The next copy is interrupted too: readers see the former state or the new one.
    former = read_objects(target)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="native", mode="r+")[0] = -1
    session.commit("more")
    newer = portrait(storage)

    def started() -> Any:
        fresh = in_memory_storage()
        run_blocking(driver_of(fresh).put_many(list(former.items())))
        return fresh

    for target, _ in cut_everywhere(work, started):
        assert portrait(target) == newer


@SPECS
def test_a_half_copied_update_shows_the_former_state(spec: int, tmp_path: Path) -> None:
    storage = copy_of(spec, "memory", tmp_path)
    repo, target = Repository.open(storage), in_memory_storage()
    run_blocking(repository_copy.copy_repository(copying(repo, driver_of(target))))
    before = portrait(target)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="native", mode="r+")[0] = -1
    session.commit("more")
    driver = FaultyDriver(driver_of(target), cut_after=8)
    with pytest.raises(icefloe.StorageError, match="cut off"):
        run_blocking(repository_copy.copy_repository(copying(repo, driver)))
    assert portrait(target) == before


@pytest.mark.parametrize("is_visible", [True, False])
def test_short_objects_of_an_interrupted_copy_are_copied_again(
    world: World, tmp_path: Path, is_visible: bool
) -> None:
    repo = world.open()
    target = local_filesystem_storage(str(tmp_path / "copy"), durable=False)
    icefloe.export_repository(repo, target)
    copy = World(tmp_path / "copy", world.sources)
    whole = copy.bytes_of_all()
    kinds = ["snapshots", "manifests", "transactions", "chunks"]
    kinds += ["overwritten"] * (repo.spec_version == 2)
    for kind in kinds:
        short = copy.files(kind)[0]
        short.write_bytes(short.read_bytes()[:-1])
    if not is_visible:
        head = "repo" if repo.spec_version == 2 else "refs/branch.main/ref.json"
        (tmp_path / "copy" / head).unlink()
    report = icefloe.export_repository(repo, target)
    assert report.objects >= len(kinds)
    noted = repository_copy.NOTE
    assert {**copy.bytes_of_all(), noted: b""} == {**whole, noted: b""}
    assert copy.open().verify(read_chunks=True, virtual_sources=True).is_healthy


def test_short_files_of_an_interrupted_export_are_written_again(
    world: World, tmp_path: Path
) -> None:
    repo, plain, cells = world.open(), tmp_path / "plain.zarr", tmp_path / "cells"
    plan = plan_zarr(repo.readonly_session("main").workspace.state.snapshot)
    driver = driver_of(local_filesystem_storage(str(plain), durable=False))
    run_blocking(plain_zarr.begin_zarr(driver, plan.markers))
    places = objects.Places(repo.handle, driver)
    run_blocking(_all_of(plain_zarr.copy_chunks(plan.markers, places, plan.manifests)))
    for short in (plain / "a" / "native" / "c").rglob("*"):
        if short.is_file():
            short.write_bytes(short.read_bytes()[:-1])
    assert icefloe.export_zarr(repo, str(plain)).objects > len(plan.documents)
    assert contents(str(plain)) == main(repo)

    options: Any = {"group": "a", "variables": ["native"], "split_size": 4 * WIDTH * 8}
    icefloe.export_parquet(repo, str(cells), **options)
    found = pq.read_table(cells)
    parts = sorted(cells.glob("part-*"))
    for short, size in zip(parts, (-1, 0), strict=False):
        short.write_bytes(short.read_bytes()[:size])
    assert icefloe.export_parquet(repo, str(cells), **options).objects == 2
    assert pq.read_table(cells).equals(found)


async def _all_of(parts: Any) -> list[Any]:
    return [part async for part in parts]


@pytest.mark.parametrize("copy", ["export_repository", "export_zarr", "export_parquet"])
@pytest.mark.parametrize("folder", ["", "chunks", "backup/copy", "../link", "../link/new"])
def test_a_copy_into_the_repository_itself_is_refused(world: World, copy: str, folder: str) -> None:
    (world.folder.parent / "link").symlink_to(world.folder)
    before = world.bytes_of_all()
    with pytest.raises(icefloe.InvalidInputError, match="inside of the repository"):
        getattr(icefloe, copy)(world.open(), str(world.folder / folder))
    assert world.bytes_of_all() == before


def test_places_inside_of_each_other() -> None:
    def s3(prefix: str | None, bucket: str = "b", **options: Any) -> icefloe.Storage:
        return icefloe.s3_storage(bucket=bucket, prefix=prefix, region="x", **options)

    assert s3("a/b").is_within(s3("a"))
    assert s3("a/").is_within(s3("a"))
    assert s3("a").is_within(s3(None))
    assert not s3("ab").is_within(s3("a"))
    assert not s3("a").is_within(s3("a/b"))
    assert not s3("a/b", bucket="c").is_within(s3("a"))
    assert not s3("a/b", endpoint_url="https://127.0.0.1:1").is_within(s3("a"))
    assert local_filesystem_storage("/data/x").is_within(local_filesystem_storage("/"))
    assert not local_filesystem_storage("/a/b").is_within(s3("a"))
    memory = in_memory_storage()
    assert memory.is_within(memory)
    assert not in_memory_storage().is_within(memory)


def test_objects_are_copied_some_at_a_time() -> None:
    sizes = [60, 60, 500, 10, 10, 10, 0]
    found = batches(range(7), sizes.__getitem__, most_size=100, most=3)
    assert list(found) == [[0], [1], [2], [3, 4, 5], [6]]


# -- virtual chunks become native


def test_virtual_chunks_become_native(world: World) -> None:
    repo = world.open()
    expected = main(repo)
    report = icefloe.materialize(repo, chunks_a_commit=4)
    assert (report.chunks, report.num_bytes) == (ROWS, ROWS * WIDTH * 8)
    assert len(report.snapshot_ids) == 2
    shutil.rmtree(world.sources)
    alone = Repository.open(world.storage)
    assert main(alone) == expected
    assert alone.verify(read_chunks=True).is_healthy
    assert icefloe.materialize(repo) == (0, 0, ())


def test_arrays_are_stored_anew(world: World) -> None:
    repo = world.open()
    expected = main(repo)
    wishes: Any = {"arrays": ["a/virtual"], "chunks": {"a/virtual": (3, 20)}}
    report = icefloe.materialize(repo, **wishes)
    assert report.chunks == 4
    shutil.rmtree(world.sources)
    store = Repository.open(world.storage).readonly_session("main").store
    assert contents(store) == expected
    assert zarr.open_array(store, path="a/virtual", mode="r").chunks == (3, 20)
    assert icefloe.materialize(repo, **wishes) == (0, 0, ())
    with pytest.raises(icefloe.InvalidInputError, match="/a/missing"):
        icefloe.materialize(repo, arrays=["a/missing"])


def test_compressors_are_changed(world: World) -> None:
    repo = world.open()
    expected = main(repo)
    icefloe.materialize(repo, compressors=zarr.codecs.ZstdCodec(level=3))
    store = repo.readonly_session("main").store
    assert contents(store) == expected
    for path in PATHS:
        assert len(zarr.open_array(store, path=path, mode="r").compressors) == 1
    assert icefloe.materialize(repo, compressors=zarr.codecs.ZstdCodec(level=3)) == (0, 0, ())


def test_writers_of_other_chunks_are_no_obstacle(world: World) -> None:
    repo, other = world.open(), world.open()
    commits: list[str] = []

    def meanwhile(progress: Progress) -> None:
        if progress.stage == "copying virtual chunks" and not commits:
            session = other.writable_session("main")
            zarr.open_array(session.store, path="a/native", mode="r+")[5] = 97
            commits.append(session.commit("beside"))

    report = icefloe.materialize(repo, progress=meanwhile)
    assert report.chunks == ROWS
    line = [entry.id for entry in repo.ancestry(branch="main")]
    assert line[:2] == [report.snapshot_ids[0], commits[0]]
    assert not list(repo.readonly_session("main").all_virtual_chunk_locations())


def test_a_lost_source_stops_it_and_is_named(world: World) -> None:
    (world.sources / "two.bin").unlink()
    repo = world.open()
    before = repo.lookup_branch("main")
    with pytest.raises(icefloe.IcechunkError, match=r"two\.bin"):
        icefloe.materialize(repo)
    assert repo.lookup_branch("main") == before
