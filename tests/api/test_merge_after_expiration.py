"""Merges, rebases and squashes of branches whose fork point has expired, and the warning before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.api.maintenance_values import ForkPointWarning
from icefloe.changes.conflicts import BasicConflictSolver, VersionSelection
from tests.api.version_cases import edit, new_repository, nodes, put, values

FAR = timedelta(days=1)
SPECS = pytest.mark.parametrize("spec", [1, 2])
OURS = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
EXPIRED = "expired and cannot be read any more"

Cut = Callable[[icefloe.Repository, datetime], Any]


def by_age(repo: icefloe.Repository, cut: datetime) -> set[str]:
    return repo.expire_snapshots(cut)


def by_number(repo: icefloe.Repository, cut: datetime) -> set[str]:
    return repo.expire_snapshots(keep_last=1)


def by_id(repo: icefloe.Repository, cut: datetime) -> set[str]:
    """All but the oldest commit, which is left as an older snapshot that both have."""
    names = {info.id for name in ("main", "dev") for info in repo.ancestry(branch=name)}
    tips = {repo.lookup_branch(name) for name in ("main", "dev")}
    oldest = {info.id for info in list(repo.ancestry(branch="main"))[-2:]}
    return repo.expire_snapshots(snapshot_ids=names - tips - oldest)


def fresh(spec: int) -> icefloe.Repository:
    return new_repository(spec, inline_bytes=64 if spec == 1 else 2)


CUTS = pytest.mark.parametrize("cut", [by_age, by_number, by_id])


def remove(name: str) -> Callable[[Any], None]:
    def change(top: Any) -> None:
        del top[name]

    return change


def forked(spec: int) -> tuple[icefloe.Repository, datetime]:
    """`dev` parts from `main` after a commit that both have; then both go on.

    `main` deletes an array and raises a value that the fork point has.
    """
    repo = fresh(spec)
    repo.delete_branch("dev")
    put(repo, "main", 1, 1)
    repo.create_branch("dev", repo.lookup_branch("main"))
    put(repo, "dev", 0, 10)
    edit(repo, "main", remove("g/x"))
    put(repo, "main", 1, 2)
    cut = datetime.now(UTC)
    put(repo, "dev", 3, 30)
    put(repo, "main", 2, 20)
    return repo, cut


def collected(repo: icefloe.Repository) -> icefloe.Repository:
    repo.garbage_collect(datetime.now(UTC) + FAR)
    return icefloe.Repository.open(repo.storage)


def expire_quietly(cut: Cut, repo: icefloe.Repository, instant: datetime) -> None:
    with pytest.warns(ForkPointWarning, match="branch 'dev'"):
        cut(repo, instant)


# -- merging


@SPECS
@CUTS
@pytest.mark.parametrize("solver", [None, OURS])
def test_a_merge_after_the_fork_point_expired_reverts_nothing(
    spec: int, cut: Cut, solver: Any
) -> None:
    repo, instant = forked(spec)
    expire_quietly(cut, repo, instant)
    if spec == 1 and cut is by_age:  # as official does it: nothing says what expired
        with pytest.raises(icefloe.SnapshotNotFoundError, match="keep_fork_points"):
            repo.merge("dev", "main", rebase_with=solver)
        assert values(repo) == [0, 2, 20, 0, 0, 0, 0, 0]
        return
    repo.merge("dev", "main", rebase_with=solver)  # its files are still there
    assert values(repo) == [10, 2, 20, 30, 0, 0, 0, 0]
    assert nodes(repo) == {"a", "g"}
    assert repo.verify(orphans=False).is_healthy


@SPECS
@CUTS
@pytest.mark.parametrize("solver", [None, OURS])
def test_a_merge_after_the_fork_point_was_collected_is_refused(
    spec: int, cut: Cut, solver: Any
) -> None:
    repo, instant = forked(spec)
    expire_quietly(cut, repo, instant)
    repo = collected(repo)
    for dry_run in (True, False):
        with pytest.raises(icefloe.SnapshotNotFoundError, match=EXPIRED):
            repo.merge("dev", "main", rebase_with=solver, dry_run=dry_run)
    assert values(repo) == [0, 2, 20, 0, 0, 0, 0, 0]
    assert nodes(repo) == {"a", "g"}
    # Another way is named, and works.
    put(repo, "main", 0, values(repo, "dev")[0])


@SPECS
@pytest.mark.parametrize("rules", [{}, {"keep_last": 1}])
def test_a_kept_fork_point_serves_merges_after_a_collection(
    spec: int, rules: dict[str, Any]
) -> None:
    repo, instant = forked(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repo.expire_snapshots(instant, keep_fork_points=True, **rules)
    repo = collected(repo)
    repo.merge("dev", "main", rebase_with=OURS)
    assert values(repo) == [10, 2, 20, 30, 0, 0, 0, 0]
    assert nodes(repo) == {"a", "g"}
    assert repo.verify(orphans=False).is_healthy


@SPECS
def test_a_merge_whose_base_is_known_is_never_refused(spec: int) -> None:
    repo, instant = forked(spec)
    with pytest.warns(ForkPointWarning):
        repo.expire_snapshots(instant)
    repo = collected(repo)
    repo.create_branch("later", repo.lookup_branch("main"))  # parts from what is left
    put(repo, "later", 5, 50)
    put(repo, "main", 6, 60)
    repo.merge("later", "main")
    assert values(repo)[5:7] == [50, 60]
    repo.merge("main", "later")
    assert values(repo, "later") == values(repo)


@SPECS
def test_a_branch_that_did_not_go_on_can_always_be_merged_into(spec: int) -> None:
    repo = fresh(spec)
    for at in range(3):
        put(repo, "dev", at, at + 1)
    repo.expire_snapshots(datetime.now(UTC) - FAR)
    repo.expire_snapshots(keep_last=2)
    repo = collected(repo)
    repo.merge("dev", "main")
    assert values(repo)[:3] == [1, 2, 3]


def test_a_fork_point_that_is_still_the_tip_of_a_branch_is_found() -> None:
    """Official drops it from the history of the other branch, and keeps its id."""
    repo = new_repository(2)
    for at in range(2):
        put(repo, "main", at, 1)
    repo.reset_branch("dev", repo.lookup_branch("main"))
    put(repo, "dev", 4, 4)
    cut = datetime.now(UTC)
    put(repo, "dev", 5, 5)
    repo.expire_snapshots(cut)
    assert len(list(repo.ancestry(branch="dev"))) == 2
    repo = collected(repo)
    repo.merge("dev", "main")
    assert values(repo) == [1, 1, 0, 0, 4, 5, 0, 0]


# -- what was merged before


@SPECS
@CUTS
def test_a_merge_that_expired_is_not_forgotten(spec: int, cut: Cut) -> None:
    repo = fresh(spec)
    put(repo, "dev", 0, 1)
    edit(repo, "dev", lambda top: top.create_group("made"))
    repo.merge("dev", "main")
    edit(repo, "main", remove("made"))
    put(repo, "main", 0, 2)
    instant = datetime.now(UTC)
    put(repo, "dev", 3, 3)
    put(repo, "main", 4, 4)
    expire_quietly(cut, repo, instant)
    if spec == 1 and cut is by_age:
        with pytest.raises(icefloe.SnapshotNotFoundError, match=EXPIRED):
            repo.merge("dev", "main", rebase_with=OURS)
    else:
        repo.merge("dev", "main", rebase_with=OURS)  # only what came after the first merge
        assert values(repo) == [2, 0, 0, 3, 4, 0, 0, 0]
    assert "made" not in nodes(repo)


def test_a_merge_that_official_expired_is_found_in_backups(tmp_path: Path) -> None:
    official: Any = pytest.importorskip(
        "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
    )
    place = str(tmp_path / "repository")
    storage = icefloe.local_filesystem_storage(place, durable=False)
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    top = zarr.group(session.store)
    top.create_array("a", shape=(8,), chunks=(1,), dtype="int32")[:] = 0
    repo.create_branch("dev", session.commit("start"))
    made = edit(repo, "dev", lambda top: top.create_group("made"))
    repo.create_tag("made", made)  # the base of the second merge stays, the first merge does not
    repo.merge("dev", "main")
    edit(repo, "main", remove("made"))
    cut = datetime.now(UTC)
    put(repo, "dev", 3, 3)
    put(repo, "main", 4, 4)
    theirs = official.Repository.open(official.local_filesystem_storage(place))
    theirs.expire_snapshots(older_than=cut)
    theirs.garbage_collect(datetime.now(UTC))
    repo = icefloe.Repository.open(storage)
    repo.merge("dev", "main")
    assert values(repo) == [0, 0, 0, 3, 4, 0, 0, 0]
    assert "made" not in nodes(repo)
    theirs = official.Repository.open(official.local_filesystem_storage(place))
    seen: Any = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    assert seen["a"][:].tolist() == values(repo)
    assert "made" not in seen


@SPECS
def test_a_squash_that_lost_its_commits_still_contains_them(spec: int) -> None:
    repo = fresh(spec)
    start = repo.lookup_branch("main")
    edit(repo, "main", lambda top: top.create_group("made"))
    repo.reset_branch("dev", repo.lookup_branch("main"))
    edit(repo, "main", remove("made"))
    repo.squash("main", start)
    put(repo, "dev", 1, 1)
    repo = collected(repo)  # the old commits after the fork point are gone
    repo.merge("dev", "main")
    assert values(repo)[1] == 1
    assert "made" not in nodes(repo)


@SPECS
def test_a_squash_of_commits_with_expired_ancestors_still_contains_those(spec: int) -> None:
    repo, _ = forked(spec)
    with pytest.warns(ForkPointWarning):
        repo.expire_snapshots(keep_last=2)
    *_, first = repo.ancestry(branch="main")
    repo.squash("main", first.id)
    merged = collected(repo) if spec == 1 else repo
    with pytest.raises(icefloe.SnapshotNotFoundError) if spec == 1 else warnings.catch_warnings():
        merged.merge("dev", "main", rebase_with=OURS)
    assert nodes(repo) == {"a", "g"}
    assert values(repo)[1:3] == [2, 20]


@SPECS
def test_the_newest_snapshot_that_two_branches_merged_is_not_collected(spec: int) -> None:
    repo = fresh(spec)
    edit(repo, "dev", lambda top: top.create_group("made"))
    repo.create_branch("other", repo.lookup_branch("main"))
    put(repo, "other", 1, 1)
    put(repo, "main", 2, 2)
    for branch in ("main", "other"):
        repo.merge("dev", branch)
    repo.delete_branch("dev")
    edit(repo, "main", remove("made"))
    put(repo, "other", 3, 3)
    repo = collected(repo)
    if spec == 1:
        with pytest.raises(icefloe.SnapshotNotFoundError, match=EXPIRED):
            repo.merge("other", "main")
    else:
        repo.merge("other", "main")
        assert values(repo)[:4] == [0, 1, 2, 3]
    assert "made" not in nodes(repo)


# -- sessions


@SPECS
@CUTS
def test_a_session_finds_conflicts_with_commits_that_expired(spec: int, cut: Cut) -> None:
    """Also one that was opened at the first snapshot, which every expiration leaves."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec)
    late = repo.writable_session("main")
    zarr.create_array(late.store, name="a", shape=(8,), chunks=(1,), dtype="int32")[:] = 7
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="int32")[:] = 0
    repo.create_branch("dev", session.commit("an array"))
    for at in range(3):
        instant = datetime.now(UTC)
        put(repo, "main", at, at)
    repo.delete_branch("dev")
    repo.create_branch("dev", repo.lookup_branch("main"))
    cut(repo, instant)
    with pytest.raises(icefloe.RebaseFailedError):
        late.commit("late", rebase_with=icefloe.ConflictDetector())
    assert values(repo) == [0, 1, 2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("is_collected", [False, True])
def test_a_session_of_version_1_compares_values_where_logs_are_gone(is_collected: bool) -> None:
    repo = new_repository(1)
    late = repo.writable_session("main")
    for at in (1, 2):
        array: Any = zarr.open_array(late.store, path="a", mode="r+")
        array[at] = -1
    put(repo, "main", 1, 1)
    put(repo, "main", 3, 3)
    repo.create_tag("start", late.snapshot_id)
    repo.expire_snapshots(keep_last=1, keep_tagged=True)
    if is_collected:
        icefloe.Repository.open(repo.storage).garbage_collect(datetime.now(UTC) - FAR)
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        late.rebase(icefloe.ConflictDetector())
    assert [conflict.conflicted_chunks for conflict in caught.value.conflicts] == [[[1]]]


# -- the warning


@SPECS
def test_an_expiration_warns_before_it_cuts_branches_apart(spec: int) -> None:
    repo, instant = forked(spec)
    repo.create_tag("v1", repo.lookup_branch("dev"))
    for dry_run in (True, False):
        with pytest.warns(ForkPointWarning) as caught:
            found = repo.expire_snapshots(instant, dry_run=dry_run)
        assert found
        [warning] = caught
        for name in ("branch 'dev'", "branch 'main'", "tag 'v1'", "keep_fork_points=True"):
            assert name in str(warning.message)
        assert warning.filename == __file__


@SPECS
def test_the_number_of_kept_snapshots_alone_keeps_no_fork_points(spec: int) -> None:
    repo, _ = forked(spec)
    with pytest.warns(ForkPointWarning):
        repo.expire_snapshots(keep_last=2, dry_run=True)
    kept = repo.expire_snapshots(keep_last=2, keep_fork_points=True, dry_run=True)
    assert kept < repo_expired(repo)


def repo_expired(repo: icefloe.Repository) -> set[str]:
    with pytest.warns(ForkPointWarning):
        return repo.expire_snapshots(keep_last=2, dry_run=True)


@SPECS
def test_an_expiration_that_cuts_nothing_apart_does_not_warn(spec: int) -> None:
    repo = fresh(spec)
    for at in range(3):
        put(repo, "main", at, at)
    repo.reset_branch("dev", repo.lookup_branch("main"))
    cut = datetime.now(UTC)
    put(repo, "main", 5, 5)
    repo.create_tag("now", repo.lookup_branch("main"))
    assert repo.expire_snapshots(cut, dry_run=True) if spec == 2 else True
    if spec == 2:
        repo.expire_snapshots(cut)
    else:  # version 1 cannot say that `dev` is an ancestor of `main`
        with pytest.warns(ForkPointWarning, match="branch 'dev', branch 'main' and tag 'now'"):
            repo.expire_snapshots(cut)


@SPECS
def test_refs_that_are_deleted_are_not_cut_apart(spec: int) -> None:
    repo, _ = forked(spec)
    repo.expire_snapshots(datetime.now(UTC) + FAR, delete_expired_branches=True)
    assert repo.list_branches() == {"main"}


def test_programs_of_the_original_get_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.display._Package.name", "icechunk")
    repo, instant = forked(2)
    assert repo.expire_snapshots(instant)
    assert "branch 'dev'" in caplog.text
