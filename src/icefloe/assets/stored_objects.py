"""The objects of a folder as columns: id, size, creation time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Bytes
from icefloe.ids import ObjectId, decode_base32_rows, encode_base32_rows
from icefloe.storage.driver import Driver

LISTINGS_AT_ONCE = 32


class StoredObjects(NamedTuple):
    """The objects of one folder; rows in no particular order."""

    folder: str
    id: Bytes
    size_bytes: NDArray[np.int64]
    created_at: NDArray[np.int64]
    """By the storage's clock, in microseconds since the epoch; -1 if not asked for yet."""
    strange_names: tuple[str, ...] = ()
    """Names that are not ids. icefloe did not write these objects and ignores them."""

    def __len__(self) -> int:
        return len(self.id)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice) -> StoredObjects:
        """Some of the rows."""
        return StoredObjects(
            self.folder,
            self.id[rows],
            self.size_bytes[rows],
            self.created_at[rows],
            self.strange_names,
        )

    def all_keys(self) -> list[str]:
        """The key of every object."""
        return [self.folder + text for text in encode_base32_rows(self.id)]


async def list_folder(
    driver: Driver, folder: str, at_once: int = LISTINGS_AT_ONCE, *, names_only: bool = False
) -> StoredObjects:
    """Every object of a folder whose objects are named by ids.

    With `names_only`, sizes and times may be unknown until `with_times` asks for them: a directory
    has to look at every file for them.
    """
    ids: list[Bytes] = [np.empty((0, ObjectId.size), np.uint8)]
    size, created = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    strange: list[str] = []
    for page in await driver.list_pages(folder, at_once, names_only=names_only):
        if not len(page.name):
            continue
        rows, is_id = decode_base32_rows(page.name, ObjectId.size)
        ids.append(rows)
        size.append(page.size_bytes[is_id])
        created.append(page.created_at[is_id])
        strange += [name.decode("utf-8", "replace") for name in page.name[~is_id].tolist()]
    return StoredObjects(
        folder,
        np.concatenate(ids),
        np.concatenate(size),
        np.concatenate(created),
        tuple(strange),
    )


async def with_times(driver: Driver, objects: StoredObjects) -> StoredObjects:
    """The same objects with sizes and times. Those that are gone are left out."""
    is_unknown = objects.created_at < 0
    if not is_unknown.any():
        return objects
    asked = objects.take(is_unknown)
    found = await driver.head_many(asked.all_keys())
    size, created = objects.size_bytes.copy(), objects.created_at.copy()
    size[is_unknown], created[is_unknown] = found.size_bytes, found.created_at
    known = StoredObjects(objects.folder, objects.id, size, created, objects.strange_names)
    return known.take(created >= 0)
