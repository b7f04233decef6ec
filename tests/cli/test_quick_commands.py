"""Commands that look start quickly: they load neither Zarr nor Arrow, and take little CPU time."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import GOOD, words_of

HEAVY = {"zarr", "pyarrow", "pandas", "xarray", "pyspark", "dask", "obstore", "h5py"}
MOST_CPU_SECONDS = 0.3
"""Of a command, beyond `import zarr`."""
IMPORT_ZARR = 0.36
"""Seconds of CPU on the machine that the limit is meant for."""
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


def cpu_seconds(*words: str) -> float:
    """Of a new process that finds its modules compiled, as an installed package has them."""
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def check_cpu(name: str, branched: Path) -> None:
    """The least of several runs, taken in turns with `import zarr`.

    Where the machine is slow or busy and `import zarr` takes longer, a command may take longer in
    proportion.
    """
    found: list[tuple[float, float]] = []
    for turn in range(6):
        folder = branched.parent / str(turn)
        shutil.copytree(branched.parent, folder, ignore=lambda _, names: set("012345") & {*names})
        command = cpu_seconds("-m", "icefloe", *words_of(name, folder / branched.name))
        found.append((cpu_seconds("-c", "import zarr"), command))
        zarr, command = map(min, zip(*found, strict=True))
        if turn and command - zarr <= MOST_CPU_SECONDS * max(1, zarr / IMPORT_ZARR):
            return
    pytest.fail(f"{name} takes {command:.2f} s, import zarr {zarr:.2f} s")


@pytest.mark.parametrize("name", ["stats", "sql", "ingest", "import"])
def test_a_command_takes_little_more_than_importing_zarr(branched: Path, name: str) -> None:
    check_cpu(name, branched)


@pytest.mark.long
@pytest.mark.parametrize("name", GOOD)
def test_each_command_takes_little_more_than_importing_zarr(branched: Path, name: str) -> None:
    check_cpu(name, branched)


def test_arrow_starts_without_pandas_and_finds_it_later() -> None:
    program = (
        "import sys\n"
        "from icefloe.cli.arrow_alone import start_arrow_alone\n"
        "start_arrow_alone()\n"
        "import pyarrow as pa\n"
        "assert pa.array([1, 2]).to_numpy().sum() == 3\n"
        "assert 'pandas' not in sys.modules\n"
        "assert pa.array([1, 2]).to_pandas().sum() == 3\n"
        "import pandas\n"
        "assert pa.array(pandas.Series(['a', None])).null_count == 1\n"
    )
    pytest.importorskip("pandas", reason="the test is about pandas where it is installed")
    subprocess.run([sys.executable, "-c", program], timeout=100, check=True)
