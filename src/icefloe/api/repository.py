"""`Repository`: the main public class. Each method is a docstring and one operation.

The `x_async` twin of every method that touches storage is generated from here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from icefloe.api import enums
from icefloe.api.arguments import check_arguments, virtual_credentials
from icefloe.api.generated.repository_async import RepositoryAsync
from icefloe.api.handles import Handles, driver_for, opening, with_saved_settings
from icefloe.api.maintenance import RepositoryMaintenance
from icefloe.api.session import Session
from icefloe.api.versions import RepositoryVersions
from icefloe.config import RepositoryConfig, StorageSettings
from icefloe.display import Picture, Shown, qualified
from icefloe.repo import history, lifecycle, refs, spec2_publish
from icefloe.repo import session as sessions
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import CommitMethod, Workspace
from icefloe.storage.driver import microseconds
from icefloe.storage.run import each_blocking, run_blocking
from icefloe.storage.spec import Storage

if TYPE_CHECKING:
    from icefloe.api.ancestry_graph import AncestryGraph
    from icefloe.api.enums import NewGeneration, SpecVersion
    from icefloe.api.values import ManifestFileInfo, RepoStatus, SnapshotInfo, Update
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.changes.diff import Diff
    from icefloe.credentials import AnyCredential
    from icefloe.format.layout import Generation
    from icefloe.repo.spec2_publish import FeatureFlag
    from icefloe.storage.locations import Attribution
    from icefloe.store.virtual import RequiredAccess
    from icefloe.store.zarr_store import IcechunkStore


@check_arguments
class Repository(
    RepositoryMaintenance,
    RepositoryVersions,
    RepositoryAsync,
    Shown,
):
    """A versioned store of Zarr arrays.

    Make one with `Repository.create`, `open` or `open_or_create`.

    Arguments that several methods share. `storage` is where the repository is
    (`icefloe.s3_storage(...)` and its like), `storage_settings` how to talk to it. `config` goes on
    top of the saved configuration. `authorize_virtual_chunk_access` has the prefixes whose virtual
    chunks may be read, each with its credentials or None. `attribution` labels the requests.
    `branch`, `tag` and `snapshot_id` name a version, one of them; `from_` and `to_` before them
    tell two versions apart. `message` and `metadata` become part of a commit.

    >>> repo = icefloe.Repository.open(icefloe.local_filesystem_storage("weather"))
    >>> zarr.open_group(repo.readonly_session("main").store, mode="r")["t2m"].shape
    (4, 8, 8)
    """

    def __init__(self, handles: Handles) -> None:
        if not isinstance(handles, Handles):
            raise TypeError("a Repository is made by Repository.open, create or open_or_create")
        self._handles = handles

    def _picture_(self) -> Picture:
        version = int(self._handles.spec_version)
        kind = f"v{version}" if version else self.generation.value
        storage = self._handles.storage._picture_()
        fields = [("config", "<RepositoryConfig ...>")]
        fields += self._handles.shown_refs()
        return Picture(f"{qualified('Repository')} ({kind})", [("storage", storage), *fields])

    @classmethod
    def create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        spec_version: SpecVersion | int | str | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
        generation: NewGeneration | None = None,
    ) -> Self:
        """Create a repository in an empty location.

        A configuration given here is saved with the repository. `check_clean_root=False` allows a
        location that has other objects. `attribution` labels the requests of this object.
        `spec_version` is 2 unless given. `generation` makes a repository of an older generation,
        such as `NumberedRefs()`.

        Raises:
            AlreadyExistsError: another process created one at the same time.
            InvalidInputError: the location is not empty.
            StorageError: the storage ignores conditional writes, on which commits rely.

        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        """
        handle = run_blocking(
            lifecycle.create_repository(
                *opening(storage, config, attribution, blocking=True),
                spec_version=enums.version_number(spec_version),
                check_clean_root=check_clean_root,
                authorize=virtual_credentials(authorize_virtual_chunk_access),
                format_version=None if generation is None else generation.format_version(),
            )
        )
        return cls._from_handle(handle, is_blocking=True)

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        attribution: Attribution | None = None,
    ) -> Self:
        """Open an existing repository. `config` overrides the saved configuration.

        Virtual chunks can be read only below prefixes of containers that are authorised here,
        with credentials such as `containers_credentials` makes; `required_access` lists them.

        Raises:
            RepositoryNotFoundError: there is none.

        >>> repo = icefloe.Repository.open(icefloe.local_filesystem_storage("weather"))
        """
        handle = run_blocking(
            lifecycle.open_repository(
                *opening(storage, config, attribution, blocking=True),
                authorize=virtual_credentials(authorize_virtual_chunk_access),
            )
        )
        return cls._from_handle(handle, is_blocking=True)

    @classmethod
    def open_or_create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        create_version: SpecVersion | int | str | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
    ) -> Self:
        """Open the repository, or create it if there is none. Safe for concurrent callers.

        `create_version` and `check_clean_root` are about one that is created, as in `create`.

        >>> repo = icefloe.Repository.open_or_create(icefloe.local_filesystem_storage("ocean"))
        """
        handle = run_blocking(
            lifecycle.open_or_create(
                *opening(storage, config, attribution, blocking=True),
                spec_version=enums.version_number(create_version),
                check_clean_root=check_clean_root,
                authorize=virtual_credentials(authorize_virtual_chunk_access),
            )
        )
        return cls._from_handle(handle, is_blocking=True)

    @staticmethod
    def exists(storage: Storage, storage_settings: StorageSettings | None = None) -> bool:
        """Whether a repository is stored here.

        >>> icefloe.Repository.exists(icefloe.local_filesystem_storage("weather"))
        True
        """
        config = RepositoryConfig(storage=storage_settings)
        driver = driver_for(storage, config, blocking=True)
        return run_blocking(lifecycle.fetch_spec_version(driver)) is not None

    @staticmethod
    def fetch_spec_version(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> SpecVersion | None:
        """The version of the repository stored here, or None if there is none.

        >>> icefloe.Repository.fetch_spec_version(repo.storage)
        SpecVersion.v2 (current)
        """
        config = RepositoryConfig(storage=storage_settings)
        driver = driver_for(storage, config, blocking=True)
        version = run_blocking(lifecycle.fetch_spec_version(driver))
        return None if version is None else enums.SpecVersion(version)

    @staticmethod
    def fetch_config(storage: Storage) -> RepositoryConfig | None:
        """The saved configuration of the repository stored here, or None if none was saved.

        Raises:
            RepositoryNotFoundError: there is no repository.

        >>> icefloe.Repository.fetch_config(repo.storage).inline_chunk_threshold_bytes
        0
        """
        driver = driver_for(storage, None, blocking=True)
        return run_blocking(lifecycle.fetch_config(storage, driver))

    @classmethod
    def _from_handle(cls, handle: RepoHandle, *, is_blocking: bool) -> Self:
        handle = with_saved_settings(handle, blocking=is_blocking)
        return cls(Handles(handle, is_blocking=is_blocking))

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    ) -> Self:
        """The same repository with a configuration that overrides the current one.

        Without `authorize_virtual_chunk_access`, the current authorisations are kept.

        >>> quick = repo.reopen(icefloe.RepositoryConfig(max_concurrent_requests=32))
        """
        storage, merged = self._handles.storage, self._handles.config
        access = self._handles.virtual_access
        are_own = access.are_own
        if config is not None:
            merged = merged.merge(config)
            are_own = are_own or config.virtual_chunk_containers is not None
        known = access.authorizations
        if authorize_virtual_chunk_access is not None:
            known = virtual_credentials(authorize_virtual_chunk_access)
        place = opening(storage, merged, blocking=True)
        handle = run_blocking(
            lifecycle.open_repository(*place, authorize=known, are_containers_own=are_own)
        )
        return self._from_handle(handle, is_blocking=True)

    @property
    def storage(self) -> Storage:
        """Where the repository is."""
        return self._handles.storage

    @property
    def attribution(self) -> Attribution | None:
        """The labels that requests carry."""
        return self._handles.storage.attribution

    @property
    def config(self) -> RepositoryConfig:
        """The current configuration: the saved one, overridden by the one given at opening."""
        return self._handles.config

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """The prefixes whose virtual chunks may be read, as they were authorised."""
        return set(self._handles.virtual_access.authorizations)

    @property
    def generation(self) -> Generation:
        """The generation of the format: that of a spec version, or an older one."""
        return self._handles.either.format.generation

    @property
    def spec_version(self) -> SpecVersion:
        """The version of the format; 0 for generations before version 1."""
        return enums.SpecVersion(self._handles.spec_version)

    def save_config(self) -> None:
        """Save the current configuration with the repository.

        >>> repo.config.max_concurrent_requests = 32
        >>> repo.save_config()
        """
        return run_blocking(self.handle.format.save_config(self.handle))

    def set_default_commit_metadata(self, metadata: dict[str, Any]) -> None:
        """Metadata that goes into every commit made through this object.

        >>> repo.set_default_commit_metadata({"author": "the night run"})
        """
        self._handles.either.format.require_metadata(metadata)
        self._handles.either.shared.default_commit_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """The metadata given to `set_default_commit_metadata`.

        >>> repo.default_commit_metadata()
        {}
        """
        return dict(self._handles.either.shared.default_commit_metadata)

    def get_metadata(self) -> dict[str, Any]:
        """The metadata of the repository itself.

        >>> repo.get_metadata()
        {}
        """
        return run_blocking(spec2_publish.get_metadata(self.handle))

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository itself."""
        return self.get_metadata()

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata of the repository.

        >>> repo.set_metadata({"owner": "climate group"})
        """
        return run_blocking(spec2_publish.set_metadata(self.handle, metadata))

    def update_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Set some keys of the repository's metadata; returns all of it.

        >>> repo.update_metadata({"license": "CC-BY-4.0"})
        {'license': 'CC-BY-4.0'}
        """
        return run_blocking(spec2_publish.update_metadata(self.handle, metadata))

    def get_status(self) -> RepoStatus:
        """Whether the repository takes writes.

        >>> repo.get_status().availability
        RepoAvailability.online
        """
        from icefloe.api import values

        return values.RepoStatus.of(run_blocking(spec2_publish.get_status(self.handle)))

    @property
    def status(self) -> RepoStatus:
        """Whether the repository takes writes."""
        return self.get_status()

    def set_status(self, status: RepoStatus) -> None:
        """Make the repository read-only for everyone, or bring it back online: `status`.

        >>> repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only))
        """
        return run_blocking(spec2_publish.set_status(self.handle, status.stored()))

    def feature_flags(self) -> list[FeatureFlag]:
        """Every feature flag.

        >>> [flag.name for flag in repo.feature_flags()]
        ['move_node', 'create_tag', 'delete_tag']
        """
        return run_blocking(spec2_publish.feature_flags(self.handle))

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        """The flags that are on.

        >>> "create_tag" in [flag.name for flag in repo.enabled_feature_flags()]
        True
        """
        flags = run_blocking(spec2_publish.feature_flags(self.handle))
        return [flag for flag in flags if flag.enabled]

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        """The flags that are off.

        >>> repo.disabled_feature_flags()
        []
        """
        flags = run_blocking(spec2_publish.feature_flags(self.handle))
        return [flag for flag in flags if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:
        """Switch the flag `name` on or off, or back to its default with a `setting` of None.

        >>> repo.set_feature_flag("delete_tag", False)
        """
        return run_blocking(spec2_publish.set_feature_flag(self.handle, name, setting))

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch that points at a snapshot.

        >>> repo.create_branch("experiment", repo.lookup_branch("main"))
        """
        key = run_blocking(self.handle.given_id(snapshot_id, name=branch))
        return run_blocking(refs.create_branch(self.handle, branch, key))

    def list_branches(self) -> set[str]:
        """Names of all branches.

        >>> sorted(repo.list_branches())
        ['dev', 'main']
        """
        return run_blocking(self.handle.format.list_branches(self.handle))

    def lookup_branch(self, branch: str) -> str:
        """The snapshot at the tip of a branch.

        >>> tip = repo.lookup_branch("main")
        """
        return run_blocking(self.handle.format.lookup_branch(self.handle, branch)).text

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Point a branch at another snapshot. The old snapshots stay until they are collected.

        With `from_snapshot_id`, the branch is only moved if it still points there.

        >>> repo.reset_branch("main", repo.lookup_tag("v1"))
        """
        key = run_blocking(self.handle.given_id(snapshot_id, name=branch))
        expected = None
        if from_snapshot_id is not None:
            expected = run_blocking(self.handle.given_id(from_snapshot_id))
        return run_blocking(refs.reset_branch(self.handle, branch, key, expected))

    def delete_branch(self, branch: str) -> None:
        """Delete a branch; `main` cannot be deleted.

        >>> repo.delete_branch("dev")
        """
        return run_blocking(refs.delete_branch(self.handle, branch))

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Create a tag. It always points at the same snapshot.

        >>> repo.create_tag("v2", repo.lookup_branch("main"))
        """
        key = run_blocking(self.handle.given_id(snapshot_id, name=tag))
        return run_blocking(refs.create_tag(self.handle, tag, key))

    def list_tags(self) -> set[str]:
        """Names of all tags.

        >>> repo.list_tags()
        {'v1'}
        """
        return run_blocking(self.handle.format.list_tags(self.handle))

    def lookup_tag(self, tag: str) -> str:
        """The snapshot a tag points at.

        >>> first = repo.lookup_tag("v1")
        """
        return run_blocking(self.handle.format.lookup_tag(self.handle, tag)).text

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name can never be used again.

        >>> repo.delete_tag("v1")
        """
        return run_blocking(refs.delete_tag(self.handle, tag))

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Message, time, metadata and parent of a snapshot.

        >>> repo.lookup_snapshot(repo.lookup_tag("v1")).message
        'Add four days'
        """
        from icefloe.api import values

        key = run_blocking(self.handle.given_id(snapshot_id))
        found = run_blocking(self.handle.format.lookup_snapshot(self.handle, key))
        return values.SnapshotInfo.of(found)

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifest files a snapshot uses.

        >>> sorted(f.num_chunk_refs for f in repo.list_manifest_files(repo.lookup_branch("main")))
        [5]
        """
        from icefloe.api import values

        key = run_blocking(self.handle.given_id(snapshot_id))
        files = run_blocking(refs.manifest_files(self.handle, key))
        return [values.ManifestFileInfo.of(info) for info in files]

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Iterator[SnapshotInfo]:
        """A snapshot and its ancestors, newest first.

        >>> [snapshot.message for snapshot in repo.ancestry(branch="main")]
        ['Correct the second day', 'Add four days', 'Repository initialized']
        """
        from icefloe.api import values

        found = run_blocking(
            refs.line_of(self.handle, branch=branch, tag=tag, snapshot_id=snapshot_id)
        )
        return values.SnapshotInfo.along(found)

    async def async_ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> AsyncIterator[SnapshotInfo]:
        """Like `ancestry`, inside an event loop."""
        from icefloe.api import values

        found = await refs.line_of(
            self._aio_handle, branch=branch, tag=tag, snapshot_id=snapshot_id
        )
        async for info in values.SnapshotInfo.along_async(found):
            yield info

    async def ancestry_async(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> Iterator[SnapshotInfo]:
        """Like `ancestry`, inside an event loop, all of it. `async_ancestry` reads what is used."""
        line = self.async_ancestry(branch=branch, tag=tag, snapshot_id=snapshot_id)
        return iter([info async for info in line])

    def ancestry_graph(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
    ) -> AncestryGraph:
        """The history of all branches, or of one ref, as a text graph; `plain` has no colours.

        >>> graph = repo.ancestry_graph(branch="main", plain=True)
        >>> "(main)" in str(graph)
        True
        """
        lines = run_blocking(
            refs.graph_lines(self.handle, branch=branch, tag=tag, snapshot_id=snapshot_id)
        )
        from icefloe.api import ancestry_graph as graphs

        return graphs.AncestryGraph(lines, plain=plain)

    def ops_log(self) -> Iterator[Update]:
        """Every operation on the repository, newest first.

        >>> type(next(repo.ops_log()).kind).__name__
        'NewCommit'
        """
        from icefloe.api import values

        self.handle.format.require_repo_object("the operations log")
        pages = each_blocking(history.operations_pages(self.handle))
        return chain.from_iterable(map(values.Update.all_of, pages))

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """Like `ops_log`, inside an event loop."""
        from icefloe.api import values

        async for page in history.operations_pages(self._aio_handle):
            for update in values.Update.all_of(page):
                yield update

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """The changes between a snapshot and one of its ancestors.

        It goes from the version of `from_branch`, `from_tag` or `from_snapshot_id` to that of
        `to_branch`, `to_tag` or `to_snapshot_id`.

        >>> changes = repo.diff(from_tag="v1", to_branch="main")
        >>> changes.updated_chunks
        {'/t2m': [[1, 0, 0]]}
        """
        start = {"branch": from_branch, "tag": from_tag, "snapshot_id": from_snapshot_id}
        end = {"branch": to_branch, "tag": to_tag, "snapshot_id": to_snapshot_id}
        return run_blocking(refs.diff_of(self.handle, start, end))

    def required_access(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> list[RequiredAccess]:
        """The containers that a reader of a snapshot has to authorise for its virtual chunks.

        This needs no authorisation and makes no requests to the containers. The default is `main`.

        >>> repo.required_access("main")
        []
        """
        from icefloe.store import virtual

        if branch is None and tag is None and snapshot_id is None:
            branch = "main"
        state = run_blocking(
            refs.open_at(self.handle, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=None)
        )
        return run_blocking(virtual.required_access(Workspace(self.handle, state)))

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """A session that reads one snapshot: of a branch, at a time `as_of`, a tag, or an id.

        >>> session = repo.readonly_session(tag="v1")
        >>> zarr.open_array(session.store, path="t2m", mode="r")[1, 0, 0].item()
        280.0
        """
        instant = None if as_of is None else microseconds(as_of)
        state = run_blocking(
            refs.open_at(
                self.handle, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=instant
            )
        )
        return Session(self._handles, state)

    def writable_session(self, branch: str) -> Session:
        """A session whose changes can be committed to a branch.

        >>> session = repo.writable_session("main")
        >>> zarr.open_array(session.store, path="t2m")[0] = 273.15
        >>> snapshot_id = session.commit("Correct the first day")
        """
        return Session(self._handles, run_blocking(sessions.open_writable(self.handle, branch)))

    def rearrange_session(self, branch: str) -> Session:
        """A session that moves nodes and commits the moves to a branch. Needs spec version 2.

        >>> session = repo.rearrange_session("main")
        >>> session.move("/t2m", "/temperature")
        """
        from icefloe.repo import rearrange

        return Session(self._handles, run_blocking(rearrange.open_rearrange(self.handle, branch)))

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: CommitMethod = "new_commit",
    ) -> str:
        """Rewrite all manifests of a branch and commit, or with `commit_method` "amend" its tip.

        This applies a changed splitting configuration to stored data. Other commits only split the
        manifests that they rewrite. The current rules are recorded in the commit's metadata.
        Memory does not grow with the size of the arrays. Returns the id of the new snapshot.

        Raises:
            ConflictError: the branch has moved in the meantime; nothing has changed.

        >>> snapshot_id = repo.rewrite_manifests("Apply new splits", branch="main")
        """
        from icefloe.repo import rearrange

        return run_blocking(
            rearrange.rewrite_manifests(self.handle, message, branch, metadata, commit_method)
        ).text

    @contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
    ) -> Iterator[IcechunkStore]:
        """A store whose writes are committed at the end of the block, or discarded on an exception.

        `rebase_with` and `rebase_tries` are passed to `Session.commit`.

        >>> with repo.transaction("main", message="Correct the first day") as store:
        ...     zarr.open_array(store, path="t2m")[0] = 273.15
        """
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries)
