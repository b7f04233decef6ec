"""Tasks that fail, and are tried again or not: a job is done as by one process, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.fault_jobs import JOBS, check_done, check_unchanged, history, orphans, state


@pytest.mark.parametrize("name", JOBS)
def test_a_task_fails_for_good_and_then_only_once(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    job = JOBS[name]
    place = job.prepare(tmp_path / "place")
    before = state(place.open()), history(place.open())
    fault = place.fault("fail", job.point)
    with pytest.raises(PySparkException, match="on purpose"):
        job.run(spark, place, fault)
    assert max(map(len, fault.attempts().values())) == 4
    check_unchanged(place, before)

    left = orphans(place.open())
    fault = place.fault("fail once", job.point)
    job.run(spark, place, fault)
    assert fault.has_happened
    assert sum(map(len, fault.attempts().values())) > len(fault.attempts())
    check_done(place)
    kind = job.point[1].strip("/").removesuffix("s")
    assert orphans(place.open()).get(kind, 0) > left.get(kind, 0) or not kind
