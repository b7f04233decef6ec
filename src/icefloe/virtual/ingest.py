"""An ingest in one process: scan, plan, copy or refer, commit.

The same plan runs on a cluster; this is the plain loop that says what the result has to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from zarr.abc.store import Store

from icefloe import paths
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.store.zarr_store import IcechunkStore
from icefloe.virtual.access import SourceAccess
from icefloe.virtual.chunk_copy import copy_region
from icefloe.virtual.comparing import (
    Digests,
    digest_existing,
    digest_file,
    files_to_read,
    with_digests,
)
from icefloe.virtual.description import SourceDescription
from icefloe.virtual.existing import describe_existing
from icefloe.virtual.formats import NativeReader, look_at, scan
from icefloe.virtual.globs import Sources, list_sources
from icefloe.virtual.ledger import add_to_ledger
from icefloe.virtual.open_files import OpenFiles, collecting, reason_of
from icefloe.virtual.plan import ArrayPlan, IngestOptions, IngestPlan, Mode, Problem
from icefloe.virtual.planning import Existing, plan_ingest
from icefloe.virtual.transfer import (
    placed_references,
    write_metadata,
    write_references,
    write_values,
)


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingest did. `snapshot_id` is None when there was nothing new."""

    snapshot_id: str | None
    num_sources: int
    unchanged: tuple[str, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


def make_options(
    *,
    group: str = "",
    concat_dim: str | Sequence[str] | None = None,
    variables: Sequence[str] | None = None,
    chunks: Mapping[str, int] | None = None,
    mode: Mode = "native",
) -> IngestOptions:
    """Options as a user gives them, checked.

    Raises:
        InvalidInputError: one of them cannot be used, whatever the files are.
    """
    if mode not in ("native", "virtual"):
        raise InvalidInputError(f"mode is {mode!r}, expected 'native' or 'virtual'")
    dims = (concat_dim,) if isinstance(concat_dim, str) else concat_dim
    names = [variables] if isinstance(variables, str) else variables
    for name, length in (chunks or {}).items():
        if length < 1:
            raise InvalidInputError(f"chunks[{name!r}] is {length!r}, expected a whole number > 0")
    if chunks and mode == "virtual":
        raise InvalidInputError("chunks cannot be chosen in virtual mode: files have theirs")
    paths.validate("/" + group.strip("/"))
    return IngestOptions(
        group.strip("/"),
        None if dims is None else tuple(dims),
        None if names is None else tuple(names),
        dict(chunks or {}),
        mode,
    )


def ingest_local(
    sources: Sources,
    repository: Repository,
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
) -> IngestResult:
    """Bring NetCDF, HDF5, GRIB and Zarr files into a group of a repository, in one commit.

    Files are joined along `concat_dim` in the order of their coordinate values; variables of
    different files are merged. Values are stored as the files have them, with the attributes
    that say what they mean. A file is brought over once: with `append`, files that are in the
    group already add nothing.

    Args:
        sources: paths, URLs or patterns of files and Zarr stores.
        concat_dim: the dimension, or dimensions, files follow each other along; found out by
            comparing coordinates when None.
        variables: names of variables to bring over, with their coordinates; all when None.
        chunks: chunk lengths by dimension name.
        mode: `native` copies the values, `virtual` stores references to the files.
        append: add to the group, which then has to fit.
        on_error: `fail` if any file does not fit, or `skip` it and report it in the result.

    Raises:
        InvalidInputError: files do not fit together; every one is named with its reason.
        AlreadyExistsError: the group has arrays and `append` is not set.
    """
    if on_error not in ("fail", "skip"):
        raise InvalidInputError(f"on_error is {on_error!r}, expected 'fail' or 'skip'")
    options = make_options(
        group=group, concat_dim=concat_dim, variables=variables, chunks=chunks, mode=mode
    )
    reach = access or SourceAccess()
    session = repository.writable_session(branch)
    existing = require_group(session.store, options, append=append)
    found, problems = _scan_all(list_sources(sources, reach), options, reach, known_to(existing))
    references = {source.location: source.references or {} for source in found}
    while True:
        plan = plan_ingest(found, options, existing, problems)
        if on_error == "fail":
            plan.raise_problems()
        if plan.uncompared:
            digests, damaged = _digest_all(plan, reach)
            found = with_digests(found, digests)
            wanted = list(plan.uncompared)
            existing = digest_existing(session.store, options.group, existing, wanted)
        else:
            damaged = _run(session, plan, references, reach) if plan.arrays else {}
            if not damaged:
                break
            # The others may go elsewhere without these, so that everything is done anew.
            session.discard_changes()
        found = [source for source in found if source.location not in damaged]
        problems += [Problem(location, reason) for location, reason in damaged.items()]
    snapshot_id = None
    if plan.arrays:
        snapshot_id = session.commit(message or f"ingested {len(plan.sources)} files")
    num_sources = len(plan.sources) if plan.arrays else 0
    return IngestResult(snapshot_id, num_sources, plan.unchanged, plan.problems, plan.notes)


def require_group(store: Store, options: IngestOptions, *, append: bool) -> Existing | None:
    """What is appended to; None for a group that is new or empty."""
    existing = describe_existing(store, options.group, options.concat_dims)
    if existing is not None and not append:
        raise AlreadyExistsError(
            f"group {'/' + options.group!r} has arrays already ({sorted(existing.documents)}); use "
            "append=True, or another group"
        )
    return existing


def known_to(existing: Existing | None) -> frozenset[str]:
    """The files that a group was made of: of these only the version matters."""
    return frozenset() if existing is None else frozenset(existing.ledger.versions)


def scan_for(
    location: str, options: IngestOptions, access: SourceAccess, *, is_known: bool
) -> SourceDescription:
    """What an ingest has to know of one source."""
    if is_known and (seen := look_at(location, access)) is not None:
        return seen
    return scan(
        location,
        references=options.mode == "virtual",
        concat_dims=options.concat_dims,
        access=access,
    )


def _scan_all(
    locations: Sequence[str], options: IngestOptions, access: SourceAccess, known: frozenset[str]
) -> tuple[list[SourceDescription], list[Problem]]:
    found, problems = [], []
    for location in locations:
        try:
            found.append(scan_for(location, options, access, is_known=location in known))
        except Exception as error:  # noqa: BLE001 - whatever a library raises is about the file
            problems.append(Problem(location, reason_of(error, location)))
    return found, problems


def _digest_all(plan: IngestPlan, access: SourceAccess) -> tuple[Digests, dict[str, str]]:
    digests: Digests = {}
    damaged: dict[str, str] = {}
    for source, wanted in files_to_read(plan.uncompared, plan.sources):
        found, reason = digest_file(source, wanted, access)
        digests |= found
        if reason is not None:
            damaged[source.location] = reason
    return digests, damaged


def _run(
    session: Session,
    plan: IngestPlan,
    references: Mapping[str, Mapping[str, pa.Table]],
    access: SourceAccess,
) -> dict[str, str]:
    """Everything but the commit; returns the files that turn out to be damaged, and why."""
    damaged: dict[str, str] = {}
    store = session.store
    write_metadata(store, plan)
    with OpenFiles(access) as files:
        for array in plan.arrays:
            if array.storage == "values":
                write_values(store, array)
            elif array.storage == "native":
                _copy(store, plan, array, files, damaged)
            else:
                _refer(store, plan, array, references)
    add_to_ledger(store, plan.options.group, plan.sources)
    return damaged


def _copy(
    store: IcechunkStore,
    plan: IngestPlan,
    array: ArrayPlan,
    files: OpenFiles,
    damaged: dict[str, str],
) -> None:
    def reader_of(number: int) -> NativeReader:
        return files.at(plan.sources[number].location)

    for region in array.blocks(itemsize=array.itemsize):
        with collecting(damaged):
            copy_region(store, plan, array, region, reader_of)


def _refer(
    store: IcechunkStore,
    plan: IngestPlan,
    array: ArrayPlan,
    references: Mapping[str, Mapping[str, pa.Table]],
) -> None:
    tables = []
    for number in array.sources.tolist():
        table = references[plan.sources[number].location][array.path]
        placed = placed_references(plan, array, number, table)
        if placed is None:
            continue
        if "inline" in placed.column_names:
            write_references(store, array.target, placed)
        else:
            tables.append(placed)
    if tables:
        # All at once: a session lays every table it is given over the ones before.
        placed = pa.concat_tables(tables, promote_options="default")
        write_references(store, array.target, placed)
