"""A program of its own: reads and writes through Spark Connect, and prints what it found.

    python tests/spark/connect_program.py URL FOLDER

The jobs of `fault_jobs` are run in FOLDER, where their places have been prepared.

A process can have classic sessions or those of Spark Connect, not both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import icefloe.spark
from icefloe import Repository, storage_from_url
from tests.spark.fault_jobs import JOBS, Place


def main(url: str, folder: str) -> None:
    spark = icefloe.spark.session(config={"spark.remote": "local[2]"})
    try:
        repository = Repository.open(storage_from_url(url))
        frame = icefloe.spark.read(spark, repository, where="lat > 48")
        rows = frame.toArrow().num_rows
        source = spark.read.format("icefloe").load(url).count()
        changes = icefloe.spark.table(spark, repository, "changes").count()
        kind = type(spark).__module__
        for place in sorted(Path(folder).iterdir()):
            JOBS[place.name].run(spark, Place(place))
        sys.stdout.write(json.dumps([kind, rows, source, changes]) + "\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
