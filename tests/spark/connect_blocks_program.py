"""A program of its own: runs the jobs of `block_jobs` in a folder through Spark Connect.

python tests/spark/connect_blocks_program.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import icefloe.spark
from tests.spark.block_jobs import BLOCK_JOBS
from tests.spark.fault_jobs import Place


def main(folder: str) -> None:
    spark = icefloe.spark.session(config={"spark.remote": "local[2]"})
    try:
        names = sorted(place.name for place in Path(folder).iterdir())
        for name in names:
            BLOCK_JOBS[name].run(spark, Place(Path(folder, name)))
        sys.stdout.write(json.dumps(names) + "\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
