"""The fence: up to when a garbage collection may have deleted objects that nothing referred to.

A collection raises the fence before it makes its decision final, and deletes only afterwards. A
writer that finds a collection behind its back asks here how old its own objects may be. The fence
never goes down.
"""

from __future__ import annotations

import json

from icefloe.errors import ErrorKind, FormatError, StorageError
from icefloe.format import layout
from icefloe.repo.handle import RepoHandle
from icefloe.storage.driver import ConditionFailed, Version

_TRIES = 100


async def collected_before(handle: RepoHandle) -> int:
    """Every object stored from this instant on (microseconds, the storage's clock) is there.

    0 when icefloe has collected nothing yet.
    """
    return (await _read(handle))[0]


async def raise_fence(handle: RepoHandle, instant: int) -> None:
    """From now on only objects stored at `instant` or later are safe without a reference."""
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
            continue  # another collection was faster
        return
    raise StorageError(
        f"{layout.COLLECTED} was changed by others at each of {_TRIES} attempts", ErrorKind.UNKNOWN
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
