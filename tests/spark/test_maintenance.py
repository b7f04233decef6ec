"""Maintenance on Spark gives the answers of one process."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

import icefloe.spark.maintenance
from icefloe import Repository, local_filesystem_storage
from tests.maintenance.damages import DAMAGES, flip, orphans
from tests.maintenance.test_verify import copied
from tests.maintenance.worlds import ROWS, World, make_world

maintenance = icefloe.spark.maintenance
PATHS = ("a/native", "inline", "a/virtual")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("world")
    for spec in (1, 2):
        make_world(place / str(spec), icefloe, spec)
    return place


@pytest.fixture
def world(made: Path, tmp_path: Path) -> World:
    return copied(made / "2", tmp_path)


def contents(store: Any, *paths: str) -> list[Any]:
    return [zarr.open_array(store, path=path, mode="r")[:] for path in paths or PATHS]


def equal(found: list[Any], expected: list[Any]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


DAMAGED = [
    (2, ["missing_chunk", "flipped_log", "wrong_count", "changed_source", "missing_ancestor"]),
    pytest.param(2, [], marks=pytest.mark.long),
    pytest.param(1, [], marks=pytest.mark.long),
    pytest.param(1, ["cut_chunk", "missing_manifest", "missing_source"], marks=pytest.mark.long),
]


@pytest.mark.parametrize(("spec", "names"), DAMAGED)
def test_verify(
    spark: SparkSession, made: Path, tmp_path: Path, spec: int, names: list[str]
) -> None:
    world = copied(made / str(spec), tmp_path)
    known = set(world.files("chunks"))
    session = world.open().writable_session("main")
    zipped = zarr.create_array(session.store, name="z", shape=(80,), chunks=(40,), dtype="<i8")
    zipped[:] = np.arange(80) ** 3
    session.commit("compressed")
    for name in names:
        DAMAGES[name][0](world)
    if names:  # last, because a damage may delete one of the two chunks
        # The magic number of the frame: elsewhere a flipped bit may decode to other values.
        flip(min(set(world.files("chunks")) - known), at=0)
    orphans(world)
    (world.folder / "chunks" / "notes.txt").write_text("not ours")
    zarr.create_array(str(world.folder), shape=(2,), chunks=(1,), dtype="i4")[:] = 1  # past it
    repo = world.open()
    options: Any = {"virtual_sources": True, "read_chunks": True}
    expected = repo.verify(**options)
    found = maintenance.verify(spark, repo, **options)
    assert found.findings == expected.findings
    assert found.counts == expected.counts
    assert list(found.checked.items()) == list(expected.checked.items())
    assert str(found) == str(expected)
    assert bool(found.of_kind("undecodable-chunk")) == bool(names)
    strays = {one.object for one in found.of_kind("object-of-unknown-name")}
    assert strays == {"chunks/notes.txt", "zarr.json", "c/0", "c/1"}


@pytest.mark.parametrize("spec", [2, pytest.param(1, marks=pytest.mark.long)])
def test_garbage_collect(spark: SparkSession, made: Path, tmp_path: Path, spec: int) -> None:
    world = copied(made / str(spec), tmp_path / "spark")
    repo = world.open()
    repo.reset_branch("main", list(repo.ancestry(branch="main"))[1].id)
    orphans(world)
    twin = World(tmp_path / "twin", world.sources)
    shutil.copytree(world.folder, twin.folder)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert maintenance.storage_stats(spark, repo) == repo.chunk_storage_stats()
    dry = maintenance.garbage_collect(spark, repo, later, dry_run=True)
    assert dry == repo.garbage_collect(later, dry_run=True)
    before = world.bytes_of_all()
    assert maintenance.garbage_collect(spark, repo, later) == twin.open().garbage_collect(later)
    named = ("chunks/", "manifests/", "snapshots/", "transactions/")
    left = {key for key in world.bytes_of_all() if key.startswith(named)}
    assert left == {key for key in twin.bytes_of_all() if key.startswith(named)}
    assert left < before.keys()
    assert world.open().verify(virtual_sources=True).is_healthy
    assert maintenance.storage_stats(spark, repo) == world.open().chunk_storage_stats()


@pytest.mark.long
def test_an_unreadable_manifest_stops_a_collection(spark: SparkSession, world: World) -> None:
    DAMAGES["flipped_manifest"][0](world)
    added = orphans(world)
    with pytest.raises(Exception, match="manifests/"):
        maintenance.garbage_collect(spark, world.open(), datetime.now(UTC) + timedelta(hours=1))
    assert all((world.folder / key).exists() for key in added)


@pytest.mark.long
def test_rewrite_manifests(spark: SparkSession, tmp_path: Path) -> None:
    splitting = icefloe.ManifestConfig(max_refs_per_manifest=0)
    config = icefloe.RepositoryConfig(manifest=splitting, inline_chunk_threshold_bytes=0)
    for name in ("spark", "alone"):
        repo = Repository.create(local_filesystem_storage(str(tmp_path / name)), config)
        session = repo.writable_session("main")
        array = zarr.create_array(
            session.store, name="x", shape=(64,), chunks=(2,), dtype="<i4", compressors=None
        )
        array[:50] = np.arange(1, 51)
        session.commit("filled")
    rules = icefloe.ManifestSplittingConfig.from_dict(
        {icefloe.ManifestSplitCondition.AnyArray(): {icefloe.ManifestSplitDimCondition.Any(): 5}}
    )
    changed = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(splitting=rules))
    found = []
    for name in ("spark", "alone"):
        storage = local_filesystem_storage(str(tmp_path / name))
        repo = Repository.open(storage, changed)
        if name == "spark":
            tip = maintenance.rewrite_manifests(spark, repo, "cut", branch="main")
        else:
            tip = repo.rewrite_manifests("cut", branch="main")
        assert repo.verify().is_healthy
        session = repo.readonly_session(snapshot_id=tip)
        node, _ = session.workspace.state.array("/x")
        assert node.array is not None
        boxes = sorted(ref.extents for ref in node.array.manifests)
        metadata = repo.lookup_snapshot(tip).metadata
        found.append((boxes, contents(session.store, "x")[0].tolist(), metadata))
    assert found[0] == found[1]
    assert len(found[0][0]) == 5


@pytest.mark.long
def test_materialize(spark: SparkSession, world: World) -> None:
    expected = contents(world.open().readonly_session("main").store)
    repo = world.open()
    report = maintenance.materialize(spark, repo, chunks_a_commit=4)
    assert (report.chunks, len(report.snapshot_ids)) == (ROWS, 2)
    shutil.rmtree(world.sources)
    found = contents(Repository.open(world.storage).readonly_session("main").store)
    assert equal(found, expected)
    assert Repository.open(world.storage).verify().is_healthy
    assert maintenance.materialize(spark, repo) == (0, 0, ())


@pytest.mark.long
def test_materialize_is_that_of_one_process(
    spark: SparkSession, made: Path, tmp_path: Path
) -> None:
    wishes: Any = {"chunks": {"a/virtual": (4, 10)}, "arrays": ["a/virtual", "a/native"]}
    found = []
    for name in ("spark", "alone"):
        repo = copied(made / "1", tmp_path / name).open()
        expected = contents(repo.readonly_session("main").store)
        if name == "spark":
            report = maintenance.materialize(spark, repo, **wishes)
        else:
            report = icefloe.materialize(repo, **wishes)
        assert equal(contents(repo.readonly_session("main").store), expected)
        messages = [entry.message for entry in repo.ancestry(branch="main")]
        found.append((report.chunks, report.num_bytes, messages))
    assert found[0] == found[1]


@pytest.mark.long
def test_materialize_stores_arrays_anew(spark: SparkSession, world: World) -> None:
    expected = contents(world.open().readonly_session("main").store)
    repo = world.open()
    maintenance.materialize(spark, repo, arrays=["a/virtual"], chunks={"a/virtual": (3, 20)})
    shutil.rmtree(world.sources)
    store = Repository.open(world.storage).readonly_session("main").store
    assert equal(contents(store), expected)
    assert zarr.open_array(store, path="a/virtual", mode="r").chunks == (3, 20)
    again = maintenance.materialize(
        spark, repo, arrays=["a/virtual"], chunks={"a/virtual": (3, 20)}
    )
    assert again == (0, 0, ())


@pytest.mark.long
def test_export_zarr(spark: SparkSession, world: World, tmp_path: Path) -> None:
    session = world.open().readonly_session("main")
    target = tmp_path / "plain.zarr"
    lost = world.sources / "two.bin"
    data = lost.read_bytes()
    lost.unlink()
    with pytest.raises(Exception, match=r"two\.bin"):
        maintenance.export_zarr(spark, world.open(), f"file://{target}")
    assert not (target / "zarr.json").exists()
    lost.write_bytes(data)
    os.utime(lost, (1_700_000_000, 1_700_000_000))
    report = maintenance.export_zarr(spark, world.open(), f"file://{target}")
    assert report.objects < 6 + 4 + 6 + 5  # parts that had arrived are not copied again
    found: Any = zarr.open_group(str(target), mode="r")
    assert equal([found[path][:] for path in PATHS], contents(session.store))
    assert not list(target.glob(".icefloe-export/**/*.0"))
    with pytest.raises(icefloe.InvalidInputError, match="not empty"):
        maintenance.export_zarr(spark, world.open(), f"file://{target}", tag="v1")


@pytest.mark.long
@pytest.mark.parametrize("spec", [1, 2])
def test_export_repository(spark: SparkSession, made: Path, tmp_path: Path, spec: int) -> None:
    world = copied(made / str(spec), tmp_path)
    repo = world.open()
    places = {name: tmp_path / name for name in ("copy", "twin")}
    targets = {name: local_filesystem_storage(str(places[name]), durable=False) for name in places}
    copy = World(places["copy"], world.sources)
    for turn in range(2):
        report = maintenance.export_repository(spark, repo, targets["copy"])
        assert report == icefloe.export_repository(repo, targets["twin"])
        assert copy.bytes_of_all() == World(places["twin"], world.sources).bytes_of_all()
        assert copy.open().verify(virtual_sources=True).is_healthy
        lines = [
            [entry.id for entry in one.open().ancestry(branch="main")] for one in (world, copy)
        ]
        assert lines[0] == lines[1]
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a/native", mode="r+")[5] = 99 + turn
        session.commit("later")
    for kind in ("snapshots", "manifests", "transactions", "chunks"):
        short = copy.files(kind)[0]
        short.write_bytes(short.read_bytes()[:-1])
    maintenance.export_repository(spark, repo, targets["copy"])
    assert copy.open().verify(read_chunks=True, virtual_sources=True).is_healthy
    with pytest.raises(icefloe.InvalidInputError, match="inside of the repository"):
        maintenance.export_repository(spark, repo, str(world.folder / "below"))
    session = copy.open().writable_session("main")
    zarr.open_array(session.store, path="a/native", mode="r+")[5] = 98
    session.commit("in the copy")
    with pytest.raises(icefloe.ConflictError, match="no earlier state"):
        maintenance.export_repository(spark, repo, targets["copy"])


@pytest.mark.long
def test_export_parquet(spark: SparkSession, world: World, tmp_path: Path) -> None:
    place, alone = tmp_path / "cells", tmp_path / "alone"
    options: Any = {"group": "a", "variables": ["native"], "split_size": 600}
    first = maintenance.export_parquet(spark, world.open(), str(place), **options)
    assert first == icefloe.export_parquet(world.open(), str(alone), **options)
    assert first.objects == len(list(place.glob("part-*"))) > 1
    for path in sorted(alone.glob("[!.]*")):
        assert (place / path.name).read_bytes() == path.read_bytes()
    found = spark.read.parquet(str(place))
    total = found.selectExpr("sum(native)").collect()[0][0]
    assert total == contents(world.open().readonly_session("main").store, "a/native")[0].sum()
    # One file is short, and what the last step wrote is lost: only that is made again.
    (place / "_SUCCESS").unlink()
    short = min(place.glob("part-*"))
    short.write_bytes(short.read_bytes()[:-1])
    assert maintenance.export_parquet(spark, world.open(), str(place), **options).objects == 1
    assert (place / "_SUCCESS").exists()
    with pytest.raises(icefloe.InvalidInputError, match="not empty"):
        maintenance.export_parquet(spark, world.open(), str(place), **options, tag="v1")
