"""Tasks that fail, and are tried again or not: a job is done as by one process, or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icefloe import StorageError
from tests.spark.fault_jobs import JOBS, check_done, check_unchanged, history, orphans, state

# Where tasks write manifests, one job shows what all do when that fails for good.
NAMES = [name for name, job in JOBS.items() if not job.is_reduced] + ["regions, manifests lost"]
# By default every job meets one of the two faults.
FOR_GOOD = ("table", "native append", "regions, manifests lost")


def jobs(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Names of jobs as parameters; those that are not `quick` are left to `make long`."""
    slow = pytest.mark.long
    return [pytest.param(name, marks=() if name in quick else slow) for name in names]


@pytest.mark.parametrize("name", jobs(NAMES, FOR_GOOD))
def test_a_task_fails_for_good(spark: SparkSession, tmp_path: Path, name: str) -> None:
    job = JOBS[name]
    place = job.prepare(tmp_path / "place")
    before = state(place.open()), history(place.open())
    fault = place.fault("fail", job.point)
    with pytest.raises(StorageError, match="on purpose"):
        job.run(spark, place, fault)
    assert max(map(len, fault.attempts().values())) == 4
    check_unchanged(place, before)


@pytest.mark.parametrize("name", jobs(JOBS, JOBS.keys() - FOR_GOOD))
def test_a_task_fails_once(spark: SparkSession, tmp_path: Path, name: str) -> None:
    job = JOBS[name]
    place = job.prepare(tmp_path / "place")
    fault = place.fault("fail once", job.point)
    job.run(spark, place, fault)
    assert fault.has_happened
    assert sum(map(len, fault.attempts().values())) == len(fault.attempts()) + 1
    check_done(place)
    if job.loses is not None:
        assert orphans(place.open()).get(job.loses), "the attempt that failed had written nothing"
