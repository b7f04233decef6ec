"""Maintenance of very many references, in one process and on Spark, with the driver's memory.

    python -m benchmarks.maintenance_at_scale [REFERENCES] [FOLDER]

References are virtual, a million to a commit, over a thousand locations. Every form runs in a
process of its own; on Spark the Java of the driver has 1 GB, which it shares with the executor.
A folder that was given is kept and used again.
"""

from __future__ import annotations

import importlib
import json
import resource
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
from benchmarks.measure import run_in_process

DEFAULT_REFERENCES = 50_000_000
_A_COMMIT = 1_000_000
_NUM_LOCATIONS = 1000
_FORMS = ("verify", "storage_stats", "garbage_collect")


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
        settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 8}
        spark = importlib.import_module("icefloe.spark").session(
            "local[2]", "maintenance", settings
        )
    started = time.monotonic()
    told = str(_FORMS_OF[form](repo, spark, maintenance))
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"form": form, "engine": engine, "seconds": seconds, "peak": peak, "told": told}


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


_FORMS_OF = {
    "verify": _verify,
    "storage_stats": _storage_stats,
    "garbage_collect": _garbage_collect,
}


def main(arguments: list[str]) -> None:
    """Make the repository, and run every form in a process of its own."""
    if arguments[:1] == ["run"]:
        print("result " + json.dumps(run(*arguments[1:])))
        return
    references = int(arguments[0]) if arguments else DEFAULT_REFERENCES
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(arguments[1] if len(arguments) > 1 else scratch) / f"{references}"
        if not folder.exists():
            started = time.monotonic()
            make(folder, references)
            print(f"made {references:,} references in {time.monotonic() - started:.0f} s")
        for form in _FORMS:
            for engine in ("alone", "spark"):
                printed = run_in_process(__spec__.name, "run", form, str(folder), engine)
                (line,) = (one for one in printed.splitlines() if one.startswith("result "))
                found = json.loads(line.removeprefix("result "))
                print(
                    f"{form:16} {engine:6} {found['seconds']:8.1f} s  Python of the driver "
                    f"{found['peak'] / 1e6:6.0f} MB  {found['told'][:120]}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
