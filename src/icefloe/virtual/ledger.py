"""Which files a group was made of, so that an ingest that is run again only adds new ones.

The ledger is a group `.icefloe/sources` inside the group it is about, with a 1-d array a column. It
moves with the group, has its history, and is read by any Zarr tool; somebody who opens the group
itself as a dataset does not see it, because datasets end where groups begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.errors import GroupNotFoundError

from icefloe.virtual.description import SourceDescription, SourceVersion

LEDGER_GROUP = ".icefloe"
_PATH = f"{LEDGER_GROUP}/sources"
_CHUNK = 16384
_DTYPES = {
    "location": "string",
    "size_bytes": "int64",
    "etag": "string",
    "last_modified": "int64",
    "fingerprint": "string",  # not in ledgers of earlier versions
}


@dataclass(frozen=True, slots=True)
class Ledger:
    """The files brought over so far, in the order they came, and the state each had then."""

    versions: dict[str, SourceVersion] = field(default_factory=dict)

    def compare(self, source: SourceDescription) -> Literal["new", "same", "changed"]:
        """Whether a file is known, and still what it was.

        By its ETag or its fingerprint where both sides have one; else by its size and the time of
        its last change.
        """
        known, found = self.versions.get(source.location), source.version
        if known is None:
            return "new"
        if known.etag is not None and found.etag is not None:
            return "same" if known.etag == found.etag else "changed"
        if known.fingerprint is not None and found.fingerprint is not None:
            alike = known.fingerprint == found.fingerprint
            return "same" if alike and known.size_bytes == found.size_bytes else "changed"
        is_same = (known.size_bytes, known.last_modified) == (
            found.size_bytes,
            found.last_modified,
        )
        return "same" if is_same else "changed"


def _path(group: str) -> str:
    return "/".join(filter(None, (group.strip("/"), _PATH)))


def read_ledger(store: Store, group: str) -> Ledger:
    """The ledger of a group; empty when there is none."""
    try:
        found = zarr.open_group(store, path=_path(group), mode="r", zarr_format=3)
    except (FileNotFoundError, GroupNotFoundError):
        return Ledger()
    columns = {}
    for name in _DTYPES:
        column = found.get(name)
        if isinstance(column, zarr.Array):
            columns[name] = np.asarray(column[:]).tolist()
    columns.setdefault("fingerprint", [""] * len(columns["location"]))
    rows = zip(*columns.values(), strict=True)
    return Ledger(
        {
            location: SourceVersion(size, etag or None, modified or None, fingerprint or None)
            for location, size, etag, modified, fingerprint in rows
        }
    )


def add_to_ledger(store: Store, group: str, sources: Sequence[SourceDescription]) -> None:
    """Enter files that have been brought over; only the end of each column is written."""
    if not sources:
        return
    place = zarr.open_group(store, path=_path(group), mode="a", zarr_format=3)
    rows = [
        (
            source.location,
            source.version.size_bytes,
            source.version.etag or "",
            source.version.last_modified or 0,
            source.version.fingerprint or "",
        )
        for source in sources
    ]
    first = 0
    for (name, dtype), values in zip(_DTYPES.items(), zip(*rows, strict=True), strict=True):
        column = place.get(name)
        if not isinstance(column, zarr.Array):
            column = place.create_array(
                name, shape=(first,), chunks=(_CHUNK,), dtype=dtype, dimension_names=["source"]
            )
        first = column.shape[0]
        column.resize((first + len(values),))
        column[first:] = np.array(values, object if dtype == "string" else dtype)
