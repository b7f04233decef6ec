"""A handle for a repository that may be too damaged to open."""

from __future__ import annotations

from icefloe.assets.virtual_access import Authorizations
from icefloe.config import RepositoryConfig
from icefloe.errors import FormatError, RepositoryNotFoundError
from icefloe.format import layout
from icefloe.legacy.numbered.names import DOCUMENT
from icefloe.legacy.state_file.names import STATE
from icefloe.repo.families.numbered.family import Numbered
from icefloe.repo.families.spec1.family import Spec1
from icefloe.repo.families.spec2.family import Spec2
from icefloe.repo.families.state_file.family import StateFile
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.lifecycle import make_handle, open_repository
from icefloe.storage.driver import Driver
from icefloe.storage.spec import Storage


async def open_damaged(
    storage: Storage,
    driver: Driver,
    config: RepositoryConfig | None,
    clock: Clock,
    *,
    authorize: Authorizations | None = None,
) -> RepoHandle:
    """Open a repository even if its `repo` object or its branch `main` is lost.

    Raises:
        RepositoryNotFoundError: there is no trace of a repository.
    """
    try:
        return await open_repository(storage, driver, config, clock, authorize=authorize)
    except (FormatError, RepositoryNotFoundError):
        if any(found.key == STATE for found in await driver.list(STATE)):
            return make_handle(storage, driver, StateFile(), config or RepositoryConfig(), clock)
        if not await driver.list(layout.SNAPSHOTS):
            if not await driver.list(DOCUMENT.refs):
                raise
            return make_handle(storage, driver, Numbered(), config or RepositoryConfig(), clock)
    backups = await driver.list(layout.OVERWRITTEN + layout.REPO + ".")
    has_repo = any(found.key == layout.REPO for found in await driver.list(layout.REPO))
    is_old = not backups and not has_repo and bool(await driver.list(layout.REFS))
    family = Spec1() if is_old else Spec2()
    return make_handle(storage, driver, family, config or RepositoryConfig(), clock)
