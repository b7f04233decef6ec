"""A process that counts (`tests/safety/counting.py`), as a program: one line in for each job.

    python -c "from tests.safety.worker import main; main()"

A job is a pickled `Job` or `UpgradeJob` in base64. Every acknowledged commit is appended to the
job's file before the next one is begun, with a write that survives a kill. "ready" and "done" lines
say where the process is.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import icefloe
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.storage.spec import Storage
from tests.safety.appending import append_once
from tests.safety.counting import MAX_SECONDS, Counted, count_once


@dataclass(frozen=True, slots=True)
class Job:
    """So many commits into one repository."""

    storage: Storage
    writer: int
    num_turns: int
    acknowledgements: Path
    reopens: bool = False
    """Whether a refused writer opens the repository again and goes on."""

    def line(self) -> bytes:
        return base64.b64encode(pickle.dumps(self)) + b"\n"

    def run(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self.acknowledgements, flags, 0o600)
        repo = icefloe.Repository.open(self.storage)
        for turn in range(self.num_turns):
            deadline = time.monotonic() + MAX_SECONDS
            while True:
                try:
                    counted = self.once(repo, turn)
                    break
                except icefloe.IcechunkError:
                    if not self.reopens or time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
                    repo = icefloe.Repository.open(self.storage)
            os.write(descriptor, json.dumps(asdict(counted)).encode() + b"\n")
        os.close(descriptor)

    def once(self, repo: icefloe.Repository, turn: int) -> Counted:
        return count_once(repo, self.writer, turn)

    def acknowledged(self) -> list[Counted]:
        """What was acknowledged so far; a line that a kill has cut short does not count."""
        if not self.acknowledgements.exists():
            return []
        lines = self.acknowledgements.read_text().splitlines(keepends=True)
        return [Counted(**json.loads(line)) for line in lines if line.endswith("\n")]


@dataclass(frozen=True, slots=True)
class AppendJob(Job):
    """So many appends along one axis."""

    def once(self, repo: icefloe.Repository, turn: int) -> Counted:
        return append_once(repo, self.writer, turn)


@dataclass(frozen=True, slots=True)
class UpgradeJob:
    """An upgrade to spec version 2, or what an interrupted one has left to do."""

    storage: Storage

    def line(self) -> bytes:
        return base64.b64encode(pickle.dumps(self)) + b"\n"

    def run(self) -> None:
        repo = icefloe.Repository.open(self.storage)
        try:
            icefloe.upgrade_icechunk_repository(repo, dry_run=False)
        except SessionStateError as error:
            if error.kind != ErrorKind.INVALID_REPOSITORY_MIGRATION:
                raise  # else nothing is left to do


def main() -> None:
    _say("ready")
    for line in sys.stdin.buffer:
        pickle.loads(base64.b64decode(line)).run()
        _say("done")


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()
