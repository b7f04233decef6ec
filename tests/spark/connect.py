"""Running a program that uses Spark Connect."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.spark.clusters import environment

SECONDS = 900


def run_connect_program(name: str, *arguments: str) -> Any:
    """What a program of this folder prints in its last line.

    A server in a program's own process always listens on the same port, so that programs of test
    processes that run side by side have to take turns.
    """
    program = Path(__file__).with_name(name)
    lock = Path(tempfile.gettempdir()) / "icefloe-tests-spark-connect.lock"
    with lock.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS - 20,
            check=False,
            env=environment(),
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
