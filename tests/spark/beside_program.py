"""A driver that ingests beside another one: `test_side_by_side` runs two at once.

`python -m tests.spark.beside_program NAME FOLDER ORDER`; the order is what `ingest` is given, as
JSON. Both wait for each other before their first commit, which `a` makes before `b`. Prints the
report in its last line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import icefloe
import icefloe.spark

WAIT_SECONDS = 200.0


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} has not come")
        time.sleep(0.05)


def main(name: str, folder: str, order: str) -> None:
    real, place = icefloe.Session.commit, Path(folder)

    def commit(self: icefloe.Session, *args: Any, **options: Any) -> str:
        (place / f"ready-{name}").touch()
        wait_for(place / ("ready-b" if name == "a" else "done-a"))
        landed = real(self, *args, **options)
        (place / f"done-{name}").touch()
        return landed

    icefloe.Session.commit = commit  # type: ignore[method-assign]
    spark = icefloe.spark.session(
        "local[2]", name, {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": 2}
    )
    try:
        report = icefloe.spark.ingest(spark, num_tasks=2, **json.loads(order))
    finally:
        spark.stop()
    names = ("files_added", "chunks_written", "bytes_written", "tries")
    found = {each: getattr(report, each) for each in (*names, "chunks_redone", "bytes_redone")}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
