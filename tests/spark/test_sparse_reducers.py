"""Manifests that tasks write in huge grids with few chunks: no more than the references ask for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

import icefloe
from icefloe import Repository, Session
from icefloe.api.session import ForkSession
from icefloe.changes.splits import ChunkSpan
from icefloe.format.nodes import ManifestRef
from icefloe.spark import Region, shared_write, write_regions
from icefloe.spark.shared_write import Reduction, _common, share
from tests.spark.reducing import Task, refs_of, run_tasks

LIMIT = 64
GRIDS = [(2**27,), (2**16, 2**16), (64, 2**26), (16, 2**13, 2**13)]


@pytest.fixture(autouse=True)
def _tasks_write_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_write, "MIN_REDUCED_CHUNKS", 1)
    monkeypatch.setattr(shared_write, "MIN_CHUNKS_PER_PIECE", 1)


def create(folder: Path, grid: Sequence[int], limit: int = LIMIT) -> Repository:
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(max_refs_per_manifest=limit))
    storage = icefloe.local_filesystem_storage(folder, durable=False)
    repository = Repository.create(storage, config)
    session = repository.writable_session("main")
    zarr.create_array(
        session.store, name="v", shape=tuple(grid), chunks=(1,) * len(grid), dtype="i4"
    )
    session.commit("an array")
    return repository


def scattered(grid: Sequence[int], number: int) -> Any:
    random = np.random.default_rng(number)
    index = np.stack([random.integers(0, side, number) for side in grid], axis=1)
    return random.permutation(np.unique(index, axis=0))


def value_of(row: Sequence[int]) -> int:
    return 1 + sum(row) % 1000


def put(index: Any) -> Task:
    """A task that writes single chunks."""

    def run(fork: ForkSession) -> None:
        array: Any = zarr.open_array(fork.store, path="v", mode="r+")
        for row in index.tolist():
            array[tuple(row)] = value_of(row)

    return run


def span_of(index: Any) -> ChunkSpan:
    return ChunkSpan.of_boxes(index, index + 1)


def job(session: Session, index: Any, span: ChunkSpan, num_tasks: int = 3) -> Reduction:
    """Write chunks by tasks; returns how the array was reduced."""
    shared = share(session, {"v": span})
    (reduction,) = shared.tasks.reductions.values()
    shared.take(run_tasks(shared, [put(part) for part in np.array_split(index, num_tasks)]))
    assert not session._state.changes.chunks
    return reduction


def manifests_of(repository: Repository) -> dict[ManifestRef, int]:
    """How many references each manifest has."""
    session = repository.readonly_session("main")
    _, array = session._state.array("/v")
    files = session._state.snapshot.manifest_files
    return {ref: files[ref.id].num_chunk_refs for ref in array.manifests}


def counts_of(repository: Repository) -> list[int]:
    return list(manifests_of(repository).values())


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_sparse_jobs_write_few_manifests_that_official_reads(
    grid: tuple[int, ...], tmp_path: Path
) -> None:
    icechunk = pytest.importorskip("icechunk", minversion="2")
    repository = create(tmp_path, grid)
    index = scattered(grid, 700)
    for first, last in ((0, 300), (300, 310), (310, 500), (500, len(index))):
        session = repository.writable_session("main")
        rows = index[first:last]
        job(session, rows, span_of(rows))
        (ahead,) = session._state.changes.prepared.values()
        assert len(ahead.manifests) <= 3 * last / LIMIT + 1, "before any are joined"
        session.commit("more")
        counts = counts_of(repository)
        assert sum(counts) == last
        assert max(counts) <= LIMIT
        assert len(counts) <= 2 * last / LIMIT + 1
    opened = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    for session in (opened.readonly_session("main"), repository.readonly_session("main")):
        array: Any = zarr.open_array(session.store, path="v", mode="r")
        assert [int(array[tuple(row)]) for row in index.tolist()] == [
            value_of(row) for row in index.tolist()
        ]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_appends_of_one_chunk_each(grid: tuple[int, ...], tmp_path: Path) -> None:
    repository = create(tmp_path, grid, limit=8)
    index = scattered(grid, 50)
    index = index[np.lexsort(index.T[::-1])]
    for last in range(10, len(index) + 1):
        first = last - 1 if last > 10 else 0
        session = repository.writable_session("main")
        before = manifests_of(repository).keys()
        job(session, index[first:last], span_of(index[first:last]), num_tasks=1)
        session.commit("more")
        after = manifests_of(repository).keys()
        assert len(before - after) <= 2, "far more than what was touched is written again"
        assert len(after) <= 2 * last / 8 + 1
    assert len(refs_of(repository.readonly_session("main"))) == 50


def test_a_job_and_the_driver_take_turns(tmp_path: Path) -> None:
    """Manifests that a commit shares lie across the pieces of the next job, which cuts them."""
    grid = (64, 2**26)
    repository = create(tmp_path, grid)
    index = scattered(grid, 900)
    cuts = 0
    for number, rows in enumerate(np.array_split(index, 6)):
        session = repository.writable_session("main")
        if number % 2:
            cuts += len(job(session, rows, span_of(rows)).cut)
        else:
            array: Any = zarr.open_array(session.store, path="v", mode="r+")
            for row in rows.tolist():
                array[tuple(row)] = value_of(row)
        session.commit("more")
        counts = counts_of(repository)
        assert max(counts) <= LIMIT
        assert len(counts) <= 2 * sum(counts) / LIMIT + 1
    assert cuts
    refs = refs_of(repository.readonly_session("main"))
    assert {tuple(row) for row in refs.index.tolist()} == {tuple(row) for row in index.tolist()}


def test_a_dense_job_in_a_corner_of_a_huge_grid_has_a_piece_for_every_split(
    tmp_path: Path,
) -> None:
    repository = create(tmp_path, (2**27,))
    first = 2**20
    index = np.arange(first, first + 10 * LIMIT).reshape(-1, 1)
    session = repository.writable_session("main")
    reduction = job(session, index, span_of(index))
    assert (reduction.pieces, reduction.num_pieces) == (reduction.split.sizes, 10)
    session.commit("dense")
    assert counts_of(repository) == [LIMIT] * 10


def test_a_job_that_sets_far_fewer_chunks_than_it_may(tmp_path: Path) -> None:
    """Tasks write a manifest for each split, since each might be full; the commit joins them."""
    repository = create(tmp_path, (2**13,))
    index = scattered((2**13,), 100)
    session = repository.writable_session("main")
    reduction = job(session, index, ChunkSpan(2**13))
    assert reduction.num_pieces == 2**13 // LIMIT
    session.commit("sparse")
    counts = counts_of(repository)
    assert sum(counts) == len(index)
    assert len(counts) <= 2 * len(index) / LIMIT + 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("grid", [(1000,), (40, 30), (9, 12, 11)], ids=str)
def test_jobs_of_any_density_anywhere_lose_nothing(
    grid: tuple[int, ...], seed: int, tmp_path: Path
) -> None:
    repository = create(tmp_path, grid, limit=12)
    random = np.random.default_rng(seed)
    expected: set[tuple[int, ...]] = set()
    for _ in range(8):
        low = np.array([random.integers(0, side) for side in grid])
        high = np.array([random.integers(at, side) + 1 for at, side in zip(low, grid, strict=True)])
        cells = np.indices(high - low).reshape(len(grid), -1).T + low
        share_of = random.choice([0.02, 0.2, 1])
        rows = cells[random.random(len(cells)) < share_of][:400]
        if not len(rows):
            continue
        session = repository.writable_session("main")
        if random.random() < 0.25:
            put(rows)(session)  # type: ignore[arg-type]
        else:
            box = tuple(zip(low.tolist(), high.tolist(), strict=True))
            job(session, rows, ChunkSpan(len(rows), box if random.random() < 0.7 else None))
        session.commit("more")
        expected |= {tuple(row) for row in rows.tolist()}
        manifests = manifests_of(repository)
        assert max(manifests.values()) <= 12
        assert sum(manifests.values()) == len(expected)
        boxes = [ref.extents for ref in manifests]
        assert not any(_common(*pair) for pair in combinations(boxes, 2)), "boxes overlap"
        refs = refs_of(repository.readonly_session("main"))
        assert {tuple(row) for row in refs.index.tolist()} == expected


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_manifest_that_reaches_far_beyond_a_dense_job_is_cut(
    grid: tuple[int, ...], tmp_path: Path
) -> None:
    repository = create(tmp_path, grid)
    sparse = scattered(grid, 40)
    session = repository.writable_session("main")
    put(sparse)(session)  # type: ignore[arg-type]
    session.commit("all over the grid")
    assert len(counts_of(repository)) == 1
    middle = np.array(grid) // 2
    index = np.array([[*middle[:-1], middle[-1] + at] for at in range(5 * LIMIT)])
    session = repository.writable_session("main")
    reduction = job(session, index, span_of(index))
    assert reduction.num_pieces <= 7
    session.commit("dense")
    counts = counts_of(repository)
    assert sum(counts) == 40 + len(index)
    assert len(counts) <= 2 * sum(counts) / LIMIT + 1
    refs = refs_of(repository.readonly_session("main"))
    expected = {tuple(row) for row in np.concatenate([sparse, index]).tolist()}
    assert {tuple(row) for row in refs.index.tolist()} == expected


def test_chunks_outside_the_box_that_a_job_named_are_refused(tmp_path: Path) -> None:
    session = create(tmp_path, (2**27,)).writable_session("main")
    shared = share(session, {"v": ChunkSpan(1000, ((0, 1000),))})
    with pytest.raises(icefloe.IcechunkError, match="the job was to write"):
        run_tasks(shared, [put(np.array([[5000]]))])


def constant(region: Region) -> Any:
    return np.full([part.stop - part.start for part in region.slices], value_of(region.start))


def test_sparse_regions_written_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    grid = (64, 2**26)
    repository = create(tmp_path, grid)
    index = scattered(grid, 400)
    for rows in (index[:150], index[150:]):
        session = repository.writable_session("main")
        regions = [tuple(slice(at, at + 1) for at in row) for row in rows.tolist()]
        report = write_regions(spark, session, "v", constant, regions=regions, num_tasks=2)
        assert report.chunks_written == len(rows)
        assert len(session._state.changes.prepared) == 1
        session.commit("regions")
    counts = counts_of(repository)
    assert sum(counts) == len(index)
    assert len(counts) <= 2 * len(index) / LIMIT + 1
    array: Any = zarr.open_array(repository.readonly_session("main").store, path="v", mode="r")
    assert [int(array[tuple(row)]) for row in index.tolist()] == [
        value_of(row) for row in index.tolist()
    ]
