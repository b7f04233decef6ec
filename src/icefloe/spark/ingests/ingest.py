"""`ingest`: files become a group of a repository, by a Spark job and one commit.

Executors scan the sources, the driver plans from what they describe, and executors copy the values
or place the references. The plan is that of `icefloe.virtual`, so the result is the one that
the local engine has; only the work is spread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from icefloe.api.repository import Repository
from icefloe.errors import InvalidInputError
from icefloe.scans.pinned import require_shared
from icefloe.spark.ingests.spark_engine import SparkEngine
from icefloe.spark.reads.reading import check_session
from icefloe.virtual.ingest.destination import Destination
from icefloe.virtual.ingest.fields import check_fields
from icefloe.virtual.ingest.recipe import load_recipe
from icefloe.virtual.ingest.report import IngestReport
from icefloe.virtual.ingest.request import IngestArguments, OnError, make_request
from icefloe.virtual.ingest.run_ingest import run_ingest
from icefloe.virtual.places.access import SourceAccess
from icefloe.virtual.places.globs import Sources
from icefloe.virtual.planning.plan import Mode

_COLUMNS = ("path", "location")


def ingest(
    spark: SparkSession,
    sources: Sources | DataFrame,
    repository: Repository | str | os.PathLike[str],
    *,
    group: str = "",
    branch: str | None = None,
    concat_dim: str | Sequence[str] | None = None,
    variables: Sequence[str] | None = None,
    chunks: Mapping[str, int] | None = None,
    mode: Mode | None = None,
    append: bool = False,
    order: str | None = None,
    late: Literal["fail", "insert"] = "fail",
    changed: Literal["fail", "replace", "skip"] = "fail",
    exclude: str | Sequence[str] = (),
    preprocess: Callable[[Any], Any] | None = None,
    on_error: OnError = "fail",
    message: str | None = None,
    access: SourceAccess | Mapping[str, Any] | None = None,
    create: bool = True,
    add_containers: bool = False,
    num_tasks: int | None = None,
) -> IngestReport:
    """`icefloe.ingest` on the executors of a Spark session; it says what all arguments mean.

    Args:
        sources: paths, URLs or patterns of files and Zarr stores, or a DataFrame with a column
            `path` or `location`. Executors have to reach them under the same names.
        repository: a repository, or its path or URL, with `@branch` if it is not `main`.
        num_tasks: how many tasks each Spark job has; follows the work when None.
        spark: the session; `icefloe.spark.session()` makes one.

    Raises:
        InvalidInputError: files cannot be read or do not fit together; every one is named with its
            reason, and nothing was committed.
        AlreadyExistsError: the group has arrays and `append` is not set.
        RepositoryNotFoundError: there is no repository, and `create` is False.
        RebaseFailedError: another writer changed the same arrays meanwhile; nothing was committed,
            run it again.
    """
    arguments: IngestArguments = {
        "group": group,
        "branch": branch,
        "concat_dim": concat_dim,
        "variables": variables,
        "chunks": chunks,
        "mode": mode,
        "append": append,
        "order": order,
        "late": late,
        "changed": changed,
        "exclude": exclude,
        "preprocess": preprocess,
        "on_error": on_error,
        "message": message,
        "access": access,
    }
    check_fields({"num_tasks": num_tasks})
    destination = Destination.of(repository, create=create, add_containers=add_containers)
    return run_on_spark(spark, sources, destination, arguments, num_tasks)


def run_on_spark(
    spark: SparkSession,
    sources: Sources | DataFrame,
    destination: Destination,
    arguments: IngestArguments,
    num_tasks: int | None,
) -> IngestReport:
    """An ingest by this session, whose arguments may be wrong still."""
    require_shared(destination.storage)
    request = make_request(_given(sources), destination, arguments)
    check_session(spark)
    return run_ingest(SparkEngine(spark, request.access, num_tasks), request)


def run_recipe(spark: SparkSession, recipe: str | os.PathLike[str]) -> IngestReport:
    """Do what a recipe says; see `icefloe.load_recipe` and `ingest`.

    Args:
        spark: the session; `icefloe.spark.session()` makes one.
    """
    fields = load_recipe(recipe)
    return ingest(spark, fields.pop("sources"), fields.pop("repository"), **fields)


def _given(sources: Any) -> Sources:
    """Sources as `list_sources` takes them; those of a frame are collected."""
    if isinstance(sources, str | os.PathLike):
        return sources
    if hasattr(sources, "mapInArrow"):  # a frame, also one of Spark Connect
        names = [name for name in _COLUMNS if name in sources.columns]
        if not names:
            raise InvalidInputError(
                f"sources has the columns {sources.columns}, expected `path` or `location`"
            )
        rows = sources.select(names[0]).toArrow()[names[0]].to_pylist()
        return _texts(rows)
    if isinstance(sources, Sequence) and not isinstance(sources, bytes):
        return _texts(sources)
    raise InvalidInputError(
        f"sources is a {type(sources).__name__}, expected a path, a URL, a pattern, a list of "
        "them, or a DataFrame with a column `path` or `location`"
    )


def _texts(items: Sequence[Any]) -> list[str | os.PathLike[str]]:
    for at, item in enumerate(items):
        if not isinstance(item, str | os.PathLike) or not os.fspath(item):
            raise InvalidInputError(f"sources[{at}] is {item!r:.80}, expected a path or a URL")
    return list(items)
