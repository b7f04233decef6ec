"""Many writers of one state file: every acknowledged commit is in the history, exactly once.

Runs of 8 x 3 commits by default; `make long` has 8 x 25 on a directory and on S3, and kills.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.api.handles import Handles
from icefloe.errors import RepositoryNotFoundError, StorageError
from icefloe.repo import lifecycle
from icefloe.repo.handle import Clock
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.testing.faults import FaultyDriver
from tests.legacy.state_file.datasets import create
from tests.legacy.state_file.test_model import Tree, assert_same, read_tree
from tests.safety.counting import Counted, check_counting, count_once, start_counting
from tests.safety.crews import crew, work_together
from tests.safety.test_lost_commits import (
    NUM_TURNS,
    NUM_WRITERS,
    check_all_is_there,
    jobs_for,
    kill_at_random,
)
from tests.safety.worlds import driver_of, new_storage, read_objects, write_objects
from tests.servers import S3Server

pytestmark = pytest.mark.timeout(300)
MOST_REQUESTS = 40
FEW_TURNS = 3
MANY_TURNS = 10_000


def count_together(storage: Storage, folder: Path, num_turns: int) -> None:
    start_counting(create(storage), num_turns)
    with crew(NUM_WRITERS) as workers:
        jobs = jobs_for(storage, folder, "run", num_turns)
        work_together(workers, jobs)
        check_all_is_there(storage, jobs)


def test_processes_on_a_directory_lose_nothing(tmp_path: Path) -> None:
    count_together(icefloe.local_filesystem_storage(tmp_path / "data"), tmp_path, FEW_TURNS)


@pytest.mark.long
def test_many_processes_on_a_directory_lose_nothing(tmp_path: Path) -> None:
    count_together(icefloe.local_filesystem_storage(tmp_path / "data"), tmp_path, NUM_TURNS)


@pytest.mark.long
def test_many_processes_on_s3_lose_nothing(s3_server: S3Server, tmp_path: Path) -> None:
    count_together(s3_server.storage(), tmp_path, NUM_TURNS)


def test_threads_in_memory_lose_nothing() -> None:
    storage = icefloe.in_memory_storage()
    start_counting(create(storage), FEW_TURNS)

    def work(writer: int) -> list[Counted]:
        repo = icefloe.Repository.open(storage)
        return [count_once(repo, writer, turn) for turn in range(FEW_TURNS)]

    with ThreadPoolExecutor(NUM_WRITERS) as pool:
        done = list(pool.map(work, range(NUM_WRITERS)))
    acknowledged = [counted for counts in done for counted in counts]
    assert len(acknowledged) == NUM_WRITERS * FEW_TURNS
    assert check_counting(icefloe.Repository.open(storage), acknowledged) == len(acknowledged)


def kill_waves(storage: Storage, folder: Path, num_waves: int) -> None:
    seed = SystemRandom().randrange(2**32)
    start_counting(create(storage), MANY_TURNS)
    try:
        kill_at_random(storage, folder, seed, num_waves=num_waves)
    except AssertionError as error:
        raise AssertionError(f"with seed {seed}") from error


@pytest.mark.long
def test_many_killed_processes_on_a_directory_lose_nothing(tmp_path: Path) -> None:
    kill_waves(icefloe.local_filesystem_storage(tmp_path / "data"), tmp_path, 5)


@pytest.mark.long
def test_killed_processes_on_s3_lose_nothing_acknowledged(
    s3_server: S3Server, tmp_path: Path
) -> None:
    kill_waves(s3_server.storage(), tmp_path, 2)


# -- the storage goes away after request k, for every k


@cache
def furnished() -> dict[str, bytes]:
    """Two commits on `main`, a branch and a tag; inline and native chunks, long attributes."""
    storage = icefloe.in_memory_storage()
    repo = create(storage)
    session = repo.writable_session("main")
    top: Any = zarr.create_group(session.store, attributes={"title": "x" * 5000})
    top.create_array("a", shape=(400,), chunks=(200,), dtype="<i8")[:] = np.arange(400)
    top.create_array("b", shape=(4,), chunks=(1,), dtype="<i8")[:] = 1
    first = session.commit("first")
    repo.create_tag("old", first)
    repo.create_branch("side", first)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b", mode="r+")[0] = 2
    session.commit("second")
    return read_objects(storage)


def copy_of(kind: str, folder: Path) -> Storage:
    storage = new_storage(kind, folder)
    write_objects(storage, furnished())
    return storage


def opened(storage: Storage, driver: Driver | None = None) -> icefloe.Repository:
    handle = run_blocking(
        lifecycle.open_repository(storage, driver or driver_of(storage), None, Clock())
    )
    return icefloe.Repository(Handles(handle, is_blocking=True))


def portrait(storage: Storage) -> tuple[dict[str, Any], list[Tree]]:
    """What can be seen, without ids and times."""
    repo = opened(storage)
    names: dict[str, Any] = {}
    trees = []
    for kind, listed in (("branch", repo.list_branches()), ("tag", repo.list_tags())):
        for name in sorted(listed):
            names[f"{kind} {name}"] = [
                (entry.message, entry.metadata) for entry in repo.ancestry(**{kind: name})
            ]
            ref: dict[str, Any] = {kind: name}
            trees.append(read_tree(repo.readonly_session(**ref).store))
    return names, trees


def same(one: tuple[dict[str, Any], list[Tree]], other: tuple[dict[str, Any], list[Tree]]) -> bool:
    if one[0] != other[0]:
        return False
    try:
        for mine, yours in zip(one[1], other[1], strict=True):
            assert_same(mine, yours)
    except AssertionError:
        return False
    return True


def commit_edits(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    top: Any = zarr.open_group(session.store, mode="r+")
    top["a"][200:] = 7
    top["b"][3] = 9
    top.attrs["title"] = "y" * 6000
    top.create_group("fresh")
    session.commit("edited", {"by": "us"})


def rename(repo: icefloe.Repository) -> None:
    session = repo.rearrange_session("main")
    session.move("/a", "/renamed")
    session.commit("renamed")


OPERATIONS = {
    "commit": commit_edits,
    "rename": rename,
    "create tag": lambda repo: repo.create_tag("new", repo.lookup_branch("main")),
    "delete tag": lambda repo: repo.delete_tag("old"),
    "create branch": lambda repo: repo.create_branch("new", repo.lookup_branch("main")),
    "delete branch": lambda repo: repo.delete_branch("side"),
    "reset branch": lambda repo: repo.reset_branch("main", repo.lookup_branch("side")),
}


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_cut_after_any_request_leaves_the_old_state_or_the_new(
    operation: Any, kind: str, tmp_path: Path
) -> None:
    storage = copy_of("memory", tmp_path)
    before = portrait(storage)
    operation(opened(storage))
    after = portrait(storage)
    assert not same(before, after)
    for num_requests in range(MOST_REQUESTS):
        storage = copy_of(kind, tmp_path)
        driver = FaultyDriver(driver_of(storage))
        repo = opened(storage, driver)
        driver.reset()
        driver.cut_after = num_requests
        try:
            operation(repo)
        except StorageError:
            assert driver.num_refused
        else:
            assert same(portrait(storage), after)
            assert num_requests > 0
            return
        # The write of the state file is the last one, so it was not made.
        assert same(portrait(storage), before)
        operation(opened(storage))
        assert same(portrait(storage), after)
    pytest.fail(f"it has not come to an end in {MOST_REQUESTS} requests")


def create_with(storage: Storage, driver: Driver) -> None:
    run_blocking(
        lifecycle.create_repository(
            storage,
            driver,
            None,
            Clock(),
            spec_version=0,
            format_version=icefloe.StateFileDataset().format_version(),
            check_clean_root=True,
        )
    )


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_creation_cut_after_any_request_can_be_repeated(kind: str, tmp_path: Path) -> None:
    """Section "Initialize New Store"."""
    for num_requests in range(MOST_REQUESTS):
        storage = new_storage(kind, tmp_path)
        driver = FaultyDriver(driver_of(storage), cut_after=num_requests)
        try:
            create_with(storage, driver)
        except StorageError:
            assert driver.num_refused
        else:
            assert num_requests > 2
            assert opened(storage).list_branches() == {"main"}
            return
        with pytest.raises(RepositoryNotFoundError):
            opened(storage)
        create_with(storage, driver_of(storage))
        assert len(list(opened(storage).ancestry(branch="main"))) == 1
    pytest.fail(f"it has not come to an end in {MOST_REQUESTS} requests")


def test_a_lost_answer_of_the_swap_is_found_out() -> None:
    """A commit whose answer got lost is in the history once."""
    storage = copy_of("memory", Path())
    driver = FaultyDriver(driver_of(storage), has_recovery=True)
    repo = opened(storage, driver)
    driver.reset()
    driver.lose_answer_of = 1
    commit_edits(repo)
    messages = [entry.message for entry in opened(storage).ancestry(branch="main")]
    assert messages == ["edited", "second", "first", "Repository initialized"]


def test_rebasing_writers_of_different_arrays_all_get_in() -> None:
    """Many sessions from one base, committed in a random order with a solver."""
    storage = icefloe.in_memory_storage()
    repo = create(storage)
    session = repo.writable_session("main")
    top: Any = zarr.create_group(session.store)
    for name in "abcdef":
        top.create_array(name, shape=(6,), chunks=(1,), dtype="<i4")
    session.commit("arrays")
    sessions = []
    for at, name in enumerate("abcdef"):
        session = repo.writable_session("main")
        group: Any = zarr.open_group(session.store, mode="r+")
        group[name][at] = at + 1
        group.create_group(f"new-{name}")
        sessions.append(session)
    Random(5).shuffle(sessions)
    for session in sessions:
        session.commit("one", rebase_with=icefloe.ConflictDetector())
    found: Any = zarr.open_group(opened(storage).readonly_session("main").store, mode="r")
    for at, name in enumerate("abcdef"):
        assert found[name][:].tolist() == [at + 1 if n == at else 0 for n in range(6)]
    assert len(list(found.group_keys())) == 6


def test_a_conflict_is_refused_and_the_session_keeps_its_changes() -> None:
    storage = copy_of("memory", Path())
    repo = opened(storage)
    mine, theirs = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(mine.store, path="b", mode="r+")[1] = 5
    zarr.open_array(theirs.store, path="b", mode="r+")[1] = 6
    theirs.commit("theirs")
    with pytest.raises(icefloe.ConflictError):
        mine.commit("mine")
    with pytest.raises(icefloe.RebaseFailedError):
        mine.rebase(icefloe.ConflictDetector())
    solver = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseOurs)
    mine.rebase(solver)
    mine.commit("mine")
    found: Any = zarr.open_array(opened(storage).readonly_session("main").store, path="b")
    assert found[1] == 5
