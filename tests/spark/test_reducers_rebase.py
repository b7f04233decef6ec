"""Manifests that tasks wrote, in a session that others were faster than."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

import icefloe
from icefloe import Repository, VersionSelection
from icefloe.spark import shared_write
from tests.spark.reducing import (
    both,
    commit,
    contents,
    create,
    fill,
    job,
    refer,
    refs_of,
)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return create(tmp_path / "repository")


@pytest.fixture(autouse=True)
def _tasks_write_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_write, "MIN_REDUCED_CHUNKS", 1)
    monkeypatch.setattr(shared_write, "MIN_CHUNKS_PER_PIECE", 1)


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


@pytest.mark.parametrize(
    ("rows", "stays"),
    [
        (slice(20, 32), True),  # splits that the job has nothing in, empty before or not
        (slice(1, 2), False),  # one whose manifest it replaced
        (slice(17, 18), False),  # one that was empty before both
    ],
)
def test_manifests_stay_when_others_changed_other_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: slice, stays: bool
) -> None:
    def story(repository: Repository) -> None:
        commit(repository, fill(0, 8, 1), fill(24, 32, 1))
        session = repository.writable_session("main")
        job(session, fill(4, 5, 2), fill(2, 4, -1), fill(10, 17, 3))
        others(repository, "v", rows, 5)
        session.rebase(icefloe.ConflictDetector())
        is_prepared = bool(session._state.changes.prepared)
        assert is_prepared == (stays and shared_write.MIN_REDUCED_CHUNKS == 1)
        assert len(session.status().updated_chunks["/v"]) == 40
        job(session, fill(16, 17, 4), fill(30, 31, 4))
        session.commit("job")

    both(tmp_path, monkeypatch, story)


def test_a_split_emptied_by_tasks_and_filled_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(repository: Repository) -> None:
        commit(repository, fill(0, 6, 1), fill(24, 32, 1))
        session = repository.writable_session("main")
        job(session, fill(4, 6, -1))
        others(repository, "v", slice(6, 8), 5)
        session.commit("job", rebase_with=icefloe.ConflictDetector())

    both(tmp_path, monkeypatch, story)


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
