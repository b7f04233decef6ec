"""Reading and writing through Spark Connect, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from icefloe import Repository
from icefloe.scans.metadata_rows import plan_changes
from icefloe.scans.scan import pin
from tests.spark.connect import SECONDS, run_connect_program
from tests.spark.datasets import WEATHER_ENCODING, rows_of, weather, write
from tests.spark.fault_jobs import JOBS, check_done


@pytest.mark.timeout(2 * SECONDS)
def test_a_connect_session_reads_and_writes_the_same(
    repository: Repository, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="Spark Connect is an optional dependency")
    write(repository, weather(), encoding=WEATHER_ENCODING)
    names = ["regions", "dataset", "table", "virtual append, manifests lost"]
    places = [JOBS[name].prepare(tmp_path / "jobs" / name) for name in names]
    url, folder = repository.storage.url, str(tmp_path / "jobs")
    found = run_connect_program("connect_program.py", url, folder)
    kind, rows, source, changes = found
    assert kind.startswith("pyspark.sql.connect")
    assert (rows, source) == (40, 60)
    assert changes == rows_of(plan_changes(pin(repository), None, 1)).num_rows
    for place in places:
        check_done(place)
