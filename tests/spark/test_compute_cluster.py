"""Every operation on blocks while an executor dies, and through Spark Connect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.block_jobs import BLOCK_JOBS
from tests.spark.clusters import ORDER_SECONDS, START_SECONDS, FaultDriver, standalone_cluster
from tests.spark.connect import SECONDS, run_connect_program
from tests.spark.fault_driver import Order
from tests.spark.fault_jobs import check_done


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


@pytest.mark.timeout(2 * START_SECONDS + ORDER_SECONDS)
@pytest.mark.parametrize("name", BLOCK_JOBS)
def test_an_executor_is_killed(cluster: FaultDriver, tmp_path: Path, name: str) -> None:
    job = BLOCK_JOBS[name]
    place = job.prepare(tmp_path / "place")
    fault = place.fault("kill executor", job.point, "blocks")
    answer = cluster.obey(Order(name, str(place.folder), fault))
    assert answer["error"] is None, answer["error"]
    assert fault.has_happened
    check_done(place)


@pytest.mark.timeout(2 * SECONDS)
def test_spark_connect_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect is an optional dependency")
    places = [job.prepare(tmp_path / "jobs" / name) for name, job in BLOCK_JOBS.items()]
    done = run_connect_program("connect_blocks_program.py", str(tmp_path / "jobs"))
    assert done == sorted(BLOCK_JOBS)
    for place in places:
        check_done(place)
