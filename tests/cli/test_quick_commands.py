"""Commands that look start quickly: they load neither Zarr nor Arrow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"zarr", "pyarrow", "pandas", "xarray", "pyspark", "dask", "obstore", "h5py"}
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
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for command, (code, modules) in json.loads(done.stdout).items():
        assert code == 0, command
        assert HEAVY & set(modules) == set(), command


def test_arrow_starts_without_pandas_and_finds_it_later() -> None:
    program = (
        "import sys\n"
        "from icefloe.cli.program import start_arrow_alone\n"
        "start_arrow_alone()\n"
        "import pyarrow as pa\n"
        "assert pa.array([1, 2]).to_numpy().sum() == 3\n"
        "assert 'pandas' not in sys.modules\n"
        "assert pa.array([1, 2]).to_pandas().sum() == 3\n"
        "import pandas\n"
        "assert pa.array(pandas.Series(['a', None])).null_count == 1\n"
    )
    pytest.importorskip("pandas", reason="the test is about pandas where it is installed")
    subprocess.run([sys.executable, "-c", program], timeout=300, check=True)
