"""Garbage collection of a large repository in a directory, by both sides.

`python -m benchmarks --only collect` makes a repository with 300,000 objects and 5 million
references: 250,000 chunks that 20 snapshots refer to, and 50,000 that nothing refers to. Each side
collects a copy of it (hard links, so that times and bytes are the same) in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.format.manifest.chunk_refs import ChunkRefs
from icefloe.ids import encode_base32_rows

DEFAULT_OBJECTS = 300_000
_SNAPSHOTS = 20
_DEAD = 1 / 6
_CHUNK = bytes(8)
_MOST_SECONDS = 1200.0
SIDES = ("icefloe", "official")


def run(objects: int) -> list[str]:
    """Measure both sides; returns the lines of a table."""
    heads = ("wall s", "CPU s", "peak MB", "deleted")
    lines = [f"{'collect':20} " + " ".join(f"{head:>9}" for head in heads)]
    with tempfile.TemporaryDirectory(prefix="icefloe-collect-") as name:
        made = Path(name) / "made"
        make(made, objects)
        left = {}
        for side in SIDES:
            copy = Path(name) / side
            subprocess.run(["cp", "-al", made, copy], check=True)
            command = [sys.executable, "-m", "benchmarks.collecting", side, str(copy)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=True
            )
            lines.append(_line(side, json.loads(done.stdout)))
            left[side] = {path.name for path in (copy / "chunks").iterdir()}
        if left["icefloe"] != left["official"]:
            raise AssertionError("the sides have left different chunks")
    return lines


def _line(side: str, found: dict[str, Any]) -> str:
    return (
        f"{side:20} {found['wall_seconds']:9.2f} {found['cpu_seconds']:9.2f} "
        f"{found['peak_bytes'] / 1e6:9.0f} {found['deleted']:9,}"
    )


def make(folder: Path, objects: int) -> None:
    """A repository with so many chunk objects; references are made without writing through zarr."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(folder, durable=False))
    dead = int(objects * _DEAD)
    live = objects - dead
    ids = np.frombuffer(np.random.default_rng(1).bytes(12 * objects), np.uint8).reshape(-1, 12)
    (folder / "chunks").mkdir(exist_ok=True)
    for name in encode_base32_rows(ids):
        (folder / "chunks" / name).write_bytes(_CHUNK)
    index = np.arange(live, dtype=np.uint32).reshape(-1, 1)
    refs = ChunkRefs.native(
        index, ids[:live], np.zeros(live, np.uint64), np.full(live, len(_CHUNK), np.uint64)
    )
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(live,), chunks=(1,), dtype="<i8")
    session.commit("array")
    for number in range(_SNAPSHOTS):
        session = repo.writable_session("main")
        state = session.workspace.state
        with state.writing():
            state.changes.edits(state.node("/a")).set_table(refs)
        session.commit(f"snapshot {number}")


def collect(side: str, folder: Path) -> dict[str, Any]:
    """Collect everything that is not in use."""
    library: Any = importlib.import_module("icefloe" if side == "icefloe" else "icechunk")
    repo = library.Repository.open(library.local_filesystem_storage(str(folder)))
    wall, cpu = time.perf_counter(), time.process_time()
    summary = repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    return {
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "deleted": summary.chunks_deleted,
    }


if __name__ == "__main__":
    os.environ.setdefault("ICECHUNK_LOG", "off")
    print(json.dumps(collect(sys.argv[1], Path(sys.argv[2]))))
