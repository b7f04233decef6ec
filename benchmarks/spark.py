"""Spark on two cores against one process, or against Parquet.

Started as `python -m benchmarks.spark PART ROUNDS`, it measures one part in a session of its own
and prints its rows as JSON. The time that Spark takes to start is not part of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases import SPARK
from benchmarks.measure import run_in_process
from benchmarks.results import Results, Row

NEEDS = ("pyspark", "h5py", "netCDF4", "xarray", "virtualizarr", "psutil")
NATIVE_FILES, VIRTUAL_FILES, MILLION_CELLS, MILLION_IN_CHUNKS = 48, 1_000, 16.0, 64.0
ROUNDS, LONGEST_S = 2, 1800.0

PARTS: dict[str, Callable[[Any, Path, int], Iterator[Any]]] = {
    "native ingest": lambda *arguments: _module("spark_ingest").native_rows(
        *arguments[:2], NATIVE_FILES, arguments[2]
    ),
    "virtual ingest": lambda *arguments: _module("spark_ingest").virtual_rows(
        *arguments[:2], VIRTUAL_FILES, arguments[2]
    ),
    "cells and chunks": lambda *arguments: _module("spark_read").read_rows(
        *arguments[:2], MILLION_CELLS, arguments[2]
    ),
    "many chunks": lambda *arguments: _module("spark_read").many_chunk_rows(
        *arguments[:2], MILLION_IN_CHUNKS, arguments[2]
    ),
    "datasets": lambda *arguments: _module("spark_datasets").dataset_rows(*arguments),
    "first rows": lambda *arguments: _module("spark_start").first_rows(arguments[2]),
    "executors": lambda *_: _module("spark_start").scaling_rows(1),
}
"""What yields the rows of each part, given a session, a folder and a number of rounds."""

IN_OWN_SESSIONS = ("first rows", "executors")
"""Parts that start a session for each figure, and are given none."""


def _module(name: str) -> Any:
    """Loaded only now: the other benchmarks do without Spark."""
    return importlib.import_module(f"benchmarks.{name}")


def is_about(part: str, text: str) -> bool:
    """Whether a part is meant by what a user typed."""
    return text.lower() in (SPARK.lower(), "") or text in part


def measure_part(part: str, results: Results, say: Callable[[str], None]) -> bool:
    """Measure a part in a new process; returns whether that failed."""
    say(f"  {SPARK}: {part}")
    try:
        missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
        if missing:
            raise RuntimeError(f"{', '.join(missing)} is not installed")
        printed = run_in_process("benchmarks.spark", part, str(ROUNDS), longest=LONGEST_S)
    except Exception as error:  # noqa: BLE001 - whatever it was, the other rows are measured
        print(error, file=sys.stderr)
        results.update([Row(part, SPARK, failed=str(error).strip().splitlines()[-1])])
        return True
    results.update(Row.from_json(row) for row in json.loads(printed.splitlines()[-1]))
    return False


def main(part: str, rounds: str) -> None:
    """Measure a part in this process."""
    session = None
    if part not in IN_OWN_SESSIONS:
        session = importlib.import_module("icefloe.spark").session("local[2]", progress=False)
    try:
        with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as folder:
            rows = list(PARTS[part](session, Path(folder), int(rounds)))
    finally:
        if session is not None:
            session.stop()
    print(json.dumps([row.as_result().as_json() for row in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
