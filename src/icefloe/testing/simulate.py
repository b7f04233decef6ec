"""A storage with time, faults and delays for simulated worlds, in which every step is a seed's.

    network = Network()
    objects = SimulatedObjects("world", network)
    driver = SimulatedDriver(objects, actor, Fault("lose", 3))

The driver pauses an operation before and after each request, so that requests of other clients can
come before it is carried out and before its answer arrives. A scheduler resumes the operations, and
takes the next event from `network.events`. Nothing sleeps, and there are no threads.
`tests/safety/simulation` makes worlds of clients with it and says what must hold in them;
`tools/soak.py` runs them for hours.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import heappush
from typing import Any, NamedTuple, Unpack

from icefloe.config.repository import ResolvedRetries
from icefloe.errors import ErrorKind, StorageError
from icefloe.repo.handle import Clock
from icefloe.storage import conditional
from icefloe.storage.driver import (
    About,
    AboutMany,
    ConditionFailed,
    ObjectInfo,
    ObjectPage,
    Objects,
    Reads,
    Take,
    Version,
    about_one,
    instant,
    taken,
)
from icefloe.storage.locations import MemoryLocation
from icefloe.storage.memory import MemoryDriver, MemoryObjects, StoredObject
from icefloe.storage.spec import Storage
from icefloe.testing.faults import Recovery, Request
from icefloe.testing.schedule import step
from icefloe.testing.wrapping import WrappingDriver

FAULTS = ("throttle", "lose", "late", "die", "die late", "die torn")
"""What can happen to a request.

`throttle`: it is refused. `lose`: it is carried out, and its answer gets lost. `late`: its sender
gives up waiting, and it is carried out at some time later. `die`: its sender dies, before or after
it is carried out. `die late`: its sender dies, and it is carried out at some time later. `die
torn`: likewise, and of an object that nothing refers to yet only the first half is stored.

Deletions, and writes of a name that is taken, never come late: version 1 replaces and deletes some
files without a condition.
"""

_WRITES = {"put", "put_if", "delete"}


class Died(BaseException):
    """A client has died. No code of an operation catches it."""


class Fault(NamedTuple):
    """A fault, and the request of its operation that it happens to, counted from 0."""

    kind: str
    request: int


class Observation(NamedTuple):
    """A write of a ref or of the `repo` object, and the operation that made it."""

    key: str
    actor: Any


@dataclass
class Network:
    """What all clients of a world share: time, chance, requests that are still under way."""

    now_us: int = 1_700_000_000_000_000
    has_whole_seconds: bool = False
    """Whether the storage rounds the times of its objects down, as S3 does."""
    faults: Counter[str] = field(default_factory=Counter)
    events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    """What happens next: a heap of times, with numbers that keep the order of equal ones."""
    num_events: int = 0
    trace: Callable[[Any, str, str, str], None] = lambda *_: None

    def stored_at(self) -> datetime:
        """The time that the storage gives to an object."""
        now = self.now_us // 1_000_000 * 1_000_000 if self.has_whole_seconds else self.now_us
        return instant(now)

    def later(self, delay_us: int, happen: Callable[[], None]) -> None:
        """Have something happen after a while."""
        self.num_events += 1
        heappush(self.events, (self.now_us + delay_us, self.num_events, happen))


class SimulatedClock(Clock):
    """A client's own clock, which differs from the storage's, and its random numbers."""

    def __init__(self, network: Network, drawn: random.Random, skew_us: int = 0) -> None:
        self.network = network
        self.skew_us = skew_us
        self.drawn = drawn

    def now_us(self) -> int:
        """The storage's time, wrong by the skew."""
        return self.network.now_us + self.skew_us

    def random_bytes(self, size: int) -> bytes:
        """Bytes that the seed decides."""
        return self.drawn.randbytes(size)


class SimulatedObjects(MemoryObjects):
    """Objects in memory with times of the world."""

    def __init__(self, name: str, network: Network) -> None:
        super().__init__(name)
        self.network = network
        self.observe: Callable[[Observation], None] = lambda _: None
        """Called after each write."""
        self._number = 0

    def replace(self, key: str, data: Any) -> Version:
        """Store a copy of `data`."""
        self._number += 1
        version = Version(str(self._number))
        self.objects[key] = StoredObject(bytes(data), version, self.network.stored_at())
        return version

    def storage(self) -> Storage:
        """A storage with these objects."""
        return Storage(MemoryLocation(self.name, self))

    def driver(self) -> MemoryDriver:
        """A driver without faults, which does not hand control back."""
        settings = self.storage().default_settings().resolved()
        return MemoryDriver(self, replace(settings, unsafe_use_metadata=False))


class SimulatedDriver(WrappingDriver):
    """The requests of one operation, `actor`, with at most one fault.

    Requests that are sent together arrive in any order.
    """

    def __init__(
        self, objects: SimulatedObjects, actor: Any, fault: Fault | None = None, *, tries: int = 3
    ) -> None:
        super().__init__(objects.driver())
        retries = ResolvedRetries(max_tries=tries, initial_backoff_ms=0, max_backoff_ms=0)
        self.settings = replace(self.settings, retries=retries)
        self.objects = objects
        self.network = objects.network
        self.is_dead = False
        self.begin(actor, fault)

    def begin(self, actor: Any, fault: Fault | None) -> None:
        """Serve another operation of the same process."""
        self.actor, self.fault = actor, fault
        self.num_requests = 0
        self.has_failed = False
        """Whether the fault has happened."""
        self.drawn = random.Random(f"{actor.key} storage")

    # -- one request

    async def _request(self, method: str, key: str, carry_out: Callable[[], Any]) -> Any:
        """One request, between two turns of others. `carry_out` never suspends."""
        actor = self.actor
        kind = await self._send(method, key)
        if kind == "throttle":
            raise StorageError(f"{method} of {key!r} was throttled on purpose", ErrorKind.THROTTLED)
        if kind in ("late", "die late"):
            self._later(lambda: self._quietly(actor, method, key, carry_out))
        if kind == "late":
            raise self._lost(method, key)
        if kind == "die" and self.drawn.random() < 0.5:
            self._quietly(actor, method, key, carry_out)
        if kind is not None and kind.startswith("die"):
            self.is_dead = True
            raise Died
        result, error = None, None
        try:
            result = self._carry_out(actor, method, key, carry_out)
        except (StorageError, ConditionFailed) as caught:
            error = caught
        self.network.trace(actor, method, key, type(error).__name__ if error else "")
        await step(Request(f"{method} answered", key))
        if kind == "lose":
            raise self._lost(method, key)
        if error is not None:
            raise error
        return result

    async def _send(self, method: str, key: str) -> str | None:
        """Pause before a request. Returns the fault that happens to it."""
        if self.is_dead:
            raise Died
        await step(Request(method, key))
        number, self.num_requests = self.num_requests, self.num_requests + 1
        if self.fault is None or self.fault.request != number:
            return None
        self.has_failed = True
        kind = self.fault.kind
        if method == "delete" or (method == "put" and key in self.objects.objects):
            kind = {"late": "lose", "die late": "die"}.get(kind, kind)
        self.network.faults[kind] += 1
        self.network.trace(self.actor, method, key, kind)
        return kind

    @staticmethod
    def _lost(method: str, key: str) -> StorageError:
        return StorageError(
            f"the answer to {method} of {key!r} was lost on purpose", ErrorKind.OBJECT_STORE
        )

    def _carry_out(self, actor: Any, method: str, key: str, carry_out: Callable[[], Any]) -> Any:
        result = carry_out()
        if method in _WRITES:
            self.objects.observe(Observation(key, actor))
        return result

    def _quietly(self, actor: Any, method: str, key: str, carry_out: Callable[[], Any]) -> None:
        """Carry out a request of a sender that has given up; its answer, an error too, is lost."""
        try:
            self._carry_out(actor, method, key, carry_out)
        except (StorageError, ConditionFailed):
            return
        self.network.trace(actor, f"{method} late", key, "")

    def _now(self, method: Any, *args: Any, **options: Any) -> Callable[[], Any]:
        """A call of the driver in memory, which is finished by one `send`."""

        def call() -> Any:
            try:
                method(*args, **options).send(None)
            except StopIteration as finished:
                return finished.value
            raise AssertionError("memory never suspends")

        return call

    # -- reads

    async def get(self, key: str, span: Any = None) -> Any:
        return await self._request("get", key, self._now(self.inner.get, key, span))

    async def get_versioned(self, key: str) -> Any:
        return await self._request("get", key, self._now(self.inner.get_versioned, key))

    async def get_if_changed(self, key: str, version: Version) -> Any:
        return await self._request("get", key, self._now(self.inner.get_if_changed, key, version))

    async def head(self, key: str) -> Any:
        return await self._request("head", key, self._now(self.inner.head, key))

    async def head_many(self, keys: Sequence[str]) -> ObjectPage:
        page: ObjectPage = await self._request(
            "head", keys[0] if keys else "", self._now(self.inner.head_many, keys)
        )
        return page

    async def is_empty(self) -> Any:
        return await self._request("list", "", self._now(self.inner.is_empty))

    async def list_top(self) -> Any:
        return await self._request("list", "", self._now(self.inner.list_top))

    async def get_many(self, wanted: Reads, take: Take | None = None) -> Any:
        found: list[Any] = [None] * len(wanted)
        for number in self._any_order(len(wanted)):
            found[number] = await self.get(*wanted[number])
        return taken(found, take)

    async def list(self, prefix: str) -> list[ObjectInfo]:
        """Two pages: what is stored or deleted between them is in the listing, or not."""
        first = await self._request("list", prefix, self._now(self.inner.list, prefix))
        if len(first) < 2:
            return list(first)
        border = first[self.drawn.randrange(1, len(first))].key
        second = await self._request("list", prefix, self._now(self.inner.list, prefix))
        return [it for it in first if it.key < border] + [it for it in second if it.key >= border]

    async def list_pages(
        self, folder: str, at_once: int, *, names_only: bool = False
    ) -> Sequence[ObjectPage]:
        """A moment between two pages, as in `list`."""
        pages = []
        for keeps_first in (True, False):
            [page] = await self._request(
                "list", folder, self._now(self.inner.list_pages, folder, at_once)
            )
            if keeps_first:
                border = page.name[len(page.name) // 2] if len(page.name) else b""
            rows = (page.name < border) == keeps_first
            pages.append(ObjectPage(page.name[rows], page.size_bytes[rows], page.created_at[rows]))
        return pages

    # -- writes

    async def put(self, key: str, data: Any, **about: Unpack[About]) -> None:
        await self._request("put", key, self._now(self.inner.put, key, bytes(data)))

    async def put_many(self, objects: Objects, **about: Unpack[AboutMany]) -> None:
        waiting = self._any_order(len(objects))
        for position, number in enumerate(waiting):
            key, data = objects[number]
            try:
                await self.put(key, data, **about_one(data, about))
            except (StorageError, Died):
                for other in waiting[position + 1 :]:
                    self._maybe_later(*objects[other])
                raise

    async def put_new(self, objects: Objects, **about: Unpack[AboutMany]) -> None:
        """A sender that dies may leave part of an object."""
        try:
            await self.put_many(objects, **about)
        except Died:
            if self.fault is not None and self.fault.kind == "die torn":
                key, data = objects[0]
                part = self._now(self.inner.put, key, bytes(data)[: len(data) // 2])
                self._quietly(self.actor, "put", key, part)
            raise

    def _maybe_later(self, key: str, data: Any) -> None:
        """What was sent together with a request that failed may arrive all the same."""
        if self.drawn.random() < 0.5:
            actor, put = self.actor, self._now(self.inner.put, key, bytes(data))
            self._later(lambda: self._quietly(actor, "put", key, put))

    def _later(self, happen: Callable[[], None]) -> None:
        """Have a request arrive late, mostly within a second, sometimes after minutes."""
        self.network.later(int(10 ** self.drawn.uniform(4, 8)), happen)

    async def put_if(
        self, key: str, data: bytes, *, previous: Version | None, **about: Unpack[About]
    ) -> Version:
        return await conditional.put_if(Recovery(self), key, data, previous, about)

    async def put_if_losing_answers(
        self, key: str, data: bytes, previous: Version | None
    ) -> Version:
        """The bare write below the recovery: a lost answer is an error of the network."""
        put = self._now(self.inner.put_if, key, data, previous=previous)
        version: Version = await self._request("put_if", key, put)
        return version

    async def delete_many(self, keys: Sequence[str]) -> None:
        for number in self._any_order(len(keys)):
            delete = self._now(self.inner.delete_many, [keys[number]])
            await self._request("delete", keys[number], delete)

    def _any_order(self, count: int) -> Sequence[int]:
        numbers = [*range(count)]
        self.drawn.shuffle(numbers)
        return numbers

    async def sleep(self, seconds: float) -> None:
        """Lets others go on."""
        if self.is_dead:
            raise Died
        await step(Request("sleep", ""))
