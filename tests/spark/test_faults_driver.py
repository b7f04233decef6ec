"""Drivers that are killed right before their commit, or right after it, and run again."""

from __future__ import annotations

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

NAMES = ["dataset", "table", "native append", "regions, manifests lost"]
MOMENTS: tuple[What, ...] = ("park before", "park after")

Killed = tuple[Place, tuple[dict[str, Any], list[str]]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, What], Killed]:
    """One driver that has begun all jobs, each in a place of its own, and finished none."""
    folder = tmp_path_factory.mktemp("drivers")
    driver = FaultDriver(folder / "driver.log", "local[2]", driver__memory="1g")
    places: dict[tuple[str, What], Killed] = {}
    try:
        for what in MOMENTS:
            for name in NAMES:
                place = JOBS[name].prepare(folder / f"{what} {name}")
                before = state(place.open()), history(place.open())
                fault = place.fault(what, COMMIT, "commit")
                assert driver.obey(Order(name, str(place.folder), fault)) == {"parked": name}
                places[name, what] = place, before
    finally:
        driver.kill()
    return places


@pytest.mark.timeout(2 * START_SECONDS + len(NAMES) * ORDER_SECONDS)
@pytest.mark.parametrize("what", MOMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_driver_is_killed_and_run_again(
    killed: dict[tuple[str, What], Killed], spark: SparkSession, name: str, what: What
) -> None:
    job, (place, before) = JOBS[name], killed[name, what]
    if what == "park before":
        check_unchanged(place, before)
    else:
        check_done(place)
    job.run(spark, place)
    done = len(history(place.open("plain")))
    check_done(place, done + (what == "park after" and job.again_is_new))
