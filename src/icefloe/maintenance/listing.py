"""The folders of a repository whose objects are named by ids."""

from __future__ import annotations

from icefloe.assets.stored_objects import (
    LISTINGS_AT_ONCE,
    StoredObjects,
    arrived,
    list_folder,
    with_times,
)
from icefloe.format import layout

__all__ = ["KINDS", "LISTINGS_AT_ONCE", "StoredObjects", "arrived", "list_folder", "with_times"]

KINDS = layout.KINDS
