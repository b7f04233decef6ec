"""An upgrade from version 1 to 2 during commits: none that was acknowledged is lost.

Writers of version 1 were opened before the upgrade. Others open what they find when they start.

Short: orders with one interruption, a sample of all orders, a crash of the upgrade after every
request in a sample of orders, and processes that are killed. Long: every order of the requests on
`main`, the fence and `repo`; every order with few interruptions on every kind of storage, with a
crash after every request.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.changes.conflicts import BasicConflictSolver, VersionSelection
from icefloe.errors import ErrorKind, IcechunkError, ReadOnlyError
from icefloe.format import layout
from icefloe.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.repo import commit, lifecycle
from icefloe.repo import session as sessions
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.driver import Driver
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.store import operations
from icefloe.testing.faults import FaultyDriver, Request
from icefloe.testing.schedule import (
    Case,
    Outcome,
    StepDriver,
    every_schedule,
    schedules_with_few_switches,
    some_schedules,
)
from tests.maintenance.races import Place, upgrades
from tests.places import KINDS, fresh_storage
from tests.safety.counting import check_counting, start_counting
from tests.safety.crews import crew as crew_of
from tests.safety.crews import wait_for_all
from tests.safety.worker import Job, UpgradeJob
from tests.safety.worlds import Objects, driver_of, open_handle, read_objects, write_objects

Work = Callable[[Storage, Driver, RepoHandle], Coroutine[Any, Any, Any]]
DECISIVE = (layout.REFS, layout.REPO, layout.COLLECTED, layout.CONFIG_YAML)


@cache
def small(branches: int = 1) -> Objects:
    """A repository of version 1 with one array of a few inline chunks."""
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=1)
    session = repo.writable_session("main")
    made = zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="<i8")
    made[:] = 1
    tip = session.commit("first")
    for number in range(branches - 1):
        repo.create_branch(f"other {number}", tip)
    return read_objects(storage)


# -- operations; `handle` was opened before the upgrade, through `driver`


async def upgrade(storage: Storage, driver: Driver, handle: RepoHandle) -> None:
    await upgrades(handle)


async def commits_v1(storage: Storage, driver: Driver, handle: RepoHandle) -> SnapshotId:
    return await _commit(handle, 1)


async def commits_once_v1(storage: Storage, driver: Driver, handle: RepoHandle) -> SnapshotId:
    return await _commit(handle, 1, rebases=False)


async def commits_as_found(storage: Storage, driver: Driver, handle: RepoHandle) -> SnapshotId:
    """Whatever version is there when this starts."""
    found = await lifecycle.open_repository(storage, driver, None, Clock())
    return await _commit(found, 2)


async def _commit(handle: RepoHandle, at: int, *, rebases: bool = True) -> SnapshotId:
    state = await sessions.open_writable(handle, "main")
    workspace = Workspace(handle, state)
    await operations.set_key(workspace, f"a/c/{at}", bytes([at]) * 8)
    solver = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
    return await commit.commit(
        workspace, f"chunk {at}", None, rebase_with=solver if rebases else None
    )


async def creates_branch(storage: Storage, driver: Driver, handle: RepoHandle) -> str:
    tip = await handle.format.lookup_branch(handle, "main")
    await handle.format.create_branch(handle, "new", tip)
    return "branch new"


async def creates_tag(storage: Storage, driver: Driver, handle: RepoHandle) -> str:
    tip = await handle.format.lookup_branch(handle, "main")
    await handle.format.create_tag(handle, "new", tip)
    return "tag new"


async def deletes_branch(storage: Storage, driver: Driver, handle: RepoHandle) -> str:
    await handle.format.delete_branch(handle, "other 0")
    return "no branch other 0"


class DecisiveSteps(StepDriver):
    """Steps only ahead of requests that two operations may have in common. All others are about
    objects that are written once, with random names."""

    async def before(self, method: str, key: str) -> None:
        if key.startswith(DECISIVE):
            await super().before(method, key)


class StepsOnMain(StepDriver):
    """Steps only ahead of requests on the objects that an upgrade and a commit to `main` change."""

    async def before(self, method: str, key: str) -> None:
        if key in (layout.branch_key("main"), layout.REPO, layout.COLLECTED):
            await super().before(method, key)


def race(
    place: Place,
    *works: Work,
    branches: int = 1,
    cut_after: int | None = None,
    steps: type[StepDriver] = StepDriver,
) -> Callable[[], Case[Storage]]:
    """`cut_after` is about the first operation: the upgrade."""

    def make() -> Case[Storage]:
        storage = place.storage()
        write_objects(storage, small(branches))
        return Case(storage, [start(storage, work, number) for number, work in enumerate(works)])

    def start(storage: Storage, work: Work, number: int) -> Coroutine[Any, Any, Any]:
        inner = driver_of(storage)
        if number == 0 and cut_after is not None:
            inner = FaultyDriver(inner, cut_after=cut_after)
        driver = steps(inner)
        opened = open_handle(storage)
        handle = lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())
        return work(storage, driver, handle)

    return make


def check(outcome: Outcome[Storage], *, is_cut: bool = False) -> None:
    """What was acknowledged is there: now, after the upgrade was repeated, and after a commit."""
    acknowledged = [each for each in outcome.results.values() if not isinstance(each, Exception)]
    for error in outcome.results.values():
        assert error is None or not isinstance(error, Exception) or isinstance(error, IcechunkError)
    require_there(outcome, acknowledged)
    if is_cut:
        with contextlib.suppress(icefloe.errors.SessionStateError):  # nothing is left to do
            run_blocking(upgrades(open_handle(outcome.world)))
        require_there(outcome, acknowledged)
    handle = open_handle(outcome.world)
    assert handle.format.has_repo_object, outcome.results
    acknowledged.append(run_blocking(_commit(handle, 3)))
    require_there(outcome, acknowledged)
    assert run_blocking(driver_of(outcome.world).list("refs/branch.main")) == []


def require_there(outcome: Outcome[Storage], acknowledged: list[Any]) -> None:
    handle = open_handle(outcome.world)
    format_version = handle.format
    tip = run_blocking(format_version.lookup_branch(handle, "main"))
    line = [info.id for info in run_blocking(format_version.ancestry(handle, tip))]
    refs = {f"branch {name}" for name in run_blocking(format_version.list_branches(handle))}
    refs |= {f"tag {name}" for name in run_blocking(format_version.list_tags(handle))}
    for each in acknowledged:
        if isinstance(each, str):
            kept = each.removeprefix("no ") not in refs if each.startswith("no ") else each in refs
            assert kept, (each, outcome.trace)
        elif each is not None:
            assert each in line, (outcome.order, outcome.trace, outcome.results)


CREWS: dict[str, tuple[Work, ...]] = {
    "a commit of version 1": (upgrade, commits_once_v1),
    "a writer of version 1": (upgrade, commits_v1),
    "a writer that opens what it finds": (upgrade, commits_as_found),
    "two writers of version 1": (upgrade, commits_v1, commits_v1),
    "writers of both versions": (upgrade, commits_v1, commits_as_found),
    "another upgrade and a writer": (upgrade, commits_v1, upgrade),
    "another upgrade and both writers": (upgrade, commits_v1, commits_as_found, upgrade),
    "a new branch": (upgrade, creates_branch),
    "a new tag": (upgrade, creates_tag),
    "a deleted branch": (upgrade, deletes_branch),
}
by_crew = pytest.mark.parametrize("crew", CREWS)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind = request.param
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    return Place(kind, tmp_path, server)


def make_race(place: Place, crew: str, **options: Any) -> Callable[[], Case[Storage]]:
    return race(place, *CREWS[crew], branches=2 if "deleted" in crew else 1, **options)


def is_decisive(request: Request) -> bool:
    return request.key.startswith(DECISIVE)


@pytest.mark.parametrize("crew", [name for name, works in CREWS.items() if len(works) == 2])
def test_upgrade_beside_writers_loses_nothing_in_orders_with_one_switch(
    tmp_path: Path, crew: str
) -> None:
    make = make_race(Place("memory", tmp_path), crew)
    for outcome in schedules_with_few_switches(make, most_switches=1, can_switch=is_decisive):
        check(outcome)


def test_the_repository_is_found_at_every_moment_of_an_upgrade() -> None:
    """Whoever finds no `repo` and then no `main` looks again: an upgrade has just ended."""

    def make() -> Case[Storage]:
        storage = icefloe.in_memory_storage()
        write_objects(storage, small())
        opening = lifecycle.open_repository(storage, StepDriver(driver_of(storage)), None, Clock())
        opened = open_handle(storage)
        driver = StepDriver(driver_of(storage))
        handle = lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())
        return Case(storage, [opening, upgrades(handle)])

    found = set()
    for outcome in schedules_with_few_switches(make, most_switches=2, can_switch=is_decisive):
        handle = outcome.results[0]
        assert isinstance(handle, RepoHandle), f"{handle!r} in order {outcome.order}"
        found.add(handle.format.spec_version)
    assert found == {1, 2}


@by_crew
def test_upgrade_beside_writers_loses_nothing_in_some_orders(place: Place, crew: str) -> None:
    make = make_race(place, crew, steps=DecisiveSteps)
    for outcome in some_schedules(make, number=20 if place.kind == "memory" else 3, seed=7):
        check(outcome)


def num_requests(crew: str) -> int:
    """Requests of an upgrade that nothing disturbs."""
    storage = icefloe.in_memory_storage()
    write_objects(storage, small(2 if "deleted" in crew else 1))
    driver = FaultyDriver(driver_of(storage))
    opened = open_handle(storage)
    handle = lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())
    run_blocking(upgrades(handle))
    return driver.num_requests


@pytest.mark.parametrize("crew", ["writers of both versions", "another upgrade and a writer"])
def test_upgrade_beside_writers_that_crashes_anywhere_can_be_repeated(
    place: Place, crew: str
) -> None:
    number = 4 if place.kind == "memory" else 1
    for cut_after in range(num_requests(crew) + 3):
        make = make_race(place, crew, cut_after=cut_after, steps=DecisiveSteps)
        for outcome in some_schedules(make, number=number, seed=cut_after):
            check(outcome, is_cut=True)


def test_a_killed_upgrade_leaves_a_repository_that_says_what_to_do() -> None:
    storage = icefloe.in_memory_storage()
    write_objects(storage, small(2))
    writer = icefloe.Repository.open(storage)
    session = writer.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0] = 5
    opened = open_handle(storage)

    class Killed(FaultyDriver):
        """Everything works, up to the write that would be the upgrade."""

        async def before(self, method: str, key: str) -> None:
            if (method, key) == ("put_if", layout.REPO):
                self.cut_after = 0
            await super().before(method, key)

    driver = Killed(driver_of(storage))
    handle = lifecycle.make_handle(storage, driver, opened.format, opened.config, Clock())
    with pytest.raises(IcechunkError) as failed:
        run_blocking(upgrades(handle))
    assert "takes no changes until" in failed.value.__notes__[0]
    tip = writer.lookup_branch("main")
    for change in (
        lambda: session.commit("stopped"),
        lambda: writer.create_tag("stopped", tip),
        lambda: writer.create_branch("stopped", tip),
        lambda: writer.delete_branch("other 0"),
        lambda: writer.reset_branch("main", tip),
        writer.save_config,
        lambda: writer.expire_snapshots(writer.lookup_snapshot(tip).written_at),
        lambda: writer.garbage_collect(writer.lookup_snapshot(tip).written_at),
    ):
        with pytest.raises(ReadOnlyError, match="call upgrade_icechunk_repository again") as caught:
            change()
        assert caught.value.kind == ErrorKind.READ_ONLY_REPOSITORY
    # Readers notice nothing.
    assert icefloe.Repository.open(storage).lookup_branch("main") == tip
    repo = icefloe.upgrade_icechunk_repository(icefloe.Repository.open(storage), dry_run=False)
    assert repo.lookup_branch("main") == tip
    assert repo.list_branches() == {"main", "other 0"}
    assert repo.list_tags() == set()


def test_a_repository_that_cannot_be_upgraded_goes_on_in_version_1() -> None:
    storage = icefloe.in_memory_storage()
    write_objects(storage, small())
    repo = icefloe.Repository.open(storage)
    run_blocking(driver_of(storage).delete_many([layout.snapshot_key(FIRST_SNAPSHOT_ID)]))
    with pytest.raises(IcechunkError, match="missing"):
        icefloe.upgrade_icechunk_repository(repo, dry_run=False)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0] = 5
    session.commit("goes on")


# -- processes


@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_kills", [0, 4])
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_upgrade_beside_processes_loses_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, official: Any, kind: str, num_kills: int
) -> None:
    """Writers that were opened before go on in version 2. All upgrades but the last are killed."""
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    storage = fresh_storage(kind, tmp_path, server)
    num_writers, num_turns = 3, 12
    start_counting(icefloe.Repository.create(storage, spec_version=1), num_turns)
    jobs = [
        Job(storage, writer, num_turns, tmp_path / f"acknowledged-{writer}", reopens=True)
        for writer in range(num_writers)
    ]
    seed = random.SystemRandom().randrange(2**32)
    drawn = random.Random(seed)
    with crew_of(num_writers) as workers, crew_of(num_kills + 1) as upgraders:
        for worker, job in zip(workers, jobs, strict=True):
            worker.start(job)
        deadline = time.monotonic() + 60
        while sum(len(job.acknowledged()) for job in jobs) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        for upgrader in upgraders[:-1]:
            upgrader.start(UpgradeJob(storage))
            time.sleep(drawn.uniform(0, 0.2))
            upgrader.kill()
        upgraders[-1].start(UpgradeJob(storage))
        wait_for_all(upgraders[-1:], "done")
        wait_for_all(workers, "done")
    repo = icefloe.Repository.open(storage)
    assert repo.spec_version == 2
    acknowledged = [counted for job in jobs for counted in job.acknowledged()]
    assert len(acknowledged) == num_writers * num_turns
    assert check_counting(repo, acknowledged) == num_writers * num_turns, seed
    if kind == "local":
        theirs = official.Repository.open(
            official.local_filesystem_storage(str(tmp_path / "repository"))
        )
        known = {entry.id for entry in theirs.ancestry(branch="main")}
        assert {counted.snapshot_id for counted in acknowledged} <= known
        store = theirs.readonly_session("main").store
        assert zarr.open_array(store, path="counter", mode="r")[0] == len(acknowledged)


# -- long


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("crew", ["a commit of version 1", "a writer that opens what it finds"])
def test_upgrade_beside_a_writer_loses_nothing_in_any_order(tmp_path: Path, crew: str) -> None:
    make = make_race(Place("memory", tmp_path), crew, steps=StepsOnMain)
    number = 0
    for number, outcome in enumerate(every_schedule(make)):  # noqa: B007
        check(outcome)
    assert number > 1000


@pytest.mark.long
@pytest.mark.timeout(3600)
@by_crew
def test_upgrade_beside_writers_loses_nothing_in_any_order_with_few_switches(
    place: Place, crew: str
) -> None:
    most = {"memory": 3, "local": 2, "s3": 1}[place.kind] - (len(CREWS[crew]) > 2)
    make = make_race(place, crew)
    for outcome in schedules_with_few_switches(make, most_switches=most, can_switch=is_decisive):
        check(outcome)


@pytest.mark.long
@pytest.mark.timeout(3600)
@by_crew
def test_upgrade_beside_writers_that_crashes_loses_nothing_in_any_order_with_one_switch(
    place: Place, crew: str
) -> None:
    for cut_after in range(num_requests(crew) + 10):
        make = make_race(place, crew, cut_after=cut_after)
        for outcome in schedules_with_few_switches(make, most_switches=1, can_switch=is_decisive):
            check(outcome, is_cut=True)
