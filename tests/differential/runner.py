"""Runs programs on both libraries and compares after every step; makes failing programs short."""

from __future__ import annotations

import os
import pprint
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import icechunk

import icefloe
from tests.differential import known, looks, situation
from tests.differential.programs import SOURCE_BYTES, Program, Step, generate
from tests.differential.side import SKIPPED, Side
from tests.interop.sides import assert_same, differences, seen

IN_SESSION = {
    *("document", "change", "reshape", "delete_node", "delete_dir", "clear", "move", "discard"),
    *("chunk", "virtual", "delete_chunk", "write", "shift", "reindex"),
}
"""Steps that only one session can see."""
OLD = 1_000_000_000
"""When the file with the virtual chunks was changed; references must be younger."""


class DivergenceError(AssertionError):
    """The two libraries did not do the same."""

    def __init__(self, number: int, step: Step | None, found: list[str]) -> None:
        self.number = number
        self.found = found
        where = "at the end" if step is None else f"at step {number}, {step}"
        super().__init__("\n".join([where, *(line[:500] for line in found[:8])]))


@dataclass
class Report:
    """What came of a program."""

    done: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """How often each step was run, by name and whether it did something."""
    known: Counter[str] = field(default_factory=Counter)
    """How often each known difference came up, by name."""
    num_left: int = 0
    """Steps that were not run because the repositories differ, as is known."""


class Run:
    """One program on both sides."""

    def __init__(self, program: Program, folder: Path, ours: type[Side] = Side) -> None:
        source = folder / "source"
        source.mkdir()
        (source / "data.bin").write_bytes(bytes(at % 251 for at in range(SOURCE_BYTES)))
        os.utime(source / "data.bin", (OLD, OLD))
        self.program = program
        self.official = Side(icechunk, folder / "official", source, program)
        self.ours = ours(icefloe, folder / "icefloe", source, program)
        self.report = Report()
        self.compared: set[str] = set()

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.official, self.ours

    def all(self) -> Report:
        number, step = 0, None
        try:
            for number, step in enumerate(self.program.steps):
                if not self._step(number, step):
                    self.report.num_left = len(self.program.steps) - number - 1
                    return self.report
            step = None
            self._end()
        except DivergenceError:
            raise
        except Exception as error:
            # Steps do not raise, and looking does not fail: one side shows what cannot be read.
            found = traceback.format_exception(error)[-4:]
            raise DivergenceError(number, step, found) from error
        return self.report

    def _step(self, number: int, step: Step) -> bool:
        """Whether it makes sense to go on."""
        found_before = situation.before(self.official, step)
        official, ours = (side.run(step) for side in self.sides)
        is_effective = official != SKIPPED and not isinstance(official, dict)
        self.report.done[step.name, is_effective] += 1
        found = list(differences(ours, official)) or self._look(step)
        if not found:
            return True
        difference = known.find(step, official, ours, found_before)
        if difference is None:
            raise DivergenceError(number, step, found)
        self.report.known[difference] += 1
        if known.KNOWN[difference].is_state_same:
            if found := self._look(step):
                raise DivergenceError(number, step, found)
            return True
        return self._recover(step)

    def _look(self, step: Step) -> list[str]:
        """How what can be seen differs, as far as the step can have changed it."""
        if step.name in IN_SESSION:
            number = step.arguments["session"]
            return self._compare(lambda side: looks.of_session(side, number))
        found = self._compare(lambda side: [looks.of_session(side, at) for at in range(2)])
        found += self._compare(looks.of_repository)
        for official, ours in zip(*(list(side.labels) for side in self.sides), strict=False):
            if not found and ours not in self.compared:
                self.compared.add(ours)
                ids = {id(self.official): official, id(self.ours): ours}
                found += self._compare(lambda side, ids=ids: looks.of_snapshot(side, ids[id(side)]))
        return found

    def _compare(self, look: Any) -> list[str]:
        official, ours = map(look, self.sides)
        return list(differences(_plain(ours), _plain(official)))

    def _recover(self, step: Step) -> bool:
        """After a known difference: new sessions, and on as long as nothing has been stored."""
        session = step.arguments.get("session")
        if session is not None:
            branch = self.official.sessions[session].branch or "main"
            if branch not in self.official.repository.list_branches():
                branch = "main"
            for side in self.sides:
                side.open(session, branch, rearrange=False)
        for side in self.sides:
            side.labels = {
                key: label for key, label in side.labels.items() if label in self._shared_labels()
            }
        return not self._look(Step("reopen", {}))

    def _shared_labels(self) -> set[str]:
        return set(self.official.labels.values()) & set(self.ours.labels.values())

    def _end(self) -> None:
        """Everything once more without caches, and each repository read by the other library."""
        for side in self.sides:
            side.reopen(self.program.settings)
        if found := self._compare(looks.everything):
            raise DivergenceError(len(self.program.steps), None, found)
        for side in self.sides:
            official, ours = (seen(reader.opened(side.folder)) for reader in self.sides)
            assert_same(official, ours, f"what is seen of the repository {side.folder.name} wrote")


def _plain(look: Any) -> Any:
    """Lists as dictionaries, so that a difference is shown where it is."""
    if isinstance(look, list):
        return {number: _plain(value) for number, value in enumerate(look)}
    if isinstance(look, dict):
        return {key: _plain(value) for key, value in look.items()}
    return look


def run(program: Program, ours: type[Side] = Side) -> Report:
    """Run a program in new repositories.

    Raises:
        DivergenceError: the libraries differ, and it is not known why.
    """
    with tempfile.TemporaryDirectory(prefix="differential") as folder:
        return Run(program, Path(folder), ours).all()


def run_seed(seed: int, ours: type[Side] = Side) -> Report:
    """Run the program of a seed; if it diverges, say so with the shortest program found."""
    program = generate(seed)
    try:
        return run(program, ours)
    except DivergenceError as error:
        short, last = shortened(program, error, ours)
        raise AssertionError(
            f"seed {seed} diverges {error}\n\nso does this program, {last}\n\n"
            f"{pprint.pformat(short, width=100)}\n\n"
            f"from tests.differential.runner import run_seed; run_seed({seed})"
        ) from error


def shortened(
    program: Program, error: DivergenceError, ours: type[Side] = Side, seconds: float = 30
) -> tuple[Program, DivergenceError]:
    """Leave out steps as long as something diverges, the later half of them first."""
    end = time.monotonic() + seconds
    steps = program.steps[: error.number + 1]
    size = max(1, len(steps) // 2)
    while True:
        num_before, first = len(steps), len(steps) - size
        while first > -size and time.monotonic() < end:
            fewer = steps[: max(0, first)] + steps[first + size :]
            try:
                run(program._replace(steps=fewer), ours)
            except DivergenceError as found:
                error, steps = found, fewer[: found.number + 1]
            first -= size
        if time.monotonic() >= end or (size == 1 and len(steps) == num_before):
            return program._replace(steps=steps), error
        size = max(1, size // 2)
