"""`read`: the arrays of a repository as a DataFrame."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from icefloe.api.repository import Repository
from icefloe.errors import InvalidInputError
from icefloe.scans.choose_scan import plan_read
from icefloe.scans.options import DEFAULT_SPLIT_BYTES, read_options
from icefloe.scans.pinned import as_repository, pin
from icefloe.scans.scan import Scan, read_numbered
from icefloe.scans.where import Where
from icefloe.spark.runtime.spark_session import parallelism
from icefloe.spark.runtime.tasks import map_batches
from icefloe.spark.spark_types import spark_schema


def read(
    spark: SparkSession,
    repository: Repository | str,
    *,
    group: str = "",
    variables: list[str] | str | None = None,
    dims: list[str] | str | None = None,
    layout: str = "cells",
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    where: Where = None,
    columns: list[str] | None = None,
    missing: str = "fill",
    decode: bool = True,
    split_size: int | str = DEFAULT_SPLIT_BYTES,
) -> DataFrame:
    """The arrays of a group as a DataFrame, at the snapshot that the ref stands for now.

    `layout="cells"` has one row per cell: a column for each dimension (its coordinates, or the
    index) and one for each variable; variables with fewer dimensions are repeated. Rows are in
    no particular order. `layout="chunks"` has one row per chunk: path, chunk_index, offset, shape,
    dtype, and data as little-endian bytes in C order.

    Tasks read the repository with the credentials of `repository`, which travel in the pickled
    task; they are not in the plan that Spark shows.

    Args:
        repository: a `Repository`, or a URL as for `storage_from_url`.
        variables: names of arrays in the group. Unless given, all of them, without the bounds of
            coordinates.
        dims: in cells, the dimensions of the rows: all arrays within them are read. Needed
            where arrays of the group have dimensions that are not those of one of them.
        branch: `main` unless another ref is given.
        as_of: with a branch, its newest snapshot at that time.
        where: conditions on coordinates, SQL text or a dictionary; see `scans/where.py`.
            Chunks without a wanted cell are not read. In cells only the wanted rows remain, in
            chunks whole chunks.
        columns: in cells, the columns to produce; others cost nothing.
        missing: `fill` gives chunks that were never written their fill value, `skip` leaves
            their rows out (in cells, if no variable of full rank has them).
        decode: apply CF attributes as xarray does (scale, offset, times), with null for
            `_FillValue`; times become timestamps without a zone. Off: values as stored.
        split_size: bytes one task should produce.
        spark: the session; `icefloe.spark.session()` makes one.
        group: the path of the group; the root unless given.
        tag: the version, instead of a branch.
        snapshot_id: the version, instead of a branch.

    Raises:
        InvalidInputError: something cannot be read as asked for; before any job starts.
    """
    check_session(spark)
    options = read_options(
        group=group,
        variables=variables,
        dims=dims,
        columns=columns,
        layout=layout,
        where=where,
        missing=missing,
        decode=decode,
        split_size=split_size,
        min_partitions=parallelism(spark),
    )
    pinned = pin(
        as_repository(repository), branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of
    )
    return to_dataframe(spark, plan_read(pinned, options))


def to_dataframe(spark: SparkSession, scan: Scan) -> DataFrame:
    """A DataFrame with one partition for each piece of a scan."""
    count = scan.num_partitions
    # The numbers of the pieces are all that Spark plans with: nothing grows with the data.
    numbers = spark.range(0, count, 1, max(count, 1))
    return map_batches(numbers, partial(read_numbered, scan), spark_schema(scan.schema))


def check_session(spark: Any) -> None:
    """Refuse what is not a Spark session, of either kind, by its name."""
    if not hasattr(spark, "range") or not hasattr(spark, "createDataFrame"):
        raise InvalidInputError(
            f"spark is {spark!r:.80}, expected a SparkSession; icefloe.spark.session() makes one"
        )
