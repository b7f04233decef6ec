"""Very many virtual references, ingested on Spark and read back as the table `chunks`.

    python -m benchmarks.references_at_scale [REFERENCES] [FOLDER]

NetCDF files of 50,000 chunks each are made, ingested in commits of at most ten million references,
and every reference is read back and checked. The ingest and the read run in processes of their own,
whose driver is measured: its Python, and its Java with 512 MB of heap. The executor is a process of
its own too, with 2 cores. A folder that was given is kept: run again, files that are there are not
made again, and what is committed is not ingested again. A file takes 5.8 MB.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import icefloe
import icefloe.spark
from benchmarks.maintenance_at_scale import java_memory
from benchmarks.measure import peak_memory, run_in_process
from benchmarks.spark_files import CHUNKY_STEPS, REFS_PER_FILE, make_chunky
from benchmarks.spark_rows import cpu_seconds

DEFAULT_REFERENCES = 100_000_000
_A_COMMIT = 10_000_000
_LONGEST_S = 3600.0
_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "2g",
    "spark.sql.shuffle.partitions": 8,
}


def ingest(folder: Path, references: int) -> dict[str, Any]:
    """Refer to the files, some at a time; those of an earlier run are known already."""
    files, repo = folder / "files", _repository(folder)
    paths = sorted(map(str, files.glob("*.nc")))[: -(-references // REFS_PER_FILE)]
    a_commit = _A_COMMIT // REFS_PER_FILE
    spark = _session()
    before, written, started = peak_memory(), 0, _now()
    for first in range(0, len(paths), a_commit):
        some = paths[first : first + a_commit]
        report = icefloe.spark.ingest(
            spark, some, repo, concat_dim="time", mode="virtual", append=True
        )
        written += report.refs_written
        _tell(
            f"commit of {report.refs_written:,} references in {report.seconds:.0f} s, "
            f"{report.files_skipped} files known already, peak {peak_memory() / 1e6:.0f} MB"
        )
    return _result(spark, started, before, written)


def read(folder: Path, references: int) -> dict[str, Any]:
    """Read every reference, and check it against what the files have."""
    expected = _expected(folder / "files")
    repo, spark = _repository(folder), _session()
    before, started = peak_memory(), _now()
    chunks = icefloe.spark.table(spark, repo, "chunks").where("path = '/v'")
    found = chunks.groupBy("location").agg(
        *map(
            importlib.import_module("pyspark.sql.functions").expr,
            (
                "count(*) refs",
                "sum(offset) offsets",
                "sum(length) lengths",
                "min(chunk_index[0]) first",
                "max(chunk_index[0]) last",
                "sum(chunk_index[1]) columns",
                "count(DISTINCT kind) kinds",
            ),
        )
    )
    rows = found.orderBy("location").collect()
    count = -(-references // REFS_PER_FILE)
    assert len(rows) == count, f"references to {len(rows)} files, expected {count}"
    for number, row in enumerate(rows):
        at = number * CHUNKY_STEPS
        wanted = (*expected, at, at + CHUNKY_STEPS - 1)
        got = (row.refs, row.offsets, row.lengths, row.columns, row.first, row.last)
        assert got == wanted, f"{row.location}: {got}, expected {wanted}"
    return _result(spark, started, before, sum(row.refs for row in rows))


def _expected(files: Path) -> tuple[int, int, int, int]:
    """What the references to one file add up to. Files differ in nothing but their times."""
    h5py: Any = importlib.import_module("h5py")
    stored: list[Any] = []
    with h5py.File(files / "00000.nc") as file:
        file["v"].id.chunk_iter(stored.append)
        file_chunks = file["v"].chunks
    offsets = sum(chunk.byte_offset for chunk in stored)
    lengths = sum(chunk.size for chunk in stored)
    columns = sum(chunk.chunk_offset[1] // file_chunks[1] for chunk in stored)
    return len(stored), offsets, lengths, columns


def _repository(folder: Path) -> Any:
    """The repository in the folder, made if there is none."""
    storage = icefloe.local_filesystem_storage(str(folder / "repository"), durable=False)
    files = folder / "files"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(
            f"file://{files}/", icefloe.local_filesystem_store(str(files))
        )
    )
    return icefloe.Repository.open_or_create(storage, config)


def _session() -> Any:
    master = "local-cluster[1,2,3072]"
    return icefloe.spark.session(master, "references", _SETTINGS, progress=False)


def _now() -> tuple[float, float]:
    """Wall time, and the CPU time of the driver and the executor."""
    return time.monotonic(), sum(cpu_seconds().values())


def _result(
    spark: Any, started: tuple[float, float], before: int, references: int
) -> dict[str, Any]:
    seconds, cpu = (now - then for now, then in zip(_now(), started, strict=True))
    heap, resident = java_memory(spark)
    return {
        "references": references,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "python_before": before,
        "python": peak_memory(),
        "java_heap": heap,
        "java": resident,
    }


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(references: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Both steps, each in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    make_chunky(folder / "files", -(-references // REFS_PER_FILE))
    found = {}
    for step in ("ingest", "read"):
        printed = run_in_process(
            __spec__.name, step, str(folder), str(references), longest=_LONGEST_S
        )
        (line,) = (one for one in printed.splitlines() if one.startswith("result "))
        found[step] = json.loads(line.removeprefix("result "))
        print(line_of(step, found[step]), flush=True)
    return found


def line_of(step: str, found: dict[str, Any]) -> str:
    """A measurement as text."""
    rate = found["references"] / found["seconds"]
    return (
        f"{step:6} {found['references']:>13,} references {found['seconds']:7.1f} s, "
        f"{found['cpu_seconds']:.1f} s of CPU "
        f"({rate:,.0f} a second)  driver: Python {found['python'] / 1e6:.0f} MB "
        f"({found['python_before'] / 1e6:.0f} before), Java {found['java'] / 1e6:.0f} MB "
        f"(heap {found['java_heap'] / 1e6:.0f})"
    )


def main(arguments: list[str]) -> None:
    """Print what each step took."""
    steps = {"ingest": ingest, "read": read}
    if arguments[:1] and arguments[0] in steps:
        print("result " + json.dumps(steps[arguments[0]](Path(arguments[1]), int(arguments[2]))))
        return
    references = int(arguments[0]) if arguments else DEFAULT_REFERENCES
    if len(arguments) > 1:
        measure(references, Path(arguments[1]).absolute())
        return
    with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as scratch:
        measure(references, Path(scratch))


if __name__ == "__main__":
    main(sys.argv[1:])
