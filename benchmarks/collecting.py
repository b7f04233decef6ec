"""Garbage collection of a large repository in a directory, by both sides.

`python -m benchmarks.collecting`, which `make bench` ends with, makes a repository with 300,000
objects and 5 million references: 250,000 chunks that 20 snapshots refer to, and 50,000 that nothing
refers to. Each side collects a copy of it (hard links, so that times and bytes are the same) in a
process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.measure import peak_memory, run_in_process
from benchmarks.repositories import write_garbage

DEFAULT_OBJECTS = 300_000
SIDES = ("icefloe", "official")
TIMES = ("wall_seconds", "cpu_seconds")


def run(objects: int, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """Measure both sides, each first once; returns the lines of a table."""
    heads = ("wall s", "CPU s", "peak MB", "deleted")
    lines = [f"{'collect':20} " + " ".join(f"{head:>9}" for head in heads)]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="icefloe-collect-") as name:
        made, copy = Path(name) / "made", Path(name) / "copy"
        say(f"making a repository with {objects:,} objects")
        run_in_process("benchmarks.collecting", "make", str(made), str(objects))
        left = set()
        for side in (*SIDES, *reversed(SIDES)):
            say(f"collecting with {side}")
            subprocess.run(["cp", "-al", made, copy], check=True)
            found[side].append(_measured(side, copy))
            left.add(frozenset(path.name for path in (copy / "chunks").iterdir()))
            shutil.rmtree(copy)
        if len(left) > 1:
            raise AssertionError("the sides have left different chunks")
        say("verifying")
        verified = _measured("verify", made)
    least = {side: _least(found[side]) for side in SIDES}
    lines += [_line(side, least[side]) for side in SIDES]
    lines.append(_line("icefloe verify", verified))
    wall, cpu = (least["official"][key] / least["icefloe"][key] for key in TIMES)
    lines.append(f"official takes {wall:.1f} times as long, {cpu:.1f} times the CPU time")
    return [*lines, "the less of two runs, one in each order of the sides"]


def _least(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: min(one[key] for one in runs) for key in runs[0]}


def _measured(what: str, folder: Path) -> dict[str, Any]:
    return dict(json.loads(run_in_process("benchmarks.collecting", what, str(folder))))


def _line(name: str, found: dict[str, Any]) -> str:
    return (
        f"{name:20} {found['wall_seconds']:9.2f} {found['cpu_seconds']:9.2f} "
        f"{found['peak_bytes'] / 1e6:9.0f} {found['deleted']:9,}"
    )


def measure(what: str, folder: Path) -> dict[str, Any]:
    """Collect everything that is not in use with one of the sides, or verify."""
    library: Any = importlib.import_module("icechunk" if what == "official" else "icefloe")
    repo = library.Repository.open(library.local_filesystem_storage(str(folder)))
    later = datetime.now(UTC) + timedelta(days=1)
    wall, cpu = time.perf_counter(), time.process_time()
    if what == "verify":
        deleted = 0
        if not repo.verify().is_healthy:
            raise AssertionError("the repository is not healthy")
    else:
        deleted = repo.garbage_collect(later).chunks_deleted
    return {
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_bytes": peak_memory(),
        "deleted": deleted,
    }


def main(what: str = "", folder: str = "", *objects: str) -> None:
    """All of it, or what `run` starts processes for."""
    os.environ.setdefault("ICECHUNK_LOG", "off")
    if not what:
        print("\n".join(run(DEFAULT_OBJECTS, print)))
    elif what == "make":
        write_garbage(Path(folder), *map(int, objects))
    else:
        print(json.dumps(measure(what, Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
