"""`cherry-pick`, `undo`, `merge` and `squash` in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

import icefloe
from tests.cli.calling import answer, call


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    """`main` and `dev` with one commit each after a common one."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "r")))
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="int32")[:] = 0
    repo.create_branch("dev", repo.lookup_branch("main"))
    for branch, at in (("dev", 0), ("main", 1)):
        with repo.transaction(branch, message=f"on {branch}") as store:
            zarr.open_array(store, path="a")[at] = at + 1
    return repo


def values(repo: icefloe.Repository, branch: str = "main") -> list[int]:
    found = zarr.open_array(repo.readonly_session(branch).store, path="a", mode="r")[:]
    return [int(each) for each in found]  # type: ignore[union-attr]


def test_a_merge_shows_what_it_would_do_and_does_it(
    repo: icefloe.Repository, tmp_path: Path
) -> None:
    place = tmp_path / "r"
    tip = repo.lookup_branch("main")
    told = call("merge", place, "dev", "--dry-run")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("Nothing was written. A commit to main would change:")
    assert repo.lookup_branch("main") == tip
    done = answer("merge", place, "dev")
    assert done["commit"]["parent_id"] == tip
    assert done["commit"]["changes"]["updated_chunks"] == {"/a": [[0]]}
    assert values(repo) == [1, 2, 0, 0]
    again = call("merge", place, "dev")
    assert again.returncode == 7
    assert "already contains dev" in again.stderr


def test_pick_undo_and_squash(repo: icefloe.Repository, tmp_path: Path) -> None:
    place = tmp_path / "r"
    start = repo.lookup_snapshot(repo.lookup_branch("main")).parent_id
    picked = call("cherry-pick", place, "dev", "-m", "picked")
    assert picked.returncode == 0, picked.stderr
    assert f"main is now at {repo.lookup_branch('main')}." in picked.stdout
    assert values(repo) == [1, 2, 0, 0]
    assert call("undo", f"{place}@main").returncode == 0
    assert values(repo) == [0, 2, 0, 0]
    assert start is not None
    assert answer("squash", place, start)["commit"]["parent_id"] == start
    assert values(repo) == [0, 2, 0, 0]
    assert len(list(repo.ancestry(branch="main"))) == 3


def test_a_range_is_squashed_and_later_commits_follow(
    repo: icefloe.Repository, tmp_path: Path
) -> None:
    place = tmp_path / "r"
    start = repo.lookup_snapshot(repo.lookup_branch("main")).parent_id
    for name in ("v2", "v3", "v4"):
        with repo.transaction("main", message=name) as store:
            zarr.open_array(store, path="a")[2] = int(name[1])
        repo.create_tag(name, repo.lookup_branch("main"))
    assert start is not None
    swapped = call("squash", place, "v3", start)
    assert swapped.returncode == 2
    assert "name the last snapshot that is to stay first" in swapped.stderr
    told = call("squash", place, start, "v3", "-m", "all of it")
    assert told.returncode == 0, told.stderr
    found = list(repo.ancestry(branch="main"))
    assert [info.message for info in found][:3] == ["v4", "all of it", "start"]
    assert told.stdout.startswith(f"main is now at {found[0].id}. Squashed: {found[1].id}, with")
    assert values(repo) == [0, 2, 4, 0]
    assert repo.lookup_tag("v4") != found[0].id


def test_conflicts_end_with_their_own_code(repo: icefloe.Repository, tmp_path: Path) -> None:
    place = tmp_path / "r"
    with repo.transaction("main", message="same chunk") as store:
        zarr.open_array(store, path="a")[0] = 9
    refused = call("merge", place, "dev")
    assert refused.returncode == 4
    assert refused.stderr.splitlines() == [
        f"icefloe: 1 conflict with snapshot {repo.lookup_branch('main')}; nothing was changed",
        "  /a: both sides wrote chunks 0",
        (
            "  choose: --on-conflict ours takes what this command brings; --on-conflict theirs "
            "keeps what the branch has"
        ),
    ]
    assert call("merge", place, "dev", "--on-conflict", "theirs").returncode == 0
    assert values(repo) == [9, 2, 0, 0]
    repo.create_tag("v1", repo.lookup_branch("main"))
    unfit = call("undo", f"{place}@v1")
    assert unfit.returncode == 2
    assert "is no branch" in unfit.stderr


def test_conflicts_that_nobody_can_choose_say_what_to_do(
    repo: icefloe.Repository, tmp_path: Path
) -> None:
    for branch in ("main", "dev"):
        with repo.transaction(branch, message=f"attributes of {branch}") as store:
            zarr.open_array(store, path="a").attrs["unit"] = branch
    refused = call("merge", tmp_path / "r", "dev")
    assert refused.returncode == 4
    assert "/a: both sides changed its metadata" in refused.stderr
    assert "make both sides agree on the rest" in refused.stderr


def test_what_the_branch_changed_is_not_deleted_by_theirs(
    repo: icefloe.Repository, tmp_path: Path
) -> None:
    with repo.transaction("dev", message="gone") as store:
        del zarr.open_group(store)["a"]
    with repo.transaction("main", message="still in use") as store:
        zarr.open_array(store, path="a")[3] = 7
    refused = call("merge", tmp_path / "r", "dev", "--on-conflict", "theirs")
    assert refused.returncode == 4
    assert "/a: it was deleted, and the branch changed the array" in refused.stderr
    assert "--on-conflict theirs" not in refused.stderr
    assert call("merge", tmp_path / "r", "dev", "--on-conflict", "ours").returncode == 0


def test_short_ids_and_names_of_git(repo: icefloe.Repository, tmp_path: Path) -> None:
    place = tmp_path / "r"
    ids = [info.id for info in repo.ancestry(branch="main")]
    short = ids[0][:8].lower()
    for words in (
        ["log", f"{place}@{short}"],
        ["show", f"{place}@snapshot.{short}"],
        ["diff", place, ids[1][:8], short],
        ["tag", "create", place, "here", short],
        ["inspect", place, "snapshot", short],
        ["undo", place, short, "--dry-run"],
        ["cherry-pick", f"{place}@dev", short, "--dry-run"],
        ["merge", f"{place}@dev", short, "--dry-run"],
        ["squash", place, ids[-1][:8], "--dry-run"],
        ["expire", place, "--snapshot", ids[1][:8], "--dry-run"],
    ):
        done = call(*words)
        assert done.returncode == 0, (words, done.stderr)
    assert repo.lookup_tag("here") == ids[0]
    head = call("undo", place, "HEAD")
    assert (head.returncode, "the name of a branch stands for its last" in head.stderr) == (3, True)
