"""A repository through both drivers. The driver for event loops is created on first use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from icefloe.assets.cache import InFlight
from icefloe.assets.virtual import VirtualAccess
from icefloe.config import RepositoryConfig
from icefloe.repo import refs
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.lifecycle import OlderGenerations, make_handle, register_older
from icefloe.storage.driver import Driver
from icefloe.storage.locations import Attribution
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage


def _load_older() -> OlderGenerations:
    from icefloe.legacy import older

    return older


register_older(_load_older)


class Handles:
    """The state shared by `Repository`, `Session` and the store. It pickles without its caches."""

    def __init__(self, first: RepoHandle, *, is_blocking: bool) -> None:
        virtual = first.assets.virtual.flavour(blocking=is_blocking)
        first = replace(first, assets=replace(first.assets, virtual=virtual))
        self._blocking = first if is_blocking else None
        self._eventloop = None if is_blocking else first

    @property
    def blocking(self) -> RepoHandle:
        """The handle for blocking code."""
        if self._blocking is None:
            assert self._eventloop is not None
            self._blocking = _other(self._eventloop, blocking=True)
        return self._blocking

    @property
    def eventloop(self) -> RepoHandle:
        """The handle for code inside an event loop."""
        if self._eventloop is None:
            assert self._blocking is not None
            self._eventloop = _other(self._blocking, blocking=False)
        return self._eventloop

    @property
    def either(self) -> RepoHandle:
        """Either handle, for queries that make no requests."""
        return self._blocking or self.eventloop

    @property
    def storage(self) -> Storage:
        return self.either.storage

    @property
    def config(self) -> RepositoryConfig:
        return self.either.config

    @property
    def virtual_access(self) -> VirtualAccess:
        return self.either.assets.virtual.access

    @property
    def spec_version(self) -> int:
        return self.either.format.spec_version

    def shown_refs(self) -> list[tuple[str, str]]:
        """Branches, tags and the last commit, for people."""
        return run_blocking(refs.shown_refs(self.blocking))

    def __getstate__(self) -> dict[str, Any]:
        handle = self.either
        return {
            "storage": handle.storage,
            "config": handle.config,
            "format_version": handle.format,
            "default_commit_metadata": dict(handle.shared.default_commit_metadata),
            "config_version": handle.shared.config_version,
            "authorizations": dict(self.virtual_access.authorizations),
            "containers_are_own": self.virtual_access.are_own,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        storage: Storage = state["storage"]
        config: RepositoryConfig = state["config"]
        storage.require_directory()
        driver = driver_for(storage, config, blocking=True)
        access = VirtualAccess.make(
            config.virtual_chunk_containers,
            state["authorizations"],
            are_own=state["containers_are_own"],
        )
        handle = make_handle(storage, driver, state["format_version"], config, Clock(), access)
        handle.shared.default_commit_metadata.update(state["default_commit_metadata"])
        handle.shared.config_version = state["config_version"]
        self.__init__(handle, is_blocking=True)  # type: ignore[misc]


def driver_for(storage: Storage, config: RepositoryConfig | None, *, blocking: bool) -> Driver:
    """A driver with the defaults of the storage, overridden by the configured settings."""
    config = config or RepositoryConfig()
    settings = storage.default_settings()
    if config.storage is not None:
        settings = settings.merge(config.storage)
    return storage.driver(
        settings.resolved(),
        blocking=blocking,
        max_concurrent_requests=config.resolved().max_concurrent_requests,
    )


def opening(
    storage: Storage,
    config: RepositoryConfig | None,
    attribution: Attribution | None = None,
    *,
    blocking: bool,
) -> tuple[Storage, Driver, RepositoryConfig | None, Clock]:
    """The first arguments of every operation that opens or creates a repository."""
    storage = storage.attributed(attribution).bound()
    return storage, driver_for(storage, config, blocking=blocking), config, Clock()


def with_saved_settings(handle: RepoHandle, *, blocking: bool) -> RepoHandle:
    """The handle with a driver for its configuration.

    A repository is opened before its saved configuration is known. The first driver therefore uses
    only the settings of the caller.
    """
    driver = _driver_of(handle, blocking=blocking)
    if driver is handle.driver:
        return handle
    settings = replace(handle.settings, storage=driver.settings)
    return replace(handle, assets=replace(handle.assets, driver=driver, settings=settings))


def _other(handle: RepoHandle, *, blocking: bool) -> RepoHandle:
    """The same repository and caches through the other kind of driver."""
    driver = _driver_of(handle, blocking=blocking)
    virtual = handle.assets.virtual.flavour(blocking=blocking)
    assets = replace(handle.assets, driver=driver, loading=InFlight(), virtual=virtual)
    return replace(handle, assets=assets)


def _driver_of(handle: RepoHandle, *, blocking: bool) -> Driver:
    driver = driver_for(handle.storage, handle.config, blocking=blocking)
    return handle.format.data_driver(handle.storage, driver)
