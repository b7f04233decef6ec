"""The storage goes away after request k, for every k of every operation.

Whatever k is, the repository opens and shows the state before or the state after, and the
operation can be done again: by the same process when the storage comes back, or by a new one.
Changes of refs and settings in version 1 look for upgrades after their write. If that fails, they
say that they do not know.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.errors import RepositoryNotFoundError, StorageError, UnknownOutcomeError
from icefloe.ids import SnapshotId
from icefloe.repo import lifecycle
from icefloe.repo.handle import Clock
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.testing.faults import FaultyDriver
from tests.safety.scenarios import OPERATIONS, Operation, cases
from tests.safety.worlds import (
    Portrait,
    contents,
    copy_of,
    driver_of,
    new_storage,
    open_handle,
    portrait,
    read_objects,
    write_objects,
)

MOST_REQUESTS = 40
KINDS = ["memory", "local"]


@cache
def undisturbed(spec: int, operation: Operation) -> tuple[Portrait, Portrait]:
    """What can be seen before and after."""
    storage = copy_of(spec, "memory", Path(), has_config=operation.has_config)
    before = portrait(storage)
    handle = open_handle(storage)
    run_blocking(operation.run(handle, run_blocking(operation.prepare(handle))))
    return before, portrait(storage)


def check_result(storage: Storage, result: Any) -> None:
    """An acknowledged snapshot is there with everything in it."""
    if isinstance(result, SnapshotId):
        found = contents(open_handle(storage), result.text)
        assert found["inline/c/2"] == (7).to_bytes(8, "little")
        assert "native/c/3" not in found
        assert "doomed/zarr.json" not in found


@pytest.mark.parametrize(
    ("kind", "is_same_process"),
    [("memory", True), ("local", False)],
    ids=["memory, repeated by the same process", "local, repeated by a new process"],
)
@pytest.mark.parametrize(("spec", "operation"), cases(OPERATIONS), ids=str)
def test_a_cut_after_any_request_leaves_the_old_state_or_the_new(
    spec: int, operation: Operation, kind: str, is_same_process: bool, tmp_path: Path
) -> None:
    before, after = undisturbed(spec, operation)
    assert (before != after) == (operation.is_visible or spec > 1)
    for num_requests in range(MOST_REQUESTS):
        storage = copy_of(spec, kind, tmp_path, has_config=operation.has_config)
        driver = FaultyDriver(driver_of(storage))
        handle = open_handle(storage, driver)
        prepared = run_blocking(operation.prepare(handle))
        driver.reset()
        driver.cut_after = num_requests
        try:
            result = run_blocking(operation.run(handle, prepared))
        except UnknownOutcomeError:
            assert spec == 1
            assert driver.num_refused
            assert portrait(storage) == after
            continue
        except StorageError:
            assert driver.num_refused
        else:
            assert portrait(storage) == after
            check_result(storage, result)
            assert num_requests > 0, "an operation that makes no requests was not tested"
            return
        # The write that makes it visible is the last one, so it was not made.
        assert portrait(storage) == before
        driver.cut_after = None
        if not is_same_process:
            handle = open_handle(storage)
            prepared = run_blocking(operation.prepare(handle))
        result = run_blocking(operation.run(handle, prepared))
        assert portrait(storage) == after
        check_result(storage, result)
    pytest.fail(f"{operation.name} has not come to an end in {MOST_REQUESTS} requests")


# -- creating

CONFIGS = [None, icefloe.RepositoryConfig(inline_chunk_threshold_bytes=17)]


def create(
    storage: Storage,
    driver: Driver,
    spec: int,
    config: icefloe.RepositoryConfig | None,
    *,
    check_clean_root: bool,
) -> None:
    run_blocking(
        lifecycle.create_repository(
            storage,
            driver,
            config,
            Clock(),
            spec_version=spec,
            check_clean_root=check_clean_root,
        )
    )


def seen_or_missing(storage: Storage) -> Portrait | None:
    try:
        return portrait(storage)
    except RepositoryNotFoundError:
        return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", CONFIGS, ids=["no config", "config"])
@pytest.mark.parametrize("spec", [1, 2])
def test_a_creation_cut_after_any_request_leaves_no_repository_or_a_whole_one(
    spec: int, config: icefloe.RepositoryConfig | None, kind: str, tmp_path: Path
) -> None:
    storage = new_storage(kind, tmp_path)
    create(storage, driver_of(storage), spec, config, check_clean_root=True)
    after = portrait(storage)
    for num_requests in range(MOST_REQUESTS):
        storage = new_storage(kind, tmp_path)
        driver = FaultyDriver(driver_of(storage), cut_after=num_requests)
        try:
            create(storage, driver, spec, config, check_clean_root=True)
        except StorageError:
            assert driver.num_refused
        else:
            assert portrait(storage) == after
            assert num_requests >= 3
            return
        assert seen_or_missing(storage) in (None, after)
        if seen_or_missing(storage) is None:
            create(storage, driver_of(storage), spec, config, check_clean_root=True)
        assert portrait(storage) == after
        commit_something(storage)
    pytest.fail(f"creating has not come to an end in {MOST_REQUESTS} requests")


def commit_something(storage: Storage) -> None:
    repo = icefloe.Repository.open(storage)
    num_before = len(list(repo.ancestry(branch="main")))
    repo.writable_session("main").commit("on top", allow_empty=True)
    assert len(list(repo.ancestry(branch="main"))) == num_before + 1


@pytest.mark.parametrize("wanted", [1, 2])
@pytest.mark.parametrize("spec", [1, 2])
def test_creating_on_top_of_a_repository_is_refused_and_changes_nothing(
    spec: int, wanted: int, tmp_path: Path
) -> None:
    """`check_clean_root=False` is for places with other people's objects, not a way to hide a
    repository with all its commits behind a new one."""
    storage = copy_of(spec, "memory", tmp_path)
    before, objects = portrait(storage), read_objects(storage)
    times = [entry.written_at for entry in icefloe.Repository.open(storage).ancestry(branch="main")]
    with pytest.raises(icefloe.AlreadyExistsError):
        create(storage, driver_of(storage), wanted, None, check_clean_root=False)
    assert portrait(storage) == before
    repo = icefloe.Repository.open(storage)
    assert [entry.written_at for entry in repo.ancestry(branch="main")] == times
    assert read_objects(storage) == objects


def test_copies_are_exact(tmp_path: Path) -> None:
    """The other tests here rest on it."""
    for kind in KINDS:
        storage = copy_of(2, kind, tmp_path)
        objects = read_objects(storage)
        assert objects == read_objects(copy_of(2, kind, tmp_path))
        other = new_storage(kind, tmp_path)
        write_objects(other, objects)
        assert portrait(other) == portrait(storage)
