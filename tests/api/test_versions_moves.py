"""Cherry-pick, undo, merge and squash of commits that move nodes, or meet those that do."""

from __future__ import annotations

from typing import Any

import pytest

import icefloe
from icefloe import ConflictType
from tests.api.version_cases import edit, new_repository, nodes, put, refused, values


@pytest.fixture
def movable() -> icefloe.Repository:
    """Repositories of spec version 1 cannot move nodes."""
    return new_repository(2)


def move(repo: icefloe.Repository, branch: str, *steps: tuple[str, str]) -> str:
    session = repo.rearrange_session(branch)
    for source, destination in steps:
        session.move(source, destination)
    return session.commit(f"move on {branch}")


def test_moves_are_picked_and_undone_as_moves(movable: icefloe.Repository) -> None:
    moved = move(movable, "dev", ("/g", "/h"))
    put(movable, "main", 1, 2, "g/x")
    done = movable.cherry_pick(moved, "main")
    assert done.changes.moved_nodes == [("/g", "/h"), ("/g/x", "/h/x")]
    assert values(movable, name="h/x")[1] == 2
    put(movable, "main", 2, 3, "h/x")
    assert done.snapshot_id is not None
    movable.undo(done.snapshot_id, "main")
    assert values(movable, name="g/x")[:4] == [0, 2, 3, 0]
    assert nodes(movable) == {"a", "g", "g/x"}
    assert movable.verify().is_healthy


def test_moves_and_edits_are_merged_in_one_commit(movable: icefloe.Repository) -> None:
    edit(movable, "dev", lambda top: top.create_group("archive"))
    move(movable, "dev", ("/g", "/archive/g"))
    put(movable, "dev", 0, 1, "archive/g/x")

    def add(top: Any) -> None:
        top.create_array("g/late", shape=(1,), dtype="int32")[:] = 4

    put(movable, "main", 1, 2, "g/x")
    edit(movable, "main", add)
    movable.merge("dev", "main")
    assert nodes(movable) == {"a", "archive", "archive/g", "archive/g/x", "archive/g/late"}
    assert values(movable, name="archive/g/x")[:3] == [1, 2, 0]
    assert values(movable, name="archive/g/late") == [4]
    assert movable.verify().is_healthy
    put(movable, "dev", 3, 3, "archive/g/x")
    movable.merge("dev", "main")
    assert values(movable, name="archive/g/x")[:4] == [1, 2, 0, 3]


def test_edits_follow_the_moves_of_the_branch(movable: icefloe.Repository) -> None:
    def change(top: Any) -> None:
        top["g/x"][0] = 1
        top.create_array("g/new", shape=(1,), dtype="int32")[:] = 5

    edit(movable, "dev", change)
    move(movable, "main", ("/g", "/h"), ("/h/x", "/h/y"))
    movable.merge("dev", "main")
    assert nodes(movable) == {"a", "h", "h/y", "h/new"}
    assert values(movable, name="h/y")[:2] == [1, 0]
    assert movable.verify().is_healthy


def test_a_move_over_a_deleted_array(movable: icefloe.Repository) -> None:
    def delete(top: Any) -> None:
        del top["a"]

    edit(movable, "dev", delete)
    move(movable, "dev", ("/g/x", "/a"))
    put(movable, "dev", 0, 1)
    tip = movable.lookup_branch("main")
    movable.merge("dev", "main")
    assert values(movable) == [1, 0, 0, 0, 0, 0, 0, 0]
    assert nodes(movable) == {"a", "g"}
    assert movable.verify().is_healthy
    movable.reset_branch("main", tip)
    put(movable, "main", 0, 7)
    assert refused(lambda: movable.merge("dev", "main")) == [
        (ConflictType.DeleteOfUpdatedArray, "/a")
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (("/a", "/b"), ("/a", "/c"), (ConflictType.MoveOperationCannotBeRebased, "/")),
        (("/a", "/b"), "b", (ConflictType.NewNodeConflictsWithExistingNode, "/b")),
        (("/a", "/b"), "-a", (ConflictType.ZarrMetadataUpdateOfDeletedArray, "/a")),
        (("/a", "/g/a"), "-g", (ConflictType.NewNodeInInvalidGroup, "/g")),
        ("b", ("/a", "/b"), (ConflictType.NewNodeConflictsWithExistingNode, "/b")),
    ],
)
def test_moves_in_conflict(
    movable: icefloe.Repository,
    ours: str | tuple[str, str],
    theirs: str | tuple[str, str],
    expected: tuple[ConflictType, str],
) -> None:
    for branch, change in (("dev", ours), ("main", theirs)):
        if isinstance(change, tuple):
            move(movable, branch, change)
        elif change.startswith("-"):
            edit(movable, branch, lambda top, name=change[1:]: top.__delitem__(name))  # type: ignore[misc]
        else:
            edit(movable, branch, lambda top, name=change: top.create_group(name))  # type: ignore[misc]
    assert refused(lambda: movable.merge("dev", "main")) == [expected]


def test_the_same_move_on_both_sides_is_no_conflict(movable: icefloe.Repository) -> None:
    for branch in ("dev", "main"):
        move(movable, branch, ("/g", "/h"))
    put(movable, "dev", 0, 1, "h/x")
    put(movable, "main", 1, 2, "h/x")
    movable.merge("dev", "main")
    assert values(movable, name="h/x")[:3] == [1, 2, 0]


def test_a_squash_lists_all_moves(movable: icefloe.Repository) -> None:
    start = movable.lookup_branch("main")
    move(movable, "main", ("/g", "/h"))
    move(movable, "main", ("/h", "/i"))
    put(movable, "main", 0, 1, "i/x")
    done = movable.squash("main", start)
    assert sorted(done.changes.moved_nodes) == [("/g", "/i"), ("/g/x", "/i/x")]
    assert movable.verify(orphans=False).is_healthy
