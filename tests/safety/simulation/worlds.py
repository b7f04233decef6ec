"""Worlds: drawn from a seed, run step by step, shrunk when something breaks, printed as code."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop

from icefloe.config import RepositoryConfig
from icefloe.config.repository import PackingConfig
from icefloe.errors import (
    ErrorKind,
    IcechunkError,
    InvalidInputError,
    StorageError,
    UnknownOutcomeError,
)
from icefloe.repo import commit, lifecycle, refs, session
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.testing.faults import Request
from icefloe.testing.simulate import (
    FAULTS,
    Died,
    Fault,
    Network,
    Observation,
    SimulatedClock,
    SimulatedDriver,
    SimulatedObjects,
)
from tests.safety.simulation.model import Broken, Model
from tests.safety.simulation.operations import OPERATIONS, WEIGHTS, Run, apply, first_edits

MOST_STEPS = 50_000
_ONLY_IN = {1: {"amend"}, 2: {"upgrade"}}
"""Operations that a version refuses, left out of its worlds."""
_REQUESTS = 40
"""A fault happens to one of so many first requests of an operation."""


@dataclass(frozen=True)
class Op:
    """An operation; `key` decides what it does."""

    name: str
    key: int
    fault: tuple[str, int] | None = None

    def __repr__(self) -> str:
        fault = "" if self.fault is None else f", {self.fault}"
        return f"Op({self.name!r}, {self.key}{fault})"


@dataclass(frozen=True)
class World:
    """All that decides what happens: the clients, what they do, and in which order.

    >>> run_world(World(spec=2, schedule=1, clients=[[Op("commit", 1)], [Op("commit", 2)]])).steps
    66
    """

    spec: int
    schedule: int
    clients: Sequence[Sequence[Op]]
    is_steady: bool = False
    """Whether clocks are right and time passes evenly."""

    def as_code(self) -> str:
        """A program that runs this world."""
        lines = [
            "# PYTHONHASHSEED=0",
            "from tests.safety.simulation import Op, World, run_world",
            "",
            "clients = [",
        ]
        for ops in self.clients:
            lines += (
                ["    [", *(f"        {op!r}," for op in ops), "    ],"] if ops else ["    [],"]
            )
        options = f"spec={self.spec}, schedule={self.schedule}, clients=clients"
        steady = ", is_steady=True" if self.is_steady else ""
        return "\n".join([*lines, "]", f"run_world(World({options}{steady})).require()"])


@dataclass
class Report:
    """What a world has come to."""

    world: World
    steps: int = 0
    digest: str = ""
    """The same for the same sequence of requests and answers."""
    problem: str | None = None
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often operations ended in which way."""
    faults: Counter[str] = field(default_factory=Counter)
    states: set[int] = field(default_factory=set)
    """Hashes of what all clients were doing at once."""
    trace: list[str] = field(default_factory=list)

    def require(self) -> Report:
        """Itself.

        Raises:
            Broken: something did not hold.
        """
        if self.problem is not None:
            raise Broken(f"{self.problem}\n\n{self.world.as_code()}")
        return self


def draw_world(seed: int) -> World:
    """The world of a seed."""
    drawn = random.Random(seed)
    # A world has only some of the operations, so that these meet more often.
    spec = drawn.choice((1, 2, 2))
    known = sorted(OPERATIONS.keys() - _ONLY_IN.get(spec, set()))
    names = drawn.sample(known, drawn.randint(3, 12))
    names += ["commit"] if drawn.random() < 0.8 else []
    fault_rate = drawn.choice((0, 0.1, 0.3))
    weights = [WEIGHTS.get(name, 1) for name in names]
    clients: list[list[Op]] = []
    for _ in range(drawn.randint(3, 8)):
        ops = []
        for name in drawn.choices(names, weights, k=drawn.randint(2, 8)):
            fault = None
            if drawn.random() < fault_rate:
                fault = (drawn.choice(FAULTS), int(drawn.random() ** 2 * _REQUESTS))
            ops.append(Op(name, drawn.getrandbits(32), fault))
        clients.append(ops)
    return World(spec, drawn.getrandbits(32), clients, is_steady=drawn.random() < 0.3)


# -- clients


class Client:
    """One process after another: when one dies, the next one goes on with the next operation."""

    def __init__(self, number: int, arena: _Arena) -> None:
        self.number = number
        self.network = arena.network
        self._arena = arena
        drawn = random.Random(f"{arena.world.schedule} client {number}")
        self._haste = drawn.uniform(0, 1)
        skew = 0 if arena.world.is_steady else drawn.choice((0, 0, 3, -3, 300_000, -300_000))
        self.clock = SimulatedClock(arena.network, drawn, skew)
        self.doing = ""
        self._config = None
        if drawn.random() < 0.5:
            packing = PackingConfig(target_size_bytes=1600, max_chunk_size_bytes=800)
            self._config = RepositoryConfig(packing=packing)
        self._keeps = drawn.random() < 0.7
        """Whether it keeps the repository open, with its caches."""
        self._tries = drawn.choice((1, 3))
        self._handle: RepoHandle | None = None
        self._drivers: list[SimulatedDriver] = []
        self._fault: Fault | None = None
        self._run: Run | None = None
        self._latency = drawn

    async def live(self, ops: Sequence[Op]) -> None:
        """Do everything, one after the other."""
        for op in ops:
            drawn = random.Random(f"{op.name} {op.key}")
            self.clock.drawn = random.Random(f"{self._arena.world.schedule} {op.key} ids")
            self._latency = random.Random(f"{self._arena.world.schedule} {op.key} latency")
            if not self._arena.world.is_steady and drawn.random() < 0.03:
                self.clock.skew_us += drawn.choice((-1, 1)) * drawn.choice(
                    (10**5, 10**6, 10**8, 10**9)
                )
            if not self._keeps:
                self._handle = None
            model = self._arena.model
            run = Run(self, op.name, op.key, drawn, model, model.num_writes)
            self._fault = None if op.fault is None else Fault(*op.fault)
            self._run, self.doing = run, op.name
            for driver in self._drivers:
                driver.begin(run, self._fault)
            outcome = await self._do(run, op)
            self._arena.ended(run, outcome)

    def wait_us(self) -> int:
        """How long the next request takes: mostly milliseconds, now and then very long."""
        drawn = self._latency
        if not self._arena.world.is_steady and drawn.random() < 0.003:
            return drawn.choice((10, 3600)) * 1_000_000
        return int(10 ** drawn.uniform(3, 4 + 2 * self._haste))

    def kill(self) -> None:
        """Let no further request of this client through."""
        for driver in self._drivers:
            driver.is_dead = True

    async def open(self) -> RepoHandle:
        """The repository."""
        if self._handle is None:
            self._drivers = []
            driver = self.driver_for(self._arena.objects)
            self._handle = await lifecycle.open_repository(
                self._arena.objects.storage(), driver, self._config, self.clock
            )
        return self._handle

    def driver_for(self, objects: SimulatedObjects) -> SimulatedDriver:
        """A driver of the operation that is under way."""
        driver = SimulatedDriver(objects, self._run, self._fault, tries=self._tries)
        self._drivers.append(driver)
        return driver

    async def _do(self, run: Run, op: Op) -> str:
        """Do one operation. Returns how it ended."""
        try:
            await OPERATIONS[op.name](run)
        except Died:
            self._handle = None
            return "died"
        except UnknownOutcomeError:
            self._forget(run)
            return "unknown"
        except IcechunkError as error:
            self._forget(run)
            self._check_refusal(run, error)
            return f"{type(error).__name__} {error.kind}"
        if run.must is not None and not any(
            (change.kind, change.name, change.new) == run.must for change in run.permit.effects
        ):
            raise Broken(f"{run} was acknowledged, and {run.must} never happened")
        return "done"

    def _forget(self, run: Run) -> None:
        """After an error a client mostly opens the repository again."""
        if run.drawn.random() < 0.7:
            self._handle = None

    def _check_refusal(self, run: Run, error: IcechunkError) -> None:
        """A refused operation has done nothing, and there is a reason."""
        effects = run.permit.effects
        # In version 1 expirations, upgrades and changes of refs say so when they are late.
        is_late = self._arena.world.spec == 1 and run.name not in _ATOMIC
        if effects and not is_late:
            raise Broken(f"{run} was refused with {error!r}, and did {effects}")
        if error.kind in _NEVER and not isinstance(error, InvalidInputError):
            raise Broken(f"{run} ended with {error!r}")
        has_failed = any(driver.has_failed for driver in self._drivers)
        is_storage = isinstance(error, StorageError) and error.kind != ErrorKind.OBJECT_NOT_FOUND
        if is_storage and not has_failed:
            raise Broken(f"{run} ended with {error!r}, and nothing was wrong with the storage")


_ATOMIC = {
    "commit",
    "append",
    "fork",
    "merge",
    "cherry_pick",
    "undo",
    "squash",
    "repack",
    "rewrite",
}
_NEVER = {
    ErrorKind.UNKNOWN,
    ErrorKind.DESERIALIZATION,
    ErrorKind.SERIALIZATION,
    ErrorKind.INVALID_FILE_FORMAT,
    ErrorKind.INCONSISTENT_MANIFESTS,
    ErrorKind.CONFLICTING_PATH_NOT_FOUND,
    ErrorKind.DUPLICATE_SNAPSHOT_ID,
    ErrorKind.REPOSITORY_NOT_FOUND,
}


# -- running


class _Arena:
    """A world that is running."""

    def __init__(self, world: World, *, is_traced: bool) -> None:
        self.world = world
        self.report = Report(world)
        drawn = random.Random(world.schedule)
        self.network = Network(has_whole_seconds=drawn.random() < 0.3)
        self.network.faults = self.report.faults
        self.objects = SimulatedObjects("world", self.network)
        self._digest = hashlib.blake2b(digest_size=16)
        self._is_traced = is_traced
        self._broken: Broken | None = None
        self._start()
        self.model = Model(self.objects)
        self.model.start()
        self.objects.observe = self._observe
        self.network.trace = self._trace
        self.clients = [Client(number, self) for number in range(len(world.clients))]

    def _start(self) -> None:
        """A repository with one commit, and a second branch."""
        clock = SimulatedClock(self.network, random.Random(f"{self.world.schedule} start"))
        storage, driver = self.objects.storage(), self.objects.driver()
        spec = self.world.spec
        creating = lifecycle.create_repository(
            storage, driver, None, clock, spec_version=spec, check_clean_root=True
        )
        handle = run_blocking(creating)
        self.network.now_us += 10**6
        workspace = Workspace(handle, run_blocking(session.open_writable(handle, "main")))
        run_blocking(apply(workspace, first_edits()))
        first = run_blocking(commit.commit(workspace, "start", None))
        run_blocking(refs.create_branch(handle, "dev", first))
        self.network.now_us += 10**6

    def run(self) -> Report:
        """Step the clients until all are done, then look at everything."""
        try:
            self._run_events()
            self.model.check("everything")
            self.model.verify()
        except (Broken, IcechunkError) as problem:
            self.report.problem = str(problem)
        self.report.digest = self._digest.hexdigest()
        return self.report

    def _run_events(self) -> None:
        """Let happen what is due, until nothing is left."""
        waiting: dict[int, Request] = {}
        living = [
            client.live(ops) for client, ops in zip(self.clients, self.world.clients, strict=True)
        ]

        def go_on(number: int) -> None:
            client = self.clients[number]
            try:
                waiting[number] = living[number].send(None)
            except StopIteration:
                waiting.pop(number, None)
            except Exception as error:
                if isinstance(error, Broken):
                    raise
                raise Broken(f"client {number}: {client.doing}: {error!r}") from error
            else:
                self.network.later(client.wait_us(), partial(go_on, number))

        for number in range(len(living)):
            self.network.later(0, partial(go_on, number))
        try:
            while self.network.events:
                due, _, happen = heappop(self.network.events)
                self.network.now_us = due
                self.report.steps += 1
                happen()
                if self._broken is not None:
                    raise self._broken
                if self.report.steps > MOST_STEPS:
                    raise Broken(f"the world has not come to an end after {MOST_STEPS} steps")
                self._note_state(waiting)
        finally:
            for number, client in enumerate(self.clients):
                client.kill()
                living[number].close()

    def _note_state(self, waiting: dict[int, Request]) -> None:
        doing = sorted(
            (self.clients[number].doing, request.method, request.key.partition("/")[0])
            for number, request in waiting.items()
        )
        digest = hashlib.blake2b(repr(doing).encode(), digest_size=8).digest()
        self.report.states.add(int.from_bytes(digest, "big"))

    def _observe(self, observation: Observation) -> None:
        """Operations may catch errors, so what broke is raised between their steps."""
        try:
            self.model.observe(observation)
        except Broken as problem:
            self._broken = self._broken or problem
        except IcechunkError as error:
            self._broken = self._broken or Broken(f"{observation.actor} left {error!r}")

    def _trace(self, run: Run, method: str, key: str, outcome: str) -> None:
        line = f"{run} {method} {key} {outcome}"
        self._digest.update(line.encode())
        if self._is_traced:
            self.report.trace.append(line)

    def ended(self, run: Run, outcome: str) -> None:
        """Look at what an operation has left."""
        self.report.outcomes[run.name, outcome] += 1
        self._trace(run, "ended", "", outcome)
        if run.permit.collects or run.permit.expires or run.permit.upgrades:
            self.model.check(run)


def run_world(world: World, *, is_traced: bool = False) -> Report:
    """Run a world to its end, or until something does not hold."""
    return _Arena(world, is_traced=is_traced).run()


def simulate(seed: int) -> Report:
    """Run the world of a seed.

    >>> simulate(1).require().steps > 100
    True
    """
    return run_world(draw_world(seed))


# -- shrinking


def shrink(world: World, *, runs: int = 400, schedules: int = 4) -> World:
    """A smaller world in which the same breaks, found in at most so many runs.

    Each smaller world is tried in several orders.
    """
    left = runs
    kind = _kind(run_world(world).problem)

    def breaks(smaller: World) -> World | None:
        nonlocal left
        for number in range(schedules):
            if left <= 0:
                return None
            left -= 1
            tried = replace(smaller, schedule=smaller.schedule + number)
            if _kind(run_world(tried).problem) == kind:
                return tried
        return None

    is_smaller = True
    while is_smaller and left > 0:
        is_smaller = False
        for smaller in _smaller(world):
            found = breaks(smaller)
            if found is not None:
                world, is_smaller = found, True
                break
    return world


def _kind(problem: str | None) -> str | None:
    """What a problem says, without names and numbers."""
    if problem is None:
        return None
    return re.sub(r"\w+ of client \d+|\b(main|dev|side)\b|\b[0-9A-Z]{20}\b|\d+", "", problem)[:30]


def _smaller(world: World) -> Iterator[World]:
    """Worlds without a client, without half of its operations, without one, without a fault."""
    clients = [list(ops) for ops in world.clients]

    def changed(number: int, ops: list[Op]) -> World:
        kept = [ops if each == number else old for each, old in enumerate(clients)]
        return replace(world, clients=kept)  # a client keeps its number, and so its clock

    for number, ops in enumerate(clients):
        if ops:
            yield changed(number, [])
    for number, ops in enumerate(clients):
        if len(ops) > 3:
            yield changed(number, ops[len(ops) // 2 :])
            yield changed(number, ops[: len(ops) // 2])
    for number, ops in enumerate(clients):
        for at in range(len(ops)):
            yield changed(number, ops[:at] + ops[at + 1 :])
    for number, ops in enumerate(clients):
        for at, op in enumerate(ops):
            if op.fault is not None:
                yield changed(number, [*ops[:at], replace(op, fault=None), *ops[at + 1 :]])
    if not world.is_steady:
        yield replace(world, is_steady=True)
