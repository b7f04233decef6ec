"""The folders of a repository whose objects are named by ids."""

from __future__ import annotations

from icefloe.assets.stored_objects import (
    LISTINGS_AT_ONCE,
    StoredObjects,
    list_folder,
    with_times,
)
from icefloe.format import layout

__all__ = ["KINDS", "LISTINGS_AT_ONCE", "StoredObjects", "list_folder", "with_times"]

KINDS = {
    "snapshots": layout.SNAPSHOTS,
    "transaction_logs": layout.TRANSACTIONS,
    "manifests": layout.MANIFESTS,
    "chunks": layout.CHUNKS,
}
"""The folders of objects that are named by ids, in the order in which a collection deletes them:
an object is deleted after everything that refers to it."""
