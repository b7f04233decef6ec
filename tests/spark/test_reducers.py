"""Manifests that tasks write: the same repository as when the driver writes them.

Tasks run in place here, one after the other; what Spark does in between is a sort.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from pyspark.sql import SparkSession
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from icefloe import Repository, Session, VersionSelection
from icefloe.api.session import ForkSession
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.repo.sessions import all_chunks
from icefloe.spark import Region, reducers, write_regions
from icefloe.spark.shared_write import SharedWrite, share
from icefloe.storage.run import run_blocking

Task = Callable[[ForkSession], None]
CONTAINER = "s3://bucket/"
NEVER = 1 << 60


def create(folder: Path, spec: int = 2, **splitting: Any) -> Repository:
    """Arrays are cut into splits of 16 references: four rows of `v`."""
    manifest = icefloe.ManifestConfig(max_refs_per_manifest=16, **splitting)
    config = icefloe.RepositoryConfig(manifest=manifest)
    container = icefloe.VirtualChunkContainer(CONTAINER, icefloe.s3_store(region="us-east-1"))
    config.set_virtual_chunk_container(container)
    storage = icefloe.local_filesystem_storage(folder, durable=False)
    repository = Repository.create(storage, config, spec_version=spec)
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="w")
    for name in ("v", "other"):
        group.create_array(name, shape=(32, 4), chunks=(1, 1), dtype="i4", fill_value=-1)
    group.create_array("single", shape=(), dtype="i4", fill_value=-1)
    session.commit("arrays")
    return repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return create(tmp_path / "repository")


@pytest.fixture(autouse=True)
def _tasks_write_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducers, "REDUCED_FROM", 1)


def refer(first: int, last: int, name: str = "v", salt: int = 0) -> Task:
    """A task that sets references of some rows."""

    def run(fork: ForkSession) -> None:
        row = np.arange(4 * first, 4 * last)
        table = pa.table(
            {
                "i0": row // 4,
                "i1": row % 4,
                "location": pa.array([f"{CONTAINER}{salt}/{number // 4}.nc" for number in row]),
                "offset": 10 * row,
                "length": np.full(len(row), 10),
            }
        )
        assert fork.store.set_virtual_refs_table(name, table) is None

    return run


def fill(first: int, last: int, value: int, name: str = "v") -> Task:
    """A task that writes values; the fill value deletes chunks."""

    def run(fork: ForkSession) -> None:
        zarr.open_array(fork.store, path=name, mode="r+")[first:last] = value

    return run


def run_tasks(shared: SharedWrite, tasks: Sequence[Task]) -> pa.Table:
    """What all tasks hand back; each has the fork as it came over the wire."""
    batches = []
    for task in tasks:
        side = pickle.loads(pickle.dumps(shared.tasks))
        task(side.fork)
        batches.append(side.drain())
    rows = pa.Table.from_batches(batches)
    if not shared.tasks.reductions:
        return rows
    order = [("node_id", "ascending"), ("split", "ascending")]
    side = pickle.loads(pickle.dumps(shared.tasks))
    sorted_rows = rows.sort_by(order).to_batches(max_chunksize=2)
    return pa.Table.from_batches(reducers.reduce_task(side.fork, side.reductions, sorted_rows))


def job(session: Session, *tasks: Task, names: Sequence[str] = ("v",)) -> Any:
    shared = share(session, dict.fromkeys(names, 1000))
    return shared.take(run_tasks(shared, tasks))


def values_of(session: Session, name: str = "v") -> Any:
    return zarr.open_array(session.store, path=name, mode="r")[:]


def refs_of(session: Session, name: str = "v") -> ChunkRefs:
    state = session._state
    return run_blocking(all_chunks(session._handle, state, state.node(f"/{name}")))


def contents(repository: Repository, snapshot_id: str | None = None) -> dict[str, Any]:
    """Every reference, the layout of manifests, and the log, by path."""
    key = snapshot_id or repository.lookup_branch("main")
    session = repository.readonly_session(snapshot_id=key)
    snapshot = session._state.snapshot
    log = run_blocking(repository._handles.blocking.assets.transaction_log(snapshot.id))
    seen: dict[str, Any] = {}
    for node in snapshot.nodes:
        if node.array is None:
            continue
        manifests = [
            (ref.extents, snapshot.manifest_files[ref.id].num_chunk_refs)
            for ref in node.array.manifests
        ]
        touched = log.updated_chunks.get(node.id)
        rows = refs_of(session, node.path.strip("/")).to_arrow(plain=True).to_pylist()
        seen[node.path] = (
            node.array.shape,
            manifests,
            None if touched is None else touched.tolist(),
            rows,
        )
    return seen


Story = Callable[[Repository], None]


def both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Story, **options: Any
) -> Repository:
    """Tell a story twice, and compare what comes of it. Returns the one with reducers."""
    ends = []
    for name, least in (("reduced", 1), ("plain", NEVER)):
        monkeypatch.setattr(reducers, "REDUCED_FROM", least)
        repository = create(tmp_path / name, **options)
        story(repository)
        ends.append(repository)
    # The first snapshot of a repository has no arrays, and in version 1 no log.
    commits = [[entry.id for entry in end.ancestry(branch="main")][:-1] for end in ends]
    assert len(commits[0]) == len(commits[1])
    for mine, theirs in zip(*commits, strict=True):
        assert contents(ends[0], mine) == contents(ends[1], theirs)
    return ends[0]


def commit(repository: Repository, *tasks: Task, grow: int = 0, **options: Any) -> None:
    session = repository.writable_session("main")
    if grow:
        zarr.open_array(session.store, path="v", mode="r+").resize((grow, 4))
    job(session, *tasks, **options)
    session.commit("job")


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
        first, second = share(session, {"v": 1000}), share(session, {"v": 1000})
        rows = run_tasks(second, [fill(2, 9, 4), fill(30, 31, -1)])
        first.take(run_tasks(first, [fill(0, 3, 3)]))
        second.take(rows)  # over manifests that are no longer the session's
        session.commit("two")

    both(tmp_path, monkeypatch, story)


def test_a_task_that_runs_twice_leaves_only_an_orphan(repository: Repository) -> None:
    session = repository.writable_session("main")
    shared = share(session, {"v": 1000})
    run_tasks(shared, [fill(0, 8, 3)])
    shared.take(run_tasks(shared, [fill(0, 8, 3)]))
    session.commit("once")
    assert len(refs_of(repository.readonly_session("main"))) == 32


def test_a_session_that_moved_takes_nothing(repository: Repository) -> None:
    session = repository.writable_session("main")
    shared = share(session, {"v": 1000})
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
    monkeypatch.setattr(reducers, "REDUCED_FROM", 1001)
    assert not share(repository.writable_session("main"), {"v": 1000}).tasks.reductions


def test_arrays_with_edits_are_left_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(repository: Repository) -> None:
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="v", mode="r+")[3] = 1
        assert not share(session, {"v": 1000}).tasks.reductions
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
        assert not share(session, {"v": 1000}).tasks.reductions
        job(session, fill(0, 3, 2))
        session.commit("cut")
        assert share(repository.writable_session("main"), {"v": 1000}).tasks.reductions or (
            reducers.REDUCED_FROM == NEVER
        )

    both(tmp_path, monkeypatch, story)


# -- others were faster


def others(repository: Repository, name: str, rows: slice, value: int) -> None:
    session = repository.writable_session("main")
    zarr.open_array(session.store, path=name, mode="r+")[rows] = value
    session.commit("others")


def test_manifests_stay_when_others_changed_another_array(repository: Repository) -> None:
    session = repository.writable_session("main")
    job(session, fill(0, 20, 3))
    ahead = dict(session._state.changes.prepared)
    others(repository, "other", slice(0, 2), 1)
    session.rebase(icefloe.ConflictDetector())
    assert session._state.changes.prepared == ahead
    session.commit("job")
    found = repository.readonly_session("main")
    assert len(refs_of(found)) == 80
    assert len(refs_of(found, "other")) == 8
    (prepared,) = ahead.values()
    stored = found._state.node("/v").array
    assert stored is not None
    assert stored.manifests == prepared.manifests


@pytest.mark.parametrize("rows", [slice(1, 2), slice(24, 30)])
def test_other_chunks_of_the_same_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: slice
) -> None:
    def story(repository: Repository) -> None:
        commit(repository, fill(0, 1, 1), fill(24, 32, 1))
        session = repository.writable_session("main")
        job(session, fill(2, 20, 3), fill(31, 32, -1))
        others(repository, "v", rows, 5)
        session.commit("job", rebase_with=icefloe.ConflictDetector())

    both(tmp_path, monkeypatch, story)


def test_the_same_chunk_is_a_conflict(repository: Repository) -> None:
    session = repository.writable_session("main")
    job(session, fill(2, 20, 3))
    others(repository, "v", slice(19, 21), 5)
    with pytest.raises(icefloe.RebaseFailedError) as failed:
        session.commit("job", rebase_with=icefloe.ConflictDetector())
    (conflict,) = failed.value.conflicts
    assert conflict.conflicted_chunks == [[19, at] for at in range(4)]


@pytest.mark.parametrize(
    "version", [icefloe.VersionSelection.UseOurs, icefloe.VersionSelection.UseTheirs]
)
def test_a_settled_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: VersionSelection
) -> None:
    def story(repository: Repository) -> None:
        session = repository.writable_session("main")
        job(session, fill(2, 20, 3))
        others(repository, "v", slice(19, 21), 5)
        solver = icefloe.BasicConflictSolver(on_chunk_conflict=version)
        session.commit("job", rebase_with=solver)

    both(tmp_path, monkeypatch, story)


def test_a_branch_that_was_reset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def story(repository: Repository) -> None:
        first = repository.lookup_branch("main")
        others(repository, "v", slice(28, 32), 5)
        session = repository.writable_session("main")
        job(session, fill(2, 20, 3))
        repository.reset_branch("main", first)
        session.commit("job", rebase_with=icefloe.ConflictDetector())

    both(tmp_path, monkeypatch, story)


def test_a_new_array_keeps_its_manifests(repository: Repository) -> None:
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="new", shape=(32, 4), chunks=(1, 1), dtype="i4")
    job(session, refer(0, 32, "new"), names=("new",))
    others(repository, "v", slice(0, 2), 1)
    session.commit("job", rebase_with=icefloe.ConflictDetector())
    manifests = contents(repository)["/new"][1]
    assert [number for _, number in manifests] == [16] * 8


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
