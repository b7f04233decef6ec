"""Conditional writes over a network that loses answers.

A request that was carried out and whose answer got lost must not be reported as a failure, nor as
the doing of others. So every write carries an id of its own where user metadata is kept, and
whenever the outcome is in doubt the object is read back:

- it carries our id (or, without metadata, our bytes): the write happened;
- it is still what it was before: it did not happen yet, and the same write is tried again;
- it is something else. If every answer so far was a clear no, someone else was first. If an answer
  got lost, ours may have been written and overwritten since: that cannot be told, and we say so.

Written once, over a few primitives; nothing here knows a particular service. The primitives must
not retry by themselves: a retry that is not seen here would turn a lost success into a refusal.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

from icefloe.config.repository import ResolvedStorage
from icefloe.errors import ErrorKind, StorageError, UnknownOutcomeError
from icefloe.observe import STORAGE
from icefloe.storage.client import RequestNotSent, RequestRefused, pauses
from icefloe.storage.driver import About, ConditionFailed, Version

WRITE_ID = "icechunkwriteid"
OLD_WRITE_ID = "icechunk_write_id"  # written by Icechunk before 2.3


class ReadBack(NamedTuple):
    """An object as it was read back; its bytes if they were wanted."""

    version: Version
    metadata: Mapping[str, str]
    data: bytes | None


class Write(NamedTuple):
    """One conditional write, and everything needed to recognise it."""

    key: str
    data: bytes
    previous: Version | None
    about: About
    write_id: str | None
    is_conditional: bool


class Primitives(Protocol):
    """Single requests, each tried once."""

    location: str
    settings: ResolvedStorage

    async def write_once(self, write: Write) -> Version:
        """Write; if it is conditional, only if the object has the version `write.previous`.

        None means that there is no object. Raises ConditionFailed, RequestRefused, RequestNotSent,
        or another StorageError after which it may or may not have happened.
        """
        ...

    async def find(self, key: str, *, has_data: bool) -> ReadBack | None:
        """Version and metadata of an object, its bytes if wanted; may be retried."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class _State(Enum):
    OURS = auto()
    AS_BEFORE = auto()
    SOMETHING_ELSE = auto()


async def put_if(
    primitives: Primitives, key: str, data: bytes, previous: Version | None, about: About
) -> Version:
    """Create (`previous` None) or replace an object if it is still in that state.

    One request when all goes well; a refusal costs one more, to see whose object is there.

    Raises:
        ConditionFailed: it is not in that state; nothing was written.
        UnknownOutcomeError: an answer got lost, and reading back could not decide.
    """
    settings = primitives.settings
    if previous is None:
        is_conditional = settings.unsafe_use_conditional_create
    else:
        is_conditional = settings.unsafe_use_conditional_update
    write_id = str(uuid.uuid4()) if settings.unsafe_use_metadata else None
    marked = {**(about.get("metadata") or {}), WRITE_ID: write_id} if write_id else {}
    described: About = {**about, "metadata": marked}
    write = Write(key, data, previous, described, write_id, is_conditional)
    if not is_conditional:
        found = await primitives.find(key, has_data=False)
        if not _is_version(found, previous):
            raise ConditionFailed(key)
    return await _try(primitives, write)


async def _try(primitives: Primitives, write: Write) -> Version:
    has_lost_an_answer = False
    waits = pauses(primitives.settings.retries)
    while True:
        trouble: StorageError | ConditionFailed
        try:
            return await primitives.write_once(write)
        except (ConditionFailed, StorageError) as error:
            trouble = error
        if not isinstance(trouble, ConditionFailed | RequestRefused | RequestNotSent):
            has_lost_an_answer = True
        if not isinstance(trouble, RequestNotSent):
            version = await _settle(primitives, write, trouble, has_lost_an_answer)
            if version is not None:
                return version
        pause = next(waits, None)
        if pause is None:
            raise _gave_up(primitives, write, trouble, has_lost_an_answer) from trouble
        STORAGE.info("writing again in %.2f s: %s: %s", pause, type(trouble).__name__, trouble)
        await primitives.sleep(pause)


async def _settle(
    primitives: Primitives,
    write: Write,
    trouble: StorageError | ConditionFailed,
    has_lost_an_answer: bool,
) -> Version | None:
    """The version of our object if it was written, None if another try is due; else raises."""
    if isinstance(trouble, RequestRefused):
        if has_lost_an_answer:
            raise _unknown(primitives, write, f"a later try was refused: {trouble}") from trouble
        raise trouble
    if isinstance(trouble, ConditionFailed) and write.write_id is None and not has_lost_an_answer:
        # A clear no. Comparing bytes would mistake a twin's write for ours.
        raise trouble
    state, version = await _read_back(primitives, write)
    if state is not _State.SOMETHING_ELSE:
        return version
    if has_lost_an_answer:
        raise _unknown(
            primitives, write, "someone else has written it since, maybe on top of this write"
        ) from trouble
    raise ConditionFailed(write.key) from trouble


async def _read_back(primitives: Primitives, write: Write) -> tuple[_State, Version | None]:
    has_data = write.write_id is None
    try:
        found = await primitives.find(write.key, has_data=has_data)
    except StorageError as error:
        raise _unknown(primitives, write, f"reading it back failed: {error}") from error
    if found is not None:
        if has_data:
            is_ours = found.data == write.data
        else:
            found_id = found.metadata.get(WRITE_ID, found.metadata.get(OLD_WRITE_ID))
            is_ours = found_id == write.write_id
        if is_ours:
            return _State.OURS, found.version
    if _is_version(found, write.previous):
        return _State.AS_BEFORE, None
    return _State.SOMETHING_ELSE, None


def _is_version(found: ReadBack | None, version: Version | None) -> bool:
    if found is None or version is None:
        return found is None and version is None
    return found.version == version


def _unknown(primitives: Primitives, write: Write, reason: str) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"the answer to writing {write.key!r} in {primitives.location} got lost, and whether it "
        f"was written cannot be told: {reason}; look at the present state before trying again"
    )


def _gave_up(
    primitives: Primitives,
    write: Write,
    trouble: StorageError | ConditionFailed,
    has_lost_an_answer: bool,
) -> StorageError:
    if has_lost_an_answer:
        # The last request may still be on its way.
        return _unknown(primitives, write, f"it is as before after several tries ({trouble})")
    if isinstance(trouble, StorageError):
        return trouble
    return StorageError(
        f"{primitives.location} refuses to write {write.key!r} under a condition that holds",
        ErrorKind.OBJECT_STORE,
    )
