"""Manifests that tasks write: the same repository as when the driver writes them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from icefloe import Repository
from icefloe.changes.splits import ChunkSpan
from icefloe.spark import Region, ingest, shared_write, write_regions
from icefloe.spark.shared_write import share
from icefloe.virtual import ingest_local
from tests.spark.reducing import (
    ANYWHERE,
    NEVER,
    both,
    commit,
    contents,
    create,
    fill,
    job,
    refer,
    refs_of,
    run_tasks,
    values_of,
)
from tests.virtual.datasets import dataset, to_netcdf4

pytest.importorskip("h5py", reason="h5py is an optional dependency")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return create(tmp_path / "repository")


@pytest.fixture(autouse=True)
def _tasks_write_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_write, "MIN_REDUCED_CHUNKS", 1)
    monkeypatch.setattr(shared_write, "MIN_CHUNKS_PER_PIECE", 1)


def long_story(repository: Repository) -> None:
    commit(repository, refer(0, 3), refer(3, 17), fill(20, 24, 7), fill(30, 31, -1))
    commit(repository, fill(29, 41, 9), refer(41, 50), grow=50)  # an append, and old chunks
    commit(repository, fill(4, 8, -1), fill(21, 23, -1), refer(9, 10, salt=1))  # deletions
    commit(
        repository,
        refer(0, 32, "other"),
        fill(48, 50, 3),
        lambda fork: zarr.open_array(fork.store, path="single").__setitem__(..., 5),
        names=("v", "other", "single"),
    )


@pytest.mark.parametrize("spec", [1, 2])
def test_the_result_is_the_one_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: int
) -> None:
    both(tmp_path, monkeypatch, long_story, spec=spec)


def test_splits_along_every_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes, arrays = icefloe.ManifestSplitDimCondition, icefloe.ManifestSplitCondition
    rules = icefloe.ManifestSplittingConfig.from_dict({arrays.AnyArray(): {axes.Any(): 3}})
    both(tmp_path, monkeypatch, long_story, splitting=rules)


def test_official_reads_what_tasks_wrote(repository: Repository, tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk", minversion="2")
    commit(repository, fill(0, 20, 7), fill(20, 30, 9))
    opened = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    )
    session = opened.readonly_session("main")
    values = values_of(session)
    assert np.array_equal(values[:, 0], [7] * 20 + [9] * 10 + [-1] * 2)
    first, *_ = opened.ancestry(branch="main")
    changed = opened.diff(from_snapshot_id=first.parent_id, to_snapshot_id=first.id)
    assert len(changed.updated_chunks["/v"]) == 120
    assert len(opened.list_manifest_files(first.id)) == 8


# -- before the commit


def test_the_driver_gets_manifests_instead_of_references(repository: Repository) -> None:
    session = repository.writable_session("main")
    counts = job(session, refer(0, 16), fill(16, 32, 3))
    assert counts[:2] == (128, 64)
    state = session._state
    assert not state.changes.chunks
    (ahead,) = state.changes.prepared.values()
    assert len(ahead.files) == 8
    assert len(ahead.touched) == 128


def test_a_session_sees_what_tasks_wrote(repository: Repository) -> None:
    session = repository.writable_session("main")
    job(session, fill(0, 8, 3), fill(8, 20, 4))
    assert session.has_uncommitted_changes
    assert len(session.status().updated_chunks["/v"]) == 80
    array = zarr.open_array(session.store, path="v", mode="r+")
    assert values_of(session)[:, 0].tolist() == [3] * 8 + [4] * 12 + [-1] * 12
    array[5] = 6
    array[9] = -1
    assert values_of(session)[4:10, 1].tolist() == [3, 6, 3, 3, 4, -1]
    session.commit("edited")
    found = values_of(repository.readonly_session("main"))
    assert found[:, 0].tolist() == [3] * 5 + [6, 3, 3, 4, -1] + [4] * 10 + [-1] * 12


def test_edits_of_all_kinds_lie_on_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def story(repository: Repository) -> None:
        session = repository.writable_session("main")
        job(session, fill(0, 8, 3), refer(8, 20))
        zarr.open_array(session.store, path="v", mode="r+")[7:9] = 5
        fork = session.fork()
        fill(18, 22, 6)(fork)
        session.merge(fork)
        job(session, fill(2, 4, 1), fill(31, 32, 1))
        session.commit("all of it")
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="v", mode="r+").resize((10, 4))
        job(session, fill(9, 10, 8), fill(0, 1, -1))
        session.commit("smaller")

    both(tmp_path, monkeypatch, story)


def test_a_fork_starts_from_what_tasks_wrote(repository: Repository) -> None:
    session = repository.writable_session("main")
    job(session, fill(0, 8, 3))
    fork = pickle.loads(pickle.dumps(session.fork()))
    array = zarr.open_array(fork.store, path="v", mode="r+")
    assert array[7, 0] == 3
    array[0] = 1
    session.merge(fork)
    session.commit("both")
    found = values_of(repository.readonly_session("main"))
    assert found[:, 3].tolist() == [1] + [3] * 7 + [-1] * 24


def test_a_fork_brings_home_what_tasks_wrote_for_it(repository: Repository) -> None:
    session = repository.writable_session("main")
    fork = session.fork()
    job(fork, fill(0, 8, 3), refer(8, 9), fill(31, 32, -1))
    session.merge(pickle.loads(pickle.dumps(fork)))
    assert len(session.status().updated_chunks["/v"]) == 40
    session.commit("home")
    assert len(refs_of(repository.readonly_session("main"))) == 36


def test_a_fork_cannot_cut_off_what_tasks_wrote(repository: Repository) -> None:
    session = repository.writable_session("main")
    fork = session.fork()
    document = zarr.open_array(fork.store, path="v", mode="r").metadata.to_dict()
    data = json.dumps({**document, "shape": [4, 4]}).encode()
    sync(fork.store.set("v/zarr.json", default_buffer_prototype().buffer.from_bytes(data)))
    job(session, fill(0, 8, 3))
    with pytest.raises(icefloe.IcechunkError, match="made the array smaller"):
        session.merge(fork)


def test_discarded_is_discarded(repository: Repository) -> None:
    session = repository.writable_session("main")
    job(session, fill(0, 8, 3))
    session.discard_changes()
    assert not session.has_uncommitted_changes
    assert len(refs_of(session)) == 0


def test_a_deleted_array_takes_its_manifests_along(repository: Repository) -> None:
    session = repository.writable_session("main")
    job(session, fill(0, 8, 3))
    del zarr.open_group(session.store, mode="r+")["v"]
    session.commit("gone")
    assert "/v" not in contents(repository)


def test_an_amended_commit_has_both_logs(repository: Repository) -> None:
    commit(repository, fill(0, 2, 3))
    session = repository.writable_session("main")
    job(session, fill(1, 9, 4))
    session.amend("more")
    _, _, touched, rows = contents(repository)["/v"]
    assert (len(touched), len(rows)) == (36, 36)


def test_two_jobs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def story(repository: Repository) -> None:
        session = repository.writable_session("main")
        first, second = (
            share(session, {"v": ANYWHERE}),
            share(session, {"v": ANYWHERE}),
        )
        rows = run_tasks(second, [fill(2, 9, 4), fill(30, 31, -1)])
        first.take(run_tasks(first, [fill(0, 3, 3)]))
        second.take(rows)  # over manifests that are no longer the session's
        session.commit("two")

    both(tmp_path, monkeypatch, story)


def test_a_task_that_runs_twice_leaves_only_an_orphan(repository: Repository) -> None:
    session = repository.writable_session("main")
    shared = share(session, {"v": ANYWHERE})
    run_tasks(shared, [fill(0, 8, 3)])
    shared.take(run_tasks(shared, [fill(0, 8, 3)]))
    session.commit("once")
    assert len(refs_of(repository.readonly_session("main"))) == 32


def test_a_session_that_moved_takes_nothing(repository: Repository) -> None:
    session = repository.writable_session("main")
    shared = share(session, {"v": ANYWHERE})
    rows = run_tasks(shared, [fill(0, 8, 3)])
    commit(repository, fill(0, 1, 3, "other"), names=("other",))
    session.rebase(icefloe.ConflictDetector())
    with pytest.raises(icefloe.IcechunkError, match="write again"):
        shared.take(rows)
    assert not session.has_uncommitted_changes


# -- when the driver writes the manifests after all


def test_small_jobs_are_left_to_the_driver(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_write, "MIN_REDUCED_CHUNKS", 1001)
    assert not share(repository.writable_session("main"), {"v": ANYWHERE}).tasks.reductions


def test_tiny_splits_are_left_to_the_driver(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_write, "MIN_CHUNKS_PER_PIECE", 17)
    planned = share(
        repository.writable_session("main"), {"v": ChunkSpan(128), "other": ChunkSpan(136)}
    ).tasks.reductions
    assert [reduction.path for reduction in planned.values()] == ["/other"]


def test_arrays_with_edits_are_left_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(repository: Repository) -> None:
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="v", mode="r+")[3] = 1
        assert not share(session, {"v": ANYWHERE}).tasks.reductions
        job(session, fill(3, 9, 4), fill(0, 1, 2, "other"), names=("v", "other"))
        session.commit("edits first")

    both(tmp_path, monkeypatch, story)


def test_manifests_to_be_cut_are_left_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(repository: Repository) -> None:
        whole = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(max_refs_per_manifest=0))
        uncut = Repository.open(repository.storage, whole)
        session = uncut.writable_session("main")
        zarr.open_array(session.store, path="v", mode="r+")[:] = 1
        session.commit("one manifest")
        session = repository.writable_session("main")
        assert not share(session, {"v": ANYWHERE}).tasks.reductions
        job(session, fill(0, 3, 2))
        session.commit("cut")
        assert share(repository.writable_session("main"), {"v": ANYWHERE}).tasks.reductions or (
            shared_write.MIN_REDUCED_CHUNKS == NEVER
        )

    both(tmp_path, monkeypatch, story)


# -- on Spark


def row_numbers(region: Region) -> np.ndarray[Any, Any]:
    rows, columns = np.ogrid[region.slices]
    return (rows * 4 + columns).astype("i4")


def test_regions_written_by_spark(spark: SparkSession, repository: Repository) -> None:
    session = repository.writable_session("main")
    report = write_regions(spark, session, "v", row_numbers, region_shape=(3, 4))
    assert report.chunks_written == 128
    assert len(session._state.changes.prepared) == 1
    session.commit("regions")
    found = values_of(repository.readonly_session("main"))
    assert np.array_equal(found, np.arange(128).reshape(32, 4))
    assert [number for _, number in contents(repository)["/v"][1]] == [16] * 8


@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
def test_files_ingested_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    paths = [tmp_path / f"{part}.nc" for part in range(5)]
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    files = icefloe.local_filesystem_store(str(tmp_path))
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(max_refs_per_manifest=4))
    container = icefloe.VirtualChunkContainer(f"file://{tmp_path}/", files)
    config.set_virtual_chunk_container(container)
    found = []
    for name in ("spark", "here"):
        storage = icefloe.local_filesystem_storage(tmp_path / name, durable=False)
        repository = Repository.create(storage, config)
        if name == "spark":
            first = ingest(spark, paths[:3], repository, concat_dim="time", mode="virtual")
            ingest(spark, paths, repository, concat_dim="time", mode="virtual", append=True)
        else:
            ingest_local(paths[:3], repository, concat_dim="time", mode="virtual")
            ingest_local(paths, repository, concat_dim="time", mode="virtual", append=True)
        found.append(repository)
    assert first.refs_written > 0
    assert len(contents(found[0])) > 3
    for mine, theirs in zip(*(end.ancestry(branch="main") for end in found), strict=True):
        ours, expected = contents(found[0], mine.id), contents(found[1], theirs.id)
        for array, (shape, _, touched, rows) in expected.items():
            if not array.startswith("/.icefloe"):
                assert ours[array][0] == shape, array
                assert ours[array][2:] == (touched, rows), array
