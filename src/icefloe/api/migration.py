"""`migrate_repository`, from any generation, and `upgrade_icechunk_repository`, in place."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn, cast

from icefloe.api.enums import SpecVersion
from icefloe.api.handles import Handles, driver_for
from icefloe.api.maintenance_values import reporter
from icefloe.api.repository import Repository
from icefloe.config import RepositoryConfig
from icefloe.config.containers import VirtualChunkContainer
from icefloe.config.stores import local_filesystem_store, s3_store
from icefloe.errors import InvalidInputError
from icefloe.legacy.migrate import (
    ChunkMode,
    LocalMigration,
    Migration,
    MigrationReport,
    base_url,
    migrate,
)
from icefloe.maintenance.progress import Report, Reporter
from icefloe.maintenance.upgrade import upgrade
from icefloe.repo.handle import Clock, RepoHandle
from icefloe.repo.lifecycle import make_handle, new_format_version
from icefloe.storage.locations import LocalLocation, S3Location
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage


def migrate_repository(
    repo: Repository,
    storage: Storage | None = None,
    *,
    spec_version: SpecVersion | int = 2,
    config: RepositoryConfig | None = None,
    chunks: ChunkMode = "copy",
    dry_run: bool = False,
    check: bool = True,
    progress: Report | None = None,
) -> MigrationReport:
    """Make a repository of spec version 2, or 1, with all snapshots, branches and tags of `repo`.

    The source can be of any generation and keeps its content. Calling this again continues an
    interrupted migration. The new repository cannot be opened before the migration is complete.

    Args:
        repo: the repository to migrate.
        storage: where to create the new repository: empty, or with the files of an interrupted
            call. Without it, the new repository is created next to the old files. Commits of
            icefloe to the old repository are refused from the moment at which the new one appears;
            if some were made during the migration, the call fails and has to be repeated.
        spec_version: 2, or 1 in another storage.
        config: saved with the new repository. The default is the saved one of the old repository.
        chunks: "copy" chunk objects, or "keep" them where they are and refer to them as virtual
            chunks. Repositories of Icechunk 0.1 that are migrated in place keep theirs either way.
        dry_run: write nothing and report what would be done.
        check: read everything back, compare it with the source, and verify it as
            `Repository.verify` does, before the new repository can be opened.
        progress: called with the stage and its progress. Without it, a terminal shows a bar.

    Raises:
        AlreadyExistsError: there is a repository in `storage`.
        ConflictError: branches or tags were changed during a migration in place.
        FormatError: a file of the source cannot be read, the comparison found a difference, or
            the verification an error.
        InvalidInputError: `storage` is a folder inside of the old repository.

    >>> old = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=1)
    >>> report = icefloe.migrate_repository(old, icefloe.local_filesystem_storage("migrated"))
    """
    target = target_handle(repo, storage or repo.storage, int(spec_version), config, chunks)
    report = Reporter(progress)
    engine = LocalMigration(Migration(repo.handle, target, chunks), report)
    return run_blocking(migrate(engine, dry_run=dry_run, check=check, reporter=report))


def target_handle(
    repo: Repository,
    storage: Storage,
    spec_version: int,
    config: RepositoryConfig | None,
    chunks: ChunkMode,
) -> RepoHandle:
    """The repository that a migration makes, which does not exist yet."""
    if chunks not in ("copy", "keep"):
        raise InvalidInputError(f"chunks is {chunks!r}, expected 'copy' or 'keep'")
    saved = config or Repository.fetch_config(repo.storage) or RepositoryConfig()
    if chunks == "keep":
        container = own_container(repo.handle)
        known = dict(saved.virtual_chunk_containers or {})
        saved = replace(saved, virtual_chunk_containers={container.url_prefix: container, **known})
    storage = storage.bound()
    driver = driver_for(storage, saved, blocking=True)
    return make_handle(storage, driver, new_format_version(spec_version), saved, Clock())


def own_container(handle: RepoHandle) -> VirtualChunkContainer:
    """The container for chunks that stay in the old repository."""
    prefix, location = base_url(handle), handle.storage.location
    if isinstance(location, LocalLocation):
        return VirtualChunkContainer(prefix, local_filesystem_store(location.path))
    if isinstance(location, S3Location):
        store = s3_store(
            region=location.region,
            endpoint_url=location.endpoint_url,
            allow_http=location.allow_http,
            s3_compatible=location.endpoint_url is not None,
            force_path_style=location.is_path_style,
        )
        return VirtualChunkContainer(prefix, store)
    raise InvalidInputError(
        f"chunks='keep' is possible on directories and S3, not on {handle.storage.kind}; "
        "migrate with chunks='copy'"
    )


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
    all branches at once. `progress` is called with the stage and how far it is.

    Raises:
        SessionStateError: the repository has another version.

    >>> old = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=1)
    >>> repo = icefloe.upgrade_icechunk_repository(old, dry_run=False)
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
        # Otherwise it would keep writing files of version 1 that no reader uses.
        repo._handles = cast(Handles, _Invalidated())
    return upgraded


class _Invalidated:
    """Stands in for the handles of a repository object that has become useless."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(
            "this Repository was invalidated by upgrade_icechunk_repository; use the one which "
            "that returned, or open the repository again"
        )
