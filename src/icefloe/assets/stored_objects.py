"""The objects of a folder as columns: id, size, creation time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns.blobs import Bytes
from icefloe.format.columns.id_set import IdSet, id_keys
from icefloe.ids import ObjectId, decode_base32_rows, encode_base32_rows
from icefloe.records import NamedTuple
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
    name: NDArray[np.bytes_] | None = None
    """The names of the objects, if they are not the text of their ids."""

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
            None if self.name is None else self.name[rows],
        )

    def all_keys(self) -> list[str]:
        """The key of every object."""
        return [self.folder + text for text in self.texts()]

    def texts(self) -> list[str]:
        """The name of every object."""
        if self.name is None:
            return list(encode_base32_rows(self.id))
        return [name.decode("utf-8", "surrogatepass") for name in self.name.tolist()]


Identify = Callable[[NDArray[np.bytes_]], tuple[Bytes, NDArray[np.bool_]]]
"""From names to the ids of those that have one, and which these are."""


def by_id(names: NDArray[np.bytes_]) -> tuple[Bytes, NDArray[np.bool_]]:
    """The ids of names that are the text of an id."""
    return decode_base32_rows(names, ObjectId.size)


async def list_folder(
    driver: Driver,
    folder: str,
    at_once: int = LISTINGS_AT_ONCE,
    *,
    names_only: bool = False,
    identify: Identify = by_id,
) -> StoredObjects:
    """Every object of a folder whose objects are named by ids.

    With `names_only`, sizes and times may be unknown until `with_times` asks for them: a directory
    has to look at every file for them.
    """
    ids: list[Bytes] = [np.empty((0, ObjectId.size), np.uint8)]
    size, created = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    names: list[NDArray[np.bytes_]] = [np.empty(0, np.bytes_)]
    strange: list[str] = []
    for page in await driver.list_pages(folder, at_once, names_only=names_only):
        if not len(page.name):
            continue
        rows, is_id = identify(page.name)
        ids.append(rows)
        size.append(page.size_bytes[is_id])
        created.append(page.created_at[is_id])
        if identify is not by_id:
            names.append(page.name[is_id])
        strange += [name.decode("utf-8", "replace") for name in page.name[~is_id].tolist()]
    return StoredObjects(
        folder,
        np.concatenate(ids),
        np.concatenate(size),
        np.concatenate(created),
        tuple(strange),
        None if identify is by_id else np.concatenate(names),
    )


def arrived(copies: StoredObjects, originals: StoredObjects) -> IdSet:
    """The copies that need not be made again: all but those of another size than the original."""
    order = np.argsort(id_keys(originals.id))
    keys, size = id_keys(originals.id)[order], originals.size_bytes[order]
    wanted = id_keys(copies.id)
    if not len(keys) or not len(wanted):
        return IdSet.of(copies.id)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    is_other = (keys[at] == wanted) & (size[at] != copies.size_bytes)
    return IdSet.of(copies.id[~is_other])


async def with_times(driver: Driver, objects: StoredObjects) -> StoredObjects:
    """The same objects with sizes and times. Those that are gone are left out."""
    is_unknown = objects.created_at < 0
    if not is_unknown.any():
        return objects
    asked = objects.take(is_unknown)
    found = await driver.head_many(asked.all_keys())
    size, created = objects.size_bytes.copy(), objects.created_at.copy()
    size[is_unknown], created[is_unknown] = found.size_bytes, found.created_at
    # `_replace` counts fields by `len`, which here is the number of rows.
    known = StoredObjects(
        objects.folder, objects.id, size, created, objects.strange_names, objects.name
    )
    return known.take(created >= 0)
