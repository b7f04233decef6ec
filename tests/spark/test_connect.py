"""Reading through Spark Connect, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from icefloe import Repository
from icefloe.spark.changes import plan_changes
from icefloe.spark.source import pin
from tests.spark.datasets import WEATHER_ENCODING, rows_of, weather, write

SECONDS = 400


@pytest.mark.timeout(SECONDS)
def test_a_connect_session_reads_the_same(repository: Repository) -> None:
    pytest.importorskip("grpc", reason="Spark Connect is an optional dependency")
    write(repository, weather(), encoding=WEATHER_ENCODING)
    program = Path(__file__).with_name("connect_program.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), repository.storage.url],
        capture_output=True,
        text=True,
        timeout=SECONDS - 20,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kind, rows, source, changes = json.loads(done.stdout.splitlines()[-1])
    assert kind.startswith("pyspark.sql.connect")
    assert (rows, source) == (40, 60)
    assert changes == rows_of(plan_changes(pin(repository), None, 1)).num_rows
