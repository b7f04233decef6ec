"""Ten processes append along one axis, some of them are killed: no block is lost or there twice.

`ICEFLOE_LOST_COMMIT_RUNS=5` makes blocks five times as many.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import icefloe
from icefloe.storage.spec import Storage
from tests.safety.appending import check_appending, start_appending
from tests.safety.crews import MAX_SECONDS, crew, wait_for_all
from tests.safety.worker import AppendJob
from tests.servers import S3Server

NUM_WRITERS = 10
NUM_KILLED = 4
NUM_TURNS = 2 * int(os.environ.get("ICEFLOE_LOST_COMMIT_RUNS", "1"))
pytestmark = pytest.mark.timeout(300)


def appends_of_ten(storage: Storage, folder: Path, spec: int) -> None:
    """Four of them go on until they are killed, the first after a commit of its own."""
    start_appending(icefloe.Repository.create(storage, spec_version=spec))
    jobs = [
        AppendJob(storage, at, 10_000 if at < NUM_KILLED else NUM_TURNS, folder / f"job{at}")
        for at in range(NUM_WRITERS)
    ]
    drawn = random.Random(spec)
    with crew(NUM_WRITERS) as workers:
        for worker, job in zip(workers, jobs, strict=True):
            worker.start(job)
        deadline = time.monotonic() + MAX_SECONDS
        doomed = jobs[:NUM_KILLED]
        while not any(job.acknowledged() for job in doomed) and time.monotonic() < deadline:
            time.sleep(0.02)
        for worker in workers[:NUM_KILLED]:
            time.sleep(drawn.uniform(0.05, 0.5))
            worker.kill()
        wait_for_all(workers[NUM_KILLED:], "done")
    acknowledged = [counted for job in jobs for counted in job.acknowledged()]
    number = check_appending(icefloe.Repository.open(storage), acknowledged)
    assert any(job.acknowledged() for job in doomed), "all were killed before their first commit"
    assert sum(len(job.acknowledged()) for job in jobs[NUM_KILLED:]) == 6 * NUM_TURNS
    # A worker dies in at most one commit, which may have come through without being acknowledged.
    assert len(acknowledged) <= number <= len(acknowledged) + NUM_KILLED


@pytest.mark.parametrize("spec", [1, 2])
def test_appends_to_a_directory(tmp_path: Path, spec: int) -> None:
    appends_of_ten(icefloe.local_filesystem_storage(tmp_path / "repo"), tmp_path, spec)


@pytest.mark.parametrize("spec", [1, 2])
def test_appends_on_s3(s3_server: S3Server, tmp_path: Path, spec: int) -> None:
    appends_of_ten(s3_server.storage(), tmp_path, spec)
