"""Arrays that share manifests, written and maintained on Spark: as where each has its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from pyspark.sql import SparkSession

import icefloe
import icefloe.spark.maintenance
from icefloe import Repository
from icefloe.spark import shared_write, write_dataset
from tests.interop.test_shared_operations import SIDES, Place, arrays, history, num_manifests, seen
from tests.maintenance.test_shared_repair import NAMES, World, lose
from tests.spark.reducing import NEVER, contents, fill, job

icechunk: Any = pytest.importorskip("icechunk", minversion="2", reason="official needs 3.12")
maintenance = icefloe.spark.maintenance
SMALL = tuple(f"g/s{number}" for number in range(10))
LENGTH = 12


@pytest.fixture
def reduces(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Chooses whether tasks write manifests."""

    def choose(tasks_write: bool) -> None:
        monkeypatch.setattr(shared_write, "MIN_REDUCED_CHUNKS", 1 if tasks_write else NEVER)
        monkeypatch.setattr(shared_write, "MIN_CHUNKS_PER_PIECE", 1)

    return choose


def create(folder: Path, side: str, spec: int) -> Repository:
    """Ten small arrays that share a manifest, or not."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    config.manifest = icefloe.ManifestConfig(max_shared_refs_per_array=SIDES[side])
    storage = icefloe.local_filesystem_storage(folder, durable=False)
    repo = Repository.create(storage, config, spec_version=spec)
    with repo.transaction("main", message="made") as store:
        for number, name in enumerate(SMALL):
            array = zarr.create_array(
                store, name=name, shape=(LENGTH,), chunks=(1,), dtype="i4", fill_value=-1
            )
            array[:] = np.arange(LENGTH) + 100 * number
    return repo


def run_job(repo: Repository, message: str, *tasks: Any, names: tuple[str, ...]) -> None:
    session = repo.writable_session("main")
    job(session, *tasks, names=names)
    session.commit(message)


def story(repo: Repository) -> None:
    """Tasks overwrite, delete and lengthen some of the arrays, the driver others."""
    tasks = [fill(0, 5, 7, "g/s0"), fill(4, 9, 8, "g/s0"), fill(2, 3, -1, "g/s1")]
    run_job(repo, "two of ten", *tasks, names=("g/s0", "g/s1"))
    with repo.transaction("main", message="the driver") as store:
        zarr.open_array(store, path="g/s0", mode="r+")[11] = 30
        zarr.open_array(store, path="g/s2", mode="r+")[0] = 31
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="g/s3", mode="r+").resize((90,))
    zarr.open_array(session.store, path="g/s4", mode="r+").resize((3,))
    job(session, fill(10, 90, 9, "g/s3"), fill(1, 2, 9, "g/s4"), names=("g/s3", "g/s4"))
    session.commit("grown and shrunk")


@pytest.mark.parametrize("spec", [1, 2])
def test_tasks_write_arrays_that_share_a_manifest(
    tmp_path: Path, reduces: Callable[[bool], None], spec: int
) -> None:
    found = {}
    for side in SIDES:
        for tasks_write in (True, False):
            reduces(tasks_write)
            folder = tmp_path / f"{side} {tasks_write}"
            repo = create(folder, side, spec)
            assert num_manifests(repo) == (1 if side == "shared" else len(SMALL))
            story(repo)
            told = []
            for entry in list(repo.ancestry(branch="main"))[:-1]:
                rows = contents(repo, entry.id)
                told.append(
                    {
                        path: (shape, touched, len(refs))
                        for path, (shape, _, touched, refs) in rows.items()
                    }
                )
            official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
            values = seen(repo)
            assert seen(official) == values
            assert repo.verify(read_chunks=True).is_healthy
            assert num_manifests(repo) < len(SMALL) or side == "alone"
            found[side, tasks_write] = values, told
    expected = found["alone", False]
    assert all(one == expected for one in found.values())


@pytest.mark.parametrize("tasks_write", [True, False])
def test_few_references_are_dead_behind_a_job(
    tmp_path: Path, reduces: Callable[[bool], None], tasks_write: bool
) -> None:
    """Nobody touches the two arrays that stay, and they leave a manifest that is mostly dead."""
    reduces(tasks_write)
    repo = create(tmp_path, "shared", 2)
    old = repo.list_manifest_files(repo.lookup_branch("main"))[0].id
    names = SMALL[:8]
    run_job(repo, "most of them", *(fill(0, LENGTH, 5, name) for name in names), names=names)
    left = [file.id for file in repo.list_manifest_files(repo.lookup_branch("main"))]
    assert old not in left
    repo.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
    repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    stored = list((tmp_path / "chunks").iterdir())
    assert len(stored) == len(SMALL) * LENGTH
    values = arrays(repo.readonly_session("main").store)
    assert values["g/s9"] == [900 + at for at in range(LENGTH)]
    assert repo.verify(read_chunks=True).is_healthy


# -- with a real session


def many_variables(first: int, steps: int) -> xr.Dataset:
    random = np.random.default_rng(first)
    time = np.arange(first, first + steps)
    return xr.Dataset(
        {
            f"v{number:02}": (("time", "x"), random.integers(0, 99, (steps, 40)).astype("i4"))
            for number in range(20)
        },
        {"time": time, "x": np.arange(40)},
    )


@pytest.mark.parametrize("tasks_write", [False, True])
def test_datasets_of_many_variables(
    spark: SparkSession, tmp_path: Path, reduces: Callable[[bool], None], tasks_write: bool
) -> None:
    reduces(tasks_write)
    parts = [many_variables(0, 4), many_variables(4, 6)]
    encoding = {f"v{number:02}": {"chunks": (2, 20)} for number in range(20)}
    expected = xr.concat(parts, "time")
    for side in SIDES:
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=16)
        config.manifest = icefloe.ManifestConfig(max_shared_refs_per_array=SIDES[side])
        folder = tmp_path / side
        storage = icefloe.local_filesystem_storage(folder, durable=False)
        repo = Repository.create(storage, config)
        write_dataset(spark, parts[0], repo, encoding=encoding)
        write_dataset(spark, parts[1], repo, append_dim="time")
        found = xr.open_zarr(repo.readonly_session("main").store, consolidated=False)
        xr.testing.assert_equal(found.compute(), expected)
        official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
        assert arrays(official.readonly_session("main").store) == arrays(
            repo.readonly_session("main").store
        )
        assert repo.verify(read_chunks=True).is_healthy
        if not tasks_write:
            assert num_manifests(repo) == (1 if side == "shared" else 22)


@pytest.mark.parametrize("spec", [2, pytest.param(1, marks=pytest.mark.long)])
def test_maintenance(spark: SparkSession, tmp_path: Path, spec: int) -> None:
    """On Spark and in one process, of arrays that share manifests."""
    place = Place(tmp_path / "made", "shared")
    history(place, spec)
    repo = place.open()
    options: Any = {"virtual_sources": True, "read_chunks": True}
    assert str(maintenance.verify(spark, repo, **options)) == str(repo.verify(**options))
    later = datetime.now(UTC) + timedelta(days=1)
    repo.expire_snapshots(later, delete_expired_tags=True)
    twin = Place(tmp_path / "twin", "shared")
    shutil.copytree(tmp_path / "made" / "repository", tmp_path / "twin" / "repository")
    alone = twin.open()
    expected = arrays(repo.readonly_session("main").store)
    assert maintenance.garbage_collect(spark, repo, later) == alone.garbage_collect(later)
    maintenance.rewrite_manifests(spark, repo, "rewritten", branch="main")
    alone.rewrite_manifests("rewritten", branch="main")
    assert num_manifests(repo) == num_manifests(alone) < 5
    for reader in (place.open(), place.official()):
        assert arrays(reader.readonly_session("main").store) == expected
    assert maintenance.storage_stats(spark, repo) == alone.chunk_storage_stats()
    assert not place.open().verify(**options).findings


def test_a_lost_chunk_that_no_array_reads(spark: SparkSession, tmp_path: Path) -> None:
    """It is named by a manifest that its array has left, and others use."""
    world = World(tmp_path / "shared", "shared")
    icefloe.Repository.create(world.storage)
    with world.open().transaction("main", message="made") as store:
        for name in NAMES:
            zarr.create_array(store, name=name, shape=(12,), chunks=(4,), dtype="<i8")[:] = 1
    lost = [world.chunk_of("a/v3", 1), world.chunk_of("b/v1", 0)]
    world.write("a/v3", 2)
    repo = world.open()
    repo.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
    for path in lost:
        lose(path)
    found = maintenance.verify(spark, repo, read_chunks=True)
    assert str(found) == str(repo.verify(read_chunks=True))
    [row] = found.of_kind("missing-chunk-object")
    assert row.path == "/b/v1"
