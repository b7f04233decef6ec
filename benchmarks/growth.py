"""How opening, looking up, listing and committing slow down as a repository grows.

Each repository is made once, by icefloe. Started as `python -m benchmarks.growth FOLDER KIND SIZE
SIDE`, a process measures the operations of one library with one size: the least of some times, each
with a repository that has nothing cached.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zarr

from benchmarks.data import Corpus
from benchmarks.measure import run_in_process
from benchmarks.places import LOCAL, UNSYNCED, Place
from benchmarks.stores import open_session

SIZES = {
    "nodes": (500, 5_000, 50_000),
    "snapshots": (1_000, 10_000, 100_000),
    "references": (100_000, 1_000_000, 10_000_000),
    "manifests": (10, 100, 1_000),
    "branches": (100, 1_000, 10_000),
}
REFS_PER_ROW = 1000
"""References in a row of the grid of chunks: a listing has the rows."""

OPERATIONS = ("open", "look up", "list", "commit")
MOST_TIMES, ENOUGH_SECONDS, LONG_SECONDS = 20, 2.0, 4.0


def measure_kind(
    kind: str, sizes: tuple[int, ...], rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The times of every operation at each size, by both sides."""
    found: dict[str, Any] = {
        operation: {"sizes": list(sizes), "official": [], "icefloe": []} for operation in OPERATIONS
    }
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="icefloe-benchmarks-") as folder:
            say(f"growth: making {size:,} {kind}")
            run_in_process("benchmarks.growth_repositories", folder, kind, str(size))
            taken: dict[str, list[dict[str, list[float]]]] = {"official": [], "icefloe": []}
            for number in range(rounds):
                sides = ("official", "ours") if number % 2 == 0 else ("ours", "official")
                for side in sides:
                    say(f"growth: {size:,} {kind}, round {number + 1} of {rounds}, {side}")
                    printed = run_in_process("benchmarks.growth", folder, kind, str(size), side)
                    taken[{"ours": "icefloe"}.get(side, side)].append(json.loads(printed))
            for operation in OPERATIONS:
                for side, times in taken.items():
                    walls, cpus = zip(*(one[operation] for one in times), strict=True)
                    found[operation][side].append([min(walls), min(cpus)])
    return found


# --- inside the process -----------------------------------------------------------------------


def list_something(kind: str, place: Place, storage: Any, size: int) -> Callable[[], None]:
    """The listing that grows with a kind: members, history, branches or chunks."""
    repository = place.library.Repository.open(storage)
    store = repository.readonly_session("main").store

    async def names(prefix: str) -> int:
        return len([name async for name in store.list_dir(prefix)])

    def run() -> None:
        if kind == "snapshots":
            count = len([info.id for info in repository.ancestry(branch="main")])
        elif kind == "branches":
            count = len(repository.list_branches())
        elif kind == "nodes":
            count = asyncio.run(names(""))  # zarr.json is there, the root itself is not
        else:
            count = asyncio.run(names("a/c"))
        assert count == (max(size // REFS_PER_ROW, 1) if kind == "references" else size), count

    return run


def measured(kind: str, place: Place, size: int) -> dict[str, tuple[float, float]]:
    """Wall and CPU seconds of each operation."""
    storage = place.storage(place.address(kind))

    def opening() -> Callable[[], None]:
        def run() -> None:
            zarr.open_group(open_session(place, storage).store, mode="r")

        return run

    def looking_up() -> Callable[[], None]:
        session = open_session(place, storage)

        def run() -> None:
            assert "VIRTUAL" in str(session.chunk_type("/a", [0, 0])).upper()

        return run

    def listing() -> Callable[[], None]:
        return list_something(kind, place, storage, size)

    found = {
        "open": _least(opening),
        "look up": _least(looking_up),
        "list": _least(listing),
    }
    writing = Place(place.side, UNSYNCED if place.side == "ours" else LOCAL, place.corpus)
    with writing.copied(kind) as copy:

        def committing() -> Callable[[], None]:
            repository = place.library.Repository.open(copy)
            session = repository.writable_session("main")
            session.store.set_virtual_ref(
                "a/c/0/0", "s3://bucket/other", offset=0, length=1, validate_container=False
            )

            def run() -> None:
                session.commit("one chunk")

            return run

        found["commit"] = _least(committing)
    return found


def _least(prepare: Callable[[], Callable[[], None]]) -> tuple[float, float]:
    """The least of some times. The first one loads modules, so that it counts only if it is
    long."""
    walls, cpus = list[float](), list[float]()
    while len(cpus) < MOST_TIMES and (len(cpus) < 2 or sum(cpus) < ENOUGH_SECONDS):
        run = prepare()
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        cpus.append(time.process_time() - cpu)
        walls.append(time.perf_counter() - wall)
        if cpus[0] > LONG_SECONDS:
            break
    return min(walls), min(cpus)


def main(folder: str, kind: str, size: str, side: str) -> None:
    """Print what one library needs."""
    place = Place(side, LOCAL, Corpus(Path(folder), int(size)))
    importlib.import_module("zarr")
    print(json.dumps(measured(kind, place, int(size))))


if __name__ == "__main__":
    main(*sys.argv[1:])
