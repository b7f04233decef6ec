"""Cherry-pick, undo, merge and squash of commits that hypothesis makes up, against a model.

The model is a three-way merge of what can be seen through the store, key by key. Either that is
what the branch holds in the end, or there was a conflict, and then both sides have touched the same
part of the hierarchy. In the end official Icechunk reads the same, and commits on top.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import paths
from tests.oracle.conflict_cases import WORLD, apply, group, stored
from tests.properties.test_rebase_model import (
    State,
    _is_inside,
    changed,
    merged,
    perform,
    steps,
    touched_nodes,
)

SPECS = [pytest.param(1, marks=pytest.mark.long), 2]
Steps = list[tuple[Any, ...]]
commits = st.lists(steps("o"), min_size=1, max_size=2)
their_commits = st.lists(steps("t"), min_size=0, max_size=2)
quick = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def new_repository(spec: int) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec)
    session = repo.writable_session("main")
    apply(session, *WORLD.items())
    repo.create_branch("dev", session.commit("world"))
    return repo


def seen(repo: icefloe.Repository, branch: str) -> State:
    return stored(repo.readonly_session(branch).store)


def do(repo: icefloe.Repository, branch: str, lines: list[Steps], who: str) -> set[str]:
    """Commit them one by one. Returns the nodes that were touched."""
    nodes = set()
    for number, line in enumerate(lines):
        session = repo.writable_session(branch)
        perform(session, line, f"{who}{number}")
        nodes |= touched_nodes(session)
        session.commit(f"{who}{number}", allow_empty=True)
    return nodes


def changes_of(repo: icefloe.Repository, info: icefloe.SnapshotInfo) -> icefloe.Diff:
    return repo.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)


def tried(call: Any) -> list[icefloe.Conflict] | None:
    """The conflicts; none when the commit has landed. None when there was nothing to do."""
    try:
        call()
    except icefloe.RebaseFailedError as error:
        found: list[icefloe.Conflict] = error.conflicts
        return found
    except icefloe.SessionStateError as error:
        if error.kind != "no-changes-to-commit":
            raise
        return None
    return []


def check(
    repo: icefloe.Repository,
    conflicts: list[icefloe.Conflict] | None,
    base: State,
    ours: State,
    theirs: State,
    touched: tuple[set[str], set[str]],
) -> None:
    found = seen(repo, "main")
    if conflicts:
        assert found == theirs
        assert any(
            paths.is_within(one, other) or paths.is_within(other, one)
            for one in touched[0]
            for other in touched[1]
        ), f"{conflicts} although nothing was touched by both"
        return
    assert found == merged(base, theirs, ours)
    both = changed(base, theirs) & changed(base, ours)
    lost = [key for key in both if theirs.get(key) != found.get(key) and _is_inside(key, ours)]
    # A chunk that both lose with its array is deleted by both.
    assert [key for key in lost if key in theirs] == []
    if conflicts is None:
        assert found == theirs


@pytest.mark.parametrize("spec", SPECS)
@quick
@given(theirs=their_commits, ours=commits)
def test_a_merge_is_the_model_or_a_conflict(
    spec: int, theirs: list[Steps], ours: list[Steps]
) -> None:
    repo = new_repository(spec)
    base = seen(repo, "main")
    touched = do(repo, "dev", ours, "o"), do(repo, "main", theirs, "t")
    our_state, their_state = seen(repo, "dev"), seen(repo, "main")
    conflicts = tried(lambda: repo.merge("dev", "main"))
    check(repo, conflicts, base, our_state, their_state, touched)
    assert repo.verify().is_healthy
    if not conflicts:
        assert tried(lambda: repo.merge("dev", "main")) is None, "it was merged before"


@pytest.mark.parametrize("spec", SPECS)
@quick
@given(theirs=their_commits, before=steps("b"), ours=steps("o"))
def test_a_cherry_pick_is_the_model_or_a_conflict(
    spec: int, theirs: list[Steps], before: Steps, ours: Steps
) -> None:
    repo = new_repository(spec)
    earlier = do(repo, "dev", [before], "b")
    base = seen(repo, "dev")
    touched = do(repo, "dev", [ours], "o"), do(repo, "main", theirs, "t") | earlier
    our_state, their_state = seen(repo, "dev"), seen(repo, "main")
    conflicts = tried(lambda: repo.cherry_pick(repo.lookup_branch("dev"), "main"))
    check(repo, conflicts, base, our_state, their_state, touched)
    assert repo.verify().is_healthy


@pytest.mark.parametrize("spec", SPECS)
@quick
@given(undone=steps("o"), later=their_commits)
def test_an_undo_is_the_model_or_a_conflict(spec: int, undone: Steps, later: list[Steps]) -> None:
    repo = new_repository(spec)
    wanted = seen(repo, "main")
    ours = do(repo, "main", [undone], "o")
    snapshot, base = repo.lookup_branch("main"), seen(repo, "main")
    theirs = do(repo, "main", later, "t")
    their_state = seen(repo, "main")
    conflicts = tried(lambda: repo.undo(snapshot, "main"))
    check(repo, conflicts, base, wanted, their_state, (ours, theirs))
    assert repo.verify().is_healthy


@pytest.mark.parametrize("spec", SPECS)
@quick
@given(lines=st.lists(steps("o"), min_size=1, max_size=4), data=st.data())
def test_a_squash_changes_the_history_only(spec: int, lines: list[Steps], data: Any) -> None:
    repo = new_repository(spec)
    do(repo, "main", lines, "o")
    old = list(repo.ancestry(branch="main"))
    first = data.draw(st.integers(1, len(lines)), label="stays, counted from the tip")
    last = data.draw(st.integers(0, first - 1), label="newest to be squashed")
    before = [stored(repo.readonly_session(snapshot_id=info.id).store) for info in old[:-1]]
    diffs = [changes_of(repo, info) for info in old[:last]]
    repo.squash("main", old[first].id, until=old[last].id)
    new = list(repo.ancestry(branch="main"))
    assert [info.message for info in new[:last]] == [info.message for info in old[:last]]
    assert [info.id for info in new[last + 1 :]] == [info.id for info in old[first:]]
    after = [stored(repo.readonly_session(snapshot_id=info.id).store) for info in new[:-1]]
    assert after == before[: last + 1] + before[first:]
    assert [changes_of(repo, info) for info in new[:last]] == diffs
    times = [info.written_at for info in new]
    assert times == sorted(times, reverse=True)
    assert repo.verify(orphans=False).is_healthy


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(theirs=their_commits, ours=st.lists(steps("o"), min_size=2, max_size=3))
def test_official_reads_and_extends_what_they_make(
    spec: int, theirs: list[Steps], ours: list[Steps]
) -> None:
    icechunk = pytest.importorskip("icechunk", minversion="2")
    with TemporaryDirectory() as folder:
        storage = icefloe.local_filesystem_storage(str(Path(folder) / "repo"))
        repo = icefloe.Repository.create(storage, spec_version=spec)
        session = repo.writable_session("main")
        apply(session, *WORLD.items())
        start = session.commit("world")
        repo.create_branch("dev", start)
        do(repo, "dev", ours, "o")
        do(repo, "main", theirs, "t")
        first = [info.id for info in repo.ancestry(branch="dev")][-3]
        tried(lambda: repo.cherry_pick(first, "main"))
        tried(lambda: repo.merge("dev", "main"))
        tried(lambda: repo.undo(first, "dev"))
        if repo.lookup_branch("main") != start:
            repo.squash("main", start)
        repo.squash("dev", start, until=first)
        other = icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(Path(folder) / "repo"))
        )
        for branch in ("main", "dev"):
            assert stored(other.readonly_session(branch).store) == seen(repo, branch)
            assert [info.id for info in other.ancestry(branch=branch)] == [
                info.id for info in repo.ancestry(branch=branch)
            ]
            session = other.writable_session(branch)
            apply(session, ("official/zarr.json", group(by="official")))
            session.commit("official")
            assert "official/zarr.json" in seen(repo, branch)
        found = other.diff(from_snapshot_id=start, to_branch="main")
        assert found.new_groups == repo.diff(from_snapshot_id=start, to_branch="main").new_groups
