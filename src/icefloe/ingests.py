"""`ingest`: files and Zarr stores become arrays of a repository, in one process or on Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from icefloe.api.addresses import Address, parse_address
from icefloe.api.repository import Repository
from icefloe.errors import ErrorKind, InvalidInputError, RepositoryNotFoundError
from icefloe.maintenance.progress import Report, Reporter
from icefloe.on_demand import on_demand
from icefloe.storage.constructors.urls import storage_from_url
from icefloe.virtual.ingest.fields import check_fields
from icefloe.virtual.ingest.local_engine import LocalEngine
from icefloe.virtual.ingest.report import IngestReport
from icefloe.virtual.ingest.request import IngestArguments, make_request
from icefloe.virtual.ingest.run_ingest import run_ingest
from icefloe.virtual.places.access import SourceAccess, absolute_location, local_path
from icefloe.virtual.places.globs import Sources
from icefloe.virtual.places.source_containers import container_for, containers_of
from icefloe.virtual.planning.plan import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icefloe.spark.ingests import ingest as on_spark
    from icefloe.spark.runtime import spark_session
else:
    on_spark = on_demand("icefloe.spark.ingests.ingest")
    spark_session = on_demand("icefloe.spark.runtime.spark_session")

Engine = Literal["local", "spark"]


def ingest(
    sources: Sources | DataFrame,
    repository: Repository | str | os.PathLike[str],
    *,
    engine: Engine = "local",
    spark: SparkSession | None = None,
    num_tasks: int | None = None,
    create: bool = True,
    add_containers: bool = False,
    progress: Report | None = None,
    **arguments: Unpack[IngestArguments],
) -> IngestReport:
    """Bring NetCDF, HDF5, GRIB, Zarr and kerchunk sources into a group, in one commit.

        icefloe.ingest("archive/*.nc", "weather")

    Files are joined along `concat_dim` in the order of their coordinate values; variables of
    different files are merged. Values are stored as the files have them, with the attributes that
    say what they mean. With `append`, files that the group was made of already add nothing, so
    an ingest can be run again at any time, also after one that was interrupted.

    Args:
        sources: paths, URLs or patterns of files and Zarr stores. On Spark also a DataFrame with
            a column `path` or `location`; executors have to reach sources under the same names.
        repository: a repository, or its path or URL, with `@branch` if it is not `main`.
        engine: `local` works in this process, `spark` on the executors of a Spark session.
        spark: the Spark session; `icefloe.spark.session()` unless given.
        num_tasks: how many tasks each Spark job has; follows the work when None.
        create: create a repository where a path or URL names an empty place.
        add_containers: save the virtual chunk containers that virtual mode needs and the
            repository does not have. A repository that is created here always gets them.
        progress: called with the stage and its progress by the local engine. Without it, a
            terminal shows a bar.
        group: the group to fill; the root unless given.
        branch: the branch to commit to; `main` unless given.
        concat_dim: the dimension, or dimensions, files follow each other along; found out by
            comparing coordinates when None.
        variables: names of variables to bring over, with their coordinates; all when None.
        chunks: chunk lengths by dimension name, for native mode.
        mode: `native` copies the values, `virtual` stores references to the files, for which
            the repository needs a virtual chunk container.
        append: add to the group, which then has to fit.
        order: where the places of files come from: their `coordinates`; the order in which they
            are `listed`; or their names, by a pattern with the dimension in braces, such as
            `"run_{time_counter}_*.nc"` (`*` and `?` stand for anything else).
        late: what becomes of files that belong before the end of the group, or into a gap of it:
            `insert` puts them there. What comes after moves: by index alone where chunks stay
            whole, else it is copied. Places that have values already are never overwritten.
        changed: what becomes of files that changed since they were ingested: `replace` writes
            them anew at the same place, `skip` leaves what is there.
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

    Raises:
        InvalidInputError: files cannot be read or do not fit together; every one is named with its
            reason, and nothing was committed.
        AlreadyExistsError: the group has arrays and `append` is not set.
        RepositoryNotFoundError: there is no repository, and `create` is False.
        RebaseFailedError: another writer changed the same arrays meanwhile; nothing was committed,
            run it again.
    """
    if engine not in ("local", "spark"):
        raise InvalidInputError(f"engine is {engine!r}, expected 'local' or 'spark'")
    if engine == "local" and (spark is not None or num_tasks is not None):
        raise InvalidInputError("spark and num_tasks are for engine='spark'")
    check_fields({"num_tasks": num_tasks})
    found: Any = repository
    if not isinstance(repository, Repository):
        address = parse_address(os.fspath(repository))
        arguments = _on_branch(address, arguments)
        found = partial(_repository_at, address, create, add_containers)
    elif add_containers:
        found = partial(_prepared, repository, True)
    if engine == "spark":
        session = spark or spark_session.session()
        return on_spark.run_on_spark(session, sources, found, arguments, num_tasks)
    request = make_request(_plain(sources), found, arguments)
    return run_ingest(LocalEngine(request.access, Reporter(progress)), request)


def _on_branch(address: Address, arguments: IngestArguments) -> IngestArguments:
    if address.ref is None:
        return arguments
    if "branch" in arguments:
        raise InvalidInputError(
            f"{address.url}@{address.ref} names a branch, and branch is "
            f"{arguments['branch']!r}; give one of them"
        )
    return {**arguments, "branch": address.ref.removeprefix("branch.")}


def _plain(sources: Any) -> Sources:
    if hasattr(sources, "mapInArrow"):
        raise InvalidInputError("sources is a DataFrame of Spark, which needs engine='spark'")
    return sources  # type: ignore[no-any-return]


def _repository_at(
    address: Address,
    create: bool,
    add_containers: bool,
    locations: Sequence[str],
    access: SourceAccess,
    mode: Mode,
) -> Repository:
    """The repository at an address, or a new one, able to hold what it will be asked to."""
    path = local_path(absolute_location(address.url))
    if path is not None and path.is_file():
        raise InvalidInputError(
            f"the repository is {address.url}, which is a file; sources come first, the repository "
            "last: ingest(sources, repository)"
        )
    storage = storage_from_url(address.url)
    try:
        found = Repository.open(storage)
    except RepositoryNotFoundError:
        if not create:
            raise
        _require_some(locations)
        found = Repository.create(storage)
        add_containers = True
    return _prepared(found, add_containers, locations, access, mode)


def _prepared(
    repository: Repository,
    add_containers: bool,
    locations: Sequence[str],
    access: SourceAccess,
    mode: Mode,
) -> Repository:
    """In virtual mode, the repository with its containers authorised for these sources.

    Whoever names sources allows that they are read, so the containers that hold them may be read
    too: coordinates that are appended to may be virtual.
    """
    if mode != "virtual":
        return repository
    virtual = repository.handle.assets.virtual.access
    prefixes, missing = set(), []
    for location in locations:
        try:
            prefixes.add(virtual.containers.resolve(location).container.url_prefix)
        except InvalidInputError:
            missing.append(location)
    used = [container_for(prefix, access) for prefix in prefixes]
    config = repository.config
    if missing and add_containers:
        added = containers_of(missing, access)
        new = {one.container.url_prefix: one.container for one in added}
        known = config.virtual_chunk_containers or {}
        config = replace(config, virtual_chunk_containers={**known, **new})
        used += added
    wanted = {one.container.url_prefix: one.credential for one in used}
    reopened = repository.reopen(config, {**wanted, **virtual.authorizations})
    if config is not repository.config:
        reopened.save_config()
    return reopened


def _require_some(locations: Sequence[str]) -> None:
    """A repository is not created for files that are not there."""
    paths = [local_path(location) for location in locations]
    if all(path is not None and not path.exists() for path in paths):
        raise InvalidInputError(
            f"{locations[0]}: there is no such file", ErrorKind.OBJECT_NOT_FOUND
        )
