"""Drivers that are killed right before their commit, or right after it, and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.clusters import ORDER_SECONDS, START_SECONDS, FaultDriver
from tests.spark.danger import What
from tests.spark.fault_driver import Order
from tests.spark.fault_jobs import (
    COMMIT,
    JOBS,
    Place,
    check_done,
    check_unchanged,
    history,
    state,
)

NAMES = ["table", "regions, manifests lost"]
OTHERS = ["dataset", "native append"]
MOMENTS: tuple[What, ...] = ("park before", "park after")

Killed = tuple[Place, tuple[dict[str, Any], list[str]]]


def kill_driver(folder: Path, names: list[str]) -> dict[tuple[str, What], Killed]:
    """Kill a driver that has begun all jobs, each in a place of its own, and finished none."""
    driver = FaultDriver(folder / "driver.log", "local[2]", driver__memory="1g")
    places: dict[tuple[str, What], Killed] = {}
    try:
        for what in MOMENTS:
            for name in names:
                place = JOBS[name].prepare(folder / f"{what} {name}")
                before = state(place.open()), history(place.open())
                fault = place.fault(what, COMMIT, "commit")
                assert driver.obey(Order(name, str(place.folder), fault)) == {"parked": name}
                places[name, what] = place, before
    finally:
        driver.kill()
    return places


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, What], Killed]:
    return kill_driver(tmp_path_factory.mktemp("drivers"), NAMES)


@pytest.fixture(scope="module")
def others_killed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, What], Killed]:
    return kill_driver(tmp_path_factory.mktemp("drivers"), OTHERS)


@pytest.mark.timeout(2 * START_SECONDS + len(NAMES) * ORDER_SECONDS)
@pytest.mark.parametrize("what", MOMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_driver_is_killed_and_run_again(
    killed: dict[tuple[str, What], Killed], spark: SparkSession, name: str, what: What
) -> None:
    run_again(spark, name, what, killed[name, what])


@pytest.mark.long
@pytest.mark.timeout(2 * START_SECONDS + len(OTHERS) * ORDER_SECONDS)
@pytest.mark.parametrize("what", MOMENTS)
@pytest.mark.parametrize("name", OTHERS)
def test_other_drivers_are_killed_and_run_again(
    others_killed: dict[tuple[str, What], Killed], spark: SparkSession, name: str, what: What
) -> None:
    run_again(spark, name, what, others_killed[name, what])


def run_again(spark: SparkSession, name: str, what: What, killed: Killed) -> None:
    job, (place, before) = JOBS[name], killed
    if what == "park before":
        check_unchanged(place, before)
    else:
        check_done(place)
    job.run(spark, place)
    done = len(history(place.open("plain")))
    check_done(place, done + (what == "park after" and job.again_is_new))
