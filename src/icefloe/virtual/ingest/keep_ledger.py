"""Reading and writing the ledger of a group.

The ledger is a group `.icefloe/sources` inside the group it is about, with one 1-d array per
column. It moves with the group, has its history, and is read by any Zarr tool. A reader who opens
the group itself as a dataset does not see it, because datasets end where groups begin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.errors import GroupNotFoundError

from icefloe.virtual.model.description import Json, SourceVersion
from icefloe.virtual.planning.ledger import LEDGER_GROUP, Ledger, extent_of
from icefloe.virtual.planning.plan import IngestPlan

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
_MADE_WITH = "made_with"
"""An attribute that ledgers of earlier versions lack."""


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
    return Ledger(versions, extents, _made_with(found))


def _made_with(ledger: zarr.Group) -> dict[str, Json]:
    found: Any = ledger.attrs.get(_MADE_WITH)
    return dict(found) if isinstance(found, dict) else {}


def enter_in_ledger(store: Store, plan: IngestPlan, known: Ledger) -> None:
    """Enter files that have been brought over; of new ones only the end of columns is written."""
    if not plan.sources:
        return
    place = zarr.open_group(store, path=_path(plan.options.group), mode="a", zarr_format=3)
    if not known.made_with:
        place.attrs[_MADE_WITH] = dict(plan.options.made_with)
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
