"""Executors that die in the middle of maintenance, on a cluster of processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.clusters import ORDER_SECONDS, START_SECONDS, FaultDriver, standalone_cluster
from tests.spark.fault_driver import Order
from tests.spark.fault_jobs import check_done, orphans
from tests.spark.maintenance_jobs import MAINTENANCE_JOBS

pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * START_SECONDS + ORDER_SECONDS)]


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
        )
        try:
            yield driver
        finally:
            driver.stop()


@pytest.mark.parametrize("name", MAINTENANCE_JOBS)
def test_an_executor_is_killed(cluster: FaultDriver, tmp_path: Path, name: str) -> None:
    job = MAINTENANCE_JOBS[name]
    place = job.prepare(tmp_path / "place")
    fault = place.fault("kill executor", job.point)
    answer = cluster.obey(Order(name, str(place.folder), fault))
    assert answer["error"] is None
    assert fault.has_happened
    check_done(place)
    assert place.open().verify(virtual_sources=True, read_chunks=True).is_healthy
    if name == "collect":
        assert not {"chunk", "manifest"} & set(orphans(place.open()))
