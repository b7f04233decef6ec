"""A storage whose users get into trouble at a chosen request: in a task of Spark, or on the driver.

What happens is decided where the request is made, so no test has to hit a moment. The storage
travels to the executors inside the repository, like any other.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from pyspark import TaskContext

from icefloe.config.repository import ResolvedStorage
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.driver import Driver
from icefloe.storage.locations import LocalLocation
from icefloe.storage.spec import Storage
from icefloe.testing.wrapping import WrappingDriver

What = Literal["fail once", "fail", "kill executor", "stall", "park before", "park after"]
STALL_SECONDS = 60.0
"""How long a stalled or doomed attempt waits to be ended, before it says that nobody did."""
_PARK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens, and when.

    `fail once` and `kill executor` meet one attempt of one task, behind its `at`-th request of
    that kind: what it wrote is stored and lost. `fail` meets all attempts of that task. `stall`
    holds one attempt up until Spark ends it. Both `park`s are for the driver: its thread stops
    for good ahead of the request or behind it.
    """

    what: What
    method: str
    prefix: str
    notes: str
    """A directory, in which every attempt notes the requests of that kind it made."""
    at: int = 1

    @property
    def is_for_driver(self) -> bool:
        return self.what.startswith("park")

    def attempts(self) -> dict[tuple[int, int], set[int]]:
        """Numbers of the attempts that made such requests, by stage and partition."""
        found: dict[tuple[int, int], set[int]] = {}
        for name in self._noted("attempt"):
            stage, partition, attempt = map(int, name.split("-"))
            found.setdefault((stage, partition), set()).add(attempt)
        return found

    @property
    def has_happened(self) -> bool:
        return any(self._noted("victim"))

    def wait(self, seconds: float) -> None:
        """Until it happened."""
        limit = time.monotonic() + seconds
        while not self.has_happened:
            if time.monotonic() > limit:
                raise TimeoutError(f"{self.what} at {self.method} of {self.prefix!r} never came")
            time.sleep(0.05)

    def _noted(self, kind: str) -> Iterator[str]:
        for path in Path(self.notes).glob(f"{kind} *"):
            yield path.name.removeprefix(f"{kind} ")

    def note(self, kind: str, name: str) -> bool:
        """Whether nobody noted this before."""
        path = Path(self.notes, f"{kind} {name}")
        with suppress(FileExistsError):
            path.touch(exist_ok=False)
            return True
        return False


class DangerousStorage(Storage):
    """A directory, with a fault waiting for whoever uses it."""

    __slots__ = ("_fault", "_wrapped")

    def __init__(self, location: LocalLocation, fault: Fault) -> None:
        super().__init__(location)
        self._fault = fault
        self._wrapped: dict[Any, Driver] = {}
        Path(fault.notes).mkdir(exist_ok=True)

    def bound(self) -> DangerousStorage:
        """Itself: the fault stays where it was put."""
        return self

    def driver(
        self, settings: ResolvedStorage | None = None, *, blocking: bool, **options: Any
    ) -> Driver:
        key = (settings, blocking)
        if key not in self._wrapped:
            inner = super().driver(settings, blocking=blocking, **options)
            self._wrapped[key] = DangerousDriver(inner, self._fault)
        return self._wrapped[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return DangerousStorage, (self.location, self._fault)


class DangerousDriver(WrappingDriver):
    """Counts the requests of each attempt, and lets the fault happen."""

    def __init__(self, inner: Driver, fault: Fault) -> None:
        super().__init__(inner)
        self._fault = fault
        self._made: Counter[int] = Counter()
        self._lock = threading.Lock()

    def _is_meant(self, method: str, key: str) -> bool:
        fault = self._fault
        return method == fault.method and key.startswith(fault.prefix)

    async def before(self, method: str, key: str) -> None:
        if self._fault.what == "park before" and self._is_meant(method, key):
            _park(self._fault)

    async def after(self, method: str, key: str) -> None:
        fault = self._fault
        if not self._is_meant(method, key):
            return
        if fault.what == "park after":
            _park(fault)
        task = TaskContext.get()
        if fault.is_for_driver or task is None:
            return
        with self._lock:
            self._made[task.taskAttemptId()] += 1
            number = self._made[task.taskAttemptId()]
        where = f"{task.stageId()}-{task.partitionId()}"
        fault.note("attempt", f"{where}-{task.attemptNumber()}")
        if number < fault.at:
            return
        if fault.note("claim", "") or (fault.what == "fail" and _is_victim(fault, where)):
            fault.note("victim", where)
            _happen(fault)

    async def sync(self) -> None:
        await super().sync()
        await self.after("sync", "")

    async def sleep(self, seconds: float) -> None:
        await self.inner.sleep(seconds)

    async def wait_for(self, work: Any, seconds: float) -> bool:
        return await self.inner.wait_for(work, seconds)


def _is_victim(fault: Fault, where: str) -> bool:
    return Path(fault.notes, f"victim {where}").exists()


def _park(fault: Fault) -> None:
    fault.note("victim", "driver")
    time.sleep(_PARK_SECONDS)
    raise TimeoutError("the driver was parked, and nobody killed it")


def _happen(fault: Fault) -> None:
    if fault.what in ("fail once", "fail"):
        raise StorageError(f"{fault.what}, on purpose", ErrorKind.IO)
    if fault.what == "kill executor":
        executor = _executor()
        executor.send_signal(signal.SIGKILL)
    # What is left of a killed executor is ended by its daemon, a stalled attempt by Spark.
    time.sleep(STALL_SECONDS)
    raise TimeoutError(f"{fault.what}: this attempt was not ended")


def _executor() -> psutil.Process:
    """The process of Java above this worker; never that of a driver."""
    for process in psutil.Process(os.getpid()).parents():
        if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
            return process
    raise RuntimeError("this worker does not belong to an executor of its own")
