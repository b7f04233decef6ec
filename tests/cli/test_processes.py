"""Every command in a process of its own, as a person or a script starts it.

The default run starts each command once, as JSON. The long run has text and a bad argument too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from icefloe.cli.program import program
from tests.cli.calling import GOOD, call, words_of

ELSEWHERE = {"completion", "ui", "cherry-pick", "squash", "merge", "undo"}
"""Commands with tests of processes in other files."""


def test_every_command_is_here() -> None:
    context: Any = program.make_context("icefloe", ["--help"], resilient_parsing=True)
    known = set()
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        inner = getattr(command, "commands", None)
        known |= {f"{name} {each}" for each in inner} if inner else {name}
    assert known - ELSEWHERE == GOOD.keys()


@pytest.mark.parametrize("name", GOOD)
def test_a_command_answers_in_json(branched: Path, name: str) -> None:
    done = call(*words_of(name, branched, "--json"))
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("name", GOOD)
def test_a_command_answers_in_text(branched: Path, name: str) -> None:
    done = call(*words_of(name, branched))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.long
@pytest.mark.parametrize("name", GOOD)
def test_a_command_refuses_a_bad_argument(branched: Path, name: str) -> None:
    done = call(*words_of(name, branched, "--no-such-option"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option" in done.stderr
    if not GOOD[name]:
        return
    missing = call(*name.split())
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "Usage:" in missing.stderr
