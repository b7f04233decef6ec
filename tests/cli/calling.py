"""Running the command line: in a process of its own, or in this one, which is quicker."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import icefloe
from icefloe.cli.program import run

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


def call(*words: str | Path, cwd: Path | None = None, **environment: str) -> Done:
    """The program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "icefloe", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    return Done(done.returncode, done.stdout, done.stderr)


def answer(*words: str | Path) -> Any:
    """What it says as JSON."""
    done = call(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Done(NamedTuple):
    """How a call ended."""

    returncode: int
    stdout: str
    stderr: str


def here(*words: str | Path) -> Done:
    """The program in this process: the same code, without the start of another Python."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = run([str(word) for word in words])
    return Done(code, out.getvalue(), errors.getvalue())


def told(*words: str | Path, code: int = 0) -> Any:
    """What it says as JSON, in this process."""
    done = here(*words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def opened(place: Path) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(place)))


def words_of(name: str, place: Path, *options: str) -> list[str]:
    words = [*name.split(), *options, *GOOD[name]]
    return [
        word.replace("PLACE", str(place))
        .replace("OTHER", str(place.parent / "other"))
        .replace("SOURCE", str(place.parent / "source.zarr"))
        for word in words
    ]
