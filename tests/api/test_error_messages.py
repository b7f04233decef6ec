"""What errors say: each thing once, which ref is meant, and what to do."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
import zarr

import icefloe
from icefloe import Repository, in_memory_storage
from icefloe.errors import FIRST_WORDS, branch_moved
from icefloe.xarray import to_icechunk

FIRST = icefloe.FIRST_SNAPSHOT_ID.text


@pytest.fixture(params=[1, 2])
def repo(request: pytest.FixtureRequest) -> Repository:
    made = Repository.create(in_memory_storage(), spec_version=request.param)
    made.create_tag("v1", write(made, 1))
    return made


def write(repo: Repository, value: int, branch: str = "main", message: str = "m") -> str:
    session = repo.writable_session(branch)
    change(session, value)
    return session.commit(message)


def change(session: icefloe.Session, value: int) -> None:
    array = zarr.create_array(session.store, name="a", shape=(2,), dtype="i8", overwrite=True)
    array[:] = value


# -- a session that was committed

AFTER_COMMIT: dict[str, Callable[[icefloe.Session], object]] = {
    "a write": lambda session: zarr.open_array(session.store, path="a").__setitem__(0, 9),
    "a commit": lambda session: session.commit("again"),
    "an amendment": lambda session: session.amend("again"),
    "a flush": lambda session: session.flush("again"),
    "a rebase": lambda session: session.rebase(icefloe.ConflictDetector()),
    "a discard": lambda session: session.discard_changes(),
    "a move": lambda session: session.move("/a", "/b"),
    "a shift": lambda session: session.shift_array("/a", (1,)),
    "a fork": lambda session: session.fork(),
    "a writable store": lambda session: session.store.with_read_only(read_only=False),
    "virtual references": lambda session: session.store.set_virtual_ref(
        "a/c/0", "s3://bucket/key", offset=0, length=1
    ),
}


@pytest.mark.parametrize("what", AFTER_COMMIT)
def test_a_committed_session_says_so(repo: Repository, what: str) -> None:
    if repo.spec_version == 1 and what in ("an amendment", "a move"):
        return  # these need spec version 2
    session = repo.writable_session("main")
    change(session, 2)
    kept = zarr.open_group(session.store)
    made = session.commit("done")
    with pytest.raises(icefloe.ReadOnlyError, match="this session was committed as"):
        kept.attrs["a"] = 1
    with pytest.raises(icefloe.IcechunkError) as caught:
        AFTER_COMMIT[what](session)
    said = f"this session was committed as {made}; open a new one: repo.writable_session('main')"
    assert said in str(caught.value)
    if isinstance(caught.value, icefloe.ReadOnlyError):
        assert "read-only" not in str(caught.value).lower().replace("read only", "read-only")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_session_that_only_reads_does_not_speak_of_commits(repo: Repository) -> None:
    session = repo.readonly_session("main")
    with pytest.raises(icefloe.ReadOnlyError) as caught:
        zarr.open_array(session.store, path="a")[0] = 9
    text = "cannot write to read-only store: open a writable_session to change data"
    assert str(caught.value) == text


# -- conflicts


def test_a_commit_conflict_says_branch_expected_found_and_what_to_do(repo: Repository) -> None:
    late = repo.writable_session("main")
    before = late.snapshot_id
    change(late, 3)
    after = write(repo, 2)
    with pytest.raises(icefloe.ConflictError) as caught:
        late.commit("late")
    error = caught.value
    assert (error.expected_parent, error.actual_parent) == (before, after)
    assert str(error) == (
        f"Failed to commit to branch 'main', which moved meanwhile: expected {before}, found "
        f"{after}. Rebase the session and commit again, or commit with "
        "rebase_with=ConflictDetector()"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_reset_conflict_says_branch_expected_and_found(repo: Repository) -> None:
    tip = repo.lookup_branch("main")
    with pytest.raises(icefloe.ConflictError) as caught:
        repo.reset_branch("main", tip, from_snapshot_id=FIRST)
    text = str(caught.value)
    assert text.startswith("branch update conflict: 'main' is not where it was expected")
    assert f"expected {FIRST}, found {tip}" in text
    assert "Some(" not in text


def test_a_conflict_error_made_by_hand_has_the_words_of_the_original() -> None:
    text = 'Failed to commit, expected parent: Some("a"), actual parent: Some("b")'
    assert str(icefloe.ConflictError("a", "b")) == text
    none = "Failed to commit, expected parent: None, actual parent: None"
    assert str(icefloe.ConflictError()) == none
    text = "Rebase failed on snapshot X: 0 conflicts found"
    assert str(icefloe.RebaseFailedError("X", [])) == text
    assert "found no snapshot" in str(branch_moved("main", "a", None))


def test_a_failed_rebase_tells_conflicts_in_sentences(repo: Repository) -> None:
    late = repo.writable_session("main")
    zarr.open_array(late.store, path="a")[:] = 5
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 6
    session.commit("first")
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        late.commit("late", rebase_with=icefloe.ConflictDetector())
    text = str(caught.value)
    assert "1 conflict found: /a: both sides wrote chunks 0. Give a solver" in text
    assert "conflict_type" not in text


def test_every_kind_of_conflict_has_a_sentence() -> None:
    for kind in icefloe.ConflictType:
        assert str(icefloe.Conflict(kind, "/a")).startswith("/a: "), kind


# -- nothing is said twice

TWICE: dict[str, tuple[Callable[[Repository], object], str]] = {
    "a write to a reader": (
        lambda repo: zarr.open_array(repo.readonly_session("main").store, path="a").__setitem__(
            0, 1
        ),
        "read-only",
    ),
    "a commit of a reader": (
        lambda repo: repo.readonly_session("main").commit("m"),
        "commit",
    ),
    "the deletion of main": (lambda repo: repo.delete_branch("main"), "deleted"),
    "an empty commit": (lambda repo: repo.writable_session("main").commit("m"), "no changes"),
    "a fork of a reader": (lambda repo: repo.readonly_session("main").fork(), "read-only"),
    "a tag that exists": (lambda repo: repo.create_tag("v1", FIRST), "exists"),
    "a branch that is missing": (lambda repo: repo.lookup_branch("dev"), "branch 'dev'"),
    "a tag that is missing": (lambda repo: repo.lookup_tag("v9"), "tag 'v9'"),
    "a snapshot that is missing": (
        lambda repo: repo.lookup_snapshot("0" * 20),
        "snapshot not found",
    ),
    "a node that is missing": (
        lambda repo: repo.rearrange_session("main").move("/x", "/y"),
        "node",
    ),
    "a repository that is missing": (
        lambda _: Repository.open(in_memory_storage()),
        "repository",
    ),
}


@pytest.mark.parametrize("what", TWICE)
def test_a_message_says_each_thing_once(what: str) -> None:
    call, words = TWICE[what]
    repo = Repository.create(in_memory_storage())
    repo.create_tag("v1", write(repo, 1))
    with pytest.raises(icefloe.IcechunkError) as caught:
        call(repo)
    text = str(caught.value)
    assert text.startswith(FIRST_WORDS[caught.value.kind] + ": ")
    assert text.lower().count(words.lower()) == 1, text


# -- a ref where an id is expected

WANT_AN_ID: dict[str, Callable[[Repository, str], object]] = {
    "create_tag": lambda repo, name: repo.create_tag("v2", name),
    "create_branch": lambda repo, name: repo.create_branch("dev", name),
    "reset_branch": lambda repo, name: repo.reset_branch("main", name),
    "reset_branch from": lambda repo, name: repo.reset_branch("main", FIRST, from_snapshot_id=name),
    "undo": lambda repo, name: repo.undo(name, "main"),
    "cherry_pick": lambda repo, name: repo.cherry_pick(name, "main"),
    "lookup_snapshot": lambda repo, name: repo.lookup_snapshot(name),
    "list_manifest_files": lambda repo, name: repo.list_manifest_files(name),
    "ancestry": lambda repo, name: list(repo.ancestry(snapshot_id=name)),
    "ancestry_graph": lambda repo, name: repo.ancestry_graph(snapshot_id=name),
    "diff from": lambda repo, name: repo.diff(from_snapshot_id=name, to_branch="main"),
    "diff to": lambda repo, name: repo.diff(from_tag="v1", to_snapshot_id=name),
    "readonly_session": lambda repo, name: repo.readonly_session(snapshot_id=name),
    "required_access": lambda repo, name: repo.required_access(snapshot_id=name),
    "expire_snapshots": lambda repo, name: repo.expire_snapshots(snapshot_ids=[name]),
    "inspect_snapshot": lambda repo, name: repo.inspect_snapshot(name),
    "inspect_transaction_log": lambda repo, name: repo.inspect_transaction_log(name),
    "create_tag_async": lambda repo, name: asyncio.run(repo.create_tag_async("v2", name)),
    "undo_async": lambda repo, name: asyncio.run(repo.undo_async(name, "main")),
    "export_zarr": lambda repo, name: icefloe.export_zarr(repo, "memory://x", snapshot_id=name),
}


@pytest.mark.parametrize("what", WANT_AN_ID)
def test_a_ref_where_an_id_is_expected_is_named(repo: Repository, what: str) -> None:
    for name, said in {
        "main": "'main' is a branch, not a snapshot id; use repo.lookup_branch('main')",
        "v1": "'v1' is a tag, not a snapshot id; use repo.lookup_tag('v1')",
        "HEAD": "'HEAD' is not a snapshot id; use repo.lookup_branch('main')",
        "nothing": "snapshot id 'nothing': found 7 characters, expected 20",
    }.items():
        with pytest.raises(icefloe.InvalidInputError) as caught:
            WANT_AN_ID[what](repo, name)
        assert said in str(caught.value)
        assert caught.value.kind == icefloe.ErrorKind.INVALID_SNAPSHOT_ID


def test_a_ref_of_another_kind_is_named(repo: Repository) -> None:
    for call in (repo.writable_session, repo.readonly_session, repo.lookup_branch):
        with pytest.raises(icefloe.RefNotFoundError, match=r"branch 'v1'.*it is a tag"):
            call("v1")
    with pytest.raises(icefloe.RefNotFoundError, match="it is a branch"):
        repo.lookup_tag("main")
    if repo.spec_version == 2:
        tip = repo.lookup_branch("main")
        with pytest.raises(icefloe.RefNotFoundError, match=f"a snapshot id .snapshot_id='{tip}'"):
            repo.writable_session(tip)


def test_what_is_named_in_errors_is_public(repo: Repository) -> None:
    """Methods of base classes, and arguments under the names that callers know."""
    calls: dict[str, Callable[[Any], object]] = {
        r"^Repository\.merge\(\): missing": lambda any_repo: any_repo.merge("main"),
        r"^Repository\.verify\(\)": lambda any_repo: any_repo.verify(5),
        r"^Repository\.garbage_collect\(\): delete_object_older_than is 5": (
            lambda any_repo: any_repo.garbage_collect(5)
        ),
        r"^Repository\.undo_async\(\)": lambda any_repo: asyncio.run(any_repo.undo_async(5)),
        r"made by Repository\.open": lambda _: Repository("weather"),  # type: ignore[arg-type]
    }
    for said, call in calls.items():
        with pytest.raises(TypeError, match=said):
            call(repo)
    with pytest.raises(icefloe.InvalidInputError, match="one of from_branch, from_tag and from_sn"):
        repo.diff()
    with pytest.raises(icefloe.InvalidInputError, match="one of to_branch, to_tag and to_snapshot"):
        repo.diff(from_branch="main")


def test_to_icechunk_says_that_a_session_was_committed(repo: Repository) -> None:
    session = repo.writable_session("main")
    dataset = xr.Dataset({"b": ("x", [1, 2])})
    to_icechunk(dataset, session, mode="w")
    session.commit("dataset")
    with pytest.raises(icefloe.ReadOnlyError, match="this session was committed as"):
        to_icechunk(dataset, session, mode="w")


# -- without arguments


def test_undo_without_arguments_undoes_the_last_commit(repo: Repository) -> None:
    write(repo, 2)
    done = repo.undo()
    assert done.snapshot_id == repo.lookup_branch("main")
    array: Any = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert array[:].tolist() == [1, 1]
    repo.create_branch("dev", repo.lookup_tag("v1"))
    write(repo, 3, "dev")
    asyncio.run(repo.undo_async(branch="dev"))
    array = zarr.open_array(repo.readonly_session("dev").store, path="a", mode="r")
    assert array[:].tolist() == [1, 1]


def test_the_beginning_of_an_id_finds_a_snapshot(repo: Repository, tmp_path: Path) -> None:
    tip = repo.lookup_branch("main")
    with pytest.raises(icefloe.SessionStateError, match="already"):
        repo.merge(tip[:6].lower(), "main")
    with pytest.raises(icefloe.RefNotFoundError, match="neither a branch, a tag nor the id"):
        repo.merge(tip[:3], "main")
