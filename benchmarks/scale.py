"""One array of very many virtual references: handing in, committing, appending, one lookup.

`python -m benchmarks.scale [REFERENCES]` runs each side in a process of its own and prints what
every step took; peak memory is that of the whole process, with the input in it. Official gets the
splits that icefloe finds by itself, and is stopped when it takes too long.
"""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr

from benchmarks.data import location

DEFAULT_REFS = 20_000_000
_GRID = (50, 20)
_PER_ROW = _GRID[0] * _GRID[1]
_ROWS_PER_BATCH = 200
_APPENDS = 10
_ROWS_PER_SPLIT = 128
_MAX_SECONDS = 900.0
SIDES = ("icefloe", "official")


@dataclass(frozen=True, slots=True)
class Measured:
    """One step; memory is the peak of the process so far."""

    step: str
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    written_bytes: int


def run(refs: int) -> list[str]:
    """Measure both sides; returns the lines of a table."""
    lines = [f"{'':9} {'step':28} {'wall s':>8} {'CPU s':>8} {'peak MB':>8} {'written MB':>10}"]
    for side in SIDES:
        with tempfile.TemporaryDirectory(prefix="icefloe-scale-") as folder:
            command = [sys.executable, "-m", "benchmarks.scale", side, str(refs), folder]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=_MAX_SECONDS, check=False
                )
            except subprocess.TimeoutExpired:
                lines.append(f"{side:9} not finished after {_MAX_SECONDS:.0f} s")
                continue
        if done.returncode:
            lines.append(f"{side:9} failed: {done.stderr.strip().splitlines()[-1:]}")
            continue
        lines += [_line(side, json.loads(printed)) for printed in done.stdout.splitlines()]
    return lines


def _line(side: str, step: dict[str, Any]) -> str:
    return (
        f"{side:9} {step['step']:28} {step['wall_seconds']:8.2f} {step['cpu_seconds']:8.2f} "
        f"{step['peak_bytes'] / 1e6:8.0f} {step['written_bytes'] / 1e6:10.2f}"
    )


# --- inside the process -----------------------------------------------------------------------


def measure(side: str, refs: int, folder: Path) -> Iterator[Measured]:
    """Run the steps of one side in a new folder."""
    write = _write_ours if side == "icefloe" else _write_official
    library, config = _library(side)
    storage = library.local_filesystem_storage(str(folder))
    rows = max(refs // _PER_ROW, 100)

    def timed(step: str, work: Callable[[], None]) -> Measured:
        before, wall, cpu = _size(folder), time.perf_counter(), time.process_time()
        work()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Measured(step, wall, cpu, peak, _size(folder) - before)

    first_session = library.Repository.create(storage, config).writable_session("main")

    def hand_in() -> None:
        store, shape = first_session.store, (rows, *_GRID)
        zarr.create_array(store, name="a", shape=shape, chunks=(1, 1, 1), dtype="f4")
        for first in range(0, rows, _ROWS_PER_BATCH):
            write(store, first, min(first + _ROWS_PER_BATCH, rows))

    yield timed(f"hand in {rows * _PER_ROW:,} refs", hand_in)
    yield timed("commit", lambda: first_session.commit("all"))
    repository = library.Repository.open(storage, config)
    more = max(rows // 100, 1)
    for number in range(_APPENDS):

        def append(first: int = rows + number * more) -> None:
            session = repository.writable_session("main")
            array = zarr.open_array(session.store, path="a")
            array.resize((first + more, *_GRID))
            write(session.store, first, first + more)
            session.commit("more")

        yield timed(f"append {more * _PER_ROW:,} refs ({number + 1})", append)

    def look_up() -> None:
        opened = library.Repository.open(storage, config).readonly_session("main")
        found = opened.chunk_type("/a", [rows // 2, 3, 3])
        assert found == library.ChunkType.virtual, found

    yield timed("open and find one chunk", look_up)


def _library(side: str) -> tuple[Any, Any]:
    # A process that measures one library never imports the other.
    if side == "icefloe":
        return importlib.import_module("icefloe"), None
    icechunk: Any = importlib.import_module("icechunk")
    arrays, axes = icechunk.ManifestSplitCondition, icechunk.ManifestSplitDimCondition
    splitting = icechunk.ManifestSplittingConfig.from_dict(
        {arrays.AnyArray(): {axes.Axis(0): _ROWS_PER_SPLIT}}
    )
    manifest = icechunk.ManifestConfig(splitting=splitting)
    return icechunk, icechunk.RepositoryConfig(manifest=manifest)


def _offsets(first: int, last: int) -> Any:
    return np.tile((8192 + 4096 * np.arange(_PER_ROW)).astype(np.uint64), last - first)


def _write_ours(store: Any, first: int, last: int) -> None:
    count = (last - first) * _PER_ROW
    row = np.arange(count)
    files = pa.array([location(number) for number in range(first, last)])
    codes = pa.array((row // _PER_ROW).astype(np.int32))
    table = pa.table(
        {
            "i0": (first + row // _PER_ROW).astype(np.uint32),
            "i1": (row % _PER_ROW // _GRID[1]).astype(np.uint32),
            "i2": (row % _GRID[1]).astype(np.uint32),
            "location": pa.DictionaryArray.from_arrays(codes, files),
            "offset": _offsets(first, last),
            "length": np.full(count, 4096, np.uint64),
        }
    )
    assert store.set_virtual_refs_table("a", table, validate_containers=False) is None


def _write_official(store: Any, first: int, last: int) -> None:
    files = [location(number) for number in range(first, last)]
    locations = [file for file in files for _ in range(_PER_ROW)]
    offsets = _offsets(first, last)
    failed = store.set_virtual_refs_arr(
        "a",
        (last - first, *_GRID),
        locations,
        offsets,
        np.full(len(offsets), 4096, np.uint64),
        validate_containers=False,
        arr_offset=(first, 0, 0),
    )
    assert failed is None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    if len(sys.argv) <= 2:
        print("\n".join(run(int(sys.argv[1]) if len(sys.argv) == 2 else DEFAULT_REFS)))
    else:
        side_, refs_, folder_ = sys.argv[1:]
        for measured in measure(side_, int(refs_), Path(folder_)):
            print(json.dumps(asdict(measured)), flush=True)
