"""The fence: the time before which a collection may have deleted unreferenced objects.

A collection raises the fence before it commits its decision, and deletes objects only afterwards. A
writer that finds a concurrent collection checks that its own objects are newer than the fence. The
fence never goes down.
"""

from __future__ import annotations

import json

from icefloe.errors import ErrorKind, FormatError, SessionStateError, StorageError
from icefloe.format import layout
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import ConditionFailed, Version

_TRIES = 100


async def collected_before(handle: RepoHandle) -> int:
    """No collection deleted an object stored at or after this time (microseconds, storage clock).

    0 when icefloe has never collected in this repository.
    """
    return (await _read(handle))[0]


async def raise_fence(handle: RepoHandle, instant: int) -> None:
    """Raise the fence: unreferenced objects stored before `instant` may be deleted."""
    for _ in range(_TRIES):
        present, version = await _read(handle)
        if present >= instant:
            return
        data = json.dumps({"collected_before": instant}).encode()
        try:
            await handle.driver.put_if(
                layout.COLLECTED, data, previous=version, content_type="application/json"
            )
        except ConditionFailed:
            continue  # another collection replaced the file first
        return
    raise StorageError(
        f"{layout.COLLECTED} was changed by others at each of {_TRIES} attempts", ErrorKind.UNKNOWN
    )


def objects_collected(shown: str) -> SessionStateError:
    """The error of a writer whose own objects were collected."""
    return SessionStateError(
        f"a garbage collection that ran since this session was opened takes objects that the "
        f"session has stored but not committed: {shown}. Nothing was committed. Write the "
        "changes again in a new session, and collect only objects older than the longest session",
        ErrorKind.OBJECTS_COLLECTED,
    )


async def _read(handle: RepoHandle) -> tuple[int, Version | None]:
    try:
        data, version = await handle.driver.get_versioned(layout.COLLECTED)
    except StorageError as error:
        if error.kind != ErrorKind.OBJECT_NOT_FOUND:
            raise
        return 0, None
    try:
        return int(json.loads(data)["collected_before"]), version
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(
            f"{layout.COLLECTED}: expected a JSON object with the number 'collected_before'"
        ) from error
