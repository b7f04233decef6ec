"""What cannot be done is refused: as official does, with a message that helps, and unwritten."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import (
    IcechunkError,
    ReadOnlyError,
    RepoAvailability,
    Repository,
    RepositoryConfig,
    RepoStatus,
    SessionStateError,
    Storage,
    http_storage,
    in_memory_storage,
    local_filesystem_storage,
)
from tests.api.bad_calls import (
    BOTH,
    DIFFERENCES,
    EMPTY,
    LEAVE_GARBAGE,
    ONLY_V1,
    ONLY_V2,
    WRONG_TYPES,
    WRONG_VALUES,
    Place,
    make_place,
)
from tests.servers import serving

CALLS = [
    *((name, spec) for name in (BOTH | WRONG_VALUES) for spec in (1, 2)),
    *((name, spec) for name in LEAVE_GARBAGE for spec in (1, 2)),
    *((name, 1) for name in ONLY_V1),
    *((name, 2) for name in ONLY_V2),
    *((name, 2) for name in WRONG_TYPES),
]
TABLE = BOTH | WRONG_VALUES | LEAVE_GARBAGE | ONLY_V1 | ONLY_V2 | WRONG_TYPES


def objects(storage: Storage) -> list[tuple[str, int]]:
    return storage.list_objects()


def answer(error: BaseException) -> str:
    kind = getattr(error, "kind", None)
    return type(error).__name__ if kind is None else f"{type(error).__name__} {kind}"


def refusal(call: Any, *arguments: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - which one is what tests are about
        call(*arguments)
    return caught.value


def official_answer(call: Any, *arguments: Any) -> str:
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return answer(error)
    return "nothing raised"


def assert_same_answer(name: str, ours: str, theirs: str) -> None:
    if name in DIFFERENCES:
        expected, allowed, reason = DIFFERENCES[name]
        assert theirs in allowed, f"official changed; is it still true that {reason}?"
        assert ours.startswith(expected), reason
    elif theirs == "ValueError" and ours != theirs:
        # Official's Python layer has plain exceptions; ours are caught by the same handlers.
        assert ours.startswith("InvalidInputError")
    else:
        assert ours == theirs


@pytest.mark.parametrize(("name", "spec_version"), CALLS)
def test_a_call_is_refused_as_official_refuses_it(
    name: str, spec_version: int, official: Any
) -> None:
    call, _ = TABLE[name]
    ours = answer(refusal(call, icefloe, make_place(icefloe, in_memory_storage(), spec_version)))
    place = make_place(official, official.in_memory_storage(), spec_version)
    assert_same_answer(name, ours, official_answer(call, official, place))


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_about_a_call(name: str) -> None:
    assert name in TABLE | EMPTY


@pytest.mark.parametrize(("name", "spec_version"), CALLS)
def test_a_refusal_says_what_was_wrong_and_writes_nothing(name: str, spec_version: int) -> None:
    call, pattern = TABLE[name]
    storage = in_memory_storage()
    place = make_place(icefloe, storage, spec_version)
    before = objects(storage)
    error = refusal(call, icefloe, place)
    assert re.search(pattern, str(error)), str(error)
    if name not in LEAVE_GARBAGE:
        assert objects(storage) == before


@pytest.mark.parametrize("name", LEAVE_GARBAGE)
@pytest.mark.parametrize("spec_version", [1, 2])
def test_what_a_refused_commit_leaves_cannot_be_seen(name: str, spec_version: int) -> None:
    storage = in_memory_storage()
    place = make_place(icefloe, storage, spec_version)
    refusal(TABLE[name][0], icefloe, place)
    messages = [info.message for info in Repository.open(storage).ancestry(branch="main")]
    assert messages == ["faster", "two", "one", "Repository initialized"]


# -- nothing there yet


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_place_is_refused_as_official_does(name: str, official: Any) -> None:
    call, _ = EMPTY[name]
    ours = answer(refusal(call, icefloe, in_memory_storage()))
    assert_same_answer(name, ours, official_answer(call, official, official.in_memory_storage()))


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_place_stays_empty(name: str, storage: Storage) -> None:
    call, pattern = EMPTY[name]
    assert re.search(pattern, str(refusal(call, icefloe, storage)))
    assert objects(storage) == []


@pytest.mark.parametrize("version", ["2", 1.5, True])
def test_spec_versions_are_whole_numbers(version: Any) -> None:
    storage = in_memory_storage()
    with pytest.raises((TypeError, ValueError), match="spec_version"):
        Repository.create(storage, spec_version=version)
    assert objects(storage) == []


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("data")
    storage = local_filesystem_storage(tmp_path)
    with pytest.raises(icefloe.InvalidInputError, match="not empty") as caught:
        Repository.create(storage)
    assert caught.value.kind == "parent-directory-not-clean"
    with pytest.raises(icefloe.InvalidInputError, match="not empty"):
        Repository.open_or_create(storage)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious.txt"]
    repository = Repository.create(storage, check_clean_root=False)
    assert repository.list_branches() == {"main"}
    assert (tmp_path / "precious.txt").read_text() == "data"


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("data")
    storage = local_filesystem_storage(tmp_path / "file")
    with pytest.raises(IcechunkError, match="file"):
        Repository.create(storage)
    with pytest.raises(IcechunkError, match="file"):
        Repository.open(storage)
    assert (tmp_path / "file").read_text() == "data"


def test_opening_does_not_make_a_folder(tmp_path: Path) -> None:
    storage = local_filesystem_storage(tmp_path / "missing")
    assert not Repository.exists(storage)
    with pytest.raises(icefloe.RepositoryNotFoundError, match="missing"):
        Repository.open(storage)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("key", ["repo", "refs/branch.main/ref.json"])
def test_a_damaged_repository_is_not_opened(tmp_path: Path, key: str) -> None:
    spec_version = 2 if key == "repo" else 1
    storage = local_filesystem_storage(tmp_path / "damaged")
    Repository.create(storage, spec_version=spec_version)
    path = tmp_path / "damaged" / key
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(icefloe.FormatError, match=re.escape(key)):
        Repository.open(storage).readonly_session("main")


# -- sessions


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("metadata", [{"key": object()}, {"key": float("inf")}, {1: "number"}])
def test_bad_metadata_is_found_before_anything_is_uploaded(
    spec_version: int, metadata: Any
) -> None:
    storage = in_memory_storage()
    place = make_place(icefloe, storage, spec_version)
    session = place.writable()
    zarr.open_array(session.store, path="a", mode="r+")[:] = np.arange(4)
    before = objects(storage)
    with pytest.raises((icefloe.InvalidInputError, TypeError), match=r"key|1"):
        session.commit("chunks", metadata)
    assert objects(storage) == before
    session.commit("chunks", {"key": "value"})


def test_the_first_snapshot_cannot_be_amended(official: Any) -> None:
    for library in (icefloe, official):
        repository = library.Repository.create(library.in_memory_storage())
        session = repository.writable_session("main")
        zarr.open_group(session.store, mode="a")
        with pytest.raises(library.SessionStateError) as caught:
            session.amend("again")
        assert caught.value.kind == "no-amend-for-initial-commit"


@pytest.mark.parametrize("flag", ["create_tag", "delete_tag"])
def test_operations_that_are_switched_off(flag: str, official: Any) -> None:
    for library in (icefloe, official):
        place = make_place(library, library.in_memory_storage(), 2)
        place.repository.set_feature_flag(flag, False)
        operation = getattr(place.repository, flag)
        arguments = ("new", place.first) if flag == "create_tag" else ("tag",)
        with pytest.raises(library.SessionStateError, match=flag) as caught:
            operation(*arguments)
        assert caught.value.kind == "feature-flag-disabled"
        place.repository.set_feature_flag(flag, None)
        operation(*arguments)


# -- repositories and storages that can only be read

READ_ONLY_CALLS: dict[str, Any] = {
    "writable_session": lambda lib, p: p.repository.writable_session("main"),
    "create_branch": lambda lib, p: p.repository.create_branch("new", p.first),
    "reset_branch": lambda lib, p: p.repository.reset_branch("main", p.first),
    "delete_branch": lambda lib, p: p.repository.delete_branch("other"),
    "create_tag": lambda lib, p: p.repository.create_tag("new", p.first),
    "delete_tag": lambda lib, p: p.repository.delete_tag("tag"),
    "save_config": lambda lib, p: p.repository.save_config(),
    "set_metadata": lambda lib, p: p.repository.set_metadata({}),
    "update_metadata": lambda lib, p: p.repository.update_metadata({}),
    "set_feature_flag": lambda lib, p: p.repository.set_feature_flag("create_tag", True),
}
V2_ONLY = {"set_metadata", "update_metadata", "set_feature_flag"}


@pytest.mark.parametrize("name", READ_ONLY_CALLS)
def test_a_read_only_repository_takes_no_writes(name: str, official: Any) -> None:
    answers = []
    for library in (icefloe, official):
        place = make_place(library, library.in_memory_storage(), 2)
        status = library.RepoStatus(
            library.RepoAvailability.read_only, limited_availability_reason="moving house"
        )
        place.repository.set_status(status)
        answers.append(official_answer(READ_ONLY_CALLS[name], library, place))
    assert answers == ["ReadOnlyError read-only-repository"] * 2


@pytest.mark.parametrize("method", ["commit", "amend", "flush"])
def test_a_session_that_was_open_cannot_commit_to_a_read_only_repository(method: str) -> None:
    place = make_place(icefloe, in_memory_storage(), 2)
    session = place.changed()
    place.repository.set_status(
        RepoStatus(RepoAvailability.read_only, limited_availability_reason="away")
    )
    with pytest.raises(ReadOnlyError, match="read-only: away") as caught:
        getattr(session, method)("late")
    assert caught.value.kind == "read-only-repository"
    assert place.reader().snapshot_id == place.second
    place.repository.set_status(RepoStatus(RepoAvailability.online))
    getattr(session, method)("late")


@pytest.fixture(params=[1, 2])
def web_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int, Place]]:
    """A repository behind a web server: its URL, its version and what is in it."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    storage = local_filesystem_storage(tmp_path / "web", durable=False)
    place = make_place(icefloe, storage, request.param)
    with serving(functools.partial(Quiet, directory=str(tmp_path / "web"))) as url:  # type: ignore[arg-type]
        yield url, request.param, place


def test_a_storage_that_only_reads_is_read(web_place: tuple[str, int, Place]) -> None:
    url, spec_version, place = web_place
    repository = Repository.open(http_storage(url))
    assert repository.spec_version == spec_version
    assert repository.lookup_branch("main") == place.second
    array = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    assert np.asarray(array[:]).tolist() == [1, 1, 1, 1]
    assert [info.message for info in repository.ancestry(branch="other")][:2] == ["three", "one"]


def test_a_storage_that_only_reads_takes_no_writes(
    web_place: tuple[str, int, Place], tmp_path: Path, official: Any
) -> None:
    url, spec_version, place = web_place
    before = sorted(path for path in tmp_path.rglob("*"))
    for name, call in READ_ONLY_CALLS.items():
        if spec_version == 1 and name in V2_ONLY:
            continue
        answers = []
        for library in (icefloe, official):
            repository = library.Repository.open(library.http_storage(url))
            there = Place(repository, place.first, place.second, place.other)
            answers.append(official_answer(call, library, there))
        assert answers == ["ReadOnlyError read-only-storage"] * 2, name
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_nothing_is_created_on_a_storage_that_only_reads(tmp_path: Path, official: Any) -> None:
    class Nothing(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with serving(functools.partial(Nothing, directory=str(tmp_path))) as url:  # type: ignore[arg-type]
        for library in (icefloe, official):
            storage = library.http_storage(f"{url}/nothing")
            assert library.Repository.exists(storage) is False
            answers = [
                official_answer(library.Repository.create, storage),
                official_answer(library.Repository.open_or_create, storage),
                official_answer(library.Repository.open, storage),
            ]
            assert answers == [
                "ReadOnlyError read-only-storage",
                "ReadOnlyError read-only-storage",
                "RepositoryNotFoundError repository-not-found",
            ]


def test_a_session_keeps_its_changes_when_a_commit_is_refused() -> None:
    place = make_place(icefloe, in_memory_storage(), 2)
    session = place.changed()
    with pytest.raises(SessionStateError):
        place.writable().commit("empty")
    place.changed().commit("faster")
    with pytest.raises(icefloe.ConflictError) as caught:
        session.commit("slower")
    assert caught.value.expected_parent == place.second
    assert caught.value.actual_parent == place.repository.lookup_branch("main")
    assert session.has_uncommitted_changes
    assert not session.read_only
    assert session.snapshot_id == place.second


def test_a_configuration_that_cannot_be_used_is_refused_before_anything_is_written() -> None:
    storage = in_memory_storage()
    with pytest.raises((ValueError, TypeError), match="inline_chunk_threshold_bytes"):
        Repository.create(storage, RepositoryConfig(inline_chunk_threshold_bytes=-1))
    assert objects(storage) == []
