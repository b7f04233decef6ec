"""Asynchronous twins of `Repository`. Made by tools/make_async_twins.py."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from icefloe.api import enums
from icefloe.api.arguments import check_arguments, virtual_credentials
from icefloe.api.handles import Handles, driver_for, opening
from icefloe.api.session import Session
from icefloe.config import RepositoryConfig, StorageSettings
from icefloe.repo import lifecycle, refs, spec2_publish
from icefloe.repo import session as sessions
from icefloe.repo.handle import RepoHandle
from icefloe.repo.session import CommitMethod, Workspace
from icefloe.storage.driver import microseconds
from icefloe.storage.spec import Storage

if TYPE_CHECKING:
    from icefloe.api.ancestry_graph import AncestryGraph
    from icefloe.api.enums import NewGeneration, SpecVersion
    from icefloe.api.values import ManifestFileInfo, RepoStatus, SnapshotInfo
    from icefloe.changes.diff import Diff
    from icefloe.credentials import AnyCredential
    from icefloe.repo.spec2_publish import FeatureFlag
    from icefloe.storage.locations import Attribution
    from icefloe.store.virtual import RequiredAccess


@check_arguments
class RepositoryAsync:
    """What `Repository` inherits: its methods that touch storage, to be awaited."""

    _handles: Handles

    @property
    def handle(self) -> RepoHandle:
        """The repository as the operations of `icefloe.repo` take it. For code inside icefloe."""
        return self._handles.blocking

    @property
    def _aio_handle(self) -> RepoHandle:
        return self._handles.eventloop

    @classmethod
    def _from_handle(cls, handle: RepoHandle, *, is_blocking: bool) -> Self:
        raise NotImplementedError

    @classmethod
    async def create_async(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        spec_version: SpecVersion | int | str | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
        generation: NewGeneration | None = None,
    ) -> Self:
        """Like `create`, inside an event loop: Create a repository in an empty location."""
        handle = await lifecycle.create_repository(
            *opening(storage, config, attribution, blocking=False),
            spec_version=enums.version_number(spec_version),
            check_clean_root=check_clean_root,
            authorize=virtual_credentials(authorize_virtual_chunk_access),
            format_version=None if generation is None else generation.format_version(),
        )
        return cls._from_handle(handle, is_blocking=False)

    @classmethod
    async def open_async(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        attribution: Attribution | None = None,
    ) -> Self:
        """Like `open`, inside an event loop.

        Open an existing repository. `config` overrides the saved configuration.
        """
        handle = await lifecycle.open_repository(
            *opening(storage, config, attribution, blocking=False),
            authorize=virtual_credentials(authorize_virtual_chunk_access),
        )
        return cls._from_handle(handle, is_blocking=False)

    @classmethod
    async def open_or_create_async(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        create_version: SpecVersion | int | str | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
    ) -> Self:
        """Like `open_or_create`, inside an event loop.

        Open the repository, or create it if there is none. Safe for concurrent callers.
        """
        handle = await lifecycle.open_or_create(
            *opening(storage, config, attribution, blocking=False),
            spec_version=enums.version_number(create_version),
            check_clean_root=check_clean_root,
            authorize=virtual_credentials(authorize_virtual_chunk_access),
        )
        return cls._from_handle(handle, is_blocking=False)

    @staticmethod
    async def exists_async(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> bool:
        """Like `exists`, inside an event loop: Whether a repository is stored here."""
        config = RepositoryConfig(storage=storage_settings)
        driver = driver_for(storage, config, blocking=False)
        return await lifecycle.fetch_spec_version(driver) is not None

    @staticmethod
    async def fetch_spec_version_async(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> SpecVersion | None:
        """Like `fetch_spec_version`, inside an event loop.

        The version of the repository stored here, or None if there is none.
        """
        config = RepositoryConfig(storage=storage_settings)
        driver = driver_for(storage, config, blocking=False)
        version = await lifecycle.fetch_spec_version(driver)
        return None if version is None else enums.SpecVersion(version)

    @staticmethod
    async def fetch_config_async(storage: Storage) -> RepositoryConfig | None:
        """Like `fetch_config`, inside an event loop.

        The saved configuration of the repository stored here, or None if none was saved.
        """
        driver = driver_for(storage, None, blocking=False)
        return await lifecycle.fetch_config(storage, driver)

    async def reopen_async(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    ) -> Self:
        """Like `reopen`, inside an event loop.

        The same repository with a configuration that overrides the current one.
        """
        storage, merged = (self._handles.storage, self._handles.config)
        access = self._handles.virtual_access
        are_own = access.are_own
        if config is not None:
            merged = merged.merge(config)
            are_own = are_own or config.virtual_chunk_containers is not None
        known = access.authorizations
        if authorize_virtual_chunk_access is not None:
            known = virtual_credentials(authorize_virtual_chunk_access)
        place = opening(storage, merged, blocking=False)
        handle = await lifecycle.open_repository(
            *place, authorize=known, are_containers_own=are_own
        )
        return self._from_handle(handle, is_blocking=False)

    async def save_config_async(self) -> None:
        """Like `save_config`, inside an event loop.

        Save the current configuration with the repository.
        """
        return await self._aio_handle.format.save_config(self._aio_handle)

    async def get_metadata_async(self) -> dict[str, Any]:
        """Like `get_metadata`, inside an event loop: The metadata of the repository itself."""
        return await spec2_publish.get_metadata(self._aio_handle)

    async def set_metadata_async(self, metadata: dict[str, Any]) -> None:
        """Like `set_metadata`, inside an event loop: Replace the metadata of the repository."""
        return await spec2_publish.set_metadata(self._aio_handle, metadata)

    async def update_metadata_async(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Like `update_metadata`, inside an event loop.

        Set some keys of the repository's metadata; returns all of it.
        """
        return await spec2_publish.update_metadata(self._aio_handle, metadata)

    async def get_status_async(self) -> RepoStatus:
        """Like `get_status`, inside an event loop: Whether the repository takes writes."""
        from icefloe.api import values

        return values.RepoStatus.of(await spec2_publish.get_status(self._aio_handle))

    async def set_status_async(self, status: RepoStatus) -> None:
        """Like `set_status`, inside an event loop.

        Make the repository read-only for everyone, or bring it back online: `status`.
        """
        return await spec2_publish.set_status(self._aio_handle, status.stored())

    async def feature_flags_async(self) -> list[FeatureFlag]:
        """Like `feature_flags`, inside an event loop: Every feature flag."""
        return await spec2_publish.feature_flags(self._aio_handle)

    async def enabled_feature_flags_async(self) -> list[FeatureFlag]:
        """Like `enabled_feature_flags`, inside an event loop: The flags that are on."""
        flags = await spec2_publish.feature_flags(self._aio_handle)
        return [flag for flag in flags if flag.enabled]

    async def disabled_feature_flags_async(self) -> list[FeatureFlag]:
        """Like `disabled_feature_flags`, inside an event loop: The flags that are off."""
        flags = await spec2_publish.feature_flags(self._aio_handle)
        return [flag for flag in flags if not flag.enabled]

    async def set_feature_flag_async(self, name: str, setting: bool | None) -> None:
        """Like `set_feature_flag`, inside an event loop.

        Switch the flag `name` on or off, or back to its default with a `setting` of None.
        """
        return await spec2_publish.set_feature_flag(self._aio_handle, name, setting)

    async def create_branch_async(self, branch: str, snapshot_id: str) -> None:
        """Like `create_branch`, inside an event loop: Create a branch that points at a snapshot."""
        key = await self._aio_handle.given_id(snapshot_id, name=branch)
        return await refs.create_branch(self._aio_handle, branch, key)

    async def list_branches_async(self) -> set[str]:
        """Like `list_branches`, inside an event loop: Names of all branches."""
        return await self._aio_handle.format.list_branches(self._aio_handle)

    async def lookup_branch_async(self, branch: str) -> str:
        """Like `lookup_branch`, inside an event loop: The snapshot at the tip of a branch."""
        return (await self._aio_handle.format.lookup_branch(self._aio_handle, branch)).text

    async def reset_branch_async(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Like `reset_branch`, inside an event loop.

        Point a branch at another snapshot. The old snapshots stay until they are collected.
        """
        key = await self._aio_handle.given_id(snapshot_id, name=branch)
        expected = None
        if from_snapshot_id is not None:
            expected = await self._aio_handle.given_id(from_snapshot_id)
        return await refs.reset_branch(self._aio_handle, branch, key, expected)

    async def delete_branch_async(self, branch: str) -> None:
        """Like `delete_branch`, inside an event loop: Delete a branch; `main` cannot be deleted."""
        return await refs.delete_branch(self._aio_handle, branch)

    async def create_tag_async(self, tag: str, snapshot_id: str) -> None:
        """Like `create_tag`, inside an event loop.

        Create a tag. It always points at the same snapshot.
        """
        key = await self._aio_handle.given_id(snapshot_id, name=tag)
        return await refs.create_tag(self._aio_handle, tag, key)

    async def list_tags_async(self) -> set[str]:
        """Like `list_tags`, inside an event loop: Names of all tags."""
        return await self._aio_handle.format.list_tags(self._aio_handle)

    async def lookup_tag_async(self, tag: str) -> str:
        """Like `lookup_tag`, inside an event loop: The snapshot a tag points at."""
        return (await self._aio_handle.format.lookup_tag(self._aio_handle, tag)).text

    async def delete_tag_async(self, tag: str) -> None:
        """Like `delete_tag`, inside an event loop.

        Delete a tag; its name can never be used again.
        """
        return await refs.delete_tag(self._aio_handle, tag)

    async def lookup_snapshot_async(self, snapshot_id: str) -> SnapshotInfo:
        """Like `lookup_snapshot`, inside an event loop.

        Message, time, metadata and parent of a snapshot.
        """
        from icefloe.api import values

        key = await self._aio_handle.given_id(snapshot_id)
        found = await self._aio_handle.format.lookup_snapshot(self._aio_handle, key)
        return values.SnapshotInfo.of(found)

    async def list_manifest_files_async(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """Like `list_manifest_files`, inside an event loop: The manifest files a snapshot uses."""
        from icefloe.api import values

        key = await self._aio_handle.given_id(snapshot_id)
        files = await refs.manifest_files(self._aio_handle, key)
        return [values.ManifestFileInfo.of(info) for info in files]

    async def ancestry_graph_async(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
    ) -> AncestryGraph:
        """Like `ancestry_graph`, inside an event loop.

        The history of all branches, or of one ref, as a text graph; `plain` has no colours.
        """
        lines = await refs.graph_lines(
            self._aio_handle, branch=branch, tag=tag, snapshot_id=snapshot_id
        )
        from icefloe.api import ancestry_graph as graphs

        return graphs.AncestryGraph(lines, plain=plain)

    async def diff_async(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """Like `diff`, inside an event loop.

        The changes between a snapshot and one of its ancestors.
        """
        start = {"branch": from_branch, "tag": from_tag, "snapshot_id": from_snapshot_id}
        end = {"branch": to_branch, "tag": to_tag, "snapshot_id": to_snapshot_id}
        return await refs.diff_of(self._aio_handle, start, end)

    async def required_access_async(
        self, branch: str | None = None, *, tag: str | None = None, snapshot_id: str | None = None
    ) -> list[RequiredAccess]:
        """Like `required_access`, inside an event loop.

        The containers that a reader of a snapshot has to authorise for its virtual chunks.
        """
        from icefloe.store import virtual

        if branch is None and tag is None and (snapshot_id is None):
            branch = "main"
        state = await refs.open_at(
            self._aio_handle, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=None
        )
        return await virtual.required_access(Workspace(self._aio_handle, state))

    async def readonly_session_async(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """Like `readonly_session`, inside an event loop.

        A session that reads one snapshot: of a branch, at a time `as_of`, a tag, or an id.
        """
        instant = None if as_of is None else microseconds(as_of)
        state = await refs.open_at(
            self._aio_handle, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=instant
        )
        return Session(self._handles, state)

    async def writable_session_async(self, branch: str) -> Session:
        """Like `writable_session`, inside an event loop.

        A session whose changes can be committed to a branch.
        """
        return Session(self._handles, await sessions.open_writable(self._aio_handle, branch))

    async def rearrange_session_async(self, branch: str) -> Session:
        """Like `rearrange_session`, inside an event loop.

        A session that moves nodes and commits the moves to a branch. Needs spec version 2.
        """
        from icefloe.repo import rearrange

        return Session(self._handles, await rearrange.open_rearrange(self._aio_handle, branch))

    async def rewrite_manifests_async(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: CommitMethod = "new_commit",
    ) -> str:
        """Like `rewrite_manifests`, inside an event loop.

        Rewrite all manifests of a branch and commit, or with `commit_method` "amend" its tip.
        """
        from icefloe.repo import rearrange

        return (
            await rearrange.rewrite_manifests(
                self._aio_handle, message, branch, metadata, commit_method
            )
        ).text
