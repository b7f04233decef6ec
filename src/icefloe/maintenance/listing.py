"""The folders of a repository whose objects are named by ids."""

from __future__ import annotations

from collections.abc import AsyncIterator

from icefloe.assets.stored_objects import (
    LISTINGS_AT_ONCE,
    StoredObjects,
    arrived,
    list_folder,
    with_times,
)
from icefloe.format import layout
from icefloe.storage.driver import Driver

__all__ = [
    "KINDS",
    "LISTINGS_AT_ONCE",
    "StoredObjects",
    "arrived",
    "list_folder",
    "list_strays",
    "with_times",
]

KINDS = layout.KINDS


async def list_strays(driver: Driver) -> AsyncIterator[str]:
    """The keys of objects outside of the folders of a repository of spec version 1 or 2."""
    for name in await driver.list_top():
        if name in layout.TOP_LEVEL:
            continue
        if not name.endswith("/"):
            yield name
            continue
        for page in await driver.list_pages(name, LISTINGS_AT_ONCE):
            for inner in page.name.tolist():
                yield name + inner.decode("utf-8", "replace")
