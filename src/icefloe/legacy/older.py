"""Recognising repositories of the generations before spec version 1."""

from __future__ import annotations

from icefloe.format import layout
from icefloe.legacy import numbered_format as numbered
from icefloe.legacy import state_format as state_file
from icefloe.legacy.detect import detect
from icefloe.legacy.numbered.names import DOCUMENT
from icefloe.repo.handle import FormatVersion, FoundRepository
from icefloe.storage.driver import Driver, Version


async def find_older(
    driver: Driver, keys: list[str], state: tuple[bytes, Version] | None
) -> FoundRepository | None:
    """The older repository with these refs or this state file, or None.

    Raises:
        FormatError: there are two repositories of different generations, or a file is missing.
    """
    found = detect([*keys, layout.STATE_FILE] if state is not None else keys)
    if found is None:
        return None
    if found.names is None:
        assert state is not None
        return state_file.FoundState(*state)
    return await numbered.found_numbered(driver, found.names, found.key)


async def find_damaged(driver: Driver) -> FormatVersion | None:
    """The format version of an older repository that cannot be opened, or None."""
    if any(found.key == layout.STATE_FILE for found in await driver.list(layout.STATE_FILE)):
        return state_file.StateFile()
    if not await driver.list(layout.SNAPSHOTS) and await driver.list(DOCUMENT.refs):
        return numbered.Numbered()
    return None
