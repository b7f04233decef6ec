"""Arrays and metadata tables as DataFrames and views."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icefloe.api.repository import Repository
from icefloe.display import Picture, Shown, counted, qualified
from icefloe.errors import InvalidInputError
from icefloe.scans import metadata_tables
from icefloe.scans.chunk_rows import plan_read
from icefloe.scans.metadata_rows import all_snapshots
from icefloe.scans.scan import (
    DEFAULT_SPLIT_BYTES,
    PinnedSnapshot,
    Scan,
    as_repository,
    pin,
    read_numbered,
    read_options,
)
from icefloe.scans.where import Where
from icefloe.spark.start import parallelism
from icefloe.spark.tasks import map_batches
from icefloe.spark.versions import from_arrow, spark_schema


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

    >>> days = ("2024-01-01", "2024-01-02")
    >>> df = icefloe.spark.read(spark, "weather", variables=["t2m"], where={"time": days})
    >>> df.count()
    128
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


def opened(spark: Any, repository: Repository | str) -> Repository:
    """A repository to be used by a session, which is checked first."""
    check_session(spark)
    return as_repository(repository)


def files_dataframe(spark: SparkSession, source: PinnedSnapshot, num_tasks: int) -> DataFrame:
    """The rows of `plan_files`, by tasks that list, follow references, and a join."""
    repository = source.open_repository()
    handle = repository.handle

    def rows(keys: Sequence[str]) -> DataFrame:
        return from_arrow(spark, pa.table({"key": pa.array(keys, pa.string())}))

    def stage(made: DataFrame, items: int, work: Any, schema: pa.Schema) -> DataFrame:
        spread = made.repartition(min(num_tasks, max(items, 1)), "key")
        return map_batches(
            spread, partial(metadata_tables.file_task, work, source), spark_schema(schema)
        )

    folders = metadata_tables.prefixes(handle)
    listed = stage(rows(folders), len(folders), metadata_tables.list_files, metadata_tables.LISTED)
    ids = [info.id for info in all_snapshots(repository)]
    referred = stage(rows(ids), len(ids), metadata_tables.referred_files, metadata_tables.REFERRED)
    referred = referred.dropDuplicates(["key", "manifest_id"])
    manifests = referred.where("manifest_id is not null")
    chunks = stage(manifests, num_tasks, metadata_tables.chunk_keys, metadata_tables.KEYS)
    known = rows(metadata_tables.known_keys(repository))
    live = referred.select("key").union(chunks).union(known).distinct()
    live = live.withColumn("is_referenced", sf.lit(True))
    joined = listed.join(live, listed["path"] == live["key"], "left")
    return joined.select(
        *metadata_tables.LISTED.names,
        sf.coalesce("is_referenced", sf.lit(False)).alias("is_referenced"),
    )


def table(
    spark: SparkSession,
    repository: Repository | str,
    name: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    start_snapshot_id: str | None = None,
) -> DataFrame:
    """A table of metadata.

    ===========  ================================================================================
    `snapshots`  every snapshot, with its message, metadata and the refs that point at it
    `refs`       branches and tags
    `ops`        the operations log (spec version 2)
    `files`      every object with its size, and whether anything refers to it
    `history`    the ancestors of a ref, and what its branch left behind
    `nodes`      groups and arrays of a snapshot
    `manifests`  manifest files of a snapshot, and the arrays they hold
    `chunks`     every chunk reference of a snapshot; read by as many tasks as there are manifests
    `changes`    what every commit up to a ref did, a row a node or chunk
    ===========  ================================================================================

    The last five are about one ref, `main` unless it is given. `start_snapshot_id` lets `changes`
    begin after that snapshot. Snapshots, refs and the log are taken now, at this call.

    Args:
        spark: the session; `icefloe.spark.session()` makes one.
        repository: a `Repository`, or its URL.
        name: one of the names above.
        branch: `main` unless another ref is given.
        tag: the version, instead of a branch.
        snapshot_id: the version, instead of a branch.
        as_of: with a branch, its newest snapshot at that time.

    >>> icefloe.spark.table(spark, "weather", "snapshots").count()
    3
    """
    check_session(spark)
    metadata_tables.check_table(name)
    opened = as_repository(repository)
    ref = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    metadata_tables.check_ref(name, {**ref, "start_snapshot_id": start_snapshot_id})
    source = pin(opened, **ref)  # type: ignore[arg-type]
    tasks = parallelism(spark)
    if name == "files":
        return files_dataframe(spark, source, tasks)
    named = branch or (None if tag or snapshot_id else "main")
    scan = metadata_tables.plan_table(
        source, name, named, start=start_snapshot_id, min_partitions=tasks
    )
    return to_dataframe(spark, scan)


# Spark lets no Python package put tables into a catalog. Temporary views come close: they live as
# long as the session does, carry the credentials of the `Repository`, and are pinned to a
# snapshot.


@dataclass(slots=True, repr=False)
class Attached(Shown):
    """Views of a repository. `views` says what each of them shows.

    >>> views = icefloe.spark.attach(spark, "weather", "weather", branch="main")
    >>> views.detach()
    """

    name: str
    snapshot_id: str = ""
    views: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Groups and tables that have no view, each with the reason."""
    _spark: Any = field(default=None, repr=False)
    _repository: Repository | None = field(default=None, repr=False)
    _ref: dict[str, Any] = field(default_factory=dict, repr=False)

    def _picture_(self) -> Picture:
        views = Picture(counted(len(self.views), "view"), sorted(self.views.items()))
        fields: list[tuple[str, str | Picture]] = [
            ("name", self.name),
            ("snapshot", self.snapshot_id),
            ("views", views if self.views else "none"),
        ]
        if self.left_out:
            missing = sorted(self.left_out.items())
            fields.append(("left out", Picture(f"{len(missing)} without a view", missing)))
        return Picture(qualified("spark.Attached"), fields)

    def refresh(self) -> Attached:
        """Show what the ref stands for now; views of groups that are gone are dropped.

        >>> views = icefloe.spark.attach(spark, "weather", "weather", branch="main").refresh()
        """
        assert self._repository is not None
        source = pin(self._repository, **self._ref)
        has_name = self._ref["tag"] or self._ref["snapshot_id"]
        branch = self._ref["branch"] or (None if has_name else "main")
        planned = metadata_tables.plan_views(source, self.name, branch, parallelism(self._spark))
        for view in self.views.keys() - planned.titles.keys():
            self._spark.catalog.dropTempView(view)
        for view, scan in planned.scans.items():
            to_dataframe(self._spark, scan).createOrReplaceTempView(view)
        files = files_dataframe(self._spark, source, parallelism(self._spark))
        files.createOrReplaceTempView(planned.files)
        self.snapshot_id = source.snapshot_id
        self.views, self.left_out = planned.titles, planned.left_out
        return self

    def detach(self) -> None:
        """Drop the views.

        >>> icefloe.spark.attach(spark, "weather", "weather").detach()
        """
        for view in self.views:
            self._spark.catalog.dropTempView(view)
        self.views, self.left_out = {}, {}


def attach(
    spark: SparkSession,
    repository: Repository | str,
    name: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
) -> Attached:
    """Make temporary views of every group and every table of metadata.

        icefloe.spark.attach(spark, repo, "weather", branch="main")
        spark.sql("SELECT lat, avg(t2m) FROM weather_era5 GROUP BY lat")
        spark.sql("SELECT message FROM weather__snapshots")

    The cells of the root group are the view `name`, those of a group `a/b` are `name_a_b`. If the
    arrays of a group have several sets of dimensions, each set is a view, with the dimensions at
    the end of its name. Tables of metadata have two underscores: `name__snapshots`. Characters
    that SQL would want in quotes are underscores too. Views of these names are replaced.

    All views show one snapshot, that of the ref at this call; `refresh()` of what is returned
    moves them to where the ref is then, `detach()` drops them. Groups that have no columns in
    Spark are in `left_out`.

    Args:
        spark: the session; `icefloe.spark.session()` makes one.
        repository: a `Repository`, or its URL.
        branch: `main` unless another ref is given.
        tag: the version, instead of a branch.
        snapshot_id: the version, instead of a branch.
        as_of: with a branch, its newest snapshot at that time.

    Raises:
        InvalidInputError: the name is none, or two views would have the same name.

    >>> views = icefloe.spark.attach(spark, "weather", "weather")
    >>> spark.sql("SELECT count(*) FROM weather").first()[0]
    256
    """
    check_session(spark)
    given: Any = name
    if not isinstance(given, str) or not re.fullmatch(r"[A-Za-z_]\w*", given, re.ASCII):
        raise InvalidInputError(
            f"name is {given!r:.80}, expected letters, digits and underscores, such as 'weather'"
        )
    ref = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    made = Attached(name, _spark=spark, _repository=as_repository(repository), _ref=ref)
    return made.refresh()
