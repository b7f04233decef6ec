"""Collections beside everything else, in many orders of their requests, and cut off.

Long: every order that interrupts an operation at most three times (two in a directory, one on S3),
and the crash of each operation after each of its requests, on every kind of storage.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.errors import SessionStateError
from icefloe.repo import commit, session
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.testing.faults import FaultyDriver
from icefloe.testing.schedule import schedules_with_few_switches, some_schedules
from tests.maintenance import races
from tests.maintenance.races import RACES, Place, Work
from tests.places import KINDS
from tests.safety.worlds import driver_of, open_handle, portrait, write_objects

CASES = [(name, spec) for name, race in RACES.items() for spec in race.specs]
IDS = [f"{name}, spec {spec}" for name, spec in CASES]
MOST_SWITCHES = {"memory": 3, "local": 2, "s3": 1}
A_CRASH = (
    "collects",
    "collects_shortly",
    "runs_plan",
    "expires",
    "commits",
    "amends",
    "merges",
    "upgrades",
)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind = request.param
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    return Place(kind, tmp_path, server)


@pytest.mark.parametrize(("name", "spec"), CASES, ids=IDS)
def test_nothing_in_use_is_deleted(place: Place, name: str, spec: int) -> None:
    race = RACES[name]
    number = 2 if place.kind == "memory" else 1
    for outcome in some_schedules(races.race(place, spec, *race.works), number=number, seed=5):
        race.check(outcome.world, outcome.results)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "spec"), CASES, ids=IDS)
def test_nothing_in_use_is_deleted_in_any_order_with_few_switches(
    place: Place, name: str, spec: int
) -> None:
    race = RACES[name]
    most = MOST_SWITCHES[place.kind] - (len(race.works) > 2)
    make = races.race(place, spec, *race.works)
    for outcome in schedules_with_few_switches(
        make, most_switches=most, can_switch=race.can_switch
    ):
        race.check(outcome.world, outcome.results, is_quick=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "spec"), CASES, ids=IDS)
def test_nothing_in_use_is_deleted_in_many_orders(place: Place, name: str, spec: int) -> None:
    race = RACES[name]
    number = {"memory": 600, "local": 100, "s3": 25}[place.kind]
    for outcome in some_schedules(races.race(place, spec, *race.works), number=number, seed=6):
        race.check(outcome.world, outcome.results, is_quick=True)


# -- cut off after every request


def crash_cases() -> list[tuple[str, int]]:
    specs = {"amends": (2,), "upgrades": (1,)}
    return [(name, spec) for name in A_CRASH for spec in specs.get(name, (1, 2))]


@pytest.mark.parametrize(("name", "spec"), crash_cases())
def test_a_crash_after_some_request_does_no_harm(tmp_path: Path, name: str, spec: int) -> None:
    crash_everywhere(Place("memory", tmp_path), spec, getattr(races, name), step=9)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "spec"), crash_cases())
def test_a_crash_after_any_request_does_no_harm(place: Place, name: str, spec: int) -> None:
    crash_everywhere(place, spec, getattr(races, name))


def crash_everywhere(place: Place, spec: int, work: Work, *, step: int = 1) -> None:
    """Then a session that was open all the time commits, and a collection runs."""
    objects = races.furnished_with_garbage(spec)
    whole = place.storage()
    write_objects(whole, objects)
    before = seen(whole)
    run_blocking(work(open_handle(whole)))
    run_blocking(races.collects(open_handle(whole)))
    after = seen(whole)
    number = 0
    while True:
        storage = place.storage()
        write_objects(storage, objects)
        slow = open_handle(storage)
        state = run_blocking(session.open_writable(slow, "main"))
        run_blocking(races.set_chunk(slow, state, 3, 99))
        driver = FaultyDriver(driver_of(storage), cut_after=number)
        with contextlib.suppress(icefloe.IcechunkError):
            run_blocking(work(races.handle_over(storage, driver)))
        races.check_sound(storage)
        if work is not races.expires or open_handle(storage).format.has_repo_object:
            assert seen(storage) in (before, after)
        is_done = not driver.num_refused
        has_landed = False
        with contextlib.suppress(icefloe.IcechunkError):
            run_blocking(commit.commit(Workspace(slow, state), "slow", None))
            has_landed = True
        tip = seen(storage)["branches"]["main"][0][0][0]
        assert (tip == "slow") == has_landed
        if work is races.upgrades:  # until it is repeated, the repository takes no changes
            with contextlib.suppress(SessionStateError):
                run_blocking(work(open_handle(storage)))
        run_blocking(races.collects(open_handle(storage)))
        races.check_sound(storage, has_orphans=False)
        if is_done:
            break
        number += step
    assert number >= 3


def seen(storage: Storage) -> dict[str, Any]:
    found = portrait(storage)
    return {key: found[key] for key in ("branches", "tags", "retired tags")}
