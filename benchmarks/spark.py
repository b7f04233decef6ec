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


def run(
    rounds: int, say: Callable[[str], None], *, scale: float = 1.0, with_memory: bool = True
) -> tuple[list[str], list[dict[str, Any]]]:
    """Measure everything; the lines of the table, and the same as plain values.

    `scale` makes the work smaller; the time that Spark takes to start is never part of it.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        return [f"-- spark: not measured, {', '.join(missing)} is not installed"], []
    # Only now: the other benchmarks do without Spark.
    spark_ingest: Any = importlib.import_module("benchmarks.spark_ingest")
    spark_read: Any = importlib.import_module("benchmarks.spark_read")
    spark_rows: Any = importlib.import_module("benchmarks.spark_rows")
    session = importlib.import_module("icefloe.spark").session("local[2]", progress=False)
    rows = []
    try:
        with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as name:
            folder = Path(name)
            files = max(4, int(NATIVE_FILES * scale))
            for made in (
                spark_ingest.native_rows(session, folder, files, rounds),
                spark_ingest.virtual_rows(
                    session, folder, max(20, int(VIRTUAL_FILES * scale)), rounds
                ),
                spark_read.read_rows(session, folder, MILLION_CELLS * scale, rounds),
            ):
                for row in made:
                    say(f"spark: {row.name}")
                    rows.append(row)
    finally:
        session.stop()
    lines = ["-- spark, 2 cores, after a run to warm up", *spark_rows.render(rows)]
    if with_memory:
        say("spark: memory of the driver")
        lines += spark_ingest.refs_lines(spark_ingest.REFS)
    missed = [row.name for row in rows if row.is_missed]
    lines.append("missed: " + "; ".join(missed) if missed else "all targets met")
    return lines, [row.as_json() for row in rows]
