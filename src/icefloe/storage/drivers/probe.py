"""Finding out whether a storage keeps its word about conditional writes.

Some S3 servers accept the conditions and ignore them: every writer "wins", and commits are lost
without a trace. A new repository is not created there unless its owner has switched conditional
writes off, knowing what that means.
"""

from __future__ import annotations

import uuid

from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.driver import ConditionFailed, Driver, Version
from icefloe.storage.keys import PROBE_DIRECTORY

_WRONG = Version('"00000000000000000000000000000000"', "1")
"""A version that no object has."""


async def check_conditions_are_honoured(driver: Driver) -> None:
    """Raise StorageError (storage-config) if conditional writes go through regardless.

    At most six requests; none on memory and directories, which enforce conditions themselves.
    """
    settings = driver.settings
    creates, updates = (
        settings.unsafe_use_conditional_create,
        settings.unsafe_use_conditional_update,
    )
    if driver.is_local or not (creates or updates):
        return
    key = f"{PROBE_DIRECTORY}/{uuid.uuid4().hex}"
    await driver.put(key, b"first")
    try:
        if creates and not await _is_refused(driver, key, None):
            raise _ignored("create an object only if it is missing", "create")
        if updates and not await _is_refused(driver, key, _WRONG):
            raise _ignored("replace an object only if it is unchanged", "update")
    finally:
        await driver.delete_many([key])


async def _is_refused(driver: Driver, key: str, previous: Version | None) -> bool:
    try:
        await driver.put_if(key, b"second", previous=previous)
    except ConditionFailed:
        return True
    return False


def _ignored(request: str, switch: str) -> StorageError:
    return StorageError(
        f"this storage ignores the request to {request}, so commits that collide would be lost "
        "without notice; use another storage, or, if there will never be two writers at once, set "
        f"unsafe_use_conditional_{switch}=False in the storage settings of the repository config",
        ErrorKind.STORAGE_CONFIG,
    )
