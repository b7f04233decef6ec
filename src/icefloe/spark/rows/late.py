"""Rows of a table whose coordinates belong before the end: inserted, or set aside in a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from icefloe.api.repository import Repository
from icefloe.api.session import ForkSession, Session
from icefloe.errors import InvalidInputError
from icefloe.spark.rows.arrays import RowsRequest, locate_axis, stored_arrays
from icefloe.spark.rows.columns import as_keys
from icefloe.spark.runtime.tasks import map_batches
from icefloe.spark.writes.write_items import write_items
from icefloe.spark.writes.write_regions import dimension_names
from icefloe.virtual.ingest.existing import read_document
from icefloe.virtual.ingest.room import (
    ArrayRoom,
    AxisRoom,
    BlockMove,
    moves_of_arrays,
    reserve_arrays,
)
from icefloe.virtual.planning.ledger import LEDGER_GROUP

LATE = ("fail", "insert", "quarantine")
LATE_ROWS = f"{LEDGER_GROUP}/late_rows"
ROW = "row"

Values = Mapping[str, pa.Array]
"""The distinct values of the rows, by dimension."""


def check_late(late: Any) -> None:
    """Refuse what is no way to treat late rows."""
    if late not in LATE:
        raise InvalidInputError(f"late is {late!r:.80}, expected one of {', '.join(LATE)}")


def find_late(session: Session, request: RowsRequest, values: Values) -> dict[str, pa.Array]:
    """The values that are no coordinates and lie before the last one, by dimension."""
    arrays = stored_arrays(session, request.group)
    found = {}
    for dim in request.dims:
        if dim not in arrays or request.mode != "append":
            continue
        keys, encoder = locate_axis(arrays, request, dim)
        if not len(keys):
            continue
        wanted = encoder.rounded(as_keys(dim, values[dim], keys.type))
        new = wanted.filter(pc.is_null(pc.index_in(wanted, value_set=keys)))
        last = keys[-1]
        is_late = pc.greater(new, last) if _is_falling(keys) else pc.less(new, last)
        late = pc.unique(new.filter(is_late))
        if len(late):
            found[dim] = late
    return found


def insert_late(
    spark: SparkSession,
    repository: Repository,
    session: Session,
    request: RowsRequest,
    late: Mapping[str, pa.Array],
) -> None:
    """Make room for late coordinates in all arrays of the group, and write the coordinates."""
    arrays = stored_arrays(session, request.group)
    axes = {dim: _room(arrays, request, dim, values) for dim, values in late.items()}
    rooms = []
    for name, array in arrays.items():
        names = dimension_names(array)
        own = {at: axes[dim] for at, dim in enumerate(names) if dim in axes}
        if own:
            target = f"{request.group}/{name}".strip("/")
            shape = [len(own[at].values) if at in own else n for at, n in enumerate(array.shape)]
            document = {**read_document(session.store, target), "shape": shape}
            rooms.append(ArrayRoom(target, document, array.shape, own))
    reserve_arrays(session, rooms)
    base = repository.readonly_session(snapshot_id=session.snapshot_id).store
    write_items(spark, session, moves_of_arrays(rooms), partial(_move, base))
    for dim, axis in axes.items():
        path = f"{request.group}/{dim}".strip("/")
        zarr.open_array(session.store, path=path, mode="r+")[:] = axis.values


def _move(base: Any, fork: ForkSession, move: BlockMove) -> None:
    move.run(base, fork.store)


def _room(arrays: Any, request: RowsRequest, dim: str, late: pa.Array) -> AxisRoom:
    keys, encoder = locate_axis(arrays, request, dim)
    union = pa.concat_arrays([keys, late])
    order = "descending" if _is_falling(keys) else "ascending"
    ranks = pc.sort_indices(union, sort_keys=[("", order)])
    positions = np.empty(len(union), np.int64)
    positions[np.asarray(ranks)] = np.arange(len(union))
    old = positions[: len(keys)]
    if bool((np.diff(old) < 0).any()):
        raise InvalidInputError(
            f"the coordinates of {dim!r} are in no order, so that late rows have no place among "
            "them; give late='quarantine', or write the array anew"
        )
    return AxisRoom(old, encoder.encode(union.take(ranks)))


def _is_falling(keys: pa.Array) -> bool:
    return len(keys) > 1 and keys[-1].as_py() < keys[0].as_py()


def split_rows(df: DataFrame, late: Mapping[str, pa.Array]) -> tuple[DataFrame, DataFrame]:
    """The rows that can be located, and those that are late along any dimension."""
    ddl = ", ".join(
        f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}"
        for field in df.schema.fields
    )
    return (
        map_batches(df, partial(_chosen, dict(late), False), ddl),
        map_batches(df, partial(_chosen, dict(late), True), ddl),
    )


def _chosen(
    late: Mapping[str, pa.Array], wants_late: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        is_late = pa.array(np.zeros(batch.num_rows, bool))
        for dim, values in late.items():
            keys = as_keys(dim, batch.column(dim), values.type)
            is_late = pc.or_(is_late, pc.is_in(keys, value_set=values))
        yield batch.filter(is_late if wants_late else pc.invert(is_late))


def numbered(rows: DataFrame, first: int) -> DataFrame:
    """Rows with consecutive numbers from `first` on."""
    order = Window.orderBy(sf.monotonically_increasing_id())
    return rows.withColumn(ROW, (sf.row_number().over(order) + sf.lit(first - 1)).cast("bigint"))
