"""Asynchronous twins of `RepositoryVersions`. Made by tools/make_async_twins.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icefloe.api.arguments import check_arguments
from icefloe.api.handles import Handles
from icefloe.repo import refs
from icefloe.repo.handle import RepoHandle

if TYPE_CHECKING:
    from icefloe.api.values import VersionChange
    from icefloe.changes.conflicts import ConflictSolver


@check_arguments
class RepositoryVersionsAsync:
    """What `RepositoryVersions` inherits: its methods that touch storage, to be awaited."""

    _handles: Handles

    @property
    def handle(self) -> RepoHandle:
        """The repository as the operations of `icefloe.repo` take it. For code inside icefloe."""
        return self._handles.blocking

    @property
    def _aio_handle(self) -> RepoHandle:
        return self._handles.eventloop

    async def cherry_pick_async(
        self,
        snapshot_id: str,
        branch: str,
        *,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        dry_run: bool = False,
    ) -> VersionChange:
        """Like `cherry_pick`, inside an event loop.

        Apply the changes of one commit to a branch, as a new commit.
        """
        key = await self._aio_handle.given_id(snapshot_id)
        from icefloe.api import values
        from icefloe.repo import replay

        request = replay.ReplayRequest(
            branch, message, metadata, rebase_with, rebase_tries, dry_run
        )
        return values.VersionChange.of(await replay.cherry_pick(self._aio_handle, key, request))

    async def undo_async(
        self,
        snapshot_id: str | None = None,
        branch: str = "main",
        *,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        dry_run: bool = False,
    ) -> VersionChange:
        """Like `undo`, inside an event loop.

        Undo one commit of a branch by a new commit; later commits stay.
        """
        if snapshot_id is None:
            key = await self._aio_handle.format.lookup_branch(self._aio_handle, branch)
        else:
            key = await self._aio_handle.given_id(snapshot_id)
        from icefloe.api import values
        from icefloe.repo import replay

        request = replay.ReplayRequest(
            branch, message, metadata, rebase_with, rebase_tries, dry_run
        )
        return values.VersionChange.of(await replay.undo(self._aio_handle, key, request))

    async def merge_async(
        self,
        source: str,
        branch: str,
        *,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        dry_run: bool = False,
    ) -> VersionChange:
        """Like `merge`, inside an event loop.

        Apply to a branch, as one commit, everything that another one has since they parted.
        """
        key = await refs.find_snapshot(self._aio_handle, source)
        from icefloe.api import values
        from icefloe.repo import replay

        request = replay.ReplayRequest(
            branch, message, metadata, rebase_with, rebase_tries, dry_run
        )
        return values.VersionChange.of(await replay.merge(self._aio_handle, key, source, request))

    async def squash_async(
        self,
        branch: str,
        since: str,
        *,
        until: str | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> VersionChange:
        """Like `squash`, inside an event loop: Replace some commits of a branch with one."""
        first = await refs.find_snapshot(self._aio_handle, since)
        last = None if until is None else await refs.find_snapshot(self._aio_handle, until)
        from icefloe.api import values
        from icefloe.repo import replay

        request = replay.ReplayRequest(branch, message, metadata, dry_run=dry_run)
        return values.VersionChange.of(await replay.squash(self._aio_handle, first, request, last))
