"""A driver of Spark as a program that can be killed: runs the jobs of `fault_jobs`.

    python -m tests.spark.fault_driver MASTER NAME=VALUE...

One line in for each order, one line out when it is done, each as JSON. A job that is to be parked
is done as far as that goes: its thread stays where the fault has stopped it.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import icefloe.spark
from tests.spark.block_jobs import BLOCK_JOBS
from tests.spark.danger import Fault
from tests.spark.fault_jobs import JOBS, Place
from tests.spark.maintenance_jobs import MAINTENANCE_JOBS

MARK = "fault driver: "
"""What its own lines begin with: Java writes to the same output."""
PARK_SECONDS = 120.0
_JOBS = {**JOBS, **MAINTENANCE_JOBS, **BLOCK_JOBS}


@dataclass(frozen=True, slots=True)
class Order:
    """Run this job there, with a fault or without."""

    job: str
    folder: str
    fault: Fault | None = None

    def line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, line: str) -> Order:
        given = json.loads(line)
        fault = given.pop("fault")
        return cls(**given, fault=None if fault is None else Fault(**fault))


def main(master: str, *settings: str) -> None:
    config = dict(text.split("=", 1) for text in settings)
    spark = icefloe.spark.session(master, "faults", {"spark.sql.shuffle.partitions": 2, **config})
    try:
        _say({"ready": spark.version})
        for line in sys.stdin:
            _obey(spark, Order.parse(line))
    finally:
        spark.stop()


def _obey(spark: SparkSession, order: Order) -> None:
    job, place, fault = _JOBS[order.job], Place(Path(order.folder)), order.fault
    if fault is not None and fault.is_for_driver:
        thread = threading.Thread(target=job.run, args=(spark, place, fault), daemon=True)
        thread.start()
        fault.wait(PARK_SECONDS)
        _say({"parked": order.job})
        return
    error = None
    try:
        job.run(spark, place, fault)
    except Exception as raised:  # noqa: BLE001 - whoever gave the order wants to know
        error = f"{type(raised).__name__}: {raised}"[:2000]
    _say({"done": order.job, "error": error})


def _say(answer: dict[str, str | None]) -> None:
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
