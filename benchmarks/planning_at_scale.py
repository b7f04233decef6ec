"""The driver's memory while very many small files are planned.

    python -m benchmarks.planning_at_scale plan [FILES]     descriptions alone, without Spark
    python -m benchmarks.planning_at_scale spark [FILES]    files on disk, scanned by Spark

Every file has three variables on a grid that all share, one time step, and a `history` of its own.
`plan` makes the rows that tasks of a scan send, and a fresh process joins them and plans, as the
driver does. `spark` writes the files and scans them with a driver whose Java has 1 GB.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pyarrow as pa

import icefloe.spark
from benchmarks.measure import run_in_process
from icefloe.format.columns import batch_of
from icefloe.spark.ingest_engine import (
    FILES_PER_TASK,
    SCHEMA,
    descriptions_of,
    part_rows,
    read_rows,
    scan_frame,
    source_rows,
)
from icefloe.virtual import scan
from icefloe.virtual.model.description import SourceDescription, Splitter, with_values
from icefloe.virtual.planning.plan import IngestOptions, IngestPlan
from icefloe.virtual.planning.planner import plan_ingest
from icefloe.virtual.sources import SourceAccess, list_sources

DEFAULT_FILES = 200_000
_GRID = (20, 30)
_NAMES = ("temperature", "pressure", "humidity")
_HISTORY = 300
_MARK = -98765.25
"""Stands for the time in the file that all others are copies of."""


# --- files ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Template:
    """The bytes of one file, and how those of the others differ."""

    data: bytes

    @classmethod
    def made_in(cls, folder: Path) -> Template:
        """Write the file once with the library that knows how."""
        path = folder / "template"
        with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
            file.history = "h" * _HISTORY
            file.Conventions = "CF-1.8"
            file.createDimension("time", None)
            for name, size in zip(("lat", "lon"), _GRID, strict=True):
                file.createDimension(name, size)
                file.createVariable(name, "f8", (name,))[:] = np.arange(size)
            file.createVariable("time", "f8", ("time",))[:] = [_MARK]
            file["time"].units = "hours since 2000-01-01"
            for name in _NAMES:
                made = file.createVariable(name, "f4", ("time", "lat", "lon"), fill_value=-9.0)
                made.units, made.long_name = "1", f"{name} of the air"
                made[:] = np.arange(np.prod(_GRID)).reshape(1, *_GRID)
                made[0, 0, 0] = _MARK
        data = path.read_bytes()
        path.unlink()
        return cls(data)

    def file(self, number: int) -> bytes:
        """The bytes of file `number`."""
        changed = self.data.replace(b"h" * _HISTORY, history(number).encode(), 1)
        changed = changed.replace(np.array(_MARK, ">f8").tobytes(), step(number).tobytes(), 1)
        return changed.replace(np.array(_MARK, ">f4").tobytes(), step(number, ">f4").tobytes())


def history(number: int) -> str:
    """A text that no two files share."""
    text = f"{number:08} made by step {number} of a model; "
    return (text * (_HISTORY // len(text) + 1))[:_HISTORY]


def step(number: int, dtype: str = ">f8") -> Any:
    """The time of a file, which is also the first value of each variable."""
    return np.array([number], dtype)


def write_files(folder: Path, count: int) -> None:
    """Write them, a thousand to a folder."""
    template = Template.made_in(folder)
    for number in range(count):
        place = folder / f"{number // 1000:04}"
        if number % 1000 == 0:
            place.mkdir()
        (place / f"{number:08}.nc").write_bytes(template.file(number))


def descriptions(folder: Path, count: int) -> Iterator[SourceDescription]:
    """What scans of so many files find: one is scanned, the others differ as files do."""
    path = folder / "00000000.nc"
    path.write_bytes(Template.made_in(folder).file(0))
    first = scan(path)
    for number in range(count):
        groups = {
            name: replace(group, attributes=group.attributes | {"history": history(number)})
            for name, group in first.groups.items()
        }
        variables = dict(first.variables)
        variables["time"] = with_values(variables["time"], step(number))
        for name in _NAMES:  # each small enough to be compared
            digest = hashlib.blake2b(f"{name} {number}".encode(), digest_size=16).digest()
            variables[name] = replace(variables[name], digest=digest)
        version = replace(
            first.version, fingerprint=f"{1_700_000_000_000_000 + number}-{number:032x}"
        )
        yield replace(
            first,
            location=first.location.replace("00000000", f"{number:08}"),
            groups=groups,
            variables=variables,
            version=version,
        )


# --- the plan alone ---------------------------------------------------------------------------


def write_rows(folder: Path, count: int) -> None:
    """The rows that tasks of a scan send to the driver: of each task one batch."""
    splitter, batches = Splitter(), []
    with pa.ipc.new_stream(str(folder / "rows"), SCHEMA) as writer:
        for number, source in enumerate(descriptions(folder, count), start=1):
            rows = list(source_rows(source.location, source, splitter))
            batches.append(batch_of(SCHEMA, rows))
            if number % FILES_PER_TASK == 0 or number == count:
                batches.append(batch_of(SCHEMA, part_rows(splitter.finish())))
                writer.write_table(pa.Table.from_batches(batches).combine_chunks())
                splitter, batches = Splitter(), []


def plan_rows(folder: Path) -> dict[str, float]:
    """Plan from rows as the driver of Spark does; what this process needed."""
    before = _peak_mb(os.getpid())
    with pa.ipc.open_stream((folder / "rows").read_bytes()) as reader:
        rows = reader.read_all().select(["location", "data", "reason"])
    locations = [name for name in rows["location"].to_pylist() if not name.startswith("#")]
    started = time.process_time()
    row_mb = rows.nbytes / 1e6
    found, problems = read_rows(rows, locations)
    del rows, reader
    plan = plan_ingest(found, IngestOptions(mode="virtual"), None, problems)
    seconds = time.process_time() - started
    _check(plan, len(locations))
    return {
        "files": len(locations),
        "row_mb": row_mb,
        "cpu_seconds": seconds,
        "before_mb": before,
        "peak_mb": _peak_mb(os.getpid()),
    }


# --- with Spark -------------------------------------------------------------------------------


def plan_files(folder: Path) -> dict[str, float]:
    """Scan files with Spark and plan; what the driver needed, in this process and in Java.

    Executors are processes of their own. Java may have 1 GB, of which results may take 1 GB.
    """
    heap = {"spark.driver.memory": "1g"}
    spark = icefloe.spark.session("local-cluster[2,1,1024]", config=heap, progress=False)
    options, access = IngestOptions(mode="native"), SourceAccess()
    before, started = _peak_mb(os.getpid()), time.monotonic()
    locations = list_sources(str(folder / "*" / "*.nc"), access)
    scanned = scan_frame(spark, locations, options, access)
    found, problems = descriptions_of(scanned, locations)
    seconds = time.monotonic() - started
    cpu = time.process_time()
    plan = plan_ingest(found, options, None, problems)
    cpu = time.process_time() - cpu
    _check(plan, len(locations))
    psutil: Any = importlib.import_module("psutil")  # it ships no types
    java = [child.pid for child in psutil.Process().children() if child.name() == "java"]
    measured = {
        "files": len(locations),
        "scan_seconds": seconds,
        "tasks": scanned.rdd.getNumPartitions(),
        "cpu_seconds": cpu,
        "before_mb": before,
        "peak_mb": _peak_mb(os.getpid()),
        "java_mb": sum(map(_peak_mb, java)),
    }
    spark.stop()
    return measured


def _check(plan: IngestPlan, count: int) -> None:
    assert not plan.problems, plan.problems[:3]
    assert plan.concat_dims == ("time",)
    shapes = {array.path: array.shape for array in plan.arrays}
    assert shapes[_NAMES[0]] == (count, *_GRID), shapes


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def main(what: str = "", count: str = str(DEFAULT_FILES), folder: str = "") -> None:
    """Print what was measured."""
    steps = {"plan": ("make rows", "plan rows"), "spark": ("make files", "plan files")}
    if what == "make rows":
        write_rows(Path(folder), int(count))
    elif what == "make files":
        write_files(Path(folder), int(count))
    elif what == "plan rows":
        print(json.dumps(plan_rows(Path(folder))))
    elif what == "plan files":
        print(json.dumps(plan_files(Path(folder))))
    elif what in steps:
        with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as name:
            for step in steps[what]:
                printed = run_in_process(__spec__.name, step, count, name, longest=7200.0)
        print(_line(json.loads(printed.splitlines()[-1])))
    else:
        sys.exit(__doc__)


def _line(found: dict[str, float]) -> str:
    text = (
        f"plan of {found['files']:,} files: {found['cpu_seconds']:.1f} s of CPU, peak memory of "
        f"the driver {found['before_mb']:.0f} MB before and {found['peak_mb']:.0f} MB after"
    )
    if "row_mb" in found:
        return f"{text}; rows of the scan {found['row_mb']:.0f} MB"
    return (
        f"{text}, and {found['java_mb']:.0f} MB of its Java; scanned in {found['tasks']:,} tasks "
        f"and {found['scan_seconds']:.0f} s"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
