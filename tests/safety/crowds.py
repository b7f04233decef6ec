"""Crowds of writers of one branch, in virtual time: every request takes as long as it says.

Operations are coroutines that await nothing but a driver. This one tells whoever drives them how
long a request takes. The driver goes on with the operation whose time comes first, so that seconds
of a hundred writers take as long as their computations, and the load of the machine changes
nothing.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from types import coroutine
from typing import Any

import zarr

import icefloe
from icefloe.changes.conflicts import ConflictDetector
from icefloe.errors import ConflictError
from icefloe.format import layout
from icefloe.repo import commit, lifecycle, rebase, session
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.driver import Driver
from icefloe.storage.spec import Storage
from icefloe.store import operations

REQUEST_S = 0.02
"""The mean time of a request; they differ by up to half of it."""
OURS, HASTY = "icefloe", "hasty"
"""A hasty writer never pauses, and makes no request that official Icechunk does not make."""
_NOT_MADE = {layout.COLLECTED, layout.REPO}
_NO_REQUESTS = {"sync", "wait_for", "turn", "keep_reserve", "give_up_reserve"}


@coroutine
def _takes(seconds: float) -> Generator[float, None, None]:
    yield seconds


class VirtualClock(Clock):
    """The time of a crowd, which starts now."""

    def __init__(self, drawn: random.Random) -> None:
        self.seconds = 0.0
        self._drawn = drawn
        self._start = time.time_ns() // 1000

    def now_us(self) -> int:
        return self._start + int(self.seconds * 1e6)

    def random_bytes(self, size: int) -> bytes:
        return self._drawn.randbytes(size)


class VirtualDriver:
    """Another driver, whose requests take virtual time. Those that are made at once take it once.

    An object is read or written in the middle of that time.
    """

    def __init__(self, inner: Driver, drawn: random.Random, *, is_hasty: bool, spec: int) -> None:
        self._inner, self._drawn = inner, drawn
        self._free = _NOT_MADE if is_hasty and spec == 1 else set[str]()
        self.settings = inner.settings
        self.is_local = False
        self.can_write = inner.can_write
        self.can_list = inner.can_list
        self.requests = 0

    async def sleep(self, seconds: float) -> None:
        await _takes(seconds)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name in _NO_REQUESTS:
            return method

        async def late(*args: Any, **kwargs: Any) -> Any:
            subject = args[0] if args else ""
            if not subject or (isinstance(subject, str) and subject in self._free):
                return await method(*args, **kwargs)
            self.requests += 1
            half = REQUEST_S / 2 * self._drawn.uniform(0.5, 1.5)
            await _takes(half)
            try:
                answer = await method(*args, **kwargs)
            except Exception:
                await _takes(half)
                raise
            await _takes(half)
            return answer

        return late


@dataclass
class Member:
    """A writer of a crowd, and what it has reached."""

    kind: str
    handle: RepoHandle
    ends: list[float] = field(default_factory=list)
    """When its commits ended."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """How fair a crowd was."""

    members: Sequence[Member]
    seconds: float
    lost: int
    """Tries of all commits that lost to another commit."""

    def commits(self, kind: str = "") -> list[int]:
        """Of each writer."""
        return [len(one.ends) for one in self.members if kind in one.kind]

    def mean(self, kind: str = "") -> float:
        counts = self.commits(kind)
        return sum(counts) / len(counts)

    def slowest_share(self, kind: str = "") -> float:
        """Commits of the slowest writer of a kind, as a part of the mean of all."""
        return min(self.commits(kind)) / self.mean()

    def longest_wait(self, kind: str = "") -> float:
        """The longest wait for a commit, in mean times between two commits of a writer."""
        waits = [
            after - before
            for one in self.members
            if kind in one.kind
            for before, after in zip([0.0, *one.ends], [*one.ends, self.seconds], strict=True)
        ]
        return max(waits) * self.mean() / self.seconds

    @property
    def lost_per_commit(self) -> float:
        return self.lost / max(sum(self.commits()), 1)


def crowd(kinds: Sequence[str], *, spec: int, seconds: float, seed: int = 0) -> Fairness:
    """Let writers commit without think time, each to an array of its own."""
    storage, drawn = icefloe.in_memory_storage(), random.Random(seed)
    random.seed(seed)  # pauses are drawn from it
    _create(storage, spec, len(kinds))
    clock = VirtualClock(drawn)
    members, running = list[Member](), list[tuple[float, int, Coroutine[Any, Any, None]]]()
    for number, kind in enumerate(kinds):
        inner = storage.driver(blocking=True)
        driver: Any = VirtualDriver(inner, drawn, is_hasty=kind == HASTY, spec=spec)
        opened = lifecycle.open_repository(storage, driver, None, clock)
        member = Member(kind, _finished(opened))
        members.append(member)
        work = _commit_on_and_on(member, number, clock)
        running.append((drawn.uniform(0, REQUEST_S), number, work))
    while running:
        at, number, work = heapq.heappop(running)
        if at > seconds:
            work.close()
            break
        clock.seconds = at
        heapq.heappush(running, (at + work.send(None), number, work))
    for _, _, work in running:
        work.close()
    repository = icefloe.Repository.open(storage)
    notes: list[Any] = [info.metadata for info in repository.ancestry(branch="main")]
    tries = sum(one.get("__icechunk", {}).get("rebase_attempts", 0) for one in notes)
    return Fairness(members, seconds, tries)


def _finished(operation: Coroutine[Any, Any, Any]) -> Any:
    """The result of an operation, whose time does not matter."""
    while True:
        try:
            operation.send(None)
        except StopIteration as ended:
            return ended.value


def _create(storage: Storage, spec: int, arrays: int) -> None:
    repository = icefloe.Repository.create(storage, spec_version=spec)
    with repository.transaction("main", message="the arrays") as store:
        for number in range(arrays):
            zarr.create_array(store, name=f"a{number}", shape=(1,), chunks=(1,), dtype="int32")


async def _commit_on_and_on(member: Member, number: int, clock: VirtualClock) -> None:
    handle, solver, message = member.handle, ConflictDetector(), f"writer {number}"
    while True:
        state = await session.open_writable(handle, "main")
        workspace = Workspace(handle, state)
        data = len(member.ends).to_bytes(4, "little")
        await operations.set_key(workspace, f"a{number}/c/0", data)
        if member.kind == OURS:
            await commit.commit(workspace, message, None, rebase_with=solver)
        else:
            await _commit_hastily(workspace, message)
        member.ends.append(clock.seconds)


async def _commit_hastily(workspace: Workspace, message: str) -> None:
    tries = 0
    while True:
        try:
            metadata = {"__icechunk": {"rebase_attempts": tries}}
            await commit.commit(workspace, message, metadata)
        except ConflictError:
            tries += 1
            await rebase.rebase(workspace, ConflictDetector())
        else:
            return
