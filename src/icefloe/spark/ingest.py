"""`ingest`: files become a group of a repository, by a Spark job and one commit.

Executors scan the sources, the driver plans from what they describe, and executors copy the values
or place the references. The plan is that of `icefloe.virtual`, so the result is the one that
`ingest_local` has; only the work is spread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.changes.solvers import ConflictDetector
from icefloe.errors import InvalidInputError
from icefloe.spark.ingest_copy import copy
from icefloe.spark.ingest_fields import check_fields
from icefloe.spark.ingest_refer import refer, require_containers
from icefloe.spark.ingest_scan import descriptions_of, digest_all, scan_frame
from icefloe.spark.reading import check_session
from icefloe.spark.source import as_repository
from icefloe.virtual.access import SourceAccess
from icefloe.virtual.comparing import digest_existing, with_digests
from icefloe.virtual.globs import Sources, list_sources
from icefloe.virtual.ingest import known_to, make_options, require_group
from icefloe.virtual.ledger import add_to_ledger
from icefloe.virtual.plan import IngestPlan, Mode, Problem
from icefloe.virtual.planning import plan_ingest
from icefloe.virtual.transfer import write_metadata, write_values

_COLUMNS = ("path", "location")


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest did."""

    snapshot_id: str | None
    """The commit; None when nothing had to change."""
    files_added: int
    files_skipped: int
    """Files that are in the group already, from an earlier ingest."""
    files_failed: int
    """Files left out, with `on_error="skip"`; `problems` has the reasons."""
    chunks_written: int
    bytes_written: int
    refs_written: int
    seconds: float
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    """Arrays that were copied in virtual mode, and why."""


def ingest(
    spark: SparkSession,
    sources: Sources | DataFrame,
    repository: Repository | str,
    *,
    group: str = "",
    branch: str = "main",
    concat_dim: str | Sequence[str] | None = None,
    variables: Sequence[str] | None = None,
    chunks: Mapping[str, int] | None = None,
    mode: Mode = "native",
    append: bool = False,
    on_error: Literal["fail", "skip"] = "fail",
    message: str | None = None,
    access: SourceAccess | None = None,
) -> IngestReport:
    """Bring NetCDF, HDF5, GRIB and Zarr files into a group of a repository, in one commit.

    Files are joined along `concat_dim` in the order of their coordinate values; variables of
    different files are merged. Values are stored as the files have them, with the attributes that
    say what they mean. With `append`, files that the group was made of already add nothing, so
    an ingest can be run again at any time, also after one that was interrupted.

    Args:
        sources: paths, URLs or patterns of files and Zarr stores, or a DataFrame with a column
            `path` or `location`. Executors have to reach them under the same names.
        repository: a repository, or its URL.
        concat_dim: the dimension, or dimensions, files follow each other along; found out by
            comparing coordinates when None.
        variables: names of variables to bring over, with their coordinates; all when None.
        chunks: chunk lengths by dimension name, for native mode.
        mode: `native` copies the values, `virtual` stores references to the files, for which
            the repository needs a virtual chunk container.
        append: add to the group, which then has to fit.
        on_error: `fail` if any file cannot be read or does not fit, or `skip` it and list it in
            the report. Files that turn out to be damaged while they are copied cost a second
            pass over the others.
        access: how remote sources are reached.

    Raises:
        InvalidInputError: files cannot be read or do not fit together; every one is named with its
            reason, and nothing was committed.
        AlreadyExistsError: the group has arrays and `append` is not set.
        RebaseFailedError: somebody else changed the same arrays meanwhile; nothing was committed,
            run it again.
    """
    check_fields(
        {
            "group": group,
            "branch": branch,
            "concat_dim": concat_dim,
            "variables": variables,
            "chunks": chunks,
            "mode": mode,
            "append": append,
            "on_error": on_error,
            "message": message,
        }
    )
    started = time.monotonic()
    options = make_options(
        group=group, concat_dim=concat_dim, variables=variables, chunks=chunks, mode=mode
    )
    reach = access or SourceAccess()
    session = as_repository(repository).writable_session(branch)
    existing = require_group(session.store, options, append=append)
    locations = list_sources(_given(sources), reach)
    check_session(spark)
    scanned = scan_frame(spark, locations, options, reach, known_to(existing))
    try:
        found, problems = descriptions_of(scanned, locations)
        while True:
            plan = plan_ingest(found, options, existing, problems)
            if on_error == "fail":
                plan.raise_problems()
            if plan.uncompared:
                digests, damaged = digest_all(spark, plan, reach)
                found = with_digests(found, digests)
                wanted = list(plan.uncompared)
                existing = digest_existing(session.store, options.group, existing, wanted)
            else:
                counts, damaged = _run(spark, session, plan, scanned, reach)
                if not damaged:
                    break
                # The others may go elsewhere without these, so that everything is done anew.
                session.discard_changes()
            found = [source for source in found if source.location not in damaged]
            problems += [Problem(location, reason) for location, reason in damaged.items()]
        snapshot_id = None
        if plan.arrays:
            snapshot_id = session.commit(
                message or f"ingested {len(plan.sources)} files",
                rebase_with=ConflictDetector(),
            )
    finally:
        if options.mode == "virtual":
            scanned.unpersist()
    return IngestReport(
        snapshot_id,
        len(plan.sources) if plan.arrays else 0,
        len(plan.unchanged),
        len(plan.problems),
        *counts,
        time.monotonic() - started,
        plan.problems,
        plan.notes,
    )


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


def _run(
    spark: SparkSession,
    session: Session,
    plan: IngestPlan,
    scanned: DataFrame,
    access: SourceAccess,
) -> tuple[tuple[int, int, int], dict[str, str]]:
    """Everything but the commit: chunks and bytes written, references set; and damaged files."""
    if not plan.arrays:
        return (0, 0, 0), {}
    require_containers(session, plan)
    write_metadata(session.store, plan)
    copied, damaged = copy(spark, session, plan, access)
    if damaged:
        return (0, 0, 0), damaged
    references, stored, size = 0, 0, 0
    if plan.options.mode == "virtual":
        references, stored, size = refer(spark, session, plan, scanned)
    for array in plan.arrays:
        if array.storage == "values":
            write_values(session.store, array)
    add_to_ledger(session.store, plan.options.group, plan.sources)
    return (copied.chunks_written + stored, copied.bytes_written + size, references), {}
