"""The answer to a conditional write gets lost, at every conditional write of every operation.

The write may have been carried out, or not, and somebody else may write before the loser can
look. Whatever happened, the caller gets the truth or an UnknownOutcomeError; never a conflict
with itself, never a success that is none, and the change is there at most once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.config.repository import ResolvedRetries
from icefloe.errors import ErrorKind, StorageError, UnknownOutcomeError
from icefloe.repo import lifecycle
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.storage.driver import PROBE_DIRECTORY, Driver, Version
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.testing.faults import FaultyDriver
from tests.proxy import Seen, misbehaving_proxy
from tests.safety.scenarios import AMEND, COMMIT, FLUSH, OPERATIONS, Operation, cases
from tests.safety.worlds import Portrait, copy_of, driver_of, open_handle, portrait
from tests.servers import S3Server

WITH_SESSION = {COMMIT.name, AMEND.name, FLUSH.name}


def run(operation: Operation, handle: RepoHandle, prepared: Any) -> Any:
    """The result, or the error that was raised."""
    try:
        return run_blocking(operation.run(handle, prepared))
    except icefloe.IcechunkError as error:
        return error


@cache
def undisturbed(spec: int, operation: Operation) -> tuple[Portrait, Portrait, int]:
    """What can be seen before and after, and how many conditional writes it takes."""
    storage = copy_of(spec, "memory", Path(), has_config=operation.has_config)
    before = portrait(storage)
    driver = FaultyDriver(driver_of(storage))
    handle = open_handle(storage, driver)
    run_blocking(operation.run(handle, run_blocking(operation.prepare(handle))))
    return before, portrait(storage), driver.num_requests_by_method()["put_if"]


def prepared_with(driver_class: Any, spec: int, operation: Operation, **options: Any) -> Any:
    """A fresh copy behind a driver, a handle and what the operation needs."""
    storage = copy_of(spec, "memory", Path(), has_config=operation.has_config)
    driver = driver_class(driver_of(storage), **options)
    handle = open_handle(storage, driver)
    prepared = run_blocking(operation.prepare(handle))
    driver.reset()
    return storage, driver, handle, prepared


@pytest.mark.parametrize(("spec", "operation"), cases(OPERATIONS), ids=str)
def test_a_write_that_can_be_read_back_counts_as_done(spec: int, operation: Operation) -> None:
    _, after, num_writes = undisturbed(spec, operation)
    for number in range(1, num_writes + 1):
        storage, driver, handle, prepared = prepared_with(
            FaultyDriver, spec, operation, lose_answer_of=number, has_recovery=True
        )
        result = run(operation, handle, prepared)
        assert not isinstance(result, Exception), result
        assert driver.num_requests_by_method()["put_if"] == num_writes, "it was written again"
        assert portrait(storage) == after


@pytest.mark.parametrize(("spec", "operation"), cases(OPERATIONS), ids=str)
def test_a_write_that_cannot_be_read_back_is_reported_as_unknown(
    spec: int, operation: Operation
) -> None:
    _, after, num_writes = undisturbed(spec, operation)
    for number in range(1, num_writes + 1):
        storage, driver, handle, prepared = prepared_with(
            FaultyDriver, spec, operation, lose_answer_of=number
        )
        result = run(operation, handle, prepared)
        assert isinstance(result, UnknownOutcomeError), result
        assert result.kind == ErrorKind.UNKNOWN_OUTCOME
        assert portrait(storage) == after
        if operation.name in WITH_SESSION - {FLUSH.name}:
            # Whoever does not look and just commits again gets a conflict, not a second commit.
            driver.lose_answer_of = None
            assert isinstance(run(operation, handle, prepared), icefloe.ConflictError)
            assert portrait(storage) == after


def test_every_operation_but_two_has_a_write_whose_answer_can_get_lost() -> None:
    """So that no case above passes for having nothing to do."""
    without = [(spec, op.name) for spec, op in cases(OPERATIONS) if not undisturbed(spec, op)[2]]
    # A version-1 branch is deleted without a condition; an anonymous snapshot has no ref there.
    assert sorted(without) == [(1, "delete branch"), (1, "flush")]


class LosesRequests(FaultyDriver):
    """The first conditional write is not even carried out."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner, has_recovery=True)
        # Memory, which loses nothing, has no second try unless it is told to.
        self.settings = replace(self.settings, retries=ResolvedRetries(max_tries=3))
        self.num_lost = 0

    async def put_if_losing_answers(
        self, key: str, data: bytes, previous: Version | None
    ) -> Version:
        if not self.num_lost:
            self.num_lost += 1
            raise StorageError(f"the request to write {key!r} was lost", ErrorKind.OBJECT_STORE)
        return await super().put_if_losing_answers(key, data, previous)


@pytest.mark.parametrize(("spec", "operation"), cases(OPERATIONS), ids=str)
def test_a_request_that_never_arrived_is_made_again(spec: int, operation: Operation) -> None:
    _, after, num_writes = undisturbed(spec, operation)
    storage, driver, handle, prepared = prepared_with(LosesRequests, spec, operation)
    result = run(operation, handle, prepared)
    assert not isinstance(result, Exception), result
    assert portrait(storage) == after
    assert driver.num_lost == min(1, num_writes)


class Overtaken(FaultyDriver):
    """A lost answer, or a lost request, after which somebody commits before we can look."""

    def __init__(self, inner: Driver, *, storage: Storage, is_carried_out: bool) -> None:
        super().__init__(inner, has_recovery=True)
        self._storage = storage
        self._is_carried_out = is_carried_out
        self.has_happened = False

    async def put_if_losing_answers(
        self, key: str, data: bytes, previous: Version | None
    ) -> Version:
        if self.has_happened:
            return await super().put_if_losing_answers(key, data, previous)
        self.has_happened = True
        if self._is_carried_out:
            await super().put_if_losing_answers(key, data, previous)
        rival = icefloe.Repository.open(self._storage).writable_session("main")
        rival.commit("rival", allow_empty=True)
        raise StorageError(f"the answer to writing {key!r} was lost", ErrorKind.OBJECT_STORE)


@pytest.mark.parametrize("is_carried_out", [True, False], ids=["written", "not written"])
@pytest.mark.parametrize(("spec", "operation"), cases([COMMIT, AMEND]), ids=str)
def test_a_commit_that_was_overtaken_unseen_is_unknown_and_there_at_most_once(
    spec: int, operation: Operation, is_carried_out: bool
) -> None:
    storage = copy_of(spec, "memory", Path())
    driver = Overtaken(driver_of(storage), storage=storage, is_carried_out=is_carried_out)
    handle = open_handle(storage, driver)
    prepared = run_blocking(operation.prepare(handle))
    result = run(operation, handle, prepared)
    assert driver.has_happened
    assert isinstance(result, UnknownOutcomeError), result
    messages = [message for message, _ in portrait(storage)["branches"]["main"][0]]
    assert messages.count("rival") == 1
    assert messages.count("edited") == is_carried_out
    assert messages[0] == "rival", "the rival's commit is still the tip"


# -- creating


@pytest.mark.parametrize("has_recovery", [True, False], ids=["read back", "not read back"])
@pytest.mark.parametrize("spec", [1, 2])
def test_a_lost_answer_to_creating_is_no_false_refusal(spec: int, has_recovery: bool) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=17)
    for number in range(1, 6):
        storage = icefloe.in_memory_storage()
        driver = FaultyDriver(driver_of(storage), lose_answer_of=number, has_recovery=has_recovery)
        try:
            run_blocking(
                lifecycle.create_repository(
                    storage, driver, config, Clock(), spec_version=spec, check_clean_root=True
                )
            )
        except UnknownOutcomeError:
            assert not has_recovery
        else:
            assert has_recovery or driver.num_requests_by_method()["put_if"] < number
        # Whatever the caller was told, trying again finds or makes the repository.
        if not has_recovery:
            icefloe.Repository.open_or_create(storage, config, create_version=spec)
        found = icefloe.Repository.open(storage)
        assert found.spec_version == spec
        assert found.config == config


# -- over HTTP, where the write carries an id by which it is recognised


def is_conditional_write(seen: Seen) -> bool:
    """Without those that find out, before anything is created, whether conditions are honoured."""
    return seen.method == "PUT" and seen.is_conditional and PROBE_DIRECTORY not in seen.path


def loses_answer(number: int) -> Any:
    """A fault for the proxy: the answer to the given conditional write, counted from 1."""
    seen_so_far = [0]

    def fault(seen: Seen) -> str:
        if not is_conditional_write(seen):
            return ""
        seen_so_far[0] += 1
        return "lose answer" if seen_so_far[0] == number else ""

    return fault


def steps(storage: Storage, spec: int) -> None:
    """Creating, committing, tagging, saving: five or six conditional writes."""
    repo = icefloe.Repository.create(storage, spec_version=spec)
    for message in ("one", "two"):
        repo.writable_session("main").commit(message, allow_empty=True)
    tip = repo.lookup_branch("main")
    repo.create_tag("tagged", tip)
    repo.create_branch("branched", tip)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=17)
    repo.reopen(config).save_config()


def check_steps(storage: Storage, spec: int) -> Mapping[str, Any]:
    seen = portrait(storage)
    assert seen["spec"] == spec
    assert [message for message, _ in seen["branches"]["main"][0]] == [
        "two",
        "one",
        "Repository initialized",
    ]
    assert seen["branches"].keys() == {"main", "branched"}
    assert seen["tags"].keys() == {"tagged"}
    assert seen["config"].inline_chunk_threshold_bytes == 17
    return seen


@pytest.mark.parametrize("spec", [1, 2])
def test_every_lost_answer_over_http_is_recognised(s3_server: S3Server, spec: int) -> None:
    with misbehaving_proxy(s3_server) as proxy:
        steps(proxy.storage("http-undisturbed-" + str(spec)), spec)
        num_writes = sum(map(is_conditional_write, proxy.seen))
        assert num_writes >= 6
        expected = check_steps(s3_server.storage("http-undisturbed-" + str(spec)), spec)
        for number in range(1, num_writes + 1):
            place = f"http-{spec}-{number}"
            proxy.fault = loses_answer(number)
            steps(proxy.storage(place), spec)
            proxy.fault = lambda _: ""
            assert check_steps(s3_server.storage(place), spec) == expected
