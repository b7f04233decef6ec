"""Storage that fails on command: requests that are never carried out, answers that get lost.

    driver = FaultyDriver(storage.driver(blocking=True), cut_after=3)

carries out three requests, then fails for good, like a network that goes away. Try an operation
with `cut_after` = 0, 1, 2, ... until it succeeds, and look at the storage each time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

from icefloe.errors import ErrorKind, StorageError, UnknownOutcomeError
from icefloe.storage import conditional
from icefloe.storage.conditional import ReadBack, Write
from icefloe.storage.driver import About, Driver, Version, find_object
from icefloe.testing.wrapping import WrappingDriver


class Request(NamedTuple):
    """One request, as it was made."""

    method: str
    key: str


class FaultyDriver(WrappingDriver):
    """Counts and logs requests, and fails where it was told to.

    Args:
        cut_after: carry out this many requests; every later one fails. None for never.
        lose_answer_of: the conditional write, counted from 1, that is carried out and then
            reported as failed. None for none.
        has_recovery: what the caller of such a write gets. True: what an object store driver
            makes of a lost answer, which reads back and mostly finds out. False: the error that a
            driver raises when it cannot, so that the caller's own handling is tested.

    >>> driver = FaultyDriver(icefloe.in_memory_storage().driver(blocking=True), cut_after=3)
    >>> driver.num_requests
    0
    """

    def __init__(
        self,
        inner: Driver,
        *,
        cut_after: int | None = None,
        lose_answer_of: int | None = None,
        has_recovery: bool = False,
    ) -> None:
        super().__init__(inner)
        self.cut_after = cut_after
        self.lose_answer_of = lose_answer_of
        self.has_recovery = has_recovery
        self.log: list[Request] = []
        """Every request that was carried out."""
        self.num_refused = 0

    @property
    def num_requests(self) -> int:
        return len(self.log)

    def num_requests_by_method(self) -> Counter[str]:
        """How many requests of each kind were carried out.

        >>> driver = FaultyDriver(icefloe.in_memory_storage().driver(blocking=True))
        >>> driver.num_requests_by_method()["put"]
        0
        """
        return Counter(request.method for request in self.log)

    def reset(self) -> None:
        """Count from nothing again; the faults stay as they are.

        >>> FaultyDriver(icefloe.in_memory_storage().driver(blocking=True)).reset()
        """
        self.log.clear()
        self.num_refused = 0

    async def before(self, method: str, key: str) -> None:
        if self.cut_after is not None and len(self.log) >= self.cut_after:
            self.num_refused += 1
            raise StorageError(
                f"{method} of {key!r}: the storage was cut off after {self.cut_after} requests",
                ErrorKind.IO,
            )
        self.log.append(Request(method, key))

    def _is_answer_lost(self) -> bool:
        return self.num_requests_by_method()["put_if"] == self.lose_answer_of

    async def put_if(
        self, key: str, data: bytes, *, previous: Version | None, **about: Unpack[About]
    ) -> Version:
        if self.has_recovery:
            return await conditional.put_if(Recovery(self), key, data, previous, about)
        version: Version = await super().put_if(key, data, previous=previous, **about)
        if self._is_answer_lost():
            raise UnknownOutcomeError(f"the answer to writing {key!r} was lost on purpose")
        return version

    async def put_if_losing_answers(
        self, key: str, data: bytes, previous: Version | None
    ) -> Version:
        """The bare write below the recovery: a lost answer is an error of the network."""
        version: Version = await super().put_if(key, data, previous=previous)
        if self._is_answer_lost():
            raise StorageError(
                f"the answer to writing {key!r} was lost on purpose", ErrorKind.OBJECT_STORE
            )
        return version


class Recovery:
    """The primitives of `icefloe.storage.conditional` over a driver that loses answers.

    There is no user metadata here, so a write is recognised by its bytes.
    """

    def __init__(self, driver: Any) -> None:
        self.location = "a faulty storage"
        self._driver = driver
        self.settings = replace(driver.settings, unsafe_use_metadata=False)

    async def write_once(self, write: Write) -> Version:
        once = self._driver.put_if_losing_answers
        version: Version = await once(write.key, write.data, write.previous)
        return version

    async def find(self, key: str, *, has_data: bool) -> ReadBack | None:
        found = await find_object(self._driver, key)
        return None if found is None else ReadBack(found[1], {}, found[0])

    async def sleep(self, seconds: float) -> None:
        await self._driver.sleep(seconds)
