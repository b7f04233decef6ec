"""Tasks that fail, and are tried again or not: a job is done as by one process, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.fault_jobs import JOBS, check_done, check_unchanged, history, orphans, state

# Where tasks write manifests, one job shows what all do when that fails for good.
NAMES = [name for name, job in JOBS.items() if not job.is_reduced] + ["regions, manifests lost"]


@pytest.mark.parametrize("name", NAMES)
def test_a_task_fails_for_good(spark: SparkSession, tmp_path: Path, name: str) -> None:
    job = JOBS[name]
    place = job.prepare(tmp_path / "place")
    before = state(place.open()), history(place.open())
    fault = place.fault("fail", job.point)
    with pytest.raises(PySparkException, match="on purpose"):
        job.run(spark, place, fault)
    assert max(map(len, fault.attempts().values())) == 4
    check_unchanged(place, before)


@pytest.mark.parametrize("name", JOBS)
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
