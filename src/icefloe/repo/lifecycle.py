"""Creating, opening and recognising repositories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from logging import DEBUG, INFO
from typing import TYPE_CHECKING

from icefloe.assets.virtual_access import Authorizations, VirtualAccess
from icefloe.assets.virtual_fetch import VirtualReader
from icefloe.config import RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    RepositoryNotFoundError,
)
from icefloe.observe import REPOSITORY, observed
from icefloe.on_demand import on_demand
from icefloe.records import changed
from icefloe.repo.families.spec2.family import Spec2
from icefloe.repo.handle import Clock, Family, FoundRepository, RepoHandle, Shared
from icefloe.storage.driver import ConditionFailed, Driver
from icefloe.storage.spec import Storage

if TYPE_CHECKING:
    from icefloe.repo.families import older
    from icefloe.repo.families.spec1 import family as spec1
    from icefloe.storage.drivers import probe
else:
    older = on_demand("icefloe.repo.families.older")
    spec1 = on_demand("icefloe.repo.families.spec1.family")
    probe = on_demand("icefloe.storage.drivers.probe")

_PAUSES_S = (0.05, 0.1, 0.2, 0.4)


def _families() -> Iterator[Family]:
    """The families of the spec versions, in the order in which they are tried.

    Older generations are tried last, because a migration in place leaves their files behind.
    """
    yield Spec2()
    yield spec1.Spec1()


def new_family(spec_version: int) -> Family:
    """The family of repositories to be created."""
    known: dict[int, Callable[[], Family]] = {1: lambda: spec1.Spec1(), 2: Spec2}  # noqa: PLW0108
    if spec_version not in known:
        raise InvalidInputError(
            f"Unsupported version {spec_version!r}: "
            f"spec_version is {spec_version!r}, expected 1 or 2"
        )
    return known[spec_version]()


async def find_repository(driver: Driver) -> FoundRepository | None:
    """The repository stored here, or None; one request for a version-2 repository."""
    for family in _families():
        found = await family.find(driver)
        if found is not None:
            return found
    return await older.find_older(driver)


async def _require_repository(storage: Storage, driver: Driver) -> FoundRepository:
    found = await find_repository(driver)
    if found is None:
        missing = " nor ".join(repr(family.missing()) for family in _families())
        error = RepositoryNotFoundError(
            f"found none in {storage.describe()}; create one, or check the path"
        )
        error.add_note(f"Neither {missing} was found there, nor a file of an older generation.")
        raise error
    return found


async def fetch_spec_version(driver: Driver) -> int | None:
    """The version of the repository stored here, or None if there is none."""
    found = await find_repository(driver)
    return None if found is None else found.family.spec_version


async def fetch_config(storage: Storage, driver: Driver) -> RepositoryConfig | None:
    """The saved configuration, or None if none was saved.

    Raises:
        RepositoryNotFoundError: there is no repository.
    """
    return await (await _require_repository(storage, driver)).saved_config()


@observed("open")
async def open_repository(
    storage: Storage,
    driver: Driver,
    config: RepositoryConfig | None,
    clock: Clock,
    *,
    authorize: Authorizations | None = None,
    are_containers_own: bool | None = None,
) -> RepoHandle:
    """Open what is stored here; one request for a version-2 repository.

    `authorize` says which virtual chunks may be read, and with what; `are_containers_own`
    whether the caller vouches for the containers, normally if they are in `config`.

    Raises:
        RepositoryNotFoundError: nothing is stored here.
    """
    found = await _require_repository(storage, driver)
    saved = await found.saved_config()
    access = _access(saved, config, authorize, are_containers_own)
    handle = make_handle(storage, driver, found.family, _merged(saved, config), clock, access)
    found.remember(handle)
    if REPOSITORY.isEnabledFor(DEBUG):
        REPOSITORY.debug("opened %s in %s", found.family.noun, storage.url)
    return handle


@observed("create")
async def create_repository(
    storage: Storage,
    driver: Driver,
    config: RepositoryConfig | None,
    clock: Clock,
    *,
    spec_version: int,
    check_clean_root: bool,
    authorize: Authorizations | None = None,
    family: Family | None = None,
) -> RepoHandle:
    """Start a repository: an empty first snapshot and the branch `main`.

    `family` selects an older generation instead of a spec version.

    Raises:
        AlreadyExistsError: another process created one at the same time.
        InvalidInputError: the storage is not empty, kind `parent-directory-not-clean`.
    """
    family = family or new_family(spec_version)
    if storage.is_bucket_root:
        raise InvalidInputError(
            f"creating a repository at an empty prefix is not supported: {storage.describe()} is "
            "the root of a bucket; use a non-empty prefix",
            ErrorKind.EMPTY_PREFIX_CREATION,
        )
    if config is not None:
        config.validate()
    access = _access(None, config, authorize)
    handle = make_handle(storage, driver, family, _merged(None, config), clock, access)
    handle.require_writable()
    is_empty = check_clean_root and await driver.is_empty()
    if check_clean_root and not is_empty and not await family.is_unfinished(driver):
        raise InvalidInputError(
            f"{storage.describe()} is not empty: open the repository that is there, choose another "
            "place, or pass check_clean_root=False",
            ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )
    if not is_empty and (found := await find_repository(driver)) is not None:
        raise AlreadyExistsError(
            f"{storage.describe()} holds {found.family.noun} already; open it",
            ErrorKind.REPO_INFO_UPDATED,
        )
    await probe.check_conditions_are_honoured(driver)
    saved = config if config is not None and config != RepositoryConfig() else None
    try:
        await family.create(handle, saved)
    except ConditionFailed:
        raise AlreadyExistsError(
            f"{storage.describe()}: another process created a repository here at the same time; "
            "open it",
            ErrorKind.REPO_INFO_UPDATED,
        ) from None
    if REPOSITORY.isEnabledFor(INFO):
        REPOSITORY.info("created %s in %s", family.noun, storage.url)
    return handle


def make_handle(
    storage: Storage,
    driver: Driver,
    family: Family,
    config: RepositoryConfig,
    clock: Clock,
    access: VirtualAccess | None = None,
) -> RepoHandle:
    """A handle with empty caches. Its driver uses the settings of the storage."""
    settings = changed(config.resolved(), storage=driver.settings)
    virtual = VirtualReader(access or VirtualAccess(), blocking=True, disk=storage.disk_cache())
    files = family.data_driver(storage, driver)
    assets = changed(family.make_assets(files, settings), virtual=virtual)
    return RepoHandle(storage, assets, family, config, Shared(), clock)


def _access(
    saved: RepositoryConfig | None,
    given: RepositoryConfig | None,
    authorize: Authorizations | None,
    are_own: bool | None = None,
) -> VirtualAccess:
    """Containers in `config` replace the saved ones. Only those are trusted as the caller's own."""
    if are_own is None:
        are_own = given is not None and given.virtual_chunk_containers is not None
    containers = _merged(saved, given).virtual_chunk_containers
    return VirtualAccess.make(containers, authorize, are_own=are_own)


def _merged(saved: RepositoryConfig | None, given: RepositoryConfig | None) -> RepositoryConfig:
    """Saved settings, overridden by those given now.

    A saved file never switches conditional writes off: the repository may have been copied from a
    storage that did not need them.
    """
    config = saved or RepositoryConfig()
    if config.storage is not None:
        config = replace(
            config,
            storage=replace(
                config.storage,
                unsafe_use_conditional_create=None,
                unsafe_use_conditional_update=None,
                unsafe_use_metadata=None,
            ),
        )
    return config if given is None else config.merge(given)


async def open_or_create(
    storage: Storage,
    driver: Driver,
    config: RepositoryConfig | None,
    clock: Clock,
    *,
    spec_version: int,
    check_clean_root: bool,
    authorize: Authorizations | None = None,
) -> RepoHandle:
    """Open the repository, or create it. A process that loses the race opens the other's."""
    try:
        return await open_repository(storage, driver, config, clock, authorize=authorize)
    except RepositoryNotFoundError:
        pass
    try:
        return await create_repository(
            storage,
            driver,
            config,
            clock,
            spec_version=spec_version,
            check_clean_root=check_clean_root,
            authorize=authorize,
        )
    except (AlreadyExistsError, InvalidInputError) as problem:
        # Another process has created the repository, or is about to finish. If no repository
        # appears soon, the storage holds something else.
        for pause in _PAUSES_S:
            try:
                return await open_repository(storage, driver, config, clock, authorize=authorize)
            except RepositoryNotFoundError:
                await driver.sleep(pause)
        raise problem from None
