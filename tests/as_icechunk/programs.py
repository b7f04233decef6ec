"""Programs written for official Icechunk, run by fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent


def run(program: str, folder: Path, *, by: tuple[str, ...] = ("-m", "icefloe.as_icechunk")) -> str:
    """What a program prints; `by` are the words between Python and its file name."""
    done = start(program, folder, by=by)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(
    program: str, folder: Path, *, by: tuple[str, ...] = ("-m", "icefloe.as_icechunk")
) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(dedent(program))
    command = [sys.executable, *by, str(file), "one", "two"]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
