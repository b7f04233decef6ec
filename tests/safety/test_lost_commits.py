"""Many writers, one counter: every acknowledged commit is in the history, exactly once.

Runs of 8 x 25 commits: two for version 2 on a directory and in memory, and one for version 1;
one for version 2 on S3, and one of 8 x 10 for version 1, because the server is a Python program and
takes its time. Kills: four writers in each of two waves on a directory, of one wave on S3.
`ICEFLOE_LOST_COMMIT_RUNS=5` makes it five full runs of everything (and ten and five waves).
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import icefloe
from icefloe.storage.spec import Storage
from tests.safety.counting import (
    MOST_WRITERS,
    Counted,
    check_counting,
    count_once,
    start_counting,
)
from tests.safety.crews import crew, work_together
from tests.safety.worker import Job
from tests.servers import S3Server

NUM_WRITERS = 8
NUM_TURNS = 25
ALL = NUM_WRITERS * NUM_TURNS


FULL = os.environ.get("ICEFLOE_LOST_COMMIT_RUNS")
pytestmark = pytest.mark.timeout(300 * int(FULL or 1))


def runs(default: int) -> int:
    return int(FULL or default)


def new_counter(storage: Storage, spec: int, num_turns: int = NUM_TURNS) -> None:
    start_counting(icefloe.Repository.create(storage, spec_version=spec), num_turns)


def jobs_for(storage: Storage, folder: Path, name: str, num_turns: int = NUM_TURNS) -> list[Job]:
    return [
        Job(storage, writer, num_turns, folder / f"{name}-{writer}")
        for writer in range(NUM_WRITERS)
    ]


def check_all_is_there(storage: Storage, jobs: list[Job]) -> None:
    acknowledged = [counted for job in jobs for counted in job.acknowledged()]
    expected = sum(job.num_turns for job in jobs)
    assert len(acknowledged) == expected
    assert check_counting(icefloe.Repository.open(storage), acknowledged) == expected


# -- nobody is killed


@pytest.mark.parametrize(("spec", "num_runs"), [(2, runs(2)), (1, runs(1))])
def test_processes_on_a_directory_lose_nothing(tmp_path: Path, spec: int, num_runs: int) -> None:
    with crew(NUM_WRITERS) as workers:
        for number in range(num_runs):
            storage = icefloe.local_filesystem_storage(tmp_path / f"repo{number}")
            new_counter(storage, spec)
            jobs = jobs_for(storage, tmp_path, f"run{number}")
            work_together(workers, jobs)
            check_all_is_there(storage, jobs)


@pytest.mark.parametrize(("spec", "num_turns"), [(2, NUM_TURNS), (1, NUM_TURNS if FULL else 10)])
def test_processes_on_s3_lose_nothing(
    s3_server: S3Server, tmp_path: Path, spec: int, num_turns: int
) -> None:
    with crew(NUM_WRITERS) as workers:
        for number in range(runs(1)):
            storage = s3_server.storage()
            new_counter(storage, spec)
            jobs = jobs_for(storage, tmp_path, f"run{number}", num_turns)
            work_together(workers, jobs)
            check_all_is_there(storage, jobs)


@pytest.mark.parametrize(
    ("spec", "is_shared", "num_runs"),
    [(2, True, runs(2)), (2, False, runs(1)), (1, True, runs(1))],
)
def test_threads_in_memory_lose_nothing(spec: int, is_shared: bool, num_runs: int) -> None:
    for _ in range(num_runs):
        storage = icefloe.in_memory_storage()
        new_counter(storage, spec)
        shared = icefloe.Repository.open(storage)

        def work(
            writer: int, storage: Storage = storage, shared: icefloe.Repository = shared
        ) -> list[Counted]:
            repo = shared if is_shared else icefloe.Repository.open(storage)
            return [count_once(repo, writer, turn) for turn in range(NUM_TURNS)]

        with ThreadPoolExecutor(NUM_WRITERS) as pool:
            futures = [pool.submit(work, writer) for writer in range(NUM_WRITERS)]
            acknowledged = [counted for future in futures for counted in future.result(100)]
        assert len(acknowledged) == ALL
        assert check_counting(icefloe.Repository.open(storage), acknowledged) == ALL


# -- everybody is killed


def kill_at_random(storage: Storage, folder: Path, seed: int, num_waves: int) -> None:
    """Waves of workers that never get to finish, then two that do."""
    drawn = random.Random(seed)
    jobs: list[Job] = []
    for number in range(num_waves):
        with crew(4) as workers:
            mine = [
                Job(storage, 4 * number + at, 10_000, folder / f"wave{number}-{at}")
                for at in range(len(workers))
            ]
            jobs += mine
            for worker, job in zip(workers, mine, strict=True):
                worker.start(job)
            deadline = time.monotonic() + 30
            while number == 0 and time.monotonic() < deadline:
                # On a slow machine all might die before anything was written, every time.
                if any(job.acknowledged() for job in mine):
                    break
                time.sleep(0.02)
            for worker in drawn.sample(workers, len(workers)):
                time.sleep(drawn.uniform(0.05, 0.5))
                worker.kill()
        repo = icefloe.Repository.open(storage)
        check_counting(repo, [counted for job in jobs for counted in job.acknowledged()])
    last = [Job(storage, MOST_WRITERS - 1 - at, 5, folder / f"last-{at}") for at in range(2)]
    with crew(len(last)) as survivors:
        work_together(survivors, last)
    acknowledged = [counted for job in [*jobs, *last] for counted in job.acknowledged()]
    num_commits = check_counting(icefloe.Repository.open(storage), acknowledged)
    num_killed = len(jobs)
    assert sum(len(job.acknowledged()) for job in last) == 10
    assert len(acknowledged) > 10, "every worker was killed before its first commit"
    # A worker dies in at most one commit, which may have come through without being acknowledged.
    assert len(acknowledged) <= num_commits <= len(acknowledged) + num_killed


@pytest.mark.parametrize("spec", [1, 2])
def test_killed_processes_on_a_directory_lose_nothing_acknowledged(
    tmp_path: Path, spec: int
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    storage = icefloe.local_filesystem_storage(tmp_path / "repo")
    new_counter(storage, spec, 10_000)
    try:
        kill_at_random(storage, tmp_path, seed, num_waves=2 * runs(1))
    except AssertionError as error:
        raise AssertionError(f"with seed {seed}") from error


@pytest.mark.parametrize("spec", [1, 2])
def test_killed_processes_on_s3_lose_nothing_acknowledged(
    s3_server: S3Server, tmp_path: Path, spec: int
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    storage = s3_server.storage()
    new_counter(storage, spec, 10_000)
    try:
        kill_at_random(storage, tmp_path, seed, num_waves=runs(1))
    except AssertionError as error:
        raise AssertionError(f"with seed {seed}") from error
