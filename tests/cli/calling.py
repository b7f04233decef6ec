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


def call(*words: str | Path, cwd: Path | None = None, **environment: str) -> Done:
    """The program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "icefloe", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=100,
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
