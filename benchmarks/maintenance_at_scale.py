"""Maintenance of very many references, in one process and on Spark, with the driver's memory.

    python -m benchmarks.maintenance_at_scale [REFERENCES] [FOLDER] [FORMS...]

References are virtual, a million to a commit, over a thousand locations. Making them and every form
run in processes of their own. On Spark the executor is a process of its own too, with 2 cores and
2 GB; the Java of the driver has 512 MB of heap. A folder that was given is kept and used again, and
FORMS after it are those to run, as `verify:spark`.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr

import icefloe
from benchmarks.measure import peak_memory, run_in_process

DEFAULT_REFERENCES = 50_000_000
_A_COMMIT = 1_000_000
_LONGEST_S = 7200.0
_NUM_LOCATIONS = 1000
_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": 8,
    "spark.executor.memory": "1g",
}


def make(folder: Path, references: int) -> None:
    """A repository with so many virtual references."""
    prefix = "file:///nowhere/"
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store("/nowhere"))
    )
    storage = icefloe.local_filesystem_storage(str(folder), durable=False)
    repo = icefloe.Repository.create(storage, config)
    names = pa.array([f"{prefix}data-{number:04}.nc" for number in range(_NUM_LOCATIONS)])
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(references,), chunks=(1,), dtype="<f4")
    session.commit("array")
    for first in range(0, references, _A_COMMIT):
        count = min(_A_COMMIT, references - first)
        numbers = np.arange(first, first + count)
        columns = {
            "i0": pa.array(numbers),
            "location": pa.DictionaryArray.from_arrays(
                pa.array((numbers % _NUM_LOCATIONS).astype(np.int32)), names
            ),
            "offset": pa.array(numbers // _NUM_LOCATIONS * 4),
            "length": pa.array(np.full(count, 4)),
        }
        session = repo.writable_session("main")
        session.store.set_virtual_refs_table("x", pa.table(columns))
        session.commit(f"from {first}")


def run(form: str, place: str, engine: str) -> dict[str, Any]:
    """One form on a repository, in this process."""
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(place, durable=False))
    spark: Any = None
    maintenance: Any = None
    if engine == "spark":
        maintenance = importlib.import_module("icefloe.spark.maintenance")
        spark = importlib.import_module("icefloe.spark").session(
            "local-cluster[1,2,2048]", "maintenance", _SETTINGS
        )
    started = time.monotonic()
    told = str(_FORMS_OF[form](repo, spark, maintenance))
    seconds = time.monotonic() - started
    java = java_memory(spark) if spark is not None else None
    return {"seconds": seconds, "peak": peak_memory(), "java": java, "told": told}


def java_memory(spark: Any) -> tuple[int, int]:
    """The most heap that the driver's Java has used, and the most memory it has had."""
    management = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    pools = [one for one in management.getMemoryPoolMXBeans() if "Heap" in str(one.getType())]
    heap = sum(one.getPeakUsage().getUsed() for one in pools if "Non" not in str(one.getType()))
    number = management.getRuntimeMXBean().getPid()
    lines = Path(f"/proc/{number}/status").read_text().splitlines()
    [resident] = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return heap, resident


def _verify(repo: Any, spark: Any, maintenance: Any) -> Any:
    report = repo.verify() if spark is None else maintenance.verify(spark, repo)
    assert report.is_healthy, str(report)
    return dict(report.checked)


def _storage_stats(repo: Any, spark: Any, maintenance: Any) -> Any:
    return repo.chunk_storage_stats() if spark is None else maintenance.storage_stats(spark, repo)


def _garbage_collect(repo: Any, spark: Any, maintenance: Any) -> Any:
    now = datetime.now(UTC)
    if spark is None:
        return repo.garbage_collect(now, dry_run=True)
    return maintenance.garbage_collect(spark, repo, now, dry_run=True)


def _rewrite_manifests(repo: Any, spark: Any, maintenance: Any) -> Any:
    if spark is None:
        return repo.rewrite_manifests("again", branch="main")
    return maintenance.rewrite_manifests(spark, repo, "again", branch="main")


def _export_repository(repo: Any, spark: Any, maintenance: Any) -> Any:
    with tempfile.TemporaryDirectory() as name:
        target = icefloe.local_filesystem_storage(f"{name}/copy", durable=False)
        if spark is None:
            return icefloe.export_repository(repo, target)
        return maintenance.export_repository(spark, repo, target)


_ENGINES = ("alone", "spark")
_FORMS_OF = {
    "verify": _verify,
    "storage_stats": _storage_stats,
    "garbage_collect": _garbage_collect,
    "export_repository": _export_repository,
    "rewrite_manifests": _rewrite_manifests,
}


def main(arguments: list[str]) -> None:
    """Make the repository, and run every form in a process of its own."""
    if arguments[:1] == ["make"]:
        make(Path(arguments[1]), int(arguments[2]))
        return
    if arguments[:1] == ["run"]:
        print("result " + json.dumps(run(*arguments[1:])))
        return
    references = int(arguments[0]) if arguments else DEFAULT_REFERENCES
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(arguments[1] if len(arguments) > 1 else scratch) / f"{references}"
        if not folder.exists():
            started = time.monotonic()
            run_in_process(__spec__.name, "make", str(folder), str(references), longest=_LONGEST_S)
            print(f"made {references:,} references in {time.monotonic() - started:.0f} s")
        for each in arguments[2:] or [f"{one}:{two}" for one in _FORMS_OF for two in _ENGINES]:
            form, engine = each.split(":")
            printed = run_in_process(
                __spec__.name, "run", form, str(folder), engine, longest=_LONGEST_S
            )
            (line,) = (one for one in printed.splitlines() if one.startswith("result "))
            print(_line(form, engine, json.loads(line.removeprefix("result "))), flush=True)


def _line(form: str, engine: str, found: dict[str, Any]) -> str:
    text = f"{form:18} {engine:6} {found['seconds']:8.1f} s  Python {found['peak'] / 1e6:5.0f} MB"
    if found["java"]:
        heap, resident = found["java"]
        text += f"  Java {resident / 1e6:5.0f} MB (heap {heap / 1e6:4.0f})"
    return f"{text}  {found['told'][:120]}"


if __name__ == "__main__":
    main(sys.argv[1:])
