"""Creating, opening and recognising repositories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from logging import DEBUG, INFO
from typing import Protocol

from icefloe.assets.virtual import Authorizations, VirtualAccess, VirtualReader
from icefloe.config import RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    RepositoryNotFoundError,
    StorageError,
)
from icefloe.format import layout
from icefloe.observe import REPOSITORY, observed
from icefloe.repo.handle import Clock, FormatVersion, FoundRepository, RepoHandle, Shared
from icefloe.repo.spec2 import Spec2
from icefloe.storage.driver import (
    ConditionFailed,
    Driver,
    Version,
    check_conditions_are_honoured,
    find_object,
)
from icefloe.storage.spec import Storage


class OlderGenerations(Protocol):
    """Recognises repositories of the generations before spec version 1."""

    async def find_older(
        self, driver: Driver, keys: list[str], state: tuple[bytes, Version] | None
    ) -> FoundRepository | None:
        """The older repository with these refs or this state file, or None."""

    async def find_damaged(self, driver: Driver) -> FormatVersion | None:
        """The format version of an older repository that cannot be opened, or None."""


_loaders: list[Callable[[], OlderGenerations]] = []


def register_older(load: Callable[[], OlderGenerations]) -> None:
    """Make older generations known. They are in a layer above, and loaded when they are needed."""
    _loaders[:] = [load]


def older_generations() -> OlderGenerations | None:
    """The registered generations before spec version 1."""
    return _loaders[0]() if _loaders else None


_OLDER_REFS = "r"  # the common prefix of `r/` and `refs/`: one listing for both
_PAUSES_S = (0.05, 0.1, 0.2, 0.4)


def _format_versions() -> Iterator[FormatVersion]:
    """The spec versions, in the order in which they are tried.

    Older generations are tried last, because a migration in place leaves their files behind.
    """
    yield Spec2()
    from icefloe.repo import spec1

    yield spec1.Spec1()


def new_format_version(spec_version: int) -> FormatVersion:
    """The format version of repositories to be created."""
    known = {format_version.spec_version: format_version for format_version in _format_versions()}
    if spec_version not in known:
        raise InvalidInputError(
            f"Unsupported version {spec_version!r}: "
            f"spec_version is {spec_version!r}, expected 1 or 2"
        )
    return known[spec_version]


async def find_repository(driver: Driver) -> FoundRepository | None:
    """The repository stored here, or None; one request for a version-2 repository."""
    for format_version in _format_versions():
        found = await format_version.find(driver)
        if found is not None:
            return found
    return await _find_older(driver)


async def _find_older(driver: Driver) -> FoundRepository | None:
    """An older repository. Its generation is loaded only if there is a file that it may have."""
    try:
        # Numbered refs are found by listing; a state file has a name.
        keys = [entry.key for entry in await driver.list(_OLDER_REFS)] if driver.can_list else []
        state = await find_object(driver, layout.STATE_FILE)
    except StorageError as error:
        if error.is_bucket_missing:
            return None
        raise
    if layout.REPO in keys:  # an upgrade has created it since it was looked for
        return await Spec2().find(driver)
    older = older_generations() if keys or state is not None else None
    return None if older is None else await older.find_older(driver, keys, state)


async def _require_repository(storage: Storage, driver: Driver) -> FoundRepository:
    found = await find_repository(driver)
    if found is None:
        missing = " nor ".join(
            repr(format_version.missing()) for format_version in _format_versions()
        )
        error = RepositoryNotFoundError(
            f"found none in {storage.describe()}; create one, or check the path"
        )
        error.add_note(f"Neither {missing} was found there, nor a file of an older generation.")
        raise error
    return found


async def fetch_spec_version(driver: Driver) -> int | None:
    """The version of the repository stored here, or None if there is none."""
    found = await find_repository(driver)
    return None if found is None else found.format.spec_version


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
    whether the caller trusts the containers, normally if they are in `config`.

    Raises:
        RepositoryNotFoundError: nothing is stored here.
    """
    found = await _require_repository(storage, driver)
    saved = await found.saved_config()
    access = _access(saved, config, authorize, are_containers_own)
    handle = make_handle(storage, driver, found.format, _merged(saved, config), clock, access)
    found.remember(handle)
    if REPOSITORY.isEnabledFor(DEBUG):
        REPOSITORY.debug("opened %s in %s", found.format.noun, storage.url)
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
    format_version: FormatVersion | None = None,
) -> RepoHandle:
    """Start a repository: an empty first snapshot and the branch `main`.

    `format_version` selects an older generation instead of a spec version.

    Raises:
        AlreadyExistsError: another process created one at the same time.
        InvalidInputError: the storage is not empty, kind `parent-directory-not-clean`.
    """
    format_version = format_version or new_format_version(spec_version)
    if storage.is_bucket_root:
        raise InvalidInputError(
            f"creating a repository at an empty prefix is not supported: {storage.describe()} is "
            "the root of a bucket; use a non-empty prefix",
            ErrorKind.EMPTY_PREFIX_CREATION,
        )
    if config is not None:
        config.validate()
    access = _access(None, config, authorize)
    handle = make_handle(storage, driver, format_version, _merged(None, config), clock, access)
    handle.require_writable()
    is_empty = check_clean_root and await driver.is_empty()
    if check_clean_root and not is_empty and not await format_version.is_unfinished(driver):
        raise InvalidInputError(
            f"{storage.describe()} is not empty: open the repository that is there, choose another "
            "place, or pass check_clean_root=False",
            ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )
    if not is_empty and (found := await find_repository(driver)) is not None:
        raise AlreadyExistsError(
            f"{storage.describe()} holds {found.format.noun} already; open it",
            ErrorKind.REPO_INFO_UPDATED,
        )
    await check_conditions_are_honoured(driver)
    saved = config if config is not None and config != RepositoryConfig() else None
    try:
        await format_version.create(handle, saved)
    except ConditionFailed:
        raise AlreadyExistsError(
            f"{storage.describe()}: another process created a repository here at the same time; "
            "open it",
            ErrorKind.REPO_INFO_UPDATED,
        ) from None
    if REPOSITORY.isEnabledFor(INFO):
        REPOSITORY.info("created %s in %s", format_version.noun, storage.url)
    return handle


def make_handle(
    storage: Storage,
    driver: Driver,
    format_version: FormatVersion,
    config: RepositoryConfig,
    clock: Clock,
    access: VirtualAccess | None = None,
) -> RepoHandle:
    """A handle with empty caches. Its driver uses the settings of the storage."""
    settings = replace(config.resolved(), storage=driver.settings)
    virtual = VirtualReader(access or VirtualAccess(), blocking=True, disk=storage.disk_cache())
    files = format_version.data_driver(storage, driver)
    assets = replace(format_version.make_assets(files, settings), virtual=virtual)
    return RepoHandle(storage, assets, format_version, config, Shared(), clock)


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
    place = storage, driver, config, clock
    try:
        return await open_repository(*place, authorize=authorize)
    except RepositoryNotFoundError:
        pass
    try:
        return await create_repository(
            *place,
            spec_version=spec_version,
            check_clean_root=check_clean_root,
            authorize=authorize,
        )
    except (AlreadyExistsError, InvalidInputError) as problem:
        # Another process has created the repository, or is about to finish. If no repository
        # appears soon, the storage holds something else.
        for pause in _PAUSES_S:
            try:
                return await open_repository(*place, authorize=authorize)
            except RepositoryNotFoundError:
                await driver.sleep(pause)
        raise problem from None
