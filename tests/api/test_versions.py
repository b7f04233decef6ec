"""Cherry-pick, undo, merge and squash: what they commit, and what they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import ConflictType
from icefloe.repo.session import all_chunks
from icefloe.storage.run import run_blocking
from tests.api.version_cases import edit, new_repository, nodes, put, refused, values

USE_OURS = icefloe.BasicConflictSolver()
USE_THEIRS = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs)


@pytest.fixture(params=[1, 2])
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    return new_repository(request.param)


# -- cherry-pick


def test_a_cherry_pick_brings_the_changes_of_one_commit(repo: icefloe.Repository) -> None:
    put(repo, "dev", 0, 1)
    picked = put(repo, "dev", 1, 2)
    tip = put(repo, "main", 2, 3)
    done = repo.cherry_pick(picked, "main")
    assert values(repo) == [0, 2, 3, 0, 0, 0, 0, 0]
    assert done.parent_id == tip
    assert done.changes.updated_chunks == {"/a": [[1]]}
    newest = next(repo.ancestry(branch="main"))
    assert (newest.id, newest.parent_id) == (done.snapshot_id, tip)
    assert newest.message == "edit dev"
    assert newest.metadata == {"by": "dev", "__icefloe": {"cherry_picked": picked}}
    assert repo.verify().is_healthy


def test_message_and_metadata_of_the_new_commit_can_be_given(repo: icefloe.Repository) -> None:
    picked = put(repo, "dev", 1, 2)
    repo.cherry_pick(picked, "main", message="mine", metadata={"who": "me"})
    newest = next(repo.ancestry(branch="main"))
    assert newest.message == "mine"
    assert newest.metadata["who"] == "me"


def test_what_the_branch_has_already_is_nothing_to_pick(repo: icefloe.Repository) -> None:
    picked = put(repo, "dev", 1, 2)
    repo.cherry_pick(picked, "main")
    with pytest.raises(icefloe.SessionStateError, match="already has these changes") as caught:
        repo.cherry_pick(picked, "main")
    assert caught.value.kind == "no-changes-to-commit"


def test_a_chunk_that_both_changed_is_a_conflict_as_in_a_rebase(repo: icefloe.Repository) -> None:
    picked = put(repo, "dev", 1, 2)
    tip = put(repo, "main", 1, 9)
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        repo.cherry_pick(picked, "main")
    [conflict] = caught.value.conflicts
    assert conflict == icefloe.Conflict(ConflictType.ChunkDoubleUpdate, "/a", [[1]])
    assert caught.value.snapshot == tip
    assert repo.lookup_branch("main") == tip
    repo.cherry_pick(picked, "main", rebase_with=USE_OURS)
    assert values(repo)[1] == 2


def test_a_solver_may_keep_what_the_branch_has(repo: icefloe.Repository) -> None:
    def change(top: Any) -> None:
        top["a"][1:3] = 2

    picked = edit(repo, "dev", change)
    put(repo, "main", 1, 9)
    repo.cherry_pick(picked, "main", rebase_with=USE_THEIRS)
    assert values(repo)[:4] == [0, 9, 2, 0]


def test_a_dry_run_reports_and_writes_nothing(repo: icefloe.Repository) -> None:
    picked = put(repo, "dev", 1, 2)
    put(repo, "main", 2, 9)
    before = list(repo.ancestry(branch="main"))
    done = repo.cherry_pick(picked, "main", dry_run=True)
    assert done.snapshot_id is None
    assert done.changes.updated_chunks == {"/a": [[1]]}
    put(repo, "main", 1, 9)
    with pytest.raises(icefloe.RebaseFailedError):
        repo.cherry_pick(picked, "main", dry_run=True)
    assert list(repo.ancestry(branch="main"))[1:] == before


def test_new_resized_and_deleted_nodes_are_picked(repo: icefloe.Repository) -> None:
    def change(top: Any) -> None:
        top.create_array("g/new", shape=(3,), chunks=(1,), dtype="int32")[:] = [1, 2, 3]
        top["a"].resize((10,))
        top["a"][9] = 9
        top["a"].attrs["units"] = "K"
        del top["g/x"]

    picked = edit(repo, "dev", change)
    put(repo, "main", 0, 5)
    repo.cherry_pick(picked, "main")
    assert values(repo) == [5, 0, 0, 0, 0, 0, 0, 0, 0, 9]
    assert values(repo, name="g/new") == [1, 2, 3]
    assert nodes(repo) == {"a", "g", "g/new"}
    assert repo.verify().is_healthy


# -- undo


def test_an_undo_of_the_tip_gives_the_state_before(repo: icefloe.Repository) -> None:
    before = values(repo)
    last = put(repo, "main", 1, 2)
    repo.undo(last, "main")
    assert values(repo) == before
    assert next(repo.ancestry(branch="main")).message == "Undo: edit main"
    repo.undo(repo.lookup_branch("main"), "main")
    assert values(repo)[1] == 2


def test_an_undo_leaves_later_commits(repo: icefloe.Repository) -> None:
    first = put(repo, "main", 1, 2)
    put(repo, "main", 2, 3)
    repo.undo(first, "main")
    assert values(repo)[:4] == [0, 0, 3, 0]
    with pytest.raises(icefloe.SessionStateError, match="already has these changes"):
        repo.undo(first, "main")


def test_an_undo_of_what_was_changed_again_is_a_conflict(repo: icefloe.Repository) -> None:
    first = put(repo, "main", 1, 2)
    put(repo, "main", 1, 3)
    assert refused(lambda: repo.undo(first, "main")) == [(ConflictType.ChunkDoubleUpdate, "/a")]
    repo.undo(first, "main", rebase_with=USE_OURS)
    assert values(repo)[1] == 0


def test_deleted_nodes_come_back_with_their_chunks(repo: icefloe.Repository) -> None:
    put(repo, "main", 1, 2, "g/x")

    def change(top: Any) -> None:
        del top["g"]

    gone = edit(repo, "main", change)
    put(repo, "main", 5, 5)
    assert nodes(repo) == {"a"}
    repo.undo(gone, "main")
    assert nodes(repo) == {"a", "g", "g/x"}
    assert values(repo, name="g/x") == [0, 2, 0, 0, 0, 0, 0, 0]
    assert values(repo)[5] == 5
    assert repo.verify().is_healthy


def test_an_array_that_was_written_to_is_not_undone_silently(repo: icefloe.Repository) -> None:
    def change(top: Any) -> None:
        top.create_array("new", shape=(3,), chunks=(1,), dtype="int32")[:] = 1

    created = edit(repo, "main", change)
    put(repo, "main", 0, 7, "new")
    found = refused(lambda: repo.undo(created, "main"))
    assert found == [(ConflictType.DeleteOfUpdatedArray, "/new")]


def test_only_commits_of_the_branch_can_be_undone(repo: icefloe.Repository) -> None:
    other = put(repo, "dev", 1, 2)
    with pytest.raises(icefloe.InvalidInputError, match="not in the history of branch 'main'"):
        repo.undo(other, "main")
    *_, first = repo.ancestry(branch="main")
    with pytest.raises(icefloe.InvalidInputError, match="is the first one"):
        repo.undo(first.id, "main")


def test_changes_of_expired_snapshots_are_not_taken_for_those_of_others(
    repo: icefloe.Repository,
) -> None:
    put(repo, "main", 0, 1)
    kept = put(repo, "main", 1, 2, "g/x")
    put(repo, "main", 2, 3)
    repo.expire_snapshots(datetime.now(UTC), keep_last=2)
    assert repo.lookup_snapshot(kept).parent_id is not None
    with pytest.raises(icefloe.IcechunkError, match="has expired"):
        repo.undo(kept, "main")
    with pytest.raises(icefloe.IcechunkError, match="has expired"):
        repo.cherry_pick(kept, "dev")


# -- merge


def test_a_merge_is_one_commit_with_all_changes(repo: icefloe.Repository) -> None:
    first = put(repo, "dev", 0, 1)
    last = put(repo, "dev", 1, 2)
    tip = put(repo, "main", 2, 3)
    done = repo.merge("dev", "main")
    assert done.parent_id == tip
    assert values(repo) == [1, 2, 3, 0, 0, 0, 0, 0]
    assert values(repo, "dev") == [1, 2, 0, 0, 0, 0, 0, 0]
    newest = next(repo.ancestry(branch="main"))
    assert newest.message == "Merge dev into main"
    assert newest.metadata == {"__icefloe": {"merged": [last], "contains": [first]}}
    assert repo.verify().is_healthy


def test_the_next_merge_takes_only_what_is_new(repo: icefloe.Repository) -> None:
    put(repo, "dev", 0, 1)
    put(repo, "main", 4, 4)
    repo.merge("dev", "main")
    put(repo, "main", 0, 10)
    put(repo, "dev", 1, 2)
    assert repo.merge("dev", "main").changes.updated_chunks == {"/a": [[1]]}
    assert values(repo) == [10, 2, 0, 0, 4, 0, 0, 0]
    assert repo.merge("main", "dev").changes.updated_chunks == {"/a": [[0], [4]]}
    assert values(repo, "dev") == values(repo)
    # The commits of the merges themselves are what is left.
    assert repo.merge("dev", "main").changes.is_empty()
    with pytest.raises(icefloe.SessionStateError, match="already contains dev"):
        repo.merge("dev", "main")


def test_a_squash_does_not_forget_what_was_merged(repo: icefloe.Repository) -> None:
    start = repo.lookup_branch("main")
    put(repo, "dev", 0, 1)
    repo.merge("dev", "main")
    put(repo, "main", 0, 10)
    repo.squash("main", start)
    put(repo, "dev", 1, 2)
    repo.merge("dev", "main")
    assert values(repo)[:3] == [10, 2, 0]


def test_a_picked_commit_is_no_conflict_for_the_merge(repo: icefloe.Repository) -> None:
    def grow(top: Any) -> None:
        top["a"].resize((9,))
        top["a"][8] = 8
        top.create_array("new", shape=(4,), chunks=(1,), dtype="int32")[:2] = 1

    def fill(top: Any) -> None:
        top["a"][7] = 7
        top["new"][2:] = 2

    picked = edit(repo, "dev", grow)
    repo.cherry_pick(picked, "main")
    edit(repo, "dev", fill)
    repo.merge("dev", "main")
    assert values(repo) == [0, 0, 0, 0, 0, 0, 0, 7, 8]
    assert values(repo, name="new") == [1, 1, 2, 2]


def test_both_sides_may_have_made_the_same_groups_and_arrays(repo: icefloe.Repository) -> None:
    def make(*at: int) -> Callable[[Any], None]:
        def change(top: Any) -> None:
            top.create_group("fresh", attributes={"title": "same"})
            array = top.create_array("fresh/y", shape=(4,), chunks=(1,), dtype="int32")
            for row in at:
                array[row] = row + 1

        return change

    edit(repo, "dev", make(0, 1))
    edit(repo, "main", make(1, 3))
    found = refused(lambda: repo.merge("dev", "main"))
    assert found == [(ConflictType.ChunkDoubleUpdate, "/fresh/y")]
    repo.merge("dev", "main", rebase_with=USE_THEIRS)
    assert values(repo, name="fresh/y") == [1, 2, 0, 4]
    put(repo, "dev", 2, 3, "fresh/y")
    repo.merge("dev", "main")
    assert values(repo, name="fresh/y") == [1, 2, 3, 4]
    assert repo.verify().is_healthy


def test_both_sides_may_have_replaced_a_node_in_the_same_way(repo: icefloe.Repository) -> None:
    def replace(top: Any) -> None:
        del top["a"]
        top.create_group("a", attributes={"now": "a group"})

    picked = edit(repo, "dev", replace)
    repo.cherry_pick(picked, "main")
    edit(repo, "dev", lambda top: top["a"].create_group("below"))
    repo.merge("dev", "main")
    assert nodes(repo) == {"a", "a/below", "g", "g/x"}
    assert repo.verify().is_healthy


def test_different_nodes_at_one_path_are_a_conflict(repo: icefloe.Repository) -> None:
    for branch in ("dev", "main"):
        edit(repo, branch, lambda top, by=branch: top.create_group("fresh", attributes={"by": by}))  # type: ignore[misc]
    found = refused(lambda: repo.merge("dev", "main"))
    assert found == [(ConflictType.NewNodeConflictsWithExistingNode, "/fresh")]


def test_a_branch_without_common_data_merges_into_an_empty_one() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    repo.create_branch("dev", repo.lookup_branch("main"))
    for branch in ("dev", "main"):
        edit(
            repo,
            branch,
            lambda top, by=branch: top.create_array(by, shape=(1,), dtype="int32"),  # type: ignore[misc]
        )
    repo.merge("dev", "main")
    assert nodes(repo) == {"dev", "main"}


def test_tags_and_snapshots_can_be_merged(repo: icefloe.Repository) -> None:
    repo.create_tag("v1", put(repo, "dev", 0, 1))
    last = put(repo, "dev", 1, 2)
    repo.merge("v1", "main")
    assert values(repo)[:2] == [1, 0]
    repo.merge(last, "main")
    assert values(repo)[:2] == [1, 2]
    with pytest.raises(icefloe.RefNotFoundError, match="neither a branch, a tag nor the id"):
        repo.merge("nothing", "main")


# -- squash


def test_a_squash_keeps_the_content_and_shortens_the_history(repo: icefloe.Repository) -> None:
    start = repo.lookup_branch("main")
    *earlier, old = [put(repo, "main", at, at + 1) for at in range(3)]
    before = values(repo)
    done = repo.squash("main", start, message="all of it")
    assert values(repo) == before
    assert done.changes.updated_chunks == {"/a": [[0], [1], [2]]}
    newest, below, *_ = repo.ancestry(branch="main")
    assert (newest.id, newest.parent_id, below.id) == (done.snapshot_id, start, start)
    assert newest.message == "all of it"
    notes = {"squashed": old, "commits": 3, "contains": sorted(earlier)}
    assert newest.metadata == {"__icefloe": notes}
    assert repo.lookup_snapshot(old).id == old, "the old snapshots are still there"
    assert repo.diff(from_snapshot_id=start, to_branch="main") == done.changes
    assert repo.verify(orphans=False).is_healthy


def test_a_squash_of_nothing_is_refused(repo: icefloe.Repository) -> None:
    with pytest.raises(icefloe.InvalidInputError, match="no commits after it"):
        repo.squash("main", repo.lookup_branch("main"))
    with pytest.raises(icefloe.InvalidInputError, match="not in the history of branch 'main'"):
        repo.squash("main", put(repo, "dev", 0, 1))


def test_a_session_opened_before_a_squash_can_be_rebased(repo: icefloe.Repository) -> None:
    start = repo.lookup_branch("main")
    put(repo, "main", 0, 1)
    session = repo.writable_session("main")
    zarr.open_group(session.store)["a"][5] = 5  # type: ignore[index]
    put(repo, "main", 1, 2)
    repo.squash("main", start)
    session.commit("late", rebase_with=icefloe.ConflictDetector())
    assert values(repo) == [1, 2, 0, 0, 0, 5, 0, 0]


# -- bytes, loops, races


def test_no_chunk_is_written_again(tmp_path: Path) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)), config)
    edit(repo, "main", lambda top: top.create_array("a", shape=(4,), chunks=(1,), dtype="int32"))
    start = repo.lookup_branch("main")
    repo.create_branch("dev", start)
    picked = put(repo, "dev", 0, 1)
    put(repo, "dev", 1, 2)
    chunks = sorted(path.name for path in (tmp_path / "chunks").iterdir())
    repo.cherry_pick(picked, "main")
    repo.merge("dev", "main")
    repo.undo(picked, "dev")
    repo.squash("main", start)
    assert sorted(path.name for path in (tmp_path / "chunks").iterdir()) == chunks


def test_checksums_of_virtual_chunks_come_along(tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(bytes(range(16)))
    url = f"file://{tmp_path}/"
    container = icefloe.VirtualChunkContainer(url, icefloe.local_filesystem_store(str(tmp_path)))
    config = icefloe.RepositoryConfig(virtual_chunk_containers={url: container})
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    edit(
        repo,
        "main",
        lambda top: top.create_array(
            "v", shape=(8,), chunks=(4,), dtype="uint8", compressors=None, fill_value=0
        ),
    )
    repo.create_branch("dev", repo.lookup_branch("main"))

    def refer(checksum: str) -> str:
        session = repo.writable_session("dev")
        session.store.set_virtual_ref(
            "v/c/0", f"{url}source.bin", offset=4, length=4, checksum=checksum
        )
        return session.commit("virtual")

    def checksums(branch: str) -> list[str | None]:
        session = repo.readonly_session(branch)
        handle, state = session.workspace
        refs = run_blocking(all_chunks(handle, state.view, state.node("/v")))
        return [refs.row(row).etag for row in range(len(refs))]

    refer("first")
    repo.merge("dev", "main")
    assert checksums("main") == ["first"]
    refer("second")  # the same range of a source that was replaced
    assert repo.merge("dev", "main").changes.updated_chunks == {"/v": [[0]]}
    assert checksums("main") == ["second"]


def test_the_twins_do_the_same_inside_a_loop(repo: icefloe.Repository) -> None:
    start = repo.lookup_branch("main")
    picked = put(repo, "dev", 0, 1)
    put(repo, "dev", 1, 2)

    async def run() -> None:
        await repo.cherry_pick_async(picked, "main")
        await repo.merge_async("dev", "main")
        await repo.undo_async(picked, "dev")
        await repo.squash_async("main", start)

    asyncio.run(run())
    assert values(repo)[:3] == [1, 2, 0]
    assert values(repo, "dev")[:3] == [0, 2, 0]
