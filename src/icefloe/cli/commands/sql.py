"""`icefloe sql`: queries over arrays and metadata tables, without Spark."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import prod
from typing import Any, NamedTuple

import click
import pyarrow as pa

from icefloe.api.repository import Repository
from icefloe.cli.common import (
    Output,
    RepositoryCommand,
    Target,
    all_option,
    allow_virtual_option,
    table_text,
)
from icefloe.cli.program import did_you_mean
from icefloe.display import counted
from icefloe.errors import FormatError, InvalidInputError, check_text
from icefloe.paths import INTERNAL_GROUP, is_internal
from icefloe.scans.cells import Cells
from icefloe.scans.metadata_tables import TABLES, PlannedViews, add_groups, plan_table
from icefloe.scans.scan import PinnedSnapshot, Scan, pin

# -- SQL on small data in this process, by the SQLite that Python comes with.
#
# Only the tables that a query names are read, into memory, up to a number of rows. Values that
# SQLite has no type for are text: times in ISO form, lists and maps as JSON.


NAME = "data"
"""Of the view of the root group, and what all others begin with."""
ABOUT_NODES = {f"{NAME}__{table}" for table in ("nodes", "chunks", "changes")}
"""Tables whose rows have the `path` of a node."""
MAX_ROWS = 1_000_000
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


class QueryResult(NamedTuple):
    """The result of a query."""

    columns: list[str]
    rows: list[list[Any]]
    engine: str


class TooLargeError(InvalidInputError):
    """A table has more rows than this process should take."""


def views_of(source: PinnedSnapshot, *, show_all: bool = False) -> PlannedViews:
    """The views of groups, with `show_all` also those of icefloe's own tables.

    Those of tables are planned when a query names them.
    """
    planned = PlannedViews(f"{NAME}__files")
    add_groups(planned, source, NAME, 1, with_internal=show_all)
    for table in TABLES:
        planned.add(f"{NAME}__{table}", f"table {table}")
    return planned


def run_query(
    query: str,
    source: PinnedSnapshot,
    branch: str | None,
    planned: PlannedViews,
    *,
    show_all: bool = False,
) -> QueryResult:
    """Run a query here. Rows about icefloe's own tables are left out unless `show_all` is set.

    Raises:
        TooLargeError: a table that it names has too many rows.
        InvalidInputError: SQLite does not understand it, or it does not only read.
    """
    named = set(re.findall(r"\w+", query.lower()))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        for view in planned.titles:
            if view.lower() in named:
                is_about_nodes = not show_all and view in ABOUT_NODES
                scan = _scan(view, source, branch, planned)
                _load(database, view, scan, drop_internal=is_about_nodes)
        database.set_authorizer(_only_reads)
        try:
            cursor = database.execute(query)
            rows = [list(row) for row in cursor]
        except sqlite3.Error as error:
            raise _explained(error, planned.titles) from error
        columns = [column[0] for column in cursor.description or ()]
    return QueryResult(columns, rows, f"SQLite {sqlite3.sqlite_version}, in this process")


def _scan(view: str, source: PinnedSnapshot, branch: str | None, planned: PlannedViews) -> Scan:
    scan = planned.scans.get(view)
    if scan is None:
        try:
            scan = plan_table(source, view.removeprefix(f"{NAME}__"), branch, min_partitions=1)
        except FormatError as error:
            raise InvalidInputError(f"{view}: {error.message}") from error
    if isinstance(scan, Cells) and prod(axis.length for axis in scan.axes) > MAX_ROWS:
        raise _too_large(view)
    return scan


def _load(database: sqlite3.Connection, view: str, scan: Scan, *, drop_internal: bool) -> None:
    names = ", ".join(f'"{name}"' for name in scan.schema.names)
    database.execute(f'CREATE TABLE "{view}" ({names})')
    marks = ", ".join("?" * len(scan.schema.names))
    number = 0
    for partition in range(scan.num_partitions):
        for batch in scan.read(partition):
            number += batch.num_rows
            if number > MAX_ROWS:
                raise _too_large(view)
            shown = _without_internal(batch) if drop_internal else batch
            rows = zip(*map(_stored, shown.columns), strict=True)
            database.executemany(f'INSERT INTO "{view}" VALUES ({marks})', rows)


def _without_internal(batch: pa.RecordBatch) -> pa.RecordBatch:
    shown = [not is_internal(path) for path in batch.column("path").to_pylist()]
    return batch.filter(pa.array(shown, pa.bool_()))


def _stored(column: pa.Array) -> Iterable[Any]:
    values: list[Any] = column.to_pylist()
    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return values
    return map(stored_value, values)


def stored_value(value: Any) -> Any:
    """A value as SQLite has it, and as JSON has it too, but for bytes."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if _SMALLEST <= value <= _LARGEST else str(value)
    if value is None or isinstance(value, float | str | bytes):
        return value
    if isinstance(value, datetime | date):
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        value = dict(value)  # a map, as Arrow hands it out
    return json.dumps(value, default=str)


_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def _only_reads(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _too_large(view: str) -> TooLargeError:
    return TooLargeError(
        f"{view} has more than {MAX_ROWS:,} rows, too many for SQLite in this process; use "
        "--engine spark"
    )


def _explained(error: sqlite3.Error, views: Mapping[str, str]) -> InvalidInputError:
    text = str(error)
    missing = re.fullmatch(r"no such table: (\S+)", text)
    if missing is not None:
        hint = did_you_mean(missing[1], views) or did_you_mean(f"{NAME}__{missing[1]}", views)
        text += f".{hint} `icefloe sql REPOSITORY` without a query lists them all"
        if INTERNAL_GROUP.removeprefix(".") in missing[1]:
            text += ", and --all icefloe's own, too"
    elif text == "not authorized":
        text = "a query may only read; expected SELECT"
    return InvalidInputError(f"{text} (SQLite)")


@click.command(cls=RepositoryCommand)
@click.argument("query", required=False)
@click.option(
    "--engine",
    type=click.Choice(["auto", "sqlite", "spark"]),
    default="auto",
    show_default=True,
    help="SQLite in this process, or Spark; auto takes Spark where data is large.",
)
@click.option("--master", metavar="URL", help="The Spark master, such as local[4].")
@allow_virtual_option
@all_option
def sql(
    target: Target,
    query: str | None,
    engine: str,
    master: str | None,
    allowed: dict[str, Any],
    show_all: bool,
    output: Output,
) -> None:
    """Ask a question in SQL about one version: its arrays, and what the repository knows.

    The cells of the root group are the table `data`, those of a group a/b are `data_a_b`, and
    `data__snapshots`, `data__chunks` and others are about the repository. Without a QUERY all
    tables are listed.

    \b
        icefloe sql weather "SELECT lat, avg(t2m) FROM data GROUP BY lat"
        icefloe sql weather "SELECT message FROM data__snapshots ORDER BY committed_at"
    """
    repo = target.repo_with(allowed)
    ref: dict[str, Any] = target.ref
    source = pin(repo, **ref)
    planned = views_of(source, show_all=show_all)
    if query is None:
        _list(planned, output)
        return
    check_text(query, "QUERY")
    answer = None
    if engine != "spark":
        try:
            answer = run_query(query, source, ref.get("branch"), planned, show_all=show_all)
        except TooLargeError:
            if engine == "sqlite":
                raise
    if answer is None:
        answer = _on_spark(query, repo, source, master, show_all=show_all)
    value = {"engine": answer.engine, "columns": answer.columns, "rows": answer.rows}
    click.echo(f"{counted(len(answer.rows), 'row')}, by {answer.engine}", err=True)
    output.show(value, _table(answer))


def _table(answer: QueryResult) -> str:
    rows = [["" if cell is None else str(cell) for cell in row] for row in answer.rows]
    sides = "".join(
        ">" if any(isinstance(cell, int | float) for cell in column) else "<"
        for column in (zip(*answer.rows, strict=True) if answer.rows else answer.columns)
    )
    return table_text(answer.columns, rows, sides)


def _on_spark(
    query: str, repo: Repository, source: PinnedSnapshot, master: str | None, *, show_all: bool
) -> QueryResult:
    from icefloe.spark import session

    spark = session(master)
    from icefloe.spark import attach

    attached = attach(spark, repo, NAME, snapshot_id=source.snapshot_id)
    for view in () if show_all else ABOUT_NODES & attached.views.keys():
        shown = f"NOT array_contains(split(path, '/'), '{INTERNAL_GROUP}')"
        spark.table(view).where(shown).createOrReplaceTempView(view)
    from icefloe.spark.start import SparkFailure
    from icefloe.spark.versions import to_arrow

    try:
        found = to_arrow(spark.sql(query))
    except SparkFailure as error:
        raise InvalidInputError(f"{str(error).splitlines()[0]} (Spark)") from error
    columns = [[stored_value(value) for value in column.to_pylist()] for column in found.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return QueryResult(found.column_names, rows, f"Spark {spark.version}")


def _list(planned: PlannedViews, output: Output) -> None:
    views = {
        name: {
            "shows": title,
            "columns": planned.scans[name].schema.names
            if name in planned.scans
            else TABLES[title.removeprefix("table ")].names,
        }
        for name, title in planned.titles.items()
    }
    value = {"views": views, "left_out": planned.left_out}
    rows = [[name, str(one["shows"]), ", ".join(one["columns"])] for name, one in views.items()]
    left_out = [f"{title} is left out: {why}" for title, why in planned.left_out.items()]
    output.show(value, [table_text(["table", "shows", "columns"], rows, "<<<"), *left_out])
