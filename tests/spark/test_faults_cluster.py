"""Executors that die in the middle of a write, and attempts that overtake each other.

Executors are processes of their own, on a cluster of two addresses of this host.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.clusters import ORDER_SECONDS, START_SECONDS, FaultDriver, standalone_cluster
from tests.spark.fault_driver import Order
from tests.spark.fault_jobs import JOBS, check_done, orphans

# Of jobs that run the same code, one; `test_faults` has them all.
NAMES = [
    "table",
    "regions, manifests lost",
    pytest.param("native append", marks=pytest.mark.long),
    pytest.param("virtual append, manifests lost", marks=pytest.mark.long),
]

pytestmark = pytest.mark.timeout(2 * START_SECONDS + ORDER_SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultDriver]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone_cluster(folder) as url:
        driver = FaultDriver(
            folder / "driver.log",
            url,
            executor__memory="512m",
            task__maxFailures="8",  # on a busy machine the loss is noticed late, and again
            stage__maxConsecutiveAttempts="12",
            speculation="true",
            speculation__interval="100ms",
            speculation__quantile="0.1",
            speculation__minTaskRuntime="3s",
        )
        try:
            yield driver
        finally:
            driver.stop()


@pytest.mark.parametrize("name", NAMES)
def test_an_executor_is_killed(cluster: FaultDriver, tmp_path: Path, name: str) -> None:
    job = JOBS[name]
    place = job.prepare(tmp_path / "place")
    fault = place.fault("kill executor", job.point)
    answer = cluster.obey(Order(name, str(place.folder), fault))
    assert answer["error"] is None, answer["error"]
    assert fault.has_happened
    check_done(place)
    if job.loses is not None:
        assert orphans(place.open()).get(job.loses), "the executor had written nothing"


def test_extremes_and_nulls_come_back(cluster: FaultDriver, tmp_path: Path) -> None:
    place = JOBS["extremes"].prepare(tmp_path / "place")
    answer = cluster.obey(Order("extremes", str(place.folder)))  # which asks Spark for them, too
    assert answer["error"] is None, answer["error"]
    check_done(place)


@pytest.mark.parametrize("name", ["regions, manifests lost"])
def test_a_slow_attempt_is_overtaken(cluster: FaultDriver, tmp_path: Path, name: str) -> None:
    job = JOBS[name]
    place = job.prepare(tmp_path / "place")
    fault = place.fault("stall", job.point)
    answer = cluster.obey(Order(name, str(place.folder), fault))
    assert answer["error"] is None, answer["error"]
    assert fault.has_happened
    assert max(map(len, fault.attempts().values())) == 2, "the stalled attempt was waited for"
    check_done(place)
    assert orphans(place.open())
