"""`upgrade_icechunk_repository`: the in-place upgrade from spec version 1 to 2."""

from __future__ import annotations

from typing import NoReturn, cast

from icefloe.api.handles import Handles
from icefloe.api.maintenance_values import reporter
from icefloe.api.repository import Repository
from icefloe.maintenance.migration.upgrade import upgrade
from icefloe.maintenance.progress import Report
from icefloe.storage.run import run_blocking


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
    progress: Report | None = None,
) -> Repository:
    """Upgrade a repository of spec version 1 to version 2. Returns it, reopened.

    Branches, tags, deleted tags, history and the saved configuration are kept. Snapshots, manifests
    and chunks do not change. Sessions that were opened before fail to commit, and `repo` itself
    raises RuntimeError from then on.

    Writers of icefloe may be active: a commit that was acknowledged is in the upgraded repository,
    any other is refused. A call that was interrupted can be repeated; until then the repository can
    be read, and takes no changes. `dry_run` reads everything and changes nothing.

    Official clients of version 1 must not write during the upgrade. They do not notice it unless
    `delete_unused_v1_files` is on. `prefetch_concurrency` has no effect: snapshots are read along
    all branches at once.

    Args:
        progress: called with the stage and how far it is.

    Raises:
        SessionStateError: the repository has another version.
    """
    if prefetch_concurrency is not None and prefetch_concurrency < 1:
        raise ValueError(f"prefetch_concurrency is {prefetch_concurrency}, expected 1 or more")
    with reporter(progress) as report:
        run_blocking(
            upgrade(
                repo.handle,
                dry_run=dry_run,
                delete_unused_v1_files=delete_unused_v1_files,
                report=report,
            )
        )
    upgraded = repo.reopen()
    if not dry_run:
        # It would go on with the files of version 1, which nobody else looks at any more.
        repo._handles = cast(Handles, _Invalidated())
    return upgraded


class _Invalidated:
    """Stands in for the handles of a repository object that has become useless."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(
            "this Repository was invalidated by upgrade_icechunk_repository; use the one which "
            "that returned, or open the repository again"
        )
