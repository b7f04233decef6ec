"""Several worker processes at once: started, told what to do, waited for, killed by their id."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.safety.worker import Job, UpgradeJob

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 110.0
"""No wait is longer than this, all waits for one answer together."""


class Worker:
    """One process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from tests.safety.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def start(self, job: Job | UpgradeJob) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(job.line())
        self.process.stdin.flush()

    def wait_for(self, word: str, deadline: float) -> None:
        output = self.process.stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"worker {self.process.pid} is not {word} in time")
        found = output.readline().decode().strip()
        assert found == word, f"worker {self.process.pid} failed, its error is on standard error"

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to tidy up."""
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            # A job that the dead never took may still be in the pipe's buffer.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def crew(number: int) -> Iterator[list[Worker]]:
    """That many workers, ready to start; they are gone at the end."""
    workers = [Worker() for _ in range(number)]
    try:
        wait_for_all(workers, "ready")
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def wait_for_all(workers: Iterable[Worker], word: str) -> None:
    deadline = time.monotonic() + MAX_SECONDS
    for worker in workers:
        worker.wait_for(word, deadline)


def work_together(workers: Sequence[Worker], jobs: Sequence[Job]) -> None:
    """Give each worker its job and wait until all have finished."""
    for worker, job in zip(workers, jobs, strict=True):
        worker.start(job)
    wait_for_all(workers, "done")
