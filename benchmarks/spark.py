"""Spark on two cores against one process: `python -m benchmarks --only spark`, a table alone."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEEDS = ("pyspark", "h5py", "netCDF4", "xarray", "virtualizarr", "psutil")
NATIVE_FILES, VIRTUAL_FILES, MILLION_CELLS = 64, 2_000, 16.0


def run(rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure everything, print the table, and return the same as plain values.

    The time that Spark takes to start is not part of it.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(f"-- spark: not measured, {', '.join(missing)} is not installed")
        return []
    # Only now: the other benchmarks do without Spark.
    spark_ingest: Any = importlib.import_module("benchmarks.spark_ingest")
    spark_read: Any = importlib.import_module("benchmarks.spark_read")
    spark_rows: Any = importlib.import_module("benchmarks.spark_rows")
    session = importlib.import_module("icefloe.spark").session("local[2]", progress=False)
    rows = []
    try:
        with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as name:
            folder = Path(name)
            for made in (
                spark_ingest.native_rows(session, folder, NATIVE_FILES, rounds),
                spark_ingest.virtual_rows(session, folder, VIRTUAL_FILES, rounds),
                spark_read.read_rows(session, folder, MILLION_CELLS, rounds),
            ):
                for row in made:
                    say(f"spark: {row.name}")
                    rows.append(row)
    finally:
        session.stop()
    say("")
    print("-- spark, 2 cores, after a run to warm up")
    print("\n".join(spark_rows.render(rows)), flush=True)
    memory = []
    for measured in spark_ingest.measure_refs(spark_ingest.REFS):
        memory.append(measured)
        print(spark_ingest.line_of(measured), flush=True)
    missed = [row.name for row in rows if row.is_missed]
    print("missed: " + "; ".join(missed) if missed else "all targets met")
    return [*(row.as_json() for row in rows), *memory]
