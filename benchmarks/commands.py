"""CPU time of commands beyond `import zarr`, each in a process of its own.

    python -m benchmarks.commands

Prints a table, and exits with 1 if a command takes longer than it should. The limit is meant for a
machine on which `import zarr` takes 0.36 s; on a slower or busier one it grows in proportion.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import zarr

import icefloe

ROUNDS = 9
LIMIT = 0.3
"""Seconds of CPU beyond `import zarr`."""
IMPORT_ZARR = 0.36
"""Seconds of CPU on the machine that the limit is meant for."""
COMMANDS = {
    "info": ["info", "{place}"],
    "log": ["log", "{place}"],
    "show": ["show", "{place}"],
    "tree": ["tree", "{place}"],
    "chunks": ["chunks", "{place}", "t2m"],
    "stats": ["stats", "{place}"],
    "sql": ["sql", "{place}", "select count(*) from data__snapshots"],
    "gc": ["gc", "{place}", "--older-than", "1d", "--dry-run"],
    "verify": ["verify", "{place}"],
}


def cpu_seconds(*words: str) -> float:
    """Of a new process that finds its modules compiled, as an installed package has them."""
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *words]
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=100, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def make(place: Path) -> None:
    """A repository with one array and two commits."""
    storage = icefloe.local_filesystem_storage(str(place))
    session = icefloe.Repository.create(storage).writable_session("main")
    array: Any = zarr.create_array(session.store, name="t2m", shape=8, chunks=2, dtype="f4")
    array[:] = 280
    session.commit("temperatures")


def main() -> int:
    """Measure every command, in turns with `import zarr`."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "repository"
        make(place)
        calls = {
            name: ["-m", "icefloe", *(word.format(place=place) for word in words)]
            for name, words in COMMANDS.items()
        }
        calls["import zarr"] = ["-c", "import zarr"]
        least = dict.fromkeys(calls, float("inf"))
        for _ in range(ROUNDS):
            for name, words in calls.items():
                least[name] = min(least[name], cpu_seconds(*words))
    start = least.pop("import zarr")
    limit = LIMIT * max(1, start / IMPORT_ZARR)
    print(f"import zarr {start * 1000:.0f} ms, limit beyond it {limit * 1000:.0f} ms")
    for name, seconds in least.items():
        mark = "" if seconds - start <= limit else "  too long"
        print(f"{name:<8} {seconds * 1000:5.0f} ms{mark}")
    return int(any(seconds - start > limit for seconds in least.values()))


if __name__ == "__main__":
    sys.exit(main())
