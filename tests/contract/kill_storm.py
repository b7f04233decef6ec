"""A program for `test_storage_races`: processes that add to one object, and are killed at random.

    python -m tests.contract.kill_storm DIRECTORY SECONDS SEED

Forks workers (which is safe here: only a directory is used), kills one of them every few
milliseconds with SIGKILL and forks another. A worker notes each line in `DIRECTORY/acked` after
`put_if` has returned. While this goes on the object must always be made of whole lines.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from icefloe.storage.run import run_blocking
from icefloe.storage.spec import local_filesystem_storage
from tests.contract.racers import append

NUM_WORKERS = 4


def work(directory: Path) -> None:
    driver = local_filesystem_storage(directory / "repo").driver(blocking=True)
    acked = os.open(directory / "acked", os.O_WRONLY | os.O_APPEND)
    number = 0
    while True:
        line = f"{os.getpid()}-{number}"
        append(driver, "counter", line)
        os.write(acked, f"{line}\n".encode())  # one write: whole or not at all
        number += 1


def start(directory: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            work(directory)
        finally:
            os._exit(1)
    return process


def main(directory: Path, seconds: float, seed: int) -> None:
    drawn = random.Random(seed)
    driver = local_filesystem_storage(directory / "repo").driver(blocking=True)
    run_blocking(driver.put_if("counter", b"", previous=None))
    (directory / "acked").touch()
    workers = [start(directory) for _ in range(NUM_WORKERS)]
    num_kills = num_looks = 0
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            time.sleep(drawn.uniform(0, 0.03))
            victim = drawn.randrange(NUM_WORKERS)
            os.kill(workers[victim], signal.SIGKILL)
            _, status = os.waitpid(workers[victim], 0)
            assert os.WIFSIGNALED(status), f"a worker ended by itself: {status}"
            num_kills += 1
            workers[victim] = start(directory)
            seen = bytes(run_blocking(driver.get("counter")))
            assert not seen or seen.endswith(b"\n"), seen[-100:]
            num_looks += 1
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    sys.stdout.write(json.dumps({"kills": num_kills, "looks": num_looks}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
