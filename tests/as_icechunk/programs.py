"""Programs written for official Icechunk, run by fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

AS_ICECHUNK = ("-m", "icefloe.as_icechunk")


def run(
    program: str, folder: Path, *, by: tuple[str, ...] = AS_ICECHUNK, seconds: float = 300
) -> str:
    """What a program prints; `by` are the words between Python and its file name."""
    done = start(program, folder, by=by, seconds=seconds)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def start(
    program: str, folder: Path, *, by: tuple[str, ...] = AS_ICECHUNK, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(dedent(program))
    command = [sys.executable, *by, str(file), "one", "two"]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
