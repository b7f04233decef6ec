"""Numbered refs under many writers, kills and cuts: one winner for each number, nothing lost."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe import NumberedRefs, Repository
from icefloe.api.handles import Handles
from icefloe.errors import RepositoryNotFoundError, StorageError, UnknownOutcomeError
from icefloe.ids import encode_base32
from icefloe.legacy.numbered.names import sequence_name
from icefloe.repo import commit, lifecycle, refs, session
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.faults import FaultyDriver
from tests.safety.counting import check_counting, count_once, start_counting
from tests.safety.crews import crew, work_together
from tests.safety.test_lost_commits import check_all_is_there, jobs_for, kill_at_random
from tests.safety.worker import Job
from tests.safety.worlds import driver_of, new_storage, read_objects, write_objects
from tests.servers import S3Server

ENCODINGS = ["json", "binary"]
MOST_REQUESTS = 60


def new_counter(storage: Storage, encoding: Any, num_turns: int) -> None:
    repo = Repository.create(storage, generation=NumberedRefs(encoding))
    start_counting(repo, num_turns)


def check_numbers(storage: Storage) -> None:
    """Every number has one file, without gaps, and the files follow the history."""
    history = [entry.id for entry in Repository.open(storage).ancestry(branch="main")][::-1]
    keys = sorted(f"r/main/{key}" for key, _ in storage.list_objects(prefix="r/main/"))
    names = [f"r/main/{sequence_name(number)}.json" for number in range(len(history))]
    assert keys == sorted(names)
    objects = read_objects(storage)
    pointed = [encode_base32(bytes(json.loads(objects[name])["snapshot"])) for name in names]
    assert pointed == history


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("encoding", "num_turns"),
    [
        ("json", 4),
        pytest.param("json", 25, marks=pytest.mark.long),
        pytest.param("binary", 25, marks=pytest.mark.long),
    ],
)
def test_processes_on_a_directory_lose_nothing(
    tmp_path: Path, encoding: str, num_turns: int
) -> None:
    """Eight processes; with 25 turns, 200 of 200 commits."""
    storage = icefloe.local_filesystem_storage(tmp_path / "repo")
    new_counter(storage, encoding, num_turns)
    with crew(8) as workers:
        jobs = jobs_for(storage, tmp_path, "run", num_turns)
        work_together(workers, jobs)
    check_all_is_there(storage, jobs)
    check_numbers(storage)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_processes_on_s3_lose_nothing(s3_server: S3Server, tmp_path: Path) -> None:
    """Eight processes, 200 of 200 commits; in five rounds, because no answer may take minutes."""
    storage = s3_server.storage()
    new_counter(storage, "json", 5)
    jobs: list[Job] = []
    with crew(8) as workers:
        for number in range(5):
            mine = [
                Job(storage, 8 * number + at, 5, tmp_path / f"round{number}-{at}")
                for at in range(len(workers))
            ]
            work_together(workers, mine)
            jobs += mine
    check_all_is_there(storage, jobs)
    check_numbers(storage)


@pytest.mark.parametrize("is_shared", [True, pytest.param(False, marks=pytest.mark.long)])
def test_threads_in_memory_lose_nothing(is_shared: bool) -> None:
    storage = icefloe.in_memory_storage()
    new_counter(storage, "msgpack", 25)
    shared = Repository.open(storage)

    def work(writer: int) -> list[Any]:
        repo = shared if is_shared else Repository.open(storage)
        return [count_once(repo, writer, turn) for turn in range(25)]

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(work, writer) for writer in range(8)]
        acknowledged = [counted for future in futures for counted in future.result(100)]
    assert check_counting(Repository.open(storage), acknowledged) == 200
    check_numbers(storage)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("encoding", ["json", pytest.param("binary", marks=pytest.mark.long)])
def test_killed_processes_on_a_directory_lose_nothing_acknowledged(
    tmp_path: Path, encoding: str
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    storage = icefloe.local_filesystem_storage(tmp_path / "repo")
    new_counter(storage, encoding, 10_000)
    try:
        kill_at_random(storage, tmp_path, seed, num_waves=1)
        check_numbers(storage)
    except AssertionError as error:
        raise AssertionError(f"with seed {seed}") from error


@pytest.mark.long
@pytest.mark.timeout(300)
def test_killed_processes_on_s3_lose_nothing_acknowledged(
    s3_server: S3Server, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    storage = s3_server.storage()
    new_counter(storage, "json", 10_000)
    try:
        kill_at_random(storage, tmp_path, seed, num_waves=1)
        check_numbers(storage)
    except AssertionError as error:
        raise AssertionError(f"with seed {seed}") from error


# -- the storage goes away after request k


def open_handle(storage: Storage, driver: Driver | None = None) -> RepoHandle:
    opening = lifecycle.open_repository(storage, driver or driver_of(storage), None, Clock())
    return run_blocking(opening)


def start(encoding: Any) -> dict[str, bytes]:
    """The objects of a repository with a bit of everything."""
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, generation=NumberedRefs(encoding, inline_attributes_bytes=40))
    handle = open_handle(storage)
    state = run_blocking(session.open_writable(handle, "main"))
    work = Workspace(handle, state)
    document = b'{"zarr_format":3,"node_type":"group","attributes":{"title":"%s"}}' % (b"x" * 60)
    array = (
        b'{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"int64","chunk_grid":'
        b'{"name":"regular","configuration":{"chunk_shape":[1]}},"chunk_key_encoding":{"name":'
        b'"default"},"fill_value":0,"codecs":[{"name":"bytes"}]}'
    )
    for key, value in (
        ("zarr.json", document),
        ("x/zarr.json", array),
        ("x/c/0", bytes(8)),
        ("doomed/zarr.json", document),
    ):
        run_blocking(operations.set_key(work, key, value))
    run_blocking(commit.commit(work, "start", None))
    repo.create_branch("side", repo.lookup_branch("main"))
    return read_objects(storage)


async def edit_and_commit(handle: RepoHandle, state: Any) -> None:
    work = Workspace(handle, state)
    await operations.set_key(work, "x/c/1", b"1" * 8)
    await operations.delete(work, "doomed/zarr.json")
    document = b'{"zarr_format":3,"node_type":"group","attributes":{"title":"%s"}}' % (b"y" * 60)
    await operations.set_key(work, "fresh/zarr.json", document)
    await commit.commit(work, "edited", {"by": "us"})


async def tag(handle: RepoHandle, _state: Any) -> None:
    await refs.create_tag(handle, "v1", await handle.format.lookup_branch(handle, "main"))


async def branch(handle: RepoHandle, _state: Any) -> None:
    await refs.create_branch(handle, "new", await handle.format.lookup_branch(handle, "main"))


async def reset(handle: RepoHandle, _state: Any) -> None:
    tip = await handle.format.lookup_branch(handle, "main")
    first = (await handle.format.ancestry(handle, tip))[-1].id
    await refs.reset_branch(handle, "side", first, None)


def portrait(storage: Storage) -> Any:
    handle = open_handle(storage)
    repo = Repository(Handles(handle, is_blocking=True))

    def seen(tip: str) -> Any:
        entries = list(repo.ancestry(snapshot_id=tip))
        found = [(entry.message, entry.metadata) for entry in entries]
        return found, all_values(handle, tip)

    branches = {name: seen(repo.lookup_branch(name)) for name in repo.list_branches()}
    return branches, {name: seen(repo.lookup_tag(name)) for name in repo.list_tags()}


def all_values(handle: RepoHandle, tip: str) -> dict[str, bytes]:
    state = run_blocking(session.open_readonly(handle, handle.snapshot_id(tip)))
    work = Workspace(handle, state)
    keys = run_blocking(operations.list_prefix(work, ""))
    return {key: bytes(run_blocking(operations.get(work, key)) or b"") for key in keys}


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("work", [edit_and_commit, tag, branch, reset])
def test_a_cut_after_any_request_leaves_the_old_state_or_the_new(
    work: Any, encoding: str, kind: str, tmp_path: Path
) -> None:
    objects = start(encoding)

    def copy() -> Storage:
        storage = new_storage(kind, tmp_path)
        write_objects(storage, objects)
        return storage

    storage = copy()
    before = portrait(storage)
    handle = open_handle(storage)
    run_blocking(work(handle, run_blocking(session.open_writable(handle, "main"))))
    after = portrait(storage)
    assert before != after
    for num_requests in range(MOST_REQUESTS):
        storage = copy()
        driver = FaultyDriver(driver_of(storage))
        handle = open_handle(storage, driver)
        state = run_blocking(session.open_writable(handle, "main"))
        driver.reset()
        driver.cut_after = num_requests
        try:
            run_blocking(work(handle, state))
        except UnknownOutcomeError:  # of a tag or branch, after which a migration is looked for
            assert driver.num_refused
            assert portrait(storage) == after
            continue
        except StorageError:
            assert driver.num_refused
        else:
            assert num_requests > 0
            assert portrait(storage) == after
            return
        assert portrait(storage) == before
        driver.cut_after = None
        run_blocking(work(handle, state))  # the same process tries again
        assert portrait(storage) == after
    pytest.fail(f"not at an end in {MOST_REQUESTS} requests")


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_creation_cut_after_any_request_leaves_no_repository_or_a_whole_one(
    encoding: Any, kind: str, tmp_path: Path
) -> None:
    format_version = NumberedRefs(encoding).format_version()

    def create(storage: Storage, driver: Driver) -> None:
        run_blocking(
            lifecycle.create_repository(
                storage,
                driver,
                None,
                Clock(),
                spec_version=2,
                check_clean_root=True,
                format_version=format_version,
            )
        )

    for num_requests in range(MOST_REQUESTS):
        storage = new_storage(kind, tmp_path)
        driver = FaultyDriver(driver_of(storage), cut_after=num_requests)
        try:
            create(storage, driver)
        except StorageError:
            assert driver.num_refused
        else:
            assert num_requests >= 3
            return
        try:
            Repository.open(storage)
        except RepositoryNotFoundError:
            create(storage, driver_of(storage))
        repo = Repository.open(storage)
        repo.writable_session("main").commit("on top", allow_empty=True)
        assert len(list(repo.ancestry(branch="main"))) == 2
    pytest.fail(f"not at an end in {MOST_REQUESTS} requests")
