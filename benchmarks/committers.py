"""Many processes that commit to one branch without knowing of each other.

Started as `python -m benchmarks.committers LIBRARY ENDPOINT PREFIX FIRST COUNT`, it writes one
chunk a commit: each commit starts from the newest snapshot, and is rebased when others were faster.
It says `ready` when it could start, and starts when it is told to by a line of input.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zarr

from benchmarks.places import S3_OPTIONS

LONGEST_S = 600


def open_repository(library: Any, url: str, prefix: str) -> Any:
    """The repository that all of them commit to."""
    storage = library.s3_storage(
        **S3_OPTIONS, prefix=prefix, endpoint_url=url, allow_http=True, force_path_style=True
    )
    return library.Repository.open(storage)


@contextmanager
def crowd(
    library: str, url: str, prefix: str, *, processes: int, commits: int
) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes, all of them ready; none is left behind."""
    started = []
    try:
        for number in range(processes):
            arguments = [library, url, prefix, str(number * commits), str(commits)]
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


def let_go(processes: list[subprocess.Popen[str]]) -> None:
    """Start them all, and wait until the last one is done."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        if process.wait(LONGEST_S):
            raise RuntimeError("a committer failed; its complaint is above")


def main(library_name: str, url: str, prefix: str, first: str, count: str) -> None:
    """Commit chunk after chunk."""
    library = importlib.import_module(library_name)
    warm_up(library)
    repository = open_repository(library, url, prefix)
    session = repository.readonly_session("main")
    zarr.open_array(session.store, path="a", mode="r")  # connects
    print("ready", flush=True)
    sys.stdin.readline()
    commit_chunks(library, repository, range(int(first), int(first) + int(count)))


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
