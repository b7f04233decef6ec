"""Rules beyond those of Icechunk: keep the last few, what tags lead to, branch by branch, by id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import zarr

import icefloe
from icefloe import Keep

SPECS = pytest.mark.parametrize("spec", [1, 2])


def repository(spec: int) -> tuple[icefloe.Repository, dict[str, str]]:
    """`main` has m1 to m5, `side` leaves it after m2 with s1 to s3, tag `t` is at m2."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec)
    ids: dict[str, str] = {}

    def commit(branch: str, message: str) -> None:
        session = repo.writable_session(branch)
        ids[message] = session.commit(message, allow_empty=True)

    for number in (1, 2):
        commit("main", f"m{number}")
    repo.create_branch("side", ids["m2"])
    repo.create_tag("t", ids["m2"])
    for number in (3, 4, 5):
        commit("main", f"m{number}")
        commit("side", f"s{number - 2}")
    return repo, ids


def messages(repo: icefloe.Repository, branch: str) -> list[str]:
    opened = icefloe.Repository.open(repo.storage)
    return [entry.message for entry in opened.ancestry(branch=branch)][:-1]


def names(ids: dict[str, str], released: set[str]) -> set[str]:
    return {name for name, one in ids.items() if one in released}


@SPECS
def test_the_last_few_of_every_branch_are_kept(spec: int) -> None:
    repo, ids = repository(spec)
    would = repo.expire_snapshots(keep_last=2, dry_run=True)
    assert messages(repo, "main") == ["m5", "m4", "m3", "m2", "m1"]
    released = repo.expire_snapshots(keep_last=2)
    assert released == would
    assert names(ids, released) == {"m1", "m3", "s1"}
    assert messages(repo, "main") == ["m5", "m4", "m2"]  # the tag's snapshot stays, so it is next
    assert messages(repo, "side") == ["s3", "s2", "m2"]
    assert repo.lookup_tag("t") == ids["m2"]


@SPECS
def test_what_tags_lead_to_is_kept(spec: int) -> None:
    repo, ids = repository(spec)
    released = repo.expire_snapshots(datetime.now(UTC) + timedelta(days=1), keep_tagged=True)
    assert names(ids, released) == {"m3", "m4", "s1", "s2"}
    assert messages(repo, "main") == ["m5", "m2", "m1"]


@SPECS
def test_branches_have_rules_of_their_own(spec: int) -> None:
    repo, ids = repository(spec)
    released = repo.expire_snapshots(branches={"side": Keep(last=1)})
    assert names(ids, released) == {"s1", "s2"}  # what main has as well stays
    assert messages(repo, "side") == ["s3", "m2", "m1"]
    assert messages(repo, "main") == ["m5", "m4", "m3", "m2", "m1"]
    since = repo.lookup_snapshot(ids["m4"]).written_at
    released = repo.expire_snapshots(branches={"main": Keep(since=since)})
    assert names(ids, released) == {"m3"}  # side has no rule, and keeps m1 and m2
    with pytest.raises(icefloe.InvalidInputError, match="nowhere"):
        repo.expire_snapshots(branches={"nowhere": Keep(last=1)})


@SPECS
def test_single_snapshots_expire_by_id(spec: int) -> None:
    repo, ids = repository(spec)
    assert repo.expire_snapshots(snapshot_ids=[ids["m3"], ids["s2"]]) == {ids["m3"], ids["s2"]}
    assert messages(repo, "main") == ["m5", "m4", "m2", "m1"]
    assert messages(repo, "side") == ["s3", "s1", "m2", "m1"]
    for wrong, match in ((ids["m5"], "branch 'main'"), (ids["m2"], "tag 't'")):
        with pytest.raises(icefloe.InvalidInputError, match=match):
            repo.expire_snapshots(snapshot_ids=[wrong])
    with pytest.raises(icefloe.InvalidInputError, match="first of its history"):
        repo.expire_snapshots(snapshot_ids=[icefloe.FIRST_SNAPSHOT_ID.text])
    with pytest.raises(icefloe.SnapshotNotFoundError):
        repo.expire_snapshots(snapshot_ids=["0" * 20])


def test_rules_that_say_nothing_or_too_much_are_refused() -> None:
    repo, ids = repository(2)
    with pytest.raises(icefloe.InvalidInputError, match="nothing says"):
        repo.expire_snapshots()
    with pytest.raises(icefloe.InvalidInputError, match="alone"):
        repo.expire_snapshots(snapshot_ids=[ids["m1"]], keep_last=2)
    with pytest.raises(icefloe.InvalidInputError, match="keep_last"):
        repo.expire_snapshots(keep_last=-1)
    with pytest.raises(TypeError, match="zone"):
        repo.expire_snapshots(datetime.now())  # noqa: DTZ005 - the point of it


def test_what_changed_can_still_be_told_after_single_snapshots_expired() -> None:
    """The logs of those that left are read with those that stayed, also after a collection."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    ids = []
    for number in range(4):
        session = repo.writable_session("main")
        zarr.create_group(session.store, path=f"g{number}")
        ids.append(session.commit(f"c{number}"))
    expected = repo.diff(from_snapshot_id=ids[0], to_snapshot_id=ids[3]).new_groups
    repo.expire_snapshots(snapshot_ids=[ids[1], ids[2]])
    repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    opened = icefloe.Repository.open(repo.storage)
    assert opened.diff(from_snapshot_id=ids[0], to_snapshot_id=ids[3]).new_groups == expected
