"""A program: processes commit, merge, expire and collect, and are killed at random.

    python -c "from tests.safety.storm import main; main()" STORM

Processes are forked, which is safe here: this one has used no storage and has no threads.

Each writer owns some cells of one array, one chunk per cell, and only ever raises their values.
So a value that goes down, on any line of history, was reverted by an operation. A writer also
creates groups and deletes them again; their names are never used twice, so that a group that comes
back was brought back by an operation. A line "try" precedes every attempt, a line "done" follows
every acknowledgement; both survive a kill.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import zarr

import icefloe
from icefloe.changes.conflicts import BasicConflictSolver, ConflictDetector, VersionSelection
from icefloe.errors import IcechunkError
from icefloe.storage.spec import Storage

CELLS = 4
"""Of each writer. Half of them are written on `main`, the others on its branch."""
CHUNK = 64
"""Values of a chunk, which all are the same. Large enough to be an object of its own."""


@dataclass(frozen=True, slots=True)
class Storm:
    """Where, and for how long."""

    storage: Storage
    folder: Path
    """Each writer has a file with its notes here."""
    seed: int
    num_writers: int
    num_values: int
    """The storm ends when so many were acknowledged, or after so many seconds."""
    seconds: float

    def notes(self, writer: int) -> Path:
        return self.folder / f"notes-{writer}"

    def done(self) -> list[Note]:
        """All that was acknowledged."""
        return [note for note in self.all_notes() if note.word == "done"]

    def all_notes(self) -> list[Note]:
        paths = [self.notes(writer) for writer in range(self.num_writers)]
        return [note for path in paths for note in notes_in(path)]

    def command(self) -> list[str]:
        storm = base64.b64encode(pickle.dumps(self)).decode()
        return [sys.executable, "-c", "from tests.safety.storm import main; main()", storm]


@dataclass(frozen=True, slots=True)
class Note:
    """A line of a writer: what it tried, or what was acknowledged."""

    word: str
    name: str
    """A cell, or a group."""
    value: int


def notes_in(path: Path) -> list[Note]:
    """A line that a kill has cut short does not count."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [Note(**json.loads(line)) for line in lines if line.endswith("\n")]


def start(storage: Storage, spec: int, num_writers: int) -> None:
    """A repository with the array, all zero."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    shape = (num_writers * CELLS * CHUNK,)
    options: dict[str, Any] = {"chunks": (CHUNK,), "dtype": "<i8", "compressors": None}
    top.create_array("cells", shape=shape, fill_value=0, **options)
    session.commit("start")


class Writer:
    """Commits to `main`, or to a branch of its own that is merged into `main`."""

    def __init__(self, storm: Storm, number: int, seed: int) -> None:
        self.number, self.drawn = number, random.Random(seed)
        self.repo = icefloe.Repository.open(storm.storage)
        self.spec = self.repo.spec_version
        path = storm.notes(number)
        self.notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.last = max((abs(note.value) for note in notes_in(path)), default=0)
        self.branch = f"of-{number}"

    def note(self, word: str, changes: dict[str, int]) -> None:
        for name, value in changes.items():
            line = json.dumps({"word": word, "name": name, "value": value})
            os.write(self.notes, line.encode() + b"\n")

    def change(self, session: Any, branch: str, changes: dict[str, int]) -> None:
        """Raise a cell, or change the groups, and say so."""
        self.last += 1
        top: Any = zarr.open_group(session.store, mode="r+")
        if self.drawn.random() < 0.75:
            half = self.drawn.randrange(CELLS // 2)
            cell = self.number * CELLS + half + CELLS // 2 * (branch == "main")
            changes[str(cell)] = self.last
            self.note("try", {str(cell): self.last})
            top["cells"][cell * CHUNK : (cell + 1) * CHUNK] = self.last
            return
        mine = [name for name in top.group_keys() if name.startswith(f"g{self.number}-")]
        name, value = f"g{self.number}-{self.last}", self.last
        if mine:
            name, value = self.drawn.choice(mine), -self.last
            del top[name]
        else:
            top.create_group(name)
        self.note("try", {name: value})
        changes[name] = value

    def commit_to(self, branch: str, changes: dict[str, int]) -> None:
        session = self.repo.writable_session(branch)
        self.change(session, branch, changes)
        if self.drawn.random() < 0.3:
            time.sleep(self.drawn.uniform(0, 0.5))  # others commit, expire and collect meanwhile
        session.commit("commit", rebase_with=self.solver())

    def solver(self) -> Any:
        """Nobody else writes these cells, so a conflict is one with values that were reverted."""
        ours = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
        return self.drawn.choice([ConflictDetector(), ours])

    def turn(self) -> None:
        changes: dict[str, int] = {}
        if self.drawn.random() < 0.4:
            self.commit_to("main", changes)
        else:
            self.work_on_branch(changes)
            self.repo.merge(self.branch, "main", rebase_with=self.solver(), rebase_tries=20)
        self.note("done", changes)

    def work_on_branch(self, changes: dict[str, int]) -> None:
        if self.branch not in self.repo.list_branches():
            self.repo.create_branch(self.branch, self.repo.lookup_branch("main"))
        before = self.repo.lookup_branch(self.branch)
        for _ in range(self.drawn.randint(1, 3)):
            self.commit_to(self.branch, changes)
        choice = self.drawn.random()
        if choice < 0.15:
            self.repo.squash(self.branch, before)
        elif choice < 0.3 and self.spec > 1:
            session = self.repo.writable_session(self.branch)
            self.change(session, self.branch, changes)
            session.amend("amend")
        elif choice < 0.5:
            self.repo.merge("main", self.branch, rebase_with=self.solver(), rebase_tries=20)

    def begin_again(self) -> None:
        """The branch may be of no use any more: its changes are lost, and were not acknowledged."""
        if self.branch in self.repo.list_branches():
            self.repo.delete_branch(self.branch)

    def run(self) -> None:
        while True:
            try:
                self.turn()
                if self.drawn.random() < 0.1:
                    self.begin_again()
            except IcechunkError as error:
                sys.stderr.write(f"writer {self.number}: {type(error).__name__}: {error}\n")
                repeat(self.begin_again)


def repeat(work: Callable[[], Any]) -> None:
    """Until others let it through."""
    while True:
        try:
            work()
        except IcechunkError as error:
            sys.stderr.write(f"again: {type(error).__name__}: {error}\n")
            time.sleep(0.01)
        else:
            return


def maintain(storm: Storm, seed: int) -> None:
    """Expire and collect, by rules that cut branches from each other."""
    drawn = random.Random(seed)
    repo = icefloe.Repository.open(storm.storage)
    warnings.simplefilter("ignore", UserWarning)
    while True:
        time.sleep(drawn.uniform(0, 0.7))
        try:
            choice = drawn.random()
            if choice < 0.15:
                tip = repo.lookup_branch("main")
                repo.create_tag(tip, tip)
            elif choice < 0.25:
                for tag in drawn.sample(sorted(repo.list_tags()), len(repo.list_tags()) // 2):
                    repo.delete_tag(tag)
            elif choice < 0.7:
                repo.expire_snapshots(**expiration(repo, drawn))
            else:
                repo.garbage_collect(datetime.now(UTC) - timedelta(seconds=drawn.uniform(0, 4)))
        except IcechunkError as error:
            sys.stderr.write(f"maintenance: {type(error).__name__}: {error}\n")


def expiration(repo: Any, drawn: random.Random) -> dict[str, Any]:
    """What expires: by age, by number, or single snapshots from the middle of histories."""
    older_than = datetime.now(UTC) - timedelta(seconds=drawn.uniform(0, 4))
    rules: list[dict[str, Any]] = [
        {"older_than": older_than},
        {"keep_last": drawn.randint(1, 5)},
        {"older_than": older_than, "keep_tagged": True},
    ]
    line = list(repo.ancestry(branch=drawn.choice(sorted(repo.list_branches()))))
    tips = {repo.lookup_branch(name) for name in repo.list_branches()}
    tips |= {repo.lookup_tag(name) for name in repo.list_tags()}
    middle = [info.id for info in line[1:-1] if info.id not in tips]
    if middle:
        rules += [{"snapshot_ids": drawn.sample(middle, drawn.randint(1, len(middle)))}] * 2
    return drawn.choice(rules)


def begin(storm: Storm, number: int, seed: int) -> int:
    """Fork one process; returns its id."""
    process = os.fork()
    if process == 0:
        try:
            if number == storm.num_writers:
                maintain(storm, seed)
            Writer(storm, number, seed).run()
        except BaseException:  # noqa: BLE001 - the process ends here
            traceback.print_exc()
        finally:
            os._exit(1)
    return process


def main() -> None:
    """Kill one process now and then, and start another one in its place."""
    storm: Storm = pickle.loads(base64.b64decode(sys.argv[1]))
    drawn = random.Random(storm.seed)
    numbers = range(storm.num_writers + 1)
    processes = [begin(storm, number, drawn.randrange(2**32)) for number in numbers]
    deadline = time.monotonic() + storm.seconds
    num_kills = 0
    try:
        while time.monotonic() < deadline and len(storm.done()) < storm.num_values:
            time.sleep(drawn.uniform(0.2, 2))
            victim = drawn.choice(numbers)
            os.kill(processes[victim], signal.SIGKILL)
            _, status = os.waitpid(processes[victim], 0)
            assert os.WIFSIGNALED(status), f"process {victim} ended by itself"
            num_kills += 1
            processes[victim] = begin(storm, victim, drawn.randrange(2**32))
    finally:
        for process in processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    sys.stdout.write(str(num_kills))
