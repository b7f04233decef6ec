"""Where an ingest goes: a repository that is there, or a place where one is created.

One rule for Python, Spark, recipes and the command line: where a path or a URL names an empty
place, the repository is created, unless `create` is false. It is created when the plan is settled,
so that an ingest that is refused leaves nothing behind. The configuration is saved then, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from icefloe.api.addresses import parse_address
from icefloe.api.handles import driver_for
from icefloe.api.repository import Repository
from icefloe.config import RepositoryConfig
from icefloe.config.container_set import ContainerSet
from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    RefNotFoundError,
    RepositoryNotFoundError,
)
from icefloe.records import record
from icefloe.storage.constructors.urls import storage_from_url
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.virtual.places.access import SourceAccess, absolute_location, local_path
from icefloe.virtual.places.source_containers import SourceContainer, container_for, containers_of
from icefloe.virtual.planning.plan import Mode

_MAIN = "main"


@record()
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
            _require_some(locations)
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
        """Create the repository, or save its new containers: from here on something is written."""
        if self.repository is None:
            authorized = self._authorized or None
            self.repository = Repository.create(self.storage, self._config, authorized)
        elif self._config is not None:
            self.repository.save_config()
        self._config = None
        return self.repository


def _require_some(locations: Sequence[str]) -> None:
    """A repository is not created for files that are not there."""
    paths = [local_path(location) for location in locations]
    if all(path is not None and not path.exists() for path in paths):
        raise InvalidInputError(
            f"{locations[0]}: there is no such file", ErrorKind.OBJECT_NOT_FOUND
        )
