"""`sql`: a query over arrays and tables of metadata."""

from __future__ import annotations

from typing import Any

import click

from icefloe.api.repository import Repository
from icefloe.cli.common import (
    Output,
    Target,
    all_option,
    allow_virtual_option,
    output_option,
    plain,
    repository_argument,
    table_text,
)
from icefloe.cli.embedded_sql import (
    ABOUT_NODES,
    NAME,
    QueryResult,
    TooLargeError,
    run_query,
    stored_value,
    views_of,
)
from icefloe.display.shown import counted
from icefloe.errors import InvalidInputError, check_text
from icefloe.paths import INTERNAL_GROUP
from icefloe.scans.metadata.tables import TABLES
from icefloe.scans.metadata.views import PlannedViews
from icefloe.scans.pinned import PinnedSnapshot, pin


@click.command()
@repository_argument
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
@output_option
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
    repo = target.repo.reopen(None, allowed) if allowed else target.repo
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
    output.show(value, lambda: _table(answer))


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
    from icefloe.spark import attach, session  # noqa: PLC0415 - needs pyspark
    from icefloe.spark.runtime.spark_session import SparkFailure  # noqa: PLC0415

    spark = session(master)
    attached = attach(spark, repo, NAME, snapshot_id=source.snapshot_id)
    for view in () if show_all else ABOUT_NODES & attached.views.keys():
        shown = f"NOT array_contains(split(path, '/'), '{INTERNAL_GROUP}')"
        spark.table(view).where(shown).createOrReplaceTempView(view)
    try:
        found = spark.sql(query).toArrow()
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

    def text() -> str:
        rows = [[name, str(one["shows"]), ", ".join(one["columns"])] for name, one in views.items()]
        left_out = [f"{title} is left out: {why}" for title, why in planned.left_out.items()]
        return "\n".join([table_text(["table", "shows", "columns"], rows, "<<<"), *left_out])

    output.show(plain(value), text)
