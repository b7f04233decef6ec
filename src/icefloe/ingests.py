"""`ingest`: files and Zarr stores become arrays of a repository, in one process or on Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from icefloe.api.repository import Repository
from icefloe.errors import InvalidInputError
from icefloe.maintenance.progress import Report, Reporter
from icefloe.virtual.ingest.destination import Destination
from icefloe.virtual.ingest.request import OnError, check_fields, ingest_arguments, make_request
from icefloe.virtual.ingest.run_ingest import IngestReport, LocalEngine, run_ingest
from icefloe.virtual.planning.plan import Mode
from icefloe.virtual.sources import SourceAccess, Sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Engine = Literal["local", "spark"]


def ingest(
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
    progress: Report | None = None,
    engine: Engine = "local",
    spark: SparkSession | None = None,
    num_tasks: int | None = None,
) -> IngestReport:
    """Bring NetCDF, HDF5, GRIB, Zarr and kerchunk sources into a group, in one commit.

        icefloe.ingest("archive/*.nc", "weather")

    Files are joined along `concat_dim` in the order of their coordinate values; variables of
    different files are merged. Values are stored as the files have them, with the attributes that
    say what they mean. With `append`, files that the group was made of already add nothing, so
    an ingest can be run again at any time, also after one that was interrupted.

    `append` goes on as the first ingest into the group was told: `mode`, `concat_dim`, `variables`,
    `chunks` and `order` are what they were then, unless they are named.

    Args:
        sources: paths, URLs or patterns of files and Zarr stores. On Spark also a DataFrame with
            a column `path` or `location`; executors have to reach sources under the same names.
        repository: a repository, or its path or URL, with `@branch` if it is not `main`.
        group: the group to fill; the root unless given.
        branch: the branch to commit to; `main` unless given.
        concat_dim: the dimension, or dimensions, files follow each other along; found out by
            comparing coordinates when None. One that no file has becomes a new dimension, with
            one step for each file.
        variables: names of variables to bring over, with their coordinates; all when None.
        chunks: chunk lengths by dimension name, for native mode. Arrays that are there keep theirs.
        mode: `native` copies the values, `virtual` stores references to the files, for which
            the repository needs a virtual chunk container. When None, a group goes on in the mode
            it was made in, and a new one is native.
        append: add to the group, which then has to fit.
        order: where the places of files come from: their `coordinates` (the default); the order
            in which they are `listed`; or their names, by a pattern with the dimension in braces,
            such as `"run_{time_counter}_*.nc"` (`*` and `?` stand for anything else).
        late: what becomes of files that belong before the end of the group, or into a gap of it:
            `insert` puts them there. What comes after moves: by index alone where chunks stay
            whole, else it is copied. Places that have values already are never overwritten.
        changed: what becomes of files that changed since they were ingested: `replace` writes
            them again at the same place, `skip` leaves what is there.
        exclude: patterns of sources to leave out; one without a slash is about the file name.
        preprocess: a function from an xarray Dataset to an xarray Dataset, for native mode. It
            runs where the work is done, for each file, and gets what the file stores, nothing
            decoded (as `xarray.open_dataset(..., decode_cf=False)`); the location is in
            `dataset.encoding["source"]`.
        on_error: `fail` if any file cannot be read or does not fit; `skip` it and list it in the
            report; or `quarantine` it, which also keeps it in the table `.icefloe/problems` of
            the group until a later ingest brings it over. Files that turn out to be damaged while
            they are copied cost a second pass over the others.
        message: the message of the commit.
        access: how remote sources are reached, such as `{"anonymous": True}`.
        create: create the repository where a path or URL names an empty place. An ingest that is
            refused creates none.
        add_containers: save the virtual chunk containers that virtual mode needs and the
            repository does not have. A repository that is created here always gets them.
        progress: called with the stage and its progress by the local engine. Without it, a
            terminal shows a bar.
        engine: `local` works in this process, `spark` on the executors of a Spark session.
        spark: the Spark session; `icefloe.spark.session()` unless given.
        num_tasks: how many tasks each Spark job has; follows the work when None.

    Raises:
        InvalidInputError: files cannot be read or do not fit together; every one is named with its
            reason, and nothing was committed.
        AlreadyExistsError: the group has arrays and `append` is not set.
        RepositoryNotFoundError: there is no repository, and `create` is False.
        RebaseFailedError: other writers changed the same arrays again and again; nothing was
            committed, run it again.

    >>> report = icefloe.ingest("*.nc", "archive", concat_dim="time")
    >>> icefloe.Repository.open(icefloe.storage_from_url("archive")).to_xarray()["t2m"].shape
    (62, 8, 8)
    """
    arguments = ingest_arguments(locals())
    if engine not in ("local", "spark"):
        raise InvalidInputError(f"engine is {engine!r}, expected 'local' or 'spark'")
    if engine == "local" and (spark is not None or num_tasks is not None):
        raise InvalidInputError("spark and num_tasks are for engine='spark'")
    check_fields({"num_tasks": num_tasks})
    if engine == "spark":
        # Not at the top: an extra that other engines do without.
        from icefloe.spark import ingest_engine, start

        return ingest_engine.ingest(
            spark or start.session(),
            sources,
            repository,
            create=create,
            add_containers=add_containers,
            num_tasks=num_tasks,
            **arguments,
        )
    files: Any = sources
    if hasattr(files, "mapInArrow"):
        raise InvalidInputError("sources is a DataFrame of Spark, which needs engine='spark'")
    destination = Destination.of(repository, create=create, add_containers=add_containers)
    request = make_request(files, destination, arguments)
    return run_ingest(LocalEngine(request.access, Reporter(progress)), request)
