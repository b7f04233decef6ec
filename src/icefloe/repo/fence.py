"""What maintenance tells writers: the fence, and whether an upgrade to spec version 2 is under way.

The fence is the time before which a collection may have deleted unreferenced objects. A collection
raises it before it commits its decision, and deletes objects only afterwards. A writer that finds a
concurrent collection checks that its own objects are newer than the fence. The fence never goes
down.

Both are in one small object, so that a commit of version 1 reads them with one request.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from icefloe.errors import (
    ErrorKind,
    FormatError,
    ReadOnlyError,
    SessionStateError,
    StorageError,
    UnknownOutcomeError,
)
from icefloe.format import layout
from icefloe.records import NamedTuple
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import ConditionFailed, Version

_TRIES = 100


class Fence(NamedTuple):
    """The content of the object."""

    collected_before: int = 0
    """No collection deleted an object stored at or after this time (microseconds, storage clock).
    0 when icefloe has never collected in this repository."""
    is_upgrading: bool = False
    """Whether an upgrade or a migration in place has stopped writers."""


async def read_fence(handle: RepoHandle) -> Fence:
    """The fence as it is now."""
    return (await _read(handle))[0]


async def collected_before(handle: RepoHandle) -> int:
    """No collection deleted an object stored at or after this time."""
    return (await read_fence(handle)).collected_before


async def raise_fence(handle: RepoHandle, instant: int) -> None:
    """Raise the fence: unreferenced objects stored before `instant` may be deleted."""
    await _change(
        handle, lambda now: now._replace(collected_before=max(now.collected_before, instant))
    )


async def mark_upgrade(handle: RepoHandle, *, is_upgrading: bool) -> None:
    """Stop the writers before version 2, or take that back once `repo` exists."""
    await _change(handle, lambda now: now._replace(is_upgrading=is_upgrading))


async def _change(handle: RepoHandle, change: Callable[[Fence], Fence]) -> None:
    for _ in range(_TRIES):
        present, version = await _read(handle)
        wanted = change(present)
        if wanted == present:
            return
        document: dict[str, int] = {"collected_before": wanted.collected_before}
        if wanted.is_upgrading:
            document["is_upgrading"] = True
        data = json.dumps(document).encode()
        try:
            await handle.driver.put_if(
                layout.COLLECTED, data, previous=version, content_type="application/json"
            )
        except ConditionFailed:
            continue  # another process replaced the file first
        return
    raise StorageError(
        f"{layout.COLLECTED} was changed by others at each of {_TRIES} attempts", ErrorKind.UNKNOWN
    )


async def require_open(handle: RepoHandle, outcome: str = "was not made") -> int:
    """Refuse to write during and after an upgrade to version 2. Returns the fence of collections.

    A write under the version of a branch calls this after it has read that version, because an
    upgrade gives branches new versions once it has stopped writers. Any other write calls
    `require_still_open` afterwards too.
    """
    # In this order: an upgrade lets writers go on after `repo` exists.
    fence = await read_fence(handle)
    if fence.is_upgrading:
        call = "upgrade_icechunk_repository" if handle.family.spec_version else "migrate_repository"
        raise ReadOnlyError(
            "the repository is being upgraded to spec version 2, and takes no changes until then; "
            f"this change {outcome}. Open the repository again when the upgrade has ended. If it "
            f"was interrupted, call {call} again",
            ErrorKind.READ_ONLY_REPOSITORY,
        )
    await require_not_migrated(handle)
    return fence.collected_before


async def require_still_open(handle: RepoHandle) -> int:
    """Refuse a change that was just made, if an upgrade that started meanwhile may have missed it.

    Raises:
        UnknownOutcomeError: the storage does not say.
    """
    try:
        return await require_open(handle, "may not be part of it")
    except StorageError as error:
        raise UnknownOutcomeError(
            "the change was made, and whether an upgrade or a garbage collection at the same time "
            f"has missed it cannot be told: {error}; look at the present state before trying again"
        ) from error


async def require_not_migrated(handle: RepoHandle) -> None:
    """Refuse to use the refs after a migration: other clients no longer do."""
    try:
        await handle.driver.head(layout.REPO)
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND:
            return
        raise
    raise FormatError(
        "the repository was migrated to spec version 2 since it was opened, so no reader would see "
        "this change; open it again",
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )


def objects_collected(shown: str) -> SessionStateError:
    """The error of a writer whose own objects were collected."""
    return SessionStateError(
        f"a garbage collection that ran since this session was opened takes objects that the "
        f"session has stored but not committed: {shown}. Nothing was committed. Write the "
        "changes again in a new session, and collect only objects older than the longest session",
        ErrorKind.OBJECTS_COLLECTED,
    )


async def _read(handle: RepoHandle) -> tuple[Fence, Version | None]:
    try:
        data, version = await handle.driver.get_versioned(layout.COLLECTED)
    except StorageError as error:
        if error.kind != ErrorKind.OBJECT_NOT_FOUND:
            raise
        return Fence(), None
    try:
        found = json.loads(data)
        is_upgrading = bool(found.get("is_upgrading", False))
        return Fence(int(found["collected_before"]), is_upgrading), version
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{layout.COLLECTED}: expected a JSON object with the number 'collected_before'"
        ) from error
