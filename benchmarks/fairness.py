"""How fair commits to one branch are: `python -m benchmarks.fairness`.

Writers without think time, each with an array of its own, commit to `main` for some seconds and
rebase when others were faster. A crowd of more than four icefloe writers is threads in a few
processes, each thread with its own `Repository`. Printed for each crowd: commits a second, tries
that were lost per commit, the part of its fair share that the slowest writer had, and the longest
wait for one commit in units of the mean time between two commits of a writer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

import icefloe
from benchmarks.data import Corpus
from benchmarks.places import LOCAL, S3, SLOW_S3, Place, announce_endpoint
from tests.servers import s3_server_process

PROCESSES = 4
"""More writers share them. One process more than the machine has processors is enough."""
LONGEST_S = 300
CROWDS = ("ours:4", "ours:2 official:2", "official:4", "ours:10", "ours:30", "ours:100")


@dataclass(frozen=True, slots=True)
class Crowd:
    """Writers of one branch."""

    kind: str
    spec: int
    sides: tuple[str, ...]
    """The library of each writer."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Written:
    """What one writer has reached."""

    side: str
    commits: int
    """Those that ended before the time was over."""
    longest: float
    """Seconds; a wait that was still going on when the time was over counts as well."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all writers have reached."""

    crowd: Crowd
    writers: tuple[Written, ...]
    lost: int
    """Tries of all commits that lost to another commit."""

    def mean(self, side: str = "") -> float:
        """Commits of a writer."""
        counts = [one.commits for one in self.writers if side in one.side]
        return sum(counts) / len(counts)

    @property
    def slowest_share(self) -> float:
        """Commits of the slowest writer, as a part of the mean."""
        return min(one.commits for one in self.writers) / max(self.mean(), 1e-9)

    @property
    def longest_wait(self) -> float:
        """The longest wait for a commit, in mean times between two commits of one writer."""
        return max(one.longest for one in self.writers) * self.mean() / self.crowd.seconds

    def line(self) -> str:
        """The outcome in a line of a table."""
        crowd, total = self.crowd, sum(one.commits for one in self.writers)
        names = sorted(set(crowd.sides))
        means = ", ".join(f"{name} {self.mean(name):.1f}" for name in names)
        return (
            f"| {crowd.kind} | {crowd.spec} | {len(crowd.sides)} | {means} "
            f"| {total / crowd.seconds:.1f} | {self.lost / max(total, 1):.1f} "
            f"| {self.slowest_share:.2f} | {self.longest_wait:.1f} "
            f"| {max(one.longest for one in self.writers):.1f} s |"
        )


HEADER = (
    "| storage | spec | writers | commits of a writer | commits/s | lost tries a commit "
    "| slowest / mean | longest wait / mean | longest wait |\n" + "|---" * 9 + "|"
)


def measured(crowd: Crowd, folder: Path) -> Outcome:
    """Let a crowd commit to a fresh repository."""
    with ExitStack() as stack:
        place = Place("ours", crowd.kind, Corpus(folder, 0))
        address = stack.enter_context(place.fresh_address())
        repository = icefloe.Repository.create(place.storage(address), spec_version=crowd.spec)
        with repository.transaction("main", message="the arrays") as store:
            for number in range(len(crowd.sides)):
                options: dict[str, Any] = {"shape": (1,), "chunks": (1,), "dtype": "int32"}
                zarr.create_array(store, name=f"a{number}", **options)
        started = list[subprocess.Popen[str]]()
        stack.callback(_end, started)
        for side, numbers in _shares(crowd):
            program = [sys.executable, "-m", "benchmarks.fairness", "--writers"]
            work = [str(folder), side, crowd.kind, address, str(crowd.seconds), json.dumps(numbers)]
            started.append(
                subprocess.Popen(
                    [*program, *work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("a writer did not start; its complaint is above")
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        written = [
            Written(*one)
            for process in started
            for one in json.loads(process.communicate(timeout=LONGEST_S)[0])
        ]
        attempts = 0
        for info in repository.ancestry(branch="main"):
            notes: Any = info.metadata.get("__icechunk", {})
            attempts += int(notes.get("rebase_attempts", 0))
    return Outcome(crowd, tuple(written), attempts)


def _shares(crowd: Crowd) -> list[tuple[str, list[int]]]:
    """The writers of each process."""
    numbers = list(enumerate(crowd.sides))
    if len(numbers) <= PROCESSES:
        return [(side, [number]) for number, side in numbers]
    found = []
    for side in sorted(set(crowd.sides)):
        own = [number for number, one in numbers if one == side]
        found += [(side, own[first::PROCESSES]) for first in range(min(PROCESSES, len(own)))]
    return found


def _end(started: list[subprocess.Popen[str]]) -> None:
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def write(folder: str, side: str, kind: str, address: str, seconds: str, numbers: str) -> None:
    """Commit in threads until the time is over, and print what each reached."""
    place = Place(side, kind, Corpus(Path(folder), 0))
    own = list[int](json.loads(numbers))
    repositories = [place.library.Repository.open(place.storage(address)) for _ in own]
    for repository in repositories:
        zarr.open_array(repository.readonly_session("main").store, path="a0", mode="r")  # connects
    barrier = threading.Barrier(len(own) + 1)

    def commit_on_and_on(repository: Any, number: int) -> tuple[str, int, float]:
        solver = place.library.ConflictDetector()
        barrier.wait()
        commits, longest, started = 0, 0.0, time.monotonic()
        deadline = started + float(seconds)
        while started < deadline:
            session = repository.writable_session("main")
            array: Any = zarr.open_array(session.store, path=f"a{number}")
            array[0] = commits + 1
            session.commit(f"{number}: {commits}", rebase_with=solver)
            ended = time.monotonic()
            commits += ended < deadline
            longest, started = max(longest, ended - started), ended
        return side, commits, longest

    with ThreadPoolExecutor(len(own)) as pool:
        found = [pool.submit(commit_on_and_on, *one) for one in zip(repositories, own, strict=True)]
        print("ready", flush=True)
        sys.stdin.readline()
        barrier.wait()
        print(json.dumps([one.result() for one in found]), flush=True)


def crowd_of(text: str) -> tuple[str, ...]:
    """The sides of `ours:2 official:2`."""
    pairs = [part.partition(":") for part in text.split()]
    return tuple(side for side, _, count in pairs for _ in range(int(count)))


def main() -> None:
    """Measure every crowd on every storage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long writers commit")
    parser.add_argument("--kinds", nargs="+", default=[S3], help=f"{S3}, {SLOW_S3}, {LOCAL}, ...")
    parser.add_argument("--specs", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--crowds", nargs="+", default=CROWDS)
    parser.add_argument("--each", action="store_true", help="also print every writer's commits")
    arguments = parser.parse_args()
    is_remote = {S3, SLOW_S3} & set(arguments.kinds)
    with (
        tempfile.TemporaryDirectory(prefix="icefloe-fairness-") as name,
        s3_server_process() if is_remote else nullcontext() as server,
    ):
        if server is not None:
            announce_endpoint(Path(name), server.endpoint_url)
        print(HEADER, flush=True)
        for kind in arguments.kinds:
            for spec in arguments.specs:
                for text in arguments.crowds:
                    crowd = Crowd(kind, spec, crowd_of(text), arguments.seconds)
                    outcome = measured(crowd, Path(name))
                    print(outcome.line(), flush=True)
                    if arguments.each:
                        print([(one.side, one.commits) for one in outcome.writers], flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--writers"]:
        write(*sys.argv[2:])
    else:
        main()
