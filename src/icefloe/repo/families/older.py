"""Recognising repositories of the generations before spec version 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import StorageError
from icefloe.legacy.detect import STATE_FILE, detect
from icefloe.on_demand import on_demand
from icefloe.repo.handle import FoundRepository
from icefloe.storage.driver import Driver, find_object

if TYPE_CHECKING:
    from icefloe.repo.families.numbered import found as numbered
    from icefloe.repo.families.state_file import family as state_file
else:
    numbered = on_demand("icefloe.repo.families.numbered.found")
    state_file = on_demand("icefloe.repo.families.state_file.family")

_REFS = "r"  # the common prefix of `r/` and `refs/`: one listing for both


async def find_older(driver: Driver) -> FoundRepository | None:
    """The older repository stored here, or None.

    Raises:
        FormatError: there are two repositories of different generations, or a file is missing.
    """
    try:
        # Numbered refs are found by listing; a state file has a name.
        keys = [entry.key for entry in await driver.list(_REFS)] if driver.can_list else []
        state = await find_object(driver, STATE_FILE)
    except StorageError as error:
        if error.is_bucket_missing:
            return None
        raise
    found = detect([*keys, STATE_FILE] if state is not None else keys)
    if found is None:
        return None
    if found.names is None:
        assert state is not None
        return state_file.FoundState(*state)
    return await numbered.found_numbered(driver, found.names, found.key)
