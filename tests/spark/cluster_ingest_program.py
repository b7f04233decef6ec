"""Ingests one after the other on a cluster: a driver that `test_ingest_cluster` runs.

`python cluster_ingest_program.py MASTER FILE`; the file is a JSON list of what `ingest` is given,
or of rows for `write_table`. Prints a JSON list of what became of each, in its last line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import icefloe
import icefloe.spark


def outcome(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    """What an ingest reports, or the error that it or a write of `rows` raises."""
    try:
        if "rows" in order:
            rows = spark.createDataFrame(order["rows"], "x int, v tinyint")
            place = icefloe.storage_from_url(order["repository"])
            icefloe.spark.write_table(
                rows, icefloe.Repository.open(place), dims=["x"], variables=["v"], mode="append"
            )
            return {"error": None}
        report = icefloe.spark.ingest(spark, **order)
    except Exception as error:  # noqa: BLE001 - whoever gave the order wants to know
        return {"error": f"{type(error).__name__}: {error}"}
    problems = [[problem.location, problem.reason] for problem in report.problems]
    return {"error": None, "files_added": report.files_added, "problems": problems}


def main(master: str, orders: str) -> None:
    spark = icefloe.spark.session(
        master, "ingests", {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": 2}
    )
    try:
        found = [outcome(spark, order) for order in json.loads(Path(orders).read_text())]
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
