"""Squash of commits in the middle of a branch: what stays, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from tests.api.version_cases import edit, new_repository, put, values


@pytest.fixture(params=[1, 2])
def spec(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def repo(spec: int) -> icefloe.Repository:
    return new_repository(spec)


def history(repo: icefloe.Repository) -> list[tuple[str, Any, list[int]]]:
    """Message, time and values of every commit of `main` that has the array, newest first."""
    found = []
    for info in list(repo.ancestry(branch="main"))[:-1]:
        store = repo.readonly_session(snapshot_id=info.id).store
        shown: Any = zarr.open_array(store, path="a", mode="r")[:]
        found.append((info.message, info.written_at, shown.tolist()))
    return found


@pytest.mark.parametrize("at_once", [1, 2, 64])
def test_commits_after_the_squashed_ones_stay_as_they_are(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("icefloe.repo.replay._COMMITS_AT_ONCE", at_once)
    ids = [put(repo, "main", at, at + 1) for at in range(6)]
    repo.create_tag("third", ids[2])
    repo.create_branch("other", ids[5])
    before = history(repo)
    done = repo.squash("main", ids[0], until="third", message="two of them")
    after = history(repo)
    assert after[:3] == before[:3], "the later ones: message, time and content"
    assert after[3] == ("two of them", *before[3][1:])
    assert after[4:] == before[5:]
    line = list(repo.ancestry(branch="main"))
    assert (line[3].id, line[3].parent_id) == (done.snapshot_id, ids[0])
    notes = {"squashed": ids[2], "commits": 2, "contains": [ids[1]]}
    assert line[3].metadata == {"__icefloe": notes}
    assert [info.metadata["by"] for info in line[:3]] == ["main"] * 3
    assert [info.metadata["__icefloe"] for info in line[:3]] == [
        {"rewritten": old} for old in reversed(ids[3:])
    ]
    assert done.changes.updated_chunks == {"/a": [[1], [2]]}
    for at, info in enumerate(reversed(line[:3]), 3):
        changes = repo.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
        assert changes.updated_chunks == {"/a": [[at]]}
    assert repo.lookup_tag("third") == ids[2]
    assert [info.id for info in repo.ancestry(branch="other")][:6] == ids[::-1]
    assert repo.verify(orphans=False).is_healthy


def test_a_range_that_is_none_is_refused(repo: icefloe.Repository) -> None:
    first, second = put(repo, "main", 0, 1), put(repo, "main", 1, 2)
    tip = put(repo, "main", 2, 3)
    with pytest.raises(icefloe.InvalidInputError, match="comes before the one that it starts"):
        repo.squash("main", second, until=first)
    with pytest.raises(icefloe.InvalidInputError, match="which is the one that it starts after"):
        repo.squash("main", second, until=second)
    elsewhere = put(repo, "dev", 0, 1)
    with pytest.raises(icefloe.InvalidInputError, match="commits up to it cannot be squashed"):
        repo.squash("main", first, until=elsewhere)
    tried = repo.squash("main", first, until=second, dry_run=True)
    assert (tried.snapshot_id, tried.changes.updated_chunks) == (None, {"/a": [[1]]})
    assert repo.lookup_branch("main") == tip


def test_branches_that_have_the_old_commits_part_there(repo: icefloe.Repository) -> None:
    start = repo.lookup_branch("main")
    repo.create_branch("from-first", put(repo, "main", 0, 1))
    second = put(repo, "main", 0, 2)
    repo.create_branch("from-tip", put(repo, "main", 3, 3))
    put(repo, "from-first", 1, 10)
    put(repo, "from-tip", 0, 20)
    repo.squash("main", start, until=second)
    repo.merge("from-first", "main")
    repo.merge("from-tip", "main")
    assert values(repo) == [20, 10, 0, 3, 0, 0, 0, 0]


def test_a_session_opened_before_can_be_rebased(repo: icefloe.Repository) -> None:
    first, second = put(repo, "main", 0, 1), put(repo, "main", 1, 2)
    put(repo, "main", 2, 3)
    session = repo.writable_session("main")
    zarr.open_group(session.store)["a"][5] = 5  # type: ignore[index]
    repo.squash("main", first, until=second)
    session.commit("late", rebase_with=icefloe.ConflictDetector())
    assert values(repo) == [1, 2, 3, 0, 0, 5, 0, 0]


def test_a_squash_of_snapshots_that_were_collected_is_refused(tmp_path: Path, spec: int) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    edit(repo, "main", lambda top: top.create_array("a", shape=(8,), chunks=(1,), dtype="int32"))
    ids = [put(repo, "main", at, at + 1) for at in range(4)]
    repo.squash("main", ids[0], until=ids[2], dry_run=True)  # all that it reads is cached now
    other = icefloe.Repository.open(storage)
    other.expire_snapshots(other.lookup_snapshot(ids[3]).written_at)
    other.garbage_collect(datetime.now(UTC))
    with pytest.raises(icefloe.IcefloeError, match=r"have expired|neither a branch"):
        repo.squash("main", ids[0], until=ids[2])
    found = icefloe.Repository.open(storage)
    assert found.lookup_branch("main") == ids[3]
    assert found.verify(orphans=False).is_healthy
