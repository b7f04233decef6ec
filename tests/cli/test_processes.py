"""Every command in a process of its own, as a person or a script starts it.

The default run starts each command once, as JSON. The long run has text and a bad argument too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zarr

from icefloe.cli.program import program
from tests.cli.calling import call, here

# Words after the name of the command. PLACE is a repository, OTHER a place that is free, SOURCE
# a Zarr store.
GOOD: dict[str, list[str]] = {
    "init": ["OTHER"],
    "info": ["PLACE"],
    "log": ["PLACE@v1"],
    "show": ["PLACE"],
    "diff": ["PLACE", "v1"],
    "ops": ["PLACE"],
    "branch list": ["PLACE"],
    "branch create": ["PLACE", "dev"],
    "branch delete": ["PLACE", "old", "--yes"],
    "tag list": ["PLACE"],
    "tag create": ["PLACE", "v2"],
    "tag delete": ["PLACE", "v1", "--yes"],
    "reset": ["PLACE", "main", "v1", "--yes"],
    "tree": ["PLACE"],
    "chunks": ["PLACE", "surface/t2m"],
    "config show": ["PLACE"],
    "config list": [],
    "config add": ["name", "PLACE", "--force"],
    "repo create": ["OTHER"],
    "ancestry": ["PLACE"],
    "metadata": ["PLACE", "--set", "a=1"],
    "status": ["PLACE"],
    "stats": ["PLACE"],
    "inspect": ["PLACE"],
    "blame": ["PLACE"],
    "sql": ["PLACE", "SELECT count(*) FROM data__chunks"],
    "bisect": ["--exists", "surface/t2m", "PLACE", "1CECHNKREP0F1RSTCMT0"],
    "expire": ["PLACE", "--older-than", "30d", "--yes"],
    "gc": ["PLACE", "--older-than", "30d", "--yes"],
    "rewrite-manifests": ["PLACE"],
    "verify": ["PLACE"],
    "ingest": ["SOURCE", "PLACE", "--group", "more"],
    "import": ["SOURCE", "OTHER"],
    "export": ["PLACE", "OTHER"],
    "clone": ["PLACE", "OTHER"],
    "materialize": ["PLACE"],
    "migrate": ["PLACE", "OTHER"],
    "repair": ["PLACE", "--yes"],
}


ELSEWHERE = {"completion", "ui", "cherry-pick", "squash", "merge", "undo"}
"""Commands with tests of processes in other files."""


def words_of(name: str, place: Path, *options: str) -> list[str]:
    words = [*name.split(), *options, *GOOD[name]]
    return [
        word.replace("PLACE", str(place))
        .replace("OTHER", str(place.parent / "other"))
        .replace("SOURCE", str(place.parent / "source.zarr"))
        for word in words
    ]


@pytest.fixture
def branched(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place.parent / "home"))
    done = here("branch", "create", place, "old")
    assert done.returncode == 0, done.stderr
    zarr.create_array(place.parent / "source.zarr/a", shape=(3,), dtype="i8", zarr_format=2)
    zarr.open_group(place.parent / "source.zarr", zarr_format=2)
    return place


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
