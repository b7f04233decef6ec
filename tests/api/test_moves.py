"""Moving nodes: the same as official does, and readable for it; no manifest is written."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import ErrorKind
from tests.api.outcomes import changes, happened, hierarchy, keys, outcome, put, remove

Script = Callable[[Any], list[Any]]


@pytest.fixture(scope="module")
def official() -> Any:
    return pytest.importorskip(
        "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
    )


REFUSED = {
    "a source that is not there": ("/nothing", "/z"),
    "neither source nor destination": ("/nothing", "/nothing"),
    "a missing source, an existing destination": ("/nothing", "/b"),
    "onto itself": ("/a", "/a"),
    "into itself": ("/g", "/g/q"),
    "into its own child": ("/g", "/g/h/q"),
    "below an array that it is": ("/a", "/a/b/c"),
    "the root": ("/", "/q"),
    "onto the root": ("/a", "/"),
    "onto an array": ("/a", "/b"),
    "onto a group": ("/g", "/e"),
    "into a missing group": ("/a", "/zz/a"),
    "into an array": ("/a", "/b/c"),
    "deep into an array": ("/a", "/g/h/y/z/w"),
    "a relative source": ("a", "/c"),
    "a relative destination": ("/a", "c"),
    "an empty source": ("", "/c"),
    "an empty destination": ("/a", ""),
    "two dots": ("/a", "/../c"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_move_is_refused_as_official_refuses_it(name: str, official: Any) -> None:
    answers = []
    for library in (icefloe, official):
        session = hierarchy(library, library.in_memory_storage()).rearrange_session("main")
        answers.append((outcome(session.move, *REFUSED[name]), session.has_uncommitted_changes))
    assert answers[0] == answers[1]
    assert isinstance(answers[0][0], str)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a source that is not there", "node not found"),
        ("into itself", "into itself or its own descendant"),
        ("onto an array", "move cannot overwrite existing node"),
        ("into a missing group", "the destination's parent group"),
        ("into an array", "is an array, not a group"),
    ],
)
def test_the_words_that_programs_look_for(name: str, words: str, official: Any) -> None:
    for library in (icefloe, official):
        session = hierarchy(library, library.in_memory_storage()).rearrange_session("main")
        with pytest.raises(library.IcechunkError, match=words):
            session.move(*REFUSED[name])


def _steps(library: Any, *moves: tuple[str, str]) -> tuple[Any, Any, list[Any]]:
    repository = hierarchy(library, library.in_memory_storage())
    session = repository.rearrange_session("main")
    return repository, session, [outcome(session.move, *move) for move in moves]


MOVED: dict[str, list[tuple[str, str]]] = {
    "rename an array": [("/a", "/c")],
    "rename a group": [("/g", "/k")],
    "an array into a group": [("/a", "/e/a")],
    "a group into a group": [("/g", "/e/deep")],
    "out of a group that stays": [("/g/h/y", "/y")],
    "swap by way of a third name": [("/a", "/t"), ("/b", "/a"), ("/t", "/b")],
    "swap groups of different depth": [("/g/h", "/t"), ("/g", "/t/g"), ("/t", "/g")],
    "a child takes its parent's place": [("/g", "/k"), ("/k/h", "/g")],
    "a node and then its parent": [("/g/x", "/g/z"), ("/g", "/e/g"), ("/e/g/z", "/z")],
    "there and back": [("/a", "/t"), ("/t", "/a")],
    "a group there and back, a child stays": [("/g", "/t"), ("/t/x", "/x"), ("/t", "/g")],
    "chains": [("/a", "/t1"), ("/t1", "/t2"), ("/t2", "/e/t3"), ("/e", "/f")],
    "names that sort between": [("/a", "/g-x"), ("/b", "/g.x"), ("/e", "/g0")],
    "some refused in between": [("/a", "/b"), ("/a", "/c"), ("/a", "/d"), ("/b", "/a")],
}


@pytest.mark.parametrize("name", MOVED)
def test_moves_have_the_same_effect_as_in_official(name: str, official: Any) -> None:
    seen = []
    for library in (icefloe, official):
        repository, session, answers = _steps(library, *MOVED[name])
        first = session.snapshot_id
        inside = keys(session.store), changes(session.status()), session.has_uncommitted_changes
        session.commit("moved")
        after = keys(repository.readonly_session("main").store)
        assert after == keys(session.store) == inside[0]
        diff = changes(repository.diff(from_snapshot_id=first, to_branch="main"))
        num_refs = sum(file.num_chunk_refs for file in _files(repository))
        seen.append((answers, inside, diff, num_refs))  # official has one manifest per array
    assert seen[0] == seen[1]


def _files(repository: Any) -> list[Any]:
    found: list[Any] = repository.list_manifest_files(repository.lookup_branch("main"))
    return sorted(found, key=lambda file: file.id)


def test_a_session_sees_its_moves_and_a_commit_writes_no_manifest() -> None:
    storage = icefloe.in_memory_storage()
    repository = hierarchy(icefloe, storage)
    before = {file.id for file in _files(repository)}
    session = repository.rearrange_session("main")
    ids = {path: session.get_node_id(path) for path in ("/a", "/g", "/g/h/y")}
    session.move("/a", "/e/first")
    session.move("/g", "/k")
    assert (session.mode, session.branch, session.read_only) == (
        icefloe.SessionMode.rearrange,
        "main",
        False,
    )
    assert session.get_node_id("/e/first") == ids["/a"]
    assert session.get_node_id("/k") == ids["/g"]
    assert session.get_node_id("/k/h/y") == ids["/g/h/y"]
    with pytest.raises(icefloe.NodeNotFoundError):
        session.get_node_id("/a")
    group: Any = zarr.open_group(session.store, mode="r")
    assert np.array_equal(group["e/first"][:], [0] * 6 + [-1] * 2)
    assert np.array_equal(group["k/h/y"][:], [3] * 6 + [-1] * 2)
    assert "a" not in group
    session.commit("moved")
    assert session.read_only
    assert {file.id for file in _files(repository)} == before


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_other_library_reads_the_moves(
    is_ours: bool, official: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = str(tmp_path_factory.mktemp("repository"))
    writer, reader = (icefloe, official) if is_ours else (official, icefloe)
    repository = hierarchy(writer, writer.local_filesystem_storage(place))
    session = repository.rearrange_session("main")
    first = session.snapshot_id
    for move in MOVED["swap groups of different depth"]:
        session.move(*move)
    session.commit("moved")
    other = reader.Repository.open(reader.local_filesystem_storage(place))
    assert keys(other.readonly_session("main").store) == keys(session.store)
    diffs = [changes(r.diff(from_snapshot_id=first, to_branch="main")) for r in (repository, other)]
    assert diffs[0] == diffs[1]
    assert len(diffs[0]["moves"]) == 4
    again = other.rearrange_session("main")
    again.move("/g", "/was")
    again.commit("moved again")
    assert keys(repository.readonly_session("main").store) == keys(again.store)


def test_a_slash_at_the_end_of_a_path_does_not_matter() -> None:
    """Official takes it too, but forgets the node in the transaction log."""
    _repository, session, answers = _steps(icefloe, ("/a/", "/e/a/"))
    assert answers == [None]
    assert session.status().moved_nodes == [("/a", "/e/a")]


def test_nodes_without_a_group_above_are_not_overwritten() -> None:
    repository = hierarchy(icefloe, icefloe.in_memory_storage())
    session = repository.writable_session("main")
    put(session.store, "lone/h/zarr.json")
    session.commit("an orphan")
    session = repository.rearrange_session("main")
    assert outcome(session.move, "/g", "/lone") == "AlreadyExistsError move-wont-overwrite"
    assert outcome(session.move, "/e", "/lone") is None
    assert {"lone/zarr.json", "lone/h/zarr.json"} <= keys(session.store).keys()


def _writes(library: Any) -> list[Any]:
    session = hierarchy(library, library.in_memory_storage()).rearrange_session("main")
    return [
        outcome(put, session.store, "new/zarr.json"),
        outcome(put, session.store, "a/c/0", b"12345678"),
        outcome(remove, session.store, "a/c/0"),
        outcome(remove, session.store, "a/zarr.json"),
        outcome(session.store.sync_clear),
        outcome(pickle.dumps, session),
        outcome(pickle.dumps, session.store),
    ]


def _in_other_sessions(library: Any) -> list[Any]:
    repository = hierarchy(library, library.in_memory_storage())
    old = hierarchy(library, library.in_memory_storage(), spec_version=1)
    return [
        outcome(repository.writable_session("main").move, "/a", "/q"),
        outcome(repository.readonly_session("main").move, "/a", "/q"),
        outcome(repository.rearrange_session, "nothing"),
        outcome(old.rearrange_session, "main"),
        outcome(old.rearrange_session, "nothing"),
        outcome(old.writable_session("main").move, "/a", "/q"),
    ]


def _nothing_to_commit(library: Any) -> list[Any]:
    repository = hierarchy(library, library.in_memory_storage())
    session = repository.rearrange_session("main")
    answers = [happened(session.commit, "empty")]
    session.move("/a", "/t")
    session.discard_changes()
    answers += [session.has_uncommitted_changes, happened(session.commit, "empty")]
    return [*answers, happened(session.commit, "empty", allow_empty=True)]


def _flags(library: Any) -> list[Any]:
    repository = hierarchy(library, library.in_memory_storage())
    session = repository.rearrange_session("main")
    repository.set_feature_flag("move_node", False)
    answers = [
        outcome(session.move, "/a", "/t"),
        happened(session.commit, "off"),
        happened(session.amend, "off"),
        happened(session.flush, "off"),
        outcome(repository.rearrange_session, "main"),
        outcome(repository.rearrange_session, "nothing"),
    ]
    repository.set_feature_flag("move_node", None)
    return [*answers, happened(session.commit, "on"), session.read_only]


def _amending(library: Any) -> list[Any]:
    repository = hierarchy(library, library.in_memory_storage())
    first = repository.lookup_branch("main")
    session = repository.writable_session("main")
    put(session.store, "new/zarr.json")
    session.commit("a group")
    answers = []
    for move in [("/new", "/n2"), ("/n2", "/n3"), ("/a", "/n3/a")]:
        session = repository.rearrange_session("main")
        session.move(*move)
        answers.append(happened(session.amend, "moved"))
        answers.append(changes(repository.diff(from_snapshot_id=first, to_branch="main")))
    session = repository.writable_session("main")
    answers.append(happened(session.amend, "edit", allow_empty=True))
    put(session.store, "more/zarr.json")
    answers.append(happened(session.amend, "edit"))
    answers.append(happened(session.commit, "edit"))
    back = repository.rearrange_session("main")
    back.move("/n3/a", "/a")
    answers.append(happened(back.amend, "moved"))
    answers.append(changes(repository.diff(from_snapshot_id=first, to_branch="main")))
    return answers


def _flushing(library: Any) -> list[Any]:
    repository = hierarchy(library, library.in_memory_storage())
    session = repository.rearrange_session("main")
    session.move("/a", "/t")
    answers = [happened(session.flush, "aside"), session.read_only]
    reader = repository.readonly_session(snapshot_id=session.snapshot_id)
    return [*answers, sorted(keys(reader.store)) == sorted(keys(session.store))]


SCRIPTS = {
    script.__name__.strip("_"): script
    for script in (_writes, _in_other_sessions, _nothing_to_commit, _flags, _amending, _flushing)
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_rearrange_sessions_behave_as_official_ones(name: str, official: Any) -> None:
    assert SCRIPTS[name](icefloe) == SCRIPTS[name](official)


def test_moves_await_inside_an_event_loop() -> None:
    repository = hierarchy(icefloe, icefloe.in_memory_storage())

    async def rename() -> None:
        session = await repository.rearrange_session_async("main")
        await session.move_async("/a", "/c")
        await session.commit_async("moved")

    asyncio.run(rename())
    assert "c/zarr.json" in keys(repository.readonly_session("main").store)


def test_a_conflict_of_a_move_keeps_the_session() -> None:
    repository = hierarchy(icefloe, icefloe.in_memory_storage())
    session = repository.rearrange_session("main")
    session.move("/a", "/t")
    other = repository.writable_session("main")
    put(other.store, "new/zarr.json")
    other.commit("faster")
    with pytest.raises(icefloe.ConflictError) as caught:
        session.commit("slower")
    assert caught.value.kind == ErrorKind.COMMIT_CONFLICT
    assert session.status().moved_nodes == [("/a", "/t")]
