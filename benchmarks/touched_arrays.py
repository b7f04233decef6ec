"""What many commits that each touch few of many small arrays leave in a directory.

`python -m benchmarks.touched_arrays`, which `make bench` ends with, writes 5,000 arrays of one
chunk, and 100 commits of new chunks for 1 % of them: once with shared manifests, once with a
manifest for each array. Then each side expires all snapshots but the newest and collects, on a copy
of its own.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

import icefloe
from benchmarks.many_arrays import CHUNK, array_paths, chunks, get, put, write_arrays

DEFAULT_ARRAYS, DEFAULT_COMMITS, DEFAULT_TOUCHED = 5000, 100, 50
LAYOUTS = {"shared": 64, "one each": 0}
"""By name: the most references of an array that shares manifests."""
SIDES = {"icefloe": "icefloe", "official": "icechunk"}


@dataclass(frozen=True, slots=True)
class Left:
    """What is stored of one layout, in files and bytes."""

    cpu_seconds: float
    """Of the commits that touch few arrays, without setting the chunks."""
    manifests: int
    manifest_bytes: int
    chunk_share: dict[str, float]
    """By the side that has collected: bytes of chunks that are stored, for each that is live."""
    manifest_bytes_after: dict[str, int]


def measure(name: str, folder: Path, arrays: int, commits: int, touched: int) -> Left:
    """Write one layout into `folder` / made, and collect copies of it."""
    made = folder / "made"
    cpu, expected = _write(LAYOUTS[name], made, arrays, commits, touched)
    share, after = {}, {}
    for side in SIDES:
        copy = folder / side
        subprocess.run(["cp", "-al", made, copy], check=True)
        _collect(side, copy)
        share[side] = _stored(copy / "chunks")[1] / (arrays * CHUNK)
        after[side] = _stored(copy / "manifests")[1]
        for reader in SIDES:
            session = _open(reader, copy).readonly_session("main")
            found = get(session.store, expected)
            if [one.to_bytes() for one in found] != list(expected.values()):
                raise AssertionError(f"{reader} misses chunks after {side} has collected")
    return Left(cpu, *_stored(made / "manifests"), share, after)


def _write(
    most_refs: int, folder: Path, arrays: int, commits: int, touched: int
) -> tuple[float, dict[str, bytes]]:
    """Returns the CPU seconds of the small commits, and every chunk by its key."""
    manifest = icefloe.ManifestConfig(max_shared_refs_per_array=most_refs)
    config = icefloe.RepositoryConfig(manifest=manifest)
    storage = icefloe.local_filesystem_storage(folder, durable=False)
    session = write_arrays(icefloe, storage, arrays, config)
    session.commit("arrays")
    paths = array_paths(arrays)
    written, spent = dict(chunks(paths, 1)), 0.0
    random = np.random.default_rng(4)
    for number in range(commits):
        session = icefloe.Repository.open(storage, config).writable_session("main")
        picked = random.choice(arrays, touched, replace=False).tolist()
        new = chunks([paths[at] for at in sorted(picked)], number % 200 + 2)
        put(session.store, new)
        written.update(new)
        started = time.process_time()
        session.commit(f"few arrays {number}")
        spent += time.process_time() - started
    return spent, {key: chunk.to_bytes() for key, chunk in written.items()}


def _open(side: str, folder: Path) -> Any:
    library: Any = importlib.import_module(SIDES[side])
    return library.Repository.open(library.local_filesystem_storage(str(folder)))


def _collect(side: str, folder: Path) -> None:
    repo = _open(side, folder)
    time.sleep(0.01)
    cut = datetime.now(UTC)
    repo.expire_snapshots(older_than=cut)
    # Official compares with the times of files, which may be later by a tick of the clock.
    repo.garbage_collect(cut if side == "icefloe" else cut + timedelta(seconds=1))


def _stored(folder: Path) -> tuple[int, int]:
    """How many files a folder has, and how many bytes."""
    sizes = [path.stat().st_size for path in folder.iterdir()]
    return len(sizes), sum(sizes)


def run(
    arrays: int, commits: int, touched: int, say: Callable[[str], None] = lambda _: None
) -> dict[str, Left]:
    """Measure every layout."""
    found = {}
    for name in LAYOUTS:
        say(f"{commits} commits to {touched} of {arrays:,} arrays, manifests: {name}")
        with tempfile.TemporaryDirectory(prefix="icefloe-touched-") as folder:
            found[name] = measure(name, Path(folder), arrays, commits, touched)
    return found


def lines(found: dict[str, Left]) -> list[str]:
    """A table."""
    heads = ("CPU s", "manifests", "MB", *(f"{side}: MB, chunks" for side in SIDES))
    made = [f"{'manifests':10} " + " ".join(f"{head:>20}" for head in heads)]
    for name, left in found.items():
        after = (
            f"{left.manifest_bytes_after[side] / 1e6:.3f}, {left.chunk_share[side]:.2f}x"
            for side in SIDES
        )
        cells = (
            f"{left.cpu_seconds:.2f}",
            f"{left.manifests:,}",
            f"{left.manifest_bytes / 1e6:.3f}",
            *after,
        )
        made.append(f"{name:10} " + " ".join(f"{cell:>20}" for cell in cells))
    note = "CPU of all small commits; MB of manifests before and after a side has collected, and "
    return [*made, f"{note}bytes of chunks stored then, for each that is live"]


def main(*numbers: str) -> None:
    """All of it; numbers are arrays, commits and arrays that each commit touches."""
    os.environ.setdefault("ICECHUNK_LOG", "off")
    defaults = (DEFAULT_ARRAYS, DEFAULT_COMMITS, DEFAULT_TOUCHED)
    arrays, commits, touched = map(int, numbers) if numbers else defaults
    print("\n".join(lines(run(arrays, commits, touched, print))))


if __name__ == "__main__":
    main(*sys.argv[1:])
