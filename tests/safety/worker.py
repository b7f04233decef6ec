"""A process that counts (`tests/safety/counting.py`), as a program: one line in for each job.

    python -c "from tests.safety.worker import main; main()"

A job is a pickled `Job` in base64. Every acknowledged commit is appended to the job's file
before the next one is begun, with a write that survives a kill. "ready" and "done" lines say
where the process is.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import icefloe
from icefloe.storage.spec import Storage
from tests.safety.counting import Counted, count_once


@dataclass(frozen=True, slots=True)
class Job:
    """So many commits into one repository."""

    storage: Storage
    writer: int
    num_turns: int
    acknowledgements: Path

    def line(self) -> bytes:
        return base64.b64encode(pickle.dumps(self)) + b"\n"

    def acknowledged(self) -> list[Counted]:
        """What was acknowledged so far; a line that a kill has cut short does not count."""
        if not self.acknowledgements.exists():
            return []
        lines = self.acknowledgements.read_text().splitlines(keepends=True)
        return [Counted(**json.loads(line)) for line in lines if line.endswith("\n")]


def run(job: Job) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    descriptor = os.open(job.acknowledgements, flags, 0o600)
    repo = icefloe.Repository.open(job.storage)
    for turn in range(job.num_turns):
        counted = count_once(repo, job.writer, turn)
        os.write(descriptor, json.dumps(asdict(counted)).encode() + b"\n")
    os.close(descriptor)


def main() -> None:
    _say("ready")
    for line in sys.stdin.buffer:
        run(pickle.loads(base64.b64decode(line)))
        _say("done")


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()
