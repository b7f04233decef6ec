"""Files that could not be brought over, kept in a table until they can.

The table is a group `.icefloe/problems` beside the ledger, with one 1-d array per column, so that
any Zarr tool reads it, and Spark as a DataFrame.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.errors import GroupNotFoundError

from icefloe.virtual.planning.ledger import LEDGER_GROUP
from icefloe.virtual.planning.plan import Problem

PROBLEMS = f"{LEDGER_GROUP}/problems"
_CHUNK = 16384
_Row = tuple[str, str, int]
_DTYPES = {"location": "string", "reason": "string", "seen_at": "int64"}
_SEEN_AT: dict[str, Any] = {"units": "seconds since 1970-01-01", "calendar": "standard"}


def record_problems(
    store: Store, group: str, problems: Sequence[Problem], looked_at: Collection[str]
) -> int:
    """Bring the table up to date: of files looked at, only those with problems stay in it.

    Returns how many files are new in it.
    """
    old = _read(store, group)
    now = int(time.time())
    seen = {(location, reason): at for location, reason, at in old}
    again = set(looked_at) | {problem.location for problem in problems}
    rows = [row for row in old if row[0] not in again]
    rows += [
        (problem.location, problem.reason, seen.get((problem.location, problem.reason), now))
        for problem in problems
    ]
    if rows != old:
        _write(store, group, rows)
    return len({row[0] for row in rows} - {row[0] for row in old})


def _path(group: str) -> str:
    return "/".join(filter(None, (group.strip("/"), PROBLEMS)))


def _read(store: Store, group: str) -> list[_Row]:
    try:
        found = zarr.open_group(store, path=_path(group), mode="r", zarr_format=3)
    except (FileNotFoundError, GroupNotFoundError):
        return []
    columns = [np.asarray(found[name][:]).tolist() for name in _DTYPES]  # type: ignore[index]
    return list(zip(*columns, strict=True))


def _write(store: Store, group: str, rows: Sequence[_Row]) -> None:
    place = zarr.open_group(store, path=_path(group), mode="a", zarr_format=3)
    columns = list(zip(*rows, strict=True)) or [()] * len(_DTYPES)
    for (name, dtype), values in zip(_DTYPES.items(), columns, strict=True):
        column = place.get(name)
        if not isinstance(column, zarr.Array):
            column = place.create_array(
                name,
                shape=(0,),
                chunks=(_CHUNK,),
                dtype=dtype,
                dimension_names=["problem"],
                attributes=_SEEN_AT if name == "seen_at" else {},
            )
        column.resize((len(rows),))
        column[:] = np.array(values, object if dtype == "string" else dtype)
