"""The repository and group that an ingest writes to, what it already holds, and its ledger."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.errors import GroupNotFoundError

from icefloe.api.addresses import parse_address
from icefloe.api.enums import ChunkType
from icefloe.api.handles import driver_for
from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.config import RepositoryConfig
from icefloe.config.containers import ContainerSet
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    RebaseFailedError,
    RefNotFoundError,
    RepositoryNotFoundError,
)
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.storage.urls import storage_from_url
from icefloe.store.zarr_store import IcechunkStore
from icefloe.virtual.formats.zarr_source import describe_v3, name_dimensions
from icefloe.virtual.ingest.transfer import read_document
from icefloe.virtual.model.description import (
    IN_REPOSITORY,
    GroupDescription,
    SourceDescription,
    SourceVersion,
    VariableDescription,
    wants_values,
    with_values,
)
from icefloe.virtual.planning.file_boxes import LEDGER_GROUP, Existing, Ledger, extent_of
from icefloe.virtual.planning.plan import IngestOptions, IngestPlan, Mode
from icefloe.virtual.planning.planner import target_of
from icefloe.virtual.sources import (
    SourceAccess,
    SourceContainer,
    absolute_location,
    container_for,
    containers_of,
    local_path,
)

# One rule for Python, Spark, recipes and the command line: where a path or a URL names an empty
# place, the repository is created, unless `create` is false. It is created when the plan is
# settled, so that an ingest that is refused leaves nothing behind. The configuration is saved
# then, too.

_MAIN = "main"


@dataclass
class Destination:
    """The repository of an ingest. `repository` is None until it is created."""

    storage: Storage
    repository: Repository | None = None
    create: bool = True
    add_containers: bool = False
    address: str = ""
    """The path or URL; empty for a repository that the caller opened."""
    ref: str | None = None
    """The branch that the address names."""
    _config: RepositoryConfig | None = None
    """What is saved or created with the repository."""
    _authorized: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        repository: Repository | str | os.PathLike[str],
        *,
        create: bool = True,
        add_containers: bool = False,
    ) -> Destination:
        """The place that a caller names.

        Raises:
            InvalidInputError: it is neither a repository nor a path or a URL.
        """
        if isinstance(repository, Repository):
            return cls(repository.storage, repository, create, add_containers)
        given: Any = repository
        if not isinstance(given, str | os.PathLike):
            raise InvalidInputError(
                f"repository is {given!r:.80}, expected an icefloe.Repository or a URL such as "
                "'s3://bucket/prefix'"
            )
        address = parse_address(os.fspath(given))
        path = local_path(absolute_location(address.url))
        if path is not None and path.is_file():
            raise InvalidInputError(
                f"the repository is {address.url}, which is a file; sources come first, the "
                "repository last: ingest(sources, repository)"
            )
        storage = storage_from_url(address.url)
        ref = None if address.ref is None else address.ref.removeprefix("branch.")
        return cls(storage, None, create, add_containers, address.url, ref)

    def branch(self, given: str | None) -> str:
        """The branch to commit to.

        Raises:
            InvalidInputError: the address and the argument both name one.
        """
        if self.ref is not None and given is not None:
            raise InvalidInputError(
                f"{self.address}@{self.ref} names a branch, and branch is {given!r}; give one of "
                "them"
            )
        return self.ref or given or _MAIN

    def find(self, locations: Sequence[str], branch: str) -> Repository | None:
        """Open the repository; None if it will be created.

        Raises:
            RepositoryNotFoundError: there is none, and it may not be created.
            RefNotFoundError: a repository that is created has no such branch.
            InvalidInputError: the place is occupied, or there is nothing to put into it.
        """
        if self.repository is not None:
            return self.repository
        try:
            self.repository = Repository.open(self.storage)
        except RepositoryNotFoundError:
            if not self.create:
                raise
            paths = [local_path(location) for location in locations]
            if all(path is not None and not path.exists() for path in paths):
                missing = f"{locations[0]}: there is no such file"
                raise InvalidInputError(missing, ErrorKind.OBJECT_NOT_FOUND) from None
            if branch != _MAIN:
                raise RefNotFoundError(
                    f"there is no branch {branch!r}: {self.address} has no repository yet, and a "
                    f"new one has the branch {_MAIN!r} only"
                ) from None
            if not run_blocking(driver_for(self.storage, None, blocking=True).is_empty()):
                self.repository = Repository.create(self.storage)  # says what occupies the place
        return self.repository

    def prepare(self, locations: Sequence[str], access: SourceAccess, mode: Mode) -> None:
        """In virtual mode, authorise the containers of these sources, and add missing ones.

        Naming a source permits reading it. So its container may be read too: an append reads
        existing coordinates, which may be virtual.
        """
        is_as_given = not self.address and not self.add_containers
        if mode != "virtual" or is_as_given:
            return
        known: dict[str, Any] = {}
        used: list[SourceContainer] = []
        missing = list(locations)
        if self.repository is not None:
            known = dict(self.repository.config.virtual_chunk_containers or {})
            virtual = self.repository.handle.assets.virtual.access
            self._authorized = dict(virtual.authorizations)
            prefixes, missing = set(), []
            for location in locations:
                try:
                    prefixes.add(virtual.containers.resolve(location).container.url_prefix)
                except InvalidInputError:
                    missing.append(location)
            used = [container_for(prefix, access) for prefix in prefixes]
        if missing and (self.add_containers or self.repository is None):
            added = containers_of(missing, access)
            new = {one.container.url_prefix: one.container for one in added}
            base = RepositoryConfig() if self.repository is None else self.repository.config
            self._config = replace(base, virtual_chunk_containers={**known, **new})
            used += added
        self._authorized = {
            **{one.container.url_prefix: one.credential for one in used},
            **self._authorized,
        }
        if self.repository is not None:
            config = self._config or self.repository.config
            self.repository = self.repository.reopen(config, self._authorized)

    @property
    def containers(self) -> ContainerSet:
        """The virtual chunk containers that there will be."""
        if self.repository is not None:
            return self.repository.handle.assets.virtual.access.containers
        found = None if self._config is None else self._config.virtual_chunk_containers
        return ContainerSet((found or {}).values())

    def settle(self) -> Repository:
        """Create the repository, or save its new containers: from here on something is written.

        Raises:
            RebaseFailedError: another writer created it meanwhile; it is open now.
        """
        if self.repository is None:
            authorized = self._authorized or None
            try:
                self.repository = Repository.create(self.storage, self._config, authorized)
            except (AlreadyExistsError, InvalidInputError):
                self.repository = Repository.open_or_create(self.storage)
                self._config = None
                raise RebaseFailedError(self.repository.lookup_branch(_MAIN), []) from None
        elif self._config is not None:
            self.repository.save_config()
        self._config = None
        return self.repository


# The ledger is a group `.icefloe/sources` inside the group it is about, with one 1-d array per
# column. It moves with the group, has its history, and is read by any Zarr tool. A reader who
# opens the group itself as a dataset does not see it, because datasets end where groups begin.

_PATH = f"{LEDGER_GROUP}/sources"
_DTYPES = {
    "location": "string",
    "size_bytes": "int64",
    "etag": "string",
    "last_modified": "int64",
    "fingerprint": "string",
    "extent": "string",
}
_LATER = ("fingerprint", "extent")
"""Columns that ledgers of earlier versions lack."""
_MADE_WITH = "made_with"
"""An attribute that ledgers of earlier versions lack."""


def read_columns(
    store: Store, path: str, names: Iterable[str]
) -> tuple[dict[str, list[Any]], Mapping[str, Any]]:
    """The columns of a table that are there, and its attributes; none if there is no table."""
    try:
        found = zarr.open_group(store, path=path, mode="r", zarr_format=3)
    except (FileNotFoundError, GroupNotFoundError):
        return {}, {}
    columns = {name: found.get(name) for name in names}
    values = {
        name: np.asarray(column[:]).tolist()
        for name, column in columns.items()
        if isinstance(column, zarr.Array)
    }
    return values, dict(found.attrs)


def open_column(
    table: zarr.Group, name: str, dtype: str, dimension: str, length: int = 0, **more: Any
) -> zarr.Array[Any]:
    """A column of a table, made of some length if it is not there."""
    column = table.get(name)
    if isinstance(column, zarr.Array):
        return column
    return table.create_array(
        name, shape=(length,), chunks=(16384,), dtype=dtype, dimension_names=[dimension], **more
    )


def read_ledger(store: Store, group: str) -> Ledger:
    """The ledger of a group; empty when there is none."""
    columns, attributes = read_columns(store, target_of(group, _PATH), _DTYPES)
    if not columns:
        return Ledger()
    for name in _LATER:
        columns.setdefault(name, [""] * len(columns["location"]))
    versions, extents = {}, {}
    rows = zip(*(columns[name] for name in _DTYPES), strict=True)
    for location, size, etag, modified, fingerprint, extent in rows:
        versions[location] = SourceVersion(
            size, etag or None, modified or None, fingerprint or None
        )
        if extent:
            extents[location] = extent
    made_with = attributes.get(_MADE_WITH)
    return Ledger(versions, extents, dict(made_with) if isinstance(made_with, dict) else {})


def enter_in_ledger(store: Store, plan: IngestPlan, known: Ledger) -> None:
    """Enter files that have been brought over; of new ones only the end of columns is written."""
    if not plan.sources:
        return
    path = target_of(plan.options.group, _PATH)
    place = zarr.open_group(store, path=path, mode="a", zarr_format=3)
    if not known.made_with:
        place.attrs[_MADE_WITH] = dict(plan.options.made_with)
    row_of = {location: row for row, location in enumerate(known.versions)}
    rows = [
        (
            source.location,
            source.version.size_bytes,
            source.version.etag or "",
            source.version.last_modified or 0,
            source.version.fingerprint or "",
            extent_of(source, plan.concat_dims),
        )
        for source in plan.sources
    ]
    first = len(row_of)
    at = np.array([row_of.setdefault(row[0], len(row_of)) for row in rows], np.int64)
    is_new = at >= first
    for (name, dtype), given in zip(_DTYPES.items(), zip(*rows, strict=True), strict=True):
        column = open_column(place, name, dtype, "source", first)
        values = np.array(given, object if dtype == "string" else dtype)
        column.resize((len(row_of),))
        if is_new.any():
            column[first:] = values[is_new]
        for row, value in zip(at[~is_new].tolist(), values[~is_new].tolist(), strict=True):
            column[row] = value


def require_group(
    existing: Existing | None,
    options: IngestOptions,
    sources: Sequence[SourceDescription] | None,
    *,
    append: bool,
) -> Existing | None:
    """What is added to; None for a group that is new or empty.

    Groups below it that no source has are other data. Before the `sources` are known (None) they
    may still be the same.

    Raises:
        AlreadyExistsError: the group has arrays, and `append` is not set.
    """
    if existing is None:
        return None
    if not existing.is_ingested:
        if sources is None:
            return existing
        groups = existing.description.groups.keys() - {""}
        if not any(groups & source.groups.keys() for source in sources):
            return None
    if not append:
        raise AlreadyExistsError(
            f"group {'/' + options.group!r} has arrays already ({sorted(existing.documents)}); "
            "append to it (append=True), or use another group"
        )
    return existing


def require_free(session: Session, plan: IngestPlan) -> None:
    """Refuse to write over nodes that the group was not made of.

    Raises:
        AlreadyExistsError: names one of them.
    """
    view = session.workspace.state.view
    others = ingested_below(plan.options.group, view.all_paths())
    arrays = [array.target for array in plan.arrays if array.old_shape is None]
    for target in [*arrays, *plan.groups]:
        names = target.split("/")
        above = ["/".join(names[:depth]) for depth in range(1, len(names))]
        found = [(path, view.find_node(f"/{path}")) for path in [*above, target]]
        taken = [path for path, node in found if node is not None and node.array is not None]
        owner = owner_of(target, others)
        if owner is not None:
            reason = f"the group {'/' + owner!r} was ingested by itself"
        elif taken:
            reason = f"{'/' + taken[0]!r} is an array"
        elif target in arrays and found[-1][1] is not None:
            reason = "that is a group"
        else:
            continue
        raise AlreadyExistsError(
            f"files have {'/' + target!r}, but in the repository {reason}; ingest them into "
            "another group, or leave it out with variables=[...]"
        )


def ingested_below(group: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Groups below this one that have a ledger of their own."""
    prefix = f"{group}/" if group else ""
    found = (path.strip("/") for path in paths if path.endswith(f"/{LEDGER_GROUP}"))
    owners = (path.rpartition("/")[0] for path in found if path != LEDGER_GROUP)
    return tuple(owner for owner in owners if owner.startswith(prefix))


def owner_of(path: str, groups: Iterable[str]) -> str | None:
    """The group among these that a path is in."""
    return next((group for group in groups if f"{path}/".startswith(f"{group}/")), None)


def describe_existing(
    store: IcechunkStore, group: str, concat_dims: tuple[str, ...] | None
) -> Existing | None:
    """What a group holds; None when it is not there or has no arrays.

    Groups below it that were ingested by themselves are not part of it.
    """
    prefix = group.strip("/")
    try:
        root = zarr.open_group(store, path=prefix, mode="r", zarr_format=3)
    except (FileNotFoundError, GroupNotFoundError):
        return None
    except zarr.errors.ContainsArrayError as error:
        raise InvalidInputError(
            f"{prefix!r} is an array, expected a group to ingest into", ErrorKind.NOT_A_GROUP
        ) from error
    groups = {"": GroupDescription(dict(root.attrs))}
    variables, documents = {}, {}
    members = dict(root.members(max_depth=None))
    others = ingested_below("", [f"/{path}" for path in members])
    for path, node in members.items():
        if path.split("/")[0] == LEDGER_GROUP or owner_of(path, others) is not None:
            continue
        if isinstance(node, zarr.Group):
            groups[path] = GroupDescription(dict(node.attrs))
            continue
        document = read_document(store, target_of(prefix, path))
        variable, _ = describe_v3(path, document, document.get("attributes") or {})
        if wants_values(variable, concat_dims):
            variable = _with_values(variable, node, store.session)
        variables[path], documents[path] = variable, document
    if not variables:
        return None
    name_dimensions(groups, variables)
    description = SourceDescription(
        f"the group {'/' + prefix!r}", IN_REPOSITORY, SourceVersion(0), groups, variables
    )
    return Existing(description, documents, read_ledger(store, group))


def _with_values(
    variable: VariableDescription, node: zarr.Array[Any], session: Session
) -> VariableDescription:
    try:
        values = np.asarray(node[...])
    except Exception:
        kind = session.chunk_type(f"/{node.path}", (0,) * node.ndim)
        if variable.is_coordinate or kind is not ChunkType.virtual:
            raise
        # References that may not be read here, or to a file that is no longer what it was, which
        # can fail in any way: the values are then not compared.
        return variable
    return with_values(variable, values.astype(object) if values.dtype.kind == "T" else values)
