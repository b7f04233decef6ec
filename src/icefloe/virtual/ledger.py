"""Which files a group was made of, so that an ingest that is run again only adds new ones.

The ledger is a group `.icefloe/sources` inside the group it is about, with one 1-d array per
column. It moves with the group, has its history, and is read by any Zarr tool. A reader who opens
the group itself as a dataset does not see it, because datasets end where groups begin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.errors import GroupNotFoundError

from icefloe.virtual.axes import time_units
from icefloe.virtual.description import SourceDescription, SourceVersion, digest_of
from icefloe.virtual.plan import IngestPlan

LEDGER_GROUP = ".icefloe"
_PATH = f"{LEDGER_GROUP}/sources"
_CHUNK = 16384
_DTYPES = {
    "location": "string",
    "size_bytes": "int64",
    "etag": "string",
    "last_modified": "int64",
    "fingerprint": "string",
    "extent": "string",
}
_LATER = ("fingerprint", "extent")
"""Columns that ledgers of earlier versions lack."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The files brought over so far, in the order they came, and the state each had then."""

    versions: dict[str, SourceVersion] = field(default_factory=dict)
    extents: dict[str, str] = field(default_factory=dict)
    """What `extent_of` said of them, where it is known."""

    def compare(self, source: SourceDescription) -> Literal["new", "same", "changed"]:
        """Whether a file is known, and still what it was."""
        known = self.versions.get(source.location)
        if known is None:
            return "new"
        return "same" if is_same_version(known, source.version) else "changed"


def is_same_version(known: SourceVersion, found: SourceVersion) -> bool:
    """Whether a file is still what it was.

    By its ETag or its fingerprint where both sides have one; else by its size and the time of its
    last change.
    """
    if known.etag is not None and found.etag is not None:
        return known.etag == found.etag
    if known.fingerprint is not None and found.fingerprint is not None:
        return (known.fingerprint, known.size_bytes) == (found.fingerprint, found.size_bytes)
    return (known.size_bytes, known.last_modified) == (found.size_bytes, found.last_modified)


def extent_of(source: SourceDescription, concat_dims: Sequence[str]) -> str:
    """A hash of what a file fills: its variables, and its places along the joined dimensions."""
    hashed = hashlib.blake2b(digest_size=16)
    for path in sorted(source.variables):
        variable = source.variables[path]
        if not set(concat_dims) & {*variable.dimensions, path}:
            continue
        hashed.update(f"{path} {variable.shape}\n".encode())
        if variable.name in concat_dims and variable.values is not None:
            units = time_units(variable)
            values = np.atleast_1d(variable.values)
            hashed.update(digest_of(values if units is None else units.decode(values)))
    return hashed.hexdigest()


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
    for name in _LATER:
        columns.setdefault(name, [""] * len(columns["location"]))
    versions, extents = {}, {}
    rows = zip(*(columns[name] for name in _DTYPES), strict=True)
    for location, size, etag, modified, fingerprint, extent in rows:
        versions[location] = SourceVersion(
            size, etag or None, modified or None, fingerprint or None
        )
        if extent:
            extents[location] = extent
    return Ledger(versions, extents)


def enter_in_ledger(store: Store, plan: IngestPlan, known: Ledger) -> None:
    """Enter files that have been brought over; of new ones only the end of columns is written."""
    if not plan.sources:
        return
    place = zarr.open_group(store, path=_path(plan.options.group), mode="a", zarr_format=3)
    row_of = {location: row for row, location in enumerate(known.versions)}
    rows = [
        (
            source.location,
            source.version.size_bytes,
            source.version.etag or "",
            source.version.last_modified or 0,
            source.version.fingerprint or "",
            extent_of(source, plan.concat_dims),
        )
        for source in plan.sources
    ]
    first = len(row_of)
    at = np.array([row_of.setdefault(row[0], len(row_of)) for row in rows], np.int64)
    is_new = at >= first
    for (name, dtype), given in zip(_DTYPES.items(), zip(*rows, strict=True), strict=True):
        column = place.get(name)
        if not isinstance(column, zarr.Array):
            column = place.create_array(
                name, shape=(first,), chunks=(_CHUNK,), dtype=dtype, dimension_names=["source"]
            )
        values = np.array(given, object if dtype == "string" else dtype)
        column.resize((len(row_of),))
        if is_new.any():
            column[first:] = values[is_new]
        for row, value in zip(at[~is_new].tolist(), values[~is_new].tolist(), strict=True):
            column[row] = value
