"""Commands that look start quickly: they load neither Zarr nor Arrow, and take little CPU time."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

HEAVY = {"zarr", "pyarrow", "pandas", "xarray", "pyspark", "dask", "obstore", "h5py"}
MOST_CPU_SECONDS = 0.3
"""Of a command, beyond `import zarr`."""
PROGRAM = """
import contextlib, io, json, sys
from icefloe.cli.program import run
found = {}
for line in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = run(line.split("|"))
    found[line.split("|")[0]] = code, sorted(name for name in sys.modules if "." not in name)
print(json.dumps(found))
"""


def test_looking_loads_nothing_heavy(place: Path) -> None:
    lines = [
        "--help",
        f"info|{place}",
        f"log|{place}",
        f"log|--graph|{place}",
        f"show|{place}",
        f"diff|{place}|v1",
        f"ops|{place}",
        f"branch|list|{place}",
        f"tag|list|{place}",
        f"tree|{place}",
        f"chunks|{place}|surface/t2m",
        f"stats|{place}",
        f"inspect|{place}",
        f"config|{place}",
        f"metadata|{place}",
        f"status|{place}",
        f"expire|{place}|--older-than|1d|--dry-run",
        f"gc|{place}|--older-than|1d|--dry-run",
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *lines],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for command, (code, modules) in json.loads(done.stdout).items():
        assert code == 0, command
        assert HEAVY & set(modules) == set(), command


def cpu_seconds(*words: str | Path) -> float:
    """The least of three runs."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *map(str, words)], capture_output=True, timeout=100, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(found)


def test_a_command_takes_little_more_than_importing_zarr(place: Path) -> None:
    zarr = cpu_seconds("-c", "import zarr")
    assert cpu_seconds("-m", "icefloe", "stats", place) - zarr <= MOST_CPU_SECONDS
