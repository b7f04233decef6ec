"""A program of its own: ingests through Spark Connect and prints what the reports say.

    python tests/spark/connect_ingest_program.py URL PATTERN

A process can have classic sessions or those of Spark Connect, not both.
"""

from __future__ import annotations

import json
import sys

import icefloe.spark
from icefloe.spark import shared_write


def main(url: str, pattern: str) -> None:
    spark = icefloe.spark.session(config={"spark.remote": "local[2]"})
    try:
        found = []
        for mode in ("native", "virtual"):
            report = icefloe.spark.ingest(
                spark, pattern, url, group=mode, concat_dim="time", mode=mode
            )
            shared_write.MIN_REDUCED_CHUNKS = shared_write.MIN_CHUNKS_PER_PIECE = (
                1  # the second is done as a big job is
            )
            found.append([report.files_added, report.chunks_written > 0, report.refs_written > 0])
        sys.stdout.write(json.dumps([type(spark).__module__, *found]) + "\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
