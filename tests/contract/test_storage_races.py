"""Many writers at once: of those who saw the same state exactly one wins, and nothing is lost."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage, in_memory_storage, local_filesystem_storage
from tests.contract.racers import increment, race_in_threads, report
from tests.servers import S3Server

NUM_PROCESSES = 4
NUM_THREADS = 4
NUM_WRITERS = NUM_PROCESSES * NUM_THREADS
KILL_SECONDS = 8.0

ROOT = Path(__file__).parents[2]


def make_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return in_memory_storage()
    if request.param == "local":
        return local_filesystem_storage(tmp_path / "repo")
    server: S3Server = request.getfixturevalue("s3_server")
    return server.storage()


@pytest.fixture(params=["memory", "local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return make_storage(request, tmp_path)


@pytest.fixture(params=["local", "s3"])
def shared_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return make_storage(request, tmp_path)


def in_processes(function: Callable[..., list[str]], *arguments: Any) -> list[str]:
    """Run `function(storage, name, barrier, ...)` in several processes; what they return."""
    spawn = multiprocessing.get_context("spawn")  # obstore does not survive a fork
    barrier_size = NUM_WRITERS if function is race_in_threads else NUM_PROCESSES
    barrier, results = spawn.Barrier(barrier_size), spawn.Queue()
    storage, *others = arguments
    processes = [
        spawn.Process(
            target=report, args=(results, function, storage, f"process-{number}", barrier, *others)
        )
        for number in range(NUM_PROCESSES)
    ]
    for process in processes:
        process.start()
    try:
        return [one for _ in processes for one in results.get(timeout=300)]
    finally:
        for process in processes:
            process.join(10)
            process.kill()
            process.join()


def check_one_winner_each(won: list[str], num_rounds: int) -> None:
    expected = [f"{what} {number}" for number in range(num_rounds) for what in ("create", "update")]
    assert Counter(won) == Counter(expected)


def test_one_of_16_threads_wins_each_time(storage: Storage) -> None:
    run_blocking(storage.driver(blocking=True).put("counter", b"0"))
    barrier = threading.Barrier(NUM_WRITERS)
    won = race_in_threads(storage, "thread", barrier, 20, NUM_WRITERS)
    check_one_winner_each(won, 20)


def test_one_of_16_writers_in_4_processes_wins_each_time(shared_storage: Storage) -> None:
    run_blocking(shared_storage.driver(blocking=True).put("counter", b"0"))
    won = in_processes(race_in_threads, shared_storage, 20, NUM_THREADS)
    check_one_winner_each(won, 20)


def test_no_increment_is_lost_between_processes(shared_storage: Storage) -> None:
    driver = shared_storage.driver(blocking=True)
    run_blocking(driver.put("counter", b""))
    added = in_processes(increment, shared_storage, 25)
    found = bytes(run_blocking(driver.get("counter"))).decode().splitlines()
    assert len(added) == NUM_PROCESSES * 25
    assert sorted(found) == sorted(added)


def test_nothing_acknowledged_is_lost_to_kill_9(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.kill_storm", tmp_path, str(KILL_SECONDS), "1"],
        cwd=ROOT,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    counts = json.loads(done.stdout)
    driver = local_filesystem_storage(tmp_path / "repo").driver(blocking=True)
    data, version = run_blocking(driver.get_versioned("counter"))
    found = Counter(data.decode().splitlines())
    acked = (tmp_path / "acked").read_text().splitlines()
    assert counts["kills"] > 20
    assert len(acked) > 20
    assert [line for line in acked if found[line] != 1] == []
    assert set(found.values()) == {1}
    # A worker may die between its write and its note, so each kill explains one line at most.
    assert len(found) - len(acked) <= counts["kills"] + 4
    # The lock of the last one killed is free again.
    run_blocking(driver.put_if("counter", b"the end", previous=version))
