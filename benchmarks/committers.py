"""Many processes that commit to one branch without knowing of each other.

Started as `python -m benchmarks.committers FOLDER SIDE KIND ADDRESS FIRST COUNT`, it writes one
chunk a commit: each commit starts from the newest snapshot, and is rebased when others were faster.
It says `ready` when it could start, starts when it is told to by a line of input, and says in the
end how much CPU time the commits took, and how long it waited for the disk.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zarr

from benchmarks.data import Corpus
from benchmarks.measure import Fsyncs
from benchmarks.places import Place

LONGEST_S = 600


@contextmanager
def crowd(
    place: Place, address: str, *, processes: int, commits: int
) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes, all of them ready; none is left behind."""
    started = []
    try:
        for number in range(processes):
            where = [str(place.corpus.folder), place.side, place.kind, address]
            arguments = [*where, str(number * commits), str(commits)]
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.committers", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("a committer did not start; its complaint is above")
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def let_go(processes: list[subprocess.Popen[str]]) -> tuple[float, float]:
    """Start them all, and wait until the last one is done.

    Returns the CPU seconds of all, and how long one of them has waited for the disk on average.
    """
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    cpu = fsync = 0.0
    for process in processes:
        assert process.stdout is not None
        mine, waited = map(float, (process.stdout.readline() or "nan nan").split())
        cpu, fsync = cpu + mine, fsync + waited / len(processes)
        if process.wait(LONGEST_S):
            raise RuntimeError("a committer failed; its complaint is above")
    return cpu, fsync


def main(folder: str, side: str, kind: str, address: str, first: str, count: str) -> None:
    """Commit chunk after chunk."""
    place = Place(side, kind, Corpus(Path(folder), 0))
    warm_up(place.library)
    repository = place.library.Repository.open(place.storage(address))
    session = repository.readonly_session("main")
    zarr.open_array(session.store, path="a", mode="r")  # connects
    print("ready", flush=True)
    sys.stdin.readline()
    Fsyncs.watch()
    before = time.process_time()
    commit_chunks(place.library, repository, range(int(first), int(first) + int(count)))
    print(time.process_time() - before, Fsyncs.seconds(), flush=True)


def warm_up(library: Any) -> None:
    """The first commit of a process loads modules and starts threads, here in memory."""
    repository = library.Repository.create(library.in_memory_storage())
    with repository.transaction("main", message="an array") as store:
        zarr.create_array(store, name="a", shape=(3,), chunks=(1,), dtype="int32")
    commit_chunks(library, repository, range(3))


def commit_chunks(library: Any, repository: Any, chunks: range) -> None:
    """One chunk a commit, each from the newest snapshot on."""
    solver = library.ConflictDetector()
    for at in chunks:
        session = repository.writable_session("main")
        array: Any = zarr.open_array(session.store, path="a")
        array[at] = at + 1
        session.commit(f"chunk {at}", rebase_with=solver)


if __name__ == "__main__":
    main(*sys.argv[1:])
